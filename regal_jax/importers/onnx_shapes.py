"""The shape and type of every value of an ONNX model, by the `onnx` package's own shape inference."""

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from regal_jax.checks import shown, whole
from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.graph.validation import MAX_BYTES
from regal_jax.importers.onnx_checks import check_nodes, check_values, vector_lengths
from regal_jax.importers.onnx_nodes import kind_of, subgraphs, version

__all__ = ["Value", "import_onnx", "infer_values", "values_of"]

# Larger initializers cannot be shapes, and copying them costs memory.
_SHAPE_ELEMENTS: Final = 1024
_LONG: Final = 2**16
_VERY_LONG: Final = 2**24
"""Sizes of tensors of one axis from which data propagation takes noticeable time, and gigabytes of memory."""
_EXPAND_OF_UNKNOWN_RANK: Final = 13
"""Version of ONNX's ops from which the length of an unknown shape tells nothing about the result of `Expand`."""
_HIDDEN: Final = "regal_jax.hidden"
"""A domain that shape inference does not know."""
_SUB_BYTE_BITS: Final = {
    "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2,
}  # fmt: skip


def import_onnx() -> Any:
    """The `onnx` package.

    Raises:
      MissingExtraError: It is not installed.
    """
    try:
        import onnx
        import onnx.checker
        import onnx.inliner
        import onnx.shape_inference
    except ImportError:
        raise MissingExtraError("onnx", "onnx") from None
    return onnx


@dataclasses.dataclass(frozen=True)
class Value:
    """Shape and type of one value.

    Attributes:
      shape: Its dimensions; unknown ones are taken as 1.
      dtype: Name of the element type, e.g. ``"float32"``.
      item_bits: Size of an element.
      exact: Whether the rank and all dimensions are known.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    item_bits: int = 0
    exact: bool = False

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Size in memory, rounded up."""
        return -(-self.elements * self.item_bits // 8)


def _element(number: int) -> tuple[str, int]:
    """(name, bits) of an ONNX element type; 64 bits, the size of a pointer, for strings."""
    onnx = import_onnx()
    name = onnx.TensorProto.DataType.Name(number) if number in onnx.TensorProto.DataType.values() else ""
    if name in ("", "UNDEFINED"):
        return "unknown", 0
    bits = _SUB_BYTE_BITS.get(name)
    dtype = onnx.helper.tensor_dtype_to_np_dtype(number)
    return ("string" if name == "STRING" else str(dtype)), bits or 8 * dtype.itemsize


def _tensor_value(dims: Any, number: int) -> Value:
    if any(d < 0 for d in dims):
        raise FormatError(f"a tensor has the dimensions {list(dims)[:8]}; they must be zero or more")
    return Value(tuple(dims), *_element(number), exact=True)


def _typed_value(info: Any) -> Value:
    if not info.type.HasField("tensor_type"):
        return Value(dtype=info.type.WhichOneof("value") or "unknown")
    tensor = info.type.tensor_type
    known = [d.HasField("dim_value") and d.dim_value >= 0 for d in tensor.shape.dim]
    shape = tuple(d.dim_value if k else 1 for d, k in zip(tensor.shape.dim, known, strict=True))
    dtype, bits = _element(tensor.elem_type)
    exact = tensor.HasField("shape") and all(known) and bits > 0
    # A value of unknown rank has the shape () like a scalar, but its size is unknown: 0 bits.
    return Value(shape, dtype, bits if tensor.HasField("shape") else 0, exact)


def values_of(graph: Any) -> dict[str, Value]:
    """Shapes and types of the values of an inferred graph, or of a body in one, by name."""
    infos = {i.name: _typed_value(i) for part in (graph.value_info, graph.output, graph.input) for i in part}
    infos |= {t.name: _tensor_value(t.dims, t.data_type) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        value = _tensor_value(sparse.values.dims, sparse.values.data_type)
        infos[sparse.values.name] = dataclasses.replace(value, item_bits=value.item_bits + 64)
    infos.pop("", None)
    for name, value in infos.items():
        if value.elements > MAX_BYTES:
            raise FormatError(f"ONNX value {name!r} has {len(value.shape)} dimensions of too many elements")
    return infos


def infer_values(model: Any, dims: Mapping[str, int]) -> tuple[Any, dict[str, Value], dict[str, str]]:
    """Infers all shapes.

    Args:
      model: A ``ModelProto``; not changed.
      dims: Symbolic dimension -> size.

    Returns:
      The graph with inferred shapes, in its bodies too, and without large initializers; shape and type of
      each value; and each symbolic dimension that was taken as 1, with an input that has it.

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
        graph = _inferred(onnx, light)
    except FormatError:
        raise
    except Exception as error:  # Those of C++ come as many exceptions of Python.
        reason = (str(error).splitlines() or [""])[0][:200]
        raise FormatError(
            f"ONNX shape inference fails: {reason}; check the model with onnx.checker"
        ) from None
    initial = {t.name for t in model.graph.initializer} | {
        t.values.name for t in model.graph.sparse_initializer
    }
    return graph, values_of(graph) | {name: sizes[name] for name in initial}, assumed


def _inferred(onnx: Any, model: Any) -> Any:
    """The graph of a model with inferred shapes.

    ``data_prop`` also infers what nodes compute with shapes. It takes every tensor of one axis for a shape,
    with an object for each element; so without need it is not used on long ones, and on very long ones not at
    all.
    """
    _check_expanded(onnx, model)
    graph = onnx.shape_inference.infer_shapes(model).graph
    longest, complete = 0, True
    for part in _graphs(graph):
        values = values_of(part)
        longest = max([longest, *(v.shape[0] for v in values.values() if len(v.shape) == 1)])
        made = [name for node in part.node for name in node.output if name]
        complete = complete and all(name in values and values[name].exact for name in made)
    if longest <= _LONG or (longest <= _VERY_LONG and not complete):
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return graph


def _check_expanded(onnx: Any, model: Any) -> None:
    """Refuses an `Expand` of an early version whose shape is a long vector that other nodes compute.

    From the length of a shape that is not known, inference makes a shape of so many unknown dimensions. So the
    lengths are inferred first, while it does not know these nodes.

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
