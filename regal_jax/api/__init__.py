"""The host face: `optimize` one graph, or `optimize_many`; `RoomForImprovement`, `check_corpus` for sets."""

from regal_jax.api.check import check_corpus
from regal_jax.api.improvement import RoomForImprovement
from regal_jax.api.optimize import optimize, optimize_many

__all__ = ["RoomForImprovement", "check_corpus", "optimize", "optimize_many"]
