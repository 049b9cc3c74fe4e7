"""Warnings of a cluster whose numbers most likely lack a unit."""

import warnings
from typing import Any, Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.arrays import fastest_runtimes
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.plan import Objective, lower_bound
from regal_jax.runtime.stack import outer_level

__all__ = ["warn_of_units"]

_LITTLE: Final = 2**20
"""Bytes. Real devices have more memory, but those of graphs in their own units may have less."""
_TIMES: Final = 1000
"""Ratio of need to capacity, or of a transfer to all of the work, from which a number is implausible."""


def warn_of_units(graph: ComputationGraph, cluster: Cluster) -> None:
    """Warns of ``memory=16``, ``latency=5`` and ``bandwidth=300`` where they make no sense for ``graph``."""
    for text in filter(None, (check(graph, cluster) for check in (_memory, _latency, _bandwidth))):
        warnings.warn(text, UserWarning, stacklevel=outer_level())


def _memory(graph: ComputationGraph, cluster: Cluster) -> str:
    most = max(cluster.memory)
    if most >= _LITTLE:
        return ""
    bound = lower_bound(graph, cluster, Objective.PEAK_MEMORY)
    if bound <= _TIMES * max(most, 1.0):
        return ""
    return (
        f"memory: the devices have at most {format_bytes(most)}, and one must hold {format_bytes(bound)} of "
        f"graph {graph.name!r} at a time; plain numbers are bytes, write e.g. '16GiB'"
    )


def _latency(graph: ComputationGraph, cluster: Cluster) -> str:
    if cluster.num_devices == 1 or not len(graph.edge_tensor) or not _is_plain(cluster.latency):
        return ""
    takes, work, unit = cluster.transfer_time(0.0, graph.time_unit), _work(graph), graph.time_unit
    if takes <= _TIMES * work or not work:
        return ""
    return (
        f"latency: {cluster.latency} is in {unit}, and all the work of graph {graph.name!r} takes "
        f"{format_time(work, unit)}; write e.g. '5us'"
    )


def _work(graph: ComputationGraph) -> float:
    return float(fastest_runtimes(graph).sum())


def _bandwidth(graph: ComputationGraph, cluster: Cluster) -> str:
    if cluster.num_devices == 1 or not len(graph.edge_tensor) or not _is_plain(cluster.bandwidth):
        return ""
    largest = float(graph.tensor_bytes[graph.edge_tensor].max())
    takes = cluster.transfer_time(largest, graph.time_unit) - cluster.transfer_time(0.0, graph.time_unit)
    work = _work(graph)
    if takes <= _TIMES * work or not work:
        return ""
    unit = graph.time_unit
    return (
        f"bandwidth: {cluster.bandwidth} is bytes a {unit}, with which a transfer of {format_bytes(largest)} "
        f"takes {format_time(takes, unit)}, and all the work of graph {graph.name!r} takes "
        f"{format_time(work, unit)}; write e.g. '300GB/s'"
    )


def _is_plain(quantity: Any) -> bool:
    """Whether a quantity has a number without a unit."""
    return any(not isinstance(q, str) or not any(map(str.isalpha, q)) for q in np.ravel(quantity).tolist())
