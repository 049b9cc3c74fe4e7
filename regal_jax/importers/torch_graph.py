"""From a traced PyTorch program to a `ComputationGraph`: residents, the start barrier, one op a call."""

import collections
import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.aten_cost import call_seconds
from regal_jax.importers.fx_program import Program, Value, flatten, tensor_bytes
from regal_jax.importers.roofline import DeviceProfile
from regal_jax.importers.torch_trace import Held, Trace

__all__ = ["graph_of"]


def graph_of(
    name: str,
    traced: Trace,
    leaf_devices: Sequence[int],
    donate_state: bool,
    profiles: Sequence[DeviceProfile],
) -> ComputationGraph:
    """The graph of a traced module, as `from_torch` describes it.

    Args:
      name: Of the graph.
      traced: The program and what its placeholders stand for.
      leaf_devices: Device of each leaf of the arguments.
      donate_state: Residents that are replaced are freed after their last reader.
      profiles: The devices that runtimes are estimated for.

    Raises:
      FormatError: A size that depends on data.
    """
    values = _values(traced.held)
    program = flatten(traced.module, values)
    firsts: dict[Value, Held] = {}
    for held, value in zip(traced.held, values, strict=True):
        if isinstance(value, Value):
            firsts.setdefault(value, held)
    sources = [
        _source(held, value, donate_state, 0 if held.leaf is None else leaf_devices[held.leaf])
        for value, held in firsts.items()
    ]
    sources += [_Source(f"constant_{i}", v, True, False, 0) for i, v in enumerate(program.constants)]
    return _Assembly(name, program, sources).graph(profiles)


def _values(held: Sequence[Held]) -> list[Any]:
    """A value for each tensor, the same for tied parameters; whatever is no tensor as it is."""
    of: dict[int, Value] = {}
    return [
        of.setdefault(id(h.tensor), Value(h.tensor)) if isinstance(h.tensor, torch.Tensor) else h.tensor
        for h in held
    ]


@dataclasses.dataclass(frozen=True)
class _Source:
    """A tensor that is there before the program starts."""

    name: str
    value: Value
    resident: bool
    donated: bool
    device: int


def _source(held: Held, value: Value, donate_state: bool, device: int) -> _Source:
    resident = held.leaf is None
    return _Source(held.name, value, resident, donate_state and resident and held.replaced, device)


class _Assembly:
    """Puts sources, the start barrier and the calls into a `GraphBuilder`, as `from_jax` does."""

    def __init__(self, name: str, program: Program, sources: Sequence[_Source]) -> None:
        self.program, self.sources = program, sources
        self.builder = GraphBuilder(name)
        self.names: collections.Counter[str] = collections.Counter()
        self.taken: set[str] = set()
        self.kept = {value for value in program.outputs if value is not None}
        self.first_reader: dict[Value, int] = {}
        for i, call in enumerate(program.calls):
            for value in call.inputs:
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

    def graph(self, profiles: Sequence[DeviceProfile]) -> ComputationGraph:
        source_names = [self.unique(source.name) for source in self.sources]
        barrier = self.unique("start")
        op_names = [
            self.unique("/".join(filter(None, (c.scope, c.kind.rpartition(".")[2]))))
            for c in self.program.calls
        ]
        groups: list[str | None] = [None] * len(op_names)
        made: dict[Value, tuple[int, int]] = {}
        for source, name in zip(self.sources, source_names, strict=True):
            made[source.value] = (self.add_source(source, name, op_names, groups), 0)
        before = self.builder.add_op(barrier, kind="start", control_inputs=source_names) if made else None
        for call, name, group in zip(self.program.calls, op_names, groups, strict=True):
            inputs = [made[v] for v in call.inputs]
            waits = before is not None and all(op < before for op, _ in inputs)
            seconds = [call_seconds(call, profile) for profile in profiles]
            op = self.builder.add_op(
                name,
                kind=call.kind,
                runtime=seconds if len(seconds) > 1 else seconds[0],
                outputs=[tensor_bytes(v) for v in call.outputs],
                inputs=inputs,
                control_inputs=[before] if waits else [],  # pyright: ignore[reportArgumentType]
                keep=[port for port, v in enumerate(call.outputs) if v in self.kept],
                colocation_group=group,
            )
            made.update({v: (op, port) for port, v in enumerate(call.outputs)})
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
            outputs=[tensor_bytes(source.value)],
            keep=[0] if not source.donated or source.value in self.kept else [],
            allowed_devices=None if source.resident else [source.device],
            colocation_group=None if reader is None else op_names[reader],
        )
