"""The exact replay: the execution of events in a given order.

Time is float64, memory is int64, and events run one after another as docs/design.md, part 1, defines. It
shares no code with the accelerated simulator. All figures of plans come from here, and tests use it as their
oracle.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import PlanError
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    once_a_pair,
    runtime_matrix,
    transfer_times,
)
from regal_jax.plan.execution import MISSING, NEEDLESS, NO_EVENT, TOO_EARLY, TWICE, Layout, State, execute
from regal_jax.runtime.compiling import run_loops
from regal_jax.runtime.interrupts import check_interrupt

_SECONDS: Final = 5e-6
"""Seconds per event in Python."""

__all__ = ["Timeline", "as_ids", "check_placement", "loop_arguments", "outcome", "replay", "transfer_event"]


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
      memory_bytes: ``[D]`` int64 arrays: the bytes held from then on.
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
    if placement.min(initial=0) < 0 or placement.max(initial=0) >= cluster.num_devices:
        o = int(np.argmax((placement < 0) | (placement >= cluster.num_devices)))
        raise PlanError(
            f"op {graph.op_names[o]!r} is placed on device {placement[o]}; there are {cluster.num_devices}"
        )
    if _is_free(graph, cluster):
        return
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


@once_a_pair
def _is_free(graph: ComputationGraph, cluster: Cluster) -> bool:
    """Whether every op may run on every device, whatever the others do."""
    alone = (graph.colocation_leader == np.arange(graph.num_ops)).all()
    return bool(alone and allowed_matrix(graph, cluster).all())


def as_ids(what: str, values: Any) -> np.ndarray:
    """``values`` as an int64 array with one axis.

    Raises:
      PlanError: They are anything but whole numbers in a row.
    """
    try:
        ids = np.asarray(values)
    except ValueError:  # Rows of different lengths.
        ids = np.zeros((0, 0))
    if ids.ndim != 1 or (ids.size and ids.dtype.kind not in "iu"):
        raise PlanError(f"{what}: give whole numbers in one row, not {ids.dtype} of shape {ids.shape}")
    return ids.astype(np.int64, copy=False)


def replay(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, events: Sequence[int] | np.ndarray
) -> Timeline:
    """Runs ``events`` in order, with exact times and memory.

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
      ConfigError: The graph or the cluster is of another kind.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    placement, events = as_ids("placement", placement), as_ids("events", events)
    state = _executed(graph, cluster, placement, events)
    is_op = events < n
    tensor, device = np.divmod(np.where(is_op, 0, events - n), d)
    op = np.where(is_op, events, graph.tensor_op[tensor] if t else 0)
    # Copies, since these are parts of larger arrays.
    start, finish = (np.array(each, np.float64) for each in (state.start, state.finish))
    count = state.last[d]
    on, when = np.asarray(state.on[:count]), np.asarray(state.when[:count], np.float64)
    level = np.asarray(state.level[:count], np.int64)
    return Timeline(
        op=op,
        port=np.where(is_op, -1, graph.tensor_port[tensor] if t else 0),
        device=np.where(is_op, placement[op], device),
        source=np.where(is_op, -1, placement[op]),
        start=start,
        finish=finish,
        makespan=float(finish.max()),
        peak_memory=np.array(state.peak, np.int64),
        memory_time=tuple(when[on == k] for k in range(d)),
        memory_bytes=tuple(level[on == k] for k in range(d)),
    )


def outcome(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, events: Sequence[int] | np.ndarray
) -> tuple[float, np.ndarray]:
    """The makespan and the peaks (``[D]`` int64 bytes) of the timeline that `replay` returns.

    Raises:
      PlanError: ``placement`` or ``events`` are not a valid execution.
      ClusterError: The cluster does not fit the graph.
      ConfigError: The graph or the cluster is of another kind.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    placement, events = as_ids("placement", placement), as_ids("events", events)
    state = _executed(graph, cluster, placement, events)
    return float(max(state.clock)), np.asarray(state.peak, np.int64)


def _executed(graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, events: np.ndarray) -> State:
    """The state after all events, as arrays or as lists."""
    check_placement(graph, cluster, placement)
    check_interrupt()
    arguments = loop_arguments(graph, cluster, placement, events)
    state = run_loops(execute, *arguments, seconds=_SECONDS * len(events), copies=False)
    if state.fault[0]:
        raise PlanError(_message(graph, cluster, *map(int, state.fault)))
    return state


def loop_arguments(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, events: np.ndarray
) -> tuple[Layout, State]:
    """The arguments of `regal_jax.plan.execution.execute`, which changes the second one only."""
    state, layout = _state(graph, cluster, len(events)), _unplaced(graph, cluster)
    runtime = runtime_matrix(graph, cluster)[np.arange(graph.num_ops), placement]
    return layout._replace(place=np.array(placement), runtime=runtime, events=np.array(events)), state


@once_a_pair
def _unplaced(graph: ComputationGraph, cluster: Cluster) -> Layout:
    """The input of the loop but for the plan, as writable arrays."""
    none = np.zeros(0)
    return Layout(
        place=none,
        runtime=none,
        temp=np.array(graph.temp_bytes),
        resident=np.array(graph.resident),
        outputs=np.array(graph.output_offset),
        input_rows=np.array(graph.inputs[0]),
        inputs=np.array(graph.inputs[1]),
        control_rows=np.array(graph.control_predecessors[0]),
        controls=np.array(graph.control_predecessors[1]),
        producer=np.array(graph.tensor_op),
        size=np.array(graph.tensor_bytes),
        keep=np.array(graph.tensor_keep),
        reader_rows=np.array(graph.consumer_offset),
        readers=np.array(graph.edge_op),
        cost=np.array(transfer_times(graph, cluster).ravel()),
        link=np.array(cluster.link_index.ravel(), np.int64),
        links=len(cluster.links),
        devices=cluster.num_devices,
        blocking=cluster.transfer is TransferModel.BLOCKING,
        events=none,
    )


def _state(graph: ComputationGraph, cluster: Cluster, events: int) -> State:
    """The state that the loop writes to: zeros, parts of two arrays."""
    times, ids = _parts(graph, cluster)
    last = times[-1].stop
    time, number = np.zeros(last + 2 * events), np.zeros(ids[-1].stop, np.int64)
    done, copied, clock, when = (time[part] for part in times)
    held, peak, left, moved, on, level, before, ends, fault = (number[part] for part in ids)
    return State(
        start=time[last : last + events],
        finish=time[last + events :],
        done=done,
        copied=copied,
        clock=clock,
        held=held,
        peak=peak,
        left=left,
        moved=moved,
        on=on,
        when=when,
        level=level,
        before=before,
        last=ends,
        fault=fault,
    )


@once_a_pair
def _parts(graph: ComputationGraph, cluster: Cluster) -> tuple[list[slice], list[slice]]:
    """The parts of the arrays of times and of numbers, but for the times of events."""
    n, t, d, e = graph.num_ops, graph.num_tensors, cluster.num_devices, len(graph.edge_op)
    changes, most = d + 2 * n + t + 2 * e, int(np.diff(graph.inputs[0]).max(initial=0))
    return _in_turn(n, t * d, d, changes), _in_turn(d, d, t * d, most, *[changes] * 3, d + 1, 3)


def _in_turn(*sizes: int) -> list[slice]:
    ends = np.cumsum(sizes).tolist()
    return [slice(end - size, end) for size, end in zip(sizes, ends, strict=True)]


def _message(graph: ComputationGraph, cluster: Cluster, fault: int, event: int, other: int) -> str:
    """The message for an event that is impossible."""
    n, d = graph.num_ops, cluster.num_devices
    if fault == NO_EVENT:
        return f"event {event} does not exist; ids end at {n + graph.num_tensors * d - 1}"
    if fault == MISSING:
        return f"op {graph.op_names[event]!r} is never computed ({other} ops are missing)"
    if event < n:
        what = f"op {graph.op_names[event]!r}"
    else:
        what = f"transfer of {graph.tensor_name((event - n) // d)} to {(event - n) % d}"
    if fault == TWICE:
        return f"{what} is computed twice" if event < n else f"{what} happens twice"
    if fault == NEEDLESS:
        return f"{what} is needless: drop it"
    if fault == TOO_EARLY:
        return f"{what} comes before {graph.op_names[other]!r}, which it waits for"
    tensor, device = divmod(other, d)
    return f"{what} comes before the transfer of {graph.tensor_name(tensor)} to {device}"
