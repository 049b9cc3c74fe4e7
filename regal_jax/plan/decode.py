"""The meaning of a chromosome, step by step on the host (docs/design.md, part 1, "Decoding")."""

import heapq

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.graph import Cluster, ComputationGraph, TransferModel, allowed_matrix
from regal_jax.plan.replay import check_placement

__all__ = ["decode_order", "decode_placement"]


def decode_placement(graph: ComputationGraph, cluster: Cluster, affinity: np.ndarray) -> np.ndarray:
    """Device of each op: the largest affinity among the allowed ones, lowest index on ties.

    Args:
      graph: The graph.
      cluster: The cluster.
      affinity: ``[N, D]`` keys; a colocation group uses its first op's row.

    Returns:
      ``[N]`` int64.

    Raises:
      ClusterError: An op or a colocation group has no device in this cluster.
    """
    usable = np.where(allowed_matrix(graph, cluster), np.asarray(affinity)[graph.colocation_leader], -1.0)
    return usable.argmax(axis=1)


def decode_order(
    graph: ComputationGraph,
    cluster: Cluster,
    placement: np.ndarray,
    priority: np.ndarray,
    transfer_priority: np.ndarray,
) -> np.ndarray:
    """Kahn's order: among the ready events the largest priority next, lowest event id on ties.

    Args:
      graph: The graph.
      cluster: The cluster.
      placement: ``[N]`` device of each op.
      priority: ``[N]`` keys of the computes.
      transfer_priority: ``[T, D]`` keys of the transfers; unused unless transfers are blocking.

    Returns:
      ``[M]`` event ids, as `replay` takes them.

    Raises:
      PlanError: ``placement`` is not valid.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    n, d = graph.num_ops, cluster.num_devices
    placement = np.asarray(placement, dtype=np.int64)
    check_placement(graph, cluster, placement)
    blocking = cluster.transfer is TransferModel.BLOCKING
    place = placement.tolist()
    key = np.concatenate([priority, np.asarray(transfer_priority).reshape(-1)]).tolist()
    waiting = (np.diff(graph.inputs[0]) + np.diff(graph.control_predecessors[0])).tolist()
    outputs, readers = graph.output_offset.tolist(), graph.consumer_offset.tolist()
    reader, control = graph.edge_op.tolist(), graph.control_target.tolist()
    controls = graph.control_offset.tolist()
    ready = [(-key[o], o) for o in range(n) if waiting[o] == 0]
    heapq.heapify(ready)
    order: list[int] = []

    def release(op: int) -> None:
        waiting[op] -= 1
        if waiting[op] == 0:
            heapq.heappush(ready, (-key[op], op))

    while ready:
        event = heapq.heappop(ready)[1]
        order.append(event)
        if event >= n:
            tensor, device = divmod(event - n, d)
            for o in reader[readers[tensor] : readers[tensor + 1]]:
                if place[o] == device:
                    release(o)
            continue
        for tensor in range(outputs[event], outputs[event + 1]):
            remote = set()
            for o in reader[readers[tensor] : readers[tensor + 1]]:
                if blocking and place[o] != place[event]:
                    remote.add(place[o])
                else:
                    release(o)
            for k in remote:
                transfer = n + tensor * d + k
                heapq.heappush(ready, (-key[transfer], transfer))
        for o in control[controls[event] : controls[event + 1]]:
            release(o)
    return np.array(order, dtype=np.int64)
