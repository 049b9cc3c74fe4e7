"""The shape and type of every value of an ONNX model, by the `onnx` package's own shape inference."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from regal_jax.checks import shown, whole
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph.validation import MAX_BYTES
from regal_jax.importers.onnx_bodies import complete_results
from regal_jax.importers.onnx_checks import check_nodes, check_values, vector_lengths
from regal_jax.importers.onnx_nodes import kind_of, subgraphs, version
from regal_jax.importers.onnx_values import Value, import_onnx, values_of

__all__ = ["infer_values"]

# Larger initializers cannot be shapes, and copying them costs memory.
_SHAPE_ELEMENTS: Final = 1024
_LONG: Final = 2**16
_VERY_LONG: Final = 2**24
"""Sizes of tensors of one axis from which data propagation takes noticeable time, and gigabytes of memory."""
_EXPAND_OF_UNKNOWN_RANK: Final = 13
"""Version of ONNX's ops from which the length of an unknown shape tells `Expand` nothing."""
_HIDDEN: Final = "regal_jax.hidden"
"""A domain that shape inference does not know."""


def infer_values(
    model: Any, dims: Mapping[str, int], loop_trips: int = 1
) -> tuple[Any, dict[str, Value], dict[str, str], str]:
    """Infers all shapes.

    Args:
      model: A ``ModelProto``; not changed.
      dims: Symbolic dimension -> size.
      loop_trips: Iterations of each `Loop` whose number is not in the model.

    Returns:
      The graph with inferred shapes, in its bodies too, and without large initializers; shape and type of
      each value; each symbolic dimension that was taken as 1, with an input that has it; and what contradicts
      the inferred shapes, empty if nothing does.

    Raises:
      ConfigError: A size is out of range.
      FormatError: Inference fails, or the model lacks a name in ``dims``.
    """
    onnx = import_onnx()
    check_nodes(model)
    sizes = values_of(model.graph)
    light = onnx.ModelProto()
    light.CopyFrom(model)
    _drop_large_initializers(onnx, light.graph)
    assumed = _fix_dimensions(light.graph, dims)
    try:
        if light.functions:
            light = onnx.inliner.inline_local_functions(light)
        graph, contradiction = _inferred(onnx, light, loop_trips)
    except FormatError:
        raise
    except Exception as error:  # Those of C++ come as many exceptions of Python.
        raise FormatError(
            f"ONNX shape inference fails: {_reason(error)}; check the model with onnx.checker"
        ) from None
    initial = {t.name for t in model.graph.initializer} | {
        t.values.name for t in model.graph.sparse_initializer
    }
    return graph, values_of(graph) | {name: sizes[name] for name in initial}, assumed, contradiction


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0][:200]


def _inferred(onnx: Any, model: Any, loop_trips: int) -> tuple[Any, str]:
    """The graph of a model with inferred shapes, and what contradicts them.

    ``data_prop`` also infers what nodes compute with shapes. It takes every tensor of one axis for a shape,
    with an object for each element; so without need it is not used on long ones, and on very long ones not at
    all.
    """
    _check_expanded(onnx, model)
    contradiction = ""
    try:
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    except onnx.shape_inference.InferenceError as error:
        contradiction = _reason(error)
        graph = onnx.shape_inference.infer_shapes(model).graph
    while complete_results(model.graph, graph, loop_trips):
        graph = onnx.shape_inference.infer_shapes(model).graph
    longest, complete = 0, True
    for part in _graphs(graph):
        values = values_of(part)
        longest = max([longest, *(v.shape[0] for v in values.values() if len(v.shape) == 1)])
        made = [name for node in part.node for name in node.output if name]
        complete = complete and all(name in values and values[name].exact for name in made)
    if longest <= _LONG or (longest <= _VERY_LONG and not complete):
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return graph, contradiction


def _check_expanded(onnx: Any, model: Any) -> None:
    """Refuses an `Expand` of an early version whose shape is a long vector that other nodes compute.

    From the length of an unknown shape, inference makes a shape of so many unknown dimensions. So the lengths
    are inferred first, while it does not know these nodes.

    Raises:
      FormatError: There is one.
    """
    parts = list(_graphs(model.graph)) if version(model) < _EXPAND_OF_UNKNOWN_RANK else []
    known = {name for part in parts for name in vector_lengths(part)}
    hidden = [
        node
        for part in parts
        for node in part.node
        if kind_of(node) == "Expand" and len(node.input) > 1 and node.input[1] not in known
    ]
    model.opset_import.add(domain=_HIDDEN, version=1)
    while hidden:
        domains = [node.domain for node in hidden]
        for node in hidden:
            node.domain = _HIDDEN
        graph = onnx.shape_inference.infer_shapes(model).graph
        for node, domain in zip(hidden, domains, strict=True):
            node.domain = domain
        lengths: dict[str, int] = {}
        for part in _graphs(graph):
            for name, length in vector_lengths(part).items():
                lengths[name] = max(length, lengths.get(name, 0))
        check_values(hidden, lengths)
        left = [node for node in hidden if node.input[1] not in lengths]
        hidden = left if len(left) < len(hidden) else []
    del model.opset_import[-1]


def _graphs(graph: Any) -> Iterator[Any]:
    """A graph, and the bodies in it."""
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from _graphs(body)


def _drop_large_initializers(onnx: Any, graph: Any) -> None:
    """Keeps only data that may be a shape and is in the file; external data may be missing."""
    declared = {i.name for i in graph.input}
    kept = []
    for tensor in graph.initializer:
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if not external and math.prod(tensor.dims) <= _SHAPE_ELEMENTS:
            kept.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
            )
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _fix_dimensions(graph: Any, dims: Mapping[str, int]) -> dict[str, str]:
    """Sets each symbolic or unknown dimension of an input: to the given size, or to 1; returns the latter."""
    for name, size in dims.items():
        if whole(size, 1, MAX_BYTES) is None:
            raise ConfigError(f"dims: {name!r} is {shown(size)}; it must be a whole number of at least 1")
    names: set[str] = set()
    assumed: dict[str, str] = {}
    for info in graph.input:
        for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
            if not dim.HasField("dim_value") or dim.dim_value < 0:
                names.add(dim.dim_param)
                if dim.dim_param not in dims:
                    assumed.setdefault(dim.dim_param, info.name)
                dim.dim_value = dims.get(dim.dim_param, 1)
    known, unknown = sorted(filter(None, names)), sorted(dims.keys() - names - {""}, key=str)
    if unknown or "" in dims:
        raise FormatError(
            f"dims: no input has a dimension {(unknown or [''])[0]!r}; "
            f"this model has {', '.join(known) or 'none'}"
        )
    # Shapes that the exporter wrote elsewhere would contradict the sizes that were just set.
    for info in (*graph.value_info, *graph.output):
        for dim in info.type.tensor_type.shape.dim if info.type.HasField("tensor_type") else ():
            if not dim.HasField("dim_value"):
                dim.ClearField("dim_param")
    return assumed
