"""Placements that do not depend on an order: one device, or a graph partition."""

import itertools
import math
from typing import Final

import numpy as np
import pymetis

from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix, once_a_pair, runtime_matrix
from regal_jax.graph.arrays import all_edges
from regal_jax.graph.topology import offsets
from regal_jax.graph.units import parse_bandwidth, parse_time

__all__ = ["device_subsets", "partition_placement", "single_device_placement"]

_WEIGHT_TOTAL: Final = 2**28
"""Approximate sum of the weights of all nodes, and of all edges: METIS uses 32-bit integers."""
_ARRANGED: Final = 64
"""Largest number of devices for which parts are arranged by links: each round tries all pairs."""


@once_a_pair
def single_device_placement(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N]``: all ops on the fastest device, or of equally fast ones that with most memory.

    An op that may not run there is on its own fastest device.
    """
    runtime = np.where(allowed_matrix(graph, cluster), runtime_matrix(graph, cluster), np.inf)
    group = np.zeros_like(runtime)
    np.add.at(group, graph.colocation_leader, runtime)
    group = group[graph.colocation_leader]
    total = runtime_matrix(graph, cluster).sum(axis=0)
    # The device that may run most ops; among those the fastest.
    best = np.lexsort((-np.array(cluster.memory), total, -np.isfinite(group).sum(axis=0)))[0]
    return np.where(np.isfinite(group[:, best]), best, group.argmin(axis=1)).astype(np.int64)


def partition_placement(
    graph: ComputationGraph,
    cluster: Cluster,
    *,
    by_bytes: bool = False,
    seed: int = 0,
    devices: np.ndarray | None = None,
    share: tuple[float, ...] | None = None,
) -> np.ndarray:
    """``[N]``: METIS parts of equal weight with few bytes between them, one per device.

    A colocation group is one node of the partitioned graph. Parts are assigned to devices so that few ops are
    on devices where they may not run, and, if links differ, so that transfers are short. Ops that may not run
    on the device of their part move to the allowed device with most bytes of their neighbours. With few
    nodes, no edges, or one node that outweighs several parts, parts are consecutive runs of ops instead.

    Args:
      graph: The graph.
      cluster: The cluster.
      by_bytes: Balance the bytes that ops produce instead of their runtimes.
      seed: METIS's seed.
      devices: ``[d]`` indices of the devices to use; all by default. An op that may run on none of them goes
        to another device.
      share: Of each device, the share of the weight of its part, in any unit; by default they are equal, or
        for runtimes in proportion to speeds.

    Returns:
      A read-only array; the same one for the same arguments.
    """
    chosen = range(cluster.num_devices) if devices is None else devices.tolist()
    return _partition(graph, cluster, by_bytes, seed, tuple(chosen), share)


@once_a_pair
def _partition(
    graph: ComputationGraph,
    cluster: Cluster,
    by_bytes: bool,
    seed: int,
    chosen: tuple[int, ...],
    share: tuple[float, ...] | None,
) -> np.ndarray:
    """Kept, since most heuristics begin with the same one."""
    devices = np.array(chosen)
    n, d = graph.num_ops, len(devices)
    allowed = allowed_matrix(graph, cluster)
    runtime = runtime_matrix(graph, cluster)[:, devices]
    weight = (
        np.bincount(graph.tensor_op, graph.tensor_bytes, n) + graph.temp_bytes
        if by_bytes
        else runtime.mean(axis=1)
    )
    # Nodes of the partitioned graph: the leaders of colocation groups, renumbered.
    leader, node = np.unique(graph.colocation_leader, return_inverse=True)
    weight = np.bincount(node, weight, len(leader))
    source, target, size = _edges(graph, node, len(leader))
    speed = np.array(share) if share else np.ones(d) if by_bytes else _share(runtime)
    if d == 1 or len(leader) < 4 * d or len(source) == 0 or _outweighs(weight, speed):
        part = _chunks(graph, node, weight, d)
    else:
        part = _metis(source, target, size, weight, speed, seed)
    if np.allclose(speed, speed[0]):
        part = _match(part, weight, allowed[leader][:, devices])[part]
        if len(cluster.links) > 1 and cluster.num_devices == d <= _ARRANGED:
            part = _arrange(part, source, target, size, cluster)[part]
    return _repair(devices[part], source, target, size, weight, allowed[leader])[node]


def device_subsets(graph: ComputationGraph, cluster: Cluster) -> list[np.ndarray]:
    """Subsets of 2, 4, 8, ... devices that are fast and well connected, and all devices; none for one device.

    A plan for a subset is a plan for the cluster, so trying subsets can only improve the result.
    """
    count = cluster.num_devices
    runtime = np.where(allowed_matrix(graph, cluster), runtime_matrix(graph, cluster), np.inf)
    # The device that may run most ops; ties go to the fastest, the nearest, and the one with most memory.
    allowed = np.isfinite(runtime).sum(axis=0)
    speed = np.where(np.isfinite(runtime), runtime, 0.0).sum(axis=0)
    size = float(graph.tensor_bytes.mean()) if graph.num_tensors else 0.0
    times = [cluster.transfer_time(size, graph.time_unit, link) for link in range(len(cluster.links))]
    far = np.array(times)[cluster.link_index]
    chosen: list[int] = []
    while len(chosen) < count:
        distance = far[chosen].sum(axis=0) + far[:, chosen].sum(axis=1)
        distance[chosen] = np.inf
        order = np.lexsort((-np.array(cluster.memory), distance, speed, -allowed, np.isinf(distance)))
        chosen.append(int(order[0]))
    sizes = [2**i for i in range(1, count.bit_length()) if 2**i < count]
    return [np.sort(chosen[:size]) for size in sizes] + [np.arange(count)] * (count > 1)


def _share(runtime: np.ndarray) -> np.ndarray:
    """``[D]``: relative speeds of the devices."""
    total = runtime.sum(axis=0)
    return np.ones(len(total)) if (total <= 0).any() else total.min() / total


def _edges(
    graph: ComputationGraph, node: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Undirected edges between nodes, both ways, sorted by source: ``(source, target, bytes)``."""
    a, b = (node[ops] for ops in all_edges(graph))
    size = np.concatenate([graph.tensor_bytes[graph.edge_tensor], np.zeros(len(graph.control_source))])
    apart = a != b
    pair = np.concatenate([a[apart] * count + b[apart], b[apart] * count + a[apart]])
    key, index = np.unique(pair, return_inverse=True)
    return key // count, key % count, np.bincount(index, np.tile(size[apart], 2), len(key))


def _scaled(weight: np.ndarray) -> np.ndarray:
    """Whole numbers of at least 1 in the proportions of ``weight``."""
    total = weight.sum()
    scale = (_WEIGHT_TOTAL - len(weight)) / total if total > 0 else 0.0
    # No finer than a millionth of the total: METIS gains nothing from it.
    return 1 + np.floor(weight * min(scale, 1e6 / total if total > 0 else 0.0)).astype(np.int64)


def _outweighs(weight: np.ndarray, speed: np.ndarray) -> bool:
    """Whether one node weighs more than some half of the parts that METIS divides further.

    METIS may then leave such a half without nodes, and print on the process's standard output that it has.
    """
    scaled = _scaled(weight)
    return bool(scaled.max() > _least_half(speed / speed.sum()) * scaled.sum())


def _least_half(share: np.ndarray) -> float:
    """The least sum of ``share`` in a half that METIS divides further; it halves parts again and again."""
    half = len(share) // 2
    divided = [each for each, least in ((share[:half], 4), (share[half:], 3)) if len(share) >= least]
    return min((min(float(each.sum()), _least_half(each)) for each in divided), default=math.inf)


def _metis(
    source: np.ndarray, target: np.ndarray, size: np.ndarray, weight: np.ndarray, speed: np.ndarray, seed: int
) -> np.ndarray:
    result = pymetis.part_graph(
        len(speed),
        pymetis.CSRAdjacency(offsets(source, len(weight)), target),
        vweights=_scaled(weight).tolist(),
        eweights=_scaled(size).tolist(),
        tpwgts=(speed / speed.sum()).tolist(),
        options=pymetis.Options(seed=seed % 2**31),
    )
    return np.array(result.vertex_part, dtype=np.int64)


def _chunks(graph: ComputationGraph, node: np.ndarray, weight: np.ndarray, d: int) -> np.ndarray:
    """Consecutive runs of about equal weight, in topological order."""
    order = node[graph.topological_order]
    order = order[np.sort(np.unique(order, return_index=True)[1])]
    even = weight[order] if weight.sum() > 0 else np.ones(len(order))
    middle = np.cumsum(even) - even / 2
    part = np.empty(len(weight), dtype=np.int64)
    part[order] = np.minimum((middle * d / even.sum()).astype(np.int64), d - 1)
    return part


def _match(part: np.ndarray, weight: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """``[D]`` device of each part: greedily the pair for which most weight may run there."""
    d = allowed.shape[1]
    fits = np.zeros((d, d))
    np.add.at(fits, part, allowed * (weight[:, None] + 1))
    device = np.zeros(d, dtype=np.int64)
    for _ in range(d):
        p, k = np.unravel_index(np.argmax(fits), fits.shape)
        device[p] = k
        fits[p, :] = fits[:, k] = -1
    return device


def _arrange(
    part: np.ndarray, source: np.ndarray, target: np.ndarray, size: np.ndarray, cluster: Cluster
) -> np.ndarray:
    """``[D]`` device of each part: swaps two devices while that shortens the transfers."""
    d, links = cluster.num_devices, cluster.links
    count, moved = np.zeros((d, d)), np.zeros((d, d))
    np.add.at(count, (part[source], part[target]), 1.0)
    np.add.at(moved, (part[source], part[target]), size)
    late = np.array([parse_time(link.latency, "s") for link in links])[cluster.link_index]
    wide = np.array([parse_bandwidth(link.bandwidth, "s") for link in links])[cluster.link_index]
    apart = ~np.eye(d, dtype=bool)

    def time(device: np.ndarray) -> float:
        rows = np.ix_(device, device)
        return float(((count * late[rows] + moved / wide[rows]) * apart).sum())

    device, least = np.arange(d), time(np.arange(d))
    better = True
    while better:
        better = False
        for p, q in itertools.combinations(range(d), 2):
            swapped = device.copy()
            swapped[[p, q]] = swapped[[q, p]]
            now = time(swapped)
            if now < least * (1 - 1e-9):
                device, least, better = swapped, now, True
    return device


def _repair(
    device: np.ndarray,
    source: np.ndarray,
    target: np.ndarray,
    size: np.ndarray,
    weight: np.ndarray,
    allowed: np.ndarray,
) -> np.ndarray:
    """Moves nodes from devices where they may not run: to most neighbouring bytes, then to the least load."""
    device = device.copy()
    load = np.bincount(device, weight, allowed.shape[1])
    bounds = offsets(source, len(device))
    for v in np.flatnonzero(~allowed[np.arange(len(device)), device]).tolist():
        near = slice(bounds[v], bounds[v + 1])
        pull = np.bincount(device[target[near]], size[near], allowed.shape[1])
        best = np.lexsort((load, -pull, ~allowed[v]))[0]
        load[device[v]] -= weight[v]
        load[best] += weight[v]
        device[v] = best
    return device
