"""Donated arguments of a program whose order was changed.

When a hook returns a module, XLA loses the aliasing of results and arguments: ``UpdateHloModuleFromProto``
replaces the entry computation, and with it the module's ``input_output_alias``. This module therefore
expresses the aliasing by instructions: the fusion that makes such a result aliases its operand, and XLA puts
both into one buffer. In the finished program the module's own ``input_output_alias`` is restored, by which
the runtime donates.
"""

from collections.abc import Iterator
from typing import Any, Final

from regal_jax.execution.xla.module_proto import new_executable, new_result
from regal_jax.storage.varint import read_varint

__all__ = ["DonationLost", "alias_instructions", "restore_donation"]

_RENAMES: Final = frozenset({"bitcast", "opt-barrier", "add-dependency"})
_IN_PLACE: Final = frozenset({"dynamic-update-slice", "scatter"})

_PRED: Final = 1
"""The element type of booleans."""

_Path = tuple[int, ...]


class DonationLost(Exception):
    """A result cannot be put into the buffer of the argument that it overwrites."""


class _Entry:
    """The entry computation of a module."""

    def __init__(self, module: Any) -> None:
        self.computations = {c.id: c for c in module.computations}
        self.computation = self.computations[module.entry_computation_id]
        self.by_id = {i.id: i for i in self.computation.instructions}
        self.parameters = {
            i.parameter_number: i for i in self.computation.instructions if i.opcode == "parameter"
        }

    def maker(self, number: int, path: _Path) -> tuple[Any, _Path]:
        """The instruction, and the leaf of its result, whose buffer contains a value."""
        instruction = self.by_id[number]
        while True:
            opcode, operands = instruction.opcode, instruction.operand_ids
            if opcode == "tuple" and path:
                number, path = operands[path[0]], path[1:]
            elif opcode == "get-tuple-element":
                number, path = operands[0], (instruction.tuple_index, *path)
            elif opcode in _RENAMES or opcode in _IN_PLACE or opcode == "while":
                number = operands[0]
            else:
                return instruction, path
            instruction = self.by_id[number]

    def results(self, alias: Any) -> Iterator[tuple[Any, Any, _Path]]:
        for entry in alias.entries:
            yield entry, *self.maker(self.computation.root_id, tuple(entry.output_shape_index))


def alias_instructions(module: Any) -> None:
    """Expresses the ``input_output_alias`` of a module by aliasing of its instructions.

    Args:
      module: An ``HloModuleProto``; changed in place.

    Raises:
      DonationLost: No instruction can express it.
    """
    at = _Entry(module)
    for entry, made, path in list(at.results(module.input_output_alias)):
        parameter = at.parameters[entry.parameter_number]
        place = (parameter, tuple(entry.parameter_shape_index))
        if (made, path) == place:
            continue
        if place[1]:
            raise DonationLost(f"a part of the argument {parameter.name!r} is overwritten")
        said = any(tuple(a.output_shape_index) == path for a in made.output_operand_aliasing)
        if made.opcode != "fusion" or len(path) > 1 or said:
            _copy_at_the_end(module, at, tuple(entry.output_shape_index), parameter)
            continue
        operands = [at.maker(i, ()) for i in made.operand_ids]
        called = at.computations[made.called_computation_ids[0]]
        root = next(i for i in called.instructions if i.id == called.root_id)
        if place in operands:
            number = operands.index(place)
        elif made.fusion_kind == "kLoop" and not path and root.shape == parameter.shape:
            number = len(made.operand_ids)
            _choose(called, root, parameter, number)
            made.operand_ids.append(parameter.id)
        else:
            _copy_at_the_end(module, at, tuple(entry.output_shape_index), parameter)
            continue
        made.output_operand_aliasing.add(output_shape_index=path, operand_index=number)


def _choose(called: Any, root: Any, parameter: Any, number: int) -> None:
    """Makes the root ``r`` of a fused computation ``select(false, parameter, r)``.

    XLA's verifier refuses operands that are not used, and its compiler removes the ``select``.
    """
    free = max(i.id for i in called.instructions) + 1

    def add(opcode: str, shape: Any, operands: tuple[int, ...] = (), **more: Any) -> Any:
        return called.instructions.add(
            name=f"donated.{called.id}.{opcode}.{number}",
            opcode=opcode,
            shape=shape,
            id=free + len(called.instructions),
            operand_ids=operands,
            **more,
        )

    operand = add("parameter", parameter.shape, parameter_number=number)
    scalar, wide = type(parameter.shape)(element_type=_PRED), type(parameter.shape)()
    scalar.layout.tail_padding_alignment_in_elements = 1
    wide.CopyFrom(parameter.shape)
    wide.element_type = _PRED
    false = add("constant", scalar)
    false.literal.shape.CopyFrom(scalar)
    false.literal.preds.append(False)
    never = add("broadcast", wide, (false.id,))
    called.root_id = add("select", parameter.shape, (never.id, operand.id, root.id)).id


def _stand_last(rows: Any, number: int) -> None:
    """Moves the element with an id to the end, since computations and instructions follow what they need."""
    rows.sort(key=lambda row: row.id == number)


def _copy_at_the_end(module: Any, at: _Entry, path: _Path, parameter: Any) -> None:
    """Copies a result into the buffer of an argument, after everything else.

    This is for results of instructions that cannot alias, such as products. It takes temporary memory.
    """
    entry, root = at.computation, at.by_id[at.computation.root_id]
    leaf = root.opcode == "tuple" and len(path) == 1
    value = at.by_id[root.operand_ids[path[0]]] if leaf else root
    if (not leaf and (path or root.opcode == "tuple")) or value.shape != parameter.shape:
        raise DonationLost(f"{value.opcode} {value.name!r} makes a result that overwrites an argument")
    number = max(c.id for c in module.computations) + 1
    called = module.computations.add(name=f"donated.{number}", id=number, is_fusion_computation=True)
    # The upper half of an instruction's id is that of its computation.
    taken = called.instructions.add(
        name=f"donated.{number}.value", opcode="parameter", shape=parameter.shape, id=number << 32
    )
    _choose(called, taken, parameter, 1)
    copy = entry.instructions.add(
        name=f"donated.{number}.copy",
        opcode="fusion",
        fusion_kind="kLoop",
        shape=parameter.shape,
        id=max(i.id for i in entry.instructions) + 1,
        operand_ids=(value.id, parameter.id),
        called_computation_ids=(number,),
    )
    copy.output_operand_aliasing.add(operand_index=1)
    _stand_last(module.computations, entry.id)
    sequence = next(e.value for e in module.schedule.sequences if e.key == entry.id).instruction_ids
    if leaf:
        root.operand_ids[path[0]] = copy.id
        _stand_last(entry.instructions, root.id)
        sequence[:] = [*(i for i in sequence if i != root.id), copy.id, root.id]
    else:
        entry.root_id = copy.id
        sequence.append(copy.id)


def restore_donation(serialized: bytes, alias: Any) -> bytes:
    """Restores the ``input_output_alias`` of a module in a compiled program.

    Args:
      serialized: The program, as the runtime serialises it.
      alias: The ``input_output_alias`` of the module before its order was changed.

    Raises:
      DonationLost: A result is not in the buffer of the argument that it overwrites, or the program does
        not have the form of a program for CPUs.
    """
    length, start = read_varint(serialized, 0)
    head = serialized[: start + length]
    outer, result = new_executable(), new_result()
    try:
        outer.ParseFromString(serialized[start + length :])
        result.ParseFromString(outer.serialized_executable)
    except Exception as error:
        raise DonationLost(f"the compiled program is in an unknown form ({type(error).__name__})") from None
    module = result.hlo_module.hlo_module
    if not module.HasField("input_output_alias") and not module.computations:
        raise DonationLost("the compiled program is in an unknown form")
    _check_buffers(module, alias, result.buffer_assignment)
    module.input_output_alias.CopyFrom(alias)
    donated = {(e.parameter_number, tuple(e.parameter_shape_index)) for e in alias.entries}
    for allocation in result.buffer_assignment.buffer_allocations:
        if _place(allocation) in donated:
            allocation.is_parameter_aliased_with_output = True
    outer.serialized_executable = result.SerializeToString()
    return head + outer.SerializeToString()


def _place(allocation: Any) -> tuple[int, _Path] | None:
    if not allocation.is_entry_computation_parameter:
        return None
    return allocation.parameter_number, tuple(allocation.parameter_shape_index)


def _check_buffers(module: Any, alias: Any, assignment: Any) -> None:
    """Checks that every result that overwrites an argument is in the argument's buffer."""
    buffers = {
        (b.defined_at.instruction_id, tuple(b.defined_at.shape_index)): b.id
        for b in assignment.logical_buffers
    }
    holds = {
        place: {a.logical_buffer_id for a in allocation.assigned}
        for allocation in assignment.buffer_allocations
        if (place := _place(allocation)) is not None
    }
    for entry, made, path in _Entry(module).results(alias):
        place = entry.parameter_number, tuple(entry.parameter_shape_index)
        if buffers.get((made.id, path)) not in holds.get(place, ()):
            raise DonationLost(f"{made.name!r} is not in the buffer of the argument that it overwrites")
