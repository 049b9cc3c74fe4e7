"""Facts about a graph in the index of a corpus."""

from typing import Any

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.graph.fingerprint import topology_hash
from regal_jax.graph.units import TIME_UNITS

__all__ = ["depth_and_width", "graph_record"]


def graph_record(graph: ComputationGraph) -> dict[str, Any]:
    """Fingerprints and sizes of ``graph``, as JSON values."""
    depth, width = depth_and_width(graph)
    runtime = graph.runtime if graph.runtime.ndim == 1 else graph.runtime.min(axis=1)
    return {
        "topology_hash": topology_hash(graph),
        "content_hash": graph.content_hash,
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "edges": len(graph.edge_op),
        "control_edges": len(graph.control_source),
        "total_bytes": int(graph.tensor_bytes.sum()),
        "work_seconds": float(runtime.sum()) * TIME_UNITS[graph.time_unit],
        "depth": depth,
        "width": width,
    }


def depth_and_width(graph: ComputationGraph) -> tuple[int, int]:
    """Number of ops on the longest path, and in the largest layer.

    The layer of an op is the length, in edges, of the longest path to it.
    """
    offset, tensor = graph.inputs
    control_offset, control = graph.control_predecessors
    producer, controls = graph.tensor_op[tensor].tolist(), control.tolist()
    bounds, control_bounds = offset.tolist(), control_offset.tolist()
    level = [0] * graph.num_ops
    for o in graph.topological_order.tolist():
        before = producer[bounds[o] : bounds[o + 1]] + controls[control_bounds[o] : control_bounds[o + 1]]
        level[o] = 1 + max((level[u] for u in before), default=-1)
    counts = np.bincount(level)
    return len(counts), int(counts.max())
