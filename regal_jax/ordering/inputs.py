"""The inputs of Topoformer, computed from graphs on the host."""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.checks import check_kind, check_whole
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.ordering.config import TopoformerConfig
from regal_jax.ordering.eigenvectors import laplacian_eigenvectors
from regal_jax.ordering.relations import SMALL, Links, distinct_edges, relation_matrix
from regal_jax.runtime.compiling import only_borrows, run_loops
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["FEATURES", "OrderInputs", "make_order_inputs"]

FEATURES: Final = (
    "output cost",
    "parameter cost",
    "in-degree",
    "out-degree",
    "fewest hops from a source",
    "most hops from a source",
    "fewest hops to a target",
    "most hops to a target",
)
"""Names of the features of an op, in their order."""

_SECONDS: Final = 1e-6
"""Interpreted loops: seconds per edge."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OrderInputs:
    """``B`` graphs, padded to ``N`` ops with zeros.

    `make_order_inputs` returns NumPy arrays on the host; for repeated use, call ``jax.device_put`` once.

    Attributes:
      features: ``[B, N, 8]`` float32 from 0 to 1, see `FEATURES`.
      spectral: ``[B, N, K]`` float32, eigenvectors of the Laplacian (`TopoformerConfig.eigenvectors`), of
        length 1. The entry of largest magnitude of each is positive.
      relations: ``[B, N, N]`` uint8, the `Relation` of the op of the column to that of the row.
      mask: ``[B, N]`` bool, false for padding.
      edges: ``[B, E, 2]`` int32, the ops that edges lead to, and those they come from; ``N`` in padding.
        ``None`` for none. With edges the networks compute attention in the form for CPUs, which has the same
        results up to rounding.
    """

    features: jax.Array
    spectral: jax.Array
    relations: jax.Array
    mask: jax.Array
    edges: jax.Array | None = None


@interruptible()
def make_order_inputs(
    graphs: Sequence[ComputationGraph],
    config: TopoformerConfig,
    ops: int | None = None,
    *,
    edges: bool = False,
) -> OrderInputs:
    """Computes the features and relations of graphs, as NumPy arrays.

    Args:
      graphs: ``B`` graphs, at least one.
      config: Config of the network, which sets the number of eigenvectors.
      ops: ``N``, the padded size, such as ``Bucket.of(graph).ops``; ``None`` for that of the largest graph.
      edges: List the edges as well: for networks that run on a CPU and are not trained.

    Raises:
      ConfigError: No graph, or one with more than ``ops`` ops.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.ordering import TopoformerConfig, make_order_inputs
      >>> inputs = make_order_inputs([generate("chain", 3, 0)], TopoformerConfig(eigenvectors=2), ops=4)
      >>> inputs.features[0, :, 5].tolist(), inputs.mask[0].tolist()
      ([0.0, 0.5, 1.0, 0.0], [True, True, True, False])

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix C.5.
    """
    check_kind("graphs", graphs, Iterable)
    graphs = list(graphs)
    if not graphs:
        raise ConfigError("order inputs: no graphs; give at least one")
    for graph in graphs:
        check_kind("graphs", graph, ComputationGraph)
    largest = max(graphs, key=lambda graph: graph.num_ops)
    n = largest.num_ops if ops is None else check_whole("order inputs: ops", ops, 1)
    if largest.num_ops > n:
        raise ConfigError(
            f"order inputs: graph {largest.name!r} has {largest.num_ops} ops, more than {n}; give more ops, "
            "or leave them out"
        )
    b = len(graphs)
    features = np.zeros((b, n, len(FEATURES)), np.float32)
    spectral = np.zeros((b, n, config.eigenvectors), np.float32)
    relations, mask = np.zeros((b, n, n), np.uint8), np.zeros((b, n), np.bool_)
    every = [distinct_edges(graph) for graph in graphs]
    for row, (graph, links) in enumerate(zip(graphs, every, strict=True)):
        check_interrupt()
        size = graph.num_ops
        features[row, :size] = _features(graph, links)
        spectral[row, :size] = laplacian_eigenvectors(links, config.eigenvectors)
        relations[row, :size, :size] = relation_matrix(graph, links)
        mask[row, :size] = True
    arrays: Any = (features, spectral, relations, mask, _listed(every, n) if edges else None)
    return OrderInputs(*arrays)


def _listed(links: Sequence[Links], ops: int) -> np.ndarray:
    """``[B, E, 2]`` int32 edges; ``E`` is ``ops`` times a power of two, so that few programs serve all."""
    most = max(len(each.source) for each in links)
    size = ops << (-(-most // ops) - 1).bit_length() if most else ops
    edges = np.full((len(links), size, 2), ops, np.int32)
    for row, each in zip(edges, links, strict=True):
        row[: len(each.source)] = np.stack([each.target, each.source], axis=1)
    return edges


def _features(graph: ComputationGraph, links: Links) -> np.ndarray:
    """``[N, 8]`` float64, each column divided by its largest value."""
    n = graph.num_ops
    output = np.zeros(n, np.int64)
    np.add.at(output, graph.tensor_op, graph.tensor_bytes)
    order = graph.topological_order
    seconds = _SECONDS * (n + len(links.source)) if n <= SMALL else math.inf
    offset, successor = links.successors
    zeros = np.zeros((2, n), np.int64)
    ahead = run_loops(_hops, *zeros, order, links.offset, links.source, seconds=seconds)
    behind = run_loops(_hops, *zeros, order[::-1], offset, successor, seconds=seconds)
    degrees = np.diff(links.offset), np.diff(offset)
    columns = np.array([output, graph.temp_bytes, *degrees, *ahead, *behind], np.float64)
    largest = columns.max(axis=1, keepdims=True)
    return (columns / np.where(largest > 0, largest, 1)).T


@only_borrows
def _hops(fewest: Any, most: Any, order: Any, offset: Any, neighbour: Any) -> Any:
    """Fewest and most edges to each op from ops without neighbours; ``order`` has neighbours first."""
    for o in order:
        for e in range(offset[o], offset[o + 1]):
            other = neighbour[e]
            if e == offset[o] or fewest[other] + 1 < fewest[o]:
                fewest[o] = fewest[other] + 1
            most[o] = max(most[o], most[other] + 1)
    return fewest, most
