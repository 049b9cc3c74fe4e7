"""Data of the host kernel: the operands of its custom call, regrouped for one candidate at a time.

Arrays are plain pointers, since code with Numba's own arrays takes half a minute to compile; sizes are in
`Graph`.
"""

# Pyright does not understand Numba's code: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false

from collections import namedtuple
from typing import Final

import numpy as np
from numba import njit

from regal_jax.runtime.compiling import pipeline
from regal_jax.simulate.host_call import allocate, operand, pointer, result, size_of

__all__ = [
    "KEY_SHIFT",
    "OPERANDS",
    "PLACE",
    "PLACE_BITS",
    "ROW",
    "Candidate",
    "Graph",
    "Memory",
    "Scratch",
    "candidate",
    "compiled",
    "make_scratch",
    "regroup",
    "regroup_memory",
    "sizes_of",
]

OPERANDS: Final = (
    *("num_ops", "num_tensors", "runtime", "indegree", "op_row", "successor", "via", "tensor_op"),
    *("transfer_time", "link", "size", "keep", "resident", "temp"),
    *("placement", "priority", "transfer_priority"),
)
"""Operands of the custom call, by their names in `regal_jax.problem`; its results are those of `simulate`."""
_NUM_OPS, _NUM_TENSORS, _RUNTIME, _INDEGREE, _OP_ROW, _SUCCESSOR, _VIA, _TENSOR_OP = range(8)
_TRANSFER_TIME, _LINK, _SIZE, _KEEP, _RESIDENT, _TEMP = range(8, 14)
_PLACEMENT, _PRIORITY, _TRANSFER_PRIORITY = range(14, 17)

PLACE_BITS: Final = 10
"""Bits of a device index (`regal_jax.graph.Cluster` has at most 1024 devices)."""
PLACE: Final = (1 << PLACE_BITS) - 1
_ROW_BITS: Final = 28
ROW: Final = (1 << _ROW_BITS) - 1
KEY_SHIFT: Final = _ROW_BITS + 2 * PLACE_BITS
"""An event, packed: key, row (an op, or ``N`` and a tensor), source, device."""

compiled = njit(error_model="numpy", no_cpython_wrapper=True, no_cfunc_wrapper=True, **pipeline(scalar=True))

Graph = namedtuple(
    "Graph",
    "b p n t d e kinds ops tensors runtime indegree tensor_op transfer_time kind rows links",
)
"""One graph of a batch; ``L = N + T``, ops then tensors.

Attributes:
  b, p, n, t, d, e: Sizes of the call: ``B``, ``P``, ``N``, ``T``, ``D`` and ``E + C``.
  kinds: Number of kinds of links between devices.
  ops, tensors: Numbers without padding.
  runtime: ``[N, D]`` float32.
  indegree: ``[N]`` int32.
  tensor_op: ``[T]`` int32.
  transfer_time: ``[T, kinds]`` float32.
  kind: ``[D, D]`` int32, kind of the link from row to column.
  rows: ``[L, 3]`` uint32: begin and end of the data links of an op, or of a tensor, and the end of the
    control links of an op, which follow them.
  links: ``[E + C, 2]`` uint32: the successor; the tensor.
"""

Memory = namedtuple("Memory", "size keep resident made")
"""What accounting for memory needs in addition; ``None`` if peaks are not computed.

Attributes:
  size: ``[T]`` int32.
  keep, resident: ``[T]`` bool.
  made: ``[L, 2]`` int64, bytes that an op, or a transfer of a tensor, allocates, and bytes that it needs
    while it runs.
"""

Candidate = namedtuple(
    "Candidate", "placement priority transfer_priority positions op_position transfer_position"
)
"""Decisions: ``[N]`` int32, ``[N]`` uint16, ``[T, D]`` uint16; and, if
``positions``, where to write ``[N]`` and ``[T, D]`` int32."""

Scratch = namedtuple(
    "Scratch",
    "state arrival clock read_on rank order listed taken digits low middle high "
    "held peak first last left copied released released_at_home next_at_home",
)
"""Working memory for one candidate at a time; ``M = N + T * D`` events at most.

Attributes:
  state: ``[N]`` uint32: predecessors that have not run, above 10 bits for the op's device.
  arrival: ``[N]`` float32, latest arrival from predecessors that have run.
  clock: ``[D]`` float32.
  read_on: ``[T, D]`` int8, whether the device has consumers of the tensor.
  rank: ``[M]`` uint32, rank of each event in the order of keys, of which the last goes first; once an event
    is taken, its position. Always less than ``M``, also for an event that does not exist.
  order: ``[M]`` int64, packed events in the order of keys.
  listed: ``[M + 1]`` int64, packed events before the sort.
  taken: ``[M + 1]`` int64, packed events between the passes of the sort, then in the order they are taken.
  digits: ``[512]`` uint32.
  low, middle, high: Bits of the ready events, of the nonzero words of ``low``, of those of ``middle``.
  held, peak: ``[D]`` int64.
  first, last: ``[T, D]`` int64, positions of the first and the last reader.
  left: ``[T]`` int64, position at which the last copy is made, or -1.
  copied, released: ``[M]`` int64, bytes of copies that an event makes without transfers; bytes it releases.
  released_at_home, next_at_home: ``[M]`` and ``[T]`` int64, lists of tensors (from 1) that an event elsewhere
    releases at home.
"""


@compiled
def make_scratch(g):
    """A `Scratch` of zeros, and its address, to be freed."""
    n, d, t, td = g.n, g.d, g.t, g.t * g.d
    m = n + td
    # Eight bytes for every number, since few of them are smaller.
    arrival = n
    clock = arrival + n
    read_on = clock + d
    rank = read_on + td
    order = rank + m
    listed = order + m
    taken = listed + m + 1
    digits = taken + m + 1
    low = digits + 512
    middle = low + (m >> 6) + 1
    high = middle + (m >> 12) + 1
    held = high + (m >> 18) + 1
    peak = held + d
    first = peak + d
    last = first + td
    left = last + td
    copied = left + t
    released = copied + m
    released_at_home = released + m
    next_at_home = released_at_home + m
    words = next_at_home + t
    at = allocate(8 * words)
    for i in range(words):
        pointer(at, np.int64)[i] = 0
    return at, Scratch(
        pointer(at, np.uint32),
        pointer(at + 8 * arrival, np.float32),
        pointer(at + 8 * clock, np.float32),
        pointer(at + 8 * read_on, np.int8),
        pointer(at + 8 * rank, np.uint32),
        pointer(at + 8 * order, np.int64),
        pointer(at + 8 * listed, np.int64),
        pointer(at + 8 * taken, np.int64),
        pointer(at + 8 * digits, np.uint32),
        pointer(at + 8 * low, np.uint64),
        pointer(at + 8 * middle, np.uint64),
        pointer(at + 8 * high, np.uint64),
        pointer(at + 8 * held, np.int64),
        pointer(at + 8 * peak, np.int64),
        pointer(at + 8 * first, np.int64),
        pointer(at + 8 * last, np.int64),
        pointer(at + 8 * left, np.int64),
        pointer(at + 8 * copied, np.int64),
        pointer(at + 8 * released, np.int64),
        pointer(at + 8 * released_at_home, np.int64),
        pointer(at + 8 * next_at_home, np.int64),
    )


@compiled
def sizes_of(frame):
    """A `Graph` with only the sizes of the call."""
    b, p, n = size_of(frame, _PLACEMENT, 0), size_of(frame, _PLACEMENT, 1), size_of(frame, _PLACEMENT, 2)
    t, d, e = size_of(frame, _TENSOR_OP, 1), size_of(frame, _RUNTIME, 2), size_of(frame, _VIA, 1)
    kinds = size_of(frame, _TRANSFER_TIME, 2)
    none, none_, none__ = pointer(0, np.float32), pointer(0, np.int32), pointer(0, np.uint32)
    return Graph(b, p, n, t, d, e, kinds, 0, 0, none, none_, none_, none, none_, none__, none__)


@compiled
def regroup(frame, i, sizes, at):
    """Graph ``i`` of the call, its rows and links (``8 * (N + T + E + C)`` words) written to ``at``."""
    n, t, d, e = sizes.n, sizes.t, sizes.d, sizes.e
    rows, links = pointer(at, np.uint32), pointer(at + 12 * (n + t), np.uint32)
    op_row = pointer(operand(frame, _OP_ROW) + 8 * i * n, np.int32)
    successor = pointer(operand(frame, _SUCCESSOR) + 4 * i * e, np.int32)
    via = pointer(operand(frame, _VIA) + 4 * i * e, np.int32)
    ops = pointer(operand(frame, _NUM_OPS), np.int32)[i]
    for row in range(3 * (n + t)):
        rows[row] = 0
    for o in range(ops):
        begin, end = op_row[2 * o], op_row[2 * o + 1]
        rows[3 * o] = begin
        rows[3 * o + 1] = begin
        rows[3 * o + 2] = end
        for j in range(begin, end):
            links[2 * j] = successor[j]
            links[2 * j + 1] = via[j]
            if via[j] < t:
                rows[3 * o + 1] = j + 1
                row = 3 * (n + via[j])
                # The consumers of a tensor are consecutive; an end of 0 marks the first.
                rows[row] = j if rows[row + 1] == 0 else rows[row]
                rows[row + 1] = j + 1
                rows[row + 2] = j + 1
    return Graph(
        *(sizes.b, sizes.p, n, t, d, e, sizes.kinds, ops),
        np.int64(pointer(operand(frame, _NUM_TENSORS), np.int32)[i]),
        pointer(operand(frame, _RUNTIME) + 4 * i * n * d, np.float32),
        pointer(operand(frame, _INDEGREE) + 4 * i * n, np.int32),
        pointer(operand(frame, _TENSOR_OP) + 4 * i * t, np.int32),
        pointer(operand(frame, _TRANSFER_TIME) + 4 * i * t * sizes.kinds, np.float32),
        pointer(operand(frame, _LINK) + 4 * i * d * d, np.int32),
        *(rows, links),
    )


@compiled
def regroup_memory(frame, i, g, at):
    """`Memory` of a graph, its sums (``16 * (N + T)`` bytes) written to ``at``."""
    size, made = pointer(operand(frame, _SIZE) + 4 * i * g.t, np.int32), pointer(at, np.int64)
    temp = pointer(operand(frame, _TEMP) + 4 * i * g.n, np.int32)
    resident = pointer(operand(frame, _RESIDENT) + i * g.t, np.int8)
    for o in range(g.n):
        made[2 * o], made[2 * o + 1] = 0, temp[o]
    for t in range(g.tensors):
        made[2 * g.tensor_op[t]] += size[t] * np.int64(resident[t] == 0)
        made[2 * (g.n + t)], made[2 * (g.n + t) + 1] = size[t], 0
    return Memory(size, pointer(operand(frame, _KEEP) + i * g.t, np.int8), resident, made)


@compiled
def candidate(frame, i, j, g):
    """Candidate ``j`` of graph ``i``."""
    at = i * g.p + j
    op_position, transfer_position = result(frame, 2), result(frame, 3)
    return Candidate(
        pointer(operand(frame, _PLACEMENT) + 4 * at * g.n, np.int32),
        pointer(operand(frame, _PRIORITY) + 2 * at * g.n, np.uint16),
        pointer(operand(frame, _TRANSFER_PRIORITY) + 2 * at * g.t * g.d, np.uint16),
        op_position != 0,
        pointer(op_position + 4 * at * g.n, np.int32),
        pointer(transfer_position + 4 * at * g.t * g.d, np.int32),
    )
