"""The loops of depth-first DP: compiled where Numba is, plain Python over lists where it is not."""

from collections import namedtuple
from typing import Any, Final

from regal_jax.runtime.compiling import only_borrows, part

__all__ = ["ALL_SEEN", "READY_FULL", "SETS_FULL", "SPENT", "Known", "Walk", "go_on", "rehash"]

SPENT: Final = 0
ALL_SEEN: Final = 1
READY_FULL: Final = 2
SETS_FULL: Final = 3
_FACTOR: Final = 48271
"""Constants of the random numbers of Park and Miller 1988, Communications of the ACM 31(10)."""
_MODULUS: Final = 2**31 - 1

Walk = namedtuple("Walk", "now path held peak bounds cursor left waiting words best")
"""State of the walk, at the end of a partial order of ``L`` ops that begins with the residents.

Attributes:
  now: ``[7]``: ``L``; the lowest peak of a whole order; the random state; the number of known sets; the code
    of the set; the number of partial orders visited; the number of residents.
  path: ``[N]``, the partial order.
  held, peak: ``[N + 1]`` bytes, held after each op of it, and the peak so far.
  bounds, cursor: ``[N + 2]``, ``[N + 1]``, for each length where the ready ops begin, and the next to try.
  left: ``[T]``, number of readers of each tensor that have not run.
  waiting: ``[N]``, number of predecessors of each op that have not run.
  words: ``[W]``, the set.
  best: ``[N]``, the best whole order.
"""

Known = namedtuple("Known", "table words peak code")
"""Sets that were reached.

Attributes:
  table: ``[2**k]``, hash table of the numbers of sets, more than twice as long; -1 in free slots.
  words, peak, code: ``[S * W]``, ``[S]``, ``[S]``, of each set.
"""


@only_borrows
def rehash(known: Any, count: int) -> None:
    """Fills an empty table with the first ``count`` sets."""
    last = len(known.table) - 1
    for k in range(count):
        slot = known.code[k] & last
        while known.table[slot] >= 0:
            slot = (slot + 1) & last
        known.table[slot] = (known.code[k] - (known.code[k] & last)) | k


@only_borrows
def _improved(known: Any, words: Any, code: int, value: int, count: int, store: bool) -> int:
    """Records that the set was reached with the peak ``value``.

    Returns:
      0 if it was reached before with a peak no higher, 1 if only with a higher one, 2 if it is new.
    """
    last, width = len(known.table) - 1, len(words)
    slot = code & last
    while known.table[slot] >= 0:
        if (known.table[slot] ^ code) <= last:
            k = known.table[slot] & last
            same = True
            for j in range(width):
                if known.words[k * width + j] != words[j]:
                    same = False
                    break
            if same:
                if known.peak[k] <= value:
                    return 0
                known.peak[k] = value
                return 1
        slot = (slot + 1) & last
    if store:
        known.table[slot] = (code - (code & last)) | count
        known.peak[count], known.code[count] = value, code
        for j in range(width):
            known.words[count * width + j] = words[j]
    return 2


_is_improved = part(_improved)


@only_borrows
def go_on(costs: Any, ops: Any, at: Any, known: Any, ready: Any, steps: int, last_sets: bool) -> int:
    """Continues the walk, depth first.

    Args:
      costs, ops: The graph.
      at: State of the walk; written to.
      known: Sets that were reached; written to.
      ready: Space for the ready ops of all lengths.
      steps: Number of partial orders to visit.
      last_sets: Whether the space for sets may not grow; then further sets are not recorded.

    Returns:
      Why it stopped: the steps are `SPENT`; `ALL_SEEN`; ``ready`` or the space for sets is full.
    """
    now, words, n = at.now, at.words, len(at.path)
    length, least, random, sets, code, first = now[0], now[1], now[2], now[3], now[4], now[6]
    why = SPENT
    seen = 0
    while seen < steps:
        if at.cursor[length] == at.bounds[length + 1]:
            if length == first:
                why = ALL_SEEN
                break
            length -= 1
            o = at.path[length]
            words[ops.word[o]] ^= ops.mask[o]
            code ^= ops.code[o]
            for j in range(costs.input_rows[o], costs.input_rows[o + 1]):
                at.left[costs.input_tensor[j]] += 1
            for j in range(costs.after_rows[o], costs.after_rows[o + 1]):
                at.waiting[costs.after[j]] += 1
            continue
        begin, cursor, end = at.bounds[length], at.cursor[length], at.bounds[length + 1]
        if sets >= len(known.peak) and not last_sets:
            why = SETS_FULL
            break
        if end + end - begin + n > len(ready):
            why = READY_FULL
            break
        random = random * _FACTOR % _MODULUS
        chosen = cursor + random % (end - cursor)
        o = ready[chosen]
        ready[chosen] = ready[cursor]
        ready[cursor] = o
        at.cursor[length] = cursor + 1
        seen += 1
        value = max(at.peak[length], at.held[length] + costs.need[o])
        if value >= least:
            continue
        words[ops.word[o]] ^= ops.mask[o]
        code ^= ops.code[o]
        reached = _is_improved(known, words, code, value, sets, sets < len(known.peak))
        if reached == 0:
            words[ops.word[o]] ^= ops.mask[o]
            code ^= ops.code[o]
            continue
        if reached == 2 and sets < len(known.peak):
            sets += 1
        held = at.held[length] + costs.kept[o]
        for j in range(costs.input_rows[o], costs.input_rows[o + 1]):
            t = costs.input_tensor[j]
            at.left[t] -= 1
            if at.left[t] == 0:
                held -= costs.input_size[j]
        top = end
        for j in range(begin, end):
            if j != cursor:
                ready[top] = ready[j]
                top += 1
        for j in range(costs.after_rows[o], costs.after_rows[o + 1]):
            v = costs.after[j]
            at.waiting[v] -= 1
            if at.waiting[v] == 0:
                ready[top] = v
                top += 1
        at.path[length] = o
        length += 1
        at.held[length], at.peak[length] = held, value
        at.cursor[length], at.bounds[length + 1] = end, top
        if length == n:
            least = value
            for j in range(n):
                at.best[j] = at.path[j]
    now[0], now[1], now[2], now[3], now[4] = length, least, random, sets, code
    now[5] += seen
    return why
