"""Whether two assignments of memory make the same program: a symbolic run of its steps with both.

Every step writes new symbols into its results. Two assignments are equivalent if each step reads the same
symbols under both, if its operands and results share bytes in the same way, and if the results of the program
are the same at the end. A step that was compiled for an operand and a result in one place needs them there.
Nothing here depends on lifetimes or on the instructions of the program.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np

from regal_jax.execution.xla.thunks import accesses, inner_sequences, steps_of

__all__ = ["same_dataflow"]

Slice = tuple[int, int, int]
"""Allocation, offset and size."""

_ROUNDS: Final = 2
"""Runs of the body of a loop: in the second one, it reads what the first one left."""

Label = tuple[tuple[int, int], ...]
"""Symbols that may be at an address: the write that made each, and the address of its first byte."""


class _Memory:
    """The symbols at all addresses, in segments within which they change only together."""

    def __init__(self, slices: Iterable[Slice]) -> None:
        edges: dict[int, set[int]] = {}
        for block, offset, size in slices:
            edges.setdefault(block, set()).update((offset, offset + size))
        self.edges = {block: np.array(sorted(row)) for block, row in edges.items()}
        self.held = {block: np.zeros(len(row), np.int64) for block, row in self.edges.items()}
        self.labels: list[Label] = [()]
        self.numbers: dict[Label, int] = {(): 0}

    def number(self, label: Label) -> int:
        if label not in self.numbers:
            self.numbers[label] = len(self.labels)
            self.labels.append(label)
        return self.numbers[label]

    def write(self, where: Slice, event: int) -> None:
        block, offset, size = where
        first, last = np.searchsorted(self.edges[block], (offset, offset + size))
        self.held[block][first:last] = self.number(((event, offset),))

    def read(self, where: Slice) -> list[tuple[int, Label]]:
        """Runs of bytes with the symbols in them: start in the slice, and symbols by what precedes it."""
        block, offset, size = where
        edges = self.edges[block]
        first, last = np.searchsorted(edges, (offset, offset + size))
        row = self.held[block][first:last]
        heads = np.flatnonzero(np.diff(row, prepend=-1)) if len(row) else ()
        runs: list[tuple[int, Label]] = []
        for head in heads:
            start = int(edges[first + head]) - offset
            label = tuple(sorted((event, offset - base) for event, base in self.labels[row[head]]))
            if not runs or runs[-1][1] != label:
                runs.append((start, label))
        return runs

    def copy(self) -> dict[int, np.ndarray]:
        return {block: row.copy() for block, row in self.held.items()}

    def meet(self, others: Sequence[dict[int, np.ndarray]]) -> None:
        """What is in memory if any of several runs came before."""
        self.held = {block: row.copy() for block, row in others[0].items()}
        for other in others[1:]:
            for block, row in self.held.items():
                for at in np.flatnonzero(row != other[block]):
                    both = {*self.labels[row[at]], *self.labels[other[block][at]]}
                    row[at] = self.number(tuple(sorted(both)))


class _Runs:
    """Two runs side by side."""

    def __init__(
        self,
        memories: tuple[_Memory, _Memory],
        updates: Callable[[str], bool],
        scratch: Mapping[str, Set[Slice]],
    ) -> None:
        self.memories, self.updates, self.scratch = memories, updates, scratch
        self.events = 0
        self.same = True

    def event(self) -> int:
        self.events += 1
        return self.events

    def read(self, old: Any, new: Any) -> None:
        one, two = (m.read(_place(s)) for m, s in zip(self.memories, (old, new), strict=True))
        # What nothing has written, such as the table of a tuple, may be anything.
        self.same = self.same and (one == two or one == [(0, ())])

    def write(self, old: Slice, new: Slice) -> None:
        event = self.event()
        for memory, where in zip(self.memories, (old, new), strict=True):
            memory.write(where, event)

    def sequence(self, old: Any, new: Any) -> None:
        for (thunk, kind, one), (_, _, two) in zip(steps_of(old), steps_of(new), strict=True):
            (reads, writes), (new_reads, new_writes) = accesses(kind, one), accesses(kind, two)
            before = [*zip(reads, new_reads, strict=True)]
            after = [*zip(writes, new_writes, strict=True)]
            name = thunk.info.op_name
            # What a custom call leaves as it was is an operand, which is among those that it reads.
            kept = kind != "custom_call_thunk" and self.updates(name)
            for pair in [*before, *(after if kept else ())]:
                if _place(pair[0]) not in self.scratch.get(name, ()):
                    self.read(*pair)
            self.same = self.same and _overlaps(reads, writes) == _overlaps(new_reads, new_writes)
            self.inner(kind, one, two)
            for left, right in after:
                self.write(_place(left), _place(right))

    def inner(self, kind: str, one: Any, two: Any) -> None:
        pairs = [*zip(inner_sequences(kind, one), inner_sequences(kind, two), strict=True)]
        if kind == "call_thunk":
            self.sequence(*pairs[0])
        elif kind == "conditional_thunk":
            start = [memory.copy() for memory in self.memories]
            ends = []
            for pair in pairs:
                self.begin(start)
                self.sequence(*pair)
                ends.append([memory.copy() for memory in self.memories])
            self.meet(ends)
        elif kind == "while_thunk":
            ends = []
            for _ in range(_ROUNDS + 1):
                self.sequence(*pairs[0])
                self.read(one.cond_buffer, two.cond_buffer)
                ends.append([memory.copy() for memory in self.memories])
                if len(ends) <= _ROUNDS:
                    self.sequence(*pairs[1])
            self.meet(ends)

    def begin(self, start: Sequence[dict[int, np.ndarray]]) -> None:
        for memory, held in zip(self.memories, start, strict=True):
            memory.held = {block: row.copy() for block, row in held.items()}

    def meet(self, ends: Sequence[Sequence[dict[int, np.ndarray]]]) -> None:
        for memory, row in zip(self.memories, zip(*ends, strict=True), strict=True):
            memory.meet(row)


def _place(part: Any) -> Slice:
    return part.buffer_allocation_index, part.offset, part.size


def _overlaps(reads: Sequence[Any], writes: Sequence[Any]) -> set[tuple[int, int, int]]:
    """Which operands and results of a step share bytes, and at what distance."""
    found = set()
    for i, one in enumerate([*reads, *writes]):
        for j, two in enumerate(writes):
            (a, low, size), (b, start, length) = _place(one), _place(two)
            if a == b and low < start + length and start < low + size:
                found.add((i, j, low - start))
    return found


def _all_slices(sequence: Any) -> list[Slice]:
    found = []
    for _, kind, body in steps_of(sequence):
        found += [_place(part) for row in accesses(kind, body) for part in row]
        if kind == "while_thunk":
            found.append(_place(body.cond_buffer))
        for inner in inner_sequences(kind, body):
            found += _all_slices(inner)
    return found


def same_dataflow(
    old: Any,
    new: Any,
    given: Sequence[tuple[Slice, Slice]],
    results: Sequence[tuple[Slice, Slice]],
    updates: Callable[[str], bool],
    scratch: Mapping[str, Set[Slice]],
) -> bool:
    """Whether two sequences of the same steps compute the same.

    Args:
      old: The sequence with one assignment of memory.
      new: The same steps with another one.
      given: Slices that have contents before the program runs, under both.
      results: Slices that have the results afterwards, under both.
      updates: Whether the instruction of a name may leave a part of its result as it was in memory.
      scratch: Instruction -> slices that it gets under the old assignment without reading what is in them.

    Raises:
      NotSupported: The program has a step of an unknown kind.
    """
    sides = zip(*(*given, *results), strict=True) if (given or results) else ((), ())
    memories = [
        _Memory([*slices, *_all_slices(sequence)]) for slices, sequence in zip(sides, (old, new), strict=True)
    ]
    runs = _Runs((memories[0], memories[1]), updates, scratch)
    for pair in given:
        runs.write(*pair)
    runs.sequence(old, new)
    for pair in results:
        one, two = (m.read(s) for m, s in zip(runs.memories, pair, strict=True))
        runs.same = runs.same and one == two
    return runs.same
