"""From a placement and an order of ops to a complete order of events."""

from collections.abc import Sequence

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import PlanError
from regal_jax.graph import MAX_DEVICES, Cluster, ComputationGraph, TransferModel
from regal_jax.plan.replay import as_ids

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

    Raises:
      ConfigError: The graph or the cluster is of another kind.
      PlanError: ``placement`` or ``op_order`` has another length, or the latter does not have each op once.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    n, order, placement = graph.num_ops, as_ids("op_order", op_order), as_ids("placement", placement)
    if placement.shape != (n,):
        raise PlanError(f"placement has shape {placement.shape}, expected ({n},)")
    position = np.full(n, -1)
    if order.shape == (n,) and order.min() >= 0 and order.max() < n:
        position[order] = np.arange(n)
    if position.min() < 0:
        raise PlanError(f"op_order: give each of the {n} ops once")
    if cluster.transfer is not TransferModel.BLOCKING:
        return order
    pair, edge = _away(graph, placement)
    sent = np.broadcast_to(eager, graph.num_tensors)[graph.edge_tensor[edge]]
    before = np.where(sent, position[graph.edge_producer[edge]] + 1, position[graph.edge_op[edge]])
    soonest = np.lexsort([~sent, before])
    pair, before = pair[soonest], before[soonest]
    # A copy is for the first reader on its device. Edges are sorted by tensor and reader.
    first = np.sort(np.unique(pair, return_index=True)[1])
    tensor, device = np.divmod(pair[first], MAX_DEVICES)
    return np.insert(order, before[first], graph.num_ops + tensor * cluster.num_devices + device)
