"""A model of the makespan for CP-SAT, with limits of memory on one device or with blocking transfers."""

import itertools
import math
from typing import Any, Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, TransferModel, runtime_matrix, transfer_times
from regal_jax.graph.arrays import all_edges
from regal_jax.heuristics.exact_steps import Steps, are_countable, has_room, place
from regal_jax.plan import Plan, makespan_upper_bound, transfer_event

__all__ = ["LEAST_TIME", "Makespan"]

LEAST_TIME: Final = 1e-290
"""Least sum of all times, and least makespan that may limit them. Smaller times have no scale on which they
are whole numbers."""
_HORIZON: Final = 10**9
"""Approximate upper limit of the sum of times after conversion to whole numbers."""
_ROUNDED: Final = 10**6
"""The same limit if times must be rounded; finer steps only make proofs slower."""
_MOST_EVENTS: Final = 500
"""Largest number of ops and possible transfers in a model with limits of memory, which has a variable for
each pair of them."""
_FAR: Final = 100
"""Ratio of the sum of all times to a known makespan from which only times up to that makespan count."""


def _scale(values: np.ndarray, total: float) -> tuple[float, bool]:
    """``(units per time, exact)``: a power of ten that makes all values whole, if there is one."""
    for power in range(-9, 16):
        scaled = values * 10.0**power
        if total * 10.0**power <= _HORIZON and np.allclose(scaled, np.rint(scaled), rtol=1e-12, atol=0):
            return 10.0**power, True
    return _ROUNDED / total, False


def _can_be_limited(graph: ComputationGraph, cluster: Cluster) -> bool:
    """Whether there is a model with limits of memory."""
    events = graph.num_ops + int(np.minimum(np.diff(graph.consumer_offset), cluster.num_devices).sum())
    blocks = cluster.num_devices == 1 or cluster.transfer is TransferModel.BLOCKING
    return blocks and events <= _MOST_EVENTS and are_countable(graph)


def _ancestors(graph: ComputationGraph) -> dict[Any, set[int]]:
    """For each op those that run before it in every order."""
    found: dict[Any, set[int]] = {o: set() for o in range(graph.num_ops)}
    sources, targets = all_edges(graph)
    needs: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for u, v in zip(sources.tolist(), targets.tolist(), strict=True):
        needs[v].append(u)
    for o in graph.topological_order.tolist():
        found[o].update(needs[o], *(found[u] for u in needs[o]))
    return found


class Makespan:
    """Placement, starts and, in the blocking model, transfers as optional intervals on two devices.

    A transfer that takes no time is an interval too. CP-SAT does not allow it strictly inside another
    interval of the same device, since a transfer occupies both.

    Where memory is limited, what happens first also matters for events that take no time. The model then has
    the order of all events, too, and what each device holds in this order (`Steps`).

    Attributes:
      relaxed: Whether it ignores limits of memory, since transfers do not block or the graph is large. Then
        its solutions may not fit, and its bounds are those without limits.
    """

    def __init__(self, cp: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan) -> None:
        self.graph, self.cluster, self.model = graph, cluster, cp.CpModel()
        self.n, self.d = graph.num_ops, cluster.num_devices
        runtime = runtime_matrix(graph, cluster)
        # What nobody reads is never moved, and its times decide no step.
        cost = transfer_times(graph, cluster) * (np.diff(graph.consumer_offset) > 0)[:, None]
        total = makespan_upper_bound(graph, cluster)
        self.scale, exact = _scale(np.append(runtime.ravel(), cost.ravel()), total)
        longest = hint.makespan if hint.feasible else math.inf
        if not exact and total > _FAR * longest >= _FAR * LEAST_TIME:
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
        # On each device: an op, or a tensor and where it is sent; whether it runs there; its start and end.
        self.runs: list[list[tuple[Any, Any, Any, Any]]] = [[] for _ in range(self.d)]
        self._ops(hint)
        self._edges()
        limited = not has_room(graph, cluster)
        self.relaxed = limited and not _can_be_limited(graph, cluster)
        self.order = self._memory(hint) if limited and not self.relaxed else None
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
        model = self.model
        alike = len(self.cluster.links) == 1 and all(len(set(row)) == 1 for row in self.runtime)
        self.at = place(model, self.graph, self.cluster, hint, alike=alike)
        started = dict(zip(hint.timeline.op[::-1].tolist(), hint.timeline.start[::-1].tolist(), strict=True))
        self.start, self.end = [], []
        for o in range(self.n):
            start = model.new_int_var(0, self.horizon, f"start {o}")
            model.add_hint(start, round(started[o] * self.scale))
            for k, here in self.at[o].items():
                self._hold(k, start, self.runtime[o][k], here, o)
            self.start.append(start)
            self.end.append(start + sum(self.runtime[o][k] * here for k, here in self.at[o].items()))

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
            self._hold(k, start, size, sent, (t, k))
        for h, source in sources.items():
            both = model.new_bool_var(f"send {t} from {h} to {k}")
            model.add_implication(both, sent)
            model.add_implication(both, source)
            model.add_bool_or(both, ~sent, ~source)
            for device in (h,) if alike else (h, k):
                self._hold(device, start, sizes[h], both, (t, k))

    def _cost(self, t: int, source: int, target: int) -> int:
        return self.cost[t][self.link[source][target]]

    def _hold(self, device: int, start: Any, size: int, where: Any, event: Any) -> None:
        """The device is busy from ``start`` on if ``where`` is true."""
        name = f"{event} on {device}"
        self.busy[device].append(self.model.new_optional_fixed_size_interval_var(start, size, where, name))
        self.load[device].append(size * where)
        self.runs[device].append((event, where, start, start + size))

    def _memory(self, hint: Plan) -> Steps:
        """What each device holds fits its memory, in an order of events that agrees with their times."""
        model, graph = self.model, self.graph
        steps = Steps(
            model, graph, self.cluster, self.at, {move: sent for move, (sent, _) in self.moves.items()}
        )
        steps.limit()
        steps.hint(hint)
        step = dict(enumerate(steps.step)) | {move: at for move, (_, at) in steps.moves.items()}
        earlier = _ancestors(graph)
        for t, k in self.moves:
            u = int(graph.tensor_op[t])
            earlier[t, k] = earlier[u] | {u}
        first: dict[Any, Any] = {}
        for runs in self.runs:
            for one, other in itertools.combinations(runs, 2):
                (a, here, *times), (b, there, *others) = one, other
                if a == b or a in earlier[b] or b in earlier[a]:
                    continue
                pair = (a, b) if (b, a) not in first else (b, a)
                if pair not in first:
                    first[pair] = model.new_bool_var(f"{pair[0]} before {pair[1]}")
                before = first[pair] if pair == (a, b) else ~first[pair]
                for x, y, (_, end), (begin, _), holds in (
                    (a, b, times, others, before),
                    (b, a, others, times, ~before),
                ):
                    model.add(step[y] > step[x]).only_enforce_if(holds, here, there)
                    model.add(begin >= end).only_enforce_if(holds, here, there)
        return steps

    def solution(self, solver: Any) -> tuple[np.ndarray, list[int]]:
        """``(placement [N], events [M])``: events by start. Of those that start together, events without
        duration come first, then those that others wait for. Where memory is limited, they have the order of
        the model."""
        placement = np.array([next(k for k, x in row.items() if solver.boolean_value(x)) for row in self.at])
        if self.order is not None:
            return placement, self.order.events(solver)
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
