"""`from_torch`: a PyTorch module, traced with shapes only, as a `ComputationGraph` (extra ``torch``)."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.roofline import DeviceProfile, find_profile

try:
    import torch
except ImportError:
    raise MissingExtraError("torch", "torch") from None
from torch.utils import _pytree as pytree

from regal_jax.importers.aten_cost import call_seconds
from regal_jax.importers.fx_program import Program, Value, flatten, tensor_bytes
from regal_jax.importers.torch_trace import FORMS, Held, trace

__all__ = ["from_torch"]


def from_torch(
    module: torch.nn.Module,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
    form: str = "forward",
    loss: Callable[[Any], Any] | None = None,
    donate_state: bool = False,
    input_devices: int | Mapping[int | str, int] = 0,
    profile: str | DeviceProfile | Sequence[str | DeviceProfile] = "h200",
    name: str | None = None,
) -> ComputationGraph:
    """Traces ``module`` and returns its graph, one op for each ATen op, in program order.

    Nothing is allocated or executed: the module and its arguments may be on the ``meta`` device, and
    where they are changes nothing. `torch.export` traces the forward pass; of its decompositions only
    those are run that make in-place ops functional, so composite ops (``aten.linear``, ``aten.conv2d``,
    ``aten.layer_norm``) stay whole. For a gradient that trace is run under autograd and traced once
    more, which splits them (``aten.t`` and ``aten.addmm``). The module's training mode counts.

    Ops are named after the module that they stand in (``layer1.0.conv1/conv2d``), those that come after
    the forward pass below ``backward/`` and ``adam/``. Dead code is dropped. An op with several results
    is one op with several outputs. Views (``view``, ``t``, ``expand``) take no time, but their output
    counts as memory; ``detach`` and its like are no ops at all. ``torch.cond`` is one op.

    Every parameter, buffer and constant is an op without runtime of kind ``"parameter"``, named as in
    ``state_dict``, read or not; tied parameters are one. It shares a colocation group with its first
    reader. Every tensor of the arguments is one of kind ``"input"`` and stands on its device. The caller
    holds all of them, so they are never freed unless donated. One op ``"start"`` comes after all of them
    and before everything that computes. What the module returns is kept, and new values of buffers
    (statistics of a batch normalisation in training mode) are results as well.

    Args:
      module: The module.
      *args: Its positional arguments: tensors, or pytrees of them and whatever else it takes.
      kwargs: Its keyword arguments.
      form: ``"forward"``; ``"gradient"``: forward and backward, the results being the loss and the
        gradient of every parameter that requires one; ``"training-step"``: that and a step of Adam, by
        the ops of `torch.optim.Adam`, the results being the loss, new parameters and new moments.
      loss: What the module returns -> a scalar. By default the sum of the means of all floating outputs.
      donate_state: Parameters, moments and buffers of which the program returns a new value are freed
        after their last reader.
      input_devices: Device of every input, or of each argument by index or name (those not named: 0).
      profile: The device (`regal_jax.importers.roofline.PROFILES` or your own) that runtimes are
        estimated for; a sequence gives one runtime for each device.
      name: Of the graph; the module's class by default.

    Returns:
      The graph, times in seconds.

    Raises:
      FormatError: Not a module, or one that PyTorch cannot trace on these arguments (the cause is kept).
      ConfigError: An option with an impossible value.
      MissingExtraError: PyTorch is not installed.
    """
    if not isinstance(module, torch.nn.Module):
        raise FormatError(f"module: got {type(module).__name__}; give a torch.nn.Module")
    if form not in FORMS:
        raise ConfigError(f"form: {form!r} is unknown; use one of {', '.join(FORMS)}")
    if loss is not None and form == "forward":
        raise ConfigError("loss: has no meaning in form='forward'; use form='gradient'")
    kwargs = dict(kwargs or {})
    devices = _devices(input_devices, [*range(len(args)), *kwargs])
    profiles = [profile] if isinstance(profile, (str, DeviceProfile)) else list(profile)
    if not profiles:
        raise ConfigError("profile: got no device; name at least one")
    found = [find_profile(p) for p in profiles]
    name = name or type(module).__name__
    traced = trace(module, args, kwargs, form, loss, name)
    arguments = [*range(len(args)), *kwargs]
    owners = [a for a, tree in zip(arguments, (*args, *kwargs.values()), strict=True) for _ in _leaves(tree)]
    values = [Value(h.tensor) if isinstance(h.tensor, torch.Tensor) else h.tensor for h in traced.held]
    program = flatten(traced.module, values)
    sources = [
        _source(h, v, donate_state, 0 if h.leaf is None else devices[owners[h.leaf]])
        for h, v in zip(traced.held, values, strict=True)
        if isinstance(v, Value)
    ]
    sources += [_Source(f"constant_{i}", v, True, False, 0) for i, v in enumerate(program.constants)]
    return _Assembly(name, program, sources).graph(found)


def _leaves(tree: Any) -> list[Any]:
    return pytree.tree_leaves(tree)


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


def _devices(given: int | Mapping[int | str, int], known: Sequence[int | str]) -> dict[int | str, int]:
    by_arg = dict(given) if isinstance(given, Mapping) else dict.fromkeys(known, given)
    if not isinstance(given, Mapping) and not known:
        by_arg = {}
    for arg, device in by_arg.items():
        if arg not in known:
            raise ConfigError(f"input_devices: there is no argument {arg!r}; the arguments are {list(known)}")
        if isinstance(device, bool) or not isinstance(device, int) or device < 0:
            raise ConfigError(f"input_devices: {device!r} must be the index of a device, from 0")
    return {**dict.fromkeys(known, 0), **by_arg}
