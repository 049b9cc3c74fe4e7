"""Data of the kernel of schedule generation, besides those of `host_layout`."""

# Pyright does not understand Numba's code: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false

from collections import namedtuple
from typing import Final

import numpy as np

from regal_jax.simulate import host_layout
from regal_jax.simulate.host_call import operand, pointer
from regal_jax.simulate.host_layout import PLACE_BITS, compiled

__all__ = [
    "BEHIND",
    "CAPACITY",
    "EARLY",
    "OPERANDS",
    "PEAKS",
    "PRICE",
    "TEMP",
    "URGENCY",
    "WASTE",
    "extra_words",
    "make_extra",
    "order_events",
]

OPERANDS: Final = (
    *host_layout.OPERANDS[:14],
    "urgency",
    "price",
    "early",
    "waste",
    "behind",
    "allowed",
    "leader",
    "capacity",
    "peaks",
)
"""Operands of the custom call; its results are those of the simulator, and the placement.

``peaks`` is ``[1]`` int32, whether the objective is peak memory.
"""
URGENCY, PRICE, EARLY, WASTE, BEHIND, _ALLOWED, _LEADER, CAPACITY, PEAKS = range(14, 23)
TEMP: Final = 13

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
def extra_words(g):
    """Four-byte words of `_Extra`."""
    return 7 * g.n + 1 + 2 * g.e + g.t * g.d + g.d * g.d + g.d + 2 * (g.n + g.t * g.d) + 2


@compiled
def make_extra(frame, i, g, at):
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
def order_events(slots, g, c, transfers, s, x):
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
