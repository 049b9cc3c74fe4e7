"""Ranks of ops by the longest path below them, for priority rules."""

from typing import Any, Final

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    allowed_matrix,
    mean_transfer_times,
    once_a_pair,
    runtime_matrix,
    shortest_runtimes,
)
from regal_jax.runtime.compiling import only_borrows, run_loops

__all__ = ["mean_runtime", "shortest_paths", "upward_rank"]

_SECONDS: Final = 1e-6
"""Seconds per op in Python."""


@once_a_pair
def upward_rank(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N]`` longest path from each op to an end, itself included (Topcuoglu et al. 2002, eq. 2).

    An op counts its mean runtime over the devices that it may use, an edge the mean time of its transfer
    over all ordered pairs of devices, or 0 if there is only one device. The array is read-only.
    """
    return _longest_paths(graph, mean_runtime(graph, cluster), _costs(graph, cluster))


def mean_runtime(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N]`` mean runtime of each op over the devices that it may use."""
    return _means(runtime_matrix(graph, cluster), allowed_matrix(graph, cluster))


def shortest_paths(graph: ComputationGraph, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    """``(least, tail)``, ``[N]`` each, lower bounds for any schedule.

    They are the shortest runtime of each op, and the longest path of such runtimes after it.
    """
    least = shortest_runtimes(graph, cluster)
    return least, _longest_paths(graph, least, np.zeros(graph.num_tensors)) - least


def _longest_paths(graph: ComputationGraph, runtime: np.ndarray, cost: np.ndarray) -> np.ndarray:
    """``[N]``, of each op and all after it, where ops take ``runtime`` and their outputs ``cost`` to move."""
    readers = graph.output_offset, graph.consumer_offset, graph.edge_op
    after = graph.control_offset, graph.control_target
    order = graph.topological_order
    numbers = order, runtime, cost, *readers, *after
    return np.array(run_loops(_rank, np.zeros(graph.num_ops), *numbers, seconds=_SECONDS * graph.num_ops))


def _means(runtime: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    return (runtime * allowed).sum(axis=1) / allowed.sum(axis=1)


def _costs(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    return mean_transfer_times(graph, cluster) if cluster.num_devices > 1 else np.zeros(graph.num_tensors)


@only_borrows
def _rank(
    rank: Any, ops: Any, runtime: Any, cost: Any, outputs: Any, consumers: Any, reader: Any,
    controls: Any, target: Any,
) -> Any:  # fmt: skip
    """`_longest_paths`, into ``rank``."""
    for i in range(len(ops) - 1, -1, -1):
        o = ops[i]
        below = 0.0
        for t in range(outputs[o], outputs[o + 1]):
            for j in range(consumers[t], consumers[t + 1]):
                below = max(below, cost[t] + rank[reader[j]])
        for j in range(controls[o], controls[o + 1]):
            below = max(below, rank[target[j]])
        rank[o] = runtime[o] + below
    return rank
