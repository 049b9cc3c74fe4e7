"""Relations between the ops of a graph: closure, reduction, and one code per pair."""

import enum
from typing import Any, Final, NamedTuple

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.graph import ComputationGraph
from regal_jax.graph.topology import offsets, rows
from regal_jax.runtime.compiling import compiled, usable
from regal_jax.runtime.interrupts import check_interrupt, interruptible, uninterrupted

__all__ = [
    "SMALL",
    "Links",
    "Relation",
    "distinct_edges",
    "relation_matrix",
    "transitive_closure",
    "transitive_reduction",
]

_OPS_PER_CHECK: Final = 1024
SMALL: Final = 128
"""Number of ops up to which loading compiled loops takes longer than they save."""


class Relation(enum.IntEnum):
    """What op ``j`` is to op ``i``, which attends to it (docs/design.md, "Orders on one device")."""

    NONE = 0
    """The same op, or one of the two is padding."""
    REDUCED_PREDECESSOR = 1
    """``j -> i`` is an edge of the transitive reduction."""
    OTHER_PREDECESSOR = 2
    """``j -> i`` is another edge."""
    ANCESTOR = 3
    """``j`` is another ancestor of ``i``."""
    REDUCED_SUCCESSOR = 4
    """``i -> j`` is an edge of the transitive reduction."""
    OTHER_SUCCESSOR = 5
    """``i -> j`` is another edge."""
    DESCENDANT = 6
    """``j`` is another descendant of ``i``."""
    INCOMPARABLE = 7
    """Neither is an ancestor of the other."""


class Links(NamedTuple):
    """The data and control edges of a graph, each pair of ops once.

    Attributes:
      source: ``[E]`` int64, the op that goes first.
      target: ``[E]`` int64, ascending; among equal targets the sources ascend.
      offset: ``[N + 1]`` int64: op ``o`` has the predecessors ``source[offset[o]:offset[o + 1]]``.
    """

    source: np.ndarray
    target: np.ndarray
    offset: np.ndarray

    @property
    def successors(self) -> tuple[np.ndarray, np.ndarray]:
        """``(offset [N + 1], target [E])``."""
        return rows(self.source, self.target, len(self.offset) - 1)


def distinct_edges(graph: ComputationGraph) -> Links:
    """The `Links` of a graph; several tensors or control edges between two ops count once."""
    n = graph.num_ops
    pair = np.concatenate([
        graph.edge_op * n + graph.edge_producer,
        graph.control_target * n + graph.control_source,
    ])  # fmt: skip
    pair.sort()
    target, source = np.divmod(pair[np.diff(pair, prepend=-1) > 0], n)
    return Links(source, target, offsets(target, n))


@interruptible()
def transitive_closure(graph: ComputationGraph) -> np.ndarray:
    """``[N, N]`` bool: whether op ``j`` is an ancestor of op ``i``."""
    ancestors, _ = _ancestors(graph, distinct_edges(graph))
    return _unpacked(ancestors, graph.num_ops).astype(bool)


@interruptible()
def transitive_reduction(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
    """``(source, target)`` int64: the edges that no path of two or more edges replaces."""
    links = distinct_edges(graph)
    _, reduced = _ancestors(graph, links)
    return links.source[reduced], links.target[reduced]


@interruptible()
def relation_matrix(graph: ComputationGraph, links: Links | None = None) -> np.ndarray:
    """``[N, N]`` uint8: the `Relation` of op ``j``, the column, to op ``i``, the row.

    One byte replaces seven masks: every pair of different ops has exactly one relation.

    Args:
      graph: Any graph; residents are ops like others.
      links: Its `distinct_edges`, if already computed.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.ordering import relation_matrix
      >>> relation_matrix(generate("chain", 3, 0)).tolist()
      [[0, 4, 6], [1, 0, 4], [3, 1, 0]]

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", section 4.1.
    """
    check_kind("graph", graph, ComputationGraph)
    n, links = graph.num_ops, distinct_edges(graph) if links is None else links
    ancestors, reduced = _ancestors(graph, links)
    codes = _unpacked(ancestors, n)
    after = np.ascontiguousarray(codes.T)
    # In place, since the matrix is large: 7 for no relation, less 4 for ancestors, less 1 for descendants.
    codes *= np.uint8(Relation.INCOMPARABLE - Relation.ANCESTOR)
    codes += after
    np.subtract(np.uint8(Relation.INCOMPARABLE), codes, out=codes)
    kind = np.where(reduced, Relation.REDUCED_PREDECESSOR, Relation.OTHER_PREDECESSOR).astype(np.uint8)
    codes[links.target, links.source] = kind
    codes[links.source, links.target] = kind + np.uint8(3)  # The codes of successors are three more.
    np.fill_diagonal(codes, Relation.NONE)
    return codes


def _ancestors(graph: ComputationGraph, links: Links) -> tuple[np.ndarray, np.ndarray]:
    """Ancestors of every op as bits ``[N, ceil(N / 64)]`` uint64, and ``[E]`` bool, edges of the reduction.

    An edge is redundant if its source is an ancestor of another predecessor of its target.
    """
    n = graph.num_ops
    bits = np.zeros((n, -(-n // 64)), np.uint64)
    if n > SMALL and usable():
        find = uninterrupted(compiled(_ancestor_loops))
        return bits, find(bits, graph.topological_order, links.offset, links.source)
    word, bit = links.source >> 6, np.left_shift(np.uint64(1), (links.source & 63).astype(np.uint64))
    bounds, reduced = links.offset.tolist(), np.ones(len(links.source), bool)
    for step, o in enumerate(graph.topological_order.tolist()):
        if step % _OPS_PER_CHECK == 0:
            check_interrupt()
        edges = slice(bounds[o], bounds[o + 1])
        if edges.start == edges.stop:
            continue
        mine = bits[o]
        np.bitwise_or.reduce(bits[links.source[edges]], axis=0, out=mine)
        reduced[edges] = mine[word[edges]] & bit[edges] == 0
        np.bitwise_or.at(mine, word[edges], bit[edges])
    return bits, reduced


def _ancestor_loops(bits: Any, order: Any, offset: Any, source: Any) -> Any:
    """Sets the ``bits`` of `_ancestors`; returns which edges are of the reduction."""
    reduced, one = np.ones(len(source), np.bool_), np.uint64(1)
    for o in order:
        mine = bits[o]
        for e in range(offset[o], offset[o + 1]):
            theirs = bits[source[e]]
            for w in range(len(mine)):
                mine[w] |= theirs[w]
        for e in range(offset[o], offset[o + 1]):
            reduced[e] = (mine[source[e] >> 6] >> np.uint64(source[e] & 63)) & one == 0
        for e in range(offset[o], offset[o + 1]):
            mine[source[e] >> 6] |= one << np.uint64(source[e] & 63)
    return reduced


def _unpacked(bits: np.ndarray, n: int) -> np.ndarray:
    """``[N, N]`` uint8 of zeros and ones."""
    octets = bits.astype("<u8", copy=False).view(np.uint8)
    return np.unpackbits(octets, axis=1, count=n, bitorder="little")
