"""Schedule generation as one compiled loop for CPUs: one candidate at a time, op by op.

It decides exactly as `generate_lockstep` does: both compute the same float32 numbers in the same order.
"""

# What Numba compiles is no Python to pyright: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false

import functools
import pathlib
import zlib
from collections import namedtuple
from typing import Any, Final

import numpy as np
from numba import cfunc, types

from regal_jax.simulate import host_call, host_kernel, host_layout, host_memory
from regal_jax.simulate.host_call import allocate, free, operand, pointer, result, take, task_of
from regal_jax.simulate.host_kernel import answer_call, candidates_at_once, write_positions
from regal_jax.simulate.host_layout import (
    PLACE_BITS,
    Candidate,
    compiled,
    make_scratch,
    regroup,
    regroup_memory,
    sizes_of,
)
from regal_jax.simulate.host_memory import peaks

__all__ = ["OPERANDS", "handler"]

OPERANDS: Final = (
    *host_layout.OPERANDS[:14],
    "urgency",
    "price",
    "early",
    "waste",
    "behind",
    "allowed",
    "leader",
)
"""Operands of the custom call; its results are those of the simulator, and the placement."""
_URGENCY, _PRICE, _EARLY, _WASTE, _BEHIND, _ALLOWED, _LEADER = range(14, 21)

_Preferred = namedtuple("_Preferred", "urgency price early waste behind")
"""One candidate: ``[N]`` and ``[N, D]`` float32, three numbers."""

_Extra = namedtuple(
    "_Extra",
    "allowed leader input_row inputs ready bound waiting release finish made sent meet lag order count",
)
"""What generation needs besides `Graph` and `Scratch`.

Attributes:
  allowed: ``[N, D]`` bool.
  leader: ``[N]`` int32.
  input_row, inputs: ``[N + 1]`` and ``[E]`` int32, the tensors that each op reads, ascending.
  ready: ``[N]`` int32, the ready ops.
  bound: ``[N]`` int32, device of the group that each op leads, -1 before.
  waiting, release, finish, made: ``[N]`` int32, float32, float32, int32, as in `generate_lockstep`.
  sent: ``[T, D]`` int32, twice the slot of each transfer, plus 1 if it was inserted there; -1 for none.
  meet: ``[D, D]`` int32.
  lag: ``[D]`` float32, clocks of the sources after transfers that are considered.
  order: ``[E]`` int32, the inputs of the op, those of the least clock first.
  count: ``[2 * (N + T * D) + 2]`` int32, for the sort of the events.
"""


@compiled
def _extra_words(g):
    """Four-byte words of `_Extra`."""
    return 7 * g.n + 1 + 2 * g.e + g.t * g.d + g.d * g.d + g.d + 2 * (g.n + g.t * g.d) + 2


@compiled
def _make_extra(frame, i, g, at):
    """`_Extra` of graph ``i``, written to ``at``."""
    n, d, e = g.n, g.d, g.e
    words = pointer(at, np.int32)
    for j in range(n + 1):
        words[j] = 0
    for t in range(g.tensors):
        for j in range(g.rows[3 * (n + t)], g.rows[3 * (n + t) + 1]):
            words[g.links[2 * j] + 1] += 1
    for o in range(n):
        words[o + 1] += words[o]
    inputs, fill = n + 1, n + 1 + e
    for o in range(n):
        words[fill + o] = words[o]
    for t in range(g.tensors):
        for j in range(g.rows[3 * (n + t)], g.rows[3 * (n + t) + 1]):
            o = g.links[2 * j]
            words[inputs + words[fill + o]] = t
            words[fill + o] += 1
    ready = fill
    bound = ready + n
    waiting = bound + n
    release = waiting + n
    finish = release + n
    made = finish + n
    sent = made + n
    meet = sent + g.t * d
    lag = meet + d * d
    order = lag + d
    count = order + e
    return _Extra(
        pointer(operand(frame, _ALLOWED) + i * n * d, np.int8),
        pointer(operand(frame, _LEADER) + 4 * i * n, np.int32),
        pointer(at, np.int32),
        pointer(at + 4 * inputs, np.int32),
        pointer(at + 4 * ready, np.int32),
        pointer(at + 4 * bound, np.int32),
        pointer(at + 4 * waiting, np.int32),
        pointer(at + 4 * release, np.float32),
        pointer(at + 4 * finish, np.float32),
        pointer(at + 4 * made, np.int32),
        pointer(at + 4 * sent, np.int32),
        pointer(at + 4 * meet, np.int32),
        pointer(at + 4 * lag, np.float32),
        pointer(at + 4 * order, np.int32),
        pointer(at + 4 * count, np.int32),
    )


@compiled
def _cost(t, source, k, g):
    """Time of a transfer."""
    if g.kinds == 1:
        return g.transfer_time[t]
    return g.transfer_time[t * g.kinds + g.kind[source * g.d + k]]


@compiled
def _rides(t, home, k, cost, g, x):
    """Whether a transfer is inserted where its devices last met."""
    return cost == 0 and x.made[g.tensor_op[t]] < x.meet[home * g.d + k]


@compiled
def _start(o, k, g, c, transfers, s, x):
    """When a ready op could start on a device, each transfer by itself."""
    start = max(x.release[o], s.clock[k])
    for j in range(x.input_row[o], x.input_row[o + 1]):
        t = np.int64(x.inputs[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k:
            continue
        if transfers is None:
            start = max(start, x.finish[g.tensor_op[t]] + _cost(t, home, k, g))
        elif x.sent[t * g.d + k] < 0:
            cost = _cost(t, home, k, g)
            if not _rides(t, home, k, cost, g, x):
                start = max(start, max(s.clock[home], s.clock[k]) + cost)
    return start


@compiled
def _feasible(o, k, g, x):
    bound = x.bound[x.leader[o]]
    return x.allowed[o * g.d + k] != 0 and (bound < 0 or bound == k)


@compiled
def _choose(ready, g, c, p, transfers, s, x):
    """Index of the ready op with the least start less urgency, lowest op on ties."""
    best, least, chosen = 0, np.float32(np.inf), g.n
    for i in range(ready):
        o = np.int64(x.ready[i])
        earliest = np.float32(np.inf)
        for k in range(g.d):
            if _feasible(o, k, g, x):
                start = _start(o, k, g, c, transfers, s, x)
                earliest = min(earliest, start + p.early * p.price[o * g.d + k])
        score = earliest - p.urgency[o]
        if score < least or (score == least and o < chosen):
            best, least, chosen = i, score, o
    return best


@compiled
def _sort_inputs(o, g, c, s, x):
    """Lists the inputs by the clocks of their homes, by number on ties; returns how many."""
    count = 0
    for j in range(x.input_row[o], x.input_row[o + 1]):
        t = x.inputs[j]
        clock = s.clock[c.placement[g.tensor_op[t]]]
        i = count
        while i > 0 and s.clock[c.placement[g.tensor_op[x.order[i - 1]]]] > clock:
            x.order[i] = x.order[i - 1]
            i -= 1
        x.order[i] = t
        count += 1
    return count


@compiled
def _move(inputs, k, g, c, s, x):
    """Considers the transfers to device ``k``: its clock afterwards, and what other devices lose."""
    for j in range(inputs):
        home = c.placement[g.tensor_op[x.order[j]]]
        x.lag[home] = s.clock[home]
    own, lost = s.clock[k], np.float32(0)
    for j in range(inputs):
        t = np.int64(x.order[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k or x.sent[t * g.d + k] >= 0:
            continue
        cost = _cost(t, home, k, g)
        if _rides(t, home, k, cost, g, x):
            continue
        own = max(own, x.lag[home]) + cost
        lost += own - x.lag[home]
        x.lag[home] = own
    return own, lost


@compiled
def _send(inputs, k, slot, g, c, s, x):
    """Makes the transfers to device ``k``; returns the next slot."""
    # Whether a transfer is inserted depends on the meetings before this op.
    for j in range(inputs):
        t = np.int64(x.order[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home != k and x.sent[t * g.d + k] < 0 and _rides(t, home, k, _cost(t, home, k, g), g, x):
            x.sent[t * g.d + k] = 2 * x.meet[home * g.d + k] + 1
    for j in range(inputs):
        t = np.int64(x.order[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k or x.sent[t * g.d + k] >= 0:
            continue
        finish = max(s.clock[k], s.clock[home]) + _cost(t, home, k, g)
        s.clock[k], s.clock[home] = finish, finish
        x.sent[t * g.d + k] = 2 * slot
        x.meet[home * g.d + k], x.meet[k * g.d + home] = slot, slot
        slot += 1
    return slot


@compiled
def _place(o, g, c, p, transfers, s, x, slot):
    """Puts an op on the device of least cost, lowest index on ties; returns the next slot."""
    inputs = 0 if transfers is None else _sort_inputs(o, g, c, s, x)
    chosen, least = -1, np.float32(np.inf)
    for k in range(g.d):
        if not _feasible(o, k, g, x):
            continue
        if transfers is None:
            start, lost = _start(o, k, g, c, transfers, s, x), np.float32(0)
        else:
            start, lost = _move(inputs, k, g, c, s, x)
            start = max(start, x.release[o])
        cost = start + g.runtime[o * g.d + k] + p.price[o * g.d + k] + p.waste * lost + p.behind * s.clock[k]
        if chosen < 0 or cost < least:
            chosen, least = k, cost
    k = chosen
    if transfers is None:
        start = _start(o, k, g, c, transfers, s, x)
    else:
        slot = _send(inputs, k, slot, g, c, s, x)
        start = max(s.clock[k], x.release[o])
    s.clock[k] = start + g.runtime[o * g.d + k]
    x.finish[o] = s.clock[k]
    c.placement[o] = k
    x.bound[x.leader[o]] = k
    x.made[o] = slot
    return slot + 1


@compiled
def _generate(g, c, p, transfers, s, x):
    """Takes all ops; returns the number of slots."""
    for k in range(g.d):
        s.clock[k] = 0
    ready = 0
    for o in range(g.n):
        c.placement[o], x.bound[o], x.made[o], x.release[o] = 0, -1, -1, 0
        x.waiting[o] = g.indegree[o]
        if g.indegree[o] == 0:
            x.ready[ready] = o
            ready += 1
    if transfers is not None:
        for i in range(g.t * g.d):
            x.sent[i] = -1
        for i in range(g.d * g.d):
            x.meet[i] = -1
    slot = 0
    while ready > 0:
        i = _choose(ready, g, c, p, transfers, s, x)
        o = np.int64(x.ready[i])
        ready -= 1
        x.ready[i] = x.ready[ready]
        slot = _place(o, g, c, p, transfers, s, x, slot)
        for j in range(g.rows[3 * o], g.rows[3 * o + 2]):
            v = np.int64(g.links[2 * j])
            x.release[v] = max(x.release[v], x.finish[o])
            x.waiting[v] -= 1
            if x.waiting[v] == 0:
                x.ready[ready] = v
                ready += 1
    return slot


@compiled
def _order_events(slots, g, c, transfers, s, x):
    """Sorts the events by slot, inserted transfers last, then by id, as `s.taken` and `s.rank` hold them."""
    for i in range(2 * slots + 1):
        x.count[i] = 0
    for o in range(g.ops):
        x.count[2 * x.made[o] + 1] += 1
    if transfers is not None:
        for i in range(g.tensors * g.d):
            if x.sent[i] >= 0:
                x.count[x.sent[i] + 1] += 1
    for i in range(2 * slots):
        x.count[i + 1] += x.count[i]
    m = x.count[2 * slots]
    for o in range(g.ops):
        place = np.int64(c.placement[o])
        at = x.count[2 * x.made[o]]
        x.count[2 * x.made[o]] += 1
        s.taken[at], s.rank[o] = o << (2 * PLACE_BITS) | place << PLACE_BITS | place, at
    if transfers is not None:
        for t in range(g.tensors):
            home = np.int64(c.placement[g.tensor_op[t]])
            for k in range(g.d):
                key = x.sent[t * g.d + k]
                s.rank[g.n + t * g.d + k] = 0
                if key >= 0:
                    at = x.count[key]
                    x.count[key] += 1
                    s.taken[at] = (g.n + t) << (2 * PLACE_BITS) | home << PLACE_BITS | k
                    s.rank[g.n + t * g.d + k] = at
    return np.int64(m)


@compiled
def _candidate(frame, i, j, g):
    """Where candidate ``j`` of graph ``i`` writes to, and its preferences."""
    at = i * g.p + j
    op_position, transfer_position = result(frame, 2), result(frame, 3)
    keys = pointer(0, np.uint16)
    c = Candidate(
        *(pointer(result(frame, 4) + 4 * at * g.n, np.int32), keys, keys, op_position != 0),
        pointer(op_position + 4 * at * g.n, np.int32),
        pointer(transfer_position + 4 * at * g.t * g.d, np.int32),
    )
    return c, _Preferred(
        pointer(operand(frame, _URGENCY) + 4 * at * g.n, np.float32),
        pointer(operand(frame, _PRICE) + 4 * at * g.n * g.d, np.float32),
        pointer(operand(frame, _EARLY), np.float32)[at],
        pointer(operand(frame, _WASTE), np.float32)[at],
        pointer(operand(frame, _BEHIND), np.float32)[at],
    )


def _work(block, transfers, with_memory):
    """A task: takes chunks of candidates of one graph until none is left."""
    chunk, frame = take(block, False)
    if chunk < 0:
        return 0
    sizes = sizes_of(frame)
    size = candidates_at_once(sizes)
    each = (sizes.p + size - 1) // size
    n, t, d, e = sizes.n, sizes.t, sizes.d, sizes.e
    scratch_at, s = make_scratch(sizes)
    links_at, memory_at = allocate(12 * (n + t) + 8 * e), allocate(16 * (n + t))
    extra_at = allocate(4 * _extra_words(sizes))
    while chunk >= 0:
        i = chunk // each
        g = regroup(frame, i, sizes, links_at)
        memory = None if with_memory is None else regroup_memory(frame, i, g, memory_at)
        x = _make_extra(frame, i, g, extra_at)
        makespan, peak = pointer(result(frame, 0), np.float32), pointer(result(frame, 1), np.int32)
        first = chunk % each * size
        for j in range(first, min(first + size, g.p)):
            c, p = _candidate(frame, i, j, g)
            slots = _generate(g, c, p, transfers, s, x)
            if with_memory is not None or c.positions:
                m = _order_events(slots, g, c, transfers, s, x)
                if memory is not None:
                    peaks(m, g, memory, c, transfers, s)
                if c.positions:
                    write_positions(g, c, transfers, m, s)
            at = i * g.p + j
            makespan[at] = 0
            for k in range(d):
                makespan[at] = max(makespan[at], s.clock[k])
                if with_memory is not None:
                    peak[at * d + k] = s.peak[k]
        chunk, frame = take(block, True)
    free(scratch_at)
    free(links_at)
    free(memory_at)
    free(extra_at)
    return 0


_task = task_of(_work)


def _version() -> int:
    """A digest of the other files that the kernel is compiled from."""
    files = (host_call.__file__, host_layout.__file__, host_memory.__file__, host_kernel.__file__)
    return zlib.crc32(b"".join(pathlib.Path(file).read_bytes() for file in files))


@functools.cache
def handler(transfers: bool, memory: bool) -> Any:
    """As `regal_jax.simulate.host_kernel.handler`, for schedule generation."""
    first, second, version = transfers or None, memory or None, _version()

    def answer(frame):
        return answer_call(frame, _task(first, second)) if version >= 0 else 1

    signature = types.int64(types.int64)
    try:
        return cfunc(signature, cache=True)(answer)
    except RuntimeError:  # There is no folder for the cache.
        return cfunc(signature)(answer)
