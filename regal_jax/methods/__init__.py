"""What REGAL's Table 1 compares, behind one interface with a budget of evaluations; tuning of BRKGA."""

from regal_jax.methods.hosted import CpSat, HeuristicMethod
from regal_jax.methods.method import Method, Results
from regal_jax.methods.registry import METHODS, make_method
from regal_jax.methods.searched import Searched
from regal_jax.methods.tuning import DEFAULT_GRID, TunedConfig, tune

__all__ = [
    "DEFAULT_GRID",
    "METHODS",
    "CpSat",
    "HeuristicMethod",
    "Method",
    "Results",
    "Searched",
    "TunedConfig",
    "make_method",
    "tune",
]
