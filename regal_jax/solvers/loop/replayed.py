"""What solvers return and raise: plans are replayed before anybody sees them, errors name their place."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import counted, is_list, real, shown, whole
from regal_jax.errors import PlanError, SolverError, is_ours
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch
from regal_jax.plan import ROUNDING, Objective, Plan, check_graph, outcome
from regal_jax.plan.plan import json_values
from regal_jax.solvers.protocol import Solver
from regal_jax.solvers.sources import is_of_package

__all__ = ["check_claims", "check_counts", "naming_errors", "replayed"]

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


def check_counts(search: HostSearch, solver: Solver, before: int, budget: int) -> None:
    """Checks what a search counts in a run, and makes it plain numbers.

    Args:
      search: The search. Those of solvers of the package are not checked.
      solver: The solver that began it.
      before: Its evaluations before the run.
      budget: Evaluations that the run could spend.

    Raises:
      PlanError: Its evaluations are no whole number, have decreased or are too many, or an entry of its
        history is no pair of a number of evaluations, in order, and an objective.
    """
    if is_of_package(solver):
        return
    name, given = solver.name, search.evaluations
    count = whole(given, 0)
    if count is None or count < before:
        raise PlanError(
            f"{name}: its search states {shown(given)} evaluations after {shown(before)}; give a whole "
            "number to which run adds each candidate"
        )
    if count - before > max(0, budget):
        raise PlanError(
            f"{name}: a run of its search made {counted(count - before, 'evaluation')}; make at most the "
            f"{max(0, budget):,} that it is given"
        )
    if not is_list(search.history):
        raise PlanError(f"{name}: the history of its search is {shown(search.history)}; leave it to improves")
    last, history = 0, list[tuple[int, float | None]]()
    for entry in search.history:
        done, value = entry if is_list(entry) and len(entry) == 2 else (None, None)
        last, number = whole(done, last, count), real(value, infinite=True)
        if last is None or (value is not None and number is None):
            raise PlanError(
                f"{name}: the history of its search has {shown(entry)} at {counted(count, 'evaluation')}; "
                "leave it to improves, which adds (evaluations, objective)"
            )
        history.append((last, number))
    search.evaluations, search.history = count, history


def check_claims(search: HostSearch, solver: Solver, least: float) -> None:
    """Checks that a search states no better objective than that of a known plan.

    Args:
      search: The search. Those of solvers of the package are not checked.
      solver: The solver that began it.
      least: The best objective of its plan and of the plans known before; infinite if none fits the memory.

    Raises:
      PlanError: It does.
    """
    if is_of_package(solver):
        return
    best = real(search.best, infinite=True)
    stated = [value for value in (best, *(value for _, value in search.history)) if value is not None]
    if best is None or min(stated) < least * (1 - ROUNDING):
        value = search.best if best is None else min(stated)
        raise PlanError(
            f"{solver.name}: its search states an objective of {shown(value)}, the best plan has {least:g}; "
            "give improves the values of plans that plan can return"
        )
