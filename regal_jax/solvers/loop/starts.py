"""The plans of heuristics with which a search begins."""

import itertools
from collections.abc import Callable, Iterator
from typing import Final

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import XLA_ORDERS, heuristic_plans
from regal_jax.heuristics.time_left import until
from regal_jax.plan import Plan
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solvers.loop.settings import Settings

__all__ = ["starting_plans"]

_TIME: Final = 0.3
"""Share of a time limit that heuristics may use before a search; the first of each graph always runs."""


def starting_plans(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    deadline: Deadline,
    stopped: Callable[[], bool] | None = None,
) -> Iterator[Plan]:
    """Yields the plans of as many heuristics as there is time for, at least one.

    Args:
      graph: The graph.
      cluster: The cluster.
      settings: Settings of the call.
      deadline: The time of the call.
      stopped: Whether to end after the current draft.
    """
    # XLA's orders are made whatever the time limit, so that no result needs more memory than they do.
    always = len(XLA_ORDERS) if cluster.num_devices == 1 else 1
    plans = heuristic_plans(graph, cluster, settings.objective, seed=settings.number)
    time = deadline.part(_TIME)

    def over() -> bool:
        return time.over or (stopped is not None and stopped())

    for made in itertools.count(1):
        with until(over):
            plan = next(plans, None)
        if plan is None:
            return
        yield plan
        check_interrupt()
        if made >= always and over():
            return
