"""The loops of `PeakBalance`: placements by single moves, and the sums of bytes that they lower."""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.peaks_arrays import SQUARINGS
from regal_jax.runtime.compiling import only_borrows

__all__ = ["Layout", "State", "make_state", "refine"]

_AT_ONCE: Final = 64
"""Positions that are summed up between two comparisons with the best sum."""

Layout = namedtuple(
    "Layout", "begin born size keep rows readers temp allowed group bounds members touched_rows touched"
)
"""A graph whose ops are identified by their places in an order. Lists of lists are flat, with row bounds.

Attributes:
  begin: ``[T]`` int64, the producer.
  born: ``[T]`` int64, first position at which it is in memory: the producer, or 0 for a resident.
  size: ``[T]`` float64 bytes.
  keep: ``[T]`` bool.
  rows, readers: ``[T + 1]``, ``[E]`` int64, the readers of each tensor.
  temp: ``[N]`` float64 bytes.
  allowed: ``[N * D]`` bool.
  group: ``[N]`` int64, the first op of the colocation group.
  bounds, members: ``[N + 1]``, ``[N]`` int64, the ops of each group.
  touched_rows, touched: ``[N + 1]``, ``[...]`` int64, the tensors that each op makes or reads.
"""

State = namedtuple("State", "place found change held end first last weight movers stamp tensors before")
"""The state of a refinement.

Attributes:
  place: ``[N]`` device.
  found: ``[N]`` device in the best placement so far.
  change: ``[D * (N + 1)]`` bytes, change of the bytes that a device holds from the position before; the last
    is after all.
  held: ``[D * N]`` bytes.
  end: ``[T]``, the last position at which the producer's device holds the tensor.
  first, last: ``[D]``, the first and the last reader of one tensor on each device: ``N`` and -1 for none.
  weight: ``[N]`` bytes that each group holds at the peak, or makes others hold.
  movers: ``[N]``, the groups with a weight that have not been tried yet.
  stamp: ``[T]``, the last group for which the tensor was listed, or -1.
  tensors: ``[T]``, those that one group makes or reads.
  before: ``[N]``, previous devices of the members of one group.
"""


def make_state(place: np.ndarray, devices: int, tensors: int) -> State:
    """The state in which `refine` begins with the placement ``place [N]``."""
    n = len(place)
    return State(
        place.astype(np.int64), np.empty(n, np.int64), np.zeros(devices * (n + 1)), np.empty(devices * n),
        np.empty(tensors, np.int64), np.empty(devices, np.int64), np.empty(devices, np.int64), np.empty(n),
        np.empty(n, np.int64), np.full(tensors, -1), np.empty(tensors, np.int64), np.empty(n, np.int64),
    )  # fmt: skip


@only_borrows
def refine(layout: Any, state: Any, tries: int, widths: Any, least_gain: float) -> int:
    """`PeakBalance.refine`: the same placement as that of NumPy.

    Args:
      layout: The graph, with at least one op.
      state: Overwritten. ``found`` has the result, and ``held`` the bytes of the last placement.
      tries: Approximate number of placements to evaluate.
      widths: Numbers of moves to try in a step.
      least_gain: Least relative improvement of a step.

    Returns:
      The number of tries that are left.
    """
    (
        begin, born, size, keep, rows, readers, temp, allowed, group, bounds, members, touched_rows, touched,
    ) = layout  # fmt: skip
    place, found, change, held, end, first, last, weight, movers, stamp, tensors, before = state
    n, d = len(place), len(first)
    lane = n + 1

    def hold(t, amount):
        """Adds ``amount`` to the devices and positions at which a tensor is held."""
        for k in range(d):
            first[k], last[k] = n, -1
        for j in range(rows[t], rows[t + 1]):
            i = readers[j]
            k = place[i]
            first[k], last[k] = min(first[k], i), max(last[k], i)
        home = place[begin[t]]
        until = max(begin[t], last[home])
        for k in range(d):
            if k != home and last[k] >= 0:
                # A transfer reads the tensor on its home at the position of the first reader on the other.
                until = max(until, first[k])
                change[k * lane + first[k]] += amount
                change[k * lane + last[k] + 1] -= amount
        if keep[t]:
            until = n - 1
        change[home * lane + born[t]] += amount
        change[home * lane + until + 1] -= amount
        end[t] = until

    def run(i, amount):
        """Adds ``amount`` while an op runs."""
        at = place[i] * lane + i
        change[at] += amount
        change[at + 1] -= amount

    def put(mover, device):
        """Moves a group; device -1 undoes its last move."""
        count = 0
        for m in range(bounds[mover], bounds[mover + 1]):
            for j in range(touched_rows[members[m]], touched_rows[members[m] + 1]):
                t = touched[j]
                if stamp[t] != mover:
                    stamp[t] = mover
                    tensors[count] = t
                    count += 1
        for turn in range(2):
            sign = 2.0 * turn - 1.0
            for m in range(bounds[mover], bounds[mover + 1] if turn == 1 else bounds[mover]):
                i = members[m]
                if device < 0:
                    place[i] = before[i]
                else:
                    before[i] = place[i]
                    place[i] = device
            for j in range(count):
                hold(tensors[j], sign * size[tensors[j]])
            for m in range(bounds[mover], bounds[mover + 1]):
                run(members[m], sign * temp[members[m]])
        for j in range(count):
            stamp[tensors[j]] = -1

    def norm(scale, enough):
        """The sum of high powers, one device after the other; it may stop once it reaches ``enough``."""
        total = 0.0
        for k in range(d):
            now = 0.0
            for start in range(0, n, _AT_ONCE):
                for i in range(k * lane + start, k * lane + min(n, start + _AT_ONCE)):
                    now += change[i]
                    share = now * scale
                    share *= share * share
                    for _ in range(SQUARINGS):
                        share *= share
                    total += share
                if total >= enough:
                    return total
        return total

    def weigh(device, position):
        """Sets the bytes that each group holds on a device at a position, copies for the group included.

        Returns the number of groups with a weight, which it lists.
        """
        for i in range(n):
            weight[i] = 0.0
        for t in range(len(begin)):
            if place[begin[t]] == device:
                if born[t] <= position <= end[t]:
                    weight[group[begin[t]]] += size[t]
                continue
            soonest, latest = n, -1
            for j in range(rows[t], rows[t + 1]):
                i = readers[j]
                if place[i] == device:
                    soonest, latest = min(soonest, i), max(latest, i)
            if soonest <= position <= latest:
                # A copy counts for all of its readers on the device.
                for j in range(rows[t], rows[t + 1]):
                    if place[readers[j]] == device:
                        weight[group[readers[j]]] += size[t]
        if place[position] == device:
            weight[group[position]] = np.inf
        count = 0
        for i in range(n):
            movers[count] = i
            count += weight[i] > 0
        return count

    for t in range(len(begin)):
        hold(t, size[t])
    for i in range(n):
        run(i, temp[i])
    best, scale, now = np.inf, 0.0, 0.0
    while True:
        # The highest peak, the first on ties.
        device = position = 0
        peak = -np.inf
        for k in range(d):
            bytes_now = 0.0
            for i in range(n):
                bytes_now += change[k * lane + i]
                held[k * n + i] = bytes_now
                if bytes_now > peak:
                    peak, device, position = bytes_now, k, i
        if peak < best:
            if best == np.inf:
                scale = 1 / peak if peak > 0 else 1.0
                now = norm(scale, np.inf)
            best = peak
            for i in range(n):
                found[i] = place[i]
        if tries <= 0:
            break
        few, goal, least, chosen, target = weigh(device, position), now * (1 - least_gain), np.inf, -1, -1
        for width in widths:
            least, chosen, target = np.inf, -1, -1
            tried = 0
            while tried < width and few > 0:
                # The group of most weight, the first on ties, goes to the device that holds least.
                at = 0
                for j in range(1, few):
                    i, o = movers[j], movers[at]
                    if weight[i] > weight[o] or (weight[i] == weight[o] and i < o):
                        at = j
                mover, to = movers[at], -1
                few -= 1
                movers[at] = movers[few]
                for k in range(d):
                    free = k != device and allowed[mover * d + k]
                    if free and (to < 0 or held[k * n + position] < held[to * n + position]):
                        to = k
                if to < 0:
                    continue
                tried += 1
                tries -= 1
                put(mover, to)
                this = norm(scale, min(least, goal))
                put(mover, -1)
                if this < least:
                    least, chosen, target = this, mover, to
            if least < goal:
                break
        if not least < goal:
            break
        now = least
        put(chosen, target)
    return tries
