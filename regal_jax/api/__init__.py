"""The host face: `optimize` one graph, or `optimize_many`; `RoomForImprovement` filters them."""

from regal_jax.api.improvement import RoomForImprovement
from regal_jax.api.optimize import optimize, optimize_many

__all__ = ["RoomForImprovement", "optimize", "optimize_many"]
