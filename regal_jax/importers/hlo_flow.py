"""The buffers that the instructions of one HLO computation make, read and overwrite.

Tuples, ``get-tuple-element`` and ``bitcast`` only name buffers, and constants do not count as working memory;
neither of them is a step. Where XLA writes in place, a step overwrites the buffer of an operand: the state of
a ``while``, the target of a ``dynamic-update-slice`` or ``scatter`` (fused or not), the operands that
``output_to_operand_aliasing`` names, the results of a ``-done``. Such a buffer has versions: a step waits for
the writer of the version that it reads, and a writer for the readers of the previous version.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from regal_jax.errors import FormatError
from regal_jax.importers.hlo_buffers import (
    Buffer,
    Flow,
    Place,
    Ref,
    Step,
    Value,
    device_bytes,
    fits,
    flat,
    shaped,
)
from regal_jax.importers.hlo_shapes import Array, leaves
from regal_jax.importers.hlo_sharing import callees, may_share, sharing
from regal_jax.importers.hlo_text import Computation, Instruction, names_in

__all__ = ["trace"]

_NAMES_ONLY: Final = frozenset({"bitcast", "opt-barrier", "add-dependency", "domain", "async-update"})
"""Opcodes whose result is their first operand."""
_MOST_ROUNDS: Final = 4


def trace(
    computation: Computation,
    computations: Mapping[str, Computation],
    bodies: Mapping[str, Flow],
    mutable: Iterable[tuple[int, int]] | None = None,
    results_in: Mapping[int, tuple[int, int]] | None = None,
    share: bool = False,
) -> Flow:
    """Follows the buffers of one computation.

    Args:
      computation: The computation.
      computations: All of the module.
      bodies: Flows of the bodies that it runs.
      mutable: Parameters (number, leaf) whose buffers may be overwritten; ``None`` for all.
      results_in: Leaf of the root -> parameter (number, leaf) whose buffer takes it, if that is possible
        without a copy.
      share: Let an elementwise step write over an operand that no other step reads, as XLA may.

    Raises:
      FormatError: An operand is missing or has the wrong shape.
    """
    owned = None if mutable is None else frozenset(mutable)
    barred: set[Place] = set()
    forced: dict[Place, tuple[int, int]] = {}
    run = _Run(computation, computations, bodies, owned, forced, barred)
    alone = run.read_once() if share else frozenset()
    for leaf, ref in enumerate(run.root):
        if results_in and leaf in results_in and ref.buffer and ref.buffer.home[0] in run.index:
            forced[ref.buffer.home] = results_in[leaf]
    for attempt in range(_MOST_ROUNDS):
        if attempt or forced or alone:
            run = _Run(computation, computations, bodies, owned, forced, barred, alone)
        if not run.conflicts:
            break
        # An old version is read after it is overwritten, so XLA must have kept the two apart.
        barred |= run.conflicts
    else:
        run = _Run(computation, computations, bodies, owned, {}, None)
    return run.flow()


class _Run:
    """One pass over a computation; leaves in ``barred`` get a buffer of their own (``None``: all leaves)."""

    def __init__(
        self,
        computation: Computation,
        computations: Mapping[str, Computation],
        bodies: Mapping[str, Flow],
        owned: frozenset[tuple[int, int]] | None,
        forced: Mapping[Place, tuple[int, int]],
        barred: set[Place] | None,
        alone: frozenset[Place] = frozenset(),
    ) -> None:
        self.alone = alone
        self.computation, self.computations, self.bodies = computation, computations, bodies
        self.owned, self.forced, self.barred = owned, forced, barred
        self.values: dict[str, Value] = {}
        self.controls: dict[str, frozenset[int]] = {}  # Steps before instructions that are not steps.
        self.index: dict[str, int] = {}
        self.steps: list[Step] = []
        self.parameters: dict[int, tuple[Instruction, list[Buffer]]] = {}
        self.conflicts: set[Place] = set()
        for instruction in computation.instructions.values():
            self.values[instruction.name] = self.visit(instruction)
        self.root = list(flat(self.values[computation.root.name]))
        for ref in self.root:
            self.check(ref)

    def visit(self, instruction: Instruction) -> Value:
        opcode = instruction.opcode
        if opcode == "parameter":
            return self.parameter(instruction)
        if opcode == "constant":
            return shaped(instruction.shape, iter([Ref(None)] * sum(1 for _ in leaves(instruction.shape))))
        operands = [self.value(instruction, name) for name in instruction.operands]
        waits = set().union(*(self.before(instruction, name) for name in self.predecessors(instruction)))
        waits = waits.union(*(self.controls.get(name, ()) for name in instruction.operands))
        if opcode in _NAMES_ONLY or opcode in ("tuple", "get-tuple-element"):
            self.controls[instruction.name] = frozenset(waits)
            return self.renamed(instruction, operands)
        return self.step(instruction, operands, waits)

    def parameter(self, instruction: Instruction) -> Value:
        text = instruction.operands[0] if instruction.operands else ""
        if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) in self.parameters:
            raise FormatError(
                f"line {instruction.line}: parameter {instruction.name!r} needs a number of its own, "
                f"not {text[:20]!r}"
            )
        number = int(text)
        buffers = [
            Buffer(device_bytes(a), (instruction.name, i), self.owned is None or (number, i) in self.owned)
            for i, a in enumerate(leaves(instruction.shape))
        ]
        self.parameters[number] = (instruction, buffers)
        return shaped(instruction.shape, iter([Ref(buffer) for buffer in buffers]))

    def value(self, reader: Instruction, name: str) -> Value:
        if name not in self.values:
            raise FormatError(
                f"line {reader.line}: {reader.name!r} waits for {name!r}, which no line above it "
                "makes; mend the name"
            )
        return self.values[name]

    def predecessors(self, instruction: Instruction) -> list[str]:
        return names_in(instruction.attributes.get("control-predecessors", ""))

    def before(self, reader: Instruction, name: str) -> set[int]:
        """The steps that must have run before ``name``, a control predecessor, counts as run."""
        value = self.value(reader, name)
        if name in self.index:
            return {self.index[name]}
        steps = {self.maker(ref) for ref in flat(value)} | self.controls.get(name, frozenset())
        return {step for step in steps if step is not None}

    def maker(self, ref: Ref) -> int | None:
        if ref.buffer is None:
            return None
        if ref.version:
            return ref.buffer.writers[ref.version - 1]
        return self.index.get(ref.buffer.home[0])

    def renamed(self, instruction: Instruction, operands: list[Value]) -> Value:
        if instruction.opcode == "tuple":
            if not fits(tuple(operands), instruction.shape):
                raise FormatError(
                    f"line {instruction.line}: the operands of tuple {instruction.name!r} are not its shape"
                )
            return tuple(operands)
        if not operands:
            raise FormatError(
                f"line {instruction.line}: {instruction.opcode} {instruction.name!r} needs an operand"
            )
        value = operands[0]
        if instruction.opcode != "get-tuple-element":
            return value
        index = instruction.attributes.get("index", "")
        if not isinstance(value, tuple) or not re.fullmatch(r"[0-9]{1,9}", index) or int(index) >= len(value):
            raise FormatError(
                f"line {instruction.line}: {instruction.name!r} takes element {index!r:.20} of "
                f"{instruction.operands[0]!r}, which has none such"
            )
        return value[int(index)]

    def step(self, instruction: Instruction, operands: list[Value], waits: set[int]) -> Value:
        number = len(self.steps)
        refs = [ref for operand in operands for ref in flat(operand)]
        reads: dict[Buffer, None] = {}
        for ref in refs:
            self.check(ref)
            if ref.buffer is not None:
                reads[ref.buffer] = None
                if ref.version:
                    waits.add(ref.buffer.writers[ref.version - 1])
        for buffer in reads:
            buffer.readers.append(number)
            buffer.since.append(number)
        self.index[instruction.name] = number
        step = Step(instruction, list(reads), waits, [])
        self.steps.append(step)
        shared, overwritten = sharing(instruction, operands, self.computation, self.computations, self.bodies)
        if self.alone:
            self.share(instruction, operands, shared, overwritten)
        result: list[Ref] = []
        for i, array in enumerate(leaves(instruction.shape)):
            place = (instruction.name, i)
            ref = self.forced_ref(place) or overwritten.get(i)
            if i in shared:
                result.append(shared[i])
            elif ref is not None and self.may_overwrite(place, ref, array, number):
                result.append(self.overwrite(place, ref, number))
            else:
                step.makes.append(Buffer(device_bytes(array), place, True))
                result.append(Ref(step.makes[-1]))
        waits.discard(number)
        return shaped(instruction.shape, iter(result))

    def read_once(self) -> frozenset[Place]:
        """Buffers made by steps that exactly one step reads and that are not results."""
        results = {ref.buffer for ref in self.root}
        made = (b for step in self.steps for b in step.makes)
        return frozenset(b.home for b in made if len(b.readers) == 1 and not b.writers and b not in results)

    def share(
        self, instruction: Instruction, operands: list[Value], shared: dict[int, Ref], written: dict[int, Ref]
    ) -> None:
        """Adds operands that may be overwritten to ``written``, for leaves that need not overwrite one."""
        sizes = [device_bytes(array) for array in leaves(instruction.shape)]
        taken = {ref.buffer for ref in written.values()}
        refs = [list(flat(operand)) for operand in operands]
        for leaf, ref in may_share(instruction, refs, self.computations):
            buffer = ref.buffer
            if buffer is None or buffer in taken or leaf in written or leaf in shared:
                continue
            if buffer.size == sizes[leaf] and self.last_home(buffer) in self.alone:
                written[leaf] = ref
                taken.add(buffer)

    def last_home(self, buffer: Buffer) -> Place:
        """The name of the current version of the buffer in a run without sharing."""
        return buffer.claims[-1] if buffer.claims else buffer.home

    def check(self, ref: Ref) -> None:
        """Records the writer that has overwritten the version of ``ref``."""
        if ref.buffer is not None and ref.version < len(ref.buffer.writers):
            self.conflicts.add(ref.buffer.claims[ref.version])

    def forced_ref(self, place: Place) -> Ref | None:
        if place not in self.forced:
            return None
        number, leaf = self.forced[place]
        buffers = self.parameters[number][1] if number in self.parameters else []
        return Ref(buffers[leaf], len(buffers[leaf].writers)) if leaf < len(buffers) else None

    def may_overwrite(self, place: Place, ref: Ref, array: Array, number: int) -> bool:
        buffer = ref.buffer
        return (
            self.barred is not None
            and place not in self.barred
            and buffer is not None
            and buffer.mutable
            and buffer.size == device_bytes(array)
            and ref.version == len(buffer.writers)
            and number not in buffer.writers[-1:]
        )

    def overwrite(self, place: Place, ref: Ref, number: int) -> Ref:
        buffer = ref.buffer
        if buffer is None:
            raise ValueError("a constant is never overwritten")
        step = self.steps[number]
        step.waits.update(buffer.since, buffer.writers[-1:])
        if number not in buffer.readers[-1:]:
            buffer.readers.append(number)
        buffer.writers.append(number)
        buffer.claims.append(place)
        buffer.since = []
        return Ref(buffer, len(buffer.writers))

    def flow(self) -> Flow:
        results = [ref.buffer for ref in self.root]
        whose = {b: (n, i) for n, (_, row) in self.parameters.items() for i, b in enumerate(row)}
        passed = {
            leaf: whose[ref.buffer]
            for leaf, ref in enumerate(self.root)
            if ref.buffer in whose and not ref.version and not ref.buffer.writers
        }
        return Flow(self.parameters, self.steps, results, passed, self.peak({b for b in results if b}))

    def peak(self, outside: set[Buffer]) -> int:
        """Peak memory in the order of the text, without the buffers of parameters and those ``outside``."""
        held = peak = 0
        for number, step in enumerate(self.steps):
            held += sum(b.size for b in step.makes if b not in outside)
            inner = [self.bodies[n].temp_bytes for n in callees(step.instruction) if n in self.bodies]
            peak = max(peak, held + max(inner, default=0))
            made = {b for b in step.reads if b.home[0] in self.index and b.readers[-1] == number}
            made |= {b for b in step.makes if not b.readers}
            held -= sum(b.size for b in made - outside)
        return peak
