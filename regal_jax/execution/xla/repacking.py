"""A better place for every buffer of a compiled program.

XLA assigns memory to the values of a program after the hook has put them in order. Then it knows nothing of
donated arguments, so that they hold nothing but themselves; and it packs its heap apart from the memory of
results. This module moves the buffers of the compiled program. Values that XLA put into the same bytes at the
same moment stay together. Everything else is packed anew, also into donated arguments and results while these
are free. `same_dataflow` checks each new assignment, independently of the lifetimes on which it is based.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from regal_jax.execution.xla.dataflow import same_dataflow
from regal_jax.execution.xla.errors import DonationLost, NotSupported
from regal_jax.execution.xla.thunks import UPDATING, accesses, inner_sequences, steps_of
from regal_jax.importers.hlo_lifetimes import moments, one_kernel_calls, step_lifetimes
from regal_jax.importers.hlo_pieces import Packing, Piece, Place, make_pieces, movable_values, pack_pieces
from regal_jax.importers.hlo_sharing import callees
from regal_jax.importers.hlo_text import names_in, parse_module
from regal_jax.importers.hlo_values import Node, Values, in_place, read_values

__all__ = ["repack"]


def repack(result: Any, text: str, alias: Any) -> None:
    """Assigns memory to a compiled program anew.

    Args:
      result: A ``CompilationResultProto``; changed in place.
      text: The text of its module, with its order and with the aliases of results and arguments.
      alias: The ``input_output_alias``.

    Raises:
      DonationLost: A donated argument cannot be overwritten by its result in this order.
      NotSupported: The program has a form that is not known here.
    """
    values = read_values(parse_module(text))
    if {(e.parameter_number, tuple(e.parameter_shape_index)) for e in alias.entries} != values.donated:
        raise DonationLost("a donated argument is overwritten in a way that is not known here")
    before = _Assigned(result, values)
    life = step_lifetimes(values, {})
    try:
        pieces = make_pieces(values, life, before.where)
        packing = pack_pieces(pieces)
    except ValueError as error:
        raise NotSupported(str(error)) from None
    if not alias.entries and packing.heap >= before.temporary_bytes:
        raise NotSupported("XLA's own assignment is as small")
    _Move(result, values, before, pieces, packing, life).apply(alias)


class _Assigned:
    """Where the values of a compiled program are.

    Attributes:
      where: Value that may be moved -> allocation and offset.
      allocations: The allocations, by index.
      buffer: Value -> its logical buffer.
      temporary: Index of the allocation of temporary memory; ``None`` if there is none.
      temporary_bytes: Its size.
    """

    def __init__(self, result: Any, values: Values) -> None:
        module = result.hlo_module.hlo_module
        named = {i.id: i.name for c in module.computations for i in c.instructions}
        at = {
            (node.instruction.name, path): value
            for value, (node, path) in enumerate(zip(values.maker, values.place, strict=True))
        }
        assignment = result.buffer_assignment
        defined = {
            b.id: (named.get(b.defined_at.instruction_id, ""), tuple(b.defined_at.shape_index))
            for b in assignment.logical_buffers
        }
        self.where: dict[int, Place] = {}
        self.buffer: dict[int, Any] = {}
        self.allocations = list(assignment.buffer_allocations)
        free, chosen = [], movable_values(values)
        for index, allocation in enumerate(self.allocations):
            if allocation.index != index:
                raise NotSupported("the allocations of the compiled program are not numbered in order")
            if allocation.is_thread_local or allocation.is_constant:
                continue
            if not allocation.is_entry_computation_parameter and not allocation.maybe_live_out:
                free.append(index)
            for part in allocation.assigned:
                value = at.get(defined.get(part.logical_buffer_id, ("", ())))
                if value is None:
                    raise NotSupported("the compiled program has a buffer of an unknown value")
                if value in chosen:
                    self.where[value] = index, part.offset
                    self.buffer[value] = part
        if len(free) > 1:
            raise NotSupported("the compiled program has several blocks of temporary memory")
        self.temporary = free[0] if free else None
        self.temporary_bytes = sum(self.allocations[index].size for index in free)
        if any(values.size[value] and value not in self.where for value in chosen):
            raise NotSupported("the compiled program has values without a buffer")


class _Row(NamedTuple):
    """The values of one allocation: where they are and when, and where they go."""

    bottom: np.ndarray
    top: np.ndarray
    start: np.ndarray
    end: np.ndarray
    block: np.ndarray
    shift: np.ndarray


class _Move:
    """The change of a compiled program from one assignment to another."""

    def __init__(
        self,
        result: Any,
        values: Values,
        before: _Assigned,
        pieces: Sequence[Piece],
        packing: Packing,
        life: Sequence[Any],
    ) -> None:
        self.result, self.values, self.before = result, values, before
        self.pieces, self.packing, self.life = pieces, packing, life
        self.times, self.spans = moments(values, {})
        self.node = {node.instruction.name: node for node in values.nodes}
        self.parameters = {
            (a.parameter_number, tuple(a.parameter_shape_index)): a.index
            for a in before.allocations
            if a.is_entry_computation_parameter
        }
        self.after: dict[int, Place] = {}
        self.in_block: dict[int, _Row] = {}

    def apply(self, alias: Any) -> None:
        """Changes the program, and checks it."""
        blocks = {i: self._block(piece) for i, piece in enumerate(self.pieces) if piece.fixed}
        heap = self._heap()
        for piece, (block, offset) in zip(self.pieces, self.packing.places, strict=True):
            for value in piece.values:
                inside = piece.offsets.get(value, 0)
                self.after[value] = (heap if block < 0 else blocks[block]), offset + inside
        self._index()
        old = type(self.result)()
        old.CopyFrom(self.result)
        self._rewrite(self.result.thunk_sequence)
        self._allocate(heap, alias)
        given, results = self._ends()
        new, scratch = self.result.thunk_sequence, self._scratch()
        if not same_dataflow(old.thunk_sequence, new, given, results, self._updates, scratch):
            raise NotSupported("the new assignment of memory would change results")

    def _block(self, piece: Piece) -> int:
        """The allocation of a fixed piece: that of its argument, or else that of its result."""
        if piece.argument is not None:
            maker = self.values.maker[piece.argument]
            return self.parameters[int(maker.instruction.operands[0]), self.values.place[piece.argument]]
        index, offset = self.before.where[piece.values[0] if piece.result is None else piece.result]
        if offset or not self.before.allocations[index].maybe_live_out:
            raise NotSupported("a result of the compiled program has no memory of its own")
        return index

    def _index(self) -> None:
        blocks: dict[int, list[int]] = {}
        for value, (block, _) in self.before.where.items():
            blocks.setdefault(block, []).append(value)
        for block, row in blocks.items():
            bottom = np.array([self.before.where[v][1] for v in row])
            self.in_block[block] = _Row(
                bottom,
                bottom + np.array([self.values.size[v] for v in row]),
                np.array([self.life[v].start for v in row]),
                np.array([self.life[v].end for v in row]),
                np.array([self.after[v][0] for v in row]),
                np.array([self.after[v][1] for v in row]) - bottom,
            )

    def _heap(self) -> int:
        if self.before.temporary is not None:
            return self.before.temporary
        made = self.result.buffer_assignment.buffer_allocations.add(index=len(self.before.allocations))
        return made.index

    def _allocate(self, heap: int, alias: Any) -> None:
        """Writes the sizes of the allocations, and what is in them."""
        allocations = self.result.buffer_assignment.buffer_allocations
        rows: dict[int, list[Any]] = {}
        out = {self.after[value][0] for value in self.after if value in self.values.live_out}
        for value, (index, offset) in self.after.items():
            held = self.before.buffer[value]
            rows.setdefault(index, []).append((held.logical_buffer_id, offset, held.size))
        used = {index for index, _ in self.before.where.values()} | set(rows)
        for index in used:
            del allocations[index].assigned[:]
            for number, offset, size in rows.get(index, ()):
                allocations[index].assigned.add(logical_buffer_id=number, offset=offset, size=size)
            if index not in rows:
                allocations[index].size = 0
            # XLA ends the process if this differs from what it finds out itself.
            allocations[index].maybe_live_out = index in out
        allocations[heap].size = self.packing.heap
        for entry in alias.entries:
            place = entry.parameter_number, tuple(entry.parameter_shape_index)
            allocations[self.parameters[place]].is_parameter_aliased_with_output = True
        del self.result.buffer_assignment.heap_simulator_traces[:]

    def _ends(self) -> tuple[list[Any], list[Any]]:
        """Slices with arguments and constants, and slices with results, before and after."""
        given = [
            ((a.index, 0, a.size),) * 2
            for a in self.before.allocations
            if a.is_entry_computation_parameter or a.is_constant
        ]
        results = []
        root = self.values.root(self.values.module.entry.name)
        for value in root.held.values():
            if value in self.after:
                size = self.values.size[value]
                sides = [(*place[value], size) for place in (self.before.where, self.after)]
                if sides[1][1]:
                    raise NotSupported("a result would not be at the beginning of its memory")
                results.append(tuple(sides))
        return given, results

    def _updates(self, name: str) -> bool:
        node = self.node.get(name)
        return node is None or bool(in_place(self.values.module, node.instruction))

    def _scratch(self) -> dict[str, set[tuple[int, int, int]]]:
        """For each call that is one kernel, the slices of the values that are made only in it."""
        made: dict[str, set[tuple[int, int, int]]] = {}
        for node in one_kernel_calls(self.values):
            span = self.spans[callees(node.instruction)[0]][0], self.times[node.number]
            slices: dict[bool, set[tuple[int, int, int]]] = {False: set(), True: set()}
            for value, place in self.before.where.items():
                inside = span[0] <= self.times[self.values.maker[value].number] < span[1]
                if self.life[value].start <= span[1] and self.life[value].end >= span[0]:
                    slices[inside].add((*place, self.values.size[value]))
            outside = slices[False]
            made[node.instruction.name] = {
                one for one in slices[True] if not any(_overlap(one, two) for two in outside)
            }
        return made

    def _rewrite(self, sequence: Any) -> None:
        for thunk, kind, body in steps_of(sequence):
            node = self.node.get(thunk.info.op_name)
            moment = None if node is None else self.times[node.number]
            reads, writes = accesses(kind, body)
            for part in reads:
                self._rewrite_slice(part, moment, False)
            for part in writes if kind not in UPDATING else ():
                self._rewrite_slice(part, moment, True)
            if kind == "while_thunk":
                self._rewrite_slice(body.cond_buffer, self._end_of_condition(node), False)
            for inner in inner_sequences(kind, body):
                self._rewrite(inner)

    def _end_of_condition(self, node: Node | None) -> int | None:
        names = () if node is None else names_in(node.instruction.attributes.get("condition", ""))
        return self.spans[names[0]][1] if names and names[0] in self.spans else None

    def _rewrite_slice(self, part: Any, moment: int | None, made: bool) -> None:
        row = self.in_block.get(part.buffer_allocation_index)
        if row is None:
            return  # A constant, or an argument that is not donated.
        here = (row.bottom <= part.offset) & (part.offset + part.size <= row.top)
        if moment is not None:
            here &= (row.start <= moment) & (moment <= row.end)
            # Where one value ends and another begins, the first one is read and the second one is written.
            exact = here & ((row.start == moment) if made else (row.start < moment))
            here = exact if exact.any() else here
        found = np.flatnonzero(here)
        targets = {(int(row.block[i]), int(row.shift[i]) + part.offset) for i in found}
        if len(targets) != 1:
            raise NotSupported("a step of the compiled program uses memory of an unknown value")
        part.buffer_allocation_index, part.offset = targets.pop()


def _overlap(one: tuple[int, int, int], two: tuple[int, int, int]) -> bool:
    return one[0] == two[0] and one[1] < two[1] + two[2] and two[1] < one[1] + one[2]
