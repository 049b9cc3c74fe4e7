"""Depth-first dynamic programming, for the order of the lowest peak memory on one device."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from regal_jax.checks import check_whole
from regal_jax.graph import ComputationGraph
from regal_jax.heuristics.beam_kernel import BITS, Ops
from regal_jax.heuristics.depth_first_kernel import (
    ALL_SEEN,
    READY_FULL,
    SETS_FULL,
    SPENT,
    Known,
    Walk,
    go_on,
    rehash,
)
from regal_jax.heuristics.dynamic_programming import Found
from regal_jax.heuristics.order_costs import OrderCosts, lent, order_costs, space
from regal_jax.runtime.compiling import for_loops, loops
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["depth_first_dp"]

_STEPS: Final = 2**14
"""Partial orders visited between two checks of the clock: a few milliseconds."""
_SET_BYTES: Final = 2**29
"""Default memory for sets, in bytes."""
_FIRST_SETS: Final = 2**10
_NONE: Final = 2**62
"""More than any peak."""


@interruptible()
def depth_first_dp(
    graph: ComputationGraph,
    seed: int | Sequence[int] = 0,
    seconds: float | None = None,
    states: int | None = None,
) -> Found:
    """The best order that depth-first search with backtracking finds in its time; exact if it finishes.

    The next op is a random ready op. A branch is pruned if the same set of ops was reached before with an
    equal or lower peak, or if its peak is not lower than that of the best whole order. Residents, whose place
    in the order costs nothing, go first.

    Args:
      graph: The graph.
      seed: As `numpy.random.default_rng` takes it.
      seconds: Time limit, checked once the first whole order is found. ``None`` for no limit.
      states: Largest number of sets that are remembered; sets beyond it are searched each time they are
        reached. By default as many as fit into 512 MiB.

    Raises:
      ConfigError: ``states`` is less than 1.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", appendix C.3.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.heuristics import depth_first_dp
      >>> depth_first_dp(generate("layered", 12, seed=0)).optimal
      True
    """
    deadline = Deadline(seconds)
    n, costs = graph.num_ops, order_costs(graph)
    width = -(-n // BITS)
    if states is None:
        states = max(1, _SET_BYTES // (8 * (width + 6)))
    check_whole("states", states, 1)
    random = np.random.default_rng(seed)
    number = np.arange(n)
    ops = Ops(number // BITS, 1 << (number % BITS), random.integers(0, 2**BITS, n))
    where, ready = _begin(graph, costs, ops, int(random.integers(1, 2**31 - 1)))
    known = _known(None, min(states, _FIRST_SETS), width, 0)
    costs, ops, where, ready = (for_loops(each) for each in (costs, ops, where, ready))
    why = SPENT if graph.num_ops > where.now[6] else ALL_SEEN
    while why != ALL_SEEN:
        check_interrupt()
        last = len(known.peak) >= states
        why = loops(go_on)(costs, ops, where, known, ready, _STEPS, last)
        if why == READY_FULL:
            ready = lent(np.concatenate([np.asarray(ready, np.int64), np.zeros(len(ready), np.int64)]))
        elif why == SETS_FULL:
            known = _known(known, min(states, 2 * len(known.peak)), width, int(where.now[3]))
        elif where.now[1] < _NONE and deadline.over:
            break
    order = np.asarray(where.best, np.int64)
    return Found(order, int(where.now[1]), why == ALL_SEEN, int(where.now[5]))


def _begin(graph: ComputationGraph, costs: OrderCosts, ops: Ops, number: int) -> tuple[Walk, np.ndarray]:
    """The walk after the residents, and the ready ops with spare space; ``number`` seeds random numbers."""
    n, residents = graph.num_ops, np.flatnonzero(graph.resident)
    first = len(residents)
    waiting = np.diff(costs.before_rows)
    for o in residents:
        waiting[costs.after[costs.after_rows[o] : costs.after_rows[o + 1]]] -= 1
    able = np.flatnonzero((waiting == 0) & ~graph.resident)
    path, held, peak, bounds, cursor = (np.zeros(n + more, np.int64) for more in (0, 1, 1, 2, 1))
    path[:first] = residents
    held[first], peak[first] = costs.start + costs.kept[residents].sum(), costs.start
    bounds[first + 1] = len(able)
    words = np.zeros(-(-n // BITS), np.int64)
    np.bitwise_or.at(words, ops.word[residents], ops.mask[residents])
    least = _NONE if first < n else costs.start
    now = np.array([first, least, number, 0, 0, 0, first])
    ready = np.concatenate([able, np.zeros(4 * n, np.int64)])
    return Walk(now, path, held, peak, bounds, cursor, costs.readers, waiting, words, path.copy()), ready


def _known(old: Known | None, size: int, width: int, count: int) -> Known:
    """Space for ``size`` sets, with the first ``count`` of ``old``."""
    table = np.full(1 << (2 * size).bit_length(), -1, np.int64)
    known = Known(lent(table), space(size * width), space(size), space(size))
    if old is not None:
        known.words[: count * width] = old.words[: count * width]
        known.peak[:count], known.code[:count] = old.peak[:count], old.code[:count]
        loops(rehash)(known, count)
    return known
