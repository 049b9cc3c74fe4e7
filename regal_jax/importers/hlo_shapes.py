"""Shapes in HLO text, such as ``(f32[8,4]{1,0:T(8,128)}, s32[])``, and their sizes. No JAX is imported."""

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
from typing import Final

from regal_jax.errors import FormatError

__all__ = ["Array", "Shape", "Tuple", "leaves", "parse_shape"]

_DTYPES: Final = {
    "pred": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float32", "f64": "float64",
    "c64": "complex64", "c128": "complex128", "f8e4m3fn": "float8_e4m3fn", "f8e5m2": "float8_e5m2",
    "f8e4m3b11fnuz": "float8_e4m3b11fnuz", "f8e4m3fnuz": "float8_e4m3fnuz", "f8e5m2fnuz": "float8_e5m2fnuz",
    **{f"{x}{n}": f"{name}{n}" for x, name in (("s", "int"), ("u", "uint")) for n in (2, 4, 8, 16, 32, 64)},
}  # fmt: skip
"""XLA's element types by the names that profiles use; any other keeps its own."""
_ARRAY: Final = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\](\{[^{}]*\})?")
_BITS: Final = re.compile(r"[a-z]+(\d{1,4})")
_MAX_DEPTH: Final = 64
_MAX_BITS: Final = 2**65
"""No graph holds more than 2^62 bytes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Array:
    """An array, a token (no dimensions, no bytes) or an opaque handle.

    Attributes:
      dtype: Name of its element type, as NumPy and `DeviceProfile` know it.
      dims: Its dimensions; for a bounded dynamic one (``<=8``) the bound.
      bytes: Exact size, 2- and 4-bit elements packed; the padding of tiled layouts is not counted.
      on_host: Whether it is in host memory (memory space ``S(5)``).
      layout: Its layout as the text has it; not compared.
    """

    dtype: str
    dims: tuple[int, ...]
    bytes: int
    on_host: bool = False
    layout: str = dataclasses.field(default="", compare=False)

    @property
    def elements(self) -> int:
        return math.prod(self.dims)


@dataclasses.dataclass(frozen=True, slots=True)
class Tuple:
    """Attributes:
    items: Shapes of its elements.
    """

    items: tuple["Shape", ...]


Shape = Array | Tuple


def leaves(shape: Shape) -> Iterator[Array]:
    """The arrays of ``shape`` from left to right."""
    if isinstance(shape, Array):
        yield shape
    else:
        for item in shape.items:
            yield from leaves(item)


def parse_shape(text: str, start: int, line: int) -> tuple[Shape, int]:
    """The shape at the beginning of ``text[start:]``, and the index of its end.

    Args:
      text: Part of an instruction.
      start: Index at which the shape begins; blanks are skipped.
      line: Line number for errors.

    Raises:
      FormatError: There is no shape, an element type has an unknown size, or the shape has more than 2^62
        bytes.
    """
    open_tuples: list[list[Shape]] = []
    at = start
    while True:
        at = _skip(text, at, " ,")
        if text.startswith("(", at):
            open_tuples.append([])
            if len(open_tuples) > _MAX_DEPTH:
                raise FormatError(f"line {line}: tuples nested deeper than {_MAX_DEPTH}; is this a program?")
            at += 1
            continue
        if text.startswith(")", at) and open_tuples:
            shape: Shape = Tuple(tuple(open_tuples.pop()))
            at += 1
        else:
            found = _ARRAY.match(text, at)
            if found is None:
                raise FormatError(
                    f"line {line}: {text[at : at + 30]!r} is no shape; write one such as f32[8,4]{{1,0}}"
                )
            try:
                shape, at = _array(found[1], found[2], found[3] or ""), found.end()
            except FormatError as error:
                raise FormatError(f"line {line}: {error}") from None
        if not open_tuples:
            return shape, at
        open_tuples[-1].append(shape)


def _skip(text: str, at: int, blanks: str) -> int:
    while at < len(text) and text[at] in blanks:
        at += 1
    return at


@functools.lru_cache(maxsize=4096)
def _array(kind: str, dims_text: str, layout: str) -> Array:
    dims = []
    for part in filter(None, (p.strip() for p in dims_text.split(","))):
        number = part.removeprefix("<=")
        if not re.fullmatch(r"[0-9]{1,19}", number):
            raise FormatError(f"dimension {part[:30]!r} of {kind}[] must be a whole number")
        dims.append(int(number))
    bits = _element_bits(kind)
    total = bits * math.prod(dims)
    if total > _MAX_BITS:
        raise FormatError(f"{kind}[{dims_text[:40]}] is larger than 2^62 bytes; mend its shape")
    return Array(_DTYPES.get(kind, kind), tuple(dims), -(-total // 8), "S(5)" in layout, layout)


def _element_bits(kind: str) -> int:
    if kind in ("token", "opaque"):
        return 0
    if kind == "pred":
        return 8
    found = _BITS.match(kind)
    if found is None:
        raise FormatError(f"element type {kind!r} is unknown; its size cannot be told")
    return int(found[1])
