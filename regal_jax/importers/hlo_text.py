"""The grammar of HLO text: modules, computations and instructions, as XLA prints them.

The parser skips what is not needed: layouts, metadata, shardings, source tables. It does not import JAX.
"""

import dataclasses
import re
from collections.abc import Iterator
from typing import Final

from regal_jax.errors import FormatError
from regal_jax.importers.hlo_shapes import Shape, parse_shape

__all__ = ["Computation", "Instruction", "Module", "names_in", "parse_module"]

_COMMENT: Final = re.compile(r"/\*[^*]*\*/")
_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[()\[\]{},"]')
_HEADER: Final = re.compile(r"\s*(ENTRY\b\s*)?%?([^\s(){}=,%]+)\s*(?:\(|\{)")
_ENTRY: Final = re.compile(r"\s*ENTRY\b")
_INSTRUCTION: Final = re.compile(r"\s*(ROOT\s+)?%?([^\s(){}=,%]+)\s*=\s+")
_OPCODE: Final = re.compile(r"\s*([a-z][\w\-]*)\(")
_LITERALS: Final = frozenset({"parameter", "constant"})
"""Opcodes whose brackets contain a value instead of names."""
_NAME: Final = re.compile(r"[^\s(){}=,%\"]+")


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction.

    Attributes:
      name: Its name without the sigil.
      shape: Shape of its result.
      opcode: E.g. ``"fusion"``.
      operands: Names of the instructions that it reads; for a parameter or constant, its text.
      attributes: Raw attributes after the operands, by name.
      line: Its line in the text.
    """

    name: str
    shape: Shape
    opcode: str
    operands: tuple[str, ...]
    attributes: dict[str, str]
    line: int


@dataclasses.dataclass(frozen=True, slots=True)
class Computation:
    """Attributes:
    name: Without its sigil.
    instructions: By name, in the order of the text.
    root: The instruction whose result is that of the computation.
    line: Line at which it begins.
    """

    name: str
    instructions: dict[str, Instruction]
    root: Instruction
    line: int


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """Attributes:
    name: Name of the module.
    scheduled: Whether the order of the text is the order of execution.
    attributes: Raw attributes of the header, by name.
    computations: By name, in the order of the text; each comes before those that call it.
    entry: The computation that runs.
    """

    name: str
    scheduled: bool
    attributes: dict[str, str]
    computations: dict[str, Computation]
    entry: Computation


def names_in(text: str) -> list[str]:
    """The names in an attribute such as ``{%a, %b}`` or ``%a``."""
    return _NAME.findall(text)


def parse_module(text: str) -> Module:
    """Reads the text of one module.

    Args:
      text: E.g. what ``jax.jit(f).lower(...).compile().as_text()`` returns.

    Raises:
      FormatError: The text is not a module, is truncated, or has an instruction that cannot be read; names
          the line.
    """
    lines = text.splitlines()
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise FormatError("line 1: the text is empty; write compiled.as_text() again")
    header = re.match(r"\s*HloModule\s+([^\s,]+)", lines[first])
    if header is None:
        stable = lines[first].startswith("module")
        lowered = "; this is StableHLO, which is not compiled yet" if stable else ""
        raise FormatError(
            f"line {first + 1}: does not begin with HloModule{lowered}; give the text of compiled.as_text(), "
            "where compiled = jax.jit(fn).lower(*args).compile()"
        )
    attributes = _attributes(lines[first], header.end(), first + 1)
    computations: dict[str, Computation] = {}
    entry = None
    for computation, is_entry in _computations(lines, first + 1):
        if computation.name in computations or (is_entry and entry):
            raise FormatError(
                f"line {computation.line}: {computation.name!r} stands twice; rename or drop one"
            )
        computations[computation.name] = computation
        entry = computation if is_entry else entry
    if entry is None:
        raise FormatError(f"line {len(lines)}: the text ends without an ENTRY computation; is it complete?")
    scheduled = attributes.get("is_scheduled") == "true"
    return Module(header[1], scheduled, attributes, computations, entry)


def _computations(lines: list[str], start: int) -> Iterator[tuple[Computation, bool]]:
    i = start
    while i < len(lines):
        line = lines[i]
        header = _HEADER.match(line)
        if header is None or not line.rstrip().endswith("{"):
            # Anything else at top level is a table of source locations, or a closing brace.
            if _INSTRUCTION.match(line) or _ENTRY.match(line):
                raise FormatError(f"line {i + 1}: {line.strip()[:40]!r} stands in no computation")
            i += 1
            continue
        begins = i + 1
        instructions: dict[str, Instruction] = {}
        root = last = None
        i += 1
        while i < len(lines) and not lines[i].lstrip().startswith("}"):
            if lines[i].strip():
                statement, end = _statement(lines, i)
                last, is_root = _instruction(statement, i + 1)
                if last.name in instructions:
                    raise FormatError(f"line {i + 1}: {last.name!r} is defined twice; rename one of the two")
                for name in last.operands if last.opcode not in _LITERALS else ():
                    if name not in instructions:
                        raise FormatError(
                            f"line {i + 1}: {last.name!r} reads {name!r}, which no line above "
                            "it makes; mend the name"
                        )
                instructions[last.name] = last
                root = last if is_root else root
                i = end
            i += 1
        if i >= len(lines):
            raise FormatError(
                f"line {len(lines)}: the text ends inside computation {header[2]!r}; is it complete?"
            )
        if last is None:
            raise FormatError(f"line {begins}: computation {header[2]!r} has no instructions")
        yield Computation(header[2], instructions, root or last, begins), bool(header[1])
        i += 1


def _statement(lines: list[str], start: int) -> tuple[str, int]:
    """The instruction that begins in a line, and the index of its last line."""
    depth, parts = 0, []
    for i in range(start, len(lines)):
        line = _COMMENT.sub("", lines[i]) if "/*" in lines[i] else lines[i]
        parts.append(line)
        for token in _TOKEN.finditer(line):
            depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth <= 0 and not line.rstrip().endswith(","):
            return " ".join(parts), i
    raise FormatError(f"line {start + 1}: the instruction does not end; is the text complete?")


def _instruction(text: str, line: int) -> tuple[Instruction, bool]:
    found = _INSTRUCTION.match(text)
    if found is None:
        raise FormatError(
            f"line {line}: {text.strip()[:40]!r} is no instruction; write %name = shape opcode(operands)"
        )
    shape, at = parse_shape(text, found.end(), line)
    opcode = _OPCODE.match(text, at)
    if opcode is None:
        raise FormatError(f"line {line}: {found[2]!r} has no opcode after its shape")
    operands, end = _pieces(text, opcode.end(), line, ")")
    if opcode[1] in _LITERALS:
        names = tuple(operands)
    else:  # Older texts repeat the operand's shape before its name.
        names = tuple(_operand(operand, found[2], line) for operand in operands)
    attributes = _attributes(text, end, line)
    return Instruction(found[2], shape, opcode[1], names, attributes, line), bool(found[1])


def _operand(text: str, reader: str, line: int) -> str:
    name = text.split(" ")[-1].removeprefix("%")
    if not _NAME.fullmatch(name):
        raise FormatError(f"line {line}: {reader!r} reads {text[:40]!r}, which is no name of an instruction")
    return name


def _attributes(text: str, start: int, line: int) -> dict[str, str]:
    pieces, _ = _pieces(text, start, line, "")
    pairs = (piece.split("=", 1) for piece in pieces)
    return {pair[0].strip(): pair[1].strip() if len(pair) > 1 else "" for pair in pairs}


def _pieces(text: str, start: int, line: int, closer: str) -> tuple[list[str], int]:
    """The parts of ``text[start:]`` between commas, up to ``closer`` or the end, and the index of the end."""
    depth, begin, pieces = 0, start, []
    end = None
    for token in _TOKEN.finditer(text, start):
        if depth == 0 and closer and token[0] == closer:
            end = token
            break
        if token[0] == "," and depth == 0:
            pieces.append(text[begin : token.start()].strip())
            begin = token.end()
        depth += (token[0] in "([{") - (token[0] in ")]}")
        if depth < 0 or token[0] == '"':
            raise FormatError(f"line {line}: stray {token[0]} at column {token.start() + 1}; is it complete?")
    if depth > 0 or (closer and end is None):
        raise FormatError(f"line {line}: a bracket is not closed; is the text complete?")
    pieces.append(text[begin : end.start() if end else len(text)].strip())
    return [piece for piece in pieces if piece], end.end() if end else len(text)
