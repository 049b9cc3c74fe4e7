"""What is known of the memory of a schedule before an insertion move is tried.

`regal_jax.heuristics.insertion_kernel.insert` calls these loops by their addresses, so that they are compiled
only where memory is limited.
"""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.runtime.compiling import only_borrows

__all__ = ["UNKNOWN", "Usage", "fits_there", "make_usage", "set_usage", "shift_fits"]

UNKNOWN: Final = 2
"""What ``fits`` is where `shift_fits` does not know."""

Usage = namedtuple("Usage", "held added row fits holders many")
"""What devices hold in the current schedule.

Attributes:
  held: ``[M * D]`` bytes, held by each device at each event, scratch memory included.
  added: ``[(M + 1) * D]`` bytes, zeros; space for `fits_there` and `shift_fits`.
  row: ``[D]`` bytes; space for `shift_fits`.
  fits: ``[1]``, 1 if what `fits_there` or `shift_fits` looked at last fits, 0 if not.
  holders, many: ``[N]``, ``[1]``: of the device that exceeds its memory most, the ops that make, read or use
    what it holds at its peak, and their number; 0 if the schedule fits.
"""


def make_usage(layout: Any, *, limited: bool) -> Usage:
    """Space for schedules of a `regal_jax.heuristics.list_state.Layout`; empty if memory is not limited."""
    n = len(layout.leader) if limited else 0
    events, d = n + len(layout.inputs) if limited else 0, len(layout.memory)
    sizes = events * d, (events + 1) * d, d, 1, n, 1
    return Usage(*(np.zeros(size, np.int64) for size in sizes))


@only_borrows
def set_usage(layout: Any, edges: Any, room: Any, now: Any, work: Any, usage: Any) -> Any:
    """Sets what the devices hold in the current schedule.

    Args:
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      edges: The rest of the graph, `regal_jax.heuristics.insertion_kernel.Edges`.
      room: From `regal_jax.heuristics.schedule_peaks.peaks` of this schedule.
      now: The schedule, `regal_jax.heuristics.insertion_kernel.Events`.
      work: `regal_jax.heuristics.insertion_kernel.Work`. Ops whose ``member`` is 1 are not among the holders.
      usage: ``held``, ``holders`` and ``many`` are overwritten.

    Returns:
      ``usage``.
    """
    home, member, holders = now.home, work.member, usage.holders
    n, d, count = len(home), len(layout.memory), now.counts[0]
    for k in range(d):
        total = 0
        for i in range(count):
            total += room.change[k * (count + 2) + i]
            usage.held[i * d + k] = total
    for o in range(n):
        usage.held[now.place[o] * d + home[o]] += layout.temp[o]
    full, peak, excess, many = 0, 0, 0.0, 0
    for k in range(d):
        for i in range(count):
            if usage.held[i * d + k] - layout.memory[k] > excess:
                full, peak, excess = k, i, usage.held[i * d + k] - layout.memory[k]
    for t in range(len(layout.size) if excess > 0 else 0):
        if room.begin[t * d + full] <= peak <= room.end[t * d + full]:
            u, first, last = layout.producer[t], edges.reader_rows[t], edges.reader_rows[t + 1]
            # Those on the device: of a tensor's home its producer, of a copy its readers.
            for r in range(last if home[u] == full else first, last + 1 if home[u] == full else last):
                o = u if home[u] == full else edges.readers[r]
                if home[o] == full and member[o] == 0:
                    member[o], holders[many] = 1, o
                    many += 1
    e = now.event[peak] if excess > 0 else n
    if e < n and home[e] == full and member[e] == 0:
        member[e], holders[many] = 1, e
        many += 1
    for i in range(many):
        member[holders[i]] = 0
    usage.many[0] = many
    return usage


@only_borrows
def fits_there(layout: Any, edges: Any, now: Any, work: Any, usage: Any, size: int, k: int) -> Any:
    """Whether ops fit on another device if all events keep their places.

    It counts scratch memory, outputs, and copies of inputs that are not there. It is exact up to two things:
    an input that is already there may have to stay longer, and a move may change the order of events.

    Args:
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      edges: The rest of the graph, `regal_jax.heuristics.insertion_kernel.Edges`.
      now: The schedule, `regal_jax.heuristics.insertion_kernel.Events`.
      work: `regal_jax.heuristics.insertion_kernel.Work`: the ops are listed in ``moved``, and ``member`` is 1
        for each of them.
      usage: ``held`` is from `set_usage`, ``fits`` is overwritten.
      size: Number of ops.
      k: The other device.

    Returns:
      ``usage``.
    """
    input_rows, inputs, output_rows, producer = (
        layout.input_rows, layout.inputs, layout.output_rows, layout.producer,
    )  # fmt: skip
    reader_rows, readers, bytes_of, blocking = edges.reader_rows, edges.readers, layout.size, layout.blocking
    home, place, uses, member = now.home, now.place, now.uses, work.member
    held, added = usage.held, usage.added
    n, d, count = len(home), len(layout.memory), now.counts[0]
    low, high = count, -1
    for i in range(size):
        o = work.moved[i]
        at = place[o]
        added[at] += layout.temp[o]
        added[at + 1] -= layout.temp[o]
        low, high = min(low, at), max(high, at)
        for t in range(output_rows[o], output_rows[o + 1]):
            end = at
            for h in range(d):
                first, last = count, -1
                for r in range(reader_rows[t], reader_rows[t + 1] if uses[t * d + h] > 0 else reader_rows[t]):
                    v = readers[r]
                    if member[v] == 1:
                        end = max(end, place[v])
                    elif home[v] == h:
                        first, last = min(first, place[v]), max(last, place[v])
                if last >= 0:
                    if blocking and h != home[o]:
                        first = place[n + t * d + h]
                    end = max(end, last if h == k else first)
                    if h == k:
                        # The copy that the device has now.
                        added[first] -= bytes_of[t]
                        added[last + 1] += bytes_of[t]
                        low = min(low, first)
            begin = 0 if layout.resident[o] else at
            end = count - 1 if layout.keep[t] else end
            added[begin] += bytes_of[t]
            added[end + 1] -= bytes_of[t]
            low, high = min(low, begin), max(high, end)
    # A copy of an input is counted with its first reader; `uses` marks it until all are counted.
    for i in range(size):
        o = work.moved[i]
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            if member[producer[t]] == 0 and home[producer[t]] != k:
                if uses[t * d + k] == 0:
                    end = place[o]
                    for r in range(reader_rows[t], reader_rows[t + 1]):
                        if member[readers[r]] == 1:
                            end = max(end, place[readers[r]])
                    added[place[o]] += bytes_of[t]
                    added[end + 1] -= bytes_of[t]
                    high = max(high, end)
                uses[t * d + k] += 1
    for i in range(size):
        o = work.moved[i]
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            if member[producer[t]] == 0 and home[producer[t]] != k:
                uses[t * d + k] -= 1
    total, fits = 0, 1
    for i in range(low, high + 2):
        total += added[i]
        added[i] = 0
        if total > 0 and i <= high and held[i * d + k] + total > layout.memory[k]:
            fits = 0
    usage.fits[0] = fits
    return usage


@only_borrows
def shift_fits(layout: Any, edges: Any, now: Any, usage: Any, e: int, found: int) -> Any:
    """Whether a schedule that fits still does after one event has gone to another place; exact.

    The other events hold what they held, but for the tensors that the event makes, reads or sends.

    Args:
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      edges: The rest of the graph, `regal_jax.heuristics.insertion_kernel.Edges`.
      now: The schedule, `regal_jax.heuristics.insertion_kernel.Events`: ``event`` is the new order, ``place``
        has the places before.
      usage: ``held`` is that of the schedule before, and becomes that of the new one if this fits.
        ``fits`` is overwritten.
      e: The event.
      found: Its new place. At the last place ``fits`` is `UNKNOWN`.

    Returns:
      ``usage``.
    """
    input_rows, inputs, output_rows, producer = (
        layout.input_rows, layout.inputs, layout.output_rows, layout.producer,
    )  # fmt: skip
    reader_rows, readers, bytes_of, blocking = edges.reader_rows, edges.readers, layout.size, layout.blocking
    home, place, event = now.home, now.place, now.event
    held, added, row = usage.held, usage.added, usage.row
    n, d, count, at = len(home), len(layout.memory), now.counts[0], place[e]
    low, high, step = min(at, found), max(at, found), 1 if found > at else -1

    def place_of(x, new):
        """The place of an event in the new or the former order."""
        if new and x == e:
            return found
        return place[x] - step if new and low <= place[x] <= high else place[x]

    def begin_of(t, k, new):
        """The place at which a device gets a tensor from another one; the number of events for none."""
        if blocking:
            return place_of(n + t * d + k, new) if place[n + t * d + k] >= 0 else count
        first = count
        for r in range(reader_rows[t], reader_rows[t + 1]):
            if home[readers[r]] == k:
                first = min(first, place_of(readers[r], new))
        return first

    def interval(t, k, new):
        """The first and the last place at which a device holds a tensor."""
        u, begin, end = producer[t], count, -1
        for h in range(d):
            sent = begin_of(t, h, new) if h != home[u] else count
            if h == k:
                begin = sent
            elif home[u] == k and sent < count:
                end = max(end, sent)
        for r in range(reader_rows[t], reader_rows[t + 1]):
            if home[readers[r]] == k:
                end = max(end, place_of(readers[r], new))
        if home[u] == k:
            begin = place_of(u, new)
            end = count if layout.keep[t] else max(end, begin)
            begin = 0 if layout.resident[u] else begin
        return begin, end

    def is_touched(t):
        """Whether the event makes, reads or sends a tensor."""
        if e >= n:
            return t == (e - n) // d
        touched = producer[t] == e
        for j in range(input_rows[e], input_rows[e + 1]):
            touched = touched or inputs[j] == t
        return touched

    if found == count - 1:
        usage.fits[0] = UNKNOWN
        return usage
    z = event[found + 1]
    # Of other tensors, devices hold at the event what they hold at the next one, but for what begins there.
    for k in range(d):
        row[k] = held[place[z] * d + k]
    if z < n:
        row[home[z]] -= layout.temp[z]
        for t in range(output_rows[z], output_rows[z + 1]):
            row[home[z]] -= 0 if layout.resident[z] else bytes_of[t]
        for j in range(input_rows[z], input_rows[z + 1] if not blocking else 0):
            t = inputs[j]
            if home[producer[t]] != home[z] and not is_touched(t):
                row[home[z]] -= bytes_of[t] if begin_of(t, home[z], 0) == place[z] else 0
    elif not is_touched((z - n) // d):
        row[(z - n) % d] -= bytes_of[(z - n) // d]
    makes = output_rows[e + 1] - output_rows[e] if e < n else 0
    reads = input_rows[e + 1] - input_rows[e] if e < n else 1
    for j in range(makes + reads):
        t = (e - n) // d
        if e < n:
            t = output_rows[e] + j if j < makes else inputs[input_rows[e] + j - makes]
        for k in range(d):
            for new in range(2):
                begin, end = interval(t, k, new)
                change = bytes_of[t] * (2 * new - 1)
                row[k] += change if begin <= (found if new else place[z]) <= end else 0
                # Places of the other events in the new order.
                first = max(begin if new else begin - step, low if step > 0 else low + 1)
                last = min(end if new else end - step, high - 1 if step > 0 else high)
                if first <= last:
                    added[first * d + k] += change
                    added[(last + 1) * d + k] -= change
    if e < n:
        row[home[e]] += layout.temp[e]
    fits = 1
    for k in range(d):
        total = 0
        fits = 0 if row[k] > layout.memory[k] else fits
        for i in range(low, high + 1):
            total += added[i * d + k]
            added[i * d + k] = total
            if i != found and total > 0 and held[(i + step) * d + k] + total > layout.memory[k]:
                fits = 0
        added[(high + 1) * d + k] = 0
    for j in range(high - low if fits == 1 else 0):
        # From the former place of the event to the new one.
        i = at + j * step
        for k in range(i * d, i * d + d):
            held[k] = held[k + step * d] + added[k]
    for k in range(d if fits == 1 else 0):
        held[found * d + k] = row[k]
    for i in range(low * d, (high + 1) * d):
        added[i] = 0
    usage.fits[0] = fits
    return usage
