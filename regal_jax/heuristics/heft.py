"""Schedulers for transfers that block no device: HEFT with insertion, and Graham's list scheduling."""

import heapq
from typing import Final

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    allowed_matrix,
    once_a_pair,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics.links import Links
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.work import note
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["graham_schedule", "heft_schedule"]

_GAPS: Final = 256
"""Idle intervals kept for each device, the latest ones, so that insertion takes linear time."""


def _in_time_order(graph: ComputationGraph, start: list[float], finish: list[float]) -> np.ndarray:
    """Ops by start. Of those that start together, ops without duration come first, in topological order."""
    position = np.argsort(graph.topological_order)
    return np.lexsort((position, np.array(finish), np.array(start)))


class _Device:
    """The schedule of one device, and its idle intervals."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.gaps: list[tuple[float, float]] = []

    def earliest(self, ready: float, runtime: float) -> float:
        """The first time from ``ready`` on at which the device is idle for ``runtime``."""
        for a, b in self.gaps:
            if max(a, ready) + runtime <= b:
                return max(a, ready)
        return max(self.clock, ready)

    def occupy(self, start: float, finish: float) -> None:
        """Occupies the interval that `earliest` found."""
        if start >= self.clock:
            if start > self.clock:
                self.gaps = [*self.gaps[1 - _GAPS :], (self.clock, start)]
            self.clock = finish
            return
        i = next(i for i, (a, b) in enumerate(self.gaps) if a <= start and finish <= b)
        a, b = self.gaps[i]
        self.gaps[i : i + 1] = [(x, y) for x, y in ((a, start), (finish, b)) if x < y]


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
    links = Links.of(graph)
    rank = upward_rank(graph, cluster)
    runtime = runtime_matrix(graph, cluster).tolist()
    cost, link = transfer_times(graph, cluster).tolist(), cluster.link_index.tolist()
    allowed = [np.flatnonzero(row).tolist() for row in allowed_matrix(graph, cluster)]
    leader = graph.colocation_leader.tolist()
    devices = [_Device() for _ in cluster.memory]
    place, start, finish = ([0] * graph.num_ops, [0.0] * graph.num_ops, [0.0] * graph.num_ops)

    def begin(o: int, k: int) -> float:
        ready = max((finish[u] for u in links.before[o]), default=0.0)
        for t in links.inputs[o]:
            u = links.producer[t]
            if place[u] != k:
                ready = max(ready, finish[u] + cost[t][link[place[u]][k]])
        return devices[k].earliest(ready, runtime[o][k])

    position = np.argsort(graph.topological_order)
    for o in np.lexsort((position, -rank)).tolist():
        check_interrupt()
        options = [(begin(o, k), k) for k in allowed[leader[o]]]
        start[o], k = min(options, key=lambda option: option[0] + runtime[o][option[1]])
        finish[o] = start[o] + runtime[o][k]
        place[o] = k
        allowed[leader[o]] = [k]
        devices[k].occupy(start[o], finish[o])
    return np.array(place), _in_time_order(graph, start, finish)


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
