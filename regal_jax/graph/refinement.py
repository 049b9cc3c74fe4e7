"""Colour refinement of ops and tensors (Weisfeiler and Leman), with colours of 64 bits."""

from typing import Final, TypeVar

import numpy as np

from regal_jax.graph.computation_graph import ComputationGraph

__all__ = ["AFTER", "BEFORE", "MADE", "OP", "OPERAND", "READ", "TENSOR", "WORD", "mix", "refine"]

WORD: Final = 2**64 - 1
READ, BEFORE, AFTER, MADE, OPERAND, OP, TENSOR = (0x9E3779B97F4A7C15 * (2 * i + 1) & WORD for i in range(7))
"""Odd numbers that keep the kinds of neighbours apart."""

_Words = TypeVar("_Words", int, np.ndarray)


def refine(graph: ComputationGraph, ops: np.ndarray, tensors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One round: every colour becomes that of itself and the multiset of its neighbours'.

    Args:
      graph: The graph.
      ops: ``[N]`` uint64, the colours of the ops.
      tensors: ``[T]`` uint64, those of the tensors.

    Returns:
      The new colours, in the same shapes. Neighbours of an op are the tensors that it reads or makes, and the
      ops before and after it by control edges; those of a tensor are its producer and its readers.
    """

    def add(into: np.ndarray, index: np.ndarray, colours: np.ndarray, kind: int, at: np.ndarray) -> None:
        # A sum modulo 2**64 does not depend on the order of the neighbours.
        np.add.at(into, index, mix(colours * np.uint64(kind))[at])

    new_ops, new_tensors = ops * np.uint64(OP), tensors * np.uint64(TENSOR)
    everything = np.arange(graph.num_tensors)
    add(new_ops, graph.edge_op, tensors, READ, graph.edge_tensor)
    add(new_ops, graph.tensor_op, tensors, MADE, everything)
    add(new_ops, graph.control_target, ops, BEFORE, graph.control_source)
    add(new_ops, graph.control_source, ops, AFTER, graph.control_target)
    add(new_tensors, everything, ops, MADE, graph.tensor_op)
    add(new_tensors, graph.edge_tensor, ops, OPERAND, graph.edge_op)
    return mix(new_ops), mix(new_tensors)


def mix(x: _Words) -> _Words:
    """A bijection of 64-bit words without structure: the finaliser of SplitMix64, for an int or an array."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & WORD
    return x ^ (x >> 31)
