"""Segments of a plan as compiled programs."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
from jax.extend import core as jax_core
from jax.sharding import SingleDeviceSharding

from regal_jax.execution.devices.actions import Segment
from regal_jax.importers.flat_jaxpr import Equation, Value

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
        known: dict[Any, Any] = dict(zip(segment.reads, values, strict=True))
        for equation in segment.equations:
            known.update(zip(equation.outputs, _evaluated(equation, known), strict=True))
        return tuple(known[value] for value in segment.makes)

    where = SingleDeviceSharding(device)
    shapes = [_shape(value.aval, where) for value in segment.reads]
    places = tuple(i for i, value in enumerate(segment.reads) if value in set(donated))
    with warnings.catch_warnings():
        # Where no output has the shape of a donated value, its memory is only freed.
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        program = jax.jit(run, donate_argnums=places, out_shardings=where).lower(*shapes).compile()
    return Compiled(segment, program)


def _shape(aval: Any, where: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=where, weak_type=aval.weak_type)


def _evaluated(equation: Equation, known: Mapping[Any, Any]) -> Sequence[Any]:
    """The outputs of an equation, given the values that are known."""
    operands = zip(equation.source.invars, equation.operands, strict=True)
    given = {
        variable: known[operand] if isinstance(operand, Value) else operand.value
        for variable, operand in operands
        if not isinstance(variable, jax_core.Literal)
    }
    return _as_function(equation.source, tuple(given))(*given.values())


def _as_function(source: Any, variables: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """JAX's equation as a function of its variables."""
    alone = jax_core.Jaxpr((), variables, source.outvars, [source], source.effects)
    return jax_core.jaxpr_as_fun(jax_core.ClosedJaxpr(alone, ()))
