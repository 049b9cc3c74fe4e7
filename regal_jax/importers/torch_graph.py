"""Conversion of a traced PyTorch program to a `ComputationGraph`: residents, inputs, one op per call."""

import dataclasses
from collections.abc import Mapping, Sequence, Set
from typing import Any, Final

import torch

from regal_jax.graph import ComputationGraph
from regal_jax.importers.assembly import Source, Step, assemble
from regal_jax.importers.aten_cost import call_seconds
from regal_jax.importers.body_peak import BodyStep, body_peak
from regal_jax.importers.fx_program import Call, Program, Value, flatten, tensor_bytes
from regal_jax.importers.roofline import DeviceProfile
from regal_jax.importers.torch_trace import ADAM, Held, Trace

__all__ = ["TorchOps", "ops_of", "overwritten"]

_OVERWRITES: Final = frozenset({
    "aten.add", "aten.addcdiv", "aten.addcmul", "aten.div", "aten.lerp", "aten.mul",
})  # fmt: skip
"""Ops of Adam that `torch.optim.Adam` runs in place."""


@dataclasses.dataclass(frozen=True, eq=False)
class TorchOps:
    """The graph of a traced module, and the source or call of each op.

    Attributes:
      graph: The graph.
      trace: The traced module.
      program: Its flat program.
      placeholders: The value of each placeholder of the trace, the same one for tied parameters; other
        arguments as they are.
      sources: The values of the first ops of the graph, in order: of the placeholders, then of constants.
      first_call: The op of ``program.calls[0]``; the ops of the other calls follow it in order.
    """

    graph: ComputationGraph
    trace: Trace
    program: Program
    placeholders: tuple[Any, ...]
    sources: tuple[Value, ...]
    first_call: int


def ops_of(
    name: str,
    traced: Trace,
    leaf_devices: Sequence[int],
    donate_state: bool,
    in_place: bool,
    profiles: Sequence[DeviceProfile],
) -> TorchOps:
    """The graph of a traced module, as `from_torch` describes it, and its ops.

    Args:
      name: Name of the graph.
      traced: The program with its placeholders.
      leaf_devices: Device of each leaf of the arguments.
      donate_state: Whether replaced residents are freed after their last reader.
      in_place: Whether values that share storage are one buffer.
      profiles: The devices that runtimes are estimated for.

    Raises:
      FormatError: A size depends on data.
    """
    values = _values(traced.held)
    program = flatten(traced.module, values)
    firsts: dict[Value, Held] = {}
    for held, value in zip(traced.held, values, strict=True):
        if isinstance(value, Value):
            firsts.setdefault(value, held)
    sources = []
    for value, held in firsts.items():
        resident = held.leaf is None
        donated = donate_state and resident and held.replaced
        device = 0 if held.leaf is None else leaf_devices[held.leaf]
        sources.append(Source(held.name, value, tensor_bytes(value), resident, donated, device))
    sources += [
        Source(f"constant_{i}", value, tensor_bytes(value), True, False, 0)
        for i, value in enumerate(program.constants)
    ]
    kept = {value for value in program.outputs if isinstance(value, Value)}
    donated = {source.value for source in sources if source.donated}
    owners, after = _sharing(program, kept, donated) if in_place else ({}, {})
    # A result stays in memory with its whole buffer.
    kept |= {owners[value] for value in kept if value in owners}
    steps = [_step(call, owners, after.get(call, ()), profiles, in_place) for call in program.calls]
    graph = assemble(name, sources, steps, kept)
    read = tuple(source.value for source in sources)
    first = graph.num_ops - len(program.calls)
    return TorchOps(graph, traced, program, tuple(values), read, first)


def _values(held: Sequence[Held]) -> list[Any]:
    """A value for each tensor, the same for tied parameters; anything else as it is."""
    of: dict[int, Value] = {}
    return [
        of.setdefault(id(h.tensor), Value(h.tensor)) if isinstance(h.tensor, torch.Tensor) else h.tensor
        for h in held
    ]


def overwritten(call: Call) -> Value | None:
    """The operand that an op may overwrite if it has no later reader, as `torch.optim.Adam` does."""
    if call.kind not in _OVERWRITES or not (call.scope == ADAM or call.scope.startswith(f"{ADAM}/")):
        return None
    first = call.operands[0] if call.operands else None
    if not isinstance(first, Value) or len(call.outputs) != 1:
        return None
    made, old = call.outputs[0].tensor, first.tensor
    return first if (made.shape, made.dtype) == (old.shape, old.dtype) else None


def _sharing(
    program: Program, kept: Set[Value], donated: Set[Value]
) -> tuple[dict[Value, Value], dict[Call, list[int]]]:
    """Value -> the value whose memory it shares; and the ops that must run before each op.

    An op that writes over an operand runs after everything else that reads the operand or a view of it.
    """
    owners: dict[Value, Value] = {}
    readers: dict[Value, list[int]] = {}
    sources = {value for call in program.calls for value in call.inputs}
    sources -= {value for call in program.calls for value in call.outputs}
    for index, call in enumerate(program.calls):
        for value, owner in zip(call.outputs, call.owners, strict=True):
            if owner is not None:
                owners[value] = owner
        for value in call.inputs:
            readers.setdefault(owners.get(value, value), []).append(index)
    viewed_in_results = {owners[value] for value in kept if value in owners}
    after: dict[Call, list[int]] = {}
    for index, call in enumerate(program.calls):
        old = overwritten(call)
        if old is None or (old in owners and owners[old] in viewed_in_results):
            continue
        fixed = old in kept or old in viewed_in_results or (old in sources and old not in donated)
        others = [reader for reader in readers[owners.get(old, old)] if reader != index]
        if fixed or any(reader > index for reader in others):
            continue
        owners[call.outputs[0]] = owners.get(old, old)
        after[call] = others
    return owners, after


def _step(
    call: Call,
    owners: Mapping[Value, Value],
    after: Sequence[int],
    profiles: Sequence[DeviceProfile],
    in_place: bool,
) -> Step:
    return Step(
        name="/".join(filter(None, (call.scope, call.kind.rpartition(".")[2]))),
        kind=call.kind,
        inputs=_reads(call, owners),
        outputs=list(_sizes(call, owners).items()),
        seconds=[call_seconds(call, profile) for profile in profiles],
        temp_bytes=_temp_bytes(call, in_place),
        after=after,
    )


def _reads(call: Call, owners: Mapping[Value, Value]) -> tuple[Value, ...]:
    """What an op reads. A reader of a value that shares a buffer keeps that buffer in memory."""
    bases = [owners[value] for value in call.inputs if value in owners]
    return tuple(dict.fromkeys((*call.inputs, *bases)))


def _sizes(call: Call, owners: Mapping[Value, Value]) -> dict[Value, int]:
    return {value: 0 if value in owners else tensor_bytes(value) for value in call.outputs}


def _temp_bytes(call: Call, in_place: bool) -> int:
    """Scratch memory of an op: the largest peak of its bodies, without the results of a branch."""
    peaks = [0]
    for body in call.bodies:
        rows = [(value, owner) for c in body.calls for value, owner in zip(c.outputs, c.owners, strict=True)]
        owners = {value: owner for value, owner in rows if owner is not None and in_place}
        steps = [BodyStep(_reads(c, owners), _sizes(c, owners), _temp_bytes(c, in_place)) for c in body.calls]
        results = {value for value in body.outputs if isinstance(value, Value)}
        results |= {owners[value] for value in results if value in owners}
        peaks.append(body_peak(steps, results, count_results=call.kind != "cond"))
    return max(peaks)
