"""Checks of an ONNX model before the `onnx` package infers its shapes.

Shape inference is written in C++. It ends the process, or does not come to an end, on some damaged models.
"""

from collections.abc import Iterable
from typing import Any, Final

from regal_jax.checks import whole
from regal_jax.errors import FormatError
from regal_jax.importers.onnx_nodes import attribute, function_key, kind_of, subgraphs

__all__ = ["check_nodes", "check_values", "vector_lengths"]

_MOST_DIMENSIONS: Final = 2**10
_MOST_NODES: Final = 2**22
_DEPTH: Final = 100
"""Calls of local functions within each other that `onnx` accepts."""


def check_nodes(model: Any) -> None:
    """Refuses a model whose shapes cannot be inferred safely.

    Args:
      model: A ``ModelProto``.

    Raises:
      FormatError: A name is no text, a tensor has none, an attribute or a shape has an impossible value, or
        the model has too many nodes with its local functions inlined.
    """
    _check_names(model.graph)
    for function in model.functions:
        check_values(function.node, {})
    check_values(model.graph.node, vector_lengths(model.graph))
    count = _inlined_nodes(model)
    if count > _MOST_NODES:
        raise FormatError(
            f"the ONNX model has {count} nodes with its local functions inlined, more than {_MOST_NODES}; "
            "is the file damaged?"
        )


def _check_names(graph: Any) -> None:
    """Refuses names that are not text (protobuf returns them as bytes) and tensors without a name."""
    tensors = [*graph.input, *graph.output, *graph.initializer, *(t.values for t in graph.sparse_initializer)]
    if not all(tensor.name for tensor in tensors):
        raise FormatError(f"ONNX graph {graph.name!r}: an input, output or initializer has no name")
    texts = [graph.name, *(tensor.name for tensor in tensors)]
    for node in graph.node:
        texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
        for body in subgraphs(node):
            _check_names(body)
    for info in graph.input:
        texts += [dim.dim_param for dim in info.type.tensor_type.shape.dim]
    for text in texts:
        if not isinstance(text, str):
            raise FormatError(f"ONNX name {text!r} is not UTF-8 text; is the file damaged?")


def check_values(nodes: Iterable[Any], lengths: dict[str, int]) -> None:
    """Refuses values with which shape inference reads memory that is not its own, or makes endless shapes.

    Args:
      nodes: The nodes.
      lengths: Sizes of tensors of one axis that are in scope.

    Raises:
      FormatError: A node has such a value.
    """
    for node in nodes:
        reason = _impossible(node, lengths)
        if reason:
            raise FormatError(
                f"ONNX node {node.name or node.op_type!r}: {reason}; check the model with onnx.checker"
            )
        for body in subgraphs(node):
            check_values(body.node, {**lengths, **vector_lengths(body)})


def _impossible(node: Any, lengths: dict[str, int]) -> str:
    """What is wrong with a node, ``""`` if nothing is."""
    for name in ("axis", "batch_dims"):
        axis = whole(attribute(node, name, 0))
        if axis is not None and abs(axis) > _MOST_DIMENSIONS:
            return f"its {name} is {axis}, and no tensor has so many dimensions"
    kind = kind_of(node)
    if kind == "GatherND" and (whole(attribute(node, "batch_dims", 0)) or 0) < 0:
        return "its batch_dims is negative"
    parts = whole(attribute(node, "num_outputs", None))
    if kind == "Split" and parts is not None and parts != len(node.output):
        return f"its num_outputs is {parts}, and it has {len(node.output)} outputs"
    if kind == "Expand" and len(node.input) > 1 and lengths.get(node.input[1], 0) > _MOST_DIMENSIONS:
        return f"it reads a shape of {lengths[node.input[1]]} dimensions"
    return ""


def vector_lengths(graph: Any) -> dict[str, int]:
    """Sizes of the inputs, initializers and declared or inferred values of one axis."""
    infos = (*graph.input, *graph.value_info)
    found = {i.name: i.type.tensor_type.shape.dim[0].dim_value for i in infos if _is_vector(i)}
    return found | {t.name: t.dims[0] for t in graph.initializer if len(t.dims) == 1}


def _is_vector(info: Any) -> bool:
    return info.type.HasField("tensor_type") and len(info.type.tensor_type.shape.dim) == 1


def _inlined_nodes(model: Any) -> int:
    """Number of nodes, those of bodies included, with local functions inlined."""
    functions = {function_key(f, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def total(nodes: Iterable[Any], depth: int) -> int:
        return sum(size(node, depth) for node in nodes)

    def size(node: Any, depth: int) -> int:
        key = function_key(node, node.op_type)
        if key not in functions or depth > _DEPTH:
            return 1 + sum(total(body.node, depth) for body in subgraphs(node))
        if key not in sizes:
            sizes[key] = 1  # Of a function that calls itself.
            sizes[key] = total(functions[key].node, depth + 1)
        return sizes[key]

    return total(model.graph.node, 0)
