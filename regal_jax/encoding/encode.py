"""Genes of a plan, for warm starts."""

import bisect
from typing import Final

import numpy as np

from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.problem import Bucket

__all__ = ["encode"]

_LEVELS: Final = 65536
MAX_DISTINCT: Final = _LEVELS
"""Up to this number of events each has a level of its own: evenly spread keys recombine best."""


def encode(
    graph: ComputationGraph,
    cluster: Cluster,
    placement: np.ndarray,
    events: np.ndarray,
    bucket: Bucket | None = None,
    devices: int | None = None,
) -> dict[str, np.ndarray]:
    """Genes of one individual that decode to this placement and order of events.

    Priorities fall along the order. With more events than the 65536 levels of a key, events share levels
    where the rule for ties (lowest id first) keeps them in order. If the order needs still more levels, the
    genes decode to a similar order.

    Args:
      graph: The graph.
      cluster: The cluster.
      placement: ``[N]`` device of each op.
      events: Valid event ids in schedule order, as `regal_jax.plan.replay` takes them.
      bucket: Padded sizes of the leaves; by default none.
      devices: ``D`` of the leaves, padding included; by default that of the cluster.

    Returns:
      uint16 leaves as in `regal_jax.encoding.Genes`, without leading axes.

    Raises:
      PlanError: The events miss an op or contain one that does not exist.
      ConfigError: ``bucket`` is too small for the graph.
    """
    bucket = Bucket.exact(graph) if bucket is None else bucket
    bucket.check_holds(graph)
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    blocking = cluster.transfer is TransferModel.BLOCKING
    placement, events = np.asarray(placement), np.asarray(events)
    total = n + t * d if blocking else n
    position = np.full(total, -1)
    if events.size == 0 or events.min() < 0 or events.max() >= total:
        raise PlanError(f"events: ids must be from 0 to {total - 1}, every op among them")
    position[events] = np.arange(len(events))
    if (position[:n] < 0).any():
        raise PlanError(f"events: op {graph.op_names[int(np.argmin(position[:n]))]!r} is missing")
    if len(events) <= MAX_DISTINCT:
        level = np.arange(len(events))
    else:
        level = _shared_levels(events, _ready(graph, placement, position)[events])
    falling = _LEVELS - 1 - level * (_LEVELS - 1) // max(int(level[-1]), 1)
    key = np.zeros(total, dtype=np.int64)
    key[events] = falling
    if blocking:
        # A transfer that this plan does not need gets the priority of the first reader of its tensor.
        urgent = np.zeros(t, dtype=np.int64)
        np.maximum.at(urgent, graph.edge_tensor, key[graph.edge_op])
        key[n:] = np.where(position[n:] < 0, np.repeat(urgent, d), key[n:])
    wide = devices or d
    leaves = {
        "affinity": np.zeros((bucket.ops, wide), dtype=np.uint16),
        "priority": np.zeros(bucket.ops, dtype=np.uint16),
        "transfer_priority": np.zeros((bucket.tensors if blocking else 0, wide), dtype=np.uint16),
    }
    leaves["affinity"][np.arange(n), placement] = _LEVELS - 1
    leaves["priority"][:n] = key[:n]
    leaves["transfer_priority"][: t if blocking else 0, :d] = key[n:].reshape(-1, d)
    return leaves


def _ready(graph: ComputationGraph, placement: np.ndarray, position: np.ndarray) -> np.ndarray:
    """For every event the first position at which it is ready."""
    n, t = graph.num_ops, graph.num_tensors
    ready = np.zeros(len(position), dtype=np.int64)
    producer, reader = graph.edge_producer, graph.edge_op
    before = position[producer]
    if len(position) > n:
        d = (len(position) - n) // t
        ready[n:] = np.repeat(position[graph.tensor_op] + 1, d)
        transfer = position[n + graph.edge_tensor * d + placement[reader]]
        before = np.where(placement[producer] == placement[reader], before, transfer)
    np.maximum.at(ready, reader, before + 1)
    np.maximum.at(ready, graph.control_target, position[graph.control_source] + 1)
    return ready


def _shared_levels(events: np.ndarray, ready: np.ndarray) -> np.ndarray:
    """Non-decreasing levels along the order, as few as a greedy pass finds.

    An event may share the level of those before it unless one of them, taken while it was ready, has a
    higher id: then the rule for ties would have taken it first.
    """
    levels, level = np.zeros(len(events), dtype=np.int64), 0
    # The events of the level so far that have a higher id than all after them.
    positions: list[int] = []
    ids: list[int] = []
    for j, (event, since) in enumerate(zip(events.tolist(), ready.tolist(), strict=True)):
        first = bisect.bisect_left(positions, since)
        if first < len(ids) and ids[first] > event:
            level += 1
            positions.clear()
            ids.clear()
        while ids and ids[-1] < event:
            positions.pop()
            ids.pop()
        positions.append(j)
        ids.append(event)
        levels[j] = level
    return levels
