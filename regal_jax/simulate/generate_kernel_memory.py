"""What the kernel of schedule generation knows about memory: the same numbers as `generate_memory`."""

# Pyright does not understand Numba's code: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from collections import namedtuple

import numpy as np

from regal_jax.simulate.host_call import pointer
from regal_jax.simulate.host_layout import compiled

__all__ = ["begin_held", "excess_of", "held_words", "highest", "insert", "make_held", "needs", "remember"]

Held = namedtuple(
    "Held", "peaks size keep temp capacity out stays resident now most since column left copied"
)
"""Memory, if it decides: of the graph, then of one candidate.

Attributes:
  peaks: Whether the objective is peak memory.
  size, keep, temp, capacity: ``[T]`` int32, ``[T]`` bool, ``[N]`` and ``[D]`` int32.
  out, stays, resident: ``[N]`` int32, as in `regal_jax.simulate.generate_memory.Sizes`.
  now, most, since, left: As in `regal_jax.simulate.generate_memory.Held`, int32.
  column: ``[D]`` int32, one column of ``since``.
  copied: ``[T, D]`` int32, whether the device has a copy; unused if transfers are events.
"""


@compiled
def held_words(g):
    """Four-byte words of `Held`."""
    return 3 * g.n + 3 * g.d + g.d * g.d + g.t + g.t * g.d


@compiled
def make_held(g, memory, temp, capacity, peaks, at):
    """`Held` of a graph, written to ``at``."""
    n, d = g.n, g.d
    words = pointer(at, np.int32)
    for i in range(3 * n):
        words[i] = 0
    for t in range(g.tensors):
        o, size = g.tensor_op[t], memory.size[t]
        words[o] += size
        if g.rows[3 * (n + t) + 1] > g.rows[3 * (n + t)] or memory.keep[t] != 0:
            words[n + o] += size
        if memory.resident[t] != 0:
            words[2 * n + o] = 1
    now = 3 * n
    most = now + d
    since = most + d
    column = since + d * d
    left = column + d
    copied = left + g.t
    return Held(
        peaks,
        memory.size,
        memory.keep,
        temp,
        capacity,
        pointer(at, np.int32),
        pointer(at + 4 * n, np.int32),
        pointer(at + 8 * n, np.int32),
        pointer(at + 4 * now, np.int32),
        pointer(at + 4 * most, np.int32),
        pointer(at + 4 * since, np.int32),
        pointer(at + 4 * column, np.int32),
        pointer(at + 4 * left, np.int32),
        pointer(at + 4 * copied, np.int32),
    )


@compiled
def begin_held(g, transfers, h):
    """No op has been taken."""
    for k in range(g.d):
        h.now[k], h.most[k] = 0, 0
    for i in range(g.d * g.d):
        h.since[i] = 0
    for t in range(g.tensors):
        h.left[t] = g.rows[3 * (g.n + t) + 1] - g.rows[3 * (g.n + t)]
    if transfers is None:
        for i in range(g.t * g.d):
            h.copied[i] = 0


@compiled
def _has_copy(t, k, g, transfers, h, x):
    """Whether a device that is not the tensor's home has a copy."""
    return h.copied[t * g.d + k] != 0 if transfers is None else x.sent[t * g.d + k] >= 0


@compiled
def needs(o, k, g, c, transfers, h, x):
    """``(need, copies, growth)`` of a ready op on a device."""
    copies, growth = 0, np.int64(h.stays[o])
    for j in range(x.input_row[o], x.input_row[o + 1]):
        t = np.int64(x.inputs[j])
        size, ends = np.int64(h.size[t]), h.left[t] == 1
        if c.placement[g.tensor_op[t]] != k and not _has_copy(t, k, g, transfers, h, x):
            copies += size
            growth += 0 if ends else size
        if ends and h.keep[t] == 0:
            growth -= size
    before = np.int64(h.most[k]) if h.resident[o] != 0 else np.int64(h.now[k]) + copies
    return before + h.out[o] + h.temp[o], copies, growth


@compiled
def excess_of(need, k, h):
    """What of a need is above the capacity."""
    return max(need - np.int64(h.capacity[k]), 0)


@compiled
def highest(need, k, growth, p, g, h):
    """Cost of a choice for peak memory, without price."""
    peak = need
    for other in range(g.d):
        peak = max(peak, np.int64(h.most[other]))
    cost = np.float32(peak) + p.waste * np.float32(growth)
    return cost + p.behind * np.float32(h.now[k])


@compiled
def insert(t, source, k, g, h, x):
    """Adds a copy that is inserted right after the last meeting of two devices, in ``h.column``."""
    size, when = h.size[t], x.meet[source * g.d + k]
    base = h.column[source] + size
    for other in range(g.d):
        # The copy is part of all that was held since a later meeting.
        if x.meet[other * g.d + k] >= when:
            h.column[other] += size
        else:
            h.column[other] = max(h.column[other], base)
    h.most[k] = max(h.most[k], base)


@compiled
def remember(o, k, need, copies, first, g, c, transfers, h, x):
    """Memory after an op on device ``k``, whose transfers had the slots from ``first`` on."""
    d = g.d
    for other in range(d):
        longer = np.int64(h.since[other * d + k])
        longer = longer + h.out[o] if h.resident[o] != 0 else max(longer, need)
        met = transfers is not None and other != k and x.meet[other * d + k] >= first
        h.since[other * d + k] = need if met else longer
        if met:
            h.since[k * d + other] = h.now[other]
    h.most[k] = max(np.int64(h.most[k]), need)
    h.now[k] += copies + h.stays[o]
    for j in range(x.input_row[o], x.input_row[o + 1]):
        t = np.int64(x.inputs[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if transfers is None and home != k:
            h.copied[t * d + k] = 1
        h.left[t] -= 1
        if h.left[t] > 0:
            continue
        for other in range(d):
            if _has_copy(t, other, g, transfers, h, x):
                h.now[other] -= h.size[t]
        if h.keep[t] == 0:
            h.now[home] -= h.size[t]
