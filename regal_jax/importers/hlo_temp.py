"""`TempModel`: the temporary memory that XLA allocates for a program on a CPU.

`regal_jax.order` minimises the largest sum of the sizes of live buffers. XLA's figure also contains the gaps
between buffers, and excludes buffers that XLA puts into donated arguments and results. This model follows
XLA's assignment of buffers: which values share a buffer, which buffers go into the memory of results and of
donated arguments, and at which places of the heap the others are. This module does not import JAX.
"""

from collections.abc import Callable, Mapping, Sequence

from regal_jax.importers.hlo_heap import ALIGNMENT, Interval, pack_heap
from regal_jax.importers.hlo_lifetimes import Lifetime, lifetimes, one_kernel_calls, step_lifetimes
from regal_jax.importers.hlo_pieces import Piece, Place, make_pieces, movable_values
from regal_jax.importers.hlo_shapes import Array
from regal_jax.importers.hlo_sharing import ELEMENTWISE
from regal_jax.importers.hlo_text import Computation, Module, names_in
from regal_jax.importers.hlo_values import Node, Path, Values, in_place, read_values

__all__ = ["TempModel", "can_share"]


class TempModel:
    """The temporary memory of a program, for any order of its instructions.

    Args:
      module: A scheduled module.

    References:
      openxla/xla: buffer_assignment, hlo_alias_analysis, hlo_dataflow_analysis
      (``CanShareOperandBufferWithUser``), heap_simulator.
    """

    def __init__(self, module: Module) -> None:
        self._values = read_values(module)
        self._shares: dict[tuple[int, Path, int, Path], bool] = {}

    def temp_bytes(self, orders: Mapping[str, Sequence[str]] | None = None) -> int:
        """Temporary memory in bytes.

        Args:
          orders: Computation -> names of all its instructions in order. Other computations, or all if it is
            ``None``, run in the order of the text.
        """
        return _Assignment(self._values, orders or {}, self._can_share).temp_bytes()

    def pieces(self, orders: Mapping[str, Sequence[str]], values: Values) -> list[Piece]:
        """What XLA would put into one place, as pieces that can be packed anew.

        Args:
          orders: As for `temp_bytes`.
          values: The values of the same module with the donated arguments that XLA did not know of.

        Raises:
          ValueError: The pieces are not rectangular.
        """
        assignment = _Assignment(self._values, orders, self._can_share)
        heap = assignment.assign()
        # Only within the kernel of a call do values share a place that are not written over each other.
        shared = pack_heap(heap)[1] if one_kernel_calls(values) else {}
        places, chosen = assignment.places(shared), movable_values(values)
        where = {value: place for value, place in places.items() if value in chosen}
        return make_pieces(values, step_lifetimes(values, orders), where)

    def _can_share(self, operand: Node, inside: Path, user: Node, path: Path) -> bool:
        key = operand.number, inside, user.number, path
        if key not in self._shares:
            self._shares[key] = can_share(self._values.module, *(operand, inside, user, path))
        return self._shares[key]


class _Block:
    """Memory outside the heap: a donated argument or a result."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.held: list[int] = []


class _Assignment:
    """One pass over the buffers of a program in one order."""

    def __init__(
        self,
        values: Values,
        orders: Mapping[str, Sequence[str]],
        can_share: Callable[[Node, Path, Node, Path], bool],
    ) -> None:
        self.values, self.can_share = values, can_share
        self.life, self.end = lifetimes(values, orders)
        self.buffers: dict[int, list[int]] = {}
        for value, buffer in enumerate(values.buffer):
            self.buffers.setdefault(buffer, []).append(value)
        self.sizes = {b: max(values.size[v] for v in row) for b, row in self.buffers.items()}
        self.leaves = {b for b, row in self.buffers.items() if not values.live_out.isdisjoint(row)}
        self.blocks: list[_Block] = []
        self.block_of: dict[int, _Block] = {}
        self.kinds: list[int] = []  # For each block in order, its bytes if it is temporary, else -1.
        self.later: list[int] = []
        self.first: dict[int, int] = {}  # Buffer in the heap -> its first value.
        self.group: dict[int, int] = {}  # Value in the heap -> the buffer in the heap that has it.

    def temp_bytes(self) -> int:
        return self.total(pack_heap(self.assign())[0])

    def assign(self) -> list[Interval]:
        """Fills the blocks.

        Returns:
          What is left for the heap.
        """
        place = self.positions()
        for buffer in sorted(self.buffers, key=lambda b: (-self.sizes[b], b not in self.leaves, place[b])):
            if not self.special(buffer) and not self.into_block(buffer):
                if buffer in self.leaves:
                    self.open(buffer)
                else:
                    self.later.append(buffer)
        return self.heap()

    def total(self, heap: int) -> int:
        """The heap and the tuples in one block, in the order in which XLA joins them."""
        kinds = [*self.kinds, *([heap] if self.later else []), *([-1] * self.values.local)]
        front, back = 0, len(kinds)
        while front < back:
            if kinds[front] < 0:
                front += 1
            else:
                back -= 1
                if kinds[back] < 0:
                    kinds[front], kinds[back] = kinds[back], kinds[front]
        total = 0
        for size in kinds[back:]:
            total = -(-total // ALIGNMENT) * ALIGNMENT + size
        return total

    def positions(self) -> dict[int, tuple[int, int]]:
        """Rank of buffers among those of the same size: those of callers come first."""
        depth = {c.name: -i for i, c in enumerate(self.values.computations)}
        makers = self.values.maker
        return {
            buffer: min((depth[makers[v].computation], makers[v].number) for v in row)
            for buffer, row in self.buffers.items()
        }

    def special(self, buffer: int) -> bool:
        """Constants, arguments and tuples have memory of their own."""
        values = self.values
        row = self.buffers[buffer]
        if any(values.maker[v].instruction.opcode == "constant" for v in row):
            self.kinds.append(-1)
            return True
        for value in row:
            maker = values.maker[value]
            if maker.instruction.opcode == "parameter" and maker.computation == values.module.entry.name:
                number = int(maker.instruction.operands[0])
                if (number, values.place[value]) in values.donated:
                    self.open(buffer)
                else:
                    self.kinds.append(-1)
                return True
        if any(not isinstance(values.maker[v].shapes[values.place[v]], Array) for v in row):
            self.kinds.append(-1 if buffer in self.leaves else self.sizes[buffer])
            return True
        return False

    def open(self, buffer: int) -> None:
        block = _Block(self.sizes[buffer])
        self.kinds.append(-1)
        self.blocks.append(block)
        self.put(buffer, block)

    def put(self, buffer: int, block: _Block) -> None:
        block.held += self.buffers[buffer]
        self.block_of[buffer] = block

    def into_block(self, buffer: int) -> bool:
        """Puts a buffer into the memory of a result or a donated argument, preferably that of an operand."""
        near = []
        for value in self.buffers[buffer]:
            if not self.values.place[value]:
                for operand in self.values.maker[value].operands:
                    other = operand.held.get(())
                    block = None if other is None else self.block_of.get(self.values.buffer[other])
                    if block is not None:
                        near.append(block)
        for block in (*near, *reversed(self.blocks)):
            if self.fits(buffer, block):
                self.put(buffer, block)
                return True
        return False

    def fits(self, buffer: int, block: _Block) -> bool:
        size = self.sizes[buffer]
        if size > block.size or (buffer in self.leaves and size != block.size):
            return False
        mine = self.buffers[buffer]
        for other in block.held:
            for value in mine:
                if self.interferes(value, other) or self.copied(value, other):
                    return False
        return True

    def interferes(self, one: int, two: int) -> bool:
        a, b = self.life[one], self.life[two]
        if a.start > b.end or b.start > a.end:
            return False
        if a.end == b.start:
            return not self.ends_in(one, a, two)
        if b.end == a.start:
            return not self.ends_in(two, b, one)
        return True

    def ends_in(self, operand: int, life: Lifetime, user: int) -> bool:
        """Whether the instruction that makes ``user`` may write it over ``operand``."""
        maker, last = self.values.maker[user], life.last
        if maker.instruction.opcode == "copy" or last not in maker.operands:
            return False
        inside = next((p for p, value in last.held.items() if value == operand), ())
        return self.can_share(last, inside, maker, self.values.place[user])

    def copied(self, value: int, other: int) -> bool:
        maker = self.values.maker[value]
        if maker.instruction.opcode != "copy":
            return False
        return any(n in maker.operands for n in (self.values.maker[other], *self.values.positions[other]))

    def heap(self) -> list[Interval]:
        """The buffers of the heap, joined with those of operands that their values overwrite."""
        values, life = self.values, self.life
        chosen = {v for b in self.later for v in self.buffers[b] if self.sizes[b]}
        made: dict[int, list[int]] = {}
        freed: dict[int, dict[int, None]] = {}
        for value in sorted(chosen, key=lambda v: (life[v].start, life[v].end, v)):
            made.setdefault(life[value].start, []).append(value)
            freed.setdefault(life[value].end, {})[value] = None
        clock = 0
        group = self.group
        intervals: dict[int, Interval] = {}
        begin: dict[int, int] = {}
        where: dict[int, int] = {}

        def free(value: int, clock: int) -> None:
            interval = intervals[group[value]]
            interval.spans[where[value]] = begin[value], clock

        for moment in sorted({*made, *freed}):
            ending = freed.get(moment, {})
            for value in made.get(moment, ()):
                buffer = values.buffer[value]
                home = buffer if buffer in intervals else None
                if home is None and len(self.buffers[buffer]) == 1:
                    over = self.written_over(value, ending)
                    if over is not None:
                        free(over, clock)
                        clock += 1
                        del ending[over]
                        home = group[over]
                        intervals[home].size = max(intervals[home].size, self.sizes[buffer])
                if home is None:
                    home = buffer
                    intervals[home] = Interval(value, self.sizes[buffer], [])
                    self.first[home] = value
                group[value], begin[value] = home, clock
                where[value] = len(intervals[home].spans)
                intervals[home].spans.append((clock, clock))
                clock += 1
            for value in ending:
                free(value, clock)
                clock += 1
        return list(intervals.values())

    def places(self, shared: Mapping[int, int]) -> dict[int, Place]:
        """Where each value is after `assign`.

        Args:
          shared: Offsets in the heap by the first value of each buffer; others have a block of their own.
        """
        blocks: dict[object, int] = {}
        found: dict[int, Place] = {}
        for buffer, row in self.buffers.items():
            for value in row:
                group = self.group.get(value, buffer)
                home: object = self.block_of.get(buffer) or ("heap", group)
                offset = shared.get(self.first.get(group, -1))
                if offset is not None and buffer not in self.block_of:
                    home = "heap"
                found[value] = (
                    blocks.setdefault(home, len(blocks)),
                    offset if home == "heap" and offset else 0,
                )
        return found

    def written_over(self, value: int, ending: dict[int, None]) -> int | None:
        """The operand's value that ends where ``value`` is made and that ``value`` may overwrite."""
        values, maker = self.values, self.values.maker[value]
        if maker.instruction.opcode == "copy":
            return None
        for operand in maker.operands:
            other = operand.held.get(())
            if other is None or other not in ending or len(self.buffers[values.buffer[other]]) > 1:
                continue
            home, inside = values.maker[other], values.place[other]
            if home in maker.operands and self.can_share(home, inside, maker, values.place[value]):
                return other
        return None


def can_share(module: Module, operand: Node, inside: Path, user: Node, path: Path) -> bool:
    """Whether ``user`` may write its result over an operand that nothing else needs."""
    if operand.instruction.opcode == "constant":
        return False
    given, made = operand.shapes.get(inside), user.shapes.get(path)
    if not isinstance(given, Array) or not isinstance(made, Array):
        return False
    if given != made or given.layout != made.layout:
        return False
    places = [i for i, node in enumerate(user.operands) if node is operand]
    if any((place, inside, path) in in_place(module, user.instruction) for place in places):
        return True
    opcode = user.instruction.opcode
    if opcode == "fusion":
        return _fusion_shares(module, user, places[0])
    if opcode in ("while", "conditional"):
        return True
    if opcode in ("dynamic-update-slice", "scatter", "set-dimension-size"):
        return places == [0]
    if opcode == "triangular-solve":
        return places == [1]
    if opcode == "sort":
        rows = module.computations[operand.computation].instructions.values()
        if sum(operand.instruction.name in row.operands for row in rows) > 1:
            return False
        return len(user.operands) == 1 or (len(places) == 1 and path == (places[0],))
    return opcode in ELEMENTWISE or opcode == "map"


def _fusion_shares(module: Module, user: Node, place: int) -> bool:
    names = names_in(user.instruction.attributes.get("calls", ""))
    if not names or names[0] not in module.computations:
        return False
    loop = user.instruction.attributes.get("kind") in ("kLoop", "kInput")
    return _elementwise(module.computations[names[0]], place, loop)


def _elementwise(called: Computation, number: int, loop: bool) -> bool:
    """Whether everything between a parameter and the root is elementwise."""
    reached = {
        i.name
        for i in called.instructions.values()
        if i.opcode == "parameter" and i.operands[0] == str(number)
    }
    for instruction in called.instructions.values():
        if instruction.opcode in ("parameter", "constant"):
            continue
        through = [i for i, name in enumerate(instruction.operands) if name in reached]
        if not through:
            continue
        slot = loop and instruction.opcode == "dynamic-update-slice" and through == [0]
        bundle = loop and instruction.opcode == "tuple"
        if not (instruction.opcode in ELEMENTWISE or instruction.opcode == "map" or slot or bundle):
            return False
        reached.add(instruction.name)
    return True
