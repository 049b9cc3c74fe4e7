"""The loops of `PeakBalance`: moves to other devices and in the order, and sums of bytes that they lower."""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.peaks_arrays import SQUARINGS
from regal_jax.runtime.compiling import only_borrows

__all__ = ["Layout", "State", "make_state", "refine"]

_AT_ONCE: Final = 64
"""Positions that are summed up between two comparisons with the best sum."""

Layout = namedtuple(
    "Layout",
    "begin resident size keep rows readers temp allowed group bounds members touched_rows touched "
    "before_rows before after_rows after",
)
"""A graph whose ops are numbered by their places in an order. Lists of lists are flat, with row bounds.

Attributes:
  begin: ``[T]`` int64, the producer.
  resident: ``[T]`` bool, whether it is in memory from the beginning.
  size: ``[T]`` float64 bytes.
  keep: ``[T]`` bool.
  rows, readers: ``[T + 1]``, ``[E]`` int64, the readers of each tensor.
  temp: ``[N]`` float64 bytes.
  allowed: ``[N * D]`` bool.
  group: ``[N]`` int64, the first op of the colocation group.
  bounds, members: ``[N + 1]``, ``[N]`` int64, the ops of each group.
  touched_rows, touched: ``[N + 1]``, ``[...]`` int64, the tensors that each op makes or reads.
  before_rows, before: ``[N + 1]``, ``[...]`` int64, the ops that each op needs.
  after_rows, after: ``[N + 1]``, ``[...]`` int64, the ops that need it.
"""

State = namedtuple(
    "State",
    "place order found found_order peaks position change other held end first last high weight movers stamp "
    "tensors previous load moved shifted chosen",
)
"""The state of a refinement.

Attributes:
  place: ``[N]`` device.
  order: ``[N]``, the op at each position.
  found, found_order: ``[N]``, those with the lowest peak so far.
  peaks: ``[D]`` bytes, their peak on each device.
  position: ``[N]``, of each op in the order.
  change: ``[D * (N + 1)]`` bytes, change of the bytes that a device holds from the position before; the last
    is after all.
  other: ``[D * (N + 1)]``, the same after a move.
  held: ``[D * N]`` bytes.
  end: ``[T]``, the last position at which the producer's device holds the tensor.
  first, last: ``[D]``, the first and the last reader of one tensor on each device: ``N`` and -1 for none.
  high: ``[D]`` bytes, the peak on each device.
  weight: ``[N]`` bytes that each group holds at the peak, or makes others hold.
  movers: ``[N]``, the groups with a weight that have not been tried yet.
  stamp: ``[T]``, the last group for which the tensor was listed, or -1.
  tensors: ``[T]``, those that one group makes or reads.
  previous: ``[N]``, previous devices of the members of one group.
  load: ``[T]`` bytes of each tensor at the peak, if it has not been tried yet.
  moved: ``[N]``, ops that change their side of the peak.
  shifted, chosen: ``[N]``, the order that is tried, and the best one that was.
"""


def make_state(place: np.ndarray, order: np.ndarray, devices: int, tensors: int) -> State:
    """The state in which `refine` begins with the placement ``place [N]`` and the order ``order [N]``."""
    n, d = len(place), devices
    return State(
        place=place.astype(np.int64),
        order=order.astype(np.int64),
        found=np.empty(n, np.int64),
        found_order=np.empty(n, np.int64),
        peaks=np.empty(d),
        position=np.empty(n, np.int64),
        change=np.empty(d * (n + 1)),
        other=np.empty(d * (n + 1)),
        held=np.empty(d * n),
        end=np.empty(tensors, np.int64),
        first=np.empty(d, np.int64),
        last=np.empty(d, np.int64),
        high=np.empty(d),
        weight=np.empty(n),
        movers=np.empty(n, np.int64),
        stamp=np.full(tensors, -1),
        tensors=np.empty(tensors, np.int64),
        previous=np.empty(n, np.int64),
        load=np.empty(tensors),
        moved=np.empty(n, np.int64),
        shifted=np.empty(n, np.int64),
        chosen=np.empty(n, np.int64),
    )


@only_borrows
def refine(layout: Any, state: Any, tries: int, widths: Any, reorder: int, least_gain: float) -> int:
    """`PeakBalance.refine`; without moves in the order, the same placement as that of NumPy.

    Args:
      layout: The graph, with at least one op.
      state: Overwritten. ``found`` and ``found_order`` have the result, and ``held`` the bytes of the last
        placement.
      tries: Approximate number of placements and orders to evaluate.
      widths: Numbers of moves to other devices to try in a step.
      reorder: Number of moves in the order to try in a step.
      least_gain: Least relative improvement of a step.

    Returns:
      The number of tries that are left.
    """
    (
        begin, resident, size, keep, rows, readers, temp, allowed, group, bounds, members, touched_rows,
        touched, before_rows, before, after_rows, after,
    ) = layout  # fmt: skip
    (
        place, order, found, found_order, peaks, position, change, other, held, end, first, last, high,
        weight, movers, stamp, tensors, previous, load, moved, shifted, chosen,
    ) = state  # fmt: skip
    n, d = len(place), len(first)
    lane = n + 1

    def hold(lines, t, amount):
        """Adds ``amount`` to the devices and positions at which a tensor is held.

        Returns the last position at which the producer's device holds it.
        """
        for k in range(d):
            first[k], last[k] = n, -1
        for j in range(rows[t], rows[t + 1]):
            i = position[readers[j]]
            k = place[readers[j]]
            first[k], last[k] = min(first[k], i), max(last[k], i)
        made, home = position[begin[t]], place[begin[t]]
        until = max(made, last[home])
        for k in range(d):
            if k != home and last[k] >= 0:
                # A transfer reads the tensor on its home at the position of the first reader on the other.
                until = max(until, first[k])
                lines[k * lane + first[k]] += amount
                lines[k * lane + last[k] + 1] -= amount
        if keep[t]:
            until = n - 1
        lines[home * lane + (0 if resident[t] else made)] += amount
        lines[home * lane + until + 1] -= amount
        return until

    def run(lines, o, amount):
        """Adds ``amount`` while an op runs."""
        at = place[o] * lane + position[o]
        lines[at] += amount
        lines[at + 1] -= amount

    def put(mover, device):
        """Moves a group, and writes the bytes to ``other``."""
        for i in range(d * lane):
            other[i] = change[i]
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
                previous[members[m]] = place[members[m]]
                place[members[m]] = device
            for j in range(count):
                hold(other, tensors[j], sign * size[tensors[j]])
            for m in range(bounds[mover], bounds[mover + 1]):
                run(other, members[m], sign * temp[members[m]])
        for j in range(count):
            stamp[tensors[j]] = -1

    def norm(lines, scale, enough):
        """The sum of high powers, one device after the other; it may stop once it reaches ``enough``."""
        total = 0.0
        for k in range(d):
            now = 0.0
            for start in range(0, n, _AT_ONCE):
                for i in range(k * lane + start, k * lane + min(n, start + _AT_ONCE)):
                    now += lines[i]
                    share = now * scale
                    share *= share * share
                    for _ in range(SQUARINGS):
                        share *= share
                    total += share
                if total >= enough:
                    return total
        return total

    def weigh(device, peak_at):
        """Sets the bytes that each group holds on a device at a position, copies for the group included.

        Returns the number of groups with a weight, which it lists.
        """
        for i in range(n):
            weight[i] = 0.0
        for t in range(len(begin)):
            load[t] = 0.0
            if place[begin[t]] == device:
                if (0 if resident[t] else position[begin[t]]) <= peak_at <= end[t]:
                    weight[group[begin[t]]] += size[t]
                    load[t] = size[t]
                continue
            soonest, latest = n, -1
            for j in range(rows[t], rows[t + 1]):
                i = position[readers[j]]
                if place[readers[j]] == device:
                    soonest, latest = min(soonest, i), max(latest, i)
            if soonest <= peak_at <= latest:
                load[t] = size[t]
                # A copy counts for all of its readers on the device.
                for j in range(rows[t], rows[t + 1]):
                    if place[readers[j]] == device:
                        weight[group[readers[j]]] += size[t]
        if place[order[peak_at]] == device:
            weight[group[order[peak_at]]] = np.inf
        count = 0
        for i in range(n):
            movers[count] = i
            count += weight[i] > 0
        return count

    def shift(t, device, peak_at, earlier):
        """Writes to ``shifted`` an order in which the device does not hold a tensor at a position.

        Either the readers after the position come before it, with all ops that they need, or what makes the
        tensor, or the first copy, comes after it, with all ops that need it. Returns whether there is such an
        order.
        """
        home, count = place[begin[t]], 0
        if not earlier and home == device:
            if resident[t] or position[begin[t]] >= peak_at:
                return False
            moved[0] = begin[t]
            count = 1
        else:
            if keep[t] and home == device:
                return False
            for j in range(rows[t], rows[t + 1]):
                o = readers[j]
                on = place[o] == device or (earlier and home == device)
                crosses = position[o] > peak_at if earlier else position[o] < peak_at
                if on and crosses and (count == 0 or moved[count - 1] != o):
                    moved[count] = o
                    count += 1
            if count == 0:
                return False
        # Positions of ops that move are negative meanwhile.
        for i in range(count):
            position[moved[i]] = -1 - position[moved[i]]
        lists, listed = (before_rows, before) if earlier else (after_rows, after)
        i, possible = 0, True
        while i < count and possible:
            o = moved[i]
            i += 1
            for j in range(lists[o], lists[o + 1]):
                p = listed[j]
                if position[p] == peak_at:
                    possible = False
                elif position[p] >= 0 and (position[p] > peak_at) == earlier:
                    position[p] = -1 - position[p]
                    moved[count] = p
                    count += 1
        if possible:
            low = high = peak_at
            for i in range(count):
                low, high = min(low, -1 - position[moved[i]]), max(high, -1 - position[moved[i]])
            at = low
            for i in range(n):
                if i < low or i > high:
                    shifted[i] = order[i]
            for turn in range(2):
                for i in range(low, high + 1):
                    if (position[order[i]] < 0) == ((turn == 0) == earlier):
                        shifted[at] = order[i]
                        at += 1
        for i in range(count):
            position[moved[i]] = -1 - position[moved[i]]
        return possible

    def fill(lines, sequence):
        """Sets the positions of ops in an order, and the bytes with the current placement."""
        for i in range(n):
            position[sequence[i]] = i
        for i in range(d * lane):
            lines[i] = 0.0
        for t in range(len(begin)):
            end[t] = hold(lines, t, size[t])
        for o in range(n):
            run(lines, o, temp[o])

    best, scale, now = np.inf, 0.0, 0.0
    while True:
        fill(change, order)
        # The highest peak, the first on ties.
        device = peak_at = 0
        peak = -np.inf
        for k in range(d):
            bytes_now, high[k] = 0.0, 0.0
            for i in range(n):
                bytes_now += change[k * lane + i]
                held[k * n + i] = bytes_now
                high[k] = max(high[k], bytes_now)
                if bytes_now > peak:
                    peak, device, peak_at = bytes_now, k, i
        if peak < best:
            if best == np.inf:
                scale = 1 / peak if peak > 0 else 1.0
                now = norm(change, scale, np.inf)
            best = peak
            for k in range(d):
                peaks[k] = high[k]
            for i in range(n):
                found[i], found_order[i] = place[i], order[i]
        if tries <= 0:
            break
        few, goal, least, best_mover, target = weigh(device, peak_at), now * (1 - least_gain), np.inf, -1, -1
        for width in widths:
            least, best_mover, target = np.inf, -1, -1
            # Moves to other devices, then in the order: of what reads a tensor, and back of what makes it.
            tried, t, mover, to, in_order, back = 0, -1, -1, -1, False, False
            while True:
                if not in_order:
                    if tried >= width or few == 0:
                        in_order, back, tried = True, True, 0
                        continue
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
                        if free and (to < 0 or held[k * n + peak_at] < held[to * n + peak_at]):
                            to = k
                    if to < 0:
                        continue
                    put(mover, to)
                else:
                    back = not back
                    if not back:
                        if tried >= reorder:
                            break
                        # The tensor of most bytes, the first on ties.
                        t, most = -1, 0.0
                        for j in range(len(begin)):
                            if load[j] > most:
                                t, most = j, load[j]
                        if t < 0:
                            break
                        load[t] = 0.0
                    if not shift(t, device, peak_at, not back):
                        continue
                    fill(other, shifted)
                tried += 1
                tries -= 1
                this = norm(other, scale, min(least, goal))
                if this < least:
                    least, best_mover, target = this, -1 if in_order else mover, to
                    for i in range(n if in_order else 0):
                        chosen[i] = shifted[i]
                if in_order:
                    for i in range(n):
                        position[order[i]] = i
                else:
                    for m in range(bounds[mover], bounds[mover + 1]):
                        place[members[m]] = previous[members[m]]
            if least < goal:
                break
        if not least < goal:
            break
        now = least
        if best_mover >= 0:
            for m in range(bounds[best_mover], bounds[best_mover + 1]):
                place[members[m]] = target
        else:
            for i in range(n):
                order[i] = chosen[i]
    return tries
