"""`GraphFeatures`: features of graphs, computed on the host and padded like a `Problem`.

Features do not change if all times of a graph (including those of its cluster) or all sizes are multiplied by
a constant, or if ops are renumbered. Equal ops have equal features.
"""

import dataclasses
from typing import Final

import jax
import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.policies.choices import FeatureSet
from regal_jax.policies.config import FeatureConfig
from regal_jax.policies.measured import MOST, Measured, check_finite, clipped
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["GraphFeatures", "features_of"]

_SPREAD: Final = 0.01
"""Smallest unit of deviations, as a share of the mean; smaller deviations are noise."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class GraphFeatures:
    """``B`` graphs as attributed multigraphs; ``E`` is ``edges + controls`` of the bucket.

    An op is a node. Every pair of tensor and consumer is an edge from the producer. Control edges are edges,
    too, since a schedule must respect them; a flag distinguishes them, and `FeatureConfig.controls` leaves
    them out. Padding is zeros.

    `make_inputs` leaves the arrays on the host, as NumPy's: a jitted function puts them on the device at no
    extra cost. For repeated use, call ``jax.device_put`` once.

    Attributes:
      nodes: ``[B, N, F]`` float32, see `FeatureConfig.node_names`.
      edges: ``[B, E, G]`` float32, see `FeatureConfig.edge_names`.
      senders: ``[B, E]`` int32, sending ops; ``N - 1`` for padding, which may be a real op, so use the mask.
      receivers: ``[B, E]`` int32, receiving ops, padded like `senders`.
      node_mask: ``[B, N]`` bool, whether the op is real.
      edge_mask: ``[B, E]`` bool, whether the edge is real.
      order: ``[B, N]`` int32, the ops in a topological order, padding last. Ops are sorted by depth, then by
        levels and sizes; their numbers break ties only.
    """

    nodes: jax.Array
    edges: jax.Array
    senders: jax.Array
    receivers: jax.Array
    node_mask: jax.Array
    edge_mask: jax.Array
    order: jax.Array


def _standard(values: np.ndarray) -> np.ndarray:
    """Standard scores along the last axis, clipped."""
    n = values.shape[-1]
    if n == 0:
        return values
    mean = values.sum(axis=-1, keepdims=True) / n
    deviation = values - mean
    spread = np.sqrt((deviation * deviation).sum(axis=-1, keepdims=True) / n)
    spread = np.maximum(spread, _SPREAD * mean)
    return clipped(deviation / np.where(spread > 0, spread, 1))


def features_of(measured: Measured, config: FeatureConfig) -> dict[str, np.ndarray]:
    """The array fields of `GraphFeatures` for one graph, without padding.

    Raises:
      GraphError: A feature is not finite.
    """
    graph = measured.graph
    nodes = _node_features(measured, config)
    check_interrupt()
    count = len(measured.sender) if config.controls else len(graph.edge_tensor)
    edges = _edge_features(graph, config, measured)[:count]
    check_finite(graph, "op", nodes, config.node_names)
    check_finite(graph, "edge", edges, config.edge_names)
    return {
        "nodes": nodes,
        "edges": edges,
        "senders": measured.sender[:count],
        "receivers": measured.receiver[:count],
        "node_mask": np.ones(graph.num_ops, dtype=bool),
        "edge_mask": np.ones(count, dtype=bool),
        "order": measured.order,
    }


def _node_features(measured: Measured, config: FeatureConfig) -> np.ndarray:
    """``[N, F]`` in the order of `FeatureConfig.node_names`."""
    graph = measured.graph
    amounts = measured.amounts[: len(config.amounts)]
    columns = [np.log1p(amounts)]
    if config.features is not FeatureSet.RAW:
        columns += [_standard(amounts), _flags(graph, measured)]
        columns.append(_per_device(graph, measured.cluster, measured))
    if config.features in (FeatureSet.PLAIN, FeatureSet.STRUCTURAL):
        columns.append(_degrees(graph, measured))
    if config.features is FeatureSet.STRUCTURAL:
        check_interrupt()
        columns.append(_places(measured))
        for way in config.ways:
            columns.append(measured.rows(way))
    # Finite values fit into float32: amounts are logarithms, and all others are bounded.
    nodes = np.empty((len(config.node_names), graph.num_ops), np.float32)
    np.concatenate(columns, out=nodes, casting="unsafe")
    return nodes.T


def _flags(graph: ComputationGraph, measured: Measured) -> np.ndarray:
    """``[5, N]`` outputs, keep, pinned, colocated, graph size."""
    n = graph.num_ops
    rows = np.zeros((5, n))
    rows[0] = np.log1p(np.diff(graph.output_offset))
    rows[1, graph.tensor_op[graph.tensor_keep]] = 1
    if measured.allowed is not None:
        rows[2] = ~measured.allowed.all(axis=1)
    if graph.colocation_group.count(None) < n:
        rows[3] = np.bincount(graph.colocation_leader, minlength=n)[graph.colocation_leader] > 1
    rows[4] = np.log(n) / 10
    return rows


def _per_device(graph: ComputationGraph, cluster: Cluster, measured: Measured) -> np.ndarray:
    """``[3 D, N]``: runtime relative to the mean over devices, allowed, pressure."""
    n, d = measured.runtime.shape
    rows = np.zeros((3, d, n))
    if graph.runtime.ndim == 2:
        mean = measured.amounts[0]
        rows[0] = np.divide(measured.runtime.T, mean, out=np.ones((d, n)), where=mean > 0) - 1
    rows[1] = 1 if measured.allowed is None else measured.allowed.T
    total = float(graph.tensor_bytes.sum()) + float(graph.temp_bytes.sum())
    # An even share of all bytes divided by the device's capacity; 0 if there are no bytes.
    pressure = [min(total / (d * m), MOST) if m else MOST for m in cluster.memory] if total else [0.0] * d
    rows[2] = np.array(pressure)[:, None]
    return rows.reshape(3 * d, n)


def _degrees(graph: ComputationGraph, measured: Measured) -> np.ndarray:
    """``[5, N]`` inputs, readers, control inputs, control outputs, edges per op."""
    n = graph.num_ops
    ends = (graph.edge_op, graph.edge_producer, graph.control_target, graph.control_source)
    counts = [np.bincount(end, minlength=n) for end in ends]
    return np.log1p([*counts, np.full(n, len(measured.sender) / n)])


def _places(measured: Measured) -> np.ndarray:
    """``[10, N]``: levels, slack, depths, ranks and shares by level, parallelism."""
    top, bottom = measured.levels.top / measured.critical, measured.levels.bottom / measured.critical
    runtime = measured.amounts[0]
    longest = max(float(measured.levels.depth.max()), 1.0)
    rank, share = measured.standing
    work = float(runtime.sum()) / measured.critical
    return np.stack([
        top,
        bottom,
        np.maximum(1 - top - bottom, 0),
        measured.levels.depth / longest,
        measured.levels.height / longest,
        *rank,
        *share,
        np.full(len(top), np.log(work) / 5 if work > 0 else 0.0),
    ])  # fmt: skip


def _edge_features(graph: ComputationGraph, config: FeatureConfig, measured: Measured) -> np.ndarray:
    """``[E + C, G]`` in the order of `FeatureConfig.edge_names`."""
    tensor, data = graph.edge_tensor, len(graph.edge_tensor)
    rows = np.zeros((len(config.edge_names), len(measured.sender)))
    readers = np.diff(graph.consumer_offset)
    rows[0, :data] = np.log1p(measured.size)[tensor]
    if config.features is FeatureSet.RAW:
        rows[1:, data:] = 1
        return rows.T
    rows[1, :data] = _standard(measured.size)[tensor]
    rows[2, :data] = np.log1p(readers)[tensor]
    rows[3, :data] = graph.tensor_keep[tensor]
    rows[4, data:] = 1
    rows[5, :data] = np.log1p(measured.transfer)[tensor]
    if config.features is FeatureSet.STRUCTURAL:
        path = measured.levels
        end = (path.top + measured.amounts[0])[measured.sender]
        rows[6] = np.maximum(path.top[measured.receiver] - end, 0) / measured.critical
    return rows.T
