"""The host face: `optimize` one graph, or `optimize_many`, or `compare` methods."""

from regal_jax.api.comparison import Comparison, compare
from regal_jax.api.optimize import optimize, optimize_many
from regal_jax.solvers.loop.watch import Improvement

__all__ = ["Comparison", "Improvement", "compare", "optimize", "optimize_many"]
