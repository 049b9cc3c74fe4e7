"""Standard Task Graph files (``.stg``): tasks with processing times and precedences.

The format of the Standard Task Graph Set (T. Tobita and H. Kasahara, "A standard task graph set for fair
evaluation of multiprocessor scheduling algorithms", Journal of Scheduling 5, 2002): the number of tasks
``n``, then ``n + 2`` rows ``id time count predecessor...`` (dummies 0 and ``n + 1`` included), then a
footer of lines that start with ``#``.
"""

import re
from typing import Final

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.graph.arrays import all_edges
from regal_jax.importers.refusals import refuse_constraints

__all__ = ["format_stg", "parse_stg"]

_WHOLE: Final = re.compile(r"\d{1,9}", re.ASCII)
_TIME: Final = re.compile(r"\d{1,300}(?:\.\d{0,300})?(?:[eE][+-]?\d{1,3})?", re.ASCII)


def parse_stg(
    text: str, *, name: str = "graph", tensor_bytes: int = 0, time_unit: str = "s"
) -> ComputationGraph:
    """The graph in the text of an ``.stg`` file.

    Each task becomes an op named by its id, the dummies included. A task with successors has one output
    tensor, which all of them read, so that a precedence between devices is a transfer.

    Args:
      text: The file's content.
      name: Name of the graph.
      tensor_bytes: Size of every tensor; the format has none.
      time_unit: Unit of the processing times; the format has none.

    Raises:
      FormatError: A row is invalid; names its line.
      GraphError: The graph breaks a rule, e.g. has a cycle.
    """
    check_kind("text", text, str)
    rows = [
        (number, line.split())
        for number, line in enumerate(text.splitlines(), 1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if not rows:
        raise FormatError("no line has a task; the first line must be the number of tasks")
    number, first = rows[0]
    if len(first) != 1 or not _WHOLE.fullmatch(first[0]):
        raise FormatError(f"line {number}: expected the number of tasks alone, got {_shown(first)}")
    if len(rows) - 1 != int(first[0]) + 2:
        raise FormatError(
            f"line {number}: {first[0]} tasks need {int(first[0]) + 2} rows (with dummies 0 and n + 1), "
            f"the file has {len(rows) - 1}; is it complete?"
        )
    tasks = [_row(number, fields) for number, fields in rows[1:]]
    names = {task for _, task, _, _ in tasks}
    preceding = {p for _, _, _, predecessors in tasks for p in predecessors}
    builder, seen = GraphBuilder(name, time_unit), set()
    for number, task, time, predecessors in tasks:
        if task in seen:
            raise FormatError(f"line {number}: task {task} has a row already; renumber one of the two")
        seen.add(task)
        missing = [p for p in predecessors if p not in names]
        if missing:
            raise FormatError(f"line {number}: predecessor {missing[0]} has no row; add it or drop the edge")
        builder.add_op(
            task,
            runtime=time,
            outputs=[tensor_bytes] if task in preceding else [],
            inputs=[f"{p}:0" for p in predecessors],
        )
    return builder.build()


def _row(number: int, fields: list[str]) -> tuple[int, str, float, list[str]]:
    if len(fields) < 3 or not (_WHOLE.fullmatch(fields[0]) and _WHOLE.fullmatch(fields[2])):
        raise FormatError(
            f"line {number}: expected 'id time count predecessor...' in whole numbers, got {_shown(fields)}"
        )
    if not _TIME.fullmatch(fields[1]) or float(fields[1]) == float("inf"):
        raise FormatError(f"line {number}: time {fields[1][:40]!r} must be a finite number, zero or more")
    count = int(fields[2])
    if count and len(fields) == 3 + 2 * count:
        raise FormatError(
            f"line {number}: two numbers a predecessor look like the variant with communication times, "
            "which is not read; leave the second numbers out and pass tensor_bytes"
        )
    if len(fields) != 3 + count or not all(_WHOLE.fullmatch(f) for f in fields[3:]):
        raise FormatError(
            f"line {number}: expected {count} whole numbers as predecessors, got {_shown(fields[3:])}"
        )
    return number, str(int(fields[0])), float(fields[1]), [str(int(f)) for f in fields[3:]]


def _shown(fields: list[str]) -> str:
    text = " ".join(fields)
    return repr(text if len(text) <= 60 else text[:57] + "...")


def format_stg(graph: ComputationGraph, *, lossy: bool = False) -> str:
    """``graph`` as the text of an ``.stg`` file.

    The format holds runtimes (as they are, without their unit) and precedences, nothing else: names go
    to the footer as comments; sizes, kinds, `keep` and scratch memory are left out, and a control
    edge becomes a precedence like any other. A graph that `parse_stg` made is written unchanged; any
    other gains the two dummies, and its ops are numbered from 1 in topological order.

    Args:
      graph: The graph.
      lossy: Leave out allowed devices and colocation groups too, rather than refuse them.

    Raises:
      FormatError: The graph has runtimes for several devices, or constraints and not ``lossy``.
    """
    refuse_constraints(graph, "an .stg file", lossy)
    before: list[set[int]] = [set() for _ in graph.op_names]
    for u, v in zip(*(ops.tolist() for ops in all_edges(graph)), strict=True):
        before[v].add(u)
    runtime = [_number(r) for r in graph.runtime.tolist()]
    n = graph.num_ops
    if _has_dummies(graph, before):
        rows = [[o, runtime[o], len(before[o]), *sorted(before[o])] for o in range(n)]
        return _table(n - 2, rows, [])
    order = graph.topological_order.tolist()
    place = {o: i for i, o in enumerate(order, 1)}
    last = sorted(set(range(n)).difference(*before), key=place.__getitem__)
    rows = [[0, "0", 0]]
    for o in order:
        predecessors = sorted(place[u] for u in before[o]) or [0]
        rows.append([place[o], runtime[o], len(predecessors), *predecessors])
    rows.append([n + 1, "0", len(last), *(place[o] for o in last)])
    return _table(n, rows, [f"# {place[o]} {graph.op_names[o]!a}" for o in order])


def _has_dummies(graph: ComputationGraph, before: list[set[int]]) -> bool:
    """Whether ops are numbered from 0, the first the only source, the last the only sink, both costless."""
    n = graph.num_ops
    if n < 2 or graph.op_names != tuple(map(str, range(n))) or graph.runtime[[0, -1]].any():
        return False
    sources = [o for o in range(n) if not before[o]]
    return sources == [0] and set(range(n)).difference(*before) == {n - 1}


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() and value < 2**53 else repr(value)


def _table(tasks: int, rows: list[list], footer: list[str]) -> str:
    lines = [str(tasks), *(" ".join(map(str, row)) for row in rows), *footer]
    return "\n".join(lines) + "\n"
