"""Host baselines, each a function from graph and cluster to a `Plan`. Never imports jax."""

from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.list_search import ListSearchConfig, ListSearchRun
from regal_jax.heuristics.peak_search import PeakSearchConfig, PeakSearchRun
from regal_jax.heuristics.registry import (
    HEURISTICS,
    Heuristic,
    best_heuristic,
    heuristic_plans,
    run_heuristic,
)
from regal_jax.heuristics.work import Work, counting

__all__ = [
    "HEURISTICS",
    "Heuristic",
    "HostSearch",
    "ListSearchConfig",
    "ListSearchRun",
    "PeakSearchConfig",
    "PeakSearchRun",
    "Work",
    "best_heuristic",
    "counting",
    "heuristic_plans",
    "run_heuristic",
]
