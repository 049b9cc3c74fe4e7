"""Models of the peak memory for CP-SAT: one device, or several with blocking transfers."""

import math
from typing import Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix
from regal_jax.plan import Plan, transfer_event

__all__ = ["PeakOnDevices", "PeakOnOne"]

_MOST_UNITS: Final = 2**50
"""Largest sum of the sizes divided by their greatest common divisor: CP-SAT counts in 64 bits."""


def _units(graph: ComputationGraph) -> tuple[int, int]:
    """``(bytes per unit, sum of the sizes in units)``."""
    sizes = [*graph.tensor_bytes.tolist(), *graph.temp_bytes.tolist()]
    unit = max(1, math.gcd(*sizes))
    total = sum(sizes) // unit
    if total > _MOST_UNITS:
        raise ConfigError(f"cp_sat: sizes add up to {total} units, more than {_MOST_UNITS}; round them")
    return unit, total


class PeakOnOne:
    """Positions of ops on one device; a tensor occupies memory from its producer to its last reader."""

    resolution = 0.0

    def __init__(self, cp: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan) -> None:
        n, model = graph.num_ops, cp.CpModel()
        self.model, self.graph, self.cluster = model, graph, cluster
        self.unit, total = _units(graph)
        step = [model.new_int_var(0, n - 1, f"step {o}") for o in range(n)]
        self.step = step
        for position, o in enumerate(hint.timeline.op.tolist()):
            model.add_hint(step[o], position)
        model.add_all_different(step)
        for u, v in zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True):
            model.add(step[v] > step[u])
        for u, v in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
            model.add(step[v] > step[u])
        peak = model.new_int_var(0, total, "peak")
        spans, bytes_ = [], []
        for o, temp in enumerate(graph.temp_bytes.tolist()):
            spans.append(model.new_fixed_size_interval_var(step[o], 1, f"temp {o}"))
            bytes_.append(temp // self.unit)
        for t, size in enumerate(graph.tensor_bytes.tolist()):
            made, end = step[int(graph.tensor_op[t])], model.new_int_var(1, n, f"end of {t}")
            begin = 0 if graph.tensor_resident[t] else made
            readers = graph.edge_op[graph.consumer_offset[t] : graph.consumer_offset[t + 1]].tolist()
            model.add(end == n if graph.tensor_keep[t] else end >= made + 1)
            for v in readers:
                model.add(end >= step[v] + 1)
            life = model.new_int_var(1, n, f"life of {t}")
            spans.append(model.new_interval_var(begin, life, end, f"tensor {t}"))
            bytes_.append(size // self.unit)
        model.add_cumulative(spans, bytes_, peak)
        model.minimize(peak)

    def solution(self, solver: Any) -> tuple[np.ndarray, list[int]]:
        """``(placement [N], events [N])``."""
        step = [solver.value(s) for s in self.step]
        return np.zeros(len(step), dtype=np.int64), np.argsort(step).tolist()

    def bound(self, value: float) -> float:
        """The solver's bound in bytes."""
        return value * self.unit


class PeakOnDevices:
    """Placement and one order of all ops and blocking transfers; a device holds what it made or was sent.

    Peaks depend on the order of each device's events, and every order of all events has these orders.
    Runtimes do not matter.
    """

    resolution = 0.0

    def __init__(self, cp: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan) -> None:
        self.graph, self.cluster, self.model = graph, cluster, cp.CpModel()
        self.n, self.d = graph.num_ops, cluster.num_devices
        self.unit, total = _units(graph)
        self.readers = [
            sorted(set(graph.edge_op[graph.consumer_offset[t] : graph.consumer_offset[t + 1]].tolist()))
            for t in range(graph.num_tensors)
        ]
        self.most = self.n + sum(min(len(r), self.d - 1) for r in self.readers)
        self.turns: list[Any] = []
        self.spans: list[list[Any]] = [[] for _ in range(self.d)]
        self.bytes: list[list[int]] = [[] for _ in range(self.d)]
        self.moves: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._ops(hint)
        for t in range(graph.num_tensors):
            self._tensor(t)
        self._hint(hint)
        self.model.add_no_overlap(self.turns)
        peak = self.model.new_int_var(0, total, "peak")
        for k in range(self.d):
            self.model.add_cumulative(self.spans[k], self.bytes[k], peak)
        self.model.minimize(peak)

    def _ops(self, hint: Plan) -> None:
        graph, model, leader = self.graph, self.model, self.graph.colocation_leader.tolist()
        allowed, at = allowed_matrix(graph, self.cluster), {}
        for o in sorted(set(leader)):
            for k in np.flatnonzero(allowed[o]).tolist():
                at[o, k] = model.new_bool_var(f"{o} on {k}")
                model.add_hint(at[o, k], int(hint.placement[o]) == k)
            model.add_exactly_one(at[o, k] for k in range(self.d) if (o, k) in at)
        if allowed.all():  # Devices are interchangeable: fix one op.
            model.add(at[leader[0], int(hint.placement[0])] == 1)
        self.at: list[dict[int, Any]] = []
        self.step = [model.new_int_var(0, self.most - 1, f"step {o}") for o in range(self.n)]
        for o in range(self.n):
            self.at.append({k: at[leader[o], k] for k in range(self.d) if (leader[o], k) in at})
            self.turns.append(model.new_fixed_size_interval_var(self.step[o], 1, f"op {o}"))
            for k, here in self.at[o].items():
                span = model.new_optional_fixed_size_interval_var(self.step[o], 1, here, f"temp {o},{k}")
                self._hold(k, span, int(graph.temp_bytes[o]))
        pairs = [(graph.control_source, graph.control_target), (graph.edge_producer, graph.edge_op)]
        for sources, targets in pairs:
            for u, v in zip(sources.tolist(), targets.tolist(), strict=True):
                model.add(self.step[v] > self.step[u])

    def _hold(self, device: int, span: Any, size: int) -> None:
        if size:
            self.spans[device].append(span)
            self.bytes[device].append(size // self.unit)

    def _tensor(self, t: int) -> None:
        """The tensor at home, and its copies."""
        graph, model, u = self.graph, self.model, int(self.graph.tensor_op[t])
        end = model.new_int_var(1, self.most, f"end of {t}")
        model.add(end == self.most if graph.tensor_keep[t] else end >= self.step[u] + 1)
        for k, home in self.at[u].items():
            begin = 0 if graph.tensor_resident[t] else self.step[u]
            life = model.new_int_var(0, self.most, f"life of {t} on {k}")
            span = model.new_optional_interval_var(begin, life, end, home, f"tensor {t} on {k}")
            self._hold(k, span, int(graph.tensor_bytes[t]))
            for v in self.readers[t]:
                if k in self.at[v]:
                    model.add(end >= self.step[v] + 1).only_enforce_if(home, self.at[v][k])
        for k in range(self.d):
            there = [(v, self.at[v][k]) for v in self.readers[t] if k in self.at[v]]
            sources = [here for h, here in self.at[u].items() if h != k]
            if there and sources:
                sent, step = self._move(t, k, sum(sources), there)
                model.add(end >= step + 1).only_enforce_if(sent)

    def _move(self, t: int, k: int, away: Any, there: list[tuple[int, Any]]) -> tuple[Any, Any]:
        """The transfer of a tensor to a device: whether there is one, and its step."""
        model, u = self.model, int(self.graph.tensor_op[t])
        sent, name = model.new_bool_var(f"send {t} to {k}"), f"{t} to {k}"
        step = model.new_int_var(0, self.most - 1, f"step of {name}")
        end = model.new_int_var(1, self.most, f"end of {name}")
        self.moves[t, k] = sent, step
        model.add(sent <= away)
        model.add(sent <= sum(here for _, here in there))
        model.add(step > self.step[u]).only_enforce_if(sent)
        for v, here in there:
            model.add(sent >= here + away - 1)
            model.add(self.step[v] > step).only_enforce_if(sent, here)
            model.add(end >= self.step[v] + 1).only_enforce_if(sent, here)
        self.turns.append(model.new_optional_fixed_size_interval_var(step, 1, sent, name))
        life = model.new_int_var(0, self.most, f"life of {name}")
        self._hold(
            k, model.new_optional_interval_var(step, life, end, sent, name), int(self.graph.tensor_bytes[t])
        )
        return sent, step

    def _hint(self, hint: Plan) -> None:
        line, first = hint.timeline, np.searchsorted(self.graph.tensor_op, np.arange(self.n))
        taken = set()
        for position, (o, port, k) in enumerate(zip(line.op, line.port, line.device, strict=True)):
            if port < 0:
                self.model.add_hint(self.step[o], position)
            elif (move := (int(first[o] + port), int(k))) in self.moves:
                taken.add(move)
                self.model.add_hint(self.moves[move][1], position)
        for move, (sent, _) in self.moves.items():
            self.model.add_hint(sent, move in taken)

    def solution(self, solver: Any) -> tuple[np.ndarray, list[int]]:
        """``(placement [N], events [M])``."""
        placement = np.array([next(k for k, x in row.items() if solver.boolean_value(x)) for row in self.at])
        rows = [(solver.value(step), o) for o, step in enumerate(self.step)]
        for (t, k), (sent, step) in self.moves.items():
            if solver.boolean_value(sent):
                rows.append((solver.value(step), transfer_event(self.graph, self.cluster, t, k)))
        return placement, [event for _, event in sorted(rows)]

    def bound(self, value: float) -> float:
        """The solver's bound in bytes."""
        return value * self.unit
