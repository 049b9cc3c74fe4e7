"""What no plan can beat, and what none can exceed."""

import enum
import math

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)

__all__ = ["Objective", "critical_path", "lower_bound", "makespan_upper_bound"]


class Objective(enum.StrEnum):
    """What a plan should be small in."""

    MAKESPAN = "makespan"
    PEAK_MEMORY = "peak-memory"


def lower_bound(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> float:
    """A value of ``objective`` that no plan can beat.

    Makespan: the longest path, every op on its fastest allowed device, or all the work spread evenly,
    whichever is more. Peak memory: the op that needs most for itself, or all that is kept, spread evenly.

    Work is summed exactly, a timeline event by event: the two may cross in the last bits of a float.

    Raises:
      ClusterError: The cluster does not fit the graph.
    """
    if objective is Objective.PEAK_MEMORY:
        need = graph.temp_bytes.copy()
        np.add.at(need, graph.tensor_op, graph.tensor_bytes)
        np.add.at(need, graph.edge_op, graph.tensor_bytes[graph.edge_tensor])
        kept = int(graph.tensor_bytes[graph.tensor_keep].sum())
        return float(max(int(need.max()), -(-kept // cluster.num_devices)))
    runtime = np.where(allowed_matrix(graph, cluster), runtime_matrix(graph, cluster), np.inf).min(axis=1)
    return float(max(critical_path(graph, runtime), math.fsum(runtime) / cluster.num_devices))


def makespan_upper_bound(graph: ComputationGraph, cluster: Cluster) -> float:
    """No order of events on ``cluster`` takes longer: each at its slowest, one after another."""
    runtime = runtime_matrix(graph, cluster).max(axis=1).sum()
    copies = np.minimum(np.diff(graph.consumer_offset), cluster.num_devices - 1)
    cost = transfer_times(graph, cluster).max(axis=1)
    if cluster.transfer is TransferModel.BLOCKING:
        return float(runtime + (copies * cost).sum())
    # Delays overlap: between two finishes at most one is waited for at a time.
    return float(runtime + cost[copies > 0].sum())


def critical_path(graph: ComputationGraph, runtime: np.ndarray) -> float:
    """Length of the longest path, each op counting its ``runtime`` (``[N]``)."""
    finish = runtime.tolist()
    offset, tensor = graph.inputs
    control_offset, control = graph.control_predecessors
    producer = graph.tensor_op[tensor].tolist()
    bounds, control_bounds, controls = offset.tolist(), control_offset.tolist(), control.tolist()
    for o in graph.topological_order.tolist():
        before = producer[bounds[o] : bounds[o + 1]] + controls[control_bounds[o] : control_bounds[o + 1]]
        finish[o] += max((finish[u] for u in before), default=0.0)
    return max(finish)
