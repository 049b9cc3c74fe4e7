"""The sums and moves of `PeakBalance`, in loops that Numba compiles."""

from collections import namedtuple

import numpy as np

from regal_jax.runtime.compiling import compiled

__all__ = ["Layout", "peaks", "refine"]

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
  allowed: ``[N, D]`` bool.
  group: ``[N]`` int64, the first op of the colocation group.
  bounds, members: ``[N + 1]``, ``[N]`` int64, the ops of each group.
  touched_rows, touched: ``[N + 1]``, ``[...]`` int64, the tensors that each op makes or reads.
"""

_State = namedtuple("_State", "place change held end first last weight stamp tensors before")
"""The state of a refinement.

Attributes:
  place: ``[N]`` device.
  change: ``[D, N + 1]`` bytes, change of the bytes that a device holds from the position before; the last is
    after all.
  held: ``[D, N]`` bytes.
  end: ``[T]``, the last position at which the producer's device holds the tensor.
  first, last: ``[D]``, the first and the last reader of one tensor on each device.
  weight: ``[N]`` bytes that each group holds at the peak, or makes others hold.
  stamp: ``[T]``, the last group for which the tensor was listed.
  tensors: ``[T]``, those of one group.
  before: ``[N]``, previous devices of the members of one group.
"""


@compiled
def _read(g, s, t):
    """Finds the first and the last reader of a tensor on every device: ``N`` and -1 where there is none."""
    for k in range(len(s.first)):
        s.first[k], s.last[k] = len(s.place), -1
    for j in range(g.rows[t], g.rows[t + 1]):
        i = g.readers[j]
        k = s.place[i]
        s.first[k], s.last[k] = min(s.first[k], i), max(s.last[k], i)


@compiled
def _hold(g, s, t, size):
    """Adds ``size`` bytes to the devices and positions at which the tensor is held."""
    _read(g, s, t)
    home = s.place[g.begin[t]]
    end = max(g.begin[t], s.last[home])
    for k in range(len(s.first)):
        if k != home and s.last[k] >= 0:
            # A transfer reads the tensor on its home at the position of the first reader on the other device.
            end = max(end, s.first[k])
            s.change[k, s.first[k]] += size
            s.change[k, s.last[k] + 1] -= size
    if g.keep[t]:
        end = len(s.place) - 1
    s.change[home, g.born[t]] += size
    s.change[home, end + 1] -= size
    s.end[t] = end


@compiled
def _run(g, s, i, sign):
    s.change[s.place[i], i] += sign * g.temp[i]
    s.change[s.place[i], i + 1] -= sign * g.temp[i]


@compiled
def _hold_part(g, s, group, count, sign):
    """Adds or subtracts the memory of the ops of a group and of their tensors."""
    for x in range(count):
        _hold(g, s, s.tensors[x], sign * g.size[s.tensors[x]])
    for m in range(g.bounds[group], g.bounds[group + 1]):
        _run(g, s, g.members[m], sign)


@compiled
def _list_tensors(g, s, group):
    """Lists every tensor that a group makes or reads once; returns their number."""
    count = 0
    for m in range(g.bounds[group], g.bounds[group + 1]):
        for x in range(g.touched_rows[g.members[m]], g.touched_rows[g.members[m] + 1]):
            t = g.touched[x]
            if s.stamp[t] != group:
                s.stamp[t] = group
                s.tensors[count] = t
                count += 1
    for x in range(count):
        s.stamp[s.tensors[x]] = -1
    return count


@compiled
def _norm(s, scale, enough):
    """The sum of the 48th powers, sequentially; it may stop once the sum exceeds ``enough``."""
    total = 0.0
    for k in range(s.held.shape[0]):
        held = 0.0
        for i in range(s.held.shape[1]):
            held += s.change[k, i]
            share = held * scale
            share *= share * share
            share *= share
            share *= share
            share *= share
            share *= share
            total += share
        if total >= enough:
            break
    return total


@compiled
def _highest(s):
    """Sums up the memory held; returns device and position of the highest peak, the first on ties."""
    device = position = 0
    for k in range(s.held.shape[0]):
        held = 0.0
        for i in range(s.held.shape[1]):
            held += s.change[k, i]
            s.held[k, i] = held
            if held > s.held[device, position]:
                device, position = k, i
    return device, position


@compiled
def _weigh(g, s, device, position):
    """Sets the bytes that each group holds on a device at a position, copies for the group included."""
    s.weight[:] = 0
    for t in range(len(g.begin)):
        if s.place[g.begin[t]] == device:
            if g.born[t] <= position <= s.end[t]:
                s.weight[g.group[g.begin[t]]] += g.size[t]
            continue
        first, last = len(s.place), -1
        for j in range(g.rows[t], g.rows[t + 1]):
            i = g.readers[j]
            if s.place[i] == device:
                first, last = min(first, i), max(last, i)
        if first <= position <= last:
            # A copy counts for all of its readers on the device.
            for j in range(g.rows[t], g.rows[t + 1]):
                if s.place[g.readers[j]] == device:
                    s.weight[g.group[g.readers[j]]] += g.size[t]
    if s.place[position] == device:
        s.weight[g.group[position]] = np.inf


@compiled
def _next_move(g, s, device, position):
    """The movable group of most weight, which is cleared, and the device that holds least; -1 for none."""
    while True:
        group, most = -1, 0.0
        for i in range(len(s.weight)):
            if s.weight[i] > most:
                group, most = i, s.weight[i]
        if group < 0:
            return -1, -1
        s.weight[group] = 0
        target = -1
        for k in range(s.held.shape[0]):
            free = k != device and g.allowed[group, k]
            if free and (target < 0 or s.held[k, position] < s.held[target, position]):
                target = k
        if target >= 0:
            return group, target


@compiled
def _put(g, s, group, count, device):
    """Moves a group; device -1 undoes its last move."""
    _hold_part(g, s, group, count, -1.0)
    at = g.bounds[group]
    for m in range(at, g.bounds[group + 1]):
        i = g.members[m]
        if device < 0:
            s.place[i] = s.before[m - at]
        else:
            s.before[m - at] = s.place[i]
            s.place[i] = device
    _hold_part(g, s, group, count, 1.0)


@compiled
def _begin(g, place):
    n, d = g.allowed.shape
    t = len(g.begin)
    s = _State(
        place.copy(),
        np.zeros((d, n + 1)),
        np.zeros((d, n)),
        np.zeros(t, np.int64),
        np.zeros(d, np.int64),
        np.zeros(d, np.int64),
        np.zeros(n),
        np.full(t, -1),
        np.zeros(t, np.int64),
        np.zeros(n, np.int64),
    )
    for i in range(t):
        _hold(g, s, i, g.size[i])
    for i in range(n):
        _run(g, s, i, 1.0)
    return s


@compiled
def peaks(g, place):
    """``[D]`` float64 bytes under a placement ``[N]`` int64."""
    s = _begin(g, place)
    most = np.zeros(len(s.first))
    for k in range(s.held.shape[0]):
        held = 0.0
        for i in range(s.held.shape[1]):
            held += s.change[k, i]
            most[k] = max(most[k], held)
    return most


@compiled
def refine(g, place, tries, widths, least_gain):
    """`PeakBalance.refine`, the same to the last bit.

    Args:
      g: The graph.
      place: ``[N]`` int64 device of every op; not changed.
      tries: Approximate number of placements to evaluate.
      widths: Numbers of moves to try in a step, as a tuple.
      least_gain: Least relative improvement of a step.

    Returns:
      ``[N]`` int64, and the number of tries that are left.
    """
    s = _begin(g, place)
    device, position = _highest(s)
    best = s.held[device, position]
    scale = 1 / best if best > 0 else 1.0
    found, now = s.place.copy(), _norm(s, scale, np.inf)
    while tries > 0:
        _weigh(g, s, device, position)
        norm, group, target = np.inf, -1, -1
        for width in widths:
            norm, group, target = np.inf, -1, -1
            for _ in range(width):
                mover, to = _next_move(g, s, device, position)
                if mover < 0:
                    break
                tries -= 1
                count = _list_tensors(g, s, mover)
                _put(g, s, mover, count, to)
                this = _norm(s, scale, norm)
                _put(g, s, mover, count, -1)
                if this < norm:
                    norm, group, target = this, mover, to
            if norm < now * (1 - least_gain):
                break
        if not norm < now * (1 - least_gain):
            break
        now = norm
        _put(g, s, group, _list_tensors(g, s, group), target)
        device, position = _highest(s)
        if s.held[device, position] < best:
            best = s.held[device, position]
            found[:] = s.place
    return found, tries
