"""A plan of a traced program as actions of each device: segments of equations, and transfers."""

import dataclasses
from collections.abc import Hashable, Iterable
from typing import Any

import jax

from regal_jax.errors import FormatError, PlanError
from regal_jax.execution.matching import check_names, full_events
from regal_jax.importers.flat_jaxpr import Equation, Program, Value
from regal_jax.importers.jax_program import TracedCall
from regal_jax.plan import Plan

__all__ = ["Move", "Segment", "Wait", "actions_of", "homes_of", "is_reference"]


def is_reference(value: Value) -> bool:
    """Whether a value is a `jax.Ref`. Segments take and return its array."""
    return "Ref" in type(value.aval).__name__


@dataclasses.dataclass(eq=False)
class Segment:
    """Consecutive equations of a device that are compiled as one program.

    Attributes:
      device: Index of the device.
      ops: Their ops in the graph of the plan.
      equations: The equations, in the order of the plan.
      reads: Values from outside that they read.
      makes: Values that others read, or that the program returns. References that it reads, and that others
        read after it, are among them, since their arrays may have changed.
    """

    device: int
    ops: list[int]
    equations: list[Equation]
    reads: tuple[Value, ...] = ()
    makes: tuple[Value, ...] = ()


@dataclasses.dataclass(frozen=True, eq=False)
class Move:
    """The copy of a value to another device.

    Attributes:
      device: The receiving device.
      source: The sending device.
      value: What is copied.
      op, port: The op that makes it in the graph of the plan, and which of its outputs it is.
    """

    device: int
    source: int
    value: Value
    op: int
    port: int


@dataclasses.dataclass(frozen=True, eq=False)
class Wait:
    """A device waits for an op of another device from which it reads nothing.

    Attributes:
      device: The device that waits.
      segment: What it waits for.
    """

    device: int
    segment: Segment


@dataclasses.dataclass(eq=False)
class _Layout:
    """For each op of the plan's graph, its values and its equation; sources have no equation."""

    values: list[tuple[Value, ...]]
    equations: list[Equation | None]


def actions_of(plan: Plan, traced: TracedCall) -> list[Segment | Move | Wait]:
    """The actions of all devices, in an order in which they could run one after another.

    Consecutive ops of a device form one segment unless a transfer to or from the device separates them. A
    transfer keeps its place in the plan. In a plan whose transfers are not events, it comes directly after
    the op that makes the tensor. A segment therefore waits only for actions before its first op, and devices
    never wait for each other in a circle.

    Args:
      plan: The plan.
      traced: The call of the function.

    Raises:
      PlanError: The plan is not for this program, or it splits a `jax.Ref` from its readers.
      FormatError: An op runs on several devices itself.
    """
    layout = _layout(plan, traced)
    for equation in traced.program.equations:
        _check_mesh(equation)
    producer = {value: (op, port) for op, own in enumerate(layout.values) for port, value in enumerate(own)}
    sources = (*traced.program.inputs, *traced.program.constants)
    found = _Actions(plan, producer, zip(sources, homes_of(plan, traced), strict=True))
    reads = [equation.inputs if equation else () for equation in layout.equations]
    for op, port, device in full_events(plan, layout.values, reads):
        equation = layout.equations[op]
        if port >= 0:
            found.move(layout.values[op][port], device)
        elif equation is not None:
            found.compute(op, equation, device)
    _connect(found.actions, traced.program)
    return found.actions


def homes_of(plan: Plan, traced: TracedCall) -> list[int]:
    """The device of each input of the program, then of each constant."""
    count = len(traced.program.inputs) + len(traced.program.constants)
    return [int(device) for device in plan.placement[:count]]


def _layout(plan: Plan, traced: TracedCall) -> _Layout:
    program = traced.program
    check_names(plan, traced.op_names, "function")
    sources: list[tuple[Value, ...]] = [(value,) for value in (*program.inputs, *program.constants)]
    barrier: list[tuple[Value, ...]] = [()] if sources else []
    nothing: list[Equation | None] = [None] * (len(sources) + len(barrier))
    return _Layout(
        [*sources, *barrier, *(equation.outputs for equation in program.equations)],
        [*nothing, *program.equations],
    )


def _check_mesh(equation: Equation) -> None:
    sizes = [getattr(equation.params.get("mesh"), "size", 1)]
    leaves = jax.tree.leaves([equation.params.get(name) for name in ("sharding", "devices")])
    sizes += [leaf.num_devices for leaf in leaves if isinstance(leaf, jax.sharding.Sharding)]
    if max(sizes) > 1:
        raise FormatError(
            f"regal_jax.execute: {equation.primitive} runs on {max(sizes)} devices itself, and a plan has "
            "one device for each op: execute the function without it"
        )
    for body in equation.bodies:
        for inner in body.equations:
            _check_mesh(inner)


class _Actions:
    """Collects actions; `open` has the segment of each device that may still grow."""

    def __init__(
        self, plan: Plan, producer: dict[Value, tuple[int, int]], there: Iterable[tuple[Value, int]]
    ) -> None:
        self.actions: list[Segment | Move | Wait] = []
        self._plan, self._producer = plan, producer
        self._open: dict[int, Segment] = {}
        self._ordered: Segment | None = None
        self._there = set(there)

    def _check(self, what: str, device: int, values: Iterable[Value]) -> None:
        """Refuses a plan that uses a value before it has been computed or transferred."""
        if not self._there.issuperset((value, device) for value in values):
            raise PlanError(
                f"the plan for {self._plan.graph_name!r} {what} on device {device} before a value that it "
                "needs is there; plan the graph of this function"
            )

    def move(self, value: Value, device: int) -> None:
        op, port = self._producer[value]
        source = int(self._plan.placement[op])
        if not hasattr(value.aval, "dtype") or is_reference(value):
            raise PlanError(
                f"the plan sends the output of {self._plan.op_names[op]!r} to device {device}, which is a "
                "reference to an array; keep its readers with it: colocate= in from_jax"
            )
        self._check(f"sends the output of {self._plan.op_names[op]!r}", source, (value,))
        self._there.add((value, device))
        self._open.pop(source, None)
        self._open.pop(device, None)
        self.actions.append(Move(device, source, value, op, port))

    def compute(self, op: int, equation: Equation, device: int) -> None:
        self._check(f"runs {self._plan.op_names[op]!r}", device, equation.inputs)
        self._there.update((value, device) for value in equation.outputs)
        before = self._ordered if equation.ordered else None
        if before is not None and before.device != device:
            self._open.pop(before.device, None)
            self._open.pop(device, None)
            self.actions.append(Wait(device, before))
        segment = self._open.get(device)
        if segment is None:
            segment = self._open[device] = Segment(device, [], [])
            self.actions.append(segment)
        segment.ops.append(op)
        segment.equations.append(equation)
        if equation.ordered:
            self._ordered = segment


def _connect(actions: Iterable[Segment | Move | Wait], program: Program) -> None:
    """Sets what each segment reads and makes."""
    segments = [action for action in actions if isinstance(action, Segment)]
    needed: set[Hashable] = set(program.outputs)
    needed.update(action.value for action in actions if isinstance(action, Move))
    for segment in segments:
        own = {value for equation in segment.equations for value in equation.outputs}
        reads: dict[Any, None] = dict.fromkeys(
            value for equation in segment.equations for value in equation.inputs if value not in own
        )
        segment.reads = tuple(reads)
        needed.update(reads)
    given = set(program.inputs) | set(program.constants)
    read_later: set[Value] = {value for value in given if is_reference(value)}
    for segment in reversed(segments):
        made = [value for equation in segment.equations for value in equation.outputs]
        changed = [value for value in segment.reads if is_reference(value) and value in read_later]
        segment.makes = (*(value for value in made if value in needed), *changed)
        read_later.update(segment.reads)
