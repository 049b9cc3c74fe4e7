"""The loops of `OrderSearchRun`: beams of partial orders that stay under a limit, forwards or backwards.

The memory held after some ops have run depends only on their set. Under a limit nothing else matters: partial
orders of one length are compared by what they hold, and those that reach the limit are dropped. Backwards an
op allocates those of its inputs that no other op taken so far reads, and frees its outputs.
"""

from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.runtime.compiling import part

__all__ = ["Field", "Front", "advance"]

Field = namedtuple(
    "Field",
    "need kept after_rows after before_rows before input_rows input_size other_rows other "
    "word mask code back",
)
"""A graph as `regal_jax.heuristics.order_costs.OrderCosts`, in the direction of the beam; the places of ops
in sets, as `regal_jax.heuristics.beam_kernel.Ops`; ``back``: whether the beam goes backwards."""

Front = namedtuple("Front", "held score code bounds ready gain words")
"""``B`` partial orders of one length.

Attributes:
  held: ``[B]`` bytes.
  score: ``[B]`` float, what their ops add to bytes where they are compared.
  code: ``[B]``, code of the set.
  bounds, ready, gain: ``[B + 1]``, ``[R]``, ``[R]``, the ready ops of each, and the bytes by which the memory
    held grows once they have run.
  words: ``[B * W]``, the sets.
"""


def advance(
    field: Any, front: Any, score: Any, limit: int, width: int, level: int, most: int, parent: Any, op: Any,
    counts: Any,
) -> Any:  # fmt: skip
    """Extends the beam, length by length.

    Args:
      field: The graph.
      front: Partial orders of one length.
      score: ``[N]``, what an op adds to the bytes by which sets are compared.
      limit: Bytes that all peaks stay below.
      width: Largest number of partial orders of a length.
      level: Length of the partial orders.
      most: Number of partial orders that may be made.
      parent, op: ``[N * width]``, set to the parent and the last op of each partial order, by length.
      counts: ``[3]``, set to the length at the end, to the number of partial orders made, and to 1 if any
        were dropped because they exceeded the width.

    Returns:
      The partial orders at the end; none if the limit left none.
    """
    counts[1] = 0
    while level < len(field.need) and len(front.held) > 0 and counts[1] + width <= most:
        value, whose, place = _find(field, front, score, limit)
        if len(value) > 4 * width:
            counts[2] = 1
            least = np.flatnonzero(value <= np.partition(value, 4 * width)[4 * width])
            value, whose, place = value[least], whose[least], place[least]
        best = np.argsort(value, kind="mergesort")
        begin = level * width
        made, code = _take(field, front, whose, place, best, width, parent, op, begin)
        if made == width and len(best) > width:
            counts[2] = 1
        front = _extended(field, front, score, code, parent[begin : begin + made], op[begin : begin + made])
        counts[1] += made
        level += 1
    counts[0] = level
    return front


def _candidates(field: Any, front: Any, score: Any, limit: int) -> Any:
    """Extensions below the limit: cost that they are compared by, parent, place in ``ready``.

    An op that stays below the limit and does not increase the memory held can run first without loss.
    """
    value = np.empty(len(front.ready), np.float64)
    whose, place = np.empty(len(front.ready), np.int64), np.empty(len(front.ready), np.int64)
    count = 0
    for i in range(len(front.held)):
        first = count
        for j in range(front.bounds[i], front.bounds[i + 1]):
            o, gain = front.ready[j], front.gain[j]
            peak = front.held[i] + field.need[o]
            if field.back:
                peak += gain
            if peak < limit:
                if gain <= 0:
                    count = first
                value[count] = front.held[i] + gain + (front.score[i] + score[o])
                whose[count], place[count] = i, j
                count += 1
                if gain <= 0:
                    break
    return value[:count], whose[:count], place[:count]


_find = part(_candidates)


def _chosen(
    field: Any, front: Any, whose: Any, place: Any, best: Any, width: int, parent: Any, op: Any, begin: int
) -> Any:
    """Takes extensions in the order ``best``, each set once; returns how many, and the codes of the sets.

    A code represents its set: if two sets had the same code, a partial order would be lost.
    """
    size = 1
    while size < 2 * min(len(best), width) + 2:
        size *= 2
    table = np.full(size, -1, np.int64)
    code = np.empty(min(len(best), width), np.int64)
    count = 0
    for c in best:
        if count == width:
            break
        i, o = whose[c], front.ready[place[c]]
        this = front.code[i] ^ field.code[o]
        slot = this & (size - 1)
        while table[slot] >= 0 and code[table[slot]] != this:
            slot = (slot + 1) & (size - 1)
        if table[slot] < 0:
            table[slot], code[count] = count, this
            parent[begin + count], op[begin + count] = i, o
            count += 1
    return count, code[:count]


_take = part(_chosen)


def _has(field: Any, words: Any, base: int, o: int) -> bool:
    return words[base + field.word[o]] & field.mask[o] != 0


_is_in = part(_has)


def _own_gain(field: Any, words: Any, base: int, o: int) -> int:
    """Bytes by which the memory held grows when ``o`` runs after the set at ``base``."""
    total = -field.kept[o] if field.back else field.kept[o]
    for e in range(field.input_rows[o], field.input_rows[o + 1]):
        alone = True
        for k in range(field.other_rows[e], field.other_rows[e + 1]):
            if _is_in(field, words, base, field.other[k]) == field.back:
                alone = False
                break
        if alone:
            total += field.input_size[e] if field.back else -field.input_size[e]
    return total


_gain_of = part(_own_gain)


def _changed(field: Any, words: Any, base: int, e: int) -> int:
    """The op whose gain changes when the reader of input ``e`` runs; -1 for none, -2 for all others."""
    found = -1
    for k in range(field.other_rows[e], field.other_rows[e + 1]):
        v = field.other[k]
        if field.back:
            if _is_in(field, words, base, v):
                return -1
            found = -2
        elif not _is_in(field, words, base, v):
            if found >= 0:
                return -1
            found = v
    return found


_who_changes = part(_changed)


def _children(field: Any, front: Any, score: Any, code: Any, parent: Any, op: Any) -> Any:
    """The partial orders that were chosen."""
    count, old = len(op), len(front.held)
    width = len(front.words) // old
    room = 0
    for c in range(count):
        i, o = parent[c], op[c]
        room += front.bounds[i + 1] - front.bounds[i] - 1 + field.after_rows[o + 1] - field.after_rows[o]
    held, total, bounds = (
        np.empty(count, np.int64),
        np.empty(count, np.float64),
        np.zeros(count + 1, np.int64),
    )
    ready, gain, words = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(count * width, np.int64)
    end = 0
    for c in range(count):
        i, o, base, begin = parent[c], op[c], c * width, end
        for j in range(width):
            words[base + j] = front.words[i * width + j]
        words[base + field.word[o]] |= field.mask[o]
        for j in range(front.bounds[i], front.bounds[i + 1]):
            if front.ready[j] == o:
                held[c] = front.held[i] + front.gain[j]
            else:
                ready[end], gain[end] = front.ready[j], front.gain[j]
                end += 1
        for e in range(field.input_rows[o], field.input_rows[o + 1]):
            who = _who_changes(field, words, base, e)
            if who >= 0:
                for j in range(begin, end):
                    if ready[j] == who:
                        gain[j] -= field.input_size[e]
            elif who == -2:
                for k in range(field.other_rows[e], field.other_rows[e + 1]):
                    for j in range(begin, end):
                        if ready[j] == field.other[k]:
                            gain[j] -= field.input_size[e]
        for k in range(field.after_rows[o], field.after_rows[o + 1]):
            v = field.after[k]
            able = True
            for j in range(field.before_rows[v], field.before_rows[v + 1]):
                if not _is_in(field, words, base, field.before[j]):
                    able = False
                    break
            if able:
                ready[end], gain[end] = v, _gain_of(field, words, base, v)
                end += 1
        total[c] = front.score[i] + score[o]
        bounds[c + 1] = end
    return Front(held, total, code, bounds, ready[:end], gain[:end], words)


_extended = part(_children)
