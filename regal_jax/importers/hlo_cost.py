"""Arithmetic, memory traffic and runtime of one HLO instruction.

The counts are those of `regal_jax.importers.op_cost`, for XLA's opcodes. This module does not import JAX.
"""

import math
import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from regal_jax.errors import FormatError
from regal_jax.importers.hlo_shapes import Array, leaves
from regal_jax.importers.hlo_text import Computation, Instruction, names_in
from regal_jax.importers.roofline import DeviceProfile
from regal_jax.importers.windows import taps

__all__ = ["Flops", "computation_flops", "instruction_flops", "instruction_seconds"]


class Flops(NamedTuple):
    """Attributes:
    matrix: Flops of matrix products and convolutions; a multiply-add is two.
    vector: All other flops.
    dtype: Type in which the products are computed, or the rest if there are no products.
    """

    matrix: float
    vector: float
    dtype: str


_FREE: Final = frozenset({
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency",
    "domain", "after-all", "partition-id", "replica-id",
})  # fmt: skip
"""Nothing runs."""
_MOVES: Final = frozenset({
    "broadcast", "copy", "transpose", "reshape", "slice", "dynamic-slice", "dynamic-update-slice",
    "concatenate", "pad", "reverse", "gather", "iota", "real", "imag", "complex", "all-gather", "all-to-all",
    "ragged-all-to-all", "collective-permute", "collective-broadcast", "send", "recv", "infeed", "outfeed",
    "bitcast-convert", "dynamic-reshape", "get-dimension-size", "set-dimension-size",
})  # fmt: skip
_HEAVY: Final = frozenset({
    "exponential", "exponential-minus-one", "log", "log-plus-one", "tanh", "logistic", "sine", "cosine",
    "tan", "power", "atan2", "erf", "cbrt", "acos", "asin", "acosh", "asinh", "atanh", "sinh", "cosh",
})  # fmt: skip
_HEAVY_FLOPS: Final = 10
_RANDOM_FLOPS: Final = 50
_PICKS: Final = ("slice", "dynamic-slice", "gather")
_NUMBER: Final = re.compile(r"-?[0-9]{1,9}")
_PRODUCTS: Final = re.compile(r"matmul|gemm|dot", re.IGNORECASE)


def computation_flops(computation: Computation, known: Mapping[str, Flops]) -> Flops:
    """The flops of all instructions of a fused computation.

    Args:
      computation: The computation.
      known: Flops of those that it calls.
    """
    rows = [
        instruction_flops(instruction, computation, known)
        for instruction in computation.instructions.values()
        if instruction.opcode not in _FREE
    ]
    products = [row.dtype for row in rows if row.matrix]
    dtypes = products or [row.dtype for row in rows if row.vector] or ["float32"]
    return Flops(sum(row.matrix for row in rows), sum(row.vector for row in rows), dtypes[0])


def instruction_flops(
    instruction: Instruction, computation: Computation, known: Mapping[str, Flops]
) -> Flops:
    """Flops of one instruction, without the bodies of loops, branches and calls.

    Args:
      instruction: The instruction.
      computation: The computation that contains it.
      known: Flops of the computations that a fusion may call.
    """
    opcode = instruction.opcode.removesuffix("-start")
    called = [known[n] for n in names_in(instruction.attributes.get("calls", "")) if n in known]
    if called and opcode != "call":
        return Flops(sum(f.matrix for f in called), sum(f.vector for f in called), called[0].dtype)
    operands = _operand_arrays(instruction, computation)
    arrays = [*operands, *leaves(instruction.shape)]
    dtype = next((a.dtype for a in arrays if a.bytes), "float32")
    matrix = _matrix_flops(instruction, opcode, operands)
    if matrix is not None:
        return Flops(matrix * (4 if dtype.startswith("complex") else 1), 0.0, dtype)
    factor = 4 if dtype.startswith("complex") and opcode != "fft" else 1
    return Flops(0.0, factor * _vector_flops(instruction, opcode, operands), dtype)


def _operand_arrays(instruction: Instruction, computation: Computation) -> list[Array]:
    shapes = [
        computation.instructions[n].shape for n in instruction.operands if n in computation.instructions
    ]
    return [array for shape in shapes for array in leaves(shape)]


def _matrix_flops(instruction: Instruction, opcode: str, operands: list[Array]) -> float | None:
    out = next(leaves(instruction.shape), None)
    if len(operands) < 2 or out is None:
        return None
    lhs, rhs = operands[:2]
    if opcode == "dot":
        contracted = _numbers(instruction, "lhs_contracting_dims")
        if any(not 0 <= i < len(lhs.dims) for i in contracted):
            raise FormatError(
                f"line {instruction.line}: lhs_contracting_dims {contracted} of {instruction.name!r} are "
                f"not dimensions of {list(lhs.dims)}"
            )
        return 2.0 * out.elements * math.prod(lhs.dims[i] for i in contracted)
    if opcode == "convolution" or (opcode == "custom-call" and "dim_labels" in instruction.attributes):
        return _convolution_flops(instruction, lhs, rhs, out)
    if opcode == "custom-call" and _PRODUCTS.search(instruction.attributes.get("custom_call_target", "")):
        # [B, m, k] by [B, k, n]: the operands' elements over the result's are k squared over B.
        batch = math.prod(out.dims[:-2])
        return 2.0 * out.elements * math.sqrt(lhs.elements * rhs.elements / max(1, out.elements * batch))
    return None


def _convolution_flops(instruction: Instruction, lhs: Array, rhs: Array, out: Array) -> float:
    """As `op_cost`: exact, padding and dilation holes cost nothing."""
    labels = re.fullmatch(r"(\w+)_(\w+)->(\w+)", instruction.attributes.get("dim_labels", ""))
    shapes = (lhs, rhs, out)
    if labels is None or any(
        len(text) != len(array.dims) for text, array in zip(labels.groups(), shapes, strict=True)
    ):
        raise FormatError(
            f"line {instruction.line}: convolution {instruction.name!r} needs dim_labels such as "
            "b01f_01io->b01f, one letter a dimension"
        )
    window = _window(instruction)
    sizes = [dict(zip(t, a.dims, strict=True)) for t, a in zip(labels.groups(), shapes, strict=True)]
    positions = 1
    for axis, (kernel, stride, pad, lhs_dilation, dilation) in enumerate(window):
        here = str(axis)
        positions *= taps(
            sizes[0].get(here, 1), kernel, sizes[2].get(here, 1), stride, pad, lhs_dilation, dilation
        )
    channels = sizes[1].get("i", 1)
    return 2.0 * positions * sizes[2].get("b", 1) * sizes[2].get("f", 1) * channels


def _window(instruction: Instruction) -> list[tuple[int, int, int, int, int]]:
    """Size, stride, padding before, dilation of the input and of the kernel, for each dimension."""
    text = instruction.attributes.get("window", "").strip("{}")
    fields = dict(part.split("=", 1) for part in text.split() if "=" in part)
    sizes = fields.get("size", "").split("x") if fields.get("size") else []
    columns = []
    for name, default in (("size", 1), ("stride", 1), ("pad", 0), ("lhs_dilate", 1), ("rhs_dilate", 1)):
        parts = [part.split("_")[0] for part in fields[name].split("x")] if fields.get(name) else []
        if any(not _NUMBER.fullmatch(part) for part in parts) or len(parts) not in (0, len(sizes)):
            raise FormatError(
                f"line {instruction.line}: window of {instruction.name!r}: {name}={fields[name][:40]} must "
                f"be {len(sizes)} whole numbers joined by x"
            )
        # Only padding may be negative or zero.
        numbers = [int(part) if name == "pad" else max(1, int(part)) for part in parts]
        columns.append(numbers or [default] * len(sizes))
    return list(zip(*columns, strict=True))


def _vector_flops(instruction: Instruction, opcode: str, operands: list[Array]) -> float:
    out = next((a.elements for a in leaves(instruction.shape)), 0)
    first = operands[0].elements if operands else 0
    if opcode in _MOVES or opcode in _FREE or opcode.endswith(("-done", "-update")):
        return 0.0
    if opcode in ("sort", "topk") or instruction.attributes.get("custom_call_target") == '"TopK"':
        axes = [a for a in _numbers(instruction, "dimensions") if operands and 0 <= a < len(operands[0].dims)]
        dims = operands[0].dims if operands else ()
        length = dims[axes[0]] if axes else dims[-1] if dims else 1
        return first * math.log2(max(2, length))
    if opcode == "fft":
        n = math.prod(_numbers(instruction, "fft_length"))
        return 5.0 * max(first, out) * math.log2(max(2, n))
    if opcode in ("reduce-window", "select-and-scatter"):
        return float(max(first, out) * math.prod(row[0] for row in _window(instruction)))
    if opcode == "cholesky" and operands:
        return first * (operands[0].dims[-1] if operands[0].dims else 1) / 3
    if opcode == "triangular-solve" and operands:
        return float(out * (operands[0].dims[-1] if operands[0].dims else 1))
    if opcode in ("rng-bit-generator", "rng"):
        return float(_RANDOM_FLOPS * max((a.elements for a in leaves(instruction.shape)), default=0))
    if opcode == "reduce":
        return float(first)
    if opcode == "scatter":
        return float(operands[-1].elements if operands else 0)
    return float(out * (_HEAVY_FLOPS if opcode in _HEAVY else 1))


def _numbers(instruction: Instruction, attribute: str) -> list[int]:
    return [int(n) for n in _NUMBER.findall(instruction.attributes.get(attribute, ""))]


def instruction_seconds(
    instruction: Instruction,
    computation: Computation,
    called: Computation | None,
    flops: Flops,
    profile: DeviceProfile,
) -> float:
    """Runtime of one instruction that has no loop, branch or call in it.

    Traffic is every operand read once and every output written once. An operand that is read only through
    slices and gathers, in a fusion too, counts with the bytes that they return. An update in place counts
    with twice the bytes that it writes.

    Args:
      instruction: The instruction.
      computation: The computation that contains it.
      called: The fused computation, if it is a fusion.
      flops: Its flops.
      profile: The device.

    Returns:
      Seconds.
    """
    opcode = instruction.opcode
    if opcode in _FREE or opcode.endswith(("-done", "-update")):
        return 0.0
    work = flops.matrix + flops.vector
    if flops.matrix and flops.vector:
        # Vector flops in units of the matrix rate, so that one call times both.
        rates = [profile.rate(flops.dtype, matrix=matrix) for matrix in (True, False)]
        work = flops.matrix + flops.vector * rates[0] / rates[1]
    traffic = _fusion_traffic(called) if called else _traffic(instruction, computation)
    return profile.seconds(work, traffic, flops.dtype, matrix=flops.matrix > 0)


def _bytes(instruction: Instruction) -> int:
    return sum(array.bytes for array in leaves(instruction.shape))


def _traffic(instruction: Instruction, computation: Computation) -> float:
    operands = [a.bytes for a in _operand_arrays(instruction, computation)]
    if instruction.opcode in _PICKS:
        return 2.0 * _bytes(instruction) + sum(operands[1:])
    if instruction.opcode == "dynamic-update-slice":
        return 2.0 * sum(operands[1:2]) + sum(operands[2:])
    if instruction.opcode == "copy-start":  # Its result contains the source again.
        return 2.0 * sum(operands[:1])
    return float(_bytes(instruction) + sum(operands))


def _fusion_traffic(called: Computation) -> float:
    users: dict[str, list[Instruction]] = {}
    for inner in called.instructions.values():
        for name in inner.operands:
            users.setdefault(name, []).append(inner)
    read = 0
    for inner in called.instructions.values():
        if inner.opcode == "parameter":
            read += min(_bytes(inner), sum(_share(inner, user) for user in users.get(inner.name, ())))
    written = 0
    roots = called.root.operands if called.root.opcode == "tuple" else (called.root.name,)
    for name in roots:
        root = called.instructions.get(name)
        while root is not None and root.opcode == "bitcast" and root.operands:
            root = called.instructions.get(root.operands[0])
        if root is not None and root.opcode == "dynamic-update-slice" and len(root.operands) > 1:
            root = called.instructions.get(root.operands[1])
        written += _bytes(root) if root is not None else 0
    return float(read + written)


def _share(parameter: Instruction, user: Instruction) -> int:
    """The bytes of a parameter that one of its users reads."""
    if user.operands[0] == parameter.name:
        if user.opcode in _PICKS:
            return _bytes(user)
        if user.opcode == "dynamic-update-slice":
            return 0
    return _bytes(parameter)
