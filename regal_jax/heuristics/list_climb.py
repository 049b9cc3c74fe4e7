"""The loops of `ListSearchRun`: compiled where Numba is, plain Python over lists where it is not."""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.list_kernel import schedule
from regal_jax.heuristics.schedule_peaks import peaks
from regal_jax.runtime.compiling import part

__all__ = ["DRAWS", "Recipe", "Space", "climb"]

DRAWS: Final = 9
"""Uniform numbers that a change takes, beside one for each op that it changes."""
_NEAR: Final = 0.6
"""Probability that a block goes to a device of an op near it, if there is one."""
_SAME: Final = 0.7
"""Probability that of a block only those go that are where its middle is."""
_LEAST: Final = 0.1
"""Share of the tries of either kind of change."""

_schedule, _peaks = part(schedule), part(peaks)

Space = namedtuple(
    "Space",
    "rank rules orders ranks prices rank_noise price_noise price_share other_rule block_share largest_block "
    "prohibitive limited",
)
"""What changes are drawn from.

Attributes:
  rank: ``[N]``, the graph's own.
  rules: ``[6 * R]``, numbers of the rules, as `schedule` takes them.
  orders: ``[3 * N]``, orders of the ops, in which blocks stand together.
  ranks, prices: How many ops get another rank, or other prices.
  rank_noise, price_noise: Their standard deviations, in units of time.
  price_share, other_rule, block_share, largest_block: As in `ListSearchConfig`.
  prohibitive: A price that no rule pays.
  limited: Is memory?
"""

Recipe = namedtuple("Recipe", "rank price rule place value")
"""What a schedule is made from, and what came of it.

Attributes:
  rank: ``[N]``.
  price: ``[N * D]``.
  rule: ``[1]``, whose turn it is.
  place: ``[N]`` device of each op.
  value: ``[2]``, bytes over the memory and the makespan.
"""


def climb(
    layout: Any, state: Any, room: Any, space: Any, trial: Any, now: Any, best: Any, paid: Any,
    uniform: Any, normal: Any, values: Any, given: bool, goal: float,
) -> int:  # fmt: skip
    """Makes schedule after schedule, and keeps each that is no worse than the one before.

    Args:
      layout: The graph, as `schedule` takes it.
      state: Of it; what is in it does not matter.
      room: As `regal_jax.heuristics.schedule_peaks.peaks` takes it; likewise.
      space: What changes are drawn from.
      trial: What is tried first, if it is ``given``.
      now: What was kept last; its value is infinite if there is nothing yet.
      best: The first of its value.
      paid: ``[4]``, of blocks and of numbers: changes that made it better, and all.
      uniform: ``[S * U]`` from [0, 1), of ``S`` changes.
      normal: ``[S * Z]``.
      values: ``[2 * S]``, set to the value of ``now`` after each change.
      given: Is ``trial`` the first schedule, rather than a change of ``now``?
      goal: A makespan that is enough.

    Returns:
      Schedules that were made, ``S`` or fewer.
    """
    (
        base, rules, orders, ranks, prices, rank_noise, price_noise, price_share, other_rule, block_share,
        largest_block, prohibitive, limited,
    ) = space  # fmt: skip
    rank, price, rule, _, _ = trial
    kept_rank, kept_price, kept_rule, kept_place, value = now
    best_rank, best_price, best_rule, _, _ = best
    clock, place, held, memory, peak = state.clock, state.place, state.held, layout.memory, room.peak
    n, d = len(base), len(clock)
    steps = len(values) // 2
    draws, noises = len(uniform) // steps, len(normal) // steps

    def takes_block(chance):
        """By the share of tries that made the schedule better."""
        if d == 1:
            return False
        share = block_share
        if 0 < share < 1:
            block, number = share * paid[0] / paid[1], (1 - share) * paid[2] / paid[3]
            share = block / (block + number)
        return chance < min(max(share, min(_LEAST, block_share)), max(1 - _LEAST, block_share))

    def change_numbers(u, z):
        """A few ops get another rank, or other prices."""
        if uniform[u + 1] < price_share:
            for i in range(prices):
                o = int(uniform[u + DRAWS + i] * n)
                for k in range(d):
                    price[o * d + k] = price_noise * normal[z + i * d + k]
        else:
            for i in range(ranks):
                o = int(uniform[u + DRAWS + i] * n)
                rank[o] = base[o] + rank_noise * normal[z + i]
        if uniform[u + 2] < other_rule:
            rule[0] = int(uniform[u + 3] * (len(rules) // 6))

    def draw_device(u, home, first, last):
        """Where a block goes whose middle is at ``home``, between two places of an order."""
        near = 0
        for i in range(first, last):
            near += kept_place[orders[i]] != home
        if near > 0 and uniform[u + 7] < _NEAR:
            left = int(uniform[u + 8] * near)
            for i in range(first, last):
                k = kept_place[orders[i]]
                left -= k != home
                if left < 0:
                    return k
        # Of those that have nothing to do one is as good as another, and one choice in all.
        for k in range(d):
            held[k] = 0
        busy = 0
        for o in range(n):
            busy += held[kept_place[o]] == 0
            held[kept_place[o]] = 1
        left = int(uniform[u + 8] * (busy - 1 + (busy < d)))
        for k in range(d):
            if held[k] == 1 and k != home:
                if left == 0:
                    return k
                left -= 1
        left = int(uniform[u + 3] * (d - busy))
        for k in range(d):
            if held[k] == 0:
                if left == 0:
                    return k
                left -= 1
        return home

    def change_block(u):
        """A block of ops goes to another device; lengths of all magnitudes are as likely."""
        begin = int(uniform[u + 4] * 3) * n
        half = int(max(2.0, largest_block * n) ** uniform[u + 5]) // 2
        middle = begin + int(uniform[u + 6] * n)
        home = kept_place[orders[middle]]
        around = 4 * half + 2
        k = draw_device(u, home, max(begin, middle - around), min(begin + n, middle + around + 1))
        for i in range(max(begin, middle - half), min(begin + n, middle + half + 1)):
            o = orders[i]
            if kept_place[o] == home or uniform[u + 1] >= _SAME:
                for h in range(d):
                    price[o * d + h] = 0.0 if h == k else prohibitive

    for s in range(steps):
        u, z = s * draws, s * noises
        block, tried = False, s > 0 or not given
        if tried:
            for o in range(n):
                rank[o] = kept_rank[o]
            for i in range(n * d):
                price[i] = kept_price[i]
            rule[0] = kept_rule[0]
            block = takes_block(uniform[u])
            if block:
                change_block(u)
            else:
                change_numbers(u, z)
        r = 6 * rule[0]
        # What is longer would not be kept, unless what is kept does not fit.
        limit = value[1] if value[0] == 0 else np.inf
        _schedule(
            layout, state, rank, price, int(rules[r]), rules[r + 1], rules[r + 2], rules[r + 3],
            rules[r + 4] > 0, int(rules[r + 5]), limit,
        )  # fmt: skip
        over, time = 0.0, max(clock)
        if limited and (0.0, time) <= (value[0], value[1]):
            # The loops know neither later readers nor transfers that are put in after the fact.
            _peaks(layout, state, room)
            for k in range(d):
                over += max(0.0, peak[k] - memory[k])
        better = (over, time) < (value[0], value[1])
        if better or (over, time) == (value[0], value[1]):
            value[0], value[1] = over, time
            for o in range(n):
                kept_rank[o], kept_place[o] = rank[o], place[o]
            for i in range(n * d):
                kept_price[i] = price[i]
            kept_rule[0] = rule[0]
        if better:
            for o in range(n):
                best_rank[o] = rank[o]
            for i in range(n * d):
                best_price[i] = price[i]
            best_rule[0] = rule[0]
        if tried:
            i = 0 if block else 2
            paid[i] += better
            paid[i + 1] += 1
        values[2 * s], values[2 * s + 1] = value[0], value[1]
        if value[0] == 0 and value[1] <= goal:
            return s + 1
    return steps
