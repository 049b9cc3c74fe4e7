"""`from_jax`: a JAX function, traced with shapes only, as a `ComputationGraph`."""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.importers.assembly import Source, Step, assemble
from regal_jax.importers.flat_jaxpr import Equation, Program, aval_bytes, flatten, temp_bytes
from regal_jax.importers.op_cost import op_seconds
from regal_jax.importers.roofline import DeviceProfile, find_profile
from regal_jax.interrupts import interruptible

__all__ = ["from_jax"]

ArgName = int | str
"""A positional argument by its index, or a keyword argument by its name."""


@interruptible()
def from_jax(
    fn: Callable[..., Any],
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    resident_argnums: ArgName | Sequence[ArgName] = (),
    donate_argnums: ArgName | Sequence[ArgName] = (),
    static_argnums: int | Sequence[int] = (),
    input_devices: int | Mapping[ArgName, int] = 0,
    while_trip_count: float = 1,
    profile: str | DeviceProfile | Sequence[str | DeviceProfile] = "h200",
    name: str | None = None,
) -> ComputationGraph:
    """Traces ``fn`` and returns its graph, one op for each equation of its jaxpr, in program order.

    Nothing is allocated or executed: arguments may be `jax.ShapeDtypeStruct`. Calls (``jit``,
    ``custom_jvp``, ``custom_vjp``, ``jax.checkpoint``) are inlined and dead code is dropped. A
    ``scan``, ``while`` or ``cond`` is one op: the runtime of its body times its trip count, or of its
    slowest branch; its `temp_bytes` is an estimate, the peak of what the body holds in program order.
    Ops are named after the user's scopes (Flax modules, `jax.named_scope`, jitted functions), those of
    a gradient below ``backward/``. Views (``reshape``) take no time, but their output counts as memory.

    Every array of the arguments is an op without runtime, read or not: kind ``"parameter"`` if
    resident, else ``"input"``. So is every array that ``fn`` closes over (``"parameter"``). The caller
    holds them, so they are never freed unless donated. A parameter shares a colocation group with its
    first reader; an input stands on its device. One op ``"start"`` comes after all of them and before
    everything that computes, so that they are in memory from the beginning. What ``fn`` returns is
    kept.

    Ctrl-C raises `KeyboardInterrupt` when ``fn`` has been traced, at the latest.

    Args:
      fn: A function that JAX can trace.
      *args: Its positional arguments: pytrees of arrays, shapes or numbers.
      kwargs: Its keyword arguments, arrays too; bind any others with `functools.partial`.
      resident_argnums: Arguments that live on the devices between calls: parameters, optimiser state.
        By index, keyword arguments by name.
      donate_argnums: Arguments whose buffers are freed after their last reader.
      static_argnums: Positional arguments that are not arrays (hashable, as for `jax.jit`).
      input_devices: Device of every input, or of each argument (those not named: 0).
      while_trip_count: Iterations of a ``while`` loop, which a trace cannot tell. The default counts
        one.
      profile: The device (`regal_jax.importers.roofline.PROFILES` or your own) that runtimes are
        estimated for; a sequence gives one runtime for each device.
      name: Of the graph; the function's own by default.

    Returns:
      The graph, times in seconds.

    Raises:
      FormatError: JAX cannot trace ``fn`` on these arguments (the cause is kept).
      ConfigError: An option with an impossible value.
      GraphError: ``fn`` has no arrays and computes nothing.
    """
    name = name or _name_of(fn)
    kwargs = dict(kwargs or {})
    known = [*range(len(args)), *kwargs]
    static = _argnames(static_argnums, known, "static_argnums")
    if any(isinstance(a, str) for a in static):
        raise ConfigError(f"static_argnums: {static_argnums!r} must be indices of positional arguments")
    resident = _argnames(resident_argnums, known, "resident_argnums")
    donated = _argnames(donate_argnums, known, "donate_argnums")
    devices = _devices(input_devices, known)
    profiles = [profile] if isinstance(profile, (str, DeviceProfile)) else list(profile)
    if not profiles:
        raise ConfigError("profile: got no device; name at least one")
    if not (isinstance(while_trip_count, (int, float)) and 0 <= while_trip_count < math.inf):
        raise ConfigError(f"while_trip_count: {while_trip_count!r} must be finite and zero or more")
    program = _trace(fn, args, kwargs, tuple(sorted(static)), name)  # pyright: ignore[reportArgumentType]
    leaves = _leaves(fn, args, kwargs, static)
    sources = [
        Source(path, value, aval_bytes(value.aval), arg in resident, arg in donated, devices.get(arg, 0))
        for (arg, path), value in zip(leaves, program.inputs, strict=True)
    ]
    sources += [
        Source(f"constant_{i}", value, aval_bytes(value.aval), True, False, 0)
        for i, value in enumerate(program.constants)
    ]
    found = [find_profile(p) for p in profiles]
    steps = [_step(equation, found, while_trip_count) for equation in program.equations]
    return assemble(name, sources, steps, program.outputs)


def _step(equation: Equation, profiles: Sequence[DeviceProfile], while_trip_count: float) -> Step:
    return Step(
        name="/".join(filter(None, (equation.scope, equation.primitive))),
        kind=equation.primitive,
        inputs=equation.inputs,
        outputs=[(value, aval_bytes(value.aval)) for value in equation.outputs],
        seconds=[op_seconds(equation, profile, while_trip_count) for profile in profiles],
        temp_bytes=temp_bytes(equation),
        ordered=equation.ordered,
    )


def _trace(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], static: tuple[int, ...], name: str
) -> Program:
    try:
        return flatten(jax.make_jaxpr(fn, static_argnums=static)(*args, **kwargs))
    # Tracing runs the user's code, which may raise anything.
    except Exception as error:
        text = next(iter(str(error).splitlines()), "")
        raise FormatError(
            f"cannot trace {name!r}: {type(error).__name__}: {text} "
            "(it must run under jax.jit on these arguments: name those that are no arrays in static_argnums, "
            "or bind them with functools.partial; see the cause)"
        ) from error


def _leaves(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], static: frozenset[ArgName]
) -> list[tuple[ArgName, str]]:
    """The argument that each traced array belongs to, and a readable path to it."""
    names = _argument_names(fn, len(args))
    dynamic: list[tuple[ArgName, str, Any]] = [
        (i, names[i], arg) for i, arg in enumerate(args) if i not in static
    ]
    dynamic += [(key, key, kwargs[key]) for key in sorted(kwargs)]
    return [
        (arg, "/".join(filter(None, (text, jax.tree_util.keystr(path, simple=True, separator="/")))))
        for arg, text, tree in dynamic
        for path, _ in jax.tree_util.tree_leaves_with_path(tree)
    ]


def _argument_names(fn: Callable[..., Any], count: int) -> list[str]:
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    plain = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (plain + [f"arg{i}" for i in range(len(plain), count)])[:count]


def _argnames(given: ArgName | Sequence[ArgName], known: Sequence[ArgName], what: str) -> frozenset[ArgName]:
    items = [given] if isinstance(given, (int, str)) else list(given)
    positional = sum(isinstance(k, int) for k in known)
    result: set[ArgName] = set()
    for item in items:
        index = isinstance(item, (int, np.integer)) and not isinstance(item, bool)
        arg = int(item) + (positional if item < 0 else 0) if index else item  # pyright: ignore
        if arg not in known:
            raise ConfigError(f"{what}: there is no argument {item!r}; the arguments are {list(known)}")
        result.add(arg)
    return frozenset(result)


def _devices(given: int | Mapping[ArgName, int], known: Sequence[ArgName]) -> dict[ArgName, int]:
    by_arg = dict(given) if isinstance(given, Mapping) else dict.fromkeys(known, given)
    result: dict[ArgName, int] = {}
    for arg, device in by_arg.items():
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise ConfigError(f"input_devices: {device!r} must be the index of a device, from 0")
        (key,) = _argnames([arg], known, "input_devices")
        result[key] = device
    return result


def _name_of(fn: Callable[..., Any]) -> str:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__name__", None) or type(fn).__name__)
