"""The host face: `optimize` one graph, or `optimize_many`; `order` on one device; `compare` methods."""

from regal_jax.api.comparison import Comparison, compare
from regal_jax.api.optimize import optimize, optimize_many
from regal_jax.api.order import order
from regal_jax.solvers.loop.watch import Improvement

__all__ = ["Comparison", "Improvement", "compare", "optimize", "optimize_many", "order"]
