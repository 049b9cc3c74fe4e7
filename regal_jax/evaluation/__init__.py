"""The papers' evidence on any set of graphs: methods run side by side, compared, drawn."""

from regal_jax.evaluation.compare import Comparison, Row, compare, improvement
from regal_jax.evaluation.config import EvaluationConfig
from regal_jax.evaluation.report import Report, report
from regal_jax.evaluation.run import Outcome, run_evaluation
from regal_jax.evaluation.statistics import Interval, bootstrap, geometric_gap

__all__ = [
    "Comparison",
    "EvaluationConfig",
    "Interval",
    "Outcome",
    "Report",
    "Row",
    "bootstrap",
    "compare",
    "geometric_gap",
    "improvement",
    "report",
    "run_evaluation",
]
