"""`GraphFeatures`: what a policy sees of a graph, computed on the host and padded like a `Problem`.

No feature changes when all times of a graph (those of its cluster included) or all sizes are multiplied by a
constant, nor when ops are numbered otherwise; equal ops have equal features.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.errors import ConfigError, GraphError
from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix, mean_transfer_times, runtime_matrix
from regal_jax.heuristics import counting
from regal_jax.heuristics.list_scheduling import Schedule, quick_schedule
from regal_jax.heuristics.peaks import least_peak_balance
from regal_jax.heuristics.placements import single_device_placement
from regal_jax.interrupts import check_interrupt, interruptible
from regal_jax.policies.choices import Balance, Cut, FeatureSet
from regal_jax.policies.config import FeatureConfig
from regal_jax.policies.levels import Levels, levels, quantised, standing
from regal_jax.policies.spectral import Start, spectral_coordinates
from regal_jax.problem import Bucket

__all__ = ["GraphFeatures", "make_features"]

_CLIP: Final = 4.0
"""Standard scores and pressures beyond it say no more."""
_CONTROL_WEIGHT: Final = 0.1
_LEAST_MASS: Final = 1e-3
"""Of the mean mass: ops that have none are spread as well."""
_SLICES: Final = {Cut.ACROSS: 32, Cut.FINE: 128}
_OPS_IN_SLICE: Final = 4
_TRIES: Final = 80
"""Moves that lower the peaks, from each start; see docs/ablations.md."""
_BLOCK_TRIES: Final = 48
_SPREAD: Final = 0.01
"""Deviations are told in units of at least this part of the mean: less is noise."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class GraphFeatures:
    """``B`` graphs as attributed multigraphs; ``E`` is ``edges + controls`` of the bucket.

    An op is a node. Every (tensor, consumer) is an edge from the producer, and so is every control edge,
    which a schedule has to keep as well; a flag tells which is which. Padding is zeros.

    `make_features` leaves the arrays on the host, as NumPy's: a jitted function that is given them puts them
    on the device at no extra cost. Who needs them again and again calls ``jax.device_put`` once.

    Attributes:
      nodes: ``[B, N, F]`` float32, see `FeatureConfig.node_names`.
      edges: ``[B, E, G]`` float32, see `FeatureConfig.edge_names`.
      senders: ``[B, E]`` int32, ops; padding: ``N - 1``, which may be a real op: use the mask.
      receivers: ``[B, E]`` int32, likewise.
      node_mask: ``[B, N]`` bool, is the op real?
      edge_mask: ``[B, E]`` bool, is the edge real?
      order: ``[B, N]`` int32, the ops in a topological order, padding last. By depth, then by levels and
        sizes: numbers decide only between ops that are alike in all of them.
    """

    nodes: jax.Array
    edges: jax.Array
    senders: jax.Array
    receivers: jax.Array
    node_mask: jax.Array
    edge_mask: jax.Array
    order: jax.Array


@interruptible()
def make_features(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    bucket: Bucket | None,
    config: FeatureConfig,
) -> GraphFeatures:
    """Computes the features of graphs, as NumPy arrays.

    Args:
      graphs: ``B`` graphs, at least one.
      clusters: One for all, or one a graph, each with ``config.num_devices`` devices.
      bucket: The padded sizes; ``None`` for the common bucket of the graphs' own.
      config: Which features; a policy's is `PolicyConfig.feature_config`.

    Raises:
      ConfigError: No graph, a bucket too small, a cluster of another number of devices.
      ClusterError: A cluster that does not fit its graph.
      GraphError: A feature that is not finite.
    """
    if not graphs:
        raise ConfigError("make_features: no graphs; give at least one")
    each = [clusters] * len(graphs) if isinstance(clusters, Cluster) else list(clusters)
    if len(each) != len(graphs):
        raise ConfigError(f"make_features: {len(graphs)} graphs but {len(each)} clusters; give one a graph")
    for cluster in each:
        if cluster.num_devices != config.num_devices:
            raise ConfigError(
                f"make_features: a cluster of {cluster.num_devices} devices, but the features are for "
                f"{config.num_devices}; take the policy and the cluster for the same number"
            )
    bucket = Bucket.common([Bucket.of(graph) for graph in graphs]) if bucket is None else bucket
    batch, n, e = len(graphs), bucket.ops, bucket.edges + bucket.controls
    arrays: dict[str, Any] = {
        "nodes": np.zeros((batch, n, len(config.node_names)), np.float32),
        "edges": np.zeros((batch, e, len(config.edge_names)), np.float32),
        "senders": np.full((batch, e), n - 1, np.int32),
        "receivers": np.full((batch, e), n - 1, np.int32),
        "node_mask": np.zeros((batch, n), np.bool_),
        "edge_mask": np.zeros((batch, e), np.bool_),
        "order": np.tile(np.arange(n, dtype=np.int32), (batch, 1)),
    }
    for b, (graph, cluster) in enumerate(zip(graphs, each, strict=True)):
        check_interrupt()
        bucket.check_holds(graph)
        with counting():
            one = _one(graph, cluster, config)
        for name, row in one.items():
            arrays[name][b, : len(row)] = row
    return GraphFeatures(**arrays)


@dataclasses.dataclass(frozen=True, eq=False)
class _Measured:
    """A graph in its own units: times of the mean runtime, sizes of the mean tensor.

    Attributes:
      runtime: ``[N, D]``.
      allowed: ``[N, D]`` bool; ``None`` if every op may run everywhere.
      amounts: ``[4, N]``: mean runtime, temp, output and input bytes.
      size: ``[T]``.
      transfer: ``[T]``, the mean over all ordered pairs of devices.
      sender: ``[E + C]``, data edges first.
      receiver: ``[E + C]``.
      levels: Of the mean runtime.
      critical: The longest path; 1 if it has no length.
    """

    runtime: np.ndarray
    allowed: np.ndarray | None
    amounts: np.ndarray
    size: np.ndarray
    transfer: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    levels: Levels
    critical: float

    @functools.cached_property
    def order(self) -> np.ndarray:
        """``[N]`` a topological order: every edge leads to a greater depth."""
        path = self.levels
        top, bottom = quantised(path.top / self.critical), quantised(path.bottom / self.critical)
        return np.lexsort((*quantised(self.amounts[[0, 1, 3, 2]]), -bottom, top, path.depth))


def _measure(graph: ComputationGraph, cluster: Cluster) -> _Measured:
    n = graph.num_ops
    runtime = runtime_matrix(graph, cluster)
    # Before means and scores carry what is wrong with one op to all others.
    _check_finite(graph, "op", runtime, ("runtime",) * runtime.shape[1])
    transfer = mean_transfer_times(graph, cluster)
    time = _scale(runtime, transfer)
    byte = _scale(graph.tensor_bytes, graph.temp_bytes)
    runtime, transfer, size = runtime / time, transfer / time, graph.tensor_bytes / byte
    mean = runtime[:, 0] if graph.runtime.ndim == 1 else runtime.mean(axis=1)
    amounts = np.stack([
        mean,
        graph.temp_bytes / byte,
        np.bincount(graph.tensor_op, weights=size, minlength=n),
        np.bincount(graph.edge_op, weights=size[graph.edge_tensor], minlength=n),
    ])  # fmt: skip
    sender = np.concatenate([graph.edge_producer, graph.control_source])
    receiver = np.concatenate([graph.edge_op, graph.control_target])
    paths = levels(sender, receiver, graph.topological_order, mean)
    critical = float(paths.bottom.max()) or 1.0
    allowed = allowed_matrix(graph, cluster) if graph.allowed_devices.count(None) < n else None
    return _Measured(runtime, allowed, amounts, size, transfer, sender, receiver, paths, critical)


def _scale(values: np.ndarray, otherwise: np.ndarray) -> float:
    """The mean of ``values``; of ``otherwise``, if that is 0; 1 if both are. Always positive."""
    for array in (values, otherwise):
        mean = float(array.mean()) if array.size else 0.0
        if mean > 0:
            return mean
    return 1.0


def _standard(values: np.ndarray) -> np.ndarray:
    """Standard scores along the last axis, clipped."""
    n = values.shape[-1]
    if n == 0:
        return values
    mean = values.sum(axis=-1, keepdims=True) / n
    deviation = values - mean
    spread = np.sqrt((deviation * deviation).sum(axis=-1, keepdims=True) / n)
    spread = np.maximum(spread, _SPREAD * mean)
    return _clipped(deviation / np.where(spread > 0, spread, 1))


def _clipped(score: np.ndarray) -> np.ndarray:
    return np.minimum(np.maximum(score, -_CLIP), _CLIP)  # Faster than `np.clip`.


def _one(graph: ComputationGraph, cluster: Cluster, config: FeatureConfig) -> dict[str, np.ndarray]:
    """The array fields of `GraphFeatures` for one graph, without padding."""
    # What is not finite is refused by name below; NumPy's warnings would only come first.
    with np.errstate(over="ignore", invalid="ignore"):
        measured = _measure(graph, cluster)
        check_interrupt()
        nodes = _node_features(graph, cluster, config, measured)
        check_interrupt()
        edges = _edge_features(graph, config, measured)
    _check_finite(graph, "op", nodes, config.node_names)
    _check_finite(graph, "edge", edges, config.edge_names)
    return {
        "nodes": nodes,
        "edges": edges,
        "senders": measured.sender,
        "receivers": measured.receiver,
        "node_mask": np.ones(graph.num_ops, dtype=bool),
        "edge_mask": np.ones(len(measured.sender), dtype=bool),
        "order": measured.order,
    }


def _check_finite(graph: ComputationGraph, what: str, rows: np.ndarray, names: Sequence[str]) -> None:
    if not np.isfinite(rows).all():
        row, column = np.argwhere(~np.isfinite(rows))[0].tolist()
        name = f"op {graph.op_names[row]!r}" if what == "op" else f"edge {row}"
        raise GraphError(
            f"graph {graph.name!r}: {name}: feature {names[column]!r} is not finite; "
            "check the runtimes and sizes of the graph and the transfers of the cluster"
        )


def _node_features(
    graph: ComputationGraph, cluster: Cluster, config: FeatureConfig, measured: _Measured
) -> np.ndarray:
    """``[N, F]`` in the order of `FeatureConfig.node_names`."""
    n, names = graph.num_ops, config.node_names
    amounts = measured.amounts[: len(config.amounts)]
    columns = [np.log1p(amounts), _standard(amounts), _flags(graph, measured)]
    columns.append(_per_device(graph, cluster, measured))
    if config.features is not FeatureSet.OWN:
        columns.append(_degrees(graph, measured))
    if config.features.structural:
        mass = _mass(measured, config.balance)
        check_interrupt()
        coordinates = _coordinates(graph, measured, mass, config.ways)
        columns += [_places(measured, mass), coordinates]
        check_interrupt()
        if config.features is FeatureSet.ORDERED:
            balance, placement = least_peak_balance(graph, cluster, np.argsort(measured.order), _TRIES)
            columns.append(_falling(balance.order)[None])
            placements = {
                Cut.PEAKS_ORDER: lambda: placement,
                # `Cut.ALONG` is the first way: its first coordinate's share.
                Cut.PEAKS_ALONG: lambda: balance.refine(balance.cut(coordinates[2]), _TRIES),
                Cut.PEAKS_ONE: lambda: balance.refine(single_device_placement(graph, cluster), _TRIES),
                Cut.PEAKS_BLOCKS: lambda: balance.blocks(_BLOCK_TRIES),
            }
            columns += [_bands(placements[way](), cluster) for way in config.ways if way in placements]
        if config.features is FeatureSet.SCHEDULED:
            schedule = quick_schedule(graph, cluster, np.argsort(measured.order))
            place = _falling(schedule.order)
            columns += [place[None], _sent(graph, schedule, place)]
            if Cut.SCHEDULE in config.ways:
                columns.append(_bands(schedule.placement, cluster))
    # float32 holds what is finite here: amounts are logs, all else is bounded.
    nodes = np.empty((len(names), n), np.float32)
    np.concatenate(columns, out=nodes, casting="unsafe")
    return nodes.T


def _flags(graph: ComputationGraph, measured: _Measured) -> np.ndarray:
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


def _per_device(graph: ComputationGraph, cluster: Cluster, measured: _Measured) -> np.ndarray:
    """``[3 D, N]``: runtime relative to the mean over devices, allowed, pressure."""
    n, d = measured.runtime.shape
    rows = np.zeros((3, d, n))
    if graph.runtime.ndim == 2:
        mean = measured.amounts[0]
        rows[0] = np.divide(measured.runtime.T, mean, out=np.ones((d, n)), where=mean > 0) - 1
    rows[1] = 1 if measured.allowed is None else measured.allowed.T
    total = float(graph.tensor_bytes.sum()) + float(graph.temp_bytes.sum())
    # A device's fair share of all bytes against its capacity; of no bytes there is no pressure.
    pressure = [min(total / (d * m), _CLIP) if m else _CLIP for m in cluster.memory] if total else [0.0] * d
    rows[2] = np.array(pressure)[:, None]
    return rows.reshape(3 * d, n)


def _degrees(graph: ComputationGraph, measured: _Measured) -> np.ndarray:
    """``[5, N]`` inputs, readers, control inputs, control outputs, edges per op."""
    n = graph.num_ops
    ends = (graph.edge_op, graph.edge_producer, graph.control_target, graph.control_source)
    counts = [np.bincount(end, minlength=n) for end in ends]
    return np.log1p([*counts, np.full(n, len(measured.sender) / n)])


def _mass(measured: _Measured, balance: Balance) -> np.ndarray:
    """``[N]`` what shares are of."""
    runtime, temp, outputs, _ = measured.amounts
    return runtime if balance is Balance.WORK else temp + outputs


def _places(measured: _Measured, mass: np.ndarray) -> np.ndarray:
    """``[10, N]``: levels, slack, depths, ranks and shares by level, parallelism."""
    top, bottom = measured.levels.top / measured.critical, measured.levels.bottom / measured.critical
    runtime = measured.amounts[0]
    longest = max(float(measured.levels.depth.max()), 1.0)
    rank, share = standing(quantised(np.stack([top, bottom])), mass)
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


def _coordinates(
    graph: ComputationGraph, measured: _Measured, mass: np.ndarray, ways: Sequence[Cut]
) -> np.ndarray:
    """``[6 K, N]``: of each coordinate of the ``K`` ways that have them its value, its rank and its share."""
    # A tensor moves once to a device, however many read it there; a control edge moves nothing.
    data = 1 / np.diff(graph.consumer_offset)[graph.edge_tensor]
    weight = np.concatenate([data, np.full(len(graph.control_source), _CONTROL_WEIGHT)])
    path = measured.levels
    middle = (path.top + path.top + measured.amounts[0]) / measured.critical
    some = mass + _LEAST_MASS * (mass.mean() or 1.0)
    when = _share(middle / 2, some)
    starts: dict[int, Start] = {}
    picked: list[int] = []
    for way in ways:
        if way.spectral:
            # Small graphs have no more slices for `Cut.FINE`, and need not be cut twice.
            count = min(_SLICES.get(way, 0), max(graph.num_ops // _OPS_IN_SLICE, 1))
            if not count:
                starts[count] = Start(middle - middle.mean())
            elif count not in starts:
                starts[count] = Start(path.bottom / measured.critical, some, _slices(when, count))
            picked.append(list(starts).index(count))
    n = graph.num_ops
    value = spectral_coordinates(measured.sender, measured.receiver, weight, list(starts.values()))
    value = value.reshape(-1, n)
    least = value.min(axis=1, keepdims=True)
    span = value.max(axis=1, keepdims=True) - least
    # Where all are alike there is one level.
    level = quantised((value - least) / np.where(span > 0, span, 1))
    rows = np.stack([_clipped(value), *standing(level, mass)], axis=1)
    return rows.reshape(len(starts), -1, n)[picked].reshape(-1, n)


def _share(time: np.ndarray, mass: np.ndarray) -> np.ndarray:
    """``[N]`` in steps of `quantised`: what share of the mass comes before the middle of every op."""
    return quantised(standing(quantised(time), mass)[1])


def _slices(share: np.ndarray, count: int) -> np.ndarray:
    """``[N]`` slices of equal mass, by `_share`."""
    return np.minimum(share * count // quantised(np.ones(())), count - 1).astype(np.int64)


def _edge_features(graph: ComputationGraph, config: FeatureConfig, measured: _Measured) -> np.ndarray:
    """``[E + C, G]`` in the order of `FeatureConfig.edge_names`."""
    tensor, data = graph.edge_tensor, len(graph.edge_tensor)
    rows = np.zeros((len(config.edge_names), len(measured.sender)))
    readers = np.diff(graph.consumer_offset)
    rows[0, :data] = np.log1p(measured.size)[tensor]
    rows[1, :data] = _standard(measured.size)[tensor]
    rows[2, :data] = np.log1p(readers)[tensor]
    rows[3, :data] = graph.tensor_keep[tensor]
    rows[4, data:] = 1
    rows[5, :data] = np.log1p(measured.transfer)[tensor]
    if config.features.structural:
        path = measured.levels
        end = (path.top + measured.amounts[0])[measured.sender]
        rows[6] = np.maximum(path.top[measured.receiver] - end, 0) / measured.critical
    return rows.T


def _falling(order: np.ndarray) -> np.ndarray:
    """``[N]`` from 1 to 0 in the order of ops."""
    n = len(order)
    place = np.empty(n)
    place[order] = 1 - (np.arange(n) + 0.5) / n
    return place


def _sent(graph: ComputationGraph, schedule: Schedule, place: np.ndarray) -> np.ndarray:
    """``[D, N]`` from 1 to 0, like ``place``, where the schedule first sends what an op makes to each device.

    Midway to the first op that reads it where it sends nothing; the op's own place if nobody does.
    """
    n = graph.num_ops
    first = np.zeros(n)
    np.maximum.at(first, graph.edge_producer, place[graph.edge_op])
    midway = (place + np.where(first > 0, first, place)) / 2
    sent = np.full((n, schedule.sent.shape[1]), -1.0)
    np.maximum.at(sent, graph.tensor_op, np.where(schedule.sent < 0, -1, 1 - schedule.sent / n))
    return np.where(sent < 0, midway[:, None], sent).T


def _bands(placement: np.ndarray, cluster: Cluster) -> np.ndarray:
    """``[1, N]`` the middle of the band of every op's device."""
    return (placement[None] + 0.5) / cluster.num_devices
