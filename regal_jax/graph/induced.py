"""The graph of some of the ops of a graph."""

import dataclasses

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import GraphError
from regal_jax.graph.computation_graph import ComputationGraph

__all__ = ["induced", "without_residents"]


def induced(graph: ComputationGraph, ops: np.ndarray, *, name: str | None = None) -> ComputationGraph:
    """The ops that are marked, their outputs, and the edges between them.

    A path that leads through an op that is not marked is lost.

    Args:
      graph: The graph.
      ops: ``[N]`` bool, at least one of them true.
      name: Name of the result; by default that of ``graph``.

    Raises:
      GraphError: ``ops`` has another shape, or marks no op.
    """
    check_kind("graph", graph, ComputationGraph)
    ops = np.asarray(ops, bool)
    if ops.shape != (graph.num_ops,) or not ops.any():
        raise GraphError(
            f"graph {graph.name!r}: ops has shape {ops.shape} and marks {int(ops.sum())} ops; give "
            f"({graph.num_ops},) with at least one"
        )
    kept = np.flatnonzero(ops)
    number, tensors = np.cumsum(ops) - 1, ops[graph.tensor_op]
    tensor_number = np.cumsum(tensors) - 1
    edges = tensors[graph.edge_tensor] & ops[graph.edge_op]
    controls = ops[graph.control_source] & ops[graph.control_target]
    return dataclasses.replace(
        graph,
        name=graph.name if name is None else name,
        op_names=tuple(graph.op_names[o] for o in kept),
        op_kinds=tuple(graph.op_kinds[o] for o in kept),
        runtime=graph.runtime[kept],
        temp_bytes=graph.temp_bytes[kept],
        allowed_devices=tuple(graph.allowed_devices[o] for o in kept),
        colocation_group=tuple(graph.colocation_group[o] for o in kept),
        tensor_op=number[graph.tensor_op[tensors]],
        tensor_bytes=graph.tensor_bytes[tensors],
        tensor_keep=graph.tensor_keep[tensors],
        edge_tensor=tensor_number[graph.edge_tensor[edges]],
        edge_op=number[graph.edge_op[edges]],
        control_source=number[graph.control_source[controls]],
        control_target=number[graph.control_target[controls]],
        resident=graph.resident[kept],
    )


def without_residents(graph: ComputationGraph) -> ComputationGraph:
    """The ops that compute: without residents, and without the op of kind ``start`` that waits for them.

    For cost models of runtimes alone. Parameters and inputs are then available on every device.

    Args:
      graph: The graph.

    Raises:
      GraphError: No other op is left.
    """
    check_kind("graph", graph, ComputationGraph)
    start = np.array([kind == "start" for kind in graph.op_kinds]) & ~graph.runtime.reshape(
        graph.num_ops, -1
    ).any(axis=1)
    return induced(graph, ~(graph.resident | start))
