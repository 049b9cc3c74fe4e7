"""The loops of approximate DP: compiled where Numba is, plain Python over lists where it is not."""

from collections import namedtuple
from typing import Any, Final

from regal_jax.runtime.compiling import only_borrows, part

__all__ = ["BITS", "Beam", "Ops", "Picks", "children", "collect", "held_after", "rising"]

BITS: Final = 62
"""Ops in a word of a set: an int64 that is never negative."""

Ops = namedtuple("Ops", "word mask code")
"""Place of each op in sets: ``[N]`` word and mask, and a random ``code`` of up to 62 bits.

The code of a set is the exclusive or of its ops' codes.
"""

Beam = namedtuple("Beam", "held peak code bounds ready words first width")
"""``B`` partial orders of one length, ascending by peak.

Attributes:
  held, peak: ``[B]`` bytes, held after the last op, and the peak so far.
  code: ``[B]``, code of the set.
  bounds, ready: ``[B + 1]``, ``[R]``, the ready ops of each, ascending.
  words: ``[B * width]``, the sets. All ops of words before ``first`` have run, none of the words after these.
  first, width: The first word that is stored, and how many are.
"""

Picks = namedtuple("Picks", "parent op peak code held")
"""``[C]`` each, partial orders of the next length: parent, op, and the resulting state."""


@only_borrows
def rising(beam: Any, need: Any, value: Any, parent: Any, place: Any) -> int:
    """Finds the extensions that raise the peak, in the order of the beam; returns how many.

    Sets ``value``, ``parent`` and ``place`` (``[R]``): the peak, the partial order, the place in ``ready``.
    """
    count = 0
    for i in range(len(beam.held)):
        room = beam.peak[i] - beam.held[i]
        for j in range(beam.bounds[i], beam.bounds[i + 1]):
            if need[beam.ready[j]] > room:
                value[count] = beam.held[i] + need[beam.ready[j]]
                parent[count] = i
                place[count] = j
                count += 1
    return count


@only_borrows
def _same(ops: Any, beam: Any, i: int, o: int, k: int, v: int) -> bool:
    """Whether set ``i`` with op ``o`` equals set ``k`` with op ``v``."""
    a, b = i * beam.width, k * beam.width
    here, there = ops.word[o] - beam.first, ops.word[v] - beam.first
    for j in range(beam.width):
        one, other = beam.words[a + j], beam.words[b + j]
        if j == here:
            one |= ops.mask[o]
        if j == there:
            other |= ops.mask[v]
        if one != other:
            return False
    return True


_is_same = part(_same)


@only_borrows
def _found(ops: Any, beam: Any, table: Any, picks: Any, count: int, i: int, o: int) -> bool:
    """Whether set ``i`` with op ``o`` is new; if so it is recorded as pick ``count``."""
    code = beam.code[i] ^ ops.code[o]
    last = len(table) - 1
    slot = code & last
    # A slot holds the number of a pick in its low bits, and above them as many bits of the code as fit.
    while table[slot] >= 0:
        if (table[slot] ^ code) <= last:
            k = table[slot] & last
            if _is_same(ops, beam, i, o, picks.parent[k], picks.op[k]):
                return False
        slot = (slot + 1) & last
    table[slot] = (code - (code & last)) | count
    picks.parent[count], picks.op[count], picks.code[count] = i, o, code
    return True


_is_found = part(_found)


@only_borrows
def collect(
    ops: Any, beam: Any, need: Any, value: Any, parent: Any, place: Any, limit: int, rest: bool,
    state: Any, table: Any, picks: Any, most: int, ties: bool,
) -> bool:  # fmt: skip
    """Takes extensions by ascending peak, each set once, until there are enough.

    Args:
      ops, beam: The places of ops in sets, and the beam; only read.
      need: ``[N]``, what each op allocates.
      value, parent, place: ``[M]``, extensions that raise the peak, ascending by it, then as in the beam.
      limit: Highest peak among them.
      rest: Whether there are no more of them.
      state: ``[2]``, the next partial order of the beam, and the number of sets taken; updated.
      table: ``[2**k]``, a hash table of the sets taken, more than twice as long; -1 in free slots.
      picks: Set to the extensions taken.
      most: Number of sets that are enough.
      ties: Also take all that have the same peak as the last of these.

    Returns:
      Whether there are enough.
    """
    count, i, r, passed = state[1], state[0], 0, False
    while i < len(beam.held) or r < len(value):
        if i < len(beam.held) and (r == len(value) or beam.peak[i] < value[r]):
            if not rest and beam.peak[i] > limit:
                break
            room, peak = beam.peak[i] - beam.held[i], beam.peak[i]
            if count >= most and not (ties and peak == picks.peak[most - 1]):
                break
            for j in range(beam.bounds[i], beam.bounds[i + 1]):
                o = beam.ready[j]
                if need[o] <= room:
                    if count >= most and not ties:
                        passed = True
                    elif _is_found(ops, beam, table, picks, count, i, o):
                        picks.peak[count] = peak
                        count += 1
            i += 1
        else:
            if count >= most and not (ties and value[r] == picks.peak[most - 1]):
                break
            o = beam.ready[place[r]]
            if _is_found(ops, beam, table, picks, count, parent[r], o):
                picks.peak[count] = value[r]
                count += 1
            r += 1
    state[0], state[1] = i, count
    # A stop before the end of both lists means enough sets, unless the next values are still to come.
    return count >= most and (passed or i < len(beam.held) or r < len(value))


@only_borrows
def _freed(costs: Any, ops: Any, beam: Any, i: int, o: int) -> int:
    """Bytes of the inputs of ``o`` whose last reader it is after set ``i``."""
    total = 0
    base = i * beam.width - beam.first
    for e in range(costs.input_rows[o], costs.input_rows[o + 1]):
        last, t = True, costs.input_tensor[e]
        for k in range(costs.reader_rows[t], costs.reader_rows[t + 1]):
            v = costs.reader[k]
            word = ops.word[v]
            if (v != o and word >= beam.first) and (
                word >= beam.first + beam.width or beam.words[base + word] & ops.mask[v] == 0
            ):
                last = False
                break
        if last:
            total += costs.input_size[e]
    return total


_are_freed = part(_freed)


@only_borrows
def held_after(costs: Any, ops: Any, beam: Any, picks: Any, count: int) -> None:
    """Sets ``held`` of the first ``count`` picks."""
    for c in range(count):
        i, o = picks.parent[c], picks.op[c]
        picks.held[c] = beam.held[i] + costs.kept[o] - _are_freed(costs, ops, beam, i, o)


@only_borrows
def children(
    costs: Any, ops: Any, beam: Any, picks: Any, bounds: Any, ready: Any, words: Any, first: int, width: int,
    all_run: Any, any_run: Any,
) -> None:  # fmt: skip
    """Sets ``bounds``, ``ready`` and ``words`` of the partial orders that were picked.

    ``all_run`` and ``any_run`` (``[width]``) are set to the ops of each word that have run in all of them,
    and to those that have run or are ready in any.
    """
    for j in range(width):
        all_run[j], any_run[j] = -1, 0
    bounds[0] = 0
    end = 0
    for c in range(len(picks.op)):
        i, taken = picks.parent[c], picks.op[c]
        base, old = c * width, i * beam.width + first - beam.first
        for j in range(width):
            inside = 0 <= first + j - beam.first < beam.width
            words[base + j] = beam.words[old + j] if inside else 0
        words[base + ops.word[taken] - first] |= ops.mask[taken]
        for j in range(width):
            all_run[j] &= words[base + j]
            any_run[j] |= words[base + j]
        begin = end
        for j in range(beam.bounds[i], beam.bounds[i + 1]):
            o = beam.ready[j]
            if o != taken:
                ready[end] = o
                end += 1
        for j in range(costs.after_rows[taken], costs.after_rows[taken + 1]):
            v = costs.after[j]
            able = True
            for k in range(costs.before_rows[v], costs.before_rows[v + 1]):
                u = costs.before[k]
                if ops.word[u] >= first and (
                    ops.word[u] >= first + width or words[base + ops.word[u] - first] & ops.mask[u] == 0
                ):
                    able = False
                    break
            if able:
                # Insertion from the end: successors are few and mostly belong at the end.
                slot = end
                while slot > begin and ready[slot - 1] > v:
                    ready[slot] = ready[slot - 1]
                    slot -= 1
                ready[slot] = v
                end += 1
                any_run[ops.word[v] - first] |= ops.mask[v]
        bounds[c + 1] = end
