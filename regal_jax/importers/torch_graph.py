"""Conversion of a traced PyTorch program to a `ComputationGraph`: residents, inputs, one op per call."""

from collections.abc import Sequence
from typing import Any

import torch

from regal_jax.graph import ComputationGraph
from regal_jax.importers.assembly import Source, Step, assemble
from regal_jax.importers.aten_cost import call_seconds
from regal_jax.importers.fx_program import Call, Value, flatten, tensor_bytes
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
      name: Name of the graph.
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
    kept = {value for value in program.outputs if value is not None}
    return assemble(name, sources, [_step(call, profiles) for call in program.calls], kept)


def _values(held: Sequence[Held]) -> list[Any]:
    """A value for each tensor, the same for tied parameters; anything else as it is."""
    of: dict[int, Value] = {}
    return [
        of.setdefault(id(h.tensor), Value(h.tensor)) if isinstance(h.tensor, torch.Tensor) else h.tensor
        for h in held
    ]


def _step(call: Call, profiles: Sequence[DeviceProfile]) -> Step:
    return Step(
        name="/".join(filter(None, (call.scope, call.kind.rpartition(".")[2]))),
        kind=call.kind,
        inputs=call.inputs,
        outputs=[(value, tensor_bytes(value)) for value in call.outputs],
        seconds=[call_seconds(call, profile) for profile in profiles],
    )
