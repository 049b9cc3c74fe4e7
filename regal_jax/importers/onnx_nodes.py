"""The nodes of an ONNX model: kinds, attributes and bodies, the values that they read, and the calls of local
functions that make them."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from regal_jax.errors import FormatError

__all__ = ["attribute", "callers", "function_key", "kind_of", "node_reads", "subgraphs", "version"]


def kind_of(node: Any) -> str:
    """The type of a node, after its domain unless that is ONNX's own, as in ``"com.microsoft.Gelu"``."""
    domain = _domain(node)
    return f"{domain}.{node.op_type}" if domain else node.op_type


def version(model: Any) -> int:
    """Version of ONNX's own ops in a model."""
    return max((o.version for o in model.opset_import if _domain(o) == ""), default=1)


def attribute(node: Any, name: str, default: Any) -> Any:
    """The attribute of a node: whole numbers, a whole number, or a text in bytes."""
    for each in node.attribute:
        if each.name == name:
            if each.ints:
                return list(each.ints)
            return each.i if each.HasField("i") else each.s
    return default


def subgraphs(node: Any) -> Iterator[Any]:
    """The bodies of a node: none, unless it is an `If`, `Loop`, `Scan` or the like."""
    for each in node.attribute:
        if each.HasField("g"):
            yield each.g
        yield from each.graphs


def node_reads(node: Any) -> list[str]:
    """Names of the values that a node reads, including those that its bodies read from outside."""
    names = [value for value in node.input if value]
    for body in subgraphs(node):
        inside = {i.name for i in body.input} | {t.name for t in body.initializer}
        inside |= {t.values.name for t in body.sparse_initializer}
        inside |= {o for inner in body.node for o in inner.output}
        used = [value for inner in body.node for value in node_reads(inner)] + [o.name for o in body.output]
        names += [value for value in used if value not in inside]
    return list(dict.fromkeys(names))


def callers(model: Any, count: int) -> np.ndarray:
    """``[count]`` int64: for each node of the inlined graph the node of the model from which it is made.

    Args:
      model: A ``ModelProto``. The nodes of a local function take the place of each node that calls it,
        in order.
      count: Number of nodes that the graph has after its local functions have been inlined.

    Raises:
      FormatError: The nodes of the functions do not add up to ``count``.
    """
    functions = {function_key(f, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(node: Any) -> int:
        key = function_key(node, node.op_type)
        if key not in functions:
            return 1
        if key not in sizes:
            sizes[key] = sum(map(size, functions[key].node))
        return sizes[key]

    made = np.repeat(np.arange(len(model.graph.node)), [size(node) for node in model.graph.node])
    if len(made) != count:
        raise FormatError(
            f"the ONNX model has {len(made)} nodes with its local functions inlined, but onnx makes {count}; "
            "inline them with onnx.inliner.inline_local_functions"
        )
    return made


def function_key(item: Any, name: str) -> tuple[str, str, str]:
    """A key of a local function and of the nodes that call it."""
    return _domain(item), name, item.overload


def _domain(item: Any) -> str:
    return "" if item.domain == "ai.onnx" else item.domain
