"""Dynamic programming over sets of ops, for the order of the lowest peak memory on one device.

The memory held after some ops have run depends only on their set, and the peak so far never falls. So of two
partial orders of the same set the one of the lower peak dominates the other.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from regal_jax.checks import check_whole
from regal_jax.graph import ComputationGraph
from regal_jax.heuristics.beam_kernel import BITS, Beam, Ops, Picks, children, collect, held_after, rising
from regal_jax.heuristics.order_costs import OrderCosts, lent, order_costs, space
from regal_jax.heuristics.orders import bfs_order
from regal_jax.runtime.compiling import for_loops, loops
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.runtime.memory import check_memory, machine_memory

__all__ = ["Found", "approximate_dp"]

_CHUNK: Final = 4
"""Extensions of a higher peak that are sorted at a time, in multiples of the beam's width."""
_EXTENSION_BYTES: Final = 56
"""Of each extension: its peak, parent and place, and the same sorted, with the order."""
_PICK_BYTES: Final = 112
"""Of each extension that is collected: the fields of `Picks`, twice, and its share of the hash table."""
_MOST_LINKS: Final = 2**24
"""Lengths of back-pointers that are kept before those that lead nowhere are dropped."""


@dataclasses.dataclass(frozen=True, eq=False)
class Found:
    """An order, and what is known about it.

    Attributes:
      order: ``[N]`` int64 ops.
      peak: Bytes, on one device.
      optimal: Whether it is proven that no order has a lower peak.
      states: Number of sets of ops that were extended.
    """

    order: np.ndarray
    peak: int
    optimal: bool
    states: int


@interruptible()
def approximate_dp(
    graph: ComputationGraph, width: int, held: bool = False, seconds: float | None = None
) -> Found:
    """The best whole order that goes through the ``width`` best partial orders of each length.

    All partial orders of one length are extended by every ready op. Of those with the same set of ops one of
    the lowest peak is kept, and of these sets the ``width`` of the lowest peaks. Ties go to the extension
    found first: extensions are ordered by peak, then by the place of their parent, then by op. Residents,
    whose place in the order costs nothing, go first.

    Args:
      graph: The graph.
      width: Number of sets of each length, at least 1; the result is exact if there are never more.
      held: Break ties between sets by the least memory held (ours), not by which was found first.
      seconds: Time limit, after which the rest of the order is found with width 1.

    Raises:
      ConfigError: A width below 1, or the sets of a length need more memory than the machine has.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix C.3.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.heuristics import approximate_dp
      >>> found = approximate_dp(generate("layered", 30, seed=0), width=10_000)
      >>> found.optimal, len(found.order)
      (True, 30)
    """
    check_whole("width", width, 1)
    deadline = Deadline(seconds)
    costs = order_costs(graph)
    residents = np.flatnonzero(graph.resident)
    steps = _Steps(graph, costs)
    trail = _Trail()
    bound, states = math.inf, 0
    for _ in range(graph.num_ops - len(residents)):
        check_interrupt()
        states += len(steps.beam.held)
        parent, op, dropped = steps.extend(1 if deadline.over else int(width), held=held)
        bound = min(bound, dropped)
        trail.add(parent, op)
    order = np.concatenate([residents, trail.back(0)])
    peak = int(steps.beam.peak[0])
    # Every partial order that was dropped had a peak of at least ``bound``.
    return Found(order, peak, peak <= bound, states)


class _Trail:
    """Back-pointers of partial orders: for each length the parents, and the ops that extended them."""

    def __init__(self) -> None:
        self._parents: list[np.ndarray] = []
        self._ops: list[np.ndarray] = []
        self._links, self._most = 0, _MOST_LINKS

    def add(self, parent: np.ndarray, op: np.ndarray) -> None:
        """Adds the next length: ``[B]`` places of the parents in the length before, and ops."""
        self._parents.append(parent.astype(np.int32))
        self._ops.append(op.astype(np.int32))
        self._links += len(op)
        if self._links > self._most:
            self._prune()
            self._most = max(_MOST_LINKS, 2 * self._links)

    def back(self, place: int) -> np.ndarray:
        """``[L]`` int64, the ops of the partial order at ``place`` of the last length."""
        order = np.zeros(len(self._ops), np.int64)
        for step in reversed(range(len(order))):
            order[step] = self._ops[step][place]
            place = int(self._parents[step][place])
        return order

    def _prune(self) -> None:
        """Drops entries that lead to no partial order of the last length."""
        for step in reversed(range(len(self._ops) - 1)):
            used, self._parents[step + 1] = np.unique(self._parents[step + 1], return_inverse=True)
            if len(used) == len(self._ops[step]):
                break
            self._parents[step + 1] = self._parents[step + 1].astype(np.int32)
            self._parents[step], self._ops[step] = self._parents[step][used], self._ops[step][used]
        self._links = sum(map(len, self._ops))


class _Steps:
    """Partial orders of one length, and the step to those of the next.

    Attributes:
      beam: The partial orders.
    """

    def __init__(self, graph: ComputationGraph, costs: OrderCosts) -> None:
        """Begins with one partial order, of the residents."""
        n, residents = graph.num_ops, np.flatnonzero(graph.resident)
        # Beams roughly follow this order, so their sets differ in few words.
        along = bfs_order(graph)
        along = np.concatenate([residents, along[~graph.resident[along]]])
        position = np.argsort(along)
        word, mask = position // BITS, 1 << (position % BITS)
        size = int(word.max(initial=0)) + 1
        words = np.zeros(size, np.int64)
        np.bitwise_or.at(words, word[residents], mask[residents])
        waiting = np.diff(costs.before_rows)
        for o in residents:
            waiting[costs.after[costs.after_rows[o] : costs.after_rows[o + 1]]] -= 1
        ready = np.flatnonzero((waiting == 0) & ~graph.resident)
        self._degree = np.diff(costs.after_rows)
        # One more than the last word of an op and of the ops that it may make ready.
        self._reach = word + 1
        np.maximum.at(self._reach, np.repeat(np.arange(n), self._degree), word[costs.after] + 1)
        self._full = (1 << np.bincount(word, minlength=size)) - 1
        self._costs = for_loops(costs)
        self._ops = for_loops(Ops(word, mask, np.random.default_rng(0).integers(0, 2**BITS, n)))
        held = costs.start + int(costs.kept[residents].sum())
        numbers = (np.array(each, np.int64) for each in ([held], [costs.start], [0], [0, len(ready)]))
        held, peak, code, bounds = map(lent, numbers)
        self.beam = Beam(held, peak, code, bounds, lent(ready.astype(np.int32)), lent(words), 0, size)
        self._window = 0, size

    def extend(self, width: int, *, held: bool) -> tuple[np.ndarray, np.ndarray, float]:
        """Extends all partial orders to the next length.

        Args:
          width: Sets to keep.
          held: As in `approximate_dp`.

        Returns:
          Places ``[B]`` of the parents, ops ``[B]``, and a lower bound on the peak of whatever was dropped;
          infinite if nothing was.
        """
        total = len(self.beam.ready)
        most = min(width, total)
        room = total if held else most
        self._check_memory(total, room, most)
        picks, count, dropped = self._collect(most, room, ties=held)
        loops(held_after)(self._costs, self._ops, self.beam, picks, count)
        chosen = Picks(*(np.asarray(each[:count], np.int64) for each in picks))
        if count > most:
            chosen, dropped = _least_held(chosen, most), True
        self._advance(chosen)
        return chosen.parent, chosen.op, int(chosen.peak[-1]) if dropped else math.inf

    def _check_memory(self, total: int, room: int, most: int) -> None:
        """Refuses a step whose arrays do not fit: of extensions, of those collected, and of sets of ops."""
        begin, end = self._window
        # The sets of this length and of the next: words, numbers, and ops that are ready.
        each = 8 * (end - begin + 4) + 4 * total // len(self.beam.held)
        size = total * _EXTENSION_BYTES + room * _PICK_BYTES + (len(self.beam.held) + most) * each
        what = f"approximate-dp: {most:,} sets of ops of one length"
        check_memory(what, size, machine_memory(), "give a smaller width")

    def _collect(self, most: int, room: int, *, ties: bool) -> tuple[Picks, int, bool]:
        """Extensions of the lowest peaks in space for ``room``, their number, whether any were dropped."""
        picks = Picks(*(space(room) for _ in Picks._fields))
        table = lent(np.full(1 << (2 * room).bit_length(), -1, np.int64))
        state = lent(np.zeros(2, np.int64))
        dropped = False
        for value, parent, place, rest in self._rising(_CHUNK * most):
            limit = int(value[-1]) if len(value) else -1
            dropped = loops(collect)(
                self._ops, self.beam, self._costs.need, *map(lent, (value, parent, place)), limit, rest,
                state, table, picks, most, ties,
            )  # fmt: skip
            if dropped:
                break
        return picks, int(state[1]), dropped

    def _rising(self, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, bool]]:
        """Extensions of a higher peak, sorted, ``chunk`` or more at a time: peak, parent, place, if last."""
        buffers = [space(len(self.beam.ready)) for _ in range(3)]
        count = loops(rising)(self.beam, self._costs.need, *buffers)
        value, parent, place = (np.asarray(each[:count], np.int64) for each in buffers)
        while len(value) > chunk:
            limit = np.partition(value, chunk)[chunk]
            low = np.flatnonzero(value <= limit)
            if len(low) == len(value):
                break
            low = low[np.argsort(value[low], kind="stable")]
            yield value[low], parent[low], place[low], False
            left = value > limit
            value, parent, place, chunk = value[left], parent[left], place[left], 4 * chunk
        order = np.argsort(value, kind="stable")
        yield value[order], parent[order], place[order], True

    def _advance(self, chosen: Picks) -> None:
        """Makes the partial orders that were chosen."""
        beam, count = self.beam, len(chosen.op)
        first, end = self._window
        width = max(end, int(self._reach[chosen.op].max())) - first
        ready = np.diff(np.asarray(beam.bounds, np.int64))[chosen.parent] - 1 + self._degree[chosen.op]
        rows, flat, words = space(count + 1), space(int(ready.sum()), np.int32), space(count * width)
        all_run, any_run = space(width), space(width)
        picks = Picks(*map(lent, chosen))
        loops(children)(
            self._costs, self._ops, beam, picks, rows, flat, words, first, width, all_run, any_run
        )
        self.beam = Beam(picks.held, picks.peak, picks.code, rows, flat[: rows[-1]], words, first, width)
        # The next length leaves out words that are full in all sets or still empty.
        run = np.flatnonzero(np.asarray(all_run) != self._full[first : first + width])
        begun = np.flatnonzero(np.asarray(any_run))
        low = int(run[0]) if len(run) else width - 1
        high = int(begun[-1]) + 1 if len(begun) else width
        self._window = first + low, first + max(high, low + 1)


def _least_held(picks: Picks, most: int) -> Picks:
    """All picks with lower peaks than the last, and of those with its peak the ones that hold least."""
    lower = int(np.searchsorted(picks.peak, picks.peak[-1]))
    # Fewer than `most` sets have lower peaks: the loops exceed `most` only at equal peaks.
    best = lower + np.argsort(picks.held[lower:], kind="stable")[: most - lower]
    chosen = np.concatenate([np.arange(lower), np.sort(best)])
    return Picks(*(each[chosen] for each in picks))
