"""Nodes with bodies (`If`, `Loop`, `Scan`): iterations, shapes of results, and constants in bodies."""

import math
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from regal_jax.importers.onnx_nodes import kind_of, subgraphs
from regal_jax.importers.onnx_values import Value, values_of

__all__ = ["complete_results", "constants_of", "iterations"]

_MOST_TRIPS: Final = 2**31
"""Exporters give loops that end by their condition more iterations than can be."""


def iterations(node: Any, values: Mapping[str, Value], otherwise: int) -> int:
    """Runs of the body of a `Loop`.

    Args:
      node: The node.
      values: Shapes and types of all values in scope.
      otherwise: The answer where the number is not a constant, or the loop may end before.
    """
    count = values[node.input[0]].number if node.input and node.input[0] in values else None
    if count is None or not 0 <= count < _MOST_TRIPS or not all(map(_goes_on(values), node.input[1:2])):
        return otherwise
    body = next(subgraphs(node), None)
    if body is None or len(body.input) < 2 or not body.output:
        return otherwise
    name, makers = body.output[0].name, {v: inner for inner in body.node for v in inner.output}
    while name in makers and kind_of(makers[name]) == "Identity" and makers[name].input:
        name = makers.pop(name).input[0]
    scope = ChainMap(values_of(body), dict(values))
    return count if name == body.input[1].name or _goes_on(scope)(name) else otherwise


def _goes_on(values: Mapping[str, Value]) -> Any:
    return lambda name: not name or (name in values and bool(values[name].number))


def complete_results(graph: Any, inferred: Any, loop_trips: int) -> bool:
    """Writes dimensions of results of `Loop` and `If` that shape inference leaves open into ``graph``.

    The state of a `Loop` has the shape that its body gives it, and other results have a row for each
    iteration. An `If` counts with the largest result of a branch.

    Args:
      graph: A graph.
      inferred: The same with inferred shapes.
      loop_trips: Iterations of each `Loop` whose number is not in the model.

    Returns:
      Whether a dimension was written, so that others may follow from it.
    """
    return _complete(graph, inferred, {}, loop_trips)


def _complete(graph: Any, inferred: Any, outside: Any, loop_trips: int) -> bool:
    values = ChainMap(values_of(inferred), outside)
    infos = {i.name: i for i in (*inferred.value_info, *inferred.output)}
    known: dict[str, list[int | None]] = {}
    changed = False
    for node, made in zip(graph.node, inferred.node, strict=True):
        bodies = list(subgraphs(made))
        for body, twin in zip(subgraphs(node), bodies, strict=True):
            changed = _complete(body, twin, values, loop_trips) or changed
        if kind_of(node) == "Loop" and bodies:
            carried, trips = len(node.input) - 2, iterations(made, values, loop_trips)
            for port, (name, info) in enumerate(zip(node.output, bodies[0].output[1:], strict=False)):
                if name and _has_shape(info):
                    known[name] = [trips] * (port >= carried) + _dims(info)
        elif kind_of(node) == "If" and bodies:
            for port, name in enumerate(node.output):
                results = [body.output[port] for body in bodies if port < len(body.output)]
                if len(results) == len(bodies) and all(map(_has_shape, results)):
                    known[name] = _largest([_dims(info) for info in results])
    for name, dims in known.items():
        changed = _write(graph, name, dims, infos.get(name)) or changed
    return changed


def _has_shape(info: Any) -> bool:
    return info.type.HasField("tensor_type") and info.type.tensor_type.HasField("shape")


def _dims(info: Any) -> list[int | None]:
    dims = info.type.tensor_type.shape.dim
    return [d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None for d in dims]


def _largest(shapes: list[list[int | None]]) -> list[int | None]:
    """The shape of most elements, if all have one rank; else no shape."""
    if len({len(shape) for shape in shapes}) > 1 or any(None in shape for shape in shapes):
        return []
    return max(shapes, key=lambda shape: math.prod(size or 0 for size in shape))


def _write(graph: Any, name: str, dims: list[int | None], info: Any) -> bool:
    """Writes those of ``dims`` that ``info``, the inferred type, lacks; whether there were any."""
    if info is None or not info.type.HasField("tensor_type"):
        return False
    inferred = _dims(info) if _has_shape(info) else [None] * len(dims)
    open_ = [k for k, (old, new) in enumerate(zip(inferred, dims, strict=False)) if old is None is not new]
    if len(inferred) != len(dims) or not open_:
        return False
    target = next((i for i in (*graph.value_info, *graph.output) if i.name == name), None)
    if target is None:
        target = graph.value_info.add(name=name)
    before = _dims(target) if _has_shape(target) else []
    if len(before) == len(dims) and all(before[k] is not None for k in open_):
        return False  # It is there, and inference ignores it.
    target.type.CopyFrom(info.type)
    shape = target.type.tensor_type.shape
    while len(shape.dim) < len(dims):
        shape.dim.add()
    for k in open_:
        shape.dim[k].dim_value = dims[k]
    return True


def constants_of(node: Any) -> Iterator[tuple[str, Value]]:
    """The initializers and constants in the bodies of a node, and in the bodies of nodes in these."""
    for body in subgraphs(node):
        values = values_of(body)
        names = [tensor.name for tensor in body.initializer]
        names += [tensor.values.name for tensor in body.sparse_initializer]
        names += [v for inner in body.node if kind_of(inner) == "Constant" for v in inner.output[:1]]
        yield from ((name, values[name]) for name in names if name in values)
        for inner in body.node:
            yield from constants_of(inner)
