"""The nodes of an ONNX model: the values that they read, and the calls of local functions that make them."""

from typing import Any

import numpy as np

from regal_jax.errors import FormatError
from regal_jax.importers.onnx_shapes import subgraphs

__all__ = ["callers", "node_reads"]


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
    functions = {_key(f, f.name): f for f in model.functions}
    sizes: dict[tuple[str, str, str], int] = {}

    def size(node: Any) -> int:
        key = _key(node, node.op_type)
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


def _key(item: Any, name: str) -> tuple[str, str, str]:
    domain = "" if item.domain == "ai.onnx" else item.domain
    return domain, name, item.overload
