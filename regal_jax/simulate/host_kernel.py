"""The simulator as one compiled loop for CPUs: one candidate at a time, event by event.

Its inner loop has few branches that a processor could mispredict: an event is one packed word, transfers
and computes take the same path, and the queue of ready events is a set of bits. The position of an event's
bit is its rank in the order of keys (one radix sort per candidate). The next event is therefore the highest
bit, in one 64-bit word or a few.

References:
  docs/design.md, part 1, and part 4 on what implementations may use.
"""

# Pyright does not understand Numba's code: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false

import functools
import pathlib
import zlib
from typing import Any, Final

import numpy as np

from regal_jax.simulate import host_call, host_layout, host_memory
from regal_jax.simulate.host_call import (
    allocate,
    answer_metadata,
    c_function,
    free,
    leading_zeros,
    pointer,
    result,
    share,
    take,
    task_of,
)
from regal_jax.simulate.host_layout import (
    KEY_SHIFT,
    PLACE,
    PLACE_BITS,
    ROW,
    candidate,
    compiled,
    make_scratch,
    regroup,
    regroup_memory,
    sizes_of,
)
from regal_jax.simulate.host_memory import peaks

__all__ = ["answer_call", "candidates_at_once", "handler", "write_positions"]

_FEW: Final = 4096
"""Up to this number of events the summary is one word, which stays in a register."""
_U = np.uint64
_WORD: Final = _U(6)
_BIT: Final = _U(63)


@compiled
def _mark_transfers(g, c, s):
    """Marks the devices with consumers of each tensor; those other than its home need a transfer."""
    for i in range(g.tensors * g.d):
        s.read_on[i] = 0
    for t in range(g.tensors):
        for j in range(g.rows[3 * (g.n + t)], g.rows[3 * (g.n + t) + 1]):
            s.read_on[t * g.d + c.placement[g.links[2 * j]]] = 1


@compiled
def _list_events(g, c, transfers, s):
    """Packs all existing events, the highest id first; returns their number."""
    d = g.d
    m = 0
    if transfers is not None:
        for t in range(g.tensors - 1, -1, -1):
            home = np.int64(c.placement[g.tensor_op[t]])
            base = (g.n + t) << (2 * PLACE_BITS) | home << PLACE_BITS
            for j in range(d - 2, -1, -1):
                k = j + np.int64(j >= home)
                # Written without a branch: an event that does not exist is overwritten by the next one.
                s.listed[m] = np.int64(c.transfer_priority[t * d + k]) << KEY_SHIFT | base | k
                m += np.int64(s.read_on[t * d + k])
    for o in range(g.ops - 1, -1, -1):
        place = np.int64(c.placement[o])
        op = o << (2 * PLACE_BITS) | place << PLACE_BITS | place
        s.listed[m + g.ops - 1 - o] = np.int64(c.priority[o]) << KEY_SHIFT | op
    return m + g.ops


@compiled
def _rank(m, g, s):
    """Sorts the events by their keys; of equal keys the lowest id comes last, since it goes first."""
    for i in range(512):
        s.digits[i] = 0
    for i in range(m):
        key = s.listed[i] >> KEY_SHIFT
        s.digits[key & 255] += 1
        s.digits[256 + ((key >> 8) & 255)] += 1
    low = high = np.uint32(0)
    for i in range(256):
        count = s.digits[i]
        s.digits[i] = low
        low += count
        count = s.digits[256 + i]
        s.digits[256 + i] = high
        high += count
    for i in range(m):
        event = s.listed[i]
        digit = (event >> KEY_SHIFT) & 255
        s.taken[s.digits[digit]] = event
        s.digits[digit] += 1
    for i in range(m):
        event = s.taken[i]
        digit = 256 + ((event >> (KEY_SHIFT + 8)) & 255)
        r = s.digits[digit]
        s.digits[digit] = r + 1
        s.order[r] = event
        row = (event >> (2 * PLACE_BITS)) & ROW
        s.rank[row if row < g.n else g.n + (row - g.n) * g.d + (event & PLACE)] = r


@compiled
def _push(s, summary, r, on, many):
    """Sets the bit of rank ``r`` if ``on`` is 1."""
    s.low[r >> _WORD] |= on << (r & _BIT)
    r >>= _WORD
    if many is None:
        return summary | on << r
    s.middle[r >> _WORD] |= on << (r & _BIT)
    r >>= _WORD
    s.high[r >> _WORD] |= on << (r & _BIT)
    return summary | on << (r >> _WORD)


@compiled
def _pop(s, summary, many):
    """Clears the highest bit; returns its rank, and the summary without it."""
    i = _BIT - leading_zeros(summary)
    if many is not None:
        i = (i << _WORD) | (_BIT - leading_zeros(s.high[i]))
        i = (i << _WORD) | (_BIT - leading_zeros(s.middle[i]))
    word = s.low[i]
    bit = _BIT - leading_zeros(word)
    r = (i << _WORD) | bit
    word &= ~(_U(1) << bit)
    s.low[i] = word
    if many is not None:
        word = s.middle[i >> _WORD] & ~(_U(word == 0) << (i & _BIT))
        i >>= _WORD
        s.middle[i] = word
        word = s.high[i >> _WORD] & ~(_U(word == 0) << (i & _BIT))
        i >>= _WORD
        s.high[i] = word
    return r, summary & ~(_U(word == 0) << i)


@compiled
def _begin(g, c, m, s, many):
    """Initialises the state; the ops without predecessors are ready."""
    for k in range(g.d):
        s.clock[k] = 0
    for i in range((m >> 6) + 1):
        s.low[i] = 0
    if many is not None:
        for i in range((m >> 12) + 1):
            s.middle[i] = 0
        for i in range((m >> 18) + 1):
            s.high[i] = 0
    for o in range(g.ops):
        s.state[o] = g.indegree[o] << PLACE_BITS | c.placement[o]
        s.arrival[o] = 0
    summary = _U(0)
    for o in range(g.ops):
        if g.indegree[o] == 0:
            summary = _push(s, summary, _U(s.rank[o]), _U(1), many)
    return summary


@compiled
def _cost(t, source, k, g):
    """Time of a transfer."""
    if g.kinds == 1:
        return g.transfer_time[t]
    return g.transfer_time[t * g.kinds + g.kind[source * g.d + k]]


@compiled
def _timing(row, source, k, g, transfers, s):
    """Advances the clocks of the devices that an event holds; returns its finish."""
    if transfers is not None and row >= g.n:
        finish = max(s.clock[source], s.clock[k]) + _cost(row - g.n, source, k, g)
        s.clock[source] = finish
    else:
        finish = max(s.clock[k], s.arrival[row]) + g.runtime[row * g.d + k]
    s.clock[k] = finish
    return finish


@compiled
def _spread(row, k, finish, g, transfers, s, summary, many):
    """Updates the successors of an event, and pushes those that have become ready."""
    is_op, one = row < g.n, 1 << PLACE_BITS
    for j in range(g.rows[3 * row], g.rows[3 * row + 1]):
        o, t = np.int64(g.links[2 * j]), np.int64(g.links[2 * j + 1])
        state = np.int64(s.state[o])
        place = state & PLACE
        here = np.int64(place == k)
        if transfers is None:
            state -= one
            arrival = finish + (np.float32(0) if here else _cost(t, k, place, g))
            s.arrival[o] = max(s.arrival[o], arrival)
            event, on = o, np.int64(state < one)
        else:
            # A remote consumer pushes the transfer, repeatedly if there are several. When it has run, the
            # transfer updates the consumers on its device. There is no branch.
            state -= here * one
            away = g.n + t * g.d + place
            event = away + (o - away) * here
            on = (here & np.int64(state < one)) | (np.int64(is_op) & (1 - here))
        s.state[o] = state
        summary = _push(s, summary, _U(s.rank[event]), _U(on), many)
    for j in range(g.rows[3 * row + 1], g.rows[3 * row + 2]):
        o = g.links[2 * j]
        s.arrival[o] = max(s.arrival[o], finish)
        state = np.int64(s.state[o]) - one
        s.state[o] = state
        summary = _push(s, summary, _U(s.rank[o]), _U(state < one), many)
    return summary


@compiled
def _events(m, g, c, transfers, s, many):
    """Runs all events in order; stores them in ``taken`` and their positions in ``rank``."""
    summary = _begin(g, c, m, s, many)
    taken = 0
    while summary != _U(0):
        r, summary = _pop(s, summary, many)
        event = s.order[r]
        row = (event >> (2 * PLACE_BITS)) & ROW
        source, k = (event >> PLACE_BITS) & PLACE, event & PLACE
        s.taken[taken] = event
        s.rank[row if row < g.n else g.n + (row - g.n) * g.d + k] = taken
        taken += 1
        finish = _timing(row, source, k, g, transfers, s)
        summary = _spread(row, k, finish, g, transfers, s, summary, many)


@compiled
def write_positions(g, c, transfers, m, s):
    """Writes the positions of the events in ``taken``."""
    for o in range(g.n):
        c.op_position[o] = -1
    if transfers is not None:
        for i in range(g.t * g.d):
            c.transfer_position[i] = -1
    for p in range(m):
        row = (s.taken[p] >> (2 * PLACE_BITS)) & ROW
        if row < g.n:
            c.op_position[row] = p
        else:
            c.transfer_position[(row - g.n) * g.d + (s.taken[p] & PLACE)] = p


@compiled
def _run(g, memory, c, transfers, s):
    """Simulates one candidate; the results are in ``s.clock`` and ``s.peak``."""
    if transfers is not None:
        _mark_transfers(g, c, s)
    m = _list_events(g, c, transfers, s)
    _rank(m, g, s)
    if m <= _FEW:
        _events(m, g, c, transfers, s, None)
    else:
        _events(m, g, c, transfers, s, True)
    if memory is not None:
        peaks(m, g, memory, c, transfers, s)
    if c.positions:
        write_positions(g, c, transfers, m, s)


@compiled
def candidates_at_once(g):
    """Candidates per chunk: few enough that threads end together, enough that chunks cost little overhead."""
    return max(1, min(g.p, g.b * g.p // 32))


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
    while chunk >= 0:
        i = chunk // each
        g = regroup(frame, i, sizes, links_at)
        memory = None if with_memory is None else regroup_memory(frame, i, g, memory_at)
        makespan, peak = pointer(result(frame, 0), np.float32), pointer(result(frame, 1), np.int32)
        first = chunk % each * size
        for j in range(first, min(first + size, g.p)):
            _run(g, memory, candidate(frame, i, j, g), transfers, s)
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
    return 0


_task = task_of(_work)


@compiled
def answer_call(frame, task):
    """Answers one call of XLA; returns 0 for success."""
    if not answer_metadata(frame):
        g = sizes_of(frame)
        chunks = g.b * ((g.p + candidates_at_once(g) - 1) // candidates_at_once(g))
        # Waking a thread takes microseconds, a step of the simulation nanoseconds.
        alone = g.b * g.p * (g.n + g.e) < 8192
        if chunks > 0:
            share(frame, task, chunks, alone)
    return 0


def _version() -> int:
    """A digest of the other files that the kernel is compiled from."""
    files = (host_call.__file__, host_layout.__file__, host_memory.__file__)
    return zlib.crc32(b"".join(pathlib.Path(file).read_bytes() for file in files))


@functools.cache
def handler(transfers: bool, memory: bool) -> Any:
    """The C function that XLA calls, compiled or from Numba's cache. It lives as long as this module.

    Args:
      transfers: Whether transfers are events; otherwise they are delays.
      memory: Whether to compute peaks.

    Returns:
      An object with its ``address``.
    """
    # Numba's cache looks at this file and at the variables of the closure.
    first, second, version = transfers or None, memory or None, _version()

    def answer(frame):
        return answer_call(frame, _task(first, second)) if version >= 0 else 1

    return c_function(answer)
