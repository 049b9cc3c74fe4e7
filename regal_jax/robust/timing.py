"""Exact start times of the ops of many schedules, on the host."""

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, TransferModel, runtime_matrix, transfer_times
from regal_jax.plan import insert_transfers, replay
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["delayed_times", "start_times"]


def start_times(
    graph: ComputationGraph, cluster: Cluster, sequence: np.ndarray, devices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Start times and makespans of ``C`` schedules, in float64 and equal to those of `regal_jax.plan.replay`.

    Without blocking transfers, ops are processed one after another for all schedules at once. Blocking
    transfers stand directly before their first readers, and each schedule is replayed.

    Args:
      graph: The graph.
      cluster: The cluster.
      sequence: ``[C, N]`` ops in the order in which they are scheduled, a topological order.
      devices: ``[C, N]`` device of each op.

    Returns:
      ``(start [C, N], makespan [C])`` in the graph's time unit, both float64.
    """
    if cluster.transfer is TransferModel.BLOCKING:
        return _replayed(graph, cluster, sequence, devices)
    times = runtime_matrix(graph, cluster), transfer_times(graph, cluster)
    return delayed_times(graph, cluster.link_index, *times, sequence, devices)


def delayed_times(
    graph: ComputationGraph,
    links: np.ndarray,
    runtime: np.ndarray,
    moves: np.ndarray,
    sequence: np.ndarray,
    devices: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Start times and makespans of ``C`` schedules with delays and other costs than those of the graph.

    Args:
      graph: The graph, of which only the edges count.
      links: ``[D, D]`` the kind of link from row to column.
      runtime: ``[N, D]`` runtimes.
      moves: ``[T, L]`` time of moving each tensor over each kind of link.
      sequence: As in `start_times`.
      devices: As in `start_times`.

    Returns:
      As `start_times`.
    """
    count, n = sequence.shape
    before, tensor = _predecessors(graph)
    # Op ``n`` is padding that has finished at 0; the tensor after the last one is padding without cost.
    finish, home = np.zeros((count, n + 1)), np.zeros((count, n + 1), np.int64)
    home[:, :n] = devices
    cost = np.vstack([moves, np.zeros((1, moves.shape[1]))])
    start, clock = np.zeros((count, n)), np.zeros((count, runtime.shape[1]))
    row = np.arange(count)
    for i in range(n):
        if i % 64 == 0:
            check_interrupt()
        op = sequence[:, i]
        device = home[row, op]
        arrival = finish[row[:, None], before[op]]
        source = home[row[:, None], before[op]]
        link = links[source, device[:, None]]
        arrival = arrival + np.where(source == device[:, None], 0.0, cost[tensor[op], link])
        first = np.maximum(clock[row, device], arrival.max(axis=1, initial=0.0))
        start[row, op] = first
        clock[row, device] = finish[row, op] = first + runtime[op, device]
    return start, finish.max(axis=1, initial=0.0)


def _predecessors(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
    """``[N, most]`` int64 each: the ops that an op waits for, and the tensors that it reads from them.

    Padding is op ``N`` and tensor ``T``.
    """
    n, t = graph.num_ops, graph.num_tensors
    reader = np.concatenate([graph.edge_op, graph.control_target])
    source = np.concatenate([graph.edge_producer, graph.control_source])
    moved = np.concatenate([graph.edge_tensor, np.full(len(graph.control_source), t)])
    by_reader = np.argsort(reader, kind="stable")
    counts = np.bincount(reader, minlength=n)
    column = np.arange(len(reader)) - np.repeat(np.cumsum(counts) - counts, counts)
    shape = n, int(counts.max(initial=0))
    before, tensor = np.full(shape, n), np.full(shape, t)
    before[reader[by_reader], column] = source[by_reader]
    tensor[reader[by_reader], column] = moved[by_reader]
    return before, tensor


def _replayed(
    graph: ComputationGraph, cluster: Cluster, sequence: np.ndarray, devices: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    count, n = sequence.shape
    start, makespan = np.zeros((count, n)), np.zeros(count)
    for i in range(count):
        events = insert_transfers(graph, cluster, devices[i], sequence[i])
        line = replay(graph, cluster, devices[i], events)
        computes = line.port < 0
        start[i, line.op[computes]] = line.start[computes]
        makespan[i] = line.makespan
    return start, makespan
