"""What solvers return and raise: plans are replayed before anybody sees them, errors name their place."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.errors import PlanError, SolverError, is_ours
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan, check_graph, outcome
from regal_jax.plan.plan import json_values
from regal_jax.solvers.protocol import Solver
from regal_jax.solvers.sources import is_of_package

__all__ = ["naming_errors", "replayed"]

_OF_THE_SYSTEM: Final = (OSError, ImportError, MemoryError)
"""Errors that may not come again."""


@contextlib.contextmanager
def naming_errors(solver: Solver, graphs: Sequence[ComputationGraph]) -> Iterator[None]:
    """Names the solver and the graphs in exceptions that a solver from outside of the package raises.

    Raises:
      SolverError: It raised an exception that is neither ours nor one of the system; that is its cause.
    """
    try:
        yield
    except Exception as error:
        if is_ours(error) or isinstance(error, _OF_THE_SYSTEM) or is_of_package(solver):
            raise
        what = repr(graphs[0].name) if len(graphs) == 1 else f"{len(graphs)} graphs, {graphs[0].name!r} first"
        kind, text = type(error).__name__, next(iter(str(error).splitlines()), "")
        raise SolverError(
            f"{solver.name}: failed for {what}: {kind}: {text}; mend the solver (the error is the cause)"
        ) from error


def replayed(
    plan: Any, graph: ComputationGraph, cluster: Cluster, objective: Objective, solver: Solver
) -> Plan:
    """``plan``, if it is one for this problem and its exact replay gives its numbers.

    All that a plan of a solver from outside of the package states is verified. Its provenance becomes values
    of a file, with the name of the solver as method where it names none. Solvers of the package make plans
    with `Plan.from_events`, whose makespan and peaks are compared; they stay as they are.

    Raises:
      PlanError: It is not; the message names the solver.
    """
    name = solver.name
    if not isinstance(plan, Plan):
        raise PlanError(f"{name}: returned a {type(plan).__name__}; return a Plan, e.g. of Plan.from_events")
    try:
        check_graph(plan, graph)
        if plan.cluster != cluster:
            raise PlanError("the plan is for another cluster than that of the instance")
        if plan.objective is not objective:
            raise PlanError(
                f"the plan is for {plan.objective}, the instance for {objective}; give its objective to "
                "Plan.from_events"
            )
        if not isinstance(plan.provenance, Mapping):
            raise PlanError(f"its provenance is a {type(plan.provenance).__name__}; give a dict, or none")
        makespan, peaks = outcome(graph, cluster, plan.placement, plan.event_ids(graph))
        if makespan != plan.makespan or not np.array_equal(peaks, plan.peak_memory):
            raise PlanError(
                f"it states a makespan of {plan.makespan:g} and peaks of {plan.peak_memory.tolist()}, its "
                f"replay gives {makespan:g} and {peaks.tolist()}; make plans with Plan.from_events"
            )
        if is_of_package(solver):
            return plan
        plan.verify(graph)
        said = json_values(dict(plan.provenance), "provenance")
    except PlanError as error:
        raise PlanError(f"{name}: returned a plan that is not valid: {error}") from None
    method = said.get("method")
    said["method"] = method if isinstance(method, str) else name
    return dataclasses.replace(plan, provenance=said)
