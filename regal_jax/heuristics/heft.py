"""Schedulers for transfers that block no device: HEFT with insertion, and Graham's list scheduling."""

import heapq
from typing import Any, Final

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    allowed_matrix,
    once_a_pair,
    runtime_matrix,
)
from regal_jax.heuristics.links import Links
from regal_jax.heuristics.list_scheduling import layout_of
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.work import note
from regal_jax.runtime.compiling import only_borrows, run_loops
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["graham_schedule", "heft_schedule"]

_GAPS: Final = 256
"""Idle intervals kept for each device, the latest ones, so that insertion takes linear time."""


def _in_time_order(graph: ComputationGraph, start: list[float], finish: list[float]) -> np.ndarray:
    """Ops by start. Of those that start together, ops without duration come first, in topological order."""
    position = np.argsort(graph.topological_order)
    return np.lexsort((position, np.array(finish), np.array(start)))


def heft_schedule(graph: ComputationGraph, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """HEFT: takes ops by upward rank; each runs where it finishes first, in gaps between earlier ops too.

    For the ``delay`` and ``free`` models (Topcuoglu, Hariri and Wu 2002, section 4.1).

    Returns:
      ``(placement [N], events [N])``, as `regal_jax.plan.replay` takes them.
    """
    note(schedules=1)
    return _heft(graph, cluster)


@once_a_pair
def _heft(graph: ComputationGraph, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """Kept, since it is a heuristic and a draft of another."""
    layout = layout_of(graph, cluster)
    n, d = graph.num_ops, cluster.num_devices
    position = np.argsort(graph.topological_order)
    order = np.lexsort((position, -upward_rank(graph, cluster)))
    links = layout.input_rows, layout.inputs, layout.producer, layout.after_rows, layout.after
    times = layout.runtime, layout.cost, layout.link, layout.links, layout.leader, layout.allowed
    state = np.full(n, -1), np.zeros(n), np.zeros(n), np.zeros(n), np.full(n, -1)
    gaps = np.zeros(d), np.zeros(d * n), np.zeros(d * n), np.arange(d) * n, np.arange(d) * n
    seconds = 1e-5 * n * d
    place, start, finish = run_loops(_insert, order, *links, *times, *state, *gaps, seconds=seconds)
    return np.array(place), _in_time_order(graph, start, finish)


@only_borrows
def _insert(
    order: Any, input_rows: Any, inputs: Any, producer: Any, after_rows: Any, after: Any,
    runtime: Any, cost: Any, link: Any, links: int, leader: Any, allowed: Any,
    place: Any, start: Any, finish: Any, ready: Any, bound: Any,
    clock: Any, opens: Any, closes: Any, first: Any, last: Any,
) -> Any:  # fmt: skip
    """Takes the ops in ``order``; each goes where it finishes first.

    Args: the fields of `list_kernel.Layout`, and arrays to write to.
      place, start, finish: ``[N]``, the schedule.
      ready: ``[N]``, the latest finish of the predecessors.
      bound: ``[N]``, device of each colocation group, or -1.
      clock: ``[D]``, time after which the device is idle.
      opens, closes: ``[D * N]``, idle intervals before that, in time order.
      first, last: ``[D]``, bounds of each device's intervals there.
    """
    d = len(clock)
    for o in order:
        best, begin, chosen, gap = np.inf, 0.0, -1, -1
        for k in range(d):
            group = leader[o]
            if not allowed[group * d + k] or (bound[group] >= 0 and bound[group] != k):
                continue
            arrival = ready[o]
            for i in range(input_rows[o], input_rows[o + 1]):
                t = inputs[i]
                u = producer[t]
                if place[u] != k:
                    arrival = max(arrival, finish[u] + cost[t * links + link[place[u] * d + k]])
            need, where = runtime[o * d + k], -1
            earliest = max(clock[k], arrival)
            for i in range(first[k], last[k]):
                if max(opens[i], arrival) + need <= closes[i]:
                    earliest, where = max(opens[i], arrival), i
                    break
            if chosen < 0 or earliest + need < best:
                best, begin, chosen, gap = earliest + need, earliest, k, where
        k, end = chosen, begin + runtime[o * d + chosen]
        place[o], start[o], finish[o], bound[leader[o]] = k, begin, end, k
        for i in range(after_rows[o], after_rows[o + 1]):
            ready[after[i]] = max(ready[after[i]], end)
        if begin >= clock[k]:
            if begin > clock[k]:
                first[k] = max(first[k], last[k] + 1 - _GAPS)
                opens[last[k]], closes[last[k]] = clock[k], begin
                last[k] += 1
            clock[k] = end
        else:
            before, beyond = opens[gap] < begin, end < closes[gap]
            if before and beyond:
                for i in range(last[k], gap, -1):
                    opens[i], closes[i] = opens[i - 1], closes[i - 1]
                last[k] += 1
                closes[gap], opens[gap + 1] = begin, end
            elif before:
                closes[gap] = begin
            elif beyond:
                opens[gap] = end
            else:
                for i in range(gap, last[k] - 1):
                    opens[i], closes[i] = opens[i + 1], closes[i + 1]
                last[k] -= 1
    return place, start, finish


class _Graham:
    """State of `graham_schedule`: idle devices, and ops that wait for one."""

    def __init__(self, graph: ComputationGraph, cluster: Cluster) -> None:
        n = graph.num_ops
        self.links = Links.of(graph)
        self.rank = upward_rank(graph, cluster).tolist()
        self.runtime = runtime_matrix(graph, cluster).tolist()
        self.allowed = [tuple(np.flatnonzero(row).tolist()) for row in allowed_matrix(graph, cluster)]
        self.leader = graph.colocation_leader.tolist()
        self.position = np.argsort(graph.topological_order).tolist()
        self.place, self.start, self.finish = [0] * n, [0.0] * n, [0.0] * n
        # One queue for each set of allowed devices, so that an op that waits for one of them blocks no other
        # op.
        self.queues: dict[tuple[int, ...], list[tuple[float, int, int]]] = {}
        self.idle = set(range(cluster.num_devices))
        self.running: list[tuple[float, int, int]] = []

    def ready(self, o: int) -> None:
        queue = self.queues.setdefault(self.allowed[self.leader[o]], [])
        heapq.heappush(queue, (-self.rank[o], self.position[o], o))

    def fill(self, now: float) -> None:
        """Starts ops until no idle device can run a ready op."""
        while self.idle:
            heads = [(q[0], where) for where, q in self.queues.items() if q and self.idle.intersection(where)]
            if not heads:
                return
            (_, _, o), where = min(heads)
            heapq.heappop(self.queues[where])
            if where != self.allowed[self.leader[o]]:
                self.ready(o)  # Its colocation group was assigned to a device while it waited.
                continue
            k = min(self.idle.intersection(where), key=lambda k: (self.runtime[o][k], k))
            self.allowed[self.leader[o]] = (k,)
            self.idle.remove(k)
            self.place[o], self.start[o], self.finish[o] = k, now, now + self.runtime[o][k]
            heapq.heappush(self.running, (self.finish[o], o, k))

    def advance(self) -> float:
        """Finishes the ops that end next; returns their end."""
        now = self.running[0][0]
        while self.running and self.running[0][0] == now:
            _, o, k = heapq.heappop(self.running)
            self.idle.add(k)
            for v in self.links.after[o]:
                self.waiting[v] -= 1
                if self.waiting[v] == 0:
                    self.ready(v)
        return now

    def run(self) -> None:
        self.waiting = [len(row) for row in self.links.before]
        for o, count in enumerate(self.waiting):
            if count == 0:
                self.ready(o)
        self.fill(0.0)
        while self.running:
            check_interrupt()
            self.fill(self.advance())


def graham_schedule(graph: ComputationGraph, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """List scheduling: a device that becomes idle starts the ready op of highest rank that it may run.

    For the ``free`` model, where on equal devices it stays within ``2 - 1 / D`` of the optimum (Graham
    1969, section 2).

    Returns:
      ``(placement [N], events [N])``, as `regal_jax.plan.replay` takes them.
    """
    state = _Graham(graph, cluster)
    state.run()
    note(schedules=1)
    return np.array(state.place), _in_time_order(graph, state.start, state.finish)
