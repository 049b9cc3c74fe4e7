"""Arrays about the ops of a graph, without a cluster."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from regal_jax.graph.computation_graph import ComputationGraph

__all__ = ["all_edges", "fastest_runtimes", "mean_runtimes", "op_levels", "slowest_runtimes"]


def all_edges(graph: "ComputationGraph") -> tuple[np.ndarray, np.ndarray]:
    """``(source [E + C], target [E + C])``: the ops of every data edge, then of every control edge."""
    return (
        np.concatenate([graph.edge_producer, graph.control_source]),
        np.concatenate([graph.edge_op, graph.control_target]),
    )


def fastest_runtimes(graph: "ComputationGraph") -> np.ndarray:
    """``[N]`` float64: the runtime of each op on its fastest device, allowed or not."""
    return graph.runtime.reshape(graph.num_ops, -1).min(axis=1)


def mean_runtimes(graph: "ComputationGraph") -> np.ndarray:
    """``[N]`` float64: the mean runtime of each op over all devices, allowed or not."""
    return graph.runtime.reshape(graph.num_ops, -1).mean(axis=1)


def slowest_runtimes(graph: "ComputationGraph") -> np.ndarray:
    """``[N]`` float64: the runtime of each op on its slowest device, allowed or not."""
    return graph.runtime.reshape(graph.num_ops, -1).max(axis=1)


def op_levels(graph: "ComputationGraph") -> np.ndarray:
    """``[N]`` int64: number of edges on the longest path to each op."""
    level = [0] * graph.num_ops
    offset, successor = (array.tolist() for array in graph.successors)
    for o in graph.topological_order.tolist():
        for after in successor[offset[o] : offset[o + 1]]:
            level[after] = max(level[after], level[o] + 1)
    return np.array(level, dtype=np.int64)
