"""The loops of `ListSearchRun`: compiled where Numba is, loops of plain Python over lists where it is not."""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.list_state import FOLLOWED
from regal_jax.runtime.compiling import only_borrows
from regal_jax.runtime.pointers import caller

__all__ = ["DRAWS", "Recipe", "Space", "climb"]

DRAWS: Final = 10
"""Uniform numbers per change, in addition to one for each op that it changes."""
_NEAR: Final = 0.6
"""Probability that a block moves to the device of a nearby op, if that is another device."""
_SAME: Final = 0.7
"""Probability that only those ops of a block move that are on the device of its middle op."""
_FARTHER: Final = 5.0
"""Largest factor of the noise of ranks in a change at the scale of transfers."""
_LEAST: Final = 0.1
"""Least share of the tries for either kind of change."""

_call = caller()

Space = namedtuple(
    "Space",
    "rank rules orders ranks prices rank_noise price_noise price_share other_rule block_share largest_block "
    "prohibitive limited transfer_noise transfer_share class_of class_bounds class_ops class_share",
)
"""The distribution of changes.

Attributes:
  rank: ``[N]``, ranks of the graph.
  rules: ``[6 * R]``, numbers of the rules, as `schedule` takes them.
  orders: ``[3 * N]``, orders of the ops; a block is a run of consecutive ops of one of them.
  ranks, prices: How many ops get another rank, or other prices.
  rank_noise, price_noise: Their standard deviations, in units of time.
  price_share, other_rule, block_share, largest_block: As in `ListSearchConfig`.
  prohibitive: A price higher than any difference between choices.
  limited: Whether memory is limited.
  transfer_noise: ``[N]``, standard deviations of prices at the scale of transfers.
  transfer_share: As in `ListSearchConfig`; 0 where no transfer takes time.
  class_of, class_bounds, class_ops: `regal_jax.graph.classes.OpClasses`.
  class_share: As in `ListSearchConfig`, times the share of the ops that are like others.
"""

Recipe = namedtuple("Recipe", "rank price rule value")
"""What a schedule is made from, and the result.

Attributes:
  rank: ``[N]``.
  price: ``[N * D]``.
  rule: ``[1]``, index of the rule.
  value: ``[2]``, overflow in bytes, and makespan.
"""


@only_borrows
def climb(
    schedule: Any, peaks: Any, layout: Any, state: Any, listed: Any, room: Any, space: Any, trial: Any,
    now: Any, best: Any, given: Any, paid: Any, uniform: Any, normal: Any, values: Any, goal: float,
) -> int:  # fmt: skip
    """Hill climbing: changes the current schedule, and keeps the result if it is no worse.

    Args:
      schedule: Address of `regal_jax.heuristics.list_kernel.schedule`.
      peaks: Address of `regal_jax.heuristics.schedule_peaks.peaks`; not used where memory is not limited.
      layout: The graph, as `schedule` takes it.
      state: Space for `schedule`; overwritten.
      listed: The part of ``state`` that `regal_jax.heuristics.schedule_peaks.peaks` reads.
      room: Space for it; overwritten.
      space: The distribution of changes.
      trial: Space for a schedule to try.
      now: The current schedule; its value is infinite if there is none yet.
      best: The best schedule, the first on ties.
      given: The ``G`` schedules to try at first instead of changes of ``now``, one after another: ranks
        ``[G * N]``, prices ``[G * N * D]``, rules ``[G]``.
      paid: ``[16]``, for each kind of change the number of those that improved the schedule, and of all:
        blocks, numbers; numbers at the scale of transfers, and at their own; numbers of classes, and of ops;
        blocks with their classes, and alone.
      uniform: ``[S * U]`` from [0, 1), of ``S`` changes.
      normal: ``[S * Z]``.
      values: ``[2 * S]``, set to the value of ``now`` after each change.
      goal: The loop ends at a schedule with at most this makespan.

    Returns:
      Number of schedules made, at most ``S``.
    """
    (
        base, rules, orders, ranks, prices, rank_noise, price_noise, price_share, other_rule, block_share,
        largest_block, prohibitive, limited, transfer_noise, transfer_share, class_of, class_bounds,
        class_ops, class_share,
    ) = space  # fmt: skip
    rank, price, rule, _ = trial
    kept_rank, kept_price, kept_rule, value = now
    best_rank, best_price, best_rule, _ = best
    given_rank, given_price, given_rule, _ = given
    clock, place, held, event, counts = state.clock, state.place, state.held, state.event, state.counts
    path, kept_place, changed = state.path, state.homes, state.changed
    memory, resident, peak = layout.memory, layout.resident, room.peak
    n, d = len(base), len(clock)
    tries = len(values) // 2
    draws, noises = len(uniform) // tries, len(normal) // tries

    def chance_of(first, second, share):
        """The probability of the first of two kinds, by how often either has improved the schedule."""
        least, most = min(_LEAST, share), max(1 - _LEAST, share)
        if 0 < share < 1:
            pays = share * paid[first] / paid[first + 1]
            share = pays / (pays + (1 - share) * paid[second] / paid[second + 1])
        return min(max(share, least), most)

    def change_numbers(u, z, wide, alike):
        """Gives a few ops, or all ops of a few classes, another rank or other prices."""
        priced = uniform[u + 1] < price_share
        count = prices if priced else ranks
        if wide or alike:
            # The logarithm of their number is uniform, and so is that of the noise of ranks.
            count = int((count + 1) ** uniform[u + 5])
        noise = rank_noise * _FARTHER ** uniform[u + 6] if wide else rank_noise
        for i in range(count):
            o = int(uniform[u + DRAWS + i] * n)
            c = class_of[o]
            for j in range(class_bounds[c] if alike else 0, class_bounds[c + 1] if alike else 1):
                v = class_ops[j] if alike else o
                changed[v] = 1
                if priced:
                    scale = transfer_noise[v] if wide else price_noise
                    for k in range(d):
                        price[v * d + k] = scale * normal[z + i * d + k]
                else:
                    rank[v] = base[v] + noise * normal[z + i]
        if not priced:
            for o in range(n):
                # Their keys depend on the ranks of all ops.
                changed[o] |= resident[o]
        if uniform[u + 2] < other_rule:
            rule[0] = int(uniform[u + 3] * (len(rules) // 6))

    def draw_device(u, home, first, last):
        """Draws the device to which a block moves, given the device ``home`` of its middle op."""
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
        # Idle devices are interchangeable, so that all of them together count as one choice.
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

    def change_block(u, alike):
        """Moves a block of ops, or all ops of their classes, to another device.

        The logarithm of its length is uniform.
        """
        begin = int(uniform[u + 4] * 3) * n
        half = int(max(2.0, largest_block * n) ** uniform[u + 5]) // 2
        middle = begin + int(uniform[u + 6] * n)
        home = kept_place[orders[middle]]
        around = 4 * half + 2
        k = draw_device(u, home, max(begin, middle - around), min(begin + n, middle + around + 1))
        for i in range(max(begin, middle - half), min(begin + n, middle + half + 1)):
            o = orders[i]
            # An op that has changed was reached by its class, and with it all others of the class.
            if changed[o] or (kept_place[o] != home and uniform[u + 1] < _SAME):
                continue
            c = class_of[o]
            for j in range(class_bounds[c] if alike else 0, class_bounds[c + 1] if alike else 1):
                v = class_ops[j] if alike else o
                if kept_place[v] == home or uniform[u + 1] >= _SAME:
                    changed[v] = 1
                    for h in range(d):
                        price[v * d + h] = 0.0 if h == k else prohibitive

    for s in range(tries):
        u, z = s * draws, s * noises
        block, wide, alike, tried = False, False, False, s >= len(given_rule)
        over, time, same = 0.0, np.inf, False
        # A longer schedule would not be kept, unless the current one does not fit.
        limit = value[1] if value[0] == 0 else np.inf
        if tried:
            for o in range(n):
                changed[o], rank[o] = 0, kept_rank[o]
            for i in range(n * d):
                price[i] = kept_price[i]
            rule[0] = kept_rule[0]
            block = d > 1 and uniform[u] < chance_of(0, 2, block_share)
            if block:
                alike = uniform[u + 9] < chance_of(12, 14, class_share)
                change_block(u, alike)
            else:
                wide = uniform[u + 7] < chance_of(4, 6, transfer_share)
                alike = uniform[u + 9] < chance_of(8, 10, class_share)
                change_numbers(u, z, wide, alike)
        else:
            for o in range(n):
                rank[o] = given_rank[s * n + o]
            for i in range(n * d):
                price[i] = given_price[s * n * d + i]
            rule[0] = given_rule[s]
        r = 6 * rule[0]
        # Most of a schedule is that of the current one, whose choices need no comparison.
        counts[FOLLOWED] = tried and rule[0] == kept_rule[0]
        _call(schedule, (
            layout, state, rank, price, int(rules[r]), rules[r + 1], rules[r + 2], rules[r + 3],
            rules[r + 4] > 0, int(rules[r + 5]), limit,
        ), 1)  # fmt: skip
        time = max(clock)
        same = counts[FOLLOWED] > 0 and time < np.inf and place[path[n - 1]] < 0
        if same:
            over, time = value[0], value[1]
        if limited and not same and (0.0, time) <= (value[0], value[1]):
            # The loops do not know later readers, nor transfers that are inserted at an earlier time.
            _call(peaks, (layout, listed, room), 2)
            for k in range(d):
                over += max(0.0, peak[k] - memory[k])
        better = (over, time) < (value[0], value[1])
        if better or (over, time) == (value[0], value[1]):
            value[0], value[1] = over, time
            done = 0
            for i in range(0 if same else counts[0]):
                if event[i] < n:
                    path[done] = event[i]
                    done += 1
            for o in range(n):
                kept_rank[o] = rank[o]
                if not same:
                    kept_place[o] = place[o]
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
            if not block:
                i = 4 if wide else 6
                paid[i] += better
                paid[i + 1] += 1
            i = (12 if alike else 14) if block else (8 if alike else 10)
            paid[i] += better
            paid[i + 1] += 1
        values[2 * s], values[2 * s + 1] = value[0], value[1]
        if value[0] == 0 and value[1] <= goal:
            return s + 1
    return tries
