"""`order`: an order of the ops of a graph with a low memory peak on one device."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax

from regal_jax.api.names import MethodName
from regal_jax.api.optimize import optimize
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan
from regal_jax.solvers.loop.earlier import WarmStarts
from regal_jax.solvers.loop.watch import Improvement

if TYPE_CHECKING:
    from regal_jax.solvers import Solver

__all__ = ["order"]


def order(
    graph: ComputationGraph,
    *,
    memory: float | str = "inf",
    evaluations: int | None = None,
    seed: int | jax.Array = 0,
    method: "MethodName | Solver | None" = None,
    warm_start: WarmStarts = True,
    target: float | None = None,
    stall: int | None = None,
    time_limit: float | None = None,
    runs: int = 1,
    progress: bool = False,
    on_improvement: Callable[[Improvement], object] | None = None,
) -> Plan:
    """Orders the ops of ``graph`` on one device for the least peak memory.

    It is `regal_jax.optimize` with one device and the objective ``"peak-memory"``. The order is
    ``plan.timeline.op``. With warm starts it is never worse than the best of XLA's three orders, LPMF and the
    other heuristics.

    Args:
      graph: The graph.
      memory: Capacity of the device, as `Cluster.uniform` takes it.
      evaluations: As in `regal_jax.optimize`; ``None``: 5000.
      seed: As in `regal_jax.optimize`.
      method: As in `regal_jax.optimize`. Besides ``"auto"``, the methods for one device are
        ``"order-search"``, ``"topoformer"``, ``"beam"``, ``"approximate-dp"``, ``"depth-first-dp"``,
        ``"random-orders"`` and the heuristics.
      warm_start: As in `regal_jax.optimize`.
      target: As in `regal_jax.optimize`, in bytes.
      stall: As in `regal_jax.optimize`.
      time_limit: As in `regal_jax.optimize`.
      runs: As in `regal_jax.optimize`.
      progress: As in `regal_jax.optimize`.
      on_improvement: As in `regal_jax.optimize`.

    Returns:
      The plan.

    Warns:
      InfeasiblePlanWarning: The plan does not fit the memory.

    Raises:
      ConfigError: An argument is invalid.
      ClusterError: The graph cannot run on one device.
      KeyboardInterrupt: Ctrl-C before there was any plan.

    Examples:
      >>> from regal_jax import order
      >>> from regal_jax.datasets import generate
      >>> graph = generate("ordering-layered", 30, seed=0)
      >>> plan = order(graph)
      >>> plan.objective_value <= order(graph, method="xla-best").objective_value
      True
      >>> sorted(plan.timeline.op.tolist()) == list(range(graph.num_ops))
      True

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", NeurIPS.
    """
    return optimize(
        graph,
        Cluster.uniform(1, memory, "free"),
        objective=Objective.PEAK_MEMORY,
        evaluations=evaluations,
        seed=seed,
        method=method,
        warm_start=warm_start,
        target=target,
        stall=stall,
        time_limit=time_limit,
        runs=runs,
        progress=progress,
        on_improvement=on_improvement,
    )
