"""Reading and writing the orders of instructions of a module."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

from regal_jax.errors import PlanError

__all__ = ["Orders", "complete_orders", "orders_of", "put_orders"]

Orders = Mapping[str, Sequence[str]]
"""Computation -> names of all its instructions, in the order in which they run."""

_ORDERED: Final = frozenset(
    {"infeed", "outfeed", "send", "recv", "send-done", "recv-done", "rng-get-and-update-state"}
)
"""Opcodes with effects that are not visible in operands; they keep the order that XLA gave them."""
_COLLECTIVE: Final = (
    "all-gather", "all-reduce", "all-to-all", "collective-", "ragged-all-to-all", "reduce-scatter",
)  # fmt: skip


def orders_of(module: Any) -> dict[str, list[str]]:
    """The order of each computation that has one.

    Args:
      module: An ``HloModuleProto`` with a schedule.
    """
    made = {}
    for computation, sequence in _scheduled(module):
        names = {instruction.id: instruction.name for instruction in computation.instructions}
        made[computation.name] = [names[i] for i in sequence.instruction_ids]
    return made


def complete_orders(module: Any, steps: Orders) -> dict[str, tuple[str, ...]]:
    """Orders of all instructions, from orders of some of them.

    Args:
      module: An ``HloModuleProto`` with a schedule.
      steps: Computation -> names in order; names that are not in it are ignored.
    """
    made = {}
    for computation, sequence in _scheduled(module):
        if computation.name in steps:
            by_name = {x.name: x.id for x in computation.instructions}
            names = {x.id: x.name for x in computation.instructions}
            given = list(sequence.instruction_ids)
            parameters = [x.id for x in computation.instructions if x.opcode == "parameter"]
            wanted = [by_name[name] for name in steps[computation.name] if name in by_name]
            ids = _legal(computation, given, [*parameters, *wanted, *given])
            made[computation.name] = tuple(names[i] for i in ids)
    return made


def put_orders(module: Any, orders: Orders) -> None:
    """Writes orders into a scheduled module.

    Every sequence respects operands, control predecessors, and the order of instructions with effects. If an
    order violates these, the instructions that another one needs are moved before it.

    Args:
      module: An ``HloModuleProto``; changed in place.
      orders: The orders; computations without one keep theirs.

    Raises:
      PlanError: The orders are of another program; the module is then unchanged.
    """
    scheduled = {computation.name: (computation, sequence) for computation, sequence in _scheduled(module)}
    made = {}
    for name, order in orders.items():
        if name not in scheduled:
            raise PlanError(
                f"the plan orders a computation {name!r}, which this program does not have; make a new plan"
            )
        computation, sequence = scheduled[name]
        by_name = {instruction.name: instruction.id for instruction in computation.instructions}
        if len(order) != len(by_name) or set(order) != set(by_name):
            raise PlanError(
                f"the plan's instructions of {name!r} are not those of this program; make a new plan"
            )
        made[name] = _legal(computation, list(sequence.instruction_ids), [by_name[n] for n in order])
    for name, ids in made.items():
        del scheduled[name][1].instruction_ids[:]
        scheduled[name][1].instruction_ids.extend(ids)


def _scheduled(module: Any) -> list[tuple[Any, Any]]:
    computations = {computation.id: computation for computation in module.computations}
    return [(computations[entry.key], entry.value) for entry in module.schedule.sequences]


def _legal(computation: Any, given: list[int], wanted: list[int]) -> list[int]:
    """``wanted``, with the instructions that each one needs before it."""
    by_id = {instruction.id: instruction for instruction in computation.instructions}
    needs = {i: [*x.operand_ids, *x.control_predecessor_ids] for i, x in by_id.items()}
    effects = [i for i in given if _has_effect(by_id[i])]
    for before, after in itertools.pairwise(effects):
        needs[after].append(before)
    made: dict[int, None] = {}
    for first in wanted:
        stack = [] if first in made else [first]
        while stack:
            waiting = [i for i in needs[stack[-1]] if i not in made]
            if waiting and len(stack) <= len(by_id):
                stack.append(waiting[0])
            elif waiting:
                raise PlanError("the instructions of the program form a cycle; compile it with jax.jit")
            else:
                made[stack.pop()] = None
    return list(made)


def _has_effect(instruction: Any) -> bool:
    opcode = instruction.opcode
    return opcode in _ORDERED or instruction.custom_call_has_side_effect or opcode.startswith(_COLLECTIVE)
