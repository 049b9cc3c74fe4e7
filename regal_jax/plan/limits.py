"""Whether a plan is optimal, and whether any plan can fit the memory."""

from typing import Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix, once_a_pair
from regal_jax.graph.units import format_bytes
from regal_jax.plan.bounds import Objective, lower_bound

__all__ = ["ROUNDING", "meets_bound", "overflow_of", "rounded_up", "why_impossible"]

ROUNDING: Final = 2.0**-20
"""Relative difference below which makespans count as equal: they are float32 sums of many numbers."""


def rounded_up(bound: float, objective: Objective) -> float:
    """The largest value that counts as equal to ``bound``; peaks are whole bytes, makespans are rounded."""
    return bound * (1 + ROUNDING) if objective is Objective.MAKESPAN else bound


def meets_bound(value: float, bound: float, objective: Objective) -> bool:
    """Whether ``value`` meets its lower bound, a makespan up to `ROUNDING`."""
    return value <= rounded_up(bound, objective)


def overflow_of(peaks: np.ndarray, cluster: Cluster) -> float:
    """The bytes by which ``peaks [D]`` exceed the memory of their devices, summed over devices."""
    return float(np.maximum(peaks - np.array(cluster.memory), 0.0).sum())


@once_a_pair
def why_impossible(graph: ComputationGraph, cluster: Cluster) -> str:
    """Why no plan of ``graph`` fits the memory of ``cluster``; empty if that is not known.

    The reasons come from bounds: the lower bound on the largest peak (`lower_bound`), the need of a single op
    on the devices that it may use, and the size of all results against the memory of all devices.

    Raises:
      ClusterError: The cluster does not fit the graph.
    """
    memory = np.array(cluster.memory)
    bound = lower_bound(graph, cluster, Objective.PEAK_MEMORY)
    if bound > memory.max():
        return (
            f"some device must hold {format_bytes(bound)} at a time, and none has more than "
            f"{format_bytes(memory.max())}"
        )
    need = graph.temp_bytes.copy()
    np.add.at(need, graph.tensor_op, graph.tensor_bytes)
    np.add.at(need, graph.edge_op, graph.tensor_bytes[graph.edge_tensor])
    room = np.where(allowed_matrix(graph, cluster), memory, -np.inf).max(axis=1)
    if (need > room).any():
        op = int(np.argmax(need > room))
        return (
            f"op {graph.op_names[op]!r} needs {format_bytes(float(need[op]))}, and the devices that it may "
            f"use have {format_bytes(room[op])} at most"
        )
    kept = float(graph.tensor_bytes[graph.tensor_keep].sum())
    if kept > memory.sum():
        return (
            f"{format_bytes(kept)} are kept to the end, and all devices together have "
            f"{format_bytes(memory.sum())}"
        )
    return ""
