"""The best plan of a tiny graph, by trying every placement and every order of events."""

import itertools
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, TransferModel, allowed_matrix, runtime_matrix
from regal_jax.plan import Objective, Plan

__all__ = ["brute_force"]

_MAX_OPS: Final = 6
_Vector = tuple[float, ...]


def brute_force(
    graph: ComputationGraph, cluster: Cluster, objective: Objective | str = Objective.MAKESPAN
) -> Plan:
    """A plan that no other plan beats, in `Plan.sort_key`; for up to 6 ops.

    For each placement it visits the sets of events that can have happened. A state of a set has only values
    that can still matter: clocks, finishes that some event waits for, and peaks. Of two states of the same
    set, one that is in no value better than the other is dropped.
    """
    assert graph.num_ops <= _MAX_OPS
    objective = Objective(objective)
    best: tuple[tuple[float, float], np.ndarray, list[int]] | None = None
    for placement in _placements(graph, cluster):
        walk = _Walk(graph, cluster, objective, placement)
        key, events = walk.best()
        if best is None or key < best[0]:
            best = key, placement, events
    assert best is not None
    provenance: dict[str, Any] = {"method": "brute-force", "status": "optimal"}
    return Plan.from_events(graph, cluster, best[1], best[2], objective=objective, provenance=provenance)


def _placements(graph: ComputationGraph, cluster: Cluster) -> Iterator[np.ndarray]:
    allowed = allowed_matrix(graph, cluster)
    leader = graph.colocation_leader
    options = [np.flatnonzero(row).tolist() if leader[o] == o else [0] for o, row in enumerate(allowed)]
    runtime = runtime_matrix(graph, cluster)
    alike = allowed.all() and (runtime == runtime[:, :1]).all() and len(set(cluster.memory)) == 1
    alike = alike and len(cluster.links) == 1
    for choice in itertools.product(*options):
        placement = np.array(choice)[leader]
        # Equal devices are interchangeable: they are used in the order of their indices.
        first = list(dict.fromkeys(placement.tolist()))
        if not alike or first == list(range(len(first))):
            yield placement


class _Walk:
    """All orders of events under one placement.

    A state is a set of events (a bit mask) with a vector of clocks [D], finishes of ops [N] that some event
    still waits for, and peaks [D]; smaller is better in every entry.
    """

    def __init__(
        self, graph: ComputationGraph, cluster: Cluster, objective: Objective, placement: np.ndarray
    ) -> None:
        self.graph, self.cluster, self.objective = graph, cluster, objective
        self.place = placement.tolist()
        self.n, self.d = graph.num_ops, cluster.num_devices
        self.runtime = runtime_matrix(graph, cluster)
        self.blocking = cluster.transfer is TransferModel.BLOCKING
        self.home = [self.place[u] for u in graph.tensor_op.tolist()]
        edges = list(zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True))
        self.inputs = [[t for t, v in edges if v == o] for o in range(self.n)]
        self.outputs = [np.flatnonzero(graph.tensor_op == o).tolist() for o in range(self.n)]
        # users[t, k]: ops on k that read t; the events: ops, then (tensor, device) that must move.
        self.users: dict[tuple[int, int], int] = {}
        for t, v in edges:
            self.users[t, self.place[v]] = self.users.get((t, self.place[v]), 0) | 1 << v
        self.moves = sorted((t, k) for t, k in self.users if k != self.home[t])
        self.bit = {m: self.n + i for i, m in enumerate(self.moves)} if self.blocking else {}
        self.count = self.n + len(self.bit)
        control = list(zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True))
        self.control = [[u for u, v in control if v == o] for o in range(self.n)]
        self.after = [
            sum(
                1 << v
                for v in {v for t, v in edges if graph.tensor_op[t] == o} | {v for u, v in control if u == o}
            )
            for o in range(self.n)
        ]
        self.needs = [self._needs(event) for event in range(self.count)]

    def _needs(self, event: int) -> int:
        """Mask of the events that must come before."""
        if event >= self.n:
            return 1 << int(self.graph.tensor_op[self.moves[event - self.n][0]])
        mask = sum(1 << u for u in set(self.control[event]))
        for t in self.inputs[event]:
            mask |= 1 << int(self.graph.tensor_op[t])
            if (t, self.place[event]) in self.bit:
                mask |= 1 << self.bit[t, self.place[event]]
        return mask

    def best(self) -> tuple[tuple[float, float], list[int]]:
        """The best key ``(overflow, objective)`` and events that reach it."""
        # Residents count in the peak of the first event on their device; a device with residents has an
        # event.
        start = (0.0,) * (self.d + self.n + self.d)
        layer: dict[int, dict[_Vector, list[int]]] = {0: {start: []}}
        for _ in range(self.count):
            following: dict[int, dict[_Vector, list[int]]] = {}
            for mask, states in layer.items():
                for event in range(self.count):
                    if mask >> event & 1 or self.needs[event] & ~mask:
                        continue
                    bucket = following.setdefault(mask | 1 << event, {})
                    for vector, events in states.items():
                        self._keep(bucket, self._step(mask, vector, event), [*events, event])
            layer = following
        (states,) = layer.values()
        vector, events = min(states.items(), key=lambda item: self._key(item[0]))
        return self._key(vector), [self._name(event) for event in events]

    def _keep(self, bucket: dict[_Vector, list[int]], vector: _Vector, events: list[int]) -> None:
        if any(all(a <= b for a, b in zip(other, vector, strict=True)) for other in bucket):
            return
        for other in [o for o in bucket if all(a <= b for a, b in zip(vector, o, strict=True))]:
            del bucket[other]
        bucket[vector] = events

    def _name(self, event: int) -> int:
        if event < self.n:
            return event
        t, k = self.moves[event - self.n]
        return self.n + t * self.d + k

    def _key(self, vector: _Vector) -> tuple[float, float]:
        peaks = vector[self.d + self.n :]
        over = sum(max(0.0, p - m) for p, m in zip(peaks, self.cluster.memory, strict=True))
        # The largest finish is the largest clock: every event ends on a clock.
        return over, max(vector[: self.d]) if self.objective is Objective.MAKESPAN else max(peaks)

    def _step(self, mask: int, vector: _Vector, event: int) -> _Vector:
        clock = list(vector[: self.d])
        finish = list(vector[self.d : self.d + self.n])
        peak = list(vector[self.d + self.n :])
        if event < self.n:
            k = self.place[event]
            start = max([clock[k], *(finish[u] for u in self.control[event])])
            for t in self.inputs[event]:
                u = int(self.graph.tensor_op[t])
                late = self._cost(t, k) if self.home[t] != k and not self.blocking else 0.0
                if not self.blocking or self.home[t] == k:
                    start = max(start, finish[u] + late)
            clock[k] = finish[event] = start + float(self.runtime[event, k])
            need = self._held(mask, k) + int(self.graph.temp_bytes[event])
            if not self.graph.resident[event]:
                need += sum(int(self.graph.tensor_bytes[t]) for t in self.outputs[event])
            need += sum(int(self.graph.tensor_bytes[t]) for t in self._arriving(mask, event))
        else:
            t, k = self.moves[event - self.n]
            clock[self.home[t]] = clock[k] = max(clock[self.home[t]], clock[k]) + self._cost(t, k)
            need = self._held(mask, k) + int(self.graph.tensor_bytes[t])
        peak[k] = max(peak[k], need)
        return self._trimmed(mask | 1 << event, clock, finish, peak)

    def _trimmed(self, mask: int, clock: list[float], finish: list[float], peak: list[float]) -> _Vector:
        """The state with zeros for values that cannot matter any more: equal futures give equal states."""
        for o in range(self.n):
            if not self.after[o] & ~mask:
                finish[o] = 0.0
        if self.objective is Objective.PEAK_MEMORY:
            return *[0.0] * (self.d + self.n), *peak
        # Below its capacity a peak does not count.
        return (
            *clock,
            *finish,
            *(0.0 if p <= m else p for p, m in zip(peak, self.cluster.memory, strict=True)),
        )

    def _cost(self, t: int, k: int) -> float:
        link = int(self.cluster.link_index[self.home[t], k])
        return self.cluster.transfer_time(float(self.graph.tensor_bytes[t]), self.graph.time_unit, link)

    def _arriving(self, mask: int, op: int) -> list[int]:
        """Inputs that arrive on the device of ``op`` with it: no op there has read them yet."""
        k = self.place[op]
        if self.blocking:
            return []
        return [t for t in self.inputs[op] if self.home[t] != k and not self.users[t, k] & mask]

    def _held(self, mask: int, k: int) -> int:
        """Bytes on ``k`` after exactly the events in ``mask``."""
        total = 0
        for t, size in enumerate(self.graph.tensor_bytes.tolist()):
            made = bool(mask >> int(self.graph.tensor_op[t]) & 1)
            if not (made or self.graph.tensor_resident[t]):
                continue
            unread = not made or bool(self.users.get((t, k), 0) & ~mask)
            if self.home[t] == k:
                unsent = any(m[0] == t and not self._sent(m, mask) for m in self.moves)
                total += size * (unread or unsent or bool(self.graph.tensor_keep[t]))
            elif (t, k) in self.users:
                total += size * (unread and self._sent((t, k), mask))
        return total

    def _sent(self, move: tuple[int, int], mask: int) -> bool:
        if self.blocking:
            return bool(mask >> self.bit[move] & 1)
        return bool(self.users[move] & mask)
