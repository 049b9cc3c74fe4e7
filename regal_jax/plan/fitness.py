"""The fitness of a plan: its objective relative to an upper bound."""

import math

from regal_jax.checks import check_kind
from regal_jax.graph import ComputationGraph
from regal_jax.plan.bounds import Objective, makespan_upper_bound
from regal_jax.plan.plan import Plan

__all__ = ["plan_fitness"]


def plan_fitness(plan: Plan, graph: ComputationGraph) -> float:
    """The fitness of a plan, which the search minimises (docs/design.md, part 1), in float64.

    A feasible plan has ``makespan / upper bound`` or ``largest peak / all memory``, in [0, 1]; an infeasible
    one ``1 + overflow / all memory``, more than 1. `regal_jax.solve.fitness` is the same on an
    accelerator, rounded to float32.

    Args:
      plan: A plan of ``graph``.
      graph: The graph.

    Examples:
      >>> from regal_jax import Cluster, optimize
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.plan import plan_fitness
      >>> graph = generate("chain", 3, seed=0)
      >>> 0 < plan_fitness(optimize(graph, Cluster.uniform(2)), graph) <= 1
      True
    """
    check_kind("plan", plan, Plan)
    check_kind("graph", graph, ComputationGraph)
    total = float(graph.tensor_bytes.sum() + graph.temp_bytes.sum())
    if not plan.feasible:
        # An overflow must not round to 0, however small it is.
        return max(1 + float(plan.overflow.sum()) / max(total, 1), math.nextafter(1, 2))
    scale = makespan_upper_bound(graph, plan.cluster) if plan.objective is Objective.MAKESPAN else total
    # The sums of the makespan and of its bound are rounded differently.
    return min(plan.objective_value / scale, 1.0) if scale else 0.0
