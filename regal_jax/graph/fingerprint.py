"""`topology_hash`: equal for graphs that differ only in names, costs and order."""

import hashlib
from typing import Final, TypeVar

import numpy as np

from regal_jax.graph.computation_graph import ComputationGraph

__all__ = ["topology_hash"]

_WORD: Final = 2**64 - 1
_READ, _BEFORE, _AFTER, _MADE, _OPERAND, _OP, _TENSOR = (
    0x9E3779B97F4A7C15 * (2 * i + 1) & _WORD for i in range(7)
)
"""Odd numbers that keep the kinds of neighbours apart."""

_Words = TypeVar("_Words", int, np.ndarray)


def topology_hash(graph: ComputationGraph) -> str:
    """A fingerprint of which op reads what from which op, invariant under relabelling.

    Ops, tensors, data and control edges count; names, kinds, sizes, runtimes, constraints, `tensor_keep` and
    the order of ops, of an op's outputs and of its inputs do not. The hash combines the colours of a
    directed Weisfeiler-Leman refinement of ops and tensors. The first colours summarise all paths to and from
    each op; refinement ends when no class splits any more.

    Isomorphic graphs always have equal hashes, so graphs with different hashes differ. The converse has two
    exceptions: graphs that colour refinement cannot tell apart (an op reading from two others around one ring
    of six, or around two rings of three), and chance collisions of 64-bit colours, for a pair of graphs of a
    thousand ops about once in 1e13. The number of distinct hashes bounds that of topologies from below.

    Args:
      graph: The graph.

    Returns:
      32 hexadecimal digits.

    References:
      Shervashidze et al. 2011, "Weisfeiler-Lehman Graph Kernels", JMLR 12, section 2.
    """
    ops, tensors = _unfold(graph)
    classes = 0
    while True:
        finer = len(np.unique(ops)) + len(np.unique(tensors))
        # Isomorphic graphs stop after the same round: the number of classes does not depend on labels.
        if finer <= classes:
            break
        classes = finer
        ops, tensors = _refine(graph, ops, tensors)
    counts = np.array([len(x) for x in (ops, tensors, graph.edge_op, graph.control_source)], dtype="<u8")
    digest = hashlib.sha256(b"regal_jax topology 1\0" + counts.tobytes())
    for colours in (ops, tensors):
        digest.update(np.sort(colours).astype("<u8").tobytes())
    return digest.hexdigest()[:32]


def _unfold(graph: ComputationGraph) -> tuple[np.ndarray, np.ndarray]:
    """Colours of ops and tensors by all paths that lead to and from them.

    Refinement from equal colours would give the same classes, but advances one edge a round and so needs as
    many rounds as the graph is deep.
    """
    producer, consumer = graph.edge_producer.tolist(), graph.edge_op.tolist()
    source, target = graph.control_source.tolist(), graph.control_target.tolist()
    above = [_OP] * graph.num_ops
    below = [_OP] * graph.num_ops
    readers = [_TENSOR] * graph.num_tensors
    inputs, followers = [[] for _ in above], [[] for _ in above]
    for t, u, v in zip(graph.edge_tensor.tolist(), producer, consumer, strict=True):
        inputs[v].append((t, u))
    before = [[] for _ in above]
    for u, v in zip(source, target, strict=True):
        before[v].append(u)
        followers[u].append(v)
    order = graph.topological_order.tolist()
    for v in order:
        total = above[v] + sum(_mix(above[u] * _READ & _WORD) for _, u in inputs[v])
        total += sum(_mix(above[u] * _BEFORE & _WORD) for u in before[v])
        above[v] = _mix(total & _WORD)
    outputs = graph.output_offset.tolist()
    for v in reversed(order):
        total = below[v] + sum(_mix(below[w] * _AFTER & _WORD) for w in followers[v])
        for t in range(outputs[v], outputs[v + 1]):
            readers[t] = _mix(readers[t] & _WORD)
            total += _mix(readers[t] * _MADE & _WORD)
        below[v] = _mix(total & _WORD)
        reader = _mix(below[v] * _OPERAND & _WORD)
        for t, _ in inputs[v]:
            readers[t] += reader
    ops = np.array(above, np.uint64) * np.uint64(_BEFORE) + np.array(below, np.uint64)
    return _mix(ops), np.array(readers, np.uint64)


def _refine(graph: ComputationGraph, ops: np.ndarray, tensors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One round: every colour becomes that of itself and the multiset of its neighbours'."""

    def add(into: np.ndarray, index: np.ndarray, colours: np.ndarray, kind: int, at: np.ndarray) -> None:
        # A sum modulo 2**64 does not depend on the order of the neighbours.
        np.add.at(into, index, _mix(colours * np.uint64(kind))[at])

    new_ops, new_tensors = ops * np.uint64(_OP), tensors * np.uint64(_TENSOR)
    everything = np.arange(graph.num_tensors)
    add(new_ops, graph.edge_op, tensors, _READ, graph.edge_tensor)
    add(new_ops, graph.tensor_op, tensors, _MADE, everything)
    add(new_ops, graph.control_target, ops, _BEFORE, graph.control_source)
    add(new_ops, graph.control_source, ops, _AFTER, graph.control_target)
    add(new_tensors, everything, ops, _MADE, graph.tensor_op)
    add(new_tensors, graph.edge_tensor, ops, _OPERAND, graph.edge_op)
    return _mix(new_ops), _mix(new_tensors)


def _mix(x: _Words) -> _Words:
    """A bijection of 64-bit words without structure: the finaliser of SplitMix64, for an int or an array."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _WORD
    return x ^ (x >> 31)
