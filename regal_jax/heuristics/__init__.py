"""Host baselines, each a function from graph and cluster to a `Plan`. Never imports jax."""

from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.list_search import ListSearch, ListSearchConfig
from regal_jax.heuristics.peak_search import PeakSearch, PeakSearchConfig
from regal_jax.heuristics.registry import (
    HEURISTICS,
    Heuristic,
    best_heuristic,
    heuristic_plans,
    run_heuristic,
)

__all__ = [
    "HEURISTICS",
    "Heuristic",
    "HostSearch",
    "ListSearch",
    "ListSearchConfig",
    "PeakSearch",
    "PeakSearchConfig",
    "best_heuristic",
    "heuristic_plans",
    "run_heuristic",
]
