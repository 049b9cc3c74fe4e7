"""The host face: `optimize` one graph, or `optimize_many`."""

from regal_jax.api.optimize import optimize, optimize_many

__all__ = ["optimize", "optimize_many"]
