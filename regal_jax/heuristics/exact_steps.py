"""Parts of models for CP-SAT: the device of each op, and an order of events with what devices hold."""

import math
from typing import Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix
from regal_jax.plan import Plan, transfer_event

__all__ = ["Steps", "are_countable", "has_room", "place", "size_units"]

_MOST_UNITS: Final = 2**50
"""Largest sum of the sizes divided by their greatest common divisor: CP-SAT counts in 64 bits."""


def has_room(graph: ComputationGraph, cluster: Cluster) -> bool:
    """Whether memory cannot run out: each device may hold all tensors, and the largest scratch memory."""
    most = int(graph.tensor_bytes.sum()) + int(graph.temp_bytes.max(initial=0))
    return min(cluster.memory) >= most


def are_countable(graph: ComputationGraph) -> bool:
    """Whether sizes have few enough digits for `size_units`."""
    return _units(graph)[1] <= _MOST_UNITS


def size_units(graph: ComputationGraph) -> tuple[int, int]:
    """``(bytes per unit, sum of the sizes in units)``.

    Raises:
      ConfigError: The sum is too large.
    """
    unit, total = _units(graph)
    if total > _MOST_UNITS:
        raise ConfigError(f"cp_sat: sizes add up to {total} units, more than {_MOST_UNITS}; round them")
    return unit, total


def _units(graph: ComputationGraph) -> tuple[int, int]:
    sizes = [*graph.tensor_bytes.tolist(), *graph.temp_bytes.tolist()]
    unit = max(1, math.gcd(*sizes))
    return unit, sum(sizes) // unit


def place(
    model: Any, graph: ComputationGraph, cluster: Cluster, hint: Plan, *, alike: bool
) -> list[dict[int, Any]]:
    """For each op and each device that it may use, whether it is there.

    Args:
      model: The model.
      graph: The graph.
      cluster: The cluster.
      hint: A plan, with whose placement the solver begins.
      alike: Whether devices only differ in their memory and in the ops that they may run.
    """
    leader, allowed = graph.colocation_leader.tolist(), allowed_matrix(graph, cluster)
    at = {}
    for o in sorted(set(leader)):
        for k in np.flatnonzero(allowed[o]).tolist():
            at[o, k] = model.new_bool_var(f"{o} on {k}")
            model.add_hint(at[o, k], int(hint.placement[o]) == k)
        model.add_exactly_one(at[o, k] for k in range(cluster.num_devices) if (o, k) in at)
    if alike and allowed.all() and len(set(cluster.memory)) == 1:
        # Devices are interchangeable: fix one op.
        model.add(at[leader[0], int(hint.placement[0])] == 1)
    return [{k: at[o, k] for k in range(cluster.num_devices) if (o, k) in at} for o in leader]


class Steps:
    """One order of all ops and blocking transfers; a device holds what it made or was sent.

    Peaks depend on the order of each device's events, and every order of all events has these orders.
    Runtimes do not matter.

    Attributes:
      step: ``[N]``, the position of each op among all events.
      moves: Tensor and device -> whether it is sent there, and the position of its transfer.
    """

    def __init__(
        self,
        model: Any,
        graph: ComputationGraph,
        cluster: Cluster,
        at: list[dict[int, Any]],
        sent: dict[tuple[int, int], Any] | None = None,
    ) -> None:
        """Adds them to a model.

        Args:
          model: The model.
          graph: The graph.
          cluster: The cluster.
          at: As from `place`.
          sent: Tensor and device -> whether the tensor is sent there, for all that may be; by default new
            variables.
        """
        self.model, self.graph, self.cluster, self.at = model, graph, cluster, at
        self.n, self.d = graph.num_ops, cluster.num_devices
        self.unit, self.total = size_units(graph)
        self.readers = [
            sorted(set(graph.edge_op[graph.consumer_offset[t] : graph.consumer_offset[t + 1]].tolist()))
            for t in range(graph.num_tensors)
        ]
        self.most = self.n + sum(min(len(r), self.d - 1) for r in self.readers)
        self.turns: list[Any] = []
        self.spans: list[list[Any]] = [[] for _ in range(self.d)]
        self.bytes: list[list[int]] = [[] for _ in range(self.d)]
        self.moves: dict[tuple[int, int], tuple[Any, Any]] = {}
        self._sent = sent
        self._ops()
        for t in range(graph.num_tensors):
            self._tensor(t)
        self.model.add_no_overlap(self.turns)

    def limit(self, peak: Any = None) -> None:
        """Each device fits its memory, and holds at most ``peak`` if there is one."""
        for k, memory in enumerate(self.cluster.memory):
            room = peak
            if memory < self.total * self.unit:
                most = int(memory // self.unit)
                room = most if peak is None else self.model.new_int_var(0, most, f"peak on {k}")
                if peak is not None:
                    self.model.add(room <= peak)
            if room is not None:
                self.model.add_cumulative(self.spans[k], self.bytes[k], room)

    def _ops(self) -> None:
        graph, model = self.graph, self.model
        self.step = [model.new_int_var(0, self.most - 1, f"step {o}") for o in range(self.n)]
        for o in range(self.n):
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
        name = f"{t} to {k}"
        sent = model.new_bool_var(f"send {name}") if self._sent is None else self._sent[t, k]
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

    def hint(self, hint: Plan) -> None:
        """The solver begins with the order of a plan."""
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

    def events(self, solver: Any) -> list[int]:
        """``[M]``, the order of the solution."""
        rows = [(solver.value(step), o) for o, step in enumerate(self.step)]
        for (t, k), (sent, step) in self.moves.items():
            if solver.boolean_value(sent):
                rows.append((solver.value(step), transfer_event(self.graph, self.cluster, t, k)))
        return [event for _, event in sorted(rows)]
