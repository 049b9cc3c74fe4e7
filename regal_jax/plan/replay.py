"""The exact replay: what really happens when events are taken in a given order.

Float64 time, int64 memory, one event after another, written from docs/design.md, part 1, and sharing
no code with the accelerated simulator: everything that a user is told comes from here, and the tests
use it as their oracle.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from regal_jax.errors import PlanError
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)
from regal_jax.interrupts import check_interrupt

__all__ = ["Timeline", "check_placement", "replay", "transfer_event"]


@dataclasses.dataclass(frozen=True, eq=False)
class Timeline:
    """The events of a plan in schedule order, their times, and the memory they hold.

    ``M`` events; times in the graph's unit, memory in bytes.

    Attributes:
      op: ``[M]`` int64; the op computed, or the producer of the tensor transferred.
      port: ``[M]`` int64; -1 for a compute, else which output of `op` is transferred.
      device: ``[M]`` int64; where the op runs, or where the tensor goes.
      source: ``[M]`` int64; -1 for a compute, else where the tensor comes from.
      start: ``[M]`` float64.
      finish: ``[M]`` float64.
      makespan: The largest finish.
      peak_memory: ``[D]`` int64.
      memory_time: ``[D]`` float64 arrays, ascending: when the memory held on a device changes; the first is
        0, when it holds its residents.
      memory_bytes: ``[D]`` int64 arrays: what it holds from then on.
    """

    op: np.ndarray
    port: np.ndarray
    device: np.ndarray
    source: np.ndarray
    start: np.ndarray
    finish: np.ndarray
    makespan: float
    peak_memory: np.ndarray
    memory_time: tuple[np.ndarray, ...]
    memory_bytes: tuple[np.ndarray, ...]

    @property
    def num_events(self) -> int:
        """``M``."""
        return len(self.op)


def transfer_event(graph: ComputationGraph, cluster: Cluster, tensor: int, device: int) -> int:
    """The id of the event "``tensor`` goes to ``device``"; the id of "compute op ``o``" is ``o``."""
    return graph.num_ops + tensor * cluster.num_devices + device


def check_placement(graph: ComputationGraph, cluster: Cluster, placement: np.ndarray) -> None:
    """Raises `PlanError` unless ``placement`` (``[N]``) puts every op where it may run."""
    if placement.shape != (graph.num_ops,):
        raise PlanError(f"placement has shape {placement.shape}, expected ({graph.num_ops},)")
    if ((placement < 0) | (placement >= cluster.num_devices)).any():
        o = int(np.argmax((placement < 0) | (placement >= cluster.num_devices)))
        raise PlanError(
            f"op {graph.op_names[o]!r} is placed on device {placement[o]}; there are {cluster.num_devices}"
        )
    denied = ~allowed_matrix(graph, cluster)[np.arange(graph.num_ops), placement]
    if denied.any():
        o = int(np.argmax(denied))
        raise PlanError(f"op {graph.op_names[o]!r} may not run on device {placement[o]}, where it is placed")
    apart = placement != placement[graph.colocation_leader]
    if apart.any():
        o = int(np.argmax(apart))
        raise PlanError(
            f"op {graph.op_names[o]!r} is placed on device {placement[o]}, the rest of its colocation "
            f"group {graph.colocation_group[o]!r} on {placement[graph.colocation_leader[o]]}"
        )


class _Memory:
    """What each device holds, its peak, and the history of both."""

    def __init__(self, held: list[int]) -> None:
        self.held = held.copy()
        self.peak = held.copy()
        self.times: list[list[float]] = [[0.0] for _ in held]
        self.levels: list[list[int]] = [[level] for level in held]

    def change(self, device: int, by: int, time: float, own: bool = True) -> None:
        if by == 0:
            return
        self.held[device] += by
        times = self.times[device]
        # The device's own events come in the order of its clock. A release by a reader elsewhere (delay,
        # free) has its place in the order of events but a time of its own: it gives way to both neighbours.
        if own:
            for i in range(len(times) - 1, -1, -1):
                if times[i] <= time:
                    break
                times[i] = time
        times.append(max(time, times[-1]))
        self.levels[device].append(self.held[device])

    def take_peak(self, device: int) -> None:
        self.peak[device] = max(self.peak[device], self.held[device])


class _Replay:
    """State of one replay; `compute` and `transfer` are the two kinds of event."""

    def __init__(self, graph: ComputationGraph, cluster: Cluster, placement: np.ndarray) -> None:
        self.graph, self.cluster = graph, cluster
        self.blocking = cluster.transfer is TransferModel.BLOCKING
        self.runtime = runtime_matrix(graph, cluster).tolist()
        self.place: list[int] = placement.tolist()
        self.home: list[int] = placement[graph.tensor_op].tolist()
        self.size: list[int] = graph.tensor_bytes.tolist()
        self.keep: list[bool] = graph.tensor_keep.tolist()
        self.outputs: list[int] = graph.output_offset.tolist()
        offset, tensor = graph.inputs
        self.input_offset, self.input_tensor = offset.tolist(), tensor.tolist()
        offset, op = graph.control_predecessors
        self.control_offset, self.control_op = offset.tolist(), op.tolist()
        # readers[t][k]: consumers of t on device k that have not run; on its home, every other device
        # that needs a copy counts as one more.
        self.readers: list[dict[int, int]] = [{} for _ in range(graph.num_tensors)]
        for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
            k = self.place[o]
            self.readers[t][k] = self.readers[t].get(k, 0) + 1
        for t, by_device in enumerate(self.readers):
            copies = sum(1 for k in by_device if k != self.home[t])
            if copies:
                by_device[self.home[t]] = by_device.get(self.home[t], 0) + copies
        self.finish: list[float | None] = [None] * graph.num_ops
        self.copied: dict[tuple[int, int], float] = {}  # (tensor, device) -> arrival
        self.clock = [0.0] * cluster.num_devices
        self.resident: list[bool] = graph.resident.tolist()
        held = [0] * cluster.num_devices
        for t in np.flatnonzero(graph.tensor_resident).tolist():
            held[self.home[t]] += self.size[t]
        self.memory = _Memory(held)
        self.cost: list[list[float]] = transfer_times(graph, cluster).tolist()
        self.link: list[list[int]] = cluster.link_index.tolist()

    def _read(self, tensor: int, device: int, time: float, own: bool = True) -> None:
        """One reader of ``tensor`` on ``device`` has run; the last one frees it there."""
        readers = self.readers[tensor]
        readers[device] -= 1
        if readers[device] == 0 and not (self.keep[tensor] and device == self.home[tensor]):
            self.memory.change(device, -self.size[tensor], time, own)

    def _cost(self, tensor: int, device: int) -> float:
        return self.cost[tensor][self.link[self.home[tensor]][device]]

    def _finished(self, op: int, waiting: str) -> float:
        finish = self.finish[op]
        if finish is None:
            raise PlanError(f"{waiting} comes before {self.graph.op_names[op]!r}, which it waits for")
        return finish

    def compute(self, op: int) -> tuple[int, float, float]:
        name, k = self.graph.op_names[op], self.place[op]
        if self.finish[op] is not None:
            raise PlanError(f"op {name!r} is computed twice")
        start = self.clock[k]
        inputs = self.input_tensor[self.input_offset[op] : self.input_offset[op + 1]]
        moved = []
        for t in inputs:
            arrival = self._finished(int(self.graph.tensor_op[t]), f"op {name!r}")
            if self.home[t] != k and (t, k) not in self.copied:
                if self.blocking:
                    raise PlanError(
                        f"op {name!r} comes before the transfer of {self.graph.tensor_name(t)} to {k}"
                    )
                moved.append(t)
                self.copied[t, k] = arrival + self._cost(t, k)
            start = max(start, arrival if self.home[t] == k else self.copied[t, k])
        for u in self.control_op[self.control_offset[op] : self.control_offset[op + 1]]:
            start = max(start, self._finished(u, f"op {name!r}"))
        finish = start + self.runtime[op][k]
        self.clock[k] = self.finish[op] = finish
        outputs = range(self.outputs[op], self.outputs[op + 1])
        for t in moved:
            self.memory.change(k, self.size[t], start)
        temp = int(self.graph.temp_bytes[op])
        made = 0 if self.resident[op] else sum(self.size[t] for t in outputs)
        self.memory.change(k, temp + made, start)
        self.memory.take_peak(k)
        self.memory.change(k, -temp, finish)
        for t in outputs:
            if not self.readers[t] and not self.keep[t]:
                self.memory.change(k, -self.size[t], finish)
        for t in inputs:
            self._read(t, k, finish)
        for t in moved:
            self._read(t, self.home[t], start, own=False)
        return k, start, finish

    def transfer(self, tensor: int, device: int) -> tuple[int, float, float]:
        name, source = self.graph.tensor_name(tensor), self.home[tensor]
        what = f"transfer of {name} to {device}"
        if not self.blocking or device == source or not self.readers[tensor].get(device):
            raise PlanError(f"{what} is needless: drop it")
        if (tensor, device) in self.copied:
            raise PlanError(f"{what} happens twice")
        self._finished(int(self.graph.tensor_op[tensor]), what)
        start = max(self.clock[source], self.clock[device])
        finish = start + self._cost(tensor, device)
        self.clock[source] = self.clock[device] = finish
        self.copied[tensor, device] = finish
        self.memory.change(device, self.size[tensor], start)
        self.memory.take_peak(device)
        self._read(tensor, source, finish)
        return source, start, finish


def replay(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, events: Sequence[int] | np.ndarray
) -> Timeline:
    """Takes ``events`` in order and says exactly when each runs and what memory is held.

    Args:
      graph: The graph.
      cluster: The cluster.
      placement: ``[N]`` device of each op.
      events: ``[M]`` event ids in schedule order: ``o`` computes op ``o``, ``N + t * D + k`` transfers
        tensor ``t`` to device ``k`` (blocking transfers only).

    Returns:
      The timeline.

    Raises:
      PlanError: ``placement`` or ``events`` are not a valid execution.
      ClusterError: The cluster does not fit the graph.
    """
    n, d = graph.num_ops, cluster.num_devices
    placement = np.asarray(placement, dtype=np.int64)
    check_placement(graph, cluster, placement)
    state = _Replay(graph, cluster, placement)
    rows: list[tuple[int, int, int, int, float, float]] = []
    for event in np.asarray(events, dtype=np.int64).tolist():
        check_interrupt()
        if 0 <= event < n:
            device, start, finish = state.compute(event)
            rows.append((event, -1, device, -1, start, finish))
        elif n <= event < n + graph.num_tensors * d:
            tensor, device = divmod(event - n, d)
            source, start, finish = state.transfer(tensor, device)
            op, port = int(graph.tensor_op[tensor]), int(graph.tensor_port[tensor])
            rows.append((op, port, device, source, start, finish))
        else:
            raise PlanError(f"event {event} does not exist; ids end at {n + graph.num_tensors * d - 1}")
    missing = [graph.op_names[o] for o, finish in enumerate(state.finish) if finish is None]
    if missing:
        raise PlanError(f"op {missing[0]!r} is never computed ({len(missing)} ops are missing)")
    op, port, device, source, start, finish = (np.array(column) for column in zip(*rows, strict=True))
    return Timeline(
        op=op,
        port=port,
        device=device,
        source=source,
        start=start,
        finish=finish,
        makespan=float(finish.max()),
        peak_memory=np.array(state.memory.peak, dtype=np.int64),
        memory_time=tuple(np.array(t) for t in state.memory.times),
        memory_bytes=tuple(np.array(b, dtype=np.int64) for b in state.memory.levels),
    )
