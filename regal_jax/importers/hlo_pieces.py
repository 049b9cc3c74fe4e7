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

from regal_jax.importers.hlo_heap import ALIGNMENT
from regal_jax.importers.hlo_lifetimes import Lifetime, inner_computations, one_kernel_calls
from regal_jax.importers.hlo_packing import Packable, Placed, pack
from regal_jax.importers.hlo_shapes import Array
from regal_jax.importers.hlo_sharing import callees
from regal_jax.importers.hlo_values import Values
from regal_jax.runtime.compiling import for_loops, loops, usable

__all__ = ["Packing", "Piece", "Place", "live_bytes", "make_pieces", "movable_values", "pack_pieces"]

Place = tuple[int, int]
"""A block of memory and the offset in it, in bytes."""

_WORK: Final = 100_000_000
"""Comparisons of two lives in the search for better packings."""
_SLOWER: Final = 100
"""Times fewer of them where loops are not compiled."""
_TRIALS: Final = 400
"""Packings that are tried, unless they take too much work."""


@dataclasses.dataclass(eq=False, slots=True)
class Piece:
    """Values that keep their places relative to each other.

    Attributes:
      values: Their numbers.
      size: Bytes.
      spans: First and last moments of their lifetimes.
      argument: The donated argument in it, a value; ``None`` if there is none.
      result: The result of the program in it, a value; ``None`` if there is none.
      offsets: Value -> its offset in the piece in bytes, where that is not 0.
    """

    values: list[int]
    size: int
    spans: list[tuple[int, int]]
    argument: int | None = None
    result: int | None = None
    offsets: Mapping[int, int] = dataclasses.field(default_factory=dict)

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
    since an instruction is compiled to write one over the other. Within a call that is one kernel, whose
    values count as alive during all of it, two values may also overlap in part.

    Args:
      values: The values of the module.
      life: Their lifetimes.
      where: Value -> where it is now. Values that are missing are not moved.

    Raises:
      ValueError: Donated arguments or results share their memory in an unknown way.
    """
    group: dict[int, list[int]] = {}
    members: dict[int, list[int]] = {}
    for value in sorted(where):  # Equal pieces are packed in this order.
        members.setdefault(values.buffer[value], []).append(value)
    for row in members.values():
        group.update(dict.fromkeys(row, row))
    pairs = _overlaps(values, life, where)
    offsets: dict[int, int] = dict.fromkeys(where, 0)
    inner = _within_kernels(values) if any(where[one] != where[two] for one, two in pairs) else set()
    for first, second in pairs:
        one, two = group[first], group[second]
        apart = where[second][1] - where[first][1]
        if apart and not (first in inner and second in inner):
            raise ValueError("two values overlap in part")
        shift = offsets[first] + apart - offsets[second]
        if one is not two:
            for value in two:
                offsets[value] += shift
            one += two
            group.update(dict.fromkeys(two, one))
        elif shift:
            raise ValueError("values that share a buffer are apart")
    groups = {id(row): row for row in group.values()}
    allowed = {*pairs, *((two, one) for one, two in pairs)}
    for row in groups.values():
        _check(values, life, where, row, allowed, offsets)
    donated = {
        value
        for value in where
        if values.maker[value].instruction.opcode == "parameter"
        and values.maker[value].computation == values.module.entry.name
    }
    return [_piece(values, life, group, donated, offsets) for group in groups.values()]


def _within_kernels(values: Values) -> set[int]:
    """The values that are made within calls that are one kernel each."""
    names = {name for node in one_kernel_calls(values) for name in callees(node.instruction)}
    while True:
        made = [node for node in values.nodes if node.computation in names]
        more = names.union(*(inner_computations(node) for node in made))
        if more == names:
            return {value for value, node in enumerate(values.maker) if node.computation in names}
        names = more


def _check(
    values: Values,
    life: Sequence[Lifetime],
    where: Mapping[int, Place],
    row: list[int],
    allowed: set[tuple[int, int]],
    offsets: Mapping[int, int],
) -> None:
    """Refuses values that come together from different places and are alive at the same moment."""
    if len({where[value] for value in row}) == 1:
        return
    for one, two in itertools.combinations(row, 2):
        together = life[one].start <= life[two].end and life[two].start <= life[one].end
        same = values.buffer[one] == values.buffer[two] or (one, two) in allowed
        (block, bottom), (other, above) = where[one], where[two]
        kept = block == other and above - bottom == offsets[two] - offsets[one]
        if together and not same and not kept:
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


def _piece(
    values: Values,
    life: Sequence[Lifetime],
    group: list[int],
    donated: set[int],
    offsets: Mapping[int, int],
) -> Piece:
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
    bottom = min(offsets[v] for v in group)
    inside = {v: offsets[v] - bottom for v in group if offsets[v] > bottom}
    size = max(inside.get(v, 0) + values.size[v] for v in group)
    argument, result = (row[0] if row else None for row in (arguments, results))
    piece = Piece(group, size, spans, argument, result, inside)
    if piece.fixed:
        fixed = arguments[0] if arguments else results[0]
        if values.size[fixed] < size or fixed in inside:
            raise ValueError("a result or a donated argument does not hold all that shares its memory")
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


def pack_pieces(pieces: Sequence[Piece]) -> Packing:
    """Packs pieces into the blocks of the fixed ones, and the rest into a heap as small as is found.

    Raises:
      ValueError: Two fixed pieces are in one block at the same moment.
    """
    packer = _Packer(pieces)
    free = packer.free
    life = {i: sum(end - start + 1 for start, end in pieces[i].spans) for i in free}
    keys: tuple[Callable[[int], Any], ...] = (
        lambda i: (-pieces[i].size, -life[i], i),
        lambda i: (-pieces[i].size * life[i], i),
        lambda i: (-life[i], -pieces[i].size, i),
    )
    least = max(live_bytes(pieces) - sum(packer.sizes), 0)
    found = [(order, *packer.pack(order)) for order in (sorted(free, key=key) for key in keys)]
    order, address, heap = min(found, key=lambda made: made[2])
    random = np.random.default_rng(0)
    for _ in range(min(_TRIALS, (_WORK if usable() else _WORK // _SLOWER) // (packer.room**2 + 1))):
        if heap <= least:
            break
        trial = _moved(packer, order, address, random)
        places, size = packer.pack(trial)
        if size <= heap:
            order, address, heap = trial, places, size
    return Packing(packer.places(address), heap)


def _moved(
    packer: "_Packer", order: list[int], address: Sequence[int], random: np.random.Generator
) -> list[int]:
    """The order with the piece at the top of the heap earlier and, half of the time, two pieces swapped."""
    highest = max(order, key=lambda i: address[i] + packer.pieces[i].size)
    earlier = int(random.integers(0, order.index(highest) + 1))
    moved = [i for i in order if i != highest]
    moved.insert(earlier, highest)
    if random.random() < 0.5:
        one, two = random.integers(0, len(moved), 2).tolist()
        moved[one], moved[two] = moved[two], moved[one]
    return moved


class _Packer:
    """Blocks and heap as one range of addresses, the heap last."""

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self.pieces = pieces
        self.fixed = [i for i, piece in enumerate(pieces) if piece.fixed]
        self.free = [i for i, piece in enumerate(pieces) if not piece.fixed]
        self.sizes = [pieces[i].size for i in self.fixed]
        self.bases = [0]
        for size in self.sizes:
            self.bases.append(self.bases[-1] + self.up(size) + ALIGNMENT)
        self.heap = self.bases[-1]
        spans = [span for piece in pieces for span in piece.spans]
        rows = np.cumsum([0, *(len(piece.spans) for piece in pieces)])
        self.packable = Packable(
            *(np.array([piece.size for piece in pieces], np.int64), rows.astype(np.int64)),
            *(np.array(column, np.int64) for column in (zip(*spans, strict=True) if spans else ((), ()))),
        )
        self.walls, self.room = self._walls(), len(spans) + len(self.fixed)
        self.given = for_loops(self.packable)

    def up(self, size: int) -> int:
        return -(-size // ALIGNMENT) * ALIGNMENT

    def _walls(self) -> np.ndarray:
        """``[4, W]``, start, end, bottom and top of what is fixed, and of what lies between two blocks."""
        rows = []
        for i, base, end in zip(self.fixed, self.bases, self.bases[1:], strict=False):
            size = self.pieces[i].size
            # What lies between two blocks is never free.
            rows.append((0, np.iinfo(np.int64).max, base + size, end))
            rows += [(first, last, base, base + self.up(size)) for first, last in self.pieces[i].spans]
        return np.array(sorted(rows, key=lambda row: row[2]), np.int64).reshape(-1, 4).T

    def pack(self, order: Sequence[int]) -> tuple[list[int], int]:
        """The addresses of all pieces if the free ones are placed in an order, and the bytes of the heap."""
        count = self.walls.shape[1]
        placed = np.zeros((4, self.room), np.int64)
        placed[:, :count] = self.walls
        address = _lent(np.zeros(len(self.pieces), np.int64))
        top = loops(pack)(
            *(self.given, for_loops(np.array(order, np.int64)), Placed(*map(_lent, placed)), count),
            *(ALIGNMENT, address),
        )
        return [int(a) for a in address], max(int(top) - self.heap, 0)

    def places(self, address: Sequence[int]) -> list[Place]:
        """The block and offset of each address."""
        found: list[Place] = [(-1, 0)] * len(self.pieces)
        for number in self.fixed:
            found[number] = number, 0
        for i in self.free:
            if address[i] >= self.heap:
                found[i] = -1, address[i] - self.heap
            else:
                at = int(np.searchsorted(self.bases, address[i], "right")) - 1
                found[i] = self.fixed[at], address[i] - self.bases[at]
        return found


def _lent(array: np.ndarray) -> Any:
    """``array`` itself for compiled loops, which write to it; a list in Python."""
    return array if usable() else array.tolist()
