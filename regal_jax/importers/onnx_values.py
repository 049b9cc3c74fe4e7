"""Shape and type of the values of an ONNX graph."""

import dataclasses
import math
from typing import Any, Final

from regal_jax.errors import FormatError, MissingExtraError
from regal_jax.graph.validation import MAX_BYTES
from regal_jax.importers.onnx_nodes import kind_of

__all__ = ["Value", "import_onnx", "values_of"]

_SUB_BYTE_BITS: Final = {
    "UINT4": 4, "INT4": 4, "FLOAT4E2M1": 4, "UINT2": 2, "INT2": 2,
}  # fmt: skip
_NUMBERS: Final = {7: ("int64_data", 8), 9: ("int32_data", 1)}
"""Element type -> the field of its numbers, and bytes of one: int64 and bool."""


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
      number: Its value, if it is one whole number or truth value that the model has; else ``None``.
    """

    shape: tuple[int, ...] = ()
    dtype: str = "float32"
    item_bits: int = 0
    exact: bool = False
    number: int | None = None

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


def _tensor_value(tensor: Any) -> Value:
    dims = tuple(tensor.dims)
    if any(d < 0 for d in dims):
        raise FormatError(f"a tensor has the dimensions {list(dims)[:8]}; they must be zero or more")
    number = _number(tensor) if math.prod(dims) == 1 else None
    return Value(dims, *_element(tensor.data_type), exact=True, number=number)


def _number(tensor: Any) -> int | None:
    """The only element of a tensor, if it is an int64 or a bool, and in the file."""
    name, size = _NUMBERS.get(tensor.data_type, ("", 0))
    values = getattr(tensor, name, ())
    if len(tensor.raw_data) == size > 0:
        return int.from_bytes(tensor.raw_data, "little", signed=True)
    return values[0] if len(values) == 1 else None


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
    infos |= {t.name: _tensor_value(t) for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        value = _tensor_value(sparse.values)
        infos[sparse.values.name] = dataclasses.replace(value, item_bits=value.item_bits + 64, number=None)
    for node in graph.node:
        tensor = next((a.t for a in node.attribute if a.name == "value" and a.HasField("t")), None)
        if kind_of(node) == "Constant" and tensor is not None and node.output[:1] and node.output[0] in infos:
            number = _tensor_value(tensor).number
            infos[node.output[0]] = dataclasses.replace(infos[node.output[0]], number=number)
    infos.pop("", None)
    for name, value in infos.items():
        if value.elements > MAX_BYTES:
            raise FormatError(f"ONNX value {name!r} has {len(value.shape)} dimensions of too many elements")
    return infos
