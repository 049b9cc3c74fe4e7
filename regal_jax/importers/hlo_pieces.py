"""Pieces of memory that can be moved as wholes, and better places for them. No jax.

XLA packs the heap of a program beside donated arguments and results, each of which holds one value at a
time. `pack_pieces` packs all of them as one: the memory of a donated argument or of a result holds
anything that fits into it while it is free.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.importers.hlo_heap import best_gap
from regal_jax.importers.hlo_lifetimes import Lifetime
from regal_jax.importers.hlo_shapes import Array
from regal_jax.importers.hlo_values import Values

__all__ = ["Packing", "Piece", "Place", "live_bytes", "make_pieces", "movable_values", "pack_pieces"]

Place = tuple[int, int]
"""A block of memory and the offset in it, in bytes."""

_WORK: Final = 12_000
"""Pieces that are placed by the search for better packings."""


@dataclasses.dataclass(eq=False, slots=True)
class Piece:
    """Values that keep their places relative to each other.

    Attributes:
      values: Their numbers.
      size: Bytes.
      spans: First and last moments of their lifetimes.
      argument: The donated argument in it, a value; ``None`` if there is none.
      result: The result of the program in it, a value; ``None`` if there is none.
    """

    values: list[int]
    size: int
    spans: list[tuple[int, int]]
    argument: int | None = None
    result: int | None = None

    @property
    def fixed(self) -> bool:
        """Whether it has a block of its own, in which it begins at 0."""
        return self.argument is not None or self.result is not None


@dataclasses.dataclass(frozen=True)
class Packing:
    """Places of pieces.

    Attributes:
      places: For each piece, the number of the fixed piece in whose block it is, or -1 for the heap, and the
        offset.
      heap: Bytes of the heap.
    """

    places: list[Place]
    heap: int


def make_pieces(values: Values, life: Sequence[Lifetime], where: Mapping[int, Place]) -> list[Piece]:
    """The pieces of a program.

    Two values are in one piece if they must share a buffer, or if they are in the same bytes at a moment,
    since an instruction is compiled to write one over the other.

    Args:
      values: The values of the module.
      life: Their lifetimes.
      where: Value -> where it is now. Values that are missing are not moved.

    Raises:
      ValueError: Donated arguments or results share their memory in an unknown way.
    """
    group: dict[int, list[int]] = {}
    members: dict[int, list[int]] = {}
    for value in where:
        members.setdefault(values.buffer[value], []).append(value)
    for row in members.values():
        group.update(dict.fromkeys(row, row))
    pairs = _overlaps(values, life, where)
    for pair in pairs:
        one, two = (group[value] for value in pair)
        if one is not two:
            if where[pair[0]] != where[pair[1]]:
                raise ValueError("two values overlap in part")
            one += two
            group.update(dict.fromkeys(two, one))
    groups = {id(row): row for row in group.values()}
    allowed = {*pairs, *((two, one) for one, two in pairs)}
    for row in groups.values():
        _check(values, life, where, row, allowed)
    donated = {
        value
        for value in where
        if values.maker[value].instruction.opcode == "parameter"
        and values.maker[value].computation == values.module.entry.name
    }
    return [_piece(values, life, group, donated) for group in groups.values()]


def _check(
    values: Values,
    life: Sequence[Lifetime],
    where: Mapping[int, Place],
    row: list[int],
    allowed: set[tuple[int, int]],
) -> None:
    """Refuses values that come together from different places and are alive at the same moment."""
    if len({where[value] for value in row}) == 1:
        return
    for one, two in itertools.combinations(row, 2):
        together = life[one].start <= life[two].end and life[two].start <= life[one].end
        same = values.buffer[one] == values.buffer[two] or (one, two) in allowed
        if together and not same:
            raise ValueError("a result would be written over its argument too early")


def _overlaps(values: Values, life: Sequence[Lifetime], where: Mapping[int, Place]) -> list[tuple[int, int]]:
    """Pairs of values that are in the same bytes at the same moment."""
    rows: dict[int, list[int]] = {}
    for value, (block, _) in where.items():
        if values.size[value]:
            rows.setdefault(block, []).append(value)
    pairs = []
    for row in rows.values():
        bottoms = np.array([where[v][1] for v in row])
        tops = bottoms + np.array([values.size[v] for v in row])
        starts, ends = (np.array([getattr(life[v], name) for v in row]) for name in ("start", "end"))
        for i in range(len(row) - 1):
            rest = slice(i + 1, None)
            same = (bottoms[rest] < tops[i]) & (tops[rest] > bottoms[i])
            same &= (starts[rest] <= ends[i]) & (ends[rest] >= starts[i])
            pairs += [(row[i], row[i + 1 + int(j)]) for j in np.flatnonzero(same)]
    return pairs


def _piece(values: Values, life: Sequence[Lifetime], group: list[int], donated: set[int]) -> Piece:
    arguments = [v for v in group if v in donated]
    results = [v for v in group if v in values.live_out]
    if len(arguments) > 1:
        raise ValueError("two donated arguments share a buffer")
    spans: list[tuple[int, int]] = []
    for start, end in sorted((life[v].start, life[v].end) for v in group):
        if spans and start <= spans[-1][1] + 1:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((start, end))
    size = max(values.size[v] for v in group)
    piece = Piece(group, size, spans, arguments[0] if arguments else None, results[0] if results else None)
    if piece.fixed:
        held = values.size[arguments[0] if arguments else results[0]]
        if held < size:
            raise ValueError("a result is smaller than what shares its memory")
    return piece


def movable_values(values: Values) -> frozenset[int]:
    """The values that may be moved: no constants, arguments that are not donated, or tuples of results."""

    def fixed(value: int) -> bool:
        maker = values.maker[value]
        opcode, place = maker.instruction.opcode, values.place[value]
        if opcode == "parameter" and maker.computation == values.module.entry.name:
            return (int(maker.instruction.operands[0]), place) not in values.donated
        return opcode == "constant" or (
            value in values.live_out and not isinstance(maker.shapes[place], Array)
        )

    numbers = range(len(values.maker))
    buffers = {values.buffer[value] for value in numbers if fixed(value)}
    return frozenset(value for value in numbers if values.buffer[value] not in buffers)


def live_bytes(pieces: Sequence[Piece]) -> int:
    """Most bytes of pieces that are alive at once: no packing has less memory, blocks included."""
    change: dict[int, int] = {}
    for piece in pieces:
        for start, end in piece.spans:
            change[start] = change.get(start, 0) + piece.size
            change[end + 1] = change.get(end + 1, 0) - piece.size
    live = most = 0
    for moment in sorted(change):
        live += change[moment]
        most = max(most, live)
    return most


def pack_pieces(pieces: Sequence[Piece], alignment: int) -> Packing:
    """Packs pieces into the blocks of the fixed ones, and the rest into a heap as small as is found.

    Args:
      pieces: The pieces.
      alignment: Bytes to a multiple of which places are rounded up.

    Raises:
      ValueError: Two fixed pieces are in one block at the same moment.
    """
    packer = _Packer(pieces, alignment)
    free = [i for i, piece in enumerate(pieces) if not piece.fixed]
    life = {i: sum(end - start + 1 for start, end in pieces[i].spans) for i in free}
    keys: tuple[Callable[[int], Any], ...] = (
        lambda i: (-pieces[i].size, -life[i], i),
        lambda i: (-pieces[i].size * life[i], i),
        lambda i: (-life[i], -pieces[i].size, i),
    )
    least = max(live_bytes(pieces) - sum(packer.sizes), 0)
    tried = [(sorted(free, key=key), packer) for key in keys]
    orders = [(order, *packer.pack(order)) for order, packer in tried]
    order, places, heap = min(orders, key=lambda made: made[2])
    for _ in range(_WORK // max(len(free), 1)):
        if heap <= least:
            break
        highest = max(free, key=lambda i: places[i][1] + pieces[i].size if places[i][0] < 0 else -1)
        moved = [highest, *(i for i in order if i != highest)]
        if moved == order:
            break
        again, size = packer.pack(moved)
        order = moved
        if size < heap:
            places, heap = again, size
    return Packing(places, heap)


class _Packer:
    """Blocks and heap as one range of addresses, the heap last."""

    def __init__(self, pieces: Sequence[Piece], alignment: int) -> None:
        self.pieces, self.alignment = pieces, alignment
        self.fixed = [i for i, piece in enumerate(pieces) if piece.fixed]
        self.sizes = [pieces[i].size for i in self.fixed]
        self.bases = [0]
        for size in self.sizes:
            self.bases.append(self.bases[-1] + self.up(size) + alignment)
        self.heap = self.bases[-1]

    def up(self, size: int) -> int:
        return -(-size // self.alignment) * self.alignment

    def pack(self, order: Sequence[int]) -> tuple[list[Place], int]:
        """Places the free pieces in an order, each into the smallest gap that fits."""
        pieces, walls = self.pieces, len(self.fixed)
        count = walls + sum(len(piece.spans) for piece in pieces)
        starts, ends, tops, bottoms = (np.zeros(count, np.int64) for _ in range(4))
        # What lies between two blocks is never free.
        ends[:walls] = np.iinfo(np.int64).max
        for i, (base, size) in enumerate(zip(self.bases, self.sizes, strict=False)):
            bottoms[i], tops[i] = base + size, self.bases[i + 1]
        placed = walls

        def put(number: int, address: int) -> None:
            nonlocal placed
            for first, last in pieces[number].spans:
                starts[placed], ends[placed], bottoms[placed] = first, last, address
                tops[placed] = self.up(address + pieces[number].size)
                placed += 1

        places: list[Place] = [(-1, 0)] * len(pieces)
        for base, number in zip(self.bases, self.fixed, strict=False):
            places[number] = number, 0
            put(number, base)
        top = self.heap
        for number in order:
            size = pieces[number].size
            taken = np.zeros(placed, bool)
            for first, last in pieces[number].spans:
                taken |= (starts[:placed] <= last) & (ends[:placed] >= first)
            here = np.flatnonzero(taken)
            address = best_gap(bottoms[here], tops[here], size)
            put(number, address)
            if address >= self.heap:
                places[number] = -1, address - self.heap
                top = max(top, address + size)
            else:
                at = int(np.searchsorted(self.bases, address, "right")) - 1
                places[number] = self.fixed[at], address - self.bases[at]
        return places, top - self.heap
