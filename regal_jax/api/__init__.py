"""The public functions: `optimize`, `optimize_many`, `order` (for one device) and `compare`."""

from regal_jax.api.comparison import Comparison, compare
from regal_jax.api.optimize import optimize, optimize_many
from regal_jax.api.order import order
from regal_jax.solvers.loop.watch import Improvement

__all__ = ["Comparison", "Improvement", "compare", "optimize", "optimize_many", "order"]
