"""Facts about a graph in the index of a corpus."""

from typing import Any

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.graph.arrays import fastest_runtimes, op_levels
from regal_jax.graph.fingerprint import topology_hash
from regal_jax.graph.units import TIME_UNITS

__all__ = ["depth_and_width", "graph_record"]


def graph_record(graph: ComputationGraph) -> dict[str, Any]:
    """Fingerprints and sizes of ``graph``, as JSON values."""
    depth, width = depth_and_width(graph)
    return {
        "topology_hash": topology_hash(graph),
        "content_hash": graph.content_hash,
        "ops": graph.num_ops,
        "tensors": graph.num_tensors,
        "edges": len(graph.edge_op),
        "control_edges": len(graph.control_source),
        "total_bytes": int(graph.tensor_bytes.sum()),
        "work_seconds": float(fastest_runtimes(graph).sum()) * TIME_UNITS[graph.time_unit],
        "depth": depth,
        "width": width,
    }


def depth_and_width(graph: ComputationGraph) -> tuple[int, int]:
    """Number of ops on the longest path, and in the largest layer.

    The layer of an op is the length, in edges, of the longest path to it.
    """
    counts = np.bincount(op_levels(graph))
    return len(counts), int(counts.max())
