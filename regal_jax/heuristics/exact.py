"""Optimal plans of small graphs by constraint programming (OR-Tools CP-SAT, extra ``exact``)."""

import dataclasses
import importlib
import math
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_whole, real, shown
from regal_jax.errors import ConfigError, MissingExtraError
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics.exact_peaks import PeakOnDevices, PeakOnOne
from regal_jax.heuristics.registry import best_heuristic
from regal_jax.heuristics.time_left import until
from regal_jax.plan import Objective, Plan, lower_bound, makespan_upper_bound, transfer_event
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import first_interrupt_waits, interruptible

__all__ = ["cp_sat", "is_provable", "prove"]

_MOST_WORKERS: Final = 10_000
"""Largest number of threads that CP-SAT takes."""
_HORIZON: Final = 10**9
"""Approximate upper limit of the sum of times after conversion to whole numbers."""
_EQUAL: Final = 1e-6
"""Units by which a makespan may exceed a whole number and be equal to it."""
_ROUNDED: Final = 10**6
"""The same limit if times must be rounded; finer steps only make proofs slower."""
_FAR: Final = 100
"""Ratio of the sum of all times to a known makespan from which only times up to that makespan count."""

_HINT: Final = 0.3
"""Share of a limit of time that heuristics may use."""
_BLINK: Final = 0.1
"""Seconds."""
_PROVABLE_OPS: Final = {TransferModel.FREE: 256, TransferModel.DELAY: 32, TransferModel.BLOCKING: 16}
"""Largest number of ops of a graph whose plan `prove` looks at. Blocking transfers are decisions, too."""
_PROVABLE_CHOICES: Final = 512
"""Largest number of pairs of an op and a device, and of a tensor and a device where transfers take time."""
_PROVABLE_TIMES: Final = 1e-290
"""Least sum of all times, and least makespan that may limit them. Smaller times have no scale on which they
are whole numbers."""


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

    It minimises the makespan under every transfer model on any number of devices, if memory cannot run out,
    and the peak memory on one device, or on several with blocking transfers if memory cannot run out. For
    up to about 20 ops (15 for peak memory on several devices) it proves the optimum within seconds.

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
      A plan whose provenance has ``status`` (``"optimal"`` or ``"feasible"``), ``bound`` (no plan has a
      smaller value of the objective) and ``resolution``: 0 if the solver saw exact times, else the unit to
      which it rounded them. With rounded times, an ``"optimal"`` plan may exceed the optimum by at most the
      difference between its objective and ``bound``.

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
    make = _Makespan if objective is Objective.MAKESPAN else peak
    problem = make(cp_model, graph, cluster, hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit if limit.left is None else min(time_limit, limit.left)
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = _solve(solver, problem.model)
    if status in (cp_model.MODEL_INVALID, cp_model.INFEASIBLE):
        raise ConfigError(
            f"cp_sat: the solver reports an {solver.status_name(status).lower()} model; use a heuristic"
        )
    plan = hint
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        found = Plan.from_events(graph, cluster, *problem.solution(solver), objective=objective)
        # Where times were rounded, a heuristic may still be ahead by less than the rounding.
        plan = min(found, hint, key=lambda plan: plan.sort_key)
    bound = max(problem.bound(solver.best_objective_bound), lower_bound(graph, cluster, objective))
    provenance = {
        "method": "cp-sat",
        "status": "optimal" if status == cp_model.OPTIMAL else "feasible",
        "bound": min(bound, plan.objective_value),
        "resolution": problem.resolution,
        "seed": seed,
    }
    return dataclasses.replace(plan, provenance=provenance)


def is_provable(graph: ComputationGraph, cluster: Cluster) -> bool:
    """Whether `prove` can look at plans of the graph: it is small, and memory cannot run out."""
    tensors = 0 if cluster.transfer is TransferModel.FREE else graph.num_tensors
    choices = max(graph.num_ops, tensors) * cluster.num_devices
    small = graph.num_ops <= _PROVABLE_OPS[cluster.transfer] and choices <= _PROVABLE_CHOICES
    if not small or cluster.num_devices < 2 or not _has_room(graph, cluster):
        return False
    total = makespan_upper_bound(graph, cluster)
    return not total or total >= _PROVABLE_TIMES


def prove(
    graph: ComputationGraph, cluster: Cluster, plan: Plan, *, effort: float, seconds: float = math.inf
) -> Plan:
    """A plan with a smaller makespan, or a proof that there is none, if CP-SAT soon finds either.

    CP-SAT is asked for schedules that are shorter than the plan, which is easier than to find the plan anew.

    Args:
      graph: A graph for which `is_provable` is true.
      cluster: The cluster.
      plan: A plan of the graph for the makespan.
      effort: Largest deterministic time of the solver, in its own unit. It has one thread, so the result does
        not depend on the machine.
      seconds: Time after which the solver ends, with the time in which its model is built; if that comes
        before `effort` is spent, the result depends on the machine.

    Returns:
      The plan, or a better one. If it is proven, its provenance has ``status``, ``bound`` and ``resolution``
      as in `cp_sat`.

    Raises:
      MissingExtraError: OR-Tools is not installed.
    """
    cp_model, limit = _cp_model(), Deadline(seconds if math.isfinite(seconds) else None)
    problem = _Makespan(cp_model, graph, cluster, plan)
    if limit.over:
        return plan
    below = math.ceil(plan.makespan * problem.scale - _EQUAL)
    problem.require_below(below)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = effort
    if limit.left is not None:
        solver.parameters.max_time_in_seconds = limit.left
    status, said = _solve(solver, problem.model), dict(plan.provenance)
    found, bound = plan, float(below)
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        made = Plan.from_events(graph, cluster, *problem.solution(solver), objective=plan.objective)
        if made.sort_key < plan.sort_key:
            found, said = made, {**said, "found_by": "cp-sat"}
        bound = solver.best_objective_bound
    if status in (cp_model.OPTIMAL, cp_model.INFEASIBLE):
        proven = min(max(problem.bound(bound), plan.lower_bound), found.makespan)
        said.update(status="optimal", bound=proven, resolution=problem.resolution)
    return dataclasses.replace(found, provenance=said)


def _cp_model() -> Any:
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ImportError:
        raise MissingExtraError("ortools", "exact") from None


def _has_room(graph: ComputationGraph, cluster: Cluster) -> bool:
    """Whether memory cannot run out."""
    return min(cluster.memory) >= _most_bytes(graph)


def _most_bytes(graph: ComputationGraph) -> int:
    return int(graph.tensor_bytes.sum()) + int(graph.temp_bytes.max(initial=0))


def _check_supported(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> None:
    if objective is Objective.PEAK_MEMORY:
        if cluster.num_devices == 1:
            return
        if cluster.transfer is not TransferModel.BLOCKING:
            raise ConfigError(
                f"cp_sat: peak memory on several devices is supported with blocking transfers, not "
                f"{cluster.transfer}; use one device or a heuristic"
            )
    if not _has_room(graph, cluster):
        raise ConfigError(
            f"cp_sat: {objective.replace('-', ' ')} is supported where memory cannot run out: give every "
            f"device {_most_bytes(graph)} bytes or inf"
        )
    if objective is Objective.MAKESPAN and 0 < makespan_upper_bound(graph, cluster) < _PROVABLE_TIMES:
        raise ConfigError(
            f"cp_sat: the times of graph {graph.name!r} add up to less than {_PROVABLE_TIMES:g} "
            f"{graph.time_unit}, too little to be counted; choose another time unit"
        )


def _scale(values: np.ndarray, total: float) -> tuple[float, bool]:
    """``(units per time, exact)``: a power of ten that makes all values whole, if there is one."""
    for power in range(-9, 16):
        scaled = values * 10.0**power
        if total * 10.0**power <= _HORIZON and np.allclose(scaled, np.rint(scaled), rtol=1e-12, atol=0):
            return 10.0**power, True
    return _ROUNDED / total, False


class _Makespan:
    """Placement, starts and, in the blocking model, transfers as optional intervals on two devices.

    A transfer that takes no time is an interval too. CP-SAT does not allow it strictly inside another
    interval of the same device, as the rendezvous requires.
    """

    def __init__(self, cp: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan) -> None:
        self.graph, self.cluster, self.model = graph, cluster, cp.CpModel()
        self.n, self.d = graph.num_ops, cluster.num_devices
        runtime = runtime_matrix(graph, cluster)
        # What nobody reads is never moved, and its times decide no step.
        cost = transfer_times(graph, cluster) * (np.diff(graph.consumer_offset) > 0)[:, None]
        total = makespan_upper_bound(graph, cluster)
        self.scale, exact = _scale(np.append(runtime.ravel(), cost.ravel()), total)
        longest = hint.makespan
        if not exact and total > _FAR * longest >= _FAR * _PROVABLE_TIMES:
            # Steps of the sum would be too coarse. What takes longer than the hint is in no better schedule.
            runtime, cost = np.minimum(runtime, 2 * longest), np.minimum(cost, 2 * longest)
            total = longest
            self.scale, exact = _scale(np.append(runtime.ravel(), cost.ravel()), total)
        self.resolution = 0.0 if exact else 1 / self.scale
        self.runtime = np.rint(runtime * self.scale).astype(int).tolist()
        self.cost = np.rint(cost * self.scale).astype(int).tolist()
        self.link = cluster.link_index.tolist()
        most = self.n + len(cost) * (self.d - 1)
        # Rounding moves each event by half a unit at most.
        self.slack = 0.0 if exact else most / 2
        self.horizon = int(np.ceil(total * self.scale + self.slack)) + 1
        self.busy: list[list[Any]] = [[] for _ in range(self.d)]
        self.load: list[list[Any]] = [[] for _ in range(self.d)]
        self.moves: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._ops(hint)
        self._edges()
        self.makespan = self.model.new_int_var(0, self.horizon, "makespan")
        for o in range(self.n):
            self.model.add(self.makespan >= self.end[o])
        for k in range(self.d):
            self.model.add_no_overlap(self.busy[k])
            self.model.add(self.makespan >= sum(self.load[k]))
        self.model.minimize(self.makespan)

    def require_below(self, makespan: int) -> None:
        """Only schedules with a smaller makespan, in units of the model, are solutions."""
        self.model.add(self.makespan < makespan)
        for end in self.end:
            self.model.add(end < makespan)

    def _ops(self, hint: Plan) -> None:
        model, leader = self.model, self.graph.colocation_leader.tolist()
        allowed = allowed_matrix(self.graph, self.cluster)
        at = {}
        for o in sorted(set(leader)):
            for k in np.flatnonzero(allowed[o]).tolist():
                at[o, k] = model.new_bool_var(f"{o} on {k}")
                model.add_hint(at[o, k], int(hint.placement[o]) == k)
            model.add_exactly_one(at[o, k] for k in range(self.d) if (o, k) in at)
        alike = allowed.all() and all(len(set(row)) == 1 for row in self.runtime)
        alike = alike and len(self.cluster.links) == 1
        if alike:  # Devices are interchangeable: fix one op.
            model.add(at[leader[0], int(hint.placement[0])] == 1)
        started = dict(zip(hint.timeline.op[::-1].tolist(), hint.timeline.start[::-1].tolist(), strict=True))
        self.at: list[dict[int, Any]] = []
        self.start, self.end = [], []
        for o in range(self.n):
            where = {k: at[leader[o], k] for k in range(self.d) if (leader[o], k) in at}
            start = model.new_int_var(0, self.horizon, f"start {o}")
            model.add_hint(start, round(started[o] * self.scale))
            for k, here in where.items():
                size = self.runtime[o][k]
                self.busy[k].append(model.new_optional_fixed_size_interval_var(start, size, here, f"{o},{k}"))
                self.load[k].append(size * here)
            self.at.append(where)
            self.start.append(start)
            self.end.append(start + sum(self.runtime[o][k] * here for k, here in where.items()))

    def _edges(self) -> None:
        graph, model = self.graph, self.model
        for u, v in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
            model.add(self.start[v] >= self.end[u])
        readers = np.split(graph.edge_op, graph.consumer_offset[1:-1])
        for t, ops in enumerate(readers[: graph.num_tensors]):
            u = int(graph.tensor_op[t])
            for v in ops.tolist():
                model.add(self.start[v] >= self.end[u])
            for k in range(self.d):
                there = [(v, self.at[v][k]) for v in ops.tolist() if k in self.at[v]]
                sources = {h: here for h, here in self.at[u].items() if h != k}
                if not there or not sources:
                    continue
                if self.cluster.transfer is TransferModel.BLOCKING:
                    self._transfer(t, k, sources, there)
                else:
                    for v, here in there:
                        for h, source in sources.items():
                            late = model.add(self.start[v] >= self.end[u] + self._cost(t, h, k))
                            late.only_enforce_if(here, source)

    def _transfer(self, t: int, k: int, sources: dict[int, Any], there: list[tuple[int, Any]]) -> None:
        model, u = self.model, int(self.graph.tensor_op[t])
        sent = model.new_bool_var(f"send {t} to {k}")
        start = model.new_int_var(0, self.horizon, f"start of {t} to {k}")
        self.moves[t, k] = sent, start
        sizes = {h: self._cost(t, h, k) for h in sources}
        alike = len(set(sizes.values())) == 1
        # If it is sent, the producer is on one of the sources.
        size = sizes[min(sizes)] if alike else sum(sizes[h] * source for h, source in sources.items())
        away = sum(sources.values())
        model.add(sent <= away)
        model.add(sent <= sum(here for _, here in there))
        for v, here in there:
            model.add(sent >= here + away - 1)
            model.add(self.start[v] >= start + size).only_enforce_if(sent, here)
        model.add(start >= self.end[u]).only_enforce_if(sent)
        if alike:
            self._hold(k, start, size, sent, f"{t},{k},{k}")
        for h, source in sources.items():
            both = model.new_bool_var(f"send {t} from {h} to {k}")
            model.add_implication(both, sent)
            model.add_implication(both, source)
            model.add_bool_or(both, ~sent, ~source)
            for device in (h,) if alike else (h, k):
                self._hold(device, start, sizes[h], both, f"{t},{h},{k}")

    def _cost(self, t: int, source: int, target: int) -> int:
        return self.cost[t][self.link[source][target]]

    def _hold(self, device: int, start: Any, size: int, where: Any, name: str) -> None:
        """The device is busy from ``start`` on if ``where`` is true."""
        self.busy[device].append(self.model.new_optional_fixed_size_interval_var(start, size, where, name))
        self.load[device].append(size * where)

    def solution(self, solver: Any) -> tuple[np.ndarray, list[int]]:
        """``(placement [N], events [M])``: events by start. Of those that start together, events without
        duration come first, then those that others wait for."""
        placement = np.array([next(k for k, x in row.items() if solver.boolean_value(x)) for row in self.at])
        position = np.argsort(self.graph.topological_order).tolist()
        rows = []
        for o in range(self.n):
            start = solver.value(self.start[o])
            rows.append((start, start + self.runtime[o][placement[o]], 2 * position[o], o))
        for (t, k), (sent, begin) in self.moves.items():
            if solver.boolean_value(sent):
                start, event = solver.value(begin), transfer_event(self.graph, self.cluster, t, k)
                u = int(self.graph.tensor_op[t])
                finish = start + self._cost(t, int(placement[u]), k)
                rows.append((start, finish, 2 * position[u] + 1, event))
        return placement, [row[-1] for row in sorted(rows)]

    def bound(self, value: float) -> float:
        """The solver's bound as a time."""
        return (value - self.slack) / self.scale
