"""Plans that a solver returns are replayed before anybody sees them."""

from typing import Any

import numpy as np

from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan, check_graph, outcome

__all__ = ["replayed"]


def replayed(plan: Any, graph: ComputationGraph, cluster: Cluster, objective: Objective, solver: str) -> Plan:
    """``plan`` itself, if it is one for this problem and its exact replay gives its numbers.

    Raises:
      PlanError: It is not; the message names the solver.
    """
    if not isinstance(plan, Plan):
        raise PlanError(
            f"{solver}: returned a {type(plan).__name__}; return a Plan, e.g. of Plan.from_events"
        )
    try:
        check_graph(plan, graph)
        if plan.cluster != cluster:
            raise PlanError("the plan is for another cluster than that of the instance")
        if plan.objective is not objective:
            raise PlanError(
                f"the plan is for {plan.objective}, the instance for {objective}; give its objective to "
                "Plan.from_events"
            )
        makespan, peaks = outcome(graph, cluster, plan.placement, plan.event_ids(graph))
    except PlanError as error:
        raise PlanError(f"{solver}: returned a plan that is not valid: {error}") from None
    if makespan != plan.makespan or not np.array_equal(peaks, plan.peak_memory):
        raise PlanError(
            f"{solver}: its plan states a makespan of {plan.makespan:g} and peaks of "
            f"{plan.peak_memory.tolist()}, its replay gives {makespan:g} and {peaks.tolist()}; make plans "
            "with Plan.from_events"
        )
    return plan
