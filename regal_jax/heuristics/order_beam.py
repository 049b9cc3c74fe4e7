"""The loops of `OrderSearchRun`: beams of partial orders that stay under a limit, forwards or backwards.

The memory held after some ops have run depends only on their set. Under a limit nothing else matters: partial
orders of one length are compared by what they hold, and those that reach the limit are dropped. Backwards an
op allocates those of its inputs that no other op taken so far reads, and frees its outputs.
"""

import math
from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.order_costs import space
from regal_jax.runtime.compiling import only_borrows, part

__all__ = ["Field", "Front", "Progress", "Start", "Work", "advance", "make_front", "make_work", "widened"]

_KEPT: Final = 4
"""Extensions that are kept for each partial order of a beam, before sets are compared."""
_SHIFT: Final = 32
"""Bits of the place of an extension in its number."""
_SHORT: Final = 12
"""Number of items up to which a range is sorted by insertion."""
_STACK: Final = 128
"""Space for the bounds of ranges that wait to be sorted: of two ranges the longer waits, so 64 are enough."""

Field = namedtuple(
    "Field",
    "need kept after_rows after before_rows before input_rows input_size input_tensor reader_rows reader "
    "word mask code back",
)
"""A graph as `regal_jax.heuristics.order_costs.OrderCosts`, in the direction of the beam; the places of ops
in sets, as `regal_jax.heuristics.beam_kernel.Ops`; ``back``: whether the beam goes backwards."""

Start = namedtuple("Start", "held ready gain words")
"""The empty partial order: the bytes held, and ``ready``, ``gain`` and ``words`` as in `Front`."""

Front = namedtuple("Front", "held score code bounds ready gain words")
"""Space for up to ``B`` partial orders of one length and, in the other half, for those of the next.

Attributes:
  held: ``[2 * B]`` bytes.
  score: ``[2 * B]`` float, what their ops add to bytes where they are compared.
  code: ``[2 * B]``, code of the set.
  bounds: ``[2 * (B + 1)]``, bounds of each in ``ready``.
  ready, gain: ``[2 * R]``, the ready ops of each, and the bytes by which the memory held grows once they have
    run.
  words: ``[2 * B * W]``, the sets.
"""

Work = namedtuple("Work", "value number picked table stack place")
"""Space for the extensions of a beam.

Attributes:
  value: Cost that each is compared by.
  number: The number of its parent, and in the low bits its place among the ready ops.
  picked: ``[B]``, the numbers of those that were chosen.
  table: A hash table of the sets that were chosen.
  stack: Bounds of ranges that wait to be sorted.
  place: ``[N]``, where in `Front.ready` each op is, if it is ready.
"""

Progress = namedtuple("Progress", "level count half dropped crowded made")
"""Places in the last argument of `advance`.

Attributes:
  level: Length of the partial orders.
  count: Number of partial orders.
  half: The half of the space that they are in.
  dropped: 1 if any were dropped because they exceeded the width.
  crowded: 1 if there is not enough space for the ready ops of the next length.
  made: Number of partial orders made in the last call.
"""
_LEVEL, _COUNT, _HALF, _DROPPED, _CROWDED, _MADE = range(len(Progress._fields))


def make_front(start: Start, width: int, room: int) -> Front:
    """Space for ``width`` partial orders with ``room`` ready ops in all; the first is the empty one."""
    ready, words = len(start.ready), len(start.words)
    front = Front(
        space(2 * width), space(2 * width, np.float64), space(2 * width), space(2 * width + 2),
        space(2 * room), space(2 * room), space(2 * width * words),
    )  # fmt: skip
    front.held[0], front.score[0], front.code[0] = start.held, 0.0, 0
    front.bounds[0], front.bounds[1] = 0, ready
    front.ready[:ready], front.gain[:ready], front.words[:words] = start.ready, start.gain, start.words
    return front


def widened(front: Front, half: int) -> Front:
    """A front with twice the space for ready ops; only the ``half`` in use is copied."""
    room = len(front.ready) // 2
    ready, gain = space(4 * room), space(4 * room)
    for more, old in ((ready, front.ready), (gain, front.gain)):
        more[2 * half * room : (2 * half + 1) * room] = old[half * room : (half + 1) * room]
    return front._replace(ready=ready, gain=gain)


def make_work(count: int, width: int) -> Work:
    """Space for a beam of a graph of ``count`` ops."""
    most = 2 * (_KEPT * width + 1) + count
    size = 1 << (2 * width + 1).bit_length()
    return Work(space(most, np.float64), space(most), space(width), space(size), space(_STACK), space(count))


@only_borrows
def advance(
    field: Any, front: Any, work: Any, score: Any, limit: int, width: int, most: int, parent: Any, op: Any,
    progress: Any,
) -> None:  # fmt: skip
    """Extends the beam, length by length, until no partial order is left or its orders are complete.

    Of the extensions below the limit those of least cost are taken, each set once; on ties the first ones.
    A code represents a set: if two sets had the same code, a partial order would be lost. An op that stays
    below the limit and does not increase the memory held can run first without loss, so the partial order has
    no other extension.

    Args:
      field: The graph.
      front: The partial orders.
      work: Space for extensions.
      score: ``[N]``, what an op adds to the bytes by which sets are compared.
      limit: Bytes that all peaks stay below.
      width: ``B``, the largest number of partial orders of a length.
      most: Number of partial orders that may be made.
      parent, op: ``[N * B]``, set to the parent and the last op of each partial order, by length.
      progress: ``[6]``, see `Progress`; updated.
    """
    (
        need, kept, after_rows, after, before_rows, before, input_rows, input_size, input_tensor, reader_rows,
        reader, word, mask, op_code, back,
    ) = field  # fmt: skip
    held, total, code, bounds, ready, gain, words = front
    value, number, picked, table, stack, place = work
    ops, room, size = len(need), len(ready) // 2, len(words) // (2 * width)
    enough = _KEPT * width + 1
    level, count, half, made = progress[_LEVEL], progress[_COUNT], progress[_HALF], 0
    progress[_CROWDED] = 0
    while level < ops and count > 0 and made + width <= most:
        old, old_bounds, old_ready, old_words = (
            half * width, half * (width + 1), half * room, half * width * size,
        )  # fmt: skip
        new, new_bounds, new_ready, new_words = (
            width - old, width + 1 - old_bounds, room - old_ready, width * size - old_words,
        )  # fmt: skip

        # The extensions below the limit, without those that are known to cost more than enough others.
        found, seen, bar = 0, 0, math.inf
        for i in range(count):
            first, now, so_far = found, held[old + i], total[old + i]
            for j in range(bounds[old_bounds + i], bounds[old_bounds + i + 1]):
                o, grows = ready[old_ready + j], gain[old_ready + j]
                peak = now + need[o]
                if back:
                    peak += grows
                if peak < limit:
                    if grows <= 0:
                        seen -= found - first
                        found = first
                    cost = now + grows + (so_far + score[o])
                    seen += 1
                    if cost < bar:
                        value[found], number[found] = cost, (i << _SHIFT) | j
                        found += 1
                    if grows <= 0:
                        break
            if found > 2 * enough:
                _select(value, number, 0, found, enough)
                found, bar = enough, value[0]
                for c in range(1, found):
                    bar = max(bar, value[c])
        if seen > _KEPT * width:
            progress[_DROPPED] = 1

        # The first ones whose sets differ.
        slots = 1
        while slots < 2 * min(found, width) + 2:
            slots *= 2
        for slot in range(slots):
            table[slot] = -1
        chosen, done, last = 0, 0, min(found, enough)
        while chosen < width and done < last:
            begin, lacking = done, width - chosen
            done = min(last, done + lacking + lacking // 8 + 16)
            if done < found:
                _select(value, number, begin, found, done - begin)
            _sort(value, number, begin, done, stack)
            for c in range(begin, done):
                if chosen == width:
                    break
                i = number[c] >> _SHIFT
                j = number[c] & ((1 << _SHIFT) - 1)
                o = ready[old_ready + j]
                this = code[old + i] ^ op_code[o]
                slot = this & (slots - 1)
                while table[slot] >= 0 and code[new + table[slot]] != this:
                    slot = (slot + 1) & (slots - 1)
                if table[slot] < 0:
                    table[slot], code[new + chosen], picked[chosen] = chosen, this, number[c]
                    parent[level * width + chosen], op[level * width + chosen] = i, o
                    chosen += 1
        if chosen == width and found > width:
            progress[_DROPPED] = 1

        # The partial orders that they make.
        end = 0
        bounds[new_bounds] = 0
        for c in range(chosen):
            i = picked[c] >> _SHIFT
            j = picked[c] & ((1 << _SHIFT) - 1)
            o = ready[old_ready + j]
            begin, first, last = end, bounds[old_bounds + i], bounds[old_bounds + i + 1]
            if end + (last - first) + (after_rows[o + 1] - after_rows[o]) > room:
                progress[_CROWDED] = 1
                break
            source, base = old_words + i * size, new_words + c * size
            for k in range(size):
                words[base + k] = words[source + k]
            words[base + word[o]] |= mask[o]
            held[new + c], total[new + c] = held[old + i] + gain[old_ready + j], total[old + i] + score[o]
            for k in range(first, j):
                ready[new_ready + end], gain[new_ready + end] = ready[old_ready + k], gain[old_ready + k]
                end += 1
            for k in range(j + 1, last):
                ready[new_ready + end], gain[new_ready + end] = ready[old_ready + k], gain[old_ready + k]
                end += 1

            # Ready ops that may free an input now, or that need not allocate one any more.
            known = False
            for e in range(input_rows[o], input_rows[o + 1]):
                # Forwards the last reader that is left will free the input. Backwards the first one that runs
                # allocates it, for all others.
                left, unchanged, t = -1, False, input_tensor[e]
                for k in range(reader_rows[t], reader_rows[t + 1]):
                    v = reader[k]
                    if v != o and (words[base + word[v]] & mask[v] != 0) == back:
                        unchanged = back or left >= 0
                        left = v
                        if unchanged:
                            break
                if unchanged:
                    continue
                if back:
                    if not known:
                        for at in range(new_ready + begin, new_ready + end):
                            place[ready[at]] = at
                        known = True
                    for k in range(reader_rows[t], reader_rows[t + 1]):
                        at = place[reader[k]]
                        if new_ready + begin <= at < new_ready + end and ready[at] == reader[k]:
                            gain[at] -= input_size[e]
                elif left >= 0:
                    for at in range(new_ready + begin, new_ready + end):
                        if ready[at] == left:
                            gain[at] -= input_size[e]
                            break

            # Ops that have become ready.
            for k in range(after_rows[o], after_rows[o + 1]):
                v = after[k]
                able = True
                for e in range(before_rows[v], before_rows[v + 1]):
                    if words[base + word[before[e]]] & mask[before[e]] == 0:
                        able = False
                        break
                if not able:
                    continue
                grows = -kept[v] if back else kept[v]
                for e in range(input_rows[v], input_rows[v + 1]):
                    alone, t = True, input_tensor[e]
                    for at in range(reader_rows[t], reader_rows[t + 1]):
                        other = reader[at]
                        if other != v and (words[base + word[other]] & mask[other] != 0) == back:
                            alone = False
                            break
                    if alone:
                        grows += input_size[e] if back else -input_size[e]
                ready[new_ready + end], gain[new_ready + end] = v, grows
                end += 1
            bounds[new_bounds + c + 1] = end
        if progress[_CROWDED]:
            break
        level, count, half, made = level + 1, chosen, 1 - half, made + chosen
    progress[_LEVEL], progress[_COUNT], progress[_HALF], progress[_MADE] = level, count, half, made


@only_borrows
def _split(value: Any, number: Any, begin: int, end: int) -> int:
    """Moves items that are less than one of them, the pivot, before it, and the others behind it.

    Items are compared by value, then by number. Returns the place of the pivot. At least two items are given.
    """
    middle, last = (begin + end) // 2, end - 1
    # The median of three items is the pivot; it comes last.
    if _is_less(value, number, last, begin):
        _swap(value, number, begin, last)
    if _is_less(value, number, middle, begin):
        _swap(value, number, begin, middle)
    if _is_less(value, number, middle, last):
        _swap(value, number, middle, last)
    pivot, rank, place = value[last], number[last], begin
    for i in range(begin, last):
        this, its = value[i], number[i]
        value[i], number[i] = value[place], number[place]
        value[place], number[place] = this, its
        # Without a branch: which way it goes cannot be predicted.
        place += int(this < pivot) | (int(this == pivot) & int(its < rank))
    _swap(value, number, place, last)
    return place


@only_borrows
def _less(value: Any, number: Any, i: int, j: int) -> bool:
    return value[i] < value[j] or (value[i] == value[j] and number[i] < number[j])


_is_less = part(_less)


@only_borrows
def _exchange(value: Any, number: Any, i: int, j: int) -> None:
    value[i], value[j] = value[j], value[i]
    number[i], number[j] = number[j], number[i]


_swap = part(_exchange)
_pivot = part(_split)


@only_borrows
def _least(value: Any, number: Any, begin: int, end: int, count: int) -> None:
    """Moves the ``count`` least of the items from ``begin`` to ``end`` to the front, in any order."""
    target = begin + count
    while begin < target < end:
        place = _pivot(value, number, begin, end)
        if target <= place:
            end = place
        else:
            begin = place + 1


_select = part(_least)


@only_borrows
def _sorted(value: Any, number: Any, begin: int, end: int, stack: Any) -> None:
    """Sorts the items from ``begin`` to ``end`` by value, then by number."""
    depth = 0
    while True:
        while end - begin > _SHORT:
            place = _pivot(value, number, begin, end)
            if place - begin > end - place:
                stack[depth], stack[depth + 1], begin = begin, place, place + 1
            else:
                stack[depth], stack[depth + 1], end = place + 1, end, place
            depth += 2
        for i in range(begin + 1, end):
            this, rank, j = value[i], number[i], i
            while j > begin and (value[j - 1] > this or (value[j - 1] == this and number[j - 1] > rank)):
                value[j], number[j] = value[j - 1], number[j - 1]
                j -= 1
            value[j], number[j] = this, rank
        if depth == 0:
            return
        depth -= 2
        begin, end = stack[depth], stack[depth + 1]


_sort = part(_sorted)
