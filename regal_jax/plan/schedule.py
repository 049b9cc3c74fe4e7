"""From a placement and an order of ops to a complete order of events."""

from collections.abc import Sequence

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.interrupts import check_interrupt
from regal_jax.plan.replay import transfer_event

__all__ = ["insert_transfers", "needed_transfers"]


def needed_transfers(graph: ComputationGraph, placement: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(tensor [K], device [K])``: every copy that ``placement`` (``[N]``) makes necessary, exactly once."""
    away = placement[graph.edge_op] != placement[graph.edge_producer]
    pairs = np.stack([graph.edge_tensor[away], placement[graph.edge_op[away]]], axis=1)
    tensor, device = np.unique(pairs, axis=0).T
    return tensor, device


def insert_transfers(
    graph: ComputationGraph,
    cluster: Cluster,
    placement: np.ndarray,
    op_order: Sequence[int] | np.ndarray,
    *,
    eager: bool = False,
) -> np.ndarray:
    """Adds the transfers that ``op_order`` needs (blocking transfers; otherwise none are events).

    Args:
      graph: The graph.
      cluster: The cluster.
      placement: ``[N]`` device of each op.
      op_order: ``[N]`` op indices in an order that respects every edge.
      eager: Send a tensor as soon as it exists; otherwise just before its first reader there.

    Returns:
      ``[M]`` event ids, as `regal_jax.plan.replay` takes them.
    """
    if cluster.transfer is not TransferModel.BLOCKING:
        return np.asarray(op_order, dtype=np.int64)
    place = np.asarray(placement).tolist()
    sent: set[int] = set()
    events: list[int] = []

    def send(tensors: Sequence[int], devices: Sequence[int], home: Sequence[int]) -> None:
        for t, k, h in zip(tensors, devices, home, strict=True):
            event = transfer_event(graph, cluster, t, k)
            if k != h and event not in sent:
                sent.add(event)
                events.append(event)

    offset, inputs = graph.inputs
    for o in np.asarray(op_order).tolist():
        check_interrupt()
        if not eager:
            needs = inputs[offset[o] : offset[o + 1]].tolist()
            send(needs, [place[o]] * len(needs), [place[p] for p in graph.tensor_op[needs]])
        events.append(o)
        if eager:
            first, last = graph.consumer_offset[graph.output_offset[[o, o + 1]]]
            tensors = graph.edge_tensor[first:last].tolist()
            send(tensors, [place[c] for c in graph.edge_op[first:last]], [place[o]] * len(tensors))
    return np.array(events, dtype=np.int64)
