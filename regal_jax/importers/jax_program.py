"""`from_jax`: a JAX function, traced with shapes only, as a `ComputationGraph`."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import jax

from regal_jax.checks import check_kind, is_list, real, shown, whole
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import Colocate, ComputationGraph, Pin, constrain
from regal_jax.importers.assembly import Source, Step, assemble, unique_names
from regal_jax.importers.flat_jaxpr import Equation, Program, aval_bytes, flatten, temp_bytes
from regal_jax.importers.jax_call import ArgName, FlatCall, Leaf, is_array, parameter_names
from regal_jax.importers.jax_leaks import refusing_leaks
from regal_jax.importers.measured import MEASURED, MeasuredProfile
from regal_jax.importers.op_cost import op_seconds
from regal_jax.importers.roofline import DeviceProfile, find_profile, profile_list
from regal_jax.runtime.interrupts import interruptible

__all__ = ["TracedCall", "argument_names", "from_jax", "trace_call", "trace_error"]

_REMEDY: Final = (
    "it must run under jax.jit on these arguments: name those that are no arrays in static_argnums, "
    "or bind them with functools.partial; see the cause"
)
_NNX_REMEDY: Final = "it changes an NNX object that it closes over: pass the object as an argument"


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class TracedCall:
    """A call of a function, and its program.

    Attributes:
      call: The call, whose leaves are the inputs of the program.
      program: The program. Its results are those of the function, then the new arrays of NNX objects.
      tree: Structure of what the function returns.
    """

    call: FlatCall
    program: Program
    tree: Any

    @property
    def op_names(self) -> tuple[str, ...]:
        """Names of the ops of the graph that `from_jax` makes: sources, ``start``, equations."""
        constants = [f"constant_{i}" for i in range(len(self.program.constants))]
        sources = [*(leaf.name for leaf in self.call.leaves), *constants]
        given, barrier, made = unique_names(sources, [_op_name(e) for e in self.program.equations])
        return (*given, *([barrier] if sources else []), *made)


@interruptible()
def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    resident_argnums: ArgName | Sequence[ArgName] = (),
    donate_argnums: ArgName | Sequence[ArgName] | None = None,
    static_argnums: int | Sequence[int] | None = (),
    input_devices: int | Mapping[ArgName, int] = 0,
    while_trip_count: float = 1,
    pin: Pin | None = None,
    colocate: Colocate = (),
    profile: str | DeviceProfile | MeasuredProfile | Sequence[str | DeviceProfile | MeasuredProfile] = "h200",
    name: str | None = None,
) -> ComputationGraph:
    """Traces ``fn`` and returns its graph, one op for each equation of its jaxpr, in program order.

    Nothing is allocated or executed: arguments may be `jax.ShapeDtypeStruct`. Calls (``jit``,
    ``custom_jvp``, ``custom_vjp``, ``jax.checkpoint``) are inlined and dead code is dropped; callbacks,
    prints and writes to a `jax.new_ref` are not dead. A ``scan``, ``while`` or ``cond`` is one op: the
    runtime of its body times its trip count, or of its slowest branch; its `temp_bytes` is an estimate,
    the peak of the body's own values in program order.

    Ops are named after the user's scopes (Flax modules, `jax.named_scope`, jitted functions), those of
    a gradient below ``backward/``. Views (``reshape``) take no time, but their output counts as memory.

    Every array of the arguments is a resident op, read or not, in memory from time 0: of kind
    ``"parameter"`` if it is one of ``resident_argnums``, else ``"input"``. So is every array that ``fn``
    closes over (``"parameter"``). The caller holds them, so they are never freed unless donated. A
    parameter shares a colocation group with its first reader; an input stands on its device. One op
    ``"start"`` comes after all of them and before everything that computes. What ``fn`` returns is
    kept.

    Flax NNX objects (modules, optimisers, metrics, `nnx.Rngs`, variables; in containers too; a module or
    its method as ``fn``, or bound by `functools.partial`) are their arrays: residents, named after their
    path (``model/encoder/layers_0/kernel``). Those that ``fn`` changes, with `nnx.jit` or without, are
    updated in place: the new array is a result, and the old one is freed after its last reader. Ops of a
    module's call are named after its path (``encoder/layers_0/attention/dot_general``; below the argument's
    name if there are several modules), those of ``update`` after the optimiser or metric. Changes that a
    trace cannot show are refused: changes of NNX objects that ``fn`` closes over, and of Python containers
    and variables in which it stores arrays that it computes.

    Ctrl-C raises `KeyboardInterrupt`, at the latest when ``fn`` has been traced.

    Args:
      fn: A function that JAX can trace.
      *args: Its positional arguments: pytrees of arrays, shapes or numbers.
      kwargs: Its keyword arguments, arrays too.
      resident_argnums: Arguments that live on the devices between calls: parameters, optimiser state.
        By index or by name. The arrays of NNX objects always do.
      donate_argnums: Arguments whose buffers are freed after their last reader. By default the arrays of
        NNX objects that ``fn`` changes, and no others; ``()`` donates nothing.
      static_argnums: Arguments that are not arrays (hashable, as for `jax.jit`), by index or by name.
      input_devices: Device of every input, or of each argument (those not named: 0).
      while_trip_count: Iterations of a ``while`` loop, which a trace does not contain; one by default.
      pin: Devices for ops by name or pattern, e.g. ``{"encoder/*": 0}``; see `regal_jax.graph.constrain`.
      colocate: Patterns over op names; the ops of each share a device.
      profile: The device (`regal_jax.importers.roofline.PROFILES` or your own) that runtimes are
        estimated for, or ``"measured"``: every op is run on the device at hand (`MeasuredProfile`). A
        sequence gives one runtime for each device.
      name: Name of the graph; by default that of the function.

    Returns:
      The graph, times in seconds.

    Raises:
      FormatError: JAX cannot trace ``fn`` on these arguments (the cause is kept), or ``fn`` changes
        something in a way that no trace shows.
      ConfigError: An option is out of range.
      GraphError: ``fn`` has no arrays and computes nothing.

    Examples:
      >>> import jax, jax.numpy as jnp
      >>> from regal_jax import from_jax
      >>> array = jax.ShapeDtypeStruct((8, 8), jnp.float32)
      >>> def layer(w, x):
      ...     return jnp.tanh(x @ w)
      >>> from_jax(layer, array, array, resident_argnums=0).op_names
      ('w', 'x', 'start', 'dot_general', 'tanh')
    """
    if not callable(fn):
        raise ConfigError(f"fn: give a function, got {shown(fn)}")
    name = name or _name_of(fn)
    check_kind("kwargs", kwargs or {}, Mapping)
    kwargs = dict(kwargs or {})
    known = [*range(len(args)), *kwargs]
    names = parameter_names(fn)
    static = argument_names(static_argnums, known, "static_argnums", names)
    resident = argument_names(resident_argnums, known, "resident_argnums", names)
    donated = (
        None if donate_argnums is None else argument_names(donate_argnums, known, "donate_argnums", names)
    )
    devices = _devices(input_devices, known, names)
    profiles = profile_list(profile)
    if real(while_trip_count, 0) is None:
        raise ConfigError(f"while_trip_count: {shown(while_trip_count)} must be finite and zero or more")
    traced = trace_call(fn, args, kwargs, static, name)
    leaves, program, returned = traced.call.leaves, traced.program, traced.tree.num_leaves
    sources = _sources(leaves, program, returned, resident, donated, devices)
    # All arrays that an object holds after the call are results of the call, changed or not.
    loose = {value for leaf, value in zip(leaves, program.inputs, strict=True) if leaf.loose}
    kept = set(program.results[:returned]) | (set(program.results[returned:]) - loose)
    found = [_profile(p) for p in profiles]
    steps = [_step(equation, found, while_trip_count) for equation in program.equations]
    for each in found:
        if isinstance(each, MeasuredProfile):
            each.warn()
    return constrain(assemble(name, sources, steps, kept), pin, colocate)


def _sources(
    leaves: Sequence[Leaf],
    program: Program,
    returned: int,
    resident: frozenset[ArgName],
    donated: frozenset[ArgName] | None,
    devices: Mapping[ArgName, int],
) -> list[Source]:
    held_after = set(program.results[returned:])
    sources = [
        Source(
            leaf.name,
            value,
            aval_bytes(value.aval),
            resident=leaf.state or leaf.arg in resident,
            donated=leaf.state and value not in held_after if donated is None else leaf.arg in donated,
            device=0 if leaf.arg is None else devices.get(leaf.arg, 0),
        )
        for leaf, value in zip(leaves, program.inputs, strict=True)
    ]
    return sources + [
        Source(f"constant_{i}", value, aval_bytes(value.aval), True, False, 0)
        for i, value in enumerate(program.constants)
    ]


def _op_name(equation: Equation) -> str:
    return "/".join(filter(None, (equation.scope, equation.primitive)))


def _profile(profile: str | DeviceProfile | MeasuredProfile) -> DeviceProfile | MeasuredProfile:
    if isinstance(profile, MeasuredProfile):
        return profile
    is_measured = isinstance(profile, str) and profile.lower() == MEASURED
    return MeasuredProfile() if is_measured else find_profile(profile, MEASURED)


def _step(
    equation: Equation, profiles: Sequence[DeviceProfile | MeasuredProfile], while_trip_count: float
) -> Step:
    return Step(
        name=_op_name(equation),
        kind=equation.primitive,
        inputs=equation.inputs,
        outputs=[(value, aval_bytes(value.aval)) for value in equation.outputs],
        seconds=[op_seconds(equation, profile, while_trip_count) for profile in profiles],
        temp_bytes=temp_bytes(equation),
        ordered=equation.ordered,
    )


def trace_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    static: frozenset[ArgName],
    name: str,
) -> TracedCall:
    """The program of a call, as `from_jax` sees it.

    Raises:
      FormatError: See `from_jax`.
    """
    call = None
    try:
        call = FlatCall(fn, args, kwargs, static)
        with refusing_leaks(fn):
            made = jax.make_jaxpr(call, return_shape=True)(*(leaf.value for leaf in call.leaves))
        jaxpr, (returned, _) = made
        return TracedCall(call, flatten(jaxpr), jax.tree.structure(returned))
    except FormatError:
        raise
    # Tracing runs the user's code, which may raise anything.
    except Exception as error:
        raise trace_error(name, error, call.leaves if call else ()) from error


def trace_error(name: str, error: Exception, leaves: Sequence[Leaf] = ()) -> FormatError:
    """What is said where JAX cannot trace a function.

    Args:
      name: Name of the function.
      error: What JAX, or the function, raised.
      leaves: The arguments that should be arrays.
    """
    text = next(iter(str(error).splitlines()), "")
    remedy = _NNX_REMEDY if "different trace level" in text else _REMEDY
    odd = next((leaf for leaf in leaves if not is_array(leaf.value)), None)
    if odd is not None and isinstance(error, TypeError):
        text = f"the argument {odd.name!r} is {shown(odd.value)}, which is no array"
        remedy = "name it in static_argnums, or bind it with functools.partial"
    return FormatError(f"cannot trace {name!r}: {type(error).__name__}: {text} ({remedy})")


def argument_names(
    given: ArgName | Sequence[ArgName] | None, known: Sequence[ArgName], what: str, names: Sequence[str] = ()
) -> frozenset[ArgName]:
    """The arguments that an option names, by index or by name; ``None`` names none.

    Args:
      given: The value of the option.
      known: The arguments of the call: indices, then keywords.
      what: The option, for the message.
      names: Parameters by place. An argument that the option names by place may be given by keyword, and the
        other way round; one that is left out has its default.

    Raises:
      ConfigError: There is no such argument, or ``given`` has another type.
    """
    if given is None:
        return frozenset()
    if isinstance(given, (int, str)) or whole(given) is not None:
        items: list[Any] = [given]
    elif is_list(given):
        items = list(given)
    else:
        raise ConfigError(f"{what}: {shown(given)} must be indices or names of arguments")
    positional = sum(isinstance(k, int) for k in known)
    result: set[ArgName] = set()
    for item in items:
        index = whole(item)
        by_place = None if index is None else index + (positional if index < 0 else 0)
        arg = item if isinstance(item, str) else by_place
        if arg is None or (arg not in known and _parameter(arg, names) is None):
            raise ConfigError(f"{what}: there is no argument {shown(item)}; the arguments are {list(known)}")
        result.update({arg, _parameter(arg, names)} & set(known))
    return frozenset(result)


def _parameter(arg: ArgName, names: Sequence[str]) -> ArgName | None:
    """The name of the parameter at a place, or the place of one with a name."""
    if isinstance(arg, str):
        return names.index(arg) if arg in names else None
    return names[arg] if 0 <= arg < len(names) else None


def _devices(
    given: int | Mapping[ArgName, int], known: Sequence[ArgName], names: Sequence[str]
) -> dict[ArgName, int]:
    by_arg = dict(given) if isinstance(given, Mapping) else dict.fromkeys(known, given)
    result: dict[ArgName, int] = {}
    for arg, device in by_arg.items():
        index = whole(device, 0)
        if index is None:
            raise ConfigError(f"input_devices: {shown(device)} must be the index of a device, from 0")
        result |= dict.fromkeys(argument_names([arg], known, "input_devices", names), index)
    return result


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
