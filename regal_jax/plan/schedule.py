"""From a placement and an order of ops to a complete order of events."""

from collections.abc import Sequence

import numpy as np

from regal_jax.graph import MAX_DEVICES, Cluster, ComputationGraph, TransferModel

__all__ = ["insert_transfers", "needed_transfers"]


def needed_transfers(graph: ComputationGraph, placement: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(tensor [K], device [K])``: every copy that ``placement`` (``[N]``) makes necessary, exactly once."""
    pair, _ = _away(graph, placement)
    tensor, device = np.divmod(np.unique(pair), MAX_DEVICES)
    return tensor, device


def _away(graph: ComputationGraph, placement: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The data edges between devices, and for each the number ``tensor * D + device`` of its copy."""
    edge = np.flatnonzero(placement[graph.edge_op] != placement[graph.edge_producer])
    return graph.edge_tensor[edge] * MAX_DEVICES + placement[graph.edge_op[edge]], edge


def insert_transfers(
    graph: ComputationGraph,
    cluster: Cluster,
    placement: np.ndarray,
    op_order: Sequence[int] | np.ndarray,
    *,
    eager: bool | np.ndarray = False,
) -> np.ndarray:
    """Adds the transfers that ``op_order`` needs (blocking transfers; otherwise none are events).

    Args:
      graph: The graph.
      cluster: The cluster.
      placement: ``[N]`` device of each op.
      op_order: ``[N]`` op indices in an order that respects every edge.
      eager: Send a tensor as soon as it exists; otherwise just before its first reader on the device. An
        array ``[T]`` bool has a value for each tensor. Between two ops the former come first.

    Returns:
      ``[M]`` event ids, as `regal_jax.plan.replay` takes them.
    """
    order = np.asarray(op_order, dtype=np.int64)
    if cluster.transfer is not TransferModel.BLOCKING:
        return order
    position = np.empty(graph.num_ops, dtype=np.int64)
    position[order] = np.arange(len(order))
    pair, edge = _away(graph, np.asarray(placement))
    sent = np.broadcast_to(eager, graph.num_tensors)[graph.edge_tensor[edge]]
    before = np.where(sent, position[graph.edge_producer[edge]] + 1, position[graph.edge_op[edge]])
    soonest = np.lexsort([~sent, before])
    pair, before = pair[soonest], before[soonest]
    # A copy is for the first reader on its device. Edges are sorted by tensor and reader.
    first = np.sort(np.unique(pair, return_index=True)[1])
    tensor, device = np.divmod(pair[first], MAX_DEVICES)
    return np.insert(order, before[first], graph.num_ops + tensor * cluster.num_devices + device)
