"""Lifetimes of the values of a scheduled HLO module. This module does not import JAX."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Final

from regal_jax.importers.hlo_sharing import callees
from regal_jax.importers.hlo_text import names_in
from regal_jax.importers.hlo_values import Node, Values

__all__ = ["Lifetime", "inner_computations", "lifetimes", "moments", "one_kernel_calls", "step_lifetimes"]


_ONE_KERNEL: Final = "xla_cpu_small_call"
"""The attribute of calls that are compiled to one kernel."""


@dataclasses.dataclass(eq=False, slots=True)
class Lifetime:
    """Attributes:
    start: Moment at which a value is made.
    end: Last moment at which it is used.
    last: The last instruction that makes it or passes it on.
    """

    start: int
    end: int
    last: Node


def lifetimes(values: Values, orders: Mapping[str, Sequence[str]]) -> tuple[list[Lifetime], int]:
    """The lifetime of each value, by number, and the moment of the end of the program.

    The moments of a computation come before that of the instruction that runs it.

    Args:
      values: The values.
      orders: Computation -> names of all its instructions in order; those without one run as in the text.

    References:
      openxla/xla: hlo_live_range.
    """
    times, spans = moments(values, orders)
    roots = {name: values.root(name) for name in spans}
    found = []
    for value, maker in enumerate(values.maker):
        found.append(_lifetime(values, value, maker, times, spans, roots))
    _shorten(values, found)
    return found, spans[values.module.entry.name][1]


def step_lifetimes(values: Values, orders: Mapping[str, Sequence[str]]) -> list[Lifetime]:
    """As `lifetimes`, for a program whose steps are compiled.

    XLA compiles a call of little work to one kernel. Its operands and inner values are in memory together.
    """
    found, _ = lifetimes(values, orders)
    times, spans = moments(values, orders)
    for node in one_kernel_calls(values):
        start, end = spans[callees(node.instruction)[0]][0], times[node.number]
        for life in found:
            if life.start <= end and life.end >= start:
                life.start, life.end = min(life.start, start), max(life.end, end)
    return found


def one_kernel_calls(values: Values) -> list[Node]:
    """The calls that XLA compiles to one kernel each."""
    return [n for n in values.nodes if _ONE_KERNEL in n.instruction.attributes.get("frontend_attributes", "")]


def moments(
    values: Values, orders: Mapping[str, Sequence[str]]
) -> tuple[list[int], dict[str, tuple[int, int]]]:
    """The moment of each instruction, by number, and the span of each computation."""
    times = [0] * len(values.nodes)
    spans: dict[str, tuple[int, int]] = {}
    moment = 0
    entry = values.module.entry.name
    rows = {c.name: list(orders.get(c.name, c.instructions)) for c in values.computations}
    # A stack, since texts may nest deeply: computation, its first moment, the next instruction.
    stack: list[list] = [[entry, 0, 0]]
    while stack:
        name, began, at = stack[-1]
        if at == len(rows[name]):
            spans[name] = began, moment
            stack.pop()
            continue
        node = values.by_name[name][rows[name][at]]
        opened = {row[0] for row in stack}
        waiting = [c for c in inner_computations(node) if c not in spans and c not in opened and c in rows]
        if waiting:
            stack.append([waiting[0], moment, 0])
            continue
        times[node.number] = moment
        moment += 1
        stack[-1][2] += 1
    return times, spans


def inner_computations(node: Node) -> list[str]:
    """Computations that an instruction runs, the condition of a loop before its body."""
    if node.instruction.opcode == "while":
        return [
            n for key in ("condition", "body") for n in names_in(node.instruction.attributes.get(key, ""))
        ]
    return callees(node.instruction)


def _lifetime(
    values: Values,
    value: int,
    maker: Node,
    times: list[int],
    spans: dict[str, tuple[int, int]],
    roots: dict[str, Node],
) -> Lifetime:
    entry = values.module.entry.name
    parameter = maker.instruction.opcode == "parameter"
    start = spans[maker.computation][0] if parameter else times[maker.number]
    end, last = times[maker.number], maker
    if roots[maker.computation] is maker:
        end = spans[maker.computation][1]
    for node in values.positions[value]:
        moment = spans[node.computation][1] if roots[node.computation] is node else times[node.number]
        if moment > end:
            end, last = moment, node
    for reader in values.readers[value]:
        opcode = reader.instruction.opcode
        if opcode == "call":  # The computation reads the operands.
            continue
        used = reader
        if opcode == "while":
            body = names_in(reader.instruction.attributes["body"])[0]
            used = next(n for n in values.by_name[body].values() if n.instruction.opcode == "parameter")
        end = max(end, times[used.number])
    if (
        parameter
        and maker.computation == entry
        and (int(maker.instruction.operands[0]), values.place[value]) not in values.donated
    ):
        end = spans[entry][1]
    return Lifetime(start, end, last)


def _shorten(values: Values, found: list[Lifetime]) -> None:
    """Ends each value of a shared buffer where the next one begins."""
    together: dict[int, list[int]] = {}
    for value, buffer in enumerate(values.buffer):
        together.setdefault(buffer, []).append(value)
    for row in together.values():
        row.sort(key=lambda v: (found[v].start, found[v].end, v))
        for a, b in itertools.pairwise(row):
            one, two = found[a], found[b]
            two.end = max(one.end, two.end)
            one.end = min(one.end, two.start)
