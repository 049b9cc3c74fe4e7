"""Experiments of the papers on any set of graphs: methods are tuned, run side by side, compared and plotted.

A method is a solver with a name, a budget and starts of its own. It is one row of a table.
"""

from regal_jax.experiments.compare import Comparison, Row, compare, improvement
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.method import Method, Results
from regal_jax.experiments.registry import GUIDED, make_method, method_names
from regal_jax.experiments.report import Report, report
from regal_jax.experiments.run import Outcome, run_evaluation
from regal_jax.experiments.statistics import Interval, bootstrap, geometric_gap
from regal_jax.experiments.tuning import DEFAULT_GRID, TunedConfig, tune

__all__ = [
    "DEFAULT_GRID",
    "GUIDED",
    "Comparison",
    "EvaluationConfig",
    "Interval",
    "Method",
    "Outcome",
    "Report",
    "Results",
    "Row",
    "TunedConfig",
    "bootstrap",
    "compare",
    "geometric_gap",
    "improvement",
    "make_method",
    "method_names",
    "report",
    "run_evaluation",
    "tune",
]
