"""Segments of a plan as compiled programs."""

import dataclasses
import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import SingleDeviceSharding

from regal_jax.execution.devices.actions import Segment, is_reference
from regal_jax.importers.flat_jaxpr import Value, evaluate, is_packed

__all__ = ["Compiled", "compile_segment"]


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A segment and its program, which takes `Segment.reads` and returns `Segment.makes`."""

    segment: Segment
    program: Any


def compile_segment(segment: Segment, device: Any, donated: Sequence[Value]) -> Compiled:
    """Compiles a segment for a JAX device.

    Args:
      segment: The segment.
      device: The device.
      donated: Values whose memory it may reuse, because nobody reads them afterwards.
    """

    def run(*values: Any) -> tuple[Any, ...]:
        pairs = zip(segment.reads, values, strict=True)
        known: dict[Any, Any] = {v: jax.new_ref(x) if is_reference(v) else x for v, x in pairs}
        for equation in segment.equations:
            operands = [known[x] if isinstance(x, Value) else x.value for x in equation.operands]
            known.update(zip(equation.outputs, evaluate(equation, operands), strict=True))
        return tuple(known[v][...] if is_reference(v) else known[v] for v in segment.makes)

    where = SingleDeviceSharding(device)
    shapes = [_shape(value.aval, where) for value in segment.reads]
    places = tuple(i for i, value in enumerate(segment.reads) if value in set(donated))
    with warnings.catch_warnings():
        # Where no output has the shape of a donated value, its memory is only freed.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        program = jax.jit(run, donate_argnums=places, out_shardings=where)
        compiled = program.lower(*shapes).compile()
    # JAX refuses arrays of these types, once they are on a device, as arguments of a compiled program. The
    # jitted function takes them, and runs what has been compiled.
    packed = any(is_packed(value.aval.dtype) for value in segment.reads)
    return Compiled(segment, program if packed else compiled)


def _shape(aval: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=where, weak_type=aval.weak_type)
