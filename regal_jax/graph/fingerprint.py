"""`topology_hash`: equal for graphs that differ only in names, costs and order."""

import hashlib

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.refinement import AFTER, BEFORE, MADE, OP, OPERAND, READ, TENSOR, WORD, mix, refine

__all__ = ["topology_hash"]


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
    check_kind("graph", graph, ComputationGraph)
    ops, tensors = _unfold(graph)
    classes = 0
    while True:
        finer = len(np.unique(ops)) + len(np.unique(tensors))
        # Isomorphic graphs stop after the same round: the number of classes does not depend on labels.
        if finer <= classes:
            break
        classes = finer
        ops, tensors = refine(graph, ops, tensors)
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
    above = [OP] * graph.num_ops
    below = [OP] * graph.num_ops
    readers = [TENSOR] * graph.num_tensors
    inputs, followers = [[] for _ in above], [[] for _ in above]
    for t, u, v in zip(graph.edge_tensor.tolist(), producer, consumer, strict=True):
        inputs[v].append((t, u))
    before = [[] for _ in above]
    for u, v in zip(source, target, strict=True):
        before[v].append(u)
        followers[u].append(v)
    order = graph.topological_order.tolist()
    for v in order:
        total = above[v] + sum(mix(above[u] * READ & WORD) for _, u in inputs[v])
        total += sum(mix(above[u] * BEFORE & WORD) for u in before[v])
        above[v] = mix(total & WORD)
    outputs = graph.output_offset.tolist()
    for v in reversed(order):
        total = below[v] + sum(mix(below[w] * AFTER & WORD) for w in followers[v])
        for t in range(outputs[v], outputs[v + 1]):
            readers[t] = mix(readers[t] & WORD)
            total += mix(readers[t] * MADE & WORD)
        below[v] = mix(total & WORD)
        reader = mix(below[v] * OPERAND & WORD)
        for t, _ in inputs[v]:
            readers[t] += reader
    ops = np.array(above, np.uint64) * np.uint64(BEFORE) + np.array(below, np.uint64)
    return mix(ops), np.array(readers, np.uint64)
