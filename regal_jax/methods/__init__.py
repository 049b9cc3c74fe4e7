"""What tables compare: solvers under names, budgets and starts of their own; tuning of BRKGA."""

from regal_jax.methods.method import Method, Results
from regal_jax.methods.registry import GUIDED, make_method, method_names
from regal_jax.methods.tuning import DEFAULT_GRID, TunedConfig, tune

__all__ = [
    "DEFAULT_GRID",
    "GUIDED",
    "Method",
    "Results",
    "TunedConfig",
    "make_method",
    "method_names",
    "tune",
]
