"""Heuristics on the host, each a function from graph and cluster to a `Plan`; without JAX."""

from typing import TYPE_CHECKING

from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.insertion_policy import (
    InsertionPolicy,
    load_insertion_policy,
    named_insertion_policy,
    save_insertion_policy,
)
from regal_jax.heuristics.list_race import ListSearchRace
from regal_jax.heuristics.list_search import ListSearchRun
from regal_jax.heuristics.list_search_config import ListSearchConfig
from regal_jax.heuristics.order_costs import least_random_order, order_peak
from regal_jax.heuristics.order_search_config import OrderSearchConfig
from regal_jax.heuristics.peak_search_config import PeakSearchConfig
from regal_jax.heuristics.registry import (
    HEURISTICS,
    XLA_ORDERS,
    Heuristic,
    best_heuristic,
    heuristic_plans,
    run_heuristic,
)
from regal_jax.heuristics.work import Work, counting
from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.heuristics.depth_first import depth_first_dp
    from regal_jax.heuristics.dynamic_programming import Found, approximate_dp
    from regal_jax.heuristics.order_search import OrderSearchRun
    from regal_jax.heuristics.peak_search import PeakSearchRun

__all__ = [
    "HEURISTICS",
    "XLA_ORDERS",
    "Found",
    "Heuristic",
    "HostSearch",
    "InsertionPolicy",
    "ListSearchConfig",
    "ListSearchRace",
    "ListSearchRun",
    "OrderSearchConfig",
    "OrderSearchRun",
    "PeakSearchConfig",
    "PeakSearchRun",
    "Work",
    "approximate_dp",
    "best_heuristic",
    "counting",
    "depth_first_dp",
    "heuristic_plans",
    "least_random_order",
    "load_insertion_policy",
    "named_insertion_policy",
    "order_peak",
    "run_heuristic",
    "save_insertion_policy",
]

# Their loops are parts of other loops, for which Numba is loaded at import.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "depth_first": ("depth_first_dp",),
        "dynamic_programming": ("Found", "approximate_dp"),
        "order_search": ("OrderSearchRun",),
        "peak_search": ("PeakSearchRun",),
    },
    [*globals()],
)
