"""Properties of a graph on a cluster: allowed devices, runtimes and transfer times."""

import functools
import inspect
import threading
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np

from regal_jax.checks import check_kind, counted
from regal_jax.errors import ClusterError
from regal_jax.graph.arrays import slowest_runtimes
from regal_jax.graph.cluster import Cluster
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.units import parse_bandwidth, parse_time

__all__ = [
    "allowed_matrix",
    "mean_transfer_times",
    "once_a_pair",
    "runtime_matrix",
    "shortest_runtimes",
    "transfer_times",
]

_MOST: Final = 4
"""Number of clusters for which a graph caches results, as heuristics and replays ask repeatedly."""

_KEEPING: Final = threading.Lock()
"""Held while a result is kept, of any graph."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def once_a_pair(function: _Function) -> _Function:
    """Caches a function of a graph and hashable arguments, a cluster for instance.

    The graph keeps the last results; arrays become read-only. What is no graph or no cluster is refused with
    `ConfigError`.
    """
    signature = inspect.signature(function)
    names = list(signature.parameters)
    has_cluster = names[1:2] == ["cluster"]

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        if named or len(arguments) != len(names):
            arguments = signature.bind(*arguments, **named).args
        graph, arguments = cast(ComputationGraph, arguments[0]), arguments[1:]
        check_kind("graph", graph, ComputationGraph)
        if has_cluster:
            check_kind("cluster", arguments[0], Cluster)
        kept = graph.said_of_clusters.setdefault(function.__qualname__, {})
        try:
            return kept[arguments]
        except KeyError:
            found = function(graph, *arguments)
        if isinstance(found, np.ndarray):
            found.setflags(write=False)
        # Searches in several threads may ask for the same graph.
        with _KEEPING:
            while len(kept) >= _MOST:
                kept.pop(next(iter(kept)))
            kept[arguments] = found
        return found

    return cast(_Function, call)


@once_a_pair
def runtime_matrix(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N, D]`` float64 runtimes, in the graph's time unit.

    Raises:
      ClusterError: The graph has runtimes for another number of devices.
    """
    d = cluster.num_devices
    if graph.runtime.ndim == 1:
        return np.repeat(graph.runtime[:, None], d, axis=1)
    if graph.runtime.shape[1] != d:
        raise ClusterError(
            f"graph {graph.name!r} has runtimes for {counted(graph.runtime.shape[1], 'device')}, the cluster "
            f"has {d}; use one runtime per op, or one per device"
        )
    return graph.runtime


@once_a_pair
def allowed_matrix(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N, D]`` bool: whether the op, with its colocation group, may run on the device.

    Raises:
      ClusterError: An op, or its colocation group, may use no device of this cluster.
    """
    allowed = np.ones((graph.num_ops, cluster.num_devices), dtype=bool)
    if graph.allowed_devices.count(None) == graph.num_ops:
        return allowed
    for o, devices in enumerate(graph.allowed_devices):
        if devices is not None:
            allowed[o] = False
            allowed[o, [k for k in devices if k < cluster.num_devices]] = True
    group = allowed.copy()
    np.logical_and.at(group, graph.colocation_leader, allowed)
    allowed = group[graph.colocation_leader]
    if not allowed.any(axis=1).all():
        o = int(np.argmin(allowed.any(axis=1)))
        group = " (with its colocation group)" if graph.colocation_group[o] is not None else ""
        raise ClusterError(
            f"op {graph.op_names[o]!r}{group} may run on none of the cluster's "
            f"{counted(cluster.num_devices, 'device')}; add devices or allow more of them"
        )
    return allowed


def shortest_runtimes(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N]`` float64: the runtime of each op on the fastest device on which it may run.

    Raises:
      ClusterError: The cluster does not fit the graph.
    """
    return np.where(allowed_matrix(graph, cluster), runtime_matrix(graph, cluster), np.inf).min(axis=1)


@once_a_pair
def transfer_times(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[T, L]`` float64: time to move each tensor over each of ``cluster.links``, in the graph's time unit.

    ``[t, cluster.link_index[i, j]]`` is the time from device ``i`` to device ``j``.

    Raises:
      ClusterError: The times of all transfers and ops add up to more than a float can hold.
    """
    unit = graph.time_unit
    latency = np.array([parse_time(link.latency, unit) for link in cluster.links])
    per_byte = np.array([parse_bandwidth(link.bandwidth, unit) for link in cluster.links])
    with np.errstate(over="ignore"):
        times = latency + graph.tensor_bytes[:, None] / per_byte
        total = times.max(axis=1).sum() * cluster.num_devices + slowest_runtimes(graph).sum()
    if not np.isfinite(total):
        raise ClusterError(
            f"cluster: the transfers of graph {graph.name!r} over {cluster.over} are endless; check the "
            "units of the links"
        )
    return times


@once_a_pair
def mean_transfer_times(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[T]`` float64: the mean time to move each tensor to another device, over all ordered pairs.

    Raises:
      ClusterError: As `transfer_times`.
    """
    times = transfer_times(graph, cluster)
    if times.shape[1] == 1:
        return times[:, 0]
    pairs = cluster.link_index[~np.eye(cluster.num_devices, dtype=bool)]
    # Not a matrix product, whose last bits depend on the place of a row.
    return (times * (np.bincount(pairs, minlength=times.shape[1]) / len(pairs))).sum(axis=1)
