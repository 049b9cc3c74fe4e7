"""Warnings of a cluster whose numbers most likely lack a unit."""

import math
import warnings
from collections.abc import Sequence
from typing import Final

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.arrays import fastest_runtimes
from regal_jax.graph.units import Quantity, format_bytes, format_time, parse_bandwidth, parse_time
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
    unit, work = graph.time_unit, _work(graph)
    given = _without_unit(graph, cluster, [link.latency for link in cluster.links])
    latency = max(given, key=lambda each: parse_time(each, unit), default=0.0)
    if parse_time(latency, unit) <= _TIMES * work or not work:
        return ""
    return (
        f"latency: {latency} is in {unit}, and all the work of graph {graph.name!r} takes "
        f"{format_time(work, unit)}; write e.g. '5us'"
    )


def _work(graph: ComputationGraph) -> float:
    return float(fastest_runtimes(graph).sum())


def _bandwidth(graph: ComputationGraph, cluster: Cluster) -> str:
    unit, work = graph.time_unit, _work(graph)
    given = _without_unit(graph, cluster, [link.bandwidth for link in cluster.links])
    bandwidth = min(given, key=lambda each: parse_bandwidth(each, unit), default=math.inf)
    largest = float(graph.tensor_bytes[graph.edge_tensor].max(initial=0))
    takes = largest / parse_bandwidth(bandwidth, unit)
    if takes <= _TIMES * work or not work:
        return ""
    return (
        f"bandwidth: {bandwidth} is bytes a {unit}, with which a transfer of {format_bytes(largest)} "
        f"takes {format_time(takes, unit)}, and all the work of graph {graph.name!r} takes "
        f"{format_time(work, unit)}; write e.g. '300GB/s'"
    )


def _without_unit(
    graph: ComputationGraph, cluster: Cluster, quantities: Sequence[Quantity]
) -> list[Quantity]:
    """Those without a unit; none where nothing is transferred."""
    if cluster.num_devices == 1 or not len(graph.edge_tensor):
        return []
    return [each for each in quantities if not isinstance(each, str) or not any(map(str.isalpha, each))]
