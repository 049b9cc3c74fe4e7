"""Donated arguments of a program whose order was changed.

When a hook returns a module, XLA loses the aliasing of results and arguments: ``UpdateHloModuleFromProto``
replaces the entry computation, and with it the module's ``input_output_alias``.
`regal_jax.execution.xla.repacking` puts each result back into its argument, in the finished program. An
instruction that reads an argument while it writes the result over it must be compiled for that; this module
says so by an alias of the instruction's own.
"""

from collections.abc import Collection, Iterator
from typing import Any, Final

from regal_jax.execution.xla.errors import DonationLost
from regal_jax.execution.xla.sequence import put_orders
from regal_jax.importers.hlo_sharing import not_elementwise

__all__ = ["alias_instructions", "elide_copies"]

_RENAMES: Final = frozenset({"bitcast", "opt-barrier", "add-dependency"})
_IN_PLACE: Final = frozenset({"dynamic-update-slice", "scatter"})

_READS_ONLY: Final = frozenset(
    {
        "convolution",
        "copy",
        "dot",
        "reduce",
        "reduce-window",
        "transpose",
        "broadcast",
        "slice",
        "gather",
        "fft",
    }
)
"""Opcodes beside fusions that never write over an operand, and whose results are new."""

_PRED: Final = 1
"""The element type of booleans."""

_Path = tuple[int, ...]


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

    def may_write(self, reader: Any) -> bool:
        """Whether an instruction may write over an operand, or hand it on."""
        if reader.opcode != "fusion":
            return reader.opcode not in _READS_ONLY
        called = self.computations[reader.called_computation_ids[0]]
        return bool(reader.output_operand_aliasing) or any(i.opcode in _IN_PLACE for i in called.instructions)

    def reads_in_place(self, fusion: Any, operands: Collection[int]) -> bool:
        """Whether a fusion uses operands only element by element, so that it may write over them."""
        places = {place for place, number in enumerate(fusion.operand_ids) if number in operands}
        called = self.computations[fusion.called_computation_ids[0]]
        rows = [(i.id, i.opcode, _dims_and_layout(i.shape), i.operand_ids) for i in called.instructions]
        moved = not_elementwise(rows, called.root_id)
        own = {
            i.parameter_number for i in called.instructions if i.opcode == "parameter" and i.id not in moved
        }
        return not places or (fusion.fusion_kind == "kLoop" and places <= own)

    def results(self, alias: Any) -> Iterator[tuple[Any, Any, _Path]]:
        for entry in alias.entries:
            yield entry, *self.maker(self.computation.root_id, tuple(entry.output_shape_index))


def _dims_and_layout(shape: Any) -> tuple[int, ...]:
    """Equal for arrays whose elements with equal indices are at equal places in memory."""
    return *shape.dimensions, *shape.layout.minor_to_major


def elide_copies(module: Any) -> None:
    """Removes copies of donated arguments.

    XLA copies an argument if in some orders it would be read after its result has overwritten it. Here the
    order is known: the instruction that makes the result waits for all others that read the argument.

    Args:
      module: An ``HloModuleProto`` with a schedule; changed in place.
    """
    at = _Entry(module)
    uses = _Uses(at)
    for alias, made, _ in list(at.results(module.input_output_alias)):
        if not alias.parameter_shape_index and made.opcode == "fusion":
            uses.protect(at.parameters[alias.parameter_number], made)
    if not uses.gone:
        return
    entry = at.computation
    (sequence,) = (e.value.instruction_ids for e in module.schedule.sequences if e.key == entry.id)
    sequence[:] = [i for i in sequence if i not in uses.gone]
    names = [at.by_id[i].name for i in sequence]
    kept = [type(i).FromString(i.SerializeToString()) for i in at.by_id.values() if i.id not in uses.gone]
    del entry.instructions[:]
    entry.instructions.extend(kept)
    put_orders(module, {entry.name: names})
    place = {number: i for i, number in enumerate(sequence)}
    entry.instructions.sort(key=lambda i: place[i.id])


class _Uses:
    """Who reads what in an entry computation, while copies of arguments are removed from it.

    Attributes:
      gone: Copies that were removed.
    """

    def __init__(self, at: _Entry) -> None:
        self.at = at
        self.gone: set[int] = set()
        self.readers: dict[int, list[int]] = {}
        self.before: dict[int, list[int]] = {}
        self.ordered: set[int] = set()  # Instructions with control dependencies.
        for number, i in at.by_id.items():
            self.before[number] = [*i.operand_ids, *i.control_predecessor_ids]
            if i.control_predecessor_ids:
                self.ordered.update((number, *i.control_predecessor_ids))
            for operand in dict.fromkeys(i.operand_ids):
                self.readers.setdefault(operand, []).append(number)

    def protect(self, parameter: Any, made: Any) -> None:
        """Lets ``made`` wait for the other readers of an argument, and removes the argument's copies.

        Nothing is changed if the copies are needed: a reader may write over its operand, or needs ``made``,
        or ``made`` reads an element of the argument after it has written over it.
        """
        by_id = self.at.by_id
        copies = [
            number
            for number in self.readers.get(parameter.id, ())
            if by_id[number].opcode == "copy" and by_id[number].shape == parameter.shape
        ]
        names = [parameter.id, *copies]  # Instructions whose result is the argument.
        readers: dict[int, None] = {}
        for name in names:
            for reader in self.readers.get(name, ()):
                if by_id[reader].opcode == "bitcast":
                    names.append(reader)
                elif reader not in copies:
                    readers[reader] = None
        first = [number for number in readers if number != made.id]
        if not copies or not self.ordered.isdisjoint(copies):
            return
        if any(self.at.may_write(by_id[i]) for i in readers) or self.needs(first, made.id):
            return
        if not self.at.reads_in_place(made, names):
            return
        for copy in copies:
            for reader in self.readers.pop(copy, ()):
                row = by_id[reader]
                row.operand_ids[:] = [parameter.id if i == copy else i for i in row.operand_ids]
                self.readers[parameter.id].append(reader)
        made.control_predecessor_ids.extend(i for i in first if i not in self.before[made.id])
        self.before[made.id] += first
        self.gone.update(copies)

    def needs(self, instructions: list[int], other: int) -> bool:
        """Whether one of the instructions can run only after another one."""
        seen, stack = set(), list(instructions)
        while stack:
            number = stack.pop()
            if number == other:
                return True
            if number not in seen:
                seen.add(number)
                stack += self.before[number]
        return False


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
        operands = [at.maker(i, ()) for i in made.operand_ids]
        if (made, path) == place:
            continue
        said = any(tuple(a.output_shape_index) == path for a in made.output_operand_aliasing)
        fusion = made.opcode == "fusion" and len(path) <= 1 and not said
        if fusion and place in operands:
            number = operands.index(place)
        elif fusion and not path and made.shape == parameter.shape and _is_loop(made, at):
            # Otherwise XLA might write the result over an operand that is alive together with the argument.
            number = len(made.operand_ids)
            called = at.computations[made.called_computation_ids[0]]
            root = next(i for i in called.instructions if i.id == called.root_id)
            _choose(called, root, parameter, number)
            made.operand_ids.append(parameter.id)
        else:
            if place in operands:
                _copy_at_the_end(module, at, tuple(entry.output_shape_index), parameter)
            continue
        made.output_operand_aliasing.add(output_shape_index=path, operand_index=number)


def _is_loop(fusion: Any, at: _Entry) -> bool:
    """Whether XLA makes a loop of a fusion, in which another step may follow the last one.

    It ends the process where another step follows a scatter.
    """
    called = at.computations[fusion.called_computation_ids[0]]
    return fusion.fusion_kind == "kLoop" and all(i.opcode != "scatter" for i in called.instructions)


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
