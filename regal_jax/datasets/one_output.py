"""Graphs whose ops have one output each, as in most random families."""

import numpy as np

from regal_jax.graph import ComputationGraph

__all__ = ["one_output_graph"]


def one_output_graph(
    name: str,
    edges: np.ndarray,
    runtime: np.ndarray,
    size: np.ndarray,
    *,
    temp_bytes: np.ndarray | None = None,
) -> ComputationGraph:
    """A graph of ``N`` ops ``op0``, ``op1``, ... with one output each, which the edges ``[E, 2]`` read."""
    n, none = len(runtime), np.zeros(0, dtype=np.int64)
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    return ComputationGraph(
        name=name,
        op_names=tuple(f"op{o}" for o in range(n)),
        op_kinds=("",) * n,
        runtime=runtime,
        temp_bytes=np.zeros(n, dtype=np.int64) if temp_bytes is None else temp_bytes,
        allowed_devices=(None,) * n,
        colocation_group=(None,) * n,
        tensor_op=np.arange(n),
        tensor_bytes=size.astype(np.int64),
        tensor_keep=np.zeros(n, dtype=bool),
        edge_tensor=edges[:, 0],
        edge_op=edges[:, 1],
        control_source=none,
        control_target=none,
        time_unit="us",
    )
