"""`assemble`: sources, the start barrier and the steps of a traced program as a `ComputationGraph`."""

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

from regal_jax.graph import ComputationGraph, GraphBuilder

__all__ = ["Source", "Step", "assemble", "unique_names"]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """An array that exists before the program starts.

    Attributes:
      name: Its name; a number is added if it is taken.
      value: Identifier of the array, as `Step` uses it.
      size: Size in bytes.
      resident: It is on the device of its first reader (parameters, state); otherwise it is an input.
      donated: It is freed after its last reader.
      device: Index of the device of an input; not used if ``resident``.
    """

    name: str
    value: Hashable
    size: int
    resident: bool
    donated: bool
    device: int


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One op of a program.

    Attributes:
      name: Its name; a number is added if it is taken.
      kind: As in `ComputationGraph.op_kinds`.
      inputs: Values, each of a source or an earlier step.
      outputs: A value and its bytes for each output.
      seconds: Runtime in seconds: one, or one for each device.
      temp_bytes: Scratch memory in bytes while the op runs.
      ordered: It runs after all earlier ordered steps.
      after: Indices of earlier steps after which it runs, whether or not it reads from them.
    """

    name: str
    kind: str
    inputs: Sequence[Hashable]
    outputs: Sequence[tuple[Hashable, int]]
    seconds: Sequence[float]
    temp_bytes: int = 0
    ordered: bool = False
    after: Sequence[int] = ()


def assemble(
    name: str, sources: Sequence[Source], steps: Sequence[Step], kept: Iterable[Hashable]
) -> ComputationGraph:
    """The graph of a program: its sources, an op ``start`` that waits for them, its steps.

    All sources are resident ops, in memory from time 0; one with `Source.resident` is colocated with its
    first reader. Steps that read nothing but sources wait for ``start``.

    Args:
      name: Name of the graph.
      sources: Arrays that exist before the program starts.
      steps: Steps in an order in which they can run.
      kept: Values that the program returns, never freed.

    Raises:
      GraphError: The program has no arrays and computes nothing.
    """
    builder, kept = GraphBuilder(name), set(kept)
    named = unique_names([source.name for source in sources], [step.name for step in steps])
    source_names, barrier, step_names = named
    groups, made = _add_sources(builder, sources, source_names, steps, step_names, kept)
    before = builder.add_op(barrier, kind="start", control_inputs=source_names) if sources else None
    previous: int | None = None
    ops: list[int] = []
    for step, step_name, group in zip(steps, step_names, groups, strict=True):
        inputs = [made[value] for value in step.inputs]
        controls = [ops[index] for index in step.after]
        if step.ordered and previous is not None:
            controls.append(previous)
        if before is not None and all(op < before for op, _ in inputs):
            controls.append(before)
        op = builder.add_op(
            step_name,
            kind=step.kind,
            runtime=list(step.seconds) if len(step.seconds) > 1 else step.seconds[0],
            outputs=[size for _, size in step.outputs],
            inputs=inputs,
            control_inputs=controls,
            temp_bytes=step.temp_bytes,
            keep=[port for port, (value, _) in enumerate(step.outputs) if value in kept],
            colocation_group=group,
        )
        ops.append(op)
        made.update({value: (op, port) for port, (value, _) in enumerate(step.outputs)})
        previous = op if step.ordered else previous
    return builder.build()


def unique_names(sources: Sequence[str], steps: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Names of the ops: of sources, of the op ``start`` (only if there are sources), and of steps."""
    unique = _Names()
    return [unique(name) for name in sources], unique("start"), [unique(name) for name in steps]


def _add_sources(
    builder: GraphBuilder,
    sources: Sequence[Source],
    names: Sequence[str],
    steps: Sequence[Step],
    step_names: Sequence[str],
    kept: set[Any],
) -> tuple[list[str | None], dict[Any, tuple[int, int]]]:
    """The colocation group of each step, and the op and output of each source.

    A resident source joins the group of its first reader, which is created if need be.
    """
    first_reader: dict[Any, int] = {}
    for i, step in enumerate(steps):
        for value in step.inputs:
            first_reader.setdefault(value, i)
    groups: list[str | None] = [None] * len(steps)
    made: dict[Any, tuple[int, int]] = {}
    for source, name in zip(sources, names, strict=True):
        reader = first_reader.get(source.value) if source.resident else None
        group = None if reader is None else step_names[reader]
        if reader is not None:
            groups[reader] = group
        op = builder.add_op(
            name,
            kind="parameter" if source.resident else "input",
            outputs=[source.size],
            keep=[0] if not source.donated or source.value in kept else [],
            allowed_devices=None if source.resident else [source.device],
            colocation_group=group,
            resident=True,
        )
        made[source.value] = (op, 0)
    return groups, made


class _Names:
    """Makes names unique: a name that is taken becomes the first free one of ``name_1``, ``name_2``, ..."""

    def __init__(self) -> None:
        self._counts: collections.Counter[str] = collections.Counter()
        self._taken: set[str] = set()

    def __call__(self, name: str) -> str:
        while True:
            count = self._counts[name]
            self._counts[name] += 1
            candidate = f"{name}_{count}" if count else name
            if candidate not in self._taken:
                self._taken.add(candidate)
                return candidate
