"""What is known of the memory of a schedule before an insertion move is tried.

`regal_jax.heuristics.insertion_kernel.insert` calls these loops by their addresses, so that they are compiled
only where memory is limited.
"""

from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.runtime.compiling import only_borrows

__all__ = ["Usage", "fits_there", "make_usage", "set_usage"]

Usage = namedtuple("Usage", "held added fits holders many")
"""What devices hold in the current schedule.

Attributes:
  held: ``[M * D]`` bytes, held by each device at each event, scratch memory included.
  added: ``[M + 1]`` bytes, zeros; space for `fits_there`.
  fits: ``[1]``, 1 if the last ops that `fits_there` looked at fit, 0 if not.
  holders, many: ``[N]``, ``[1]``: of the device that exceeds its memory most, the ops that make, read or use
    what it holds at its peak, and their number; 0 if the schedule fits.
"""


def make_usage(layout: Any, *, limited: bool) -> Usage:
    """Space for schedules of a `regal_jax.heuristics.list_state.Layout`; empty if memory is not limited."""
    n = len(layout.leader) if limited else 0
    events = n + len(layout.inputs) if limited else 0
    sizes = events * len(layout.memory), events + 1, 1, n, 1
    return Usage(*(np.zeros(size, np.int64) for size in sizes))


@only_borrows
def set_usage(layout: Any, edges: Any, room: Any, now: Any, work: Any, usage: Any) -> Any:
    """Sets what the devices hold in the current schedule.

    Args:
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      edges: The rest of the graph, `regal_jax.heuristics.insertion_kernel.Edges`.
      room: From `regal_jax.heuristics.schedule_peaks.peaks` of this schedule.
      now: The schedule, `regal_jax.heuristics.insertion_kernel.Events`.
      work: `regal_jax.heuristics.insertion_kernel.Work`, of which ``member`` is 0 for all ops.
      usage: Overwritten, but for ``added`` and ``fits``.

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
