"""`ListSearch` or `PeakSearch` of one graph, under what the caller said of when to stop."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from regal_jax.api.settings import Settings
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch, ListSearch, ListSearchConfig, PeakSearch
from regal_jax.plan import ROUNDING, Plan, lower_bound
from regal_jax.search import Status
from regal_jax.solve import graph_identities

__all__ = ["HostResult", "search_on_host"]

_STARTS: Final = 4
"""Plans of heuristics whose placements are begun with."""


@dataclasses.dataclass(frozen=True, eq=False)
class HostResult:
    """What came of it.

    Attributes:
      plan: The best; ``None`` if there is none.
      evaluations: That it spent.
      history: The incumbent's objective whenever it improved, as in a plan's provenance.
      status: Why it ended.
      seconds: That it took.
    """

    plan: Plan | None
    evaluations: int
    history: dict[str, list[Any]]
    status: Status
    seconds: float


def search_on_host(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    known: Sequence[Plan],
    *,
    seconds: float | None,
    interrupted: Callable[[], bool],
) -> HostResult:
    """Spends the budget that the method has for the host.

    Args:
      graph: The graph.
      cluster: Where it is to run.
      settings: Of the call.
      known: Plans of heuristics, best first.
      seconds: Stop after so many.
      interrupted: Stop as soon as this is so.
    """
    began = time.monotonic()
    search = _search(graph, cluster, settings, known)
    goal = lower_bound(graph, cluster, settings.objective) * (1 + ROUNDING)
    goal = max(goal, settings.target or 0.0)
    first = known[0].objective_value if known and known[0].feasible else math.inf
    status = Status.BUDGET

    def ends() -> bool:
        nonlocal status
        done = search.evaluations
        if interrupted():
            status = Status.INTERRUPTED
        elif min(first, search.best) <= goal:
            status = Status.TARGET
        elif settings.stall is not None and done and done - search.history[-1][0] >= settings.stall:
            status = Status.STALL
        elif seconds is not None and done and time.monotonic() - began > seconds:
            status = Status.TIME
        return status is not Status.BUDGET

    search.run(settings.host_evaluations(cluster.num_devices), ends)
    history = _history(search, first)
    return HostResult(search.plan(), search.evaluations, history, status, time.monotonic() - began)


def _search(
    graph: ComputationGraph, cluster: Cluster, settings: Settings, known: Sequence[Plan]
) -> ListSearch | PeakSearch:
    seed = [*settings.key_words, *graph_identities([graph])[0].tolist()]
    config = settings.host_config
    if isinstance(config, ListSearchConfig):
        return ListSearch(graph, cluster, seed, config)
    starts = [plan.placement for plan in known[:_STARTS]]
    return PeakSearch(graph, cluster, seed, config, starts)


def _history(search: HostSearch, first: float) -> dict[str, list[Any]]:
    evaluations, best = [0], [first]
    for done, value in search.history:
        if value is not None and value < best[-1]:
            evaluations.append(done)
            best.append(value)
    if evaluations[-1] < search.evaluations:
        evaluations.append(search.evaluations)
        best.append(best[-1])
    return {"evaluations": evaluations, "best": [None if math.isinf(x) else x for x in best]}
