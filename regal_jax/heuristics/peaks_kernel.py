"""The loops of `PeakBalance`: moves of ops and of transfers, and sums of bytes that they lower."""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.peaks_arrays import SQUARINGS
from regal_jax.runtime.compiling import only_borrows

__all__ = ["Layout", "State", "make_state", "penalise", "refine"]

_AT_ONCE: Final = 64
"""Positions that are summed up between two comparisons with the best sum."""

Layout = namedtuple(
    "Layout",
    "begin resident size keep rows readers temp allowed group bounds members touched_rows touched "
    "before_rows before after_rows after memory",
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
  memory: ``[D]`` float64 bytes, the capacities.
"""

State = namedtuple(
    "State",
    "place order early found found_order found_early peaks at_peak position change sends since until held "
    "first last high weight movers stamp tensors previous load waits moved shifted chosen penalty",
)
"""The state of a refinement. What has a factor of 2 in front begins with the current placement and order.

A position has two slots: an op and the transfers just before it, and the transfers just after it.

Attributes:
  place: ``[N]`` device.
  order: ``[N]``, the op at each position.
  early: ``[T]`` 0 or 1, whether the tensor is sent just after its producer instead of just before its first
    reader on a device.
  found, found_order, found_early: Those with the lowest peak so far.
  peaks: ``[D]`` bytes, their peak on each device.
  at_peak: ``[T]`` bytes of each tensor that the device of the highest peak holds then.
  position: ``[N]``, of each op in the order.
  change: ``[2 * D * (2 * N + 1)]`` bytes, change of the bytes that a device holds from the slot before; the
    last is after all.
  sends: ``[2 * N]``, the number of early transfers just after each position.
  since, until: ``[2 * D * T]``, the first and the last slot in which a device holds each tensor: ``2 * N``
    and -1 for none. The second half is for an order that is tried, or has what was before a move.
  held: ``[D * 2 * N]`` bytes in each slot.
  first, last: ``[D]``, ``since`` and ``until`` of one tensor.
  high: ``[D]`` bytes, the peak on each device.
  weight: ``[N]`` bytes that each group holds at the peak, or makes others hold.
  movers: ``[N]``, the groups with a weight that have not been tried yet.
  stamp: ``[T]``, the last group for which the tensor was listed, or -1.
  tensors: ``[T]``, those that one group makes or reads.
  previous: ``[N]``, previous devices of the members of one group.
  load: ``[T]`` bytes of each tensor at the peak, if it has not been tried yet.
  waits: ``[T]`` bytes of those that are at the peak because of the time of a transfer.
  moved: ``[N]``, ops that change their side of the peak.
  shifted, chosen: ``[N]``, the order that is tried, and the best one that was.
  penalty: ``[D]`` bytes, as from `penalise`. It is not changed.
"""


def make_state(place: np.ndarray, order: np.ndarray, devices: int, tensors: int) -> State:
    """The state in which `refine` begins with the placement ``place [N]`` and the order ``order [N]``."""
    n, d = len(place), devices
    return State(
        place=place.astype(np.int64),
        order=order.astype(np.int64),
        early=np.zeros(tensors, np.int64),
        found=np.empty(n, np.int64),
        found_order=np.empty(n, np.int64),
        found_early=np.empty(tensors, np.int64),
        peaks=np.empty(d),
        at_peak=np.zeros(tensors),
        position=np.empty(n, np.int64),
        change=np.empty(2 * d * (2 * n + 1)),
        sends=np.empty(2 * n, np.int64),
        since=np.empty(2 * d * tensors, np.int64),
        until=np.empty(2 * d * tensors, np.int64),
        held=np.empty(d * 2 * n),
        first=np.empty(d, np.int64),
        last=np.empty(d, np.int64),
        high=np.empty(d),
        weight=np.empty(n),
        movers=np.empty(n, np.int64),
        stamp=np.full(tensors, -1),
        tensors=np.empty(tensors, np.int64),
        previous=np.empty(n, np.int64),
        load=np.empty(tensors),
        waits=np.empty(tensors),
        moved=np.empty(n, np.int64),
        shifted=np.empty(n, np.int64),
        chosen=np.empty(n, np.int64),
        penalty=np.zeros(d),
    )


@only_borrows
def penalise(peaks: Any, memory: Any, penalty: Any) -> None:
    """Sets the bytes that are added to what a device holds in a slot where that exceeds its memory.

    A device with little memory that exceeds it then counts like one with the highest peak. There is no
    penalty where all memory is equal or enough.

    Args:
      peaks: ``[D]`` bytes of a placement. If they do not fit, peaks of the same sum do, if any.
      memory: ``[D]`` bytes, the capacities.
      penalty: ``[D]``, overwritten.
    """
    d = len(peaks)
    highest, total, most, fits = 0.0, 0.0, 0.0, True
    for k in range(d):
        highest, total = max(highest, peaks[k]), total + peaks[k]
        most = max(most, memory[k])
        fits &= peaks[k] <= memory[k]
    if not fits:
        # The lowest highest peak of the same sum: devices with less memory are full.
        highest, others = total / d, d
        for _ in range(d):
            full, others = 0.0, 0
            for k in range(d):
                if memory[k] < highest:
                    full += memory[k]
                else:
                    others += 1
            if others > 0:
                highest = (total - full) / others
        highest = min(highest, most)
    for k in range(d):
        penalty[k] = max(0.0, highest - memory[k])


@only_borrows
def refine(
    layout: Any, state: Any, tries: int, widths: Any, resend: int, reorder: int, least_gain: float
) -> int:
    """`PeakBalance.refine`; with moves to other devices alone, the same placement as that of NumPy.

    Args:
      layout: The graph, with at least one op.
      state: Overwritten. ``found``, ``found_order``, ``found_early``, ``peaks`` and ``at_peak`` have the
        result, whose highest peak is the lowest one, penalties included.
      tries: Approximate number of moves to evaluate.
      widths: Numbers of moves to other devices to try in a step.
      resend: Number of transfers to try at their other time in a step, only for transfers that block.
      reorder: Number of moves in the order to try in a step.
      least_gain: Least relative improvement of a step.

    Returns:
      The number of tries that are left.
    """
    (
        begin, resident, size, keep, rows, readers, temp, allowed, group, bounds, members, touched_rows,
        touched, before_rows, before, after_rows, after, memory,
    ) = layout  # fmt: skip
    (
        place, order, early, found, found_order, found_early, peaks, at_peak, position, change, sends, since,
        until, held, first, last, high, weight, movers, stamp, tensors, previous, load, waits, moved, shifted,
        chosen, penalty,
    ) = state  # fmt: skip
    n, d, count = len(place), len(first), len(begin)
    lane = 2 * n + 1

    def add(t, sign, half):
        """Adds ``sign`` times a tensor to the bytes while devices hold it."""
        for k in range(d):
            at = (half * d + k) * count + t
            if until[at] >= 0:
                change[(half * d + k) * lane + since[at]] += sign * size[t]
                change[(half * d + k) * lane + until[at] + 1] -= sign * size[t]
                if since[at] % 2 == 1:
                    sends[half * n + since[at] // 2] += int(sign)

    def hold(t, half):
        """Writes since when and until when each device holds a tensor, and adds it to the bytes."""
        for k in range(d):
            first[k], last[k] = 2 * n, -1
        for j in range(rows[t], rows[t + 1]):
            i = 2 * position[readers[j]]
            k = place[readers[j]]
            first[k], last[k] = min(first[k], i), max(last[k], i)
        made, home = 2 * position[begin[t]], place[begin[t]]
        end = max(made, last[home])
        for k in range(d):
            if k != home and last[k] >= 0:
                # A transfer reads the tensor on its home in the slot in which the other device gets it.
                if early[t] == 1:
                    first[k] = made + 1
                end = max(end, first[k])
        first[home], last[home] = 0 if resident[t] else made, 2 * n - 1 if keep[t] else end
        for k in range(d):
            at = (half * d + k) * count + t
            since[at], until[at] = first[k], last[k]
        add(t, 1.0, half)

    def run(o, amount, half):
        """Adds ``amount`` while an op runs."""
        at = (half * d + place[o]) * lane + 2 * position[o]
        change[at] += amount
        change[at + 1] -= amount

    def put(mover, device):
        """Moves a group, but for its tensors; returns their number, and lists them."""
        listed = 0
        for m in range(bounds[mover], bounds[mover + 1]):
            o = members[m]
            for j in range(touched_rows[o], touched_rows[o + 1]):
                t = touched[j]
                if stamp[t] != mover:
                    stamp[t] = mover
                    tensors[listed] = t
                    listed += 1
            run(o, -temp[o], 0)
            previous[o], place[o] = place[o], device
            run(o, temp[o], 0)
        for j in range(listed):
            stamp[tensors[j]] = -1
        return listed

    def renew(listed):
        """Holds the listed tensors as they are now; the second half keeps how they were held."""
        for j in range(listed):
            t = tensors[j]
            add(t, -1.0, 0)
            for k in range(d):
                at = k * count + t
                since[d * count + at], until[d * count + at] = since[at], until[at]
            hold(t, 0)

    def take_back(listed):
        """Holds the listed tensors as they were before."""
        for j in range(listed):
            t = tensors[j]
            add(t, -1.0, 0)
            for k in range(d):
                at = k * count + t
                since[at], until[at] = since[d * count + at], until[d * count + at]
            add(t, 1.0, 0)

    def counted(bytes_now, k):
        """The bytes that a device holds, with its penalty if they exceed its memory."""
        return bytes_now + penalty[k] if bytes_now > memory[k] else bytes_now

    def power(bytes_now, scale):
        share = bytes_now * scale
        share *= share * share
        for _ in range(SQUARINGS):
            share *= share
        return share

    def norm(scale, enough, half):
        """The sum of high powers, one device after the other; it may stop once it reaches ``enough``."""
        total = 0.0
        for k in range(d):
            now, line = 0.0, (half * d + k) * lane
            for start in range(0, n, _AT_ONCE):
                for i in range(start, min(n, start + _AT_ONCE)):
                    now += change[line + 2 * i]
                    total += power(counted(now, k), scale)
                    now += change[line + 2 * i + 1]
                    if sends[half * n + i] > 0:
                        total += power(counted(now, k), scale)
                if total >= enough:
                    return total
        return total

    def weigh(device, slot):
        """Sets the bytes that each group holds on a device in a slot, copies for the group included.

        Returns the number of groups with a weight, which it lists.
        """
        for i in range(n):
            weight[i] = 0.0
        for t in range(count):
            load[t] = waits[t] = 0.0
            if since[device * count + t] <= slot <= until[device * count + t]:
                at_home, early_use, late_use = place[begin[t]] == device, False, False
                # What is at home from beginning to end is there in any order.
                load[t] = 0.0 if resident[t] and keep[t] and at_home else size[t]
                if at_home:
                    weight[group[begin[t]]] += size[t]
                for j in range(rows[t], rows[t + 1] if resend > 0 or not at_home else 0):
                    if place[readers[j]] == device:
                        # A copy counts for all of its readers on the device.
                        if not at_home:
                            weight[group[readers[j]]] += size[t]
                        early_use |= 2 * position[readers[j]] <= slot
                        late_use |= 2 * position[readers[j]] >= slot
                if at_home:
                    made = 2 * position[begin[t]]
                    if early[t] == 0 and not keep[t] and not late_use and made < slot - 1:
                        waits[t] = size[t]
                elif early[t] == 1 and not early_use:
                    waits[t] = size[t]
        if slot % 2 == 0 and place[order[slot // 2]] == device:
            weight[group[order[slot // 2]]] = np.inf
        few = 0
        for i in range(n):
            movers[few] = i
            few += weight[i] > 0
        return few

    def largest(bytes_of):
        """The tensor of most bytes, the first on ties, or -1; it counts no longer."""
        t, most = -1, 0.0
        for j in range(count):
            if bytes_of[j] > most:
                t, most = j, bytes_of[j]
        if t >= 0:
            bytes_of[t] = 0.0
        return t

    def shift(t, device, peak_at, earlier):
        """Writes to ``shifted`` an order in which the device need not hold a tensor at a position.

        Either the readers after the position come before it, with all ops that they need, or what makes the
        tensor, or the first copy, comes after it, with all ops that need it. Returns whether there is such an
        order.
        """
        home, many = place[begin[t]], 0
        if not earlier and home == device:
            if resident[t] or position[begin[t]] >= peak_at:
                return False
            moved[0] = begin[t]
            many = 1
        else:
            if keep[t] and home == device:
                return False
            for j in range(rows[t], rows[t + 1]):
                o = readers[j]
                on = place[o] == device or (earlier and home == device)
                crosses = position[o] > peak_at if earlier else position[o] < peak_at
                if on and crosses and (many == 0 or moved[many - 1] != o):
                    moved[many] = o
                    many += 1
            if many == 0:
                return False
        # Positions of ops that move are negative meanwhile.
        for i in range(many):
            position[moved[i]] = -1 - position[moved[i]]
        lists, listed = (before_rows, before) if earlier else (after_rows, after)
        i, possible = 0, True
        while i < many and possible:
            o = moved[i]
            i += 1
            for j in range(lists[o], lists[o + 1]):
                p = listed[j]
                if position[p] == peak_at:
                    possible = False
                elif position[p] >= 0 and (position[p] > peak_at) == earlier:
                    position[p] = -1 - position[p]
                    moved[many] = p
                    many += 1
        if possible:
            low = high = peak_at
            for i in range(many):
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
        for i in range(many):
            position[moved[i]] = -1 - position[moved[i]]
        return possible

    def fill(sequence, half):
        """Sets the positions of ops in an order, and the bytes with the current placement."""
        for i in range(n):
            position[sequence[i]] = i
            sends[half * n + i] = 0
        for i in range(half * d * lane, (half + 1) * d * lane):
            change[i] = 0.0
        for t in range(count):
            hold(t, half)
        for o in range(n):
            run(o, temp[o], half)

    best, scale, now, anew = np.inf, 0.0, 0.0, True
    while True:
        if anew:
            fill(order, 0)
        # The highest peak, the first on ties.
        device = slot = 0
        peak = -np.inf
        for k in range(d):
            bytes_now, high[k], at = 0.0, 0.0, 0
            for i in range(2 * n):
                bytes_now += change[k * lane + i]
                held[k * 2 * n + i] = bytes_now
                if bytes_now > high[k] and (i % 2 == 0 or sends[i // 2] > 0):
                    high[k], at = bytes_now, i
            if counted(high[k], k) > peak:
                peak, device, slot = counted(high[k], k), k, at
        if peak < best:
            if best == np.inf:
                scale = 1 / peak if peak > 0 else 1.0
                now = norm(scale, np.inf, 0)
            best = peak
            for k in range(d):
                peaks[k] = high[k]
            for i in range(n):
                found[i], found_order[i] = place[i], order[i]
            for t in range(count):
                found_early[t] = early[t]
                here = device * count + t
                at_peak[t] = size[t] if since[here] <= slot <= until[here] else 0.0
        if tries <= 0:
            break
        few, goal, least = weigh(device, slot), now * (1 - least_gain), np.inf
        best_kind = best_one = target = 0
        for width in widths:
            least = np.inf
            # Moves to other devices (0), of transfers (1), and in the order (2): of what reads a tensor, and
            # back of what makes it.
            kind, tried, one, to, listed, back = 0, 0, -1, -1, 0, True
            while True:
                if kind == 0:
                    if tried >= width or few == 0:
                        kind, tried = 1, 0
                        continue
                    # The group of most weight, the first on ties, goes to the device that holds least.
                    at = 0
                    for j in range(1, few):
                        i, o = movers[j], movers[at]
                        if weight[i] > weight[o] or (weight[i] == weight[o] and i < o):
                            at = j
                    one, to, least_held = movers[at], -1, np.inf
                    few -= 1
                    movers[at] = movers[few]
                    for k in range(d):
                        there = held[k * 2 * n + slot] + penalty[k]
                        if k != device and allowed[one * d + k] and there < least_held:
                            to, least_held = k, there
                    if to < 0:
                        continue
                    listed = put(one, to)
                elif kind == 1:
                    one = largest(waits) if tried < resend else -1
                    if one < 0:
                        kind, tried = 2, 0
                        continue
                    early[one] = 1 - early[one]
                    tensors[0], listed = one, 1
                else:
                    back = not back
                    if not back:
                        one = largest(load) if tried < reorder else -1
                        if one < 0:
                            break
                    if not shift(one, device, slot // 2, not back):
                        continue
                if kind == 2:
                    fill(shifted, 1)
                else:
                    renew(listed)
                tried += 1
                tries -= 1
                this = norm(scale, min(least, goal), 1 if kind == 2 else 0)
                if this < least:
                    least, best_kind, best_one, target = this, kind, one, to
                    for i in range(n if kind == 2 else 0):
                        chosen[i] = shifted[i]
                if kind == 0:
                    for m in range(bounds[one], bounds[one + 1]):
                        o = members[m]
                        run(o, -temp[o], 0)
                        place[o] = previous[o]
                        run(o, temp[o], 0)
                elif kind == 1:
                    early[one] = 1 - early[one]
                else:
                    for i in range(n):
                        position[order[i]] = i
                if kind < 2:
                    take_back(listed)
            if least < goal:
                break
        if not least < goal:
            break
        now, anew, listed = least, best_kind == 2, 1
        if best_kind == 2:
            for i in range(n):
                order[i] = chosen[i]
            continue
        if best_kind == 1:
            early[best_one] = 1 - early[best_one]
            tensors[0] = best_one
        else:
            listed = put(best_one, target)
        renew(listed)
    return tries
