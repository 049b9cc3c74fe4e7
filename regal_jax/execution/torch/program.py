"""A plan of a traced PyTorch program as actions, each with the tensors that it is the last to use."""

import dataclasses
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from torch.utils import _pytree as pytree

from regal_jax.errors import PlanError
from regal_jax.execution.matching import check_names, full_events
from regal_jax.importers.fx_program import Call, Value
from regal_jax.importers.torch_graph import TorchOps, overwritten
from regal_jax.importers.torch_trace import ADAM, FIRST_STEP
from regal_jax.plan import Plan

__all__ = ["Action", "Key", "TorchProgram"]

Key = tuple[Value, int]
"""A value, and the index of the device in the plan that holds it."""


@dataclasses.dataclass(frozen=True, eq=False, slots=True)
class Action:
    """A call, or a transfer of a value.

    Attributes:
      device: Index of the device that computes or receives.
      call: The call; `None` for a transfer.
      moved: What is transferred, and where from; `None` for a call.
      frees: What nobody uses afterwards.
      target: What computes the call: its op, or the variant of that op which writes over its first operand.
    """

    device: int
    call: Call | None
    moved: Key | None
    frees: tuple[Key, ...]
    target: Any = None


class TorchProgram:
    """A traced program in the order of a plan.

    Attributes:
      ops: The traced program.
      actions: The actions, in the order of the plan.
      homes: The device of each value.
    """

    def __init__(self, plan: Plan, ops: TorchOps, devices: Sequence[torch.device]) -> None:
        """Raises `PlanError` if the plan is for another program, or its order is impossible."""
        check_names(plan, ops.graph.op_names, "module")
        self.ops = ops
        self._devices = list(devices)
        barrier: list[tuple[Value, ...]] = [()] * (ops.first_call - len(ops.sources))
        made = [*((value,) for value in ops.sources), *barrier, *(call.outputs for call in ops.program.calls)]
        read = [*(() for _ in range(ops.first_call)), *(call.inputs for call in ops.program.calls)]
        place = plan.placement.tolist()
        self.homes: dict[Value, int] = {
            value: place[op] for op, values in enumerate(made) for value in values
        }
        rows: list[tuple[int, Call | None, Key | None]] = []
        for op, port, device in full_events(plan, made, read):
            if port >= 0:
                rows.append((device, None, (made[op][port], place[op])))
            elif op >= ops.first_call:
                rows.append((device, ops.program.calls[op - ops.first_call], None))
        _check_order(plan, ops, rows, self.homes)
        kept = {(v, self.homes[v]) for v in ops.program.outputs if isinstance(v, Value)}
        state = {
            value
            for held, value in zip(ops.trace.held, ops.placeholders, strict=True)
            if held.replaced and held.leaf is None and isinstance(value, Value)
        }
        fixed = set(ops.sources) - state
        # What the program returns must not be written over, nor what lies in the same memory.
        owners = {v: o for call in ops.program.calls for v, o in zip(call.outputs, call.owners, strict=True)}
        returned = {v for v in ops.program.outputs if isinstance(v, Value)}
        fixed |= returned | {owner for value in returned if (owner := owners.get(value)) is not None}
        self.actions = _in_place(_with_frees(rows, kept), fixed)

    def run(
        self,
        values: dict[Key, Any],
        numbers: tuple[float, float] = FIRST_STEP,
        made: Callable[[Value, torch.Tensor], None] | None = None,
    ) -> None:
        """Runs all actions.

        Args:
          values: The tensors of sources. It is changed: afterwards it holds the results.
          numbers: The numbers of the step of Adam, see `step_numbers`.
          made: Is called with each result of the program when it has been computed.
        """
        results = {v for v in self.ops.program.outputs if isinstance(v, Value)}
        for action in self.actions:
            self._one(action, values, numbers)
            if made is not None and action.call is not None:
                for value in results.intersection(action.call.outputs):
                    made(value, values[value, action.device])
            for key in action.frees:
                values.pop(key, None)

    def _one(self, action: Action, values: dict[Key, Any], numbers: tuple[float, float]) -> None:
        """Runs an action, and keeps no reference to its tensors afterwards."""
        device = self._devices[action.device]
        if action.moved is not None:
            values[action.moved[0], action.device] = values[action.moved].to(device)
            return
        call: Any = action.call

        def actual(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return values[leaf, action.device]
            # The trace has one device; the plan may place the op on another one.
            return device if isinstance(leaf, torch.device) else leaf

        operands, keywords = pytree.tree_map(actual, (call.operands, call.keywords))
        if call.scope == ADAM or call.scope.startswith(f"{ADAM}/"):
            operands, keywords = pytree.tree_map(lambda leaf: _number(leaf, numbers), (operands, keywords))
        result = action.target(*operands, **keywords)
        _bind(call.structure, result, action.device, values)


def _check_order(
    plan: Plan, ops: TorchOps, rows: Iterable[tuple[int, Call | None, Key | None]], homes: Mapping[Value, int]
) -> None:
    """Refuses a plan that uses a tensor before it has been computed or transferred."""
    there = {(value, homes[value]) for value in ops.sources}
    for device, call, moved in rows:
        used = [(value, device) for value in call.inputs] if call else [moved] if moved else []
        if not there.issuperset(used):
            what = call.kind if call else "a transfer"
            raise PlanError(
                f"the plan for {plan.graph_name!r} runs {what} on device {device} before a tensor that it "
                "reads is there; plan the graph of this module"
            )
        there.update((value, device) for value in ((moved[0],) if moved else call.outputs if call else ()))


def _number(leaf: Any, numbers: tuple[float, float]) -> Any:
    """``leaf``, or, if it is a number of the first step of Adam, the number of this step."""
    for first, now in zip(FIRST_STEP, numbers, strict=True):
        if isinstance(leaf, float) and leaf == first:
            return now
    return leaf


def _bind(structure: Any, result: Any, device: int, values: dict[Key, Any]) -> None:
    if isinstance(structure, Value):
        values[structure, device] = result
    elif isinstance(structure, (tuple, list)):
        for inner, item in zip(structure, result, strict=True):
            _bind(inner, item, device, values)


def _with_frees(rows: Iterable[tuple[int, Call | None, Key | None]], kept: set[Key]) -> list[Action]:
    """Actions that free what no later action uses. An unused result is freed by its own action."""
    rows = list(rows)
    seen: set[Hashable] = set(kept)
    actions = []
    for device, call, moved in reversed(rows):
        used: list[Key] = [] if moved is None else [moved, (moved[0], device)]
        if call is not None:
            used = [(value, device) for value in (*call.inputs, *call.outputs)]
        frees = tuple(dict.fromkeys(key for key in used if key not in seen))
        seen.update(frees)
        actions.append(Action(device, call, moved, frees))
    return actions[::-1]


def _in_place(actions: list[Action], fixed: Set[Value]) -> list[Action]:
    """Updates of Adam write over their operand where it is the module's state and nobody reads it later.

    Args:
      actions: The actions.
      fixed: Values that must not be written over.
    """
    owners = {
        value: owner
        for action in actions
        if action.call is not None
        for value, owner in zip(action.call.outputs, action.call.owners, strict=True)
        if owner is not None
    }
    last: dict[Value, int] = {}  # the last use of any value in the memory of the key
    for index, action in enumerate(actions):
        used = action.call.inputs if action.call else [action.moved[0]] if action.moved else []
        last.update((owners.get(value, value), index) for value in used)
    made = []
    for index, action in enumerate(actions):
        target = action.call.target if action.call else None
        if action.call and action.call.kind == "aten.clone" and action.call.owners[0] is not None:
            target = _itself
        old = overwritten(action.call) if action.call else None
        base = None if old is None else owners.get(old, old)
        if base is not None and last[base] == index and not fixed & {base, old}:
            target = _in_place_variant(target)
        made.append(dataclasses.replace(action, target=target))
    return made


def _itself(tensor: torch.Tensor, **_: Any) -> torch.Tensor:
    return tensor


def _in_place_variant(target: Any) -> Any:
    """``aten.mul_.Tensor`` for ``aten.mul.Tensor``."""
    namespace, _, name = str(target.overloadpacket).rpartition(".")
    packet = getattr(getattr(torch.ops, namespace), f"{name}_")
    return getattr(packet, target._overloadname)
