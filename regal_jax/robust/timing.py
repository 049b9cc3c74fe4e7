"""Exact start times of the ops of many schedules, on the host."""

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.graph import Cluster, ComputationGraph, TransferModel, runtime_matrix, transfer_times
from regal_jax.graph.arrays import all_edges, mean_runtimes
from regal_jax.graph.topology import offsets, stable_order
from regal_jax.plan import insert_transfers, replay
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["delayed_times", "mean_read_bytes", "mean_runtime", "predecessors", "start_times"]


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
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    if cluster.transfer is TransferModel.BLOCKING:
        return _replayed(graph, cluster, sequence, devices)
    runtime, moves = runtime_matrix(graph, cluster), transfer_times(graph, cluster)
    links = cluster.link_index
    start, makespan = delayed_times(graph, links, runtime[..., None], moves[..., None], sequence, devices)
    return start[..., 0], makespan[..., 0]


def delayed_times(
    graph: ComputationGraph,
    links: np.ndarray,
    runtime: np.ndarray,
    moves: np.ndarray,
    sequence: np.ndarray,
    devices: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Start times and makespans of ``C`` schedules with ``S`` sets of costs, where transfers are delays.

    Ops are processed one after another for all schedules and costs at once.

    Args:
      graph: The graph, of which only the edges count.
      links: ``[D, D]`` the kind of link from row to column.
      runtime: ``[N, D, S]`` runtimes.
      moves: ``[T, L, S]`` time of moving each tensor over each kind of link.
      sequence: As in `start_times`.
      devices: As in `start_times`.

    Returns:
      ``(start [C, N, S], makespan [C, S])``, both float64.
    """
    count, n = sequence.shape
    rows, before, tensor = predecessors(graph)
    # The tensor after the last one is padding without cost, for control edges.
    cost = np.concatenate([moves, np.zeros((1, *moves.shape[1:]))])
    start = np.zeros((count, n, runtime.shape[2]))
    clock = np.zeros((count, runtime.shape[1], runtime.shape[2]))
    row = np.arange(count)
    for i in range(n):
        check_interrupt()
        op = sequence[:, i]
        device = devices[row, op]
        first = clock[row, device]
        inputs = rows[op + 1] - rows[op]
        waits = inputs > 0
        if waits.any():
            # The edges into the op of each schedule, one schedule after the other.
            begin = np.cumsum(inputs) - inputs
            which = np.repeat(row, inputs)
            edge = np.arange(len(which)) + np.repeat(rows[op] - begin, inputs)
            source, there = devices[which, before[edge]], device[which]
            arrival = start[which, before[edge]] + runtime[before[edge], source]
            moved = source != there
            arrival[moved] += cost[tensor[edge[moved]], links[source[moved], there[moved]]]
            latest = np.maximum.reduceat(arrival, begin[waits], axis=0)
            first[waits] = np.maximum(first[waits], latest)
        start[row, op] = first
        clock[row, device] = first + runtime[op, device]
    return start, clock.max(axis=1, initial=0.0)


def mean_runtime(graph: ComputationGraph) -> float:
    """Mean runtime of the ops that take time, over all devices; 0 if none does."""
    runtime = mean_runtimes(graph)
    return float(runtime[runtime > 0].mean()) if (runtime > 0).any() else 0.0


def mean_read_bytes(graph: ComputationGraph) -> float:
    """Mean bytes of the tensors that are read; 0 if there is none."""
    read = graph.tensor_bytes[np.unique(graph.edge_tensor)]
    return float(read.mean()) if read.size else 0.0


def predecessors(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What each op waits for: the bounds of its row, ``[N + 1]``; of all rows the ops and the tensors.

    The tensor of a control edge is ``T``.
    """
    source, reader = all_edges(graph)
    moved = np.concatenate([graph.edge_tensor, np.full(len(graph.control_source), graph.num_tensors)])
    by_reader = stable_order(reader, graph.num_ops)
    return offsets(reader[by_reader], graph.num_ops), source[by_reader], moved[by_reader]


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
