"""The values of a scheduled HLO module: their makers and readers, and which of them share a buffer.

A value is made by an instruction at one place of its result. ``get-tuple-element``, ``bitcast``, loops,
branches and calls make no values: they pass on those of their operands and of the computations that they run.
This module does not import JAX.
"""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Final

from regal_jax.graph.roots import root_of
from regal_jax.importers.hlo_shapes import Array, Shape
from regal_jax.importers.hlo_sharing import aliases, callees, fused_updates
from regal_jax.importers.hlo_text import Computation, Instruction, Module, names_in

__all__ = ["Node", "Path", "Values", "read_values"]

Path = tuple[int, ...]
"""Place in a nested result; the empty one is the whole."""

_FORWARD: Final = frozenset({"bitcast", "opt-barrier", "add-dependency", "domain"})
_CALLS: Final = frozenset({"while", "call", "conditional"})
_MAKES_NOTHING: Final = _FORWARD | _CALLS | {"get-tuple-element"}
_POINTER: Final = 8


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """An instruction of a computation that runs as a program.

    Attributes:
      number: Position in `Values.nodes`.
      computation: Name of its computation.
      instruction: The instruction.
      operands: Its operands.
      held: For each place of the result, its value.
      shapes: For each place of the result, its shape.
    """

    number: int
    computation: str
    instruction: Instruction
    operands: list["Node"]
    held: dict[Path, int | None]
    shapes: dict[Path, Shape]


Callers = dict[str, list[Node]]
"""Computation -> the instructions that run it."""


@dataclasses.dataclass(eq=False, slots=True)
class Values:
    """The values of a module, numbered from 0.

    Attributes:
      module: The module.
      computations: The computations that run as programs, the entry last.
      nodes: Their instructions.
      by_name: Computation -> name -> instruction.
      maker: Value -> the instruction that makes it.
      place: Value -> its place in the result.
      size: Value -> bytes; a tuple has one pointer per element.
      positions: Value -> the other instructions that pass it on.
      readers: Value -> instructions that use it.
      buffer: Value -> the smallest of the values with which it must share a buffer.
      live_out: Values that the module returns.
      local: Number of values in the computations of reductions, scatters and sorts.
      donated: Entry parameters (number, place) whose buffers results overwrite.
    """

    module: Module
    computations: list[Computation]
    nodes: list[Node] = dataclasses.field(default_factory=list)
    by_name: dict[str, dict[str, Node]] = dataclasses.field(default_factory=dict)
    maker: list[Node] = dataclasses.field(default_factory=list)
    place: list[Path] = dataclasses.field(default_factory=list)
    size: list[int] = dataclasses.field(default_factory=list)
    positions: list[list[Node]] = dataclasses.field(default_factory=list)
    readers: list[list[Node]] = dataclasses.field(default_factory=list)
    buffer: list[int] = dataclasses.field(default_factory=list)
    live_out: frozenset[int] = frozenset()
    local: int = 0
    donated: frozenset[tuple[int, Path]] = frozenset()

    def root(self, computation: str) -> Node:
        """The instruction whose result is that of a computation."""
        return self.by_name[computation][self.module.computations[computation].root.name]


def read_values(module: Module) -> Values:
    """Follows the values of a module.

    Args:
      module: The module; bodies of loops, branches and calls are followed, those of fusions and reductions
        are not, since they have no buffers.
    """
    values = Values(module, _running(module))
    values.local = _local(module, values.computations)
    for computation in values.computations:
        row = values.by_name[computation.name] = {}
        for instruction in _post_order(computation):
            operands = [row[name] for name in _operands(instruction)]
            shapes = dict(_places(instruction.shape))
            node = Node(len(values.nodes), computation.name, instruction, operands, {}, shapes)
            values.nodes.append(node)
            row[instruction.name] = node
            _make(values, node)
    callers: Callers = {}
    for node in values.nodes:
        for name in callees(node.instruction):
            callers.setdefault(name, []).append(node)
    _hand_on(values, callers)
    for node in values.nodes:
        _note_uses(values, node)
    _merge(values, callers)
    return values


def _running(module: Module) -> list[Computation]:
    """The entry and the computations that it runs; callees come before their callers."""
    run = {module.entry.name}
    ordered = []
    for computation in reversed(module.computations.values()):
        if computation.name in run:
            ordered.append(computation)
            for instruction in computation.instructions.values():
                run.update(name for name in callees(instruction) if name in module.computations)
    return ordered[::-1]


def _local(module: Module, running: list[Computation]) -> int:
    """Number of values in computations that run once per element."""
    seen: set[str] = set()
    count, stack = 0, list(running)
    while stack:
        for instruction in stack.pop().instructions.values():
            if instruction.opcode in _CALLS:
                continue
            fused = instruction.opcode == "fusion"
            for name in names_in(instruction.attributes.get("calls" if fused else "to_apply", "")):
                if name in module.computations and name not in seen:
                    seen.add(name)
                    inner = module.computations[name]
                    stack.append(inner)
                    rows = () if fused else inner.instructions.values()
                    count += sum(len(list(_places(i.shape))) for i in rows if i.opcode != "constant")
    return count


def _operands(instruction: Instruction) -> tuple[str, ...]:
    return () if instruction.opcode in ("parameter", "constant") else instruction.operands


def _post_order(computation: Computation) -> list[Instruction]:
    """The instructions, depth first from those without readers. XLA numbers values in this order, and
    prefers low numbers among equal ones."""
    rows = computation.instructions
    read = {name for i in rows.values() for name in (*_operands(i), *_before(i))}
    made: dict[str, None] = {}
    for end in [*(name for name in rows if name not in read), *rows]:
        stack = [(end, False)]
        while stack:
            name, ready = stack.pop()
            if name in made:
                continue
            if ready:
                made[name] = None
                continue
            stack.append((name, True))
            stack += [(operand, False) for operand in reversed(_operands(rows[name]))]
            stack += [(other, False) for other in _before(rows[name]) if other in rows]
    return [rows[name] for name in made]


def _before(instruction: Instruction) -> list[str]:
    return names_in(instruction.attributes.get("control-predecessors", ""))


def _places(shape: Shape, path: Path = ()) -> Iterator[tuple[Path, Shape]]:
    yield path, shape
    if not isinstance(shape, Array):
        for i, item in enumerate(shape.items):
            yield from _places(item, (*path, i))


def _make(values: Values, node: Node) -> None:
    """Makes a new value for each place of a result."""
    opcode = node.instruction.opcode
    inner = opcode == "parameter" and node.computation != values.module.entry.name
    for path in node.shapes:
        if opcode in _MAKES_NOTHING or inner or (opcode == "tuple" and path):
            node.held[path] = None
        else:
            node.held[path] = _new_value(values, node, path)


def _new_value(values: Values, node: Node, path: Path) -> int:
    shape = node.shapes[path]
    values.maker.append(node)
    values.place.append(path)
    values.size.append(shape.bytes if isinstance(shape, Array) else _POINTER * len(shape.items))
    values.positions.append([])
    values.readers.append([])
    return len(values.maker) - 1


def _hand_on(values: Values, callers: Callers) -> None:
    """Passes values on until nothing changes.

    Where different values meet, at loops and branches, a new value (a phi) is made.
    """
    met: dict[tuple[int, Path], int] = {}
    changed, rounds = True, 2 * len(values.computations) + 2
    while changed and rounds:
        changed, rounds = False, rounds - 1
        for node in reversed(values.nodes):
            if _hand_to(values, node, callers, met):
                changed = True
        for node in values.nodes:
            if _hand_to(values, node, callers, met):
                changed = True


def _hand_to(values: Values, node: Node, callers: Callers, met: dict[tuple[int, Path], int]) -> bool:
    """Passes values on to one instruction; returns whether its values have changed."""
    changed = False
    for path, old in node.held.items():
        if old is not None and values.maker[old] is node and (node.number, path) not in met:
            continue
        key = (node.number, path)
        given = {s.held.get(p) for s, p in _sources(values, node, path, callers)}
        given -= {None, met.get(key)}
        if not given:
            continue
        if len(given) == 1:
            new = given.pop()
        else:
            if key not in met:
                met[key] = _new_value(values, node, path)
            new = met[key]
        if new != old:
            node.held[path] = new
            changed = True
    return changed


def _sources(values: Values, node: Node, path: Path, callers: Callers) -> list[tuple[Node, Path]]:
    """The results that a place of a result passes on."""
    opcode, instruction = node.instruction.opcode, node.instruction
    if opcode in _FORWARD and node.operands:
        return [(node.operands[0], path)]
    if opcode == "get-tuple-element":
        return [(node.operands[0], (int(instruction.attributes["index"]), *path))]
    if opcode == "tuple" and path:
        return [(node.operands[path[0]], path[1:])]
    if opcode == "while":
        body = names_in(instruction.attributes["body"])[0]
        return [(node.operands[0], path), (values.root(body), path)]
    if opcode in ("call", "conditional"):
        return [(values.root(name), path) for name in callees(instruction)]
    if opcode == "parameter" and node.computation != values.module.entry.name:
        rows = []
        for caller in callers.get(node.computation, ()):
            rows += _arguments(values, caller, node, path)
        return rows
    return []


def _arguments(values: Values, caller: Node, parameter: Node, path: Path) -> list[tuple[Node, Path]]:
    """The argument that a caller passes to a parameter of a computation that it runs."""
    number = int(parameter.instruction.operands[0])
    if caller.instruction.opcode == "call":
        return [(caller.operands[number], path)]
    if caller.instruction.opcode == "while":
        body = names_in(caller.instruction.attributes["body"])[0]
        return [(caller.operands[0], path), (values.root(body), path)]
    branches = callees(caller.instruction)
    return [
        (caller.operands[1 + i], path) for i, name in enumerate(branches) if name == parameter.computation
    ]


def _note_uses(values: Values, node: Node) -> None:
    opcode = node.instruction.opcode
    for value in node.held.values():
        if value is not None and values.maker[value] is not node:
            values.positions[value].append(node)
    if opcode == "tuple":
        return
    for operand in node.operands:
        for path, value in operand.held.items():
            if value is not None and (not path or opcode not in ("get-tuple-element", "copy")):
                values.readers[value].append(node)


def _merge(values: Values, callers: Callers) -> None:
    """Finds the values that must share a buffer."""
    first = list(range(len(values.maker)))

    def join(one: int | None, two: int | None) -> None:
        if one is not None and two is not None:
            low, high = sorted((root_of(first, one), root_of(first, two)))
            first[high] = low

    for node in values.nodes:
        if node.instruction.opcode in ("while", "conditional", "call", "parameter"):
            for path, value in node.held.items():
                for source, place in _sources(values, node, path, callers):
                    join(value, source.held.get(place))
        for number, inside, path in in_place(values.module, node.instruction):
            if number < len(node.operands):
                join(node.held.get(path), node.operands[number].held.get(inside))
    entry = values.module.entry
    root = values.root(entry.name)
    parameters = {
        int(n.instruction.operands[0]): n
        for n in values.by_name[entry.name].values()
        if n.instruction.opcode == "parameter"
    }
    donated = set()
    for path, number, inside in aliases(values.module.attributes.get("input_output_alias", "")):
        if number in parameters and inside in parameters[number].held and path in root.held:
            donated.add((number, inside))
            join(root.held[path], parameters[number].held[inside])
    values.buffer = [root_of(first, value) for value in first]
    values.live_out = frozenset(value for value in root.held.values() if value is not None)
    values.donated = frozenset(donated)


def in_place(module: Module, instruction: Instruction) -> Sequence[tuple[int, Path, Path]]:
    """The operand, the place in it, and the place of the result that overwrites it.

    Args:
      module: The module.
      instruction: The instruction.
    """
    opcode = instruction.opcode
    if opcode in ("dynamic-update-slice", "all-reduce-start") and isinstance(instruction.shape, Array):
        return [(0, (), ())]
    if opcode == "scatter":
        if isinstance(instruction.shape, Array):
            return [(0, (), ())]
        return [(i, (), (i,)) for i in range(len(instruction.shape.items))]
    if opcode not in ("fusion", "custom-call"):
        return []
    pairs = [
        (number, inside, path)
        for path, number, inside in aliases(instruction.attributes.get("output_to_operand_aliasing", ""))
    ]
    names = names_in(instruction.attributes.get("calls", "")) if opcode == "fusion" else []
    if names and names[0] in module.computations:
        called = module.computations[names[0]]
        for leaf, (number, _) in fused_updates(called).items():
            pairs.append((number, (), (leaf,) if called.root.opcode == "tuple" else ()))
    return pairs
