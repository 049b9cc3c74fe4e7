"""Arithmetic, memory traffic and runtime of one op of a flat jaxpr."""

import dataclasses
import math
from typing import Any, Final, Protocol

from regal_jax.importers.flat_jaxpr import Equation, Program, aval_bytes
from regal_jax.importers.roofline import DeviceProfile
from regal_jax.importers.windows import taps

__all__ = ["OpTimes", "Work", "op_seconds", "op_work"]


class OpTimes(Protocol):
    """A source that states the runtime of every op, instead of a roofline."""

    def equation_seconds(self, equation: Equation) -> float:
        """Runtime of an op without bodies, in seconds."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """Attributes:
    flops: Arithmetic operations; a multiply-add is two.
    dtype: Name of the dtype of these operations.
    matrix: Whether they can use matrix units (matrix products and convolutions).
    bytes: Memory read and written.
    view: Whether the op only renames memory and runs nothing.
    """

    flops: float
    dtype: str
    matrix: bool
    bytes: float
    view: bool = False


_VIEWS: Final = frozenset({
    "reshape", "squeeze", "expand_dims", "bitcast_convert_type", "stop_gradient", "optimization_barrier",
    "random_wrap", "random_unwrap", "name", "pvary", "pcast", "sharding_constraint", "mesh_cast",
    "reshard", "layout_constraint", "create_token", "after_all", "split_transpose_marker",
})  # fmt: skip
_MOVES: Final = frozenset({
    "broadcast_in_dim", "transpose", "concatenate", "pad", "slice", "dynamic_slice",
    "dynamic_update_slice", "gather", "scatter", "rev", "iota", "copy", "copy_p", "split", "device_put",
    "empty", "empty2", "full", "real", "imag", "complex", "debug_print", "debug_callback", "io_callback",
    "pure_callback", "random_seed", "get", "swap", "tile", "unstack",
})  # fmt: skip
"""Primitives that move data and compute nothing."""
_HEAVY: Final = frozenset({
    "exp", "exp2", "expm1", "log", "log1p", "log2", "tanh", "logistic", "sin", "cos", "tan", "asin", "acos",
    "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "pow", "erf", "erfc", "erf_inv", "lgamma",
    "digamma", "cbrt", "igamma", "igammac", "bessel_i0e", "bessel_i1e", "polygamma", "zeta",
})  # fmt: skip
_HEAVY_FLOPS: Final = 10
"""Flops per element of a transcendental function, our estimate; any other elementwise op counts as 1."""
_RANDOM_FLOPS: Final = 50
"""Flops of one 32-bit random word, our estimate: 20 rounds of Threefry make two words."""
_PER_INPUT: Final = ("reduce_", "arg", "cum", "scatter")
_FACTORISATIONS: Final = {
    "cholesky": 1 / 3, "lu": 2 / 3, "geqrf": 4 / 3, "qr": 4 / 3, "householder_product": 4 / 3,
    "triangular_solve": 1.0, "eigh": 9.0, "eig": 25.0, "svd": 20.0, "schur": 25.0, "hessenberg": 10 / 3,
    "tridiagonal": 4 / 3, "ormqr": 2.0,
}  # fmt: skip
"""Leading coefficient of the flops of a dense factorisation (Golub and Van Loan, Matrix Computations)."""


def op_work(equation: Equation) -> Work:
    """The work of one op without its bodies.

    Matrix products and convolutions are exact (padding and dilation holes cost nothing). Elementwise
    ops count 1 per output element, transcendental ones 10; reductions, cumulative ops and the adds
    of a scatter 1 per input element; windows their area; a sort ``n log2 n``, an FFT
    ``5 n log2 n``, factorisations their leading term. Traffic is every operand read once and
    every output written once; a slice or gather reads only what it returns. An unknown primitive is
    treated as elementwise.

    Args:
      equation: The op.
    """
    name = equation.primitive
    outputs = [v.aval for v in equation.outputs]
    dtype = _dtype(equation)
    if name in _VIEWS:
        return Work(0, dtype, False, 0, view=True)
    written = sum(map(aval_bytes, outputs))
    if name in ("gather", "dynamic_slice", "slice"):
        traffic = 2 * written + sum(map(aval_bytes, equation.in_avals[1:]))
    else:
        traffic = written + sum(aval_bytes(v.aval) for v in equation.inputs)
    flops, matrix = _flops(equation)
    # A complex product is four real ones and as many sums; the count of an FFT is in real ones already.
    factor = 4 if name != "fft" and any(map(_is_complex, equation.in_avals)) else 1
    return Work(factor * flops, dtype, matrix, traffic)


def _flops(equation: Equation) -> tuple[float, bool]:
    """Flops, and whether matrix units can do them."""
    name, params = equation.primitive, equation.params
    out = sum(_elements(v.aval) for v in equation.outputs[:1])
    first = _elements(equation.in_avals[0]) if equation.in_avals else 0
    if name in ("dot_general", "ragged_dot_general"):
        return _dot_flops(equation), True
    if name == "conv_general_dilated":
        return _conv_flops(equation), True
    if name in _MOVES:
        return 0, False
    if name in ("sort", "top_k", "approx_top_k"):
        shape = equation.in_avals[0].shape
        axis = params.get("dimension", params.get("axis", params.get("reduction_dimension", -1)))
        return first * math.log2(max(2, shape[axis])) if shape else 0, False
    if name == "fft":
        n = math.prod(params["fft_lengths"])
        return 5 * max(first, out) * math.log2(max(2, n)), False
    if "window_dimensions" in params:
        return max(first, out) * math.prod(params["window_dimensions"]), False
    if name in _FACTORISATIONS:
        *batch, m, n = equation.in_avals[-1 if name == "triangular_solve" else 0].shape
        if name == "triangular_solve":  # [.., k, k] against [.., m, n]: k is m or n.
            return math.prod(batch) * m * n * equation.in_avals[0].shape[-1], False
        return _FACTORISATIONS[name] * math.prod(batch) * max(m, n) * min(m, n) ** 2, False
    if name in ("random_bits", "threefry2x32"):
        return _RANDOM_FLOPS * out, False
    if name == "reduce" or (name.startswith(_PER_INPUT) and name != "reduce_precision"):
        source = equation.in_avals[-1] if name.startswith("scatter") else equation.in_avals[0]
        return _elements(source), False
    return out * (_HEAVY_FLOPS if name in _HEAVY else 1), False


def _dot_flops(equation: Equation) -> float:
    params = equation.params
    numbers = params.get("dimension_numbers") or params["ragged_dot_dimension_numbers"].dot_dimension_numbers
    (contracted, _), _ = numbers
    lhs = equation.in_avals[0].shape
    out = _elements(equation.outputs[0].aval)
    return 2.0 * out * math.prod(lhs[i] for i in contracted)


def _conv_flops(equation: Equation) -> float:
    params = equation.params
    numbers = params["dimension_numbers"]
    lhs, rhs = (a.shape for a in equation.in_avals[:2])
    out = equation.outputs[0].aval.shape
    positions = 1
    axes = zip(numbers.lhs_spec[2:], numbers.rhs_spec[2:], numbers.out_spec[2:], strict=True)
    for i, (axis, kernel_axis, out_axis) in enumerate(axes):
        positions *= taps(
            lhs[axis],
            rhs[kernel_axis],
            out[out_axis],
            params["window_strides"][i],
            params["padding"][i][0],
            params["lhs_dilation"][i],
            params["rhs_dilation"][i],
        )
    batch, features = out[numbers.out_spec[0]], out[numbers.out_spec[1]]
    return 2.0 * positions * batch * features * rhs[numbers.rhs_spec[1]]


def _dtype(equation: Equation) -> str:
    for aval in (*equation.in_avals, *(v.aval for v in equation.outputs)):
        if hasattr(aval, "dtype"):
            return str(aval.dtype)
    return "float32"


def _is_complex(aval: Any) -> bool:
    return str(getattr(aval, "dtype", "")).startswith("complex")


def _elements(aval: Any) -> int:
    return math.prod(getattr(aval, "shape", ()))


def op_seconds(equation: Equation, profile: DeviceProfile | OpTimes, while_trip_count: float) -> float:
    """Runtime of one op.

    An op with bodies takes the sum of their ops: a ``scan`` its body times its length, a ``while`` its
    condition and body times ``while_trip_count``, a ``cond`` its slowest branch. Ops
    that only rename memory take no time. Nothing is fused.

    A ``pallas_call`` is one kernel: it reads its operands and writes its results once, and does the
    arithmetic of its body at each step of its grid.

    Args:
      equation: The op.
      profile: The device, or runtimes of ops.
      while_trip_count: Iterations of a ``while`` loop, whose length is not in a trace, and size of a grid
        along a dimension that is not.

    Returns:
      Seconds.
    """

    def seconds(body: Program) -> float:
        return sum(op_seconds(e, profile, while_trip_count) for e in body.equations)

    bodies = equation.bodies
    if equation.primitive == "scan":
        return equation.params["length"] * sum(map(seconds, bodies))
    if equation.primitive == "while":
        return while_trip_count * sum(map(seconds, bodies))
    if equation.primitive == "cond":
        return max(map(seconds, bodies))
    if not isinstance(profile, DeviceProfile):
        return profile.equation_seconds(equation)
    work = op_work(equation)
    if work.view:
        return 0.0
    if equation.primitive == "pallas_call":
        return max(
            _grid_seconds(equation, profile, while_trip_count),
            profile.seconds(0, work.bytes, work.dtype, matrix=False),
        )
    own = profile.seconds(work.flops, work.bytes, work.dtype, matrix=work.matrix)
    # A body of scalars is the combiner of a `reduce` or `scatter`, which `own` counts.
    return max(own, sum(seconds(b) for b in bodies if any(getattr(v.aval, "shape", ()) for v in b.inputs)))


def _grid_seconds(equation: Equation, profile: DeviceProfile, while_trip_count: float) -> float:
    """Launch and arithmetic of a kernel, whose body reads and writes fast memory."""
    grid = equation.params["grid_mapping"].grid
    steps = math.prod(size if isinstance(size, int) else while_trip_count for size in grid)
    inside = dataclasses.replace(profile, bandwidth=math.inf, launch_overhead=0.0)
    rows = (op_seconds(e, inside, while_trip_count) for body in equation.bodies for e in body.equations)
    return steps * sum(rows) + float(profile.launch_overhead)
