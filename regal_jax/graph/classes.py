"""`op_classes`: the ops of a graph that are alike, as those of repeated layers are."""

from typing import Final, NamedTuple

import numpy as np

from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.pairing import once_a_pair
from regal_jax.graph.refinement import OP, TENSOR, mix, refine
from regal_jax.graph.topology import rows

__all__ = ["OpClasses", "op_classes"]

_ROUNDS: Final = 6
"""An edge from op to op is two rounds, so that surroundings are the ops up to three edges away."""


class OpClasses(NamedTuple):
    """A partition of the ops. Classes have no order. Arrays are read-only.

    Attributes:
      of: ``[N]`` int64, the class of each op, from 0 to ``C - 1``.
      bounds: ``[C + 1]`` int64: class ``c`` has the ops ``ops[bounds[c]:bounds[c + 1]]``, at least one.
      ops: ``[N]`` int64, ascending in each class.
    """

    of: np.ndarray
    bounds: np.ndarray
    ops: np.ndarray

    @property
    def repeated(self) -> float:
        """Share of the ops whose class has others; 0 without ops."""
        sizes = np.diff(self.bounds)
        return float(sizes[sizes > 1].sum() / max(len(self.of), 1))


@once_a_pair
def op_classes(graph: ComputationGraph) -> OpClasses:
    """Classes of ops that have the same surroundings.

    Two ops are in one class if they have equal kinds, memory, and sizes of inputs and outputs, and if the
    same holds for all ops up to three edges away. Names, constraints and runtimes do not count: measured
    runtimes differ between equal ops. Ops at the same place of repeated layers are in one class, except in
    the first and the last of the layers.

    The classes do not depend on the order of ops: another order only numbers them differently.

    Args:
      graph: The graph.

    Returns:
      The partition. By chance, one pair of ops in 2**64 with different surroundings is in one class.

    References:
      Shervashidze et al. 2011, "Weisfeiler-Lehman Graph Kernels", JMLR 12, section 2.
    """
    n = graph.num_ops
    kinds = np.unique(np.array(graph.op_kinds, dtype=str), return_inverse=True)[1].reshape(n)
    ops = mix(mix(kinds.astype(np.uint64) + np.uint64(OP)) + graph.temp_bytes.astype(np.uint64))
    flags = 2 * graph.tensor_keep.astype(np.uint64) + graph.tensor_resident.astype(np.uint64)
    tensors = mix(mix(flags + np.uint64(TENSOR)) + graph.tensor_bytes.astype(np.uint64))
    for _ in range(_ROUNDS):
        if len(np.unique(ops)) == n:
            break  # Classes only split further. Most random graphs end here early.
        ops, tensors = refine(graph, ops, tensors)
    colours, of = np.unique(ops, return_inverse=True)
    of = of.reshape(n).astype(np.int64)
    classes = OpClasses(of, *rows(of, np.arange(n), len(colours)))
    for each in classes:
        each.setflags(write=False)
    return classes
