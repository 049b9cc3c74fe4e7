"""Results of an HLO instruction that share the buffer of an operand. This module does not import JAX.

The rules are those of openxla's hlo_dataflow_analysis. `sharing` has the results that must share a buffer,
`may_share` those that may.
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from regal_jax.importers.hlo_buffers import Flow, Ref, Value, flat
from regal_jax.importers.hlo_shapes import Array, leaves
from regal_jax.importers.hlo_text import Computation, Instruction, names_in

__all__ = ["ELEMENTWISE", "aliases", "callees", "fused_updates", "may_share", "not_elementwise", "sharing"]

_IN_PLACE: Final = frozenset({"dynamic-update-slice", "scatter"})
ELEMENTWISE: Final = frozenset(
    {
        "abs", "add", "and", "atan2", "bitcast-convert", "cbrt", "ceil", "clamp", "compare", "complex",
        "convert", "copy", "cosine", "divide", "erf", "exponential", "exponential-minus-one", "floor",
        "imag", "is-finite", "log", "log-plus-one", "logistic", "maximum", "minimum", "multiply",
        "negate", "not", "or", "popcnt", "power", "real", "reduce-precision", "remainder",
        "round-nearest-afz", "round-nearest-even", "rsqrt", "select", "shift-left",
        "shift-right-arithmetic", "shift-right-logical", "sign", "sine", "sqrt", "subtract", "tan",
        "tanh", "xor",
    }
)  # fmt: skip
_BODIES: Final = (
    "body",
    "condition",
    "branch_computations",
    "true_computation",
    "false_computation",
    "to_apply",
)
_ALIAS: Final = re.compile(r"\{([0-9, ]{0,40})\}:\s*\(([0-9]{1,9}),\s*\{([0-9, ]{0,40})\}")

_Leaves = dict[int, Ref]
"""Leaf of a result -> the version of a buffer."""


def callees(instruction: Instruction) -> list[str]:
    """Computations that an instruction runs as programs: the bodies of a loop, a branch or a call."""
    if instruction.opcode not in ("while", "conditional", "call"):
        return []
    return [n for key in _BODIES for n in names_in(instruction.attributes.get(key, ""))]


def aliases(text: str) -> list[tuple[tuple[int, ...], int, tuple[int, ...]]]:
    """Pairs such as ``{1}: (0, {})``: the path of a result, a parameter or operand, and the path in it."""

    def path(part: str) -> tuple[int, ...]:
        return tuple(int(n) for n in re.findall(r"[0-9]+", part))

    return [(path(result), int(number), path(index)) for result, number, index in _ALIAS.findall(text)]


def sharing(
    instruction: Instruction,
    operands: Sequence[Value],
    computation: Computation,
    computations: Mapping[str, Computation],
    bodies: Mapping[str, Flow],
) -> tuple[_Leaves, _Leaves]:
    """Leaves of the result that are an unchanged operand, and those that overwrite one unless this is barred.

    Args:
      instruction: The instruction.
      operands: Its operands.
      computation: The computation that contains it.
      computations: All of the module.
      bodies: Flows of the bodies that it runs.
    """
    opcode = instruction.opcode
    refs = [list(flat(operand)) for operand in operands]
    if opcode in ("while", "call"):
        return _by_body(instruction, refs, bodies)
    if opcode.endswith("-done") and operands:
        return {}, dict(enumerate(_finished(instruction, operands[0], computation)))
    return _started(instruction, refs), _overwritten(instruction, refs, computations)


def may_share(
    instruction: Instruction, refs: Sequence[Sequence[Ref]], computations: Mapping[str, Computation]
) -> list[tuple[int, Ref]]:
    """Pairs of a leaf of the result and a version of an operand over which XLA may write the leaf.

    The operand must be used only element by element, by an instruction or a loop fusion
    (``CanShareOperandBufferWithUser`` of hlo_dataflow_analysis).
    """
    count = sum(1 for _ in leaves(instruction.shape))
    if instruction.opcode in ELEMENTWISE:
        numbers = range(len(instruction.operands))
    elif instruction.opcode == "fusion" and instruction.attributes.get("kind") == "kLoop":
        names = names_in(instruction.attributes.get("calls", ""))
        numbers = _elementwise_parameters(computations[names[0]]) if names else ()
    else:
        return []
    return [
        (leaf, refs[p][0]) for p in numbers if p < len(refs) and len(refs[p]) == 1 for leaf in range(count)
    ]


def _elementwise_parameters(called: Computation) -> list[int]:
    """Numbers of the parameters that reach the root only through elementwise instructions of their shape."""
    rows = [(i.name, i.opcode, _dims(i), i.operands) for i in called.instructions.values()]
    blocked = not_elementwise(rows, called.root.name)
    return [
        int(i.operands[0])
        for i in called.instructions.values()
        if i.opcode == "parameter" and i.name not in blocked and re.fullmatch(r"[0-9]{1,9}", i.operands[0])
    ]


def not_elementwise(
    rows: Sequence[tuple[Hashable, str, tuple[int, ...] | None, Sequence[Hashable]]], root: Hashable
) -> set[Hashable]:
    """The instructions that do not reach the root only through elementwise instructions of their shape.

    Args:
      rows: Name, opcode, dimensions (layout too, if it matters) and names of the operands of each, operands
        first.
      root: Name of the root.
    """
    shapes = {name: dims for name, _, dims, _ in rows}
    blocked: set[Hashable] = set()
    for name, opcode, dims, operands in reversed(rows):
        if opcode in ("parameter", "constant") or (name == root and opcode == "tuple"):
            continue
        ok = opcode in ELEMENTWISE and name not in blocked
        blocked.update(
            operand for operand in operands if not ok or operand not in shapes or shapes[operand] != dims
        )
    return blocked


def _dims(instruction: Instruction) -> tuple[int, ...] | None:
    return instruction.shape.dims if isinstance(instruction.shape, Array) else None


def _started(instruction: Instruction, refs: list[list[Ref]]) -> _Leaves:
    """An asynchronous start returns its operands as well."""
    if isinstance(instruction.shape, Array) or len(instruction.shape.items) < 2:
        return {}
    opcode, given = instruction.opcode, [ref for row in refs for ref in row]
    first, second = (sum(1 for _ in leaves(item)) for item in instruction.shape.items[:2])
    if opcode == "copy-start":  # Its first result is the new copy.
        return {first + i: ref for i, ref in enumerate(given)} if len(given) == second else {}
    if opcode == "send":
        given = refs[0] if refs else []
    elif not opcode.endswith("-start") or opcode == "all-reduce-start":
        return {}
    return dict(enumerate(given)) if len(given) == first else {}


def _finished(instruction: Instruction, value: Value, computation: Computation) -> list[Ref]:
    """The part of a ``-start`` operation's result that its ``-done`` returns."""
    source = computation.instructions[instruction.operands[0]].shape
    items = () if isinstance(source, Array) else source.items
    if source == instruction.shape:
        return list(flat(value))
    for i in (1, 0) if instruction.opcode != "copy-done" else (0,):
        fits = i < len(items) and items[i] == instruction.shape
        if fits and isinstance(value, tuple) and i < len(value):
            return list(flat(value[i]))
    return list(flat(value))[:1]


def _by_body(
    instruction: Instruction, refs: list[list[Ref]], bodies: Mapping[str, Flow]
) -> tuple[_Leaves, _Leaves]:
    loop = instruction.opcode == "while"
    names = names_in(instruction.attributes.get("body" if loop else "to_apply", ""))
    passed = bodies[names[0]].passed if names and names[0] in bodies else {}
    shared = {
        leaf: refs[p][i]
        for leaf, (p, i) in passed.items()
        # An element of a loop's state is unchanged only at its own place; elsewhere the next iteration moves
        # it.
        if p < len(refs) and i < len(refs[p]) and (not loop or leaf == i)
    }
    return shared, dict(enumerate(refs[0])) if loop and refs else {}


def _overwritten(
    instruction: Instruction, refs: list[list[Ref]], computations: Mapping[str, Computation]
) -> _Leaves:
    pairs: dict[int, tuple[int, int]] = {}
    if instruction.opcode in _IN_PLACE:
        pairs[0] = (0, 0)
    for name in names_in(instruction.attributes.get("calls", "")) if instruction.opcode == "fusion" else ():
        if name in computations:
            pairs |= fused_updates(computations[name])
    for result, operand, index in aliases(instruction.attributes.get("output_to_operand_aliasing", "")):
        if len(result) < 2 and len(index) < 2:  # Leaves of nested tuples are not followed.
            pairs[(result or (0,))[0]] = (operand, (index or (0,))[0])
    return {leaf: refs[p][i] for leaf, (p, i) in pairs.items() if p < len(refs) and i < len(refs[p])}


def fused_updates(called: Computation) -> dict[int, tuple[int, int]]:
    """Leaf of a fusion's result -> (operand, 0) that an update in place within the fusion overwrites."""
    inside = called.instructions
    roots = called.root.operands if called.root.opcode == "tuple" else (called.root.name,)
    pairs = {}
    for leaf, name in enumerate(roots):
        at, updates = inside.get(name), 0
        while at is not None and at.operands and at.opcode in ("bitcast", *_IN_PLACE):
            updates += at.opcode in _IN_PLACE
            at = inside.get(at.operands[0])
        if (
            updates
            and at is not None
            and at.opcode == "parameter"
            and re.fullmatch(r"[0-9]{1,9}", at.operands[0])
        ):
            pairs[leaf] = (int(at.operands[0]), 0)
    return pairs
