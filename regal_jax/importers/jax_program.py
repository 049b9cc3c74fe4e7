"""`from_jax`: a JAX function, traced with shapes only, as a `ComputationGraph`."""

import collections
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.flat_jaxpr import Program, Value, aval_bytes, flatten, temp_bytes
from regal_jax.importers.op_cost import op_seconds
from regal_jax.importers.roofline import DeviceProfile, find_profile

__all__ = ["from_jax"]

ArgName = int | str
"""A positional argument by its index, or a keyword argument by its name."""


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
        _Source(path, value, arg in resident, arg in donated, devices.get(arg, 0))
        for (arg, path), value in zip(leaves, program.inputs, strict=True)
    ]
    sources += [_Source(f"constant_{i}", v, True, False, 0) for i, v in enumerate(program.constants)]
    found = [find_profile(p) for p in profiles]
    return _Assembly(name, program, sources).graph(found, while_trip_count)


@dataclasses.dataclass(frozen=True)
class _Source:
    """An array that is there before the program starts."""

    name: str
    value: Value
    resident: bool
    donated: bool
    device: int


class _Assembly:
    """Puts sources, the start barrier and the equations into a `GraphBuilder`."""

    def __init__(self, name: str, program: Program, sources: Sequence[_Source]) -> None:
        self.program, self.sources = program, sources
        self.builder = GraphBuilder(name)
        self.names: collections.Counter[str] = collections.Counter()
        self.taken: set[str] = set()
        self.kept = set(program.outputs)
        self.first_reader: dict[Value, int] = {}
        for i, equation in enumerate(program.equations):
            for value in equation.inputs:
                self.first_reader.setdefault(value, i)

    def unique(self, name: str) -> str:
        """``name``, or the first free of ``name_1``, ``name_2``, ..."""
        while True:
            count = self.names[name]
            self.names[name] += 1
            candidate = f"{name}_{count}" if count else name
            if candidate not in self.taken:
                self.taken.add(candidate)
                return candidate

    def graph(self, profiles: Sequence[DeviceProfile], while_trip_count: float) -> ComputationGraph:
        source_names = [self.unique(source.name) for source in self.sources]
        barrier = self.unique("start")
        op_names = [
            self.unique("/".join(filter(None, (e.scope, e.primitive)))) for e in self.program.equations
        ]
        groups: list[str | None] = [None] * len(op_names)
        made: dict[Value, tuple[int, int]] = {}
        for source, name in zip(self.sources, source_names, strict=True):
            made[source.value] = (self.add_source(source, name, op_names, groups), 0)
        before = self.builder.add_op(barrier, kind="start", control_inputs=source_names) if made else None
        previous: int | None = None
        for equation, name, group in zip(self.program.equations, op_names, groups, strict=True):
            inputs = [made[v] for v in equation.inputs]
            controls = [previous] if equation.ordered and previous is not None else []
            if before is not None and all(op < before for op, _ in inputs):
                controls.append(before)
            seconds = [op_seconds(equation, profile, while_trip_count) for profile in profiles]
            op = self.builder.add_op(
                name,
                kind=equation.primitive,
                runtime=seconds if len(seconds) > 1 else seconds[0],
                outputs=[aval_bytes(v.aval) for v in equation.outputs],
                inputs=inputs,
                control_inputs=controls,
                temp_bytes=temp_bytes(equation),
                keep=[port for port, v in enumerate(equation.outputs) if v in self.kept],
                colocation_group=group,
            )
            made.update({v: (op, port) for port, v in enumerate(equation.outputs)})
            previous = op if equation.ordered else previous
        return self.builder.build()

    def add_source(
        self, source: _Source, name: str, op_names: Sequence[str], groups: list[str | None]
    ) -> int:
        """Adds one source; a resident one joins the group of its first reader, or founds it."""
        reader = self.first_reader.get(source.value) if source.resident else None
        if reader is not None:
            groups[reader] = op_names[reader]
        return self.builder.add_op(
            name,
            kind="parameter" if source.resident else "input",
            outputs=[aval_bytes(source.value.aval)],
            keep=[0] if not source.donated or source.value in self.kept else [],
            allowed_devices=None if source.resident else [source.device],
            colocation_group=None if reader is None else op_names[reader],
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
