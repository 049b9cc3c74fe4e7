"""Peaks of memory in the kernel for CPUs, from the positions of the events (docs/design.md, part 1)."""

# Pyright does not understand Numba's code: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

import numpy as np

from regal_jax.simulate.host_layout import PLACE, PLACE_BITS, ROW, compiled

__all__ = ["peaks"]


@compiled
def _first_and_last_reads(g, c, transfers, s):
    """Positions of the last, and without transfers of the first, reader of each tensor on each device."""
    for i in range(g.tensors * g.d):
        s.last[i] = -1
    if transfers is None:
        for i in range(g.tensors * g.d):
            s.first[i] = g.ops
    for t in range(g.tensors):
        for j in range(g.rows[3 * (g.n + t)], g.rows[3 * (g.n + t) + 1]):
            o = g.links[2 * j]
            at, position = t * g.d + c.placement[o], np.int64(s.rank[o])
            s.last[at] = max(s.last[at], position)
            if transfers is None:
                s.first[at] = min(s.first[at], position)


@compiled
def _releases(m, g, memory, c, transfers, s):
    """The bytes that each event releases, and the copies that it makes if transfers are not events.

    An event releases memory on its own device, or on its source if it is a transfer. Without transfers, the
    first reader of a copy may also end the need for the original at home; such tensors are listed separately.
    """
    d = g.d
    for p in range(m):
        s.copied[p], s.released[p], s.released_at_home[p] = 0, 0, 0
    for t in range(g.tensors):
        s.left[t] = -1
    for k in range(d):
        for t in range(g.tensors):
            last, size = s.last[t * d + k], np.int64(memory.size[t])
            # No branches, since the processor could not predict which devices have a copy.
            copied = np.int64((last >= 0) & (k != c.placement[g.tensor_op[t]]))
            arrived = s.first[t * d + k] if transfers is None else np.int64(s.rank[g.n + t * d + k])
            s.released[last * copied] += size * copied
            s.left[t] = max(s.left[t], (arrived + 1) * copied - 1)
            if transfers is None:
                s.copied[arrived * copied] += size * copied
    for t in range(g.tensors):
        producer = g.tensor_op[t]
        at_home = max(s.last[t * d + c.placement[producer]], np.int64(s.rank[producer]))
        released = memory.size[t] * np.int64(memory.keep[t] == 0)
        if transfers is not None:
            s.released[max(at_home, s.left[t])] += released
        elif s.left[t] < at_home:
            s.released[at_home] += released
        elif released > 0:
            s.next_at_home[t] = s.released_at_home[s.left[t]]
            s.released_at_home[s.left[t]] = t + 1


@compiled
def peaks(m, g, memory, c, transfers, s):
    """Sums up allocations and releases over the events in order."""
    _first_and_last_reads(g, c, transfers, s)
    _releases(m, g, memory, c, transfers, s)
    for k in range(g.d):
        s.held[k], s.peak[k] = 0, 0
    # Residents count in the peak of the first event on their device; a device with residents has an event.
    for t in range(g.tensors):
        s.held[c.placement[g.tensor_op[t]]] += memory.size[t] * np.int64(memory.resident[t])
    for p in range(m):
        event = s.taken[p]
        row = (event >> (2 * PLACE_BITS)) & ROW
        source, k = (event >> PLACE_BITS) & PLACE, event & PLACE
        held = s.held[k] + memory.made[2 * row] + (s.copied[p] if transfers is None else 0)
        s.peak[k] = max(s.peak[k], held + memory.made[2 * row + 1])
        s.held[k] = held
        s.held[source] -= s.released[p]
        if transfers is None:
            t = s.released_at_home[p]
            while t > 0:
                s.held[c.placement[g.tensor_op[t - 1]]] -= memory.size[t - 1]
                t = s.next_at_home[t - 1]
