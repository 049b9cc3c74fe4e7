"""`ListSearch` of one graph, under what the caller said of when to stop."""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from regal_jax.api.settings import Settings
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import ListSearch
from regal_jax.plan import Plan
from regal_jax.search import Status
from regal_jax.solve import graph_identities

__all__ = ["Listed", "list_search"]


@dataclasses.dataclass(frozen=True, eq=False)
class Listed:
    """What came of it.

    Attributes:
      plan: The best of its schedules; ``None`` if it made none.
      schedules: That it made, each of them one evaluation.
      history: The incumbent's makespan whenever it improved, as in a plan's provenance.
      status: Why it ended.
      seconds: That it took.
    """

    plan: Plan | None
    schedules: int
    history: dict[str, list[Any]]
    status: Status
    seconds: float


def list_search(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    known: Sequence[Plan],
    *,
    seconds: float | None,
    interrupted: Callable[[], bool],
) -> Listed:
    """Spends the budget that the method has for list schedules.

    Args:
      graph: The graph.
      cluster: Where it is to run.
      settings: Of the call.
      known: Plans of heuristics, best first.
      seconds: Stop after so many.
      interrupted: Stop as soon as this is so.
    """
    began = time.monotonic()
    key = np.asarray(jax.random.key_data(settings.key)).tolist()
    seed = [*key, *graph_identities([graph])[0].tolist()]
    search = ListSearch(graph, cluster, seed, settings.list_config)
    first = known[0].makespan if known and known[0].feasible else math.inf
    status = Status.BUDGET

    def ends() -> bool:
        nonlocal status
        done = search.schedules
        if interrupted():
            status = Status.INTERRUPTED
        elif settings.target is not None and min(first, search.best) <= settings.target:
            status = Status.TARGET
        elif settings.stall is not None and done and done - search.history[-1][0] >= settings.stall:
            status = Status.STALL
        elif seconds is not None and done and time.monotonic() - began > seconds:
            status = Status.TIME
        return status is not Status.BUDGET

    search.run(settings.schedules(cluster.num_devices), ends)
    history = _history(search, first)
    return Listed(search.plan(), search.schedules, history, status, time.monotonic() - began)


def _history(search: ListSearch, first: float) -> dict[str, list[Any]]:
    evaluations, best = [0], [first]
    for done, makespan in search.history:
        if makespan is not None and makespan < best[-1]:
            evaluations.append(done)
            best.append(makespan)
    if evaluations[-1] < search.schedules:
        evaluations.append(search.schedules)
        best.append(best[-1])
    return {"evaluations": evaluations, "best": [None if math.isinf(x) else x for x in best]}
