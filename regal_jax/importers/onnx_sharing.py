"""Values of an ONNX graph that share the buffer of another value when ONNX Runtime runs it on a CPU."""

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

from regal_jax.importers.onnx_nodes import kind_of
from regal_jax.importers.onnx_values import Value

__all__ = ["shared_buffers"]

_VIEWS: Final = {"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"}
"""Ops that return the buffer of their first input."""
_OVERWRITES: Final = {
    "Cast", "Celu", "Clip", "Elu", "HardSigmoid", "LeakyRelu", "LogSoftmax", "Relu", "ScatterElements",
    "Selu", "Shrink", "Sigmoid", "Softmax", "Softplus", "Softsign", "Tanh", "ThresholdedRelu", "Trilu",
}  # fmt: skip
"""Ops that overwrite their first input, if it has the same shape and element size and no later reader."""


def shared_buffers(
    nodes: Sequence[Any],
    reads: Sequence[Sequence[str]],
    results: Set[str],
    given: Set[str],
    values: Mapping[str, Value],
) -> dict[str, str]:
    """The values that share the buffer of another value in every order of the nodes.

    Args:
      nodes: The nodes, each after those that it reads from.
      reads: For each node the values that it reads.
      results: Outputs of the graph, which have buffers of their own in ONNX Runtime.
      given: Inputs and parameters, which it does not write over.
      values: Shape and type of each value.

    Returns:
      Value -> the value for which its buffer was made.
    """
    readers = Counter(value for row in reads for value in row)
    owner: dict[str, str] = {}
    # Values in buffers that must not be overwritten, since they have other readers or must stay unchanged.
    fixed = {*results, *given}
    for node in nodes:
        made: str = node.output[0] if node.output else ""
        source: str = node.input[0] if node.input else ""
        if not made or not source or made in results:
            continue
        base = owner.get(source, source)
        overwrites = (
            kind_of(node) in _OVERWRITES
            and readers[source] == 1
            and base not in fixed
            and source not in fixed
            and _same_size(values.get(made), values.get(source))
        )
        if overwrites or kind_of(node) in _VIEWS:
            owner[made] = base
            if base in fixed or source in fixed or readers[source] > 1:
                fixed |= {base, made}
    return owner


def _same_size(one: Value | None, other: Value | None) -> bool:
    return (
        one is not None
        and other is not None
        and one.exact
        and other.exact
        and (one.shape, one.item_bits) == (other.shape, other.item_bits)
    )
