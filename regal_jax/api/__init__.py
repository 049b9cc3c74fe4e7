"""The host face: `optimize` one graph, or `optimize_many`, `compare` methods; `check_corpus` for sets."""

from regal_jax.api.check import check_corpus
from regal_jax.api.comparison import Comparison, compare
from regal_jax.api.improvement import RoomForImprovement
from regal_jax.api.optimize import optimize, optimize_many
from regal_jax.solvers.loop.watch import Improvement

__all__ = [
    "Comparison",
    "Improvement",
    "RoomForImprovement",
    "check_corpus",
    "compare",
    "optimize",
    "optimize_many",
]
