"""A bound on the memory of a program for a CPU, for every order of its instructions. No jax.

Values are those of `regal_jax.importers.hlo_values`, which the prediction of temporary memory follows.
Whatever XLA or `regal_jax.compile` may do to save memory is assumed to be done: results are written over
operands that end there, and no bytes are lost between buffers.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from regal_jax.importers.hlo_shapes import Array
from regal_jax.importers.hlo_sharing import callees
from regal_jax.importers.hlo_temp import can_share
from regal_jax.importers.hlo_text import Module, names_in
from regal_jax.importers.hlo_values import Node, Values, read_values
from regal_jax.plan import Lives, least_peak

__all__ = ["memory_bound"]


def memory_bound(module: Module) -> int:
    """Bytes that a program needs in every order of its instructions, wherever its buffers are.

    These are the bytes of arguments, results and temporary memory, with shared memory counted once. A value
    is in the heap, or in the memory of a donated argument or a result that is at least as large. So for every
    size, the heap has the larger values that are alive at once, except for as many bytes as larger
    arguments and results have.

    Args:
      module: A scheduled module.
    """
    values = read_values(module)
    fixed, blocks = _memory(values)
    heap = 0
    for least in sorted({0, *blocks}):
        room = sum(size for size in blocks if size > least)
        heap = max(heap, _Bound(values, least).of(module.entry.name, heap + room) - room)
    return fixed + sum(blocks) + heap


def _memory(values: Values) -> tuple[int, list[int]]:
    """Bytes of arguments that are not donated, and the sizes of donated arguments and other results."""
    entry = values.module.entry.name
    fixed, blocks = 0, {}
    for node in values.by_name[entry].values():
        if node.instruction.opcode == "parameter":
            for path, value in node.held.items():
                if value is None or not isinstance(node.shapes[path], Array):
                    continue
                if (int(node.instruction.operands[0]), path) in values.donated:
                    blocks[values.buffer[value]] = values.size[value]
                else:
                    fixed += values.size[value]
    root = values.root(entry)
    for path, value in root.held.items():
        if value is not None and isinstance(root.shapes[path], Array):
            blocks.setdefault(values.buffer[value], values.size[value])
    return fixed, list(blocks.values())


_PASSES_ON: Final = frozenset(
    {"tuple", "get-tuple-element", "bitcast", "opt-barrier", "add-dependency", "domain"}
)
"""Opcodes that make no array and read none."""


class _Bound:
    """Bounds of the computations of a program, for values of more than ``least`` bytes."""

    def __init__(self, values: Values, least: int) -> None:
        self.values, self.least = values, least

    def of(self, name: str, known: int = 0) -> int:
        """Bytes of values that are alive at once in every order of a computation and of those that it runs.

        Values that its caller passes on do not count. The result is at least ``known``.
        """
        row = self.values.by_name[name]
        nodes = [row[each] for each in self.values.module.computations[name].instructions]
        place = {node.number: i for i, node in enumerate(nodes)}
        found = self.visible(nodes)
        index = {value: b for b, value in enumerate(found)}
        readers: list[set[int]] = [set() for _ in found]
        beside: list[list[int]] = []
        over: list[list[tuple[int, int]]] = []
        extra = []
        for i, node in enumerate(nodes):
            for value in self.read(node):
                if value in index:
                    readers[index[value]].add(i)
            here, pairs, more = self.at(node, index)
            beside.append(here)
            over.append(pairs)
            extra.append(more)
        edges = [(place[before.number], i) for i, node in enumerate(nodes) for before in self.before(node)]
        source, target = np.array(edges, np.int64).reshape(-1, 2).T
        kept = set(self.values.root(name).held.values())
        lives = Lives(
            *(source, target, np.array([self.values.size[v] for v in found], np.int64)),
            np.array([-1 if maker is None else place[maker.number] for maker in found.values()], np.int64),
            *([sorted(each) for each in readers], np.array([v in kept for v in found], bool)),
            *(beside, np.array(extra, np.int64), over),
        )
        return least_peak(lives, np.arange(len(nodes)), known)

    def before(self, node: Node) -> list[Node]:
        row = self.values.by_name[node.computation]
        control = names_in(node.instruction.attributes.get("control-predecessors", ""))
        return [*node.operands, *(row[name] for name in control)]

    def visible(self, nodes: Sequence[Node]) -> dict[int, Node | None]:
        """The values that count -> the node that makes them in this computation, ``None`` for its caller."""
        values, found, outside = self.values, {}, set()
        entry = values.module.entry.name
        for node in nodes:
            opcode = node.instruction.opcode
            for path, value in node.held.items():
                if value is None or value in found or value in outside:
                    continue
                own = values.maker[value] is node
                if opcode == "parameter" and node.computation == entry:
                    own = (int(node.instruction.operands[0]), path) in values.donated
                if opcode == "constant" or not (own or callees(node.instruction)):
                    outside.add(value)
                elif values.size[value] > self.least and isinstance(node.shapes[path], Array):
                    found[value] = None if opcode == "parameter" else node
        return found

    def read(self, node: Node) -> list[int]:
        opcode = node.instruction.opcode
        if opcode in _PASSES_ON:
            return []
        return [
            value
            for operand in node.operands
            for path, value in operand.held.items()
            if value is not None and not (path and opcode == "copy")
        ]

    def at(self, node: Node, index: dict[int, int]) -> tuple[list[int], list[tuple[int, int]], int]:
        """What `Lives` has for a node: ``beside``, ``over`` and ``extra``."""
        values = self.values
        made = [(path, v) for path, v in node.held.items() if v in index and v not in self.given(node)]
        if callees(node.instruction):
            inner = max((self.of(name) for name in callees(node.instruction)), default=0)
            size = {values.buffer[v]: values.size[v] for _, v in made}
            same = set(node.held.values()) if node.instruction.opcode == "while" else set()
            return (
                [index[v] for v in self.given(node) if v in same and v in index],
                [],
                max(inner, sum(size.values())),
            )
        if node.instruction.opcode in _PASSES_ON:
            return [], [], 0
        read = [v for v in dict.fromkeys(self.read(node)) if v in index]
        buffers = {values.buffer[v] for v in read}
        new = [(path, v) for path, v in made if values.buffer[v] not in buffers]
        pairs = {
            (index[old], index[v])
            for path, v in new
            for operand in node.operands
            for inside, old in operand.held.items()
            if old in index
            and node.instruction.opcode != "copy"
            and can_share(values.module, operand, inside, node, path)
        }
        return [index[v] for v in [*read, *(v for _, v in new)]], sorted(pairs), 0

    def given(self, node: Node) -> set[int]:
        return {v for operand in node.operands for v in operand.held.values() if v is not None}
