"""Optimal plans of small graphs by constraint programming (OR-Tools CP-SAT, extra ``exact``)."""

import dataclasses
import importlib
import math
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

from regal_jax.checks import check_whole, real, shown
from regal_jax.errors import ConfigError, MissingExtraError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.heuristics.exact_makespan import LEAST_TIME, Makespan
from regal_jax.heuristics.exact_peaks import PeakOnDevices, PeakOnOne
from regal_jax.heuristics.exact_steps import are_countable
from regal_jax.heuristics.registry import best_heuristic
from regal_jax.heuristics.time_left import until
from regal_jax.plan import Objective, Plan, lower_bound, makespan_upper_bound, proven_status
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import first_interrupt_waits, interruptible

__all__ = ["cp_sat", "is_provable", "prove"]

_MOST_WORKERS: Final = 10_000
"""Largest number of threads that CP-SAT takes."""
_EQUAL: Final = 1e-6
"""Units by which a makespan may exceed a whole number and be equal to it."""
_HINT: Final = 0.3
"""Share of a limit of time that heuristics may use."""
_BLINK: Final = 0.1
"""Seconds."""
_PROVABLE_OPS: Final = {TransferModel.FREE: 256, TransferModel.DELAY: 32, TransferModel.BLOCKING: 16}
"""Largest number of ops of a graph whose plan `prove` looks at. Blocking transfers are decisions, too."""
_PROVABLE_CHOICES: Final = 512
"""Largest number of pairs of an op and a device, and of a tensor and a device unless transfers are free."""


def _solve(solver: Any, model: Any) -> Any:
    """The solver's status. At Ctrl-C it stops with its best solution so far."""
    # CP-SAT's own handler would stay installed, and the next Ctrl-C would end the process.
    solver.parameters.catch_sigint_signal = False
    with first_interrupt_waits() as interrupted, ThreadPoolExecutor(1) as pool:
        running = pool.submit(solver.solve, model)
        while not wait([running], timeout=_BLINK).done:
            if interrupted():
                solver.stop_search()
        return running.result()


@interruptible()
def cp_sat(
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    time_limit: float = 60.0,
    seconds: float | None = None,
    workers: int = 2,
    seed: int = 0,
) -> Plan:
    """The best plan that CP-SAT finds, and a bound on all others.

    It minimises the makespan under every transfer model, and the peak memory on one device or on several with
    blocking transfers. For up to about 20 ops (15 for peak memory on several devices) it proves the optimum
    within seconds. Limits of memory are part of its model, but for the makespan of graphs with more than 500
    ops and possible transfers, and of several devices whose transfers do not block. There its plans may not
    fit, and the best heuristic plan that does is the result.

    Args:
      graph: The graph.
      cluster: The cluster.
      objective: What to minimise.
      time_limit: Largest time of the solver in seconds, above 0.
      seconds: Time after which the solver ends, with the time in which heuristics run and its model is built,
        which are not interrupted; ``None`` for no such limit.
      workers: Threads of the solver; with one, the result is the same every time, unless the time limit ends
        the solver.
      seed: Seed of the solver's random choices.

    Returns:
      A plan whose provenance has ``status``, ``bound`` (no plan that fits the memory has a smaller value of
      the objective) and ``resolution``: 0 if the solver saw exact times, else the unit to which it rounded
      them. With rounded times, an ``"optimal"`` plan may exceed the optimum by at most the difference between
      its objective and ``bound``. Other values of ``status`` are ``"feasible"``, ``"infeasible"`` if the plan
      does not fit the memory, and ``"impossible"`` if it is proven that none does.

    Raises:
      MissingExtraError: OR-Tools is not installed.
      ConfigError: A limit is out of range, or the model does not cover the problem.
      ClusterError: The cluster does not fit the graph.
    """
    if real(time_limit, above=0, infinite=True) is None:
        raise ConfigError(f"cp_sat: time_limit must be more than zero seconds, got {shown(time_limit)}")
    workers = check_whole("cp_sat: workers", workers, 1, _MOST_WORKERS)
    objective = Objective(objective)
    _check_supported(graph, cluster, objective)
    cp_model, limit = _cp_model(), Deadline(seconds)
    part = limit.part(_HINT)
    with until(lambda: part.over):
        hint = best_heuristic(graph, cluster, objective, seed=seed)[0]
    peak = PeakOnOne if cluster.num_devices == 1 else PeakOnDevices
    make = Makespan if objective is Objective.MAKESPAN else peak
    problem = make(cp_model, graph, cluster, hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit if limit.left is None else min(time_limit, limit.left)
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = _solve(solver, problem.model)
    if status == cp_model.MODEL_INVALID or (status == cp_model.INFEASIBLE and hint.feasible):
        raise ConfigError(
            f"cp_sat: the solver reports an {solver.status_name(status).lower()} model; use a heuristic"
        )
    plan, proven = hint, status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = Plan.from_events(graph, cluster, *problem.solution(solver), objective=objective)
        # Where times were rounded, a heuristic may still be ahead by less than the rounding.
        plan = min(found, hint, key=lambda plan: plan.sort_key)
        proven = proven and (found.feasible or not problem.relaxed)
    bound = max(problem.bound(solver.best_objective_bound), lower_bound(graph, cluster, objective))
    provenance = {
        "method": "cp-sat",
        "status": proven_status(feasible=plan.feasible, proven=proven),
        "bound": min(bound, plan.objective_value),
        "resolution": problem.resolution,
        "seed": seed,
    }
    return dataclasses.replace(plan, provenance=provenance)


def is_provable(graph: ComputationGraph, cluster: Cluster, objective: Objective = Objective.MAKESPAN) -> bool:
    """Whether `prove` can look at plans of the graph: it is small, and has a model."""
    if objective is Objective.PEAK_MEMORY:
        blocks = cluster.transfer is TransferModel.BLOCKING and cluster.num_devices > 1
        if not blocks or not are_countable(graph):
            return False
    tensors = 0 if cluster.transfer is TransferModel.FREE else graph.num_tensors
    choices = max(graph.num_ops, tensors) * cluster.num_devices
    small = graph.num_ops <= _PROVABLE_OPS[cluster.transfer] and choices <= _PROVABLE_CHOICES
    if not small or cluster.num_devices < 2:
        return False
    total = makespan_upper_bound(graph, cluster)
    return not total or total >= LEAST_TIME


def prove(
    graph: ComputationGraph, cluster: Cluster, plan: Plan, *, effort: float, seconds: float = math.inf
) -> Plan:
    """A better plan, or a proof that there is none, if CP-SAT soon finds either.

    CP-SAT is asked for plans that are better than this one, which is easier than to find it anew.

    Args:
      graph: A graph for which `is_provable` is true.
      cluster: The cluster.
      plan: A plan of the graph.
      effort: Largest deterministic time of the solver, in its own unit. It has one thread, so the result does
        not depend on the machine.
      seconds: Time after which the solver ends, with the time in which its model is built; if that comes
        before `effort` is spent, the result depends on the machine.

    Returns:
      The plan, or a better one. If it is proven optimal, its provenance has ``status``, ``bound`` and
      ``resolution`` as in `cp_sat`; if it is proven that no plan fits the memory, ``status``.

    Raises:
      MissingExtraError: OR-Tools is not installed.
    """
    cp_model, limit = _cp_model(), Deadline(seconds if math.isfinite(seconds) else None)
    make = Makespan if plan.objective is Objective.MAKESPAN else PeakOnDevices
    problem = make(cp_model, graph, cluster, plan)
    if limit.over or (problem.relaxed and not plan.feasible):
        return plan
    below = math.ceil(plan.objective_value * problem.scale - _EQUAL)
    if plan.feasible:
        problem.require_below(below)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    if limit.left is not None:
        solver.parameters.max_time_in_seconds = limit.left
    status, said = _solve(solver, problem.model), dict(plan.provenance)
    found, bound, proven = plan, float(below), status in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        made = Plan.from_events(graph, cluster, *problem.solution(solver), objective=plan.objective)
        if made.sort_key < plan.sort_key:
            found, said = made, {**said, "found_by": "cp-sat"}
        bound = solver.best_objective_bound
        proven = proven and (made.feasible or not problem.relaxed)
    if proven and not found.feasible:
        said.update(status="impossible")
    elif proven:
        bound = min(max(problem.bound(bound), plan.lower_bound), found.objective_value)
        said.update(status="optimal", bound=bound, resolution=problem.resolution)
    return dataclasses.replace(found, provenance=said)


def _cp_model() -> Any:
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise MissingExtraError("ortools", "exact") from None


def _check_supported(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> None:
    if objective is Objective.PEAK_MEMORY:
        if cluster.num_devices == 1:
            return
        if cluster.transfer is not TransferModel.BLOCKING:
            raise ConfigError(
                f"cp_sat: peak memory on several devices is supported with blocking transfers, not "
                f"{cluster.transfer}; use one device or a heuristic"
            )
        return
    if 0 < makespan_upper_bound(graph, cluster) < LEAST_TIME:
        raise ConfigError(
            f"cp_sat: the times of graph {graph.name!r} add up to less than {LEAST_TIME:g} "
            f"{graph.time_unit}, too little to be counted; choose another time unit"
        )
