"""What every order of a graph needs."""

from typing import Final

from regal_jax.graph import ComputationGraph
from regal_jax.heuristics import OrderSearchRun
from regal_jax.plan import Plan, order_bound

__all__ = ["least_bytes"]

_EVALUATIONS: Final = 2000


def least_bytes(graph: ComputationGraph, plan: Plan) -> int:
    """Bytes that the peak of every order of ``graph`` reaches on one device.

    Args:
      graph: The graph.
      plan: A plan of little memory, which order search tries to prove the best.
    """
    search = OrderSearchRun(graph, plan.cluster, 0, starts=[plan])
    search.run(_EVALUATIONS)
    return max(search.proven_bytes, order_bound(graph, plan.event_ids(graph)))
