"""`Problem`: a batch of graphs, each on its cluster, as padded arrays on the device."""

import dataclasses
from collections.abc import Sequence
from typing import Final

import jax
import numpy as np

from regal_jax.checks import counted
from regal_jax.errors import ConfigError, GraphError
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics.ranks import mean_runtime, upward_rank
from regal_jax.plan import makespan_upper_bound
from regal_jax.problem.bucket import Bucket

__all__ = ["Problem", "make_problem", "memory_unit"]

_UNLIMITED: Final = 2**31 - 1
_TIME_RANGE: Final = (1e-30, 1e30)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Problem:
    """``B`` graphs and their clusters. Memory is in units of `memory_unit`, time in each graph's own unit.

    Padding is inert: a padded op never starts, a padded tensor has no size and no consumer, and no op may
    run on a padded device.

    Attributes:
      num_ops: ``[B]`` int32, without padding.
      num_tensors: ``[B]`` int32, without padding.
      runtime: ``[B, N, D]`` float32.
      allowed: ``[B, N, D]`` bool, whether the op, and its whole colocation group, may run there.
      leader: ``[B, N]`` int32, the op whose affinity places this op: the first of its colocation group.
      indegree: ``[B, N]`` int32, number of inputs and control predecessors; padded ops: 1.
      op_row: ``[B, N, 2]`` int32, bounds of each op's row of successors.
      tensor_row: ``[B, T, 2]`` int32, bounds of each tensor's consumers, a part of its producer's row.
      successor: ``[B, E + C]`` int32, ops: row by row the consumers of every output, then the control
        successors. Padding: ``N``.
      via: ``[B, E + C]`` int32, the tensor that links to that successor; ``T`` for a control edge.
      tensor_op: ``[B, T]`` int32, the producer.
      transfer_time: ``[B, T, L]`` float32, over each kind of link.
      link: ``[B, D, D]`` int32, the kind of link from row to column; 0 on the diagonal.
      size: ``[B, T]`` int32.
      keep: ``[B, T]`` bool.
      resident: ``[B, T]`` bool, whether it is in memory from the beginning.
      temp: ``[B, N]`` int32.
      capacity: ``[B, D]`` int32; 2**31 - 1 is unlimited.
      total_size: ``[B]`` float32, sum of all tensors and temps, the most that a device can hold.
      upper_bound: ``[B]`` float32, the longest time of any order of events.
      rank: ``[B, N]`` float32, upward rank of each op (`regal_jax.heuristics.ranks.upward_rank`); padding: 0.
      op_time: ``[B]`` float32, mean over the ops of the upward rank's runtimes: the unit of prices.
      op_size: ``[B]`` float32, ``total_size`` over the number of ops: the unit of prices for peak memory.
      bucket: The padded sizes (static).
      blocking: Whether transfers are events; otherwise they are delays (static).
      unlimited: Whether every capacity of every graph is unlimited (static).
    """

    num_ops: jax.Array
    num_tensors: jax.Array
    runtime: jax.Array
    allowed: jax.Array
    leader: jax.Array
    indegree: jax.Array
    op_row: jax.Array
    tensor_row: jax.Array
    successor: jax.Array
    via: jax.Array
    tensor_op: jax.Array
    transfer_time: jax.Array
    link: jax.Array
    size: jax.Array
    keep: jax.Array
    resident: jax.Array
    temp: jax.Array
    capacity: jax.Array
    total_size: jax.Array
    upper_bound: jax.Array
    rank: jax.Array
    op_time: jax.Array
    op_size: jax.Array
    bucket: Bucket = dataclasses.field(metadata={"static": True})
    blocking: bool = dataclasses.field(metadata={"static": True})
    unlimited: bool = dataclasses.field(metadata={"static": True})

    @property
    def num_graphs(self) -> int:
        """``B``."""
        return self.runtime.shape[-3]

    @property
    def num_devices(self) -> int:
        """``D``."""
        return self.runtime.shape[-1]

    @property
    def num_links(self) -> int:
        """``L``, padded; 1 where all devices are linked alike."""
        return self.transfer_time.shape[-1]

    def transfer_cost(self, tensor: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
        """Times of transfers of one graph (no ``B``), float32; 0 for a tensor that is out of range."""
        if self.num_links > 1:
            tensor = tensor * self.num_links + self.link.reshape(-1)[source * self.num_devices + target]
        return self.transfer_time.reshape(-1).at[tensor].get(mode="fill", fill_value=0)


def memory_unit(graph: ComputationGraph) -> int:
    """Bytes in one unit of device memory accounting: ``ceil(all bytes / 2**30)``, at least 1."""
    return max(1, -(-(int(graph.tensor_bytes.sum()) + int(graph.temp_bytes.sum())) // 2**30))


def make_problem(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    bucket: Bucket | None = None,
    devices: int | None = None,
) -> Problem:
    """Pads graphs and puts them on the device.

    Args:
      graphs: ``B`` graphs, at least one.
      clusters: One for all graphs, or one per graph. All have the same number of devices, unless ``devices``
        is given. Either all or none have blocking transfers.
      bucket: Padded sizes; by default the common bucket of the graphs.
      devices: Number of devices ``D``; by default that of the clusters. Devices beyond those of a cluster
        stay idle.

    Raises:
      ConfigError: There is no graph, the bucket is too small, or clusters cannot share a batch.
      ClusterError: A cluster does not fit its graph.
      GraphError: A time is out of the range of float32.
    """
    if not graphs:
        raise ConfigError("make_problem: no graphs; give at least one")
    each = [clusters] * len(graphs) if isinstance(clusters, Cluster) else list(clusters)
    if len(each) != len(graphs):
        raise ConfigError(
            f"make_problem: {counted(len(graphs), 'graph')} but {counted(len(each), 'cluster')}; "
            "give one per graph"
        )
    kinds = {(devices or c.num_devices, c.transfer is TransferModel.BLOCKING) for c in each}
    if len(kinds) > 1:
        raise ConfigError(
            "make_problem: clusters of one batch need the same number of devices and either all blocking "
            f"transfers or none, got {', '.join(sorted({str(c) for c in each}))}; make one batch per kind"
        )
    most = max(c.num_devices for c in each)
    devices = devices or most
    if devices < most:
        raise ConfigError(f"make_problem: devices is {devices}, but a cluster has {most}; give at least that")
    if bucket is None:
        bucket = Bucket.common([Bucket.of(graph) for graph in graphs])
    # A power of two, so that few sizes are compiled.
    links = 1 << (max(len(cluster.links) for cluster in each) - 1).bit_length()
    rows = [
        _arrays(graph, cluster, bucket, devices, links) for graph, cluster in zip(graphs, each, strict=True)
    ]
    # `jnp.asarray` would compile a program for every shape.
    arrays = jax.device_put({name: np.stack([row[name] for row in rows]) for name in rows[0]})
    unlimited = all(np.isinf(c.memory).all() for c in each)
    return Problem(**arrays, bucket=bucket, blocking=kinds.pop()[1], unlimited=unlimited)


def _pad(array: np.ndarray, size: int, fill: float = 0) -> np.ndarray:
    padded = np.full((size, *array.shape[1:]), fill, dtype=array.dtype)
    padded[: len(array)] = array
    return padded


def _arrays(
    graph: ComputationGraph, cluster: Cluster, bucket: Bucket, devices: int, links: int
) -> dict[str, np.ndarray]:
    """The array fields of `Problem` for one graph, padded to ``devices`` and ``links``."""
    bucket.check_holds(graph)
    n, t = bucket.ops, bucket.tensors
    successors = _successors(graph, bucket)
    indegree = np.diff(graph.inputs[0]) + np.diff(graph.control_predecessors[0])
    unit = memory_unit(graph)
    size, temp = -(-graph.tensor_bytes // unit), -(-graph.temp_bytes // unit)
    times = transfer_times(graph, cluster)
    capacity = np.minimum(np.floor(np.array(cluster.memory) / unit), _UNLIMITED)
    leader = np.arange(n)
    leader[: graph.num_ops] = graph.colocation_leader
    arrays = {
        "num_ops": np.array(graph.num_ops),
        "num_tensors": np.array(graph.num_tensors),
        "runtime": _pad(runtime_matrix(graph, cluster), n),
        "allowed": _pad(allowed_matrix(graph, cluster), n, True),
        "leader": leader,
        "indegree": _pad(indegree, n, 1),
        **successors,
        "tensor_op": _pad(graph.tensor_op, t),
        "transfer_time": _pad(np.pad(times, ((0, 0), (0, links - times.shape[1]))), t),
        "link": np.pad(cluster.link_index, (0, devices - cluster.num_devices)),
        "size": _pad(size, t),
        "keep": _pad(graph.tensor_keep, t),
        "resident": _pad(graph.tensor_resident, t),
        "temp": _pad(temp, n),
        "capacity": capacity.astype(np.int64),
        "total_size": np.array(float(size.sum() + temp.sum())),
        "upper_bound": np.array(_upper_bound(graph, cluster)),
        "rank": _pad(upward_rank(graph, cluster), n),
        "op_time": np.array(mean_runtime(graph, cluster).mean()),
        "op_size": np.array(float(size.sum() + temp.sum()) / graph.num_ops),
    }
    for name, fill in (("runtime", 0), ("allowed", False), ("capacity", _UNLIMITED)):
        arrays[name] = _pad(arrays[name].T, devices, fill).T
    narrow = {np.dtype(np.int64): np.int32, np.dtype(np.float64): np.float32}
    return {k: a.astype(narrow.get(a.dtype, a.dtype)) for k, a in arrays.items()}


def _successors(graph: ComputationGraph, bucket: Bucket) -> dict[str, np.ndarray]:
    # Edges are sorted by tensor and tensors by producer, so the data edges of an op are contiguous. Its
    # control edges are inserted after them.
    edge_end = graph.consumer_offset[graph.output_offset]
    op_row = edge_end + graph.control_offset
    data = np.arange(len(graph.edge_op)) + graph.control_offset[graph.edge_producer]
    control = np.arange(len(graph.control_source)) + edge_end[graph.control_source + 1]
    length = bucket.edges + bucket.controls
    successor, via = np.full(length, bucket.ops), np.full(length, bucket.tensors)
    successor[data], via[data] = graph.edge_op, graph.edge_tensor
    successor[control] = graph.control_target
    shift = graph.control_offset[graph.tensor_op]
    tensor_row = np.stack([graph.consumer_offset[:-1] + shift, graph.consumer_offset[1:] + shift], axis=1)
    return {
        "op_row": _pad(np.stack([op_row[:-1], op_row[1:]], axis=1), bucket.ops),
        "tensor_row": _pad(tensor_row, bucket.tensors),
        "successor": successor,
        "via": via,
    }


def _upper_bound(graph: ComputationGraph, cluster: Cluster) -> float:
    bound = makespan_upper_bound(graph, cluster)
    low, high = _TIME_RANGE
    if bound and not low < bound < high:
        raise GraphError(
            f"graph {graph.name!r}: times add up to {bound:.3g} {graph.time_unit}, which must be between "
            f"{low:g} and {high:g} to be simulated; choose another time unit"
        )
    return bound
