"""Peak memory of list schedules, for searches that evaluate thousands of them."""

from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.runtime.compiling import only_borrows

__all__ = ["Listed", "Room", "listed_of", "make_listed", "make_room", "peaks"]

Listed = namedtuple("Listed", "place event slot counts")
"""The part of `regal_jax.heuristics.list_state.State` that `peaks` reads."""

Room = namedtuple("Room", "order first position begin end change peak")
"""The space that `peaks` writes to.

Attributes:
  order: ``[M]``, events in schedule order.
  first: ``[M + 1]``, begin of each slot in ``order``.
  position: ``[N]``, place of each op in ``order``.
  begin, end: ``[T * D]``, first and last position at which a device holds a tensor.
  change: ``[D * (M + 2)]`` bytes, change of the bytes that a device holds from the position before.
  peak: ``[D]`` bytes, the result.
"""


def listed_of(state: Any) -> Listed:
    """The arrays of a `regal_jax.heuristics.list_state.State`."""
    return Listed(state.place, state.event, state.slot, state.counts)


def make_room(layout: Any, state: Any) -> Room:
    """A `Room` for schedules of a `regal_jax.heuristics.list_state.Layout`."""
    devices, events = len(state.clock), len(state.event)
    sizes = events, events + 1, len(state.place), *[len(layout.size) * devices] * 2, devices * (events + 2)
    return Room(*(np.zeros(size, np.int64) for size in (*sizes, devices)))


def make_listed(layout: Any) -> Listed:
    """Space for the events of a schedule."""
    n, events = len(layout.leader), len(layout.leader) + len(layout.inputs)
    return Listed(*(np.zeros(size, np.int64) for size in (n, events, events, 2)))


@only_borrows
def peaks(layout: Any, listed: Any, room: Any) -> Any:
    """Peak memory of each device under a schedule, equal to that of `regal_jax.plan.replay`.

    Args:
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      listed: Of the state that `schedule` returns.
      room: Overwritten.

    Returns:
      ``room``.
    """
    input_rows, inputs, output_rows = layout.input_rows, layout.inputs, layout.output_rows
    size, temp, keep, resident, blocking = (
        layout.size, layout.temp, layout.keep, layout.resident, layout.blocking,
    )  # fmt: skip
    place, event, slot, counts = listed
    order, first, position, begin, end, change, peak = room
    n, d, last = len(place), len(peak), counts[0]
    for i in range(counts[1] + 1):
        first[i] = 0
    for i in range(last):
        first[slot[i] + 1] += 1
    for i in range(counts[1]):
        first[i + 1] += first[i]
    # An inserted transfer comes after the events that were in its slot before.
    for i in range(last):
        order[first[slot[i]]] = event[i]
        first[slot[i]] += 1
    for i in range(len(begin)):
        begin[i], end[i] = last, -1
    for i in range(last):
        if order[i] < n:
            position[order[i]] = i
        else:
            begin[order[i] - n] = i
    for o in range(n):
        for j in range(input_rows[o], input_rows[o + 1]):
            i = inputs[j] * d + place[o]
            end[i] = max(end[i], position[o])
            if not blocking:
                begin[i] = min(begin[i], position[o])
    for o in range(n):
        k = place[o]
        for t in range(output_rows[o], output_rows[o + 1]):
            home = t * d + k
            end[home] = last if keep[t] else max(end[home], position[o])
            for i in range(t * d, t * d + d):
                if i != home and begin[i] < last:
                    end[home] = max(end[home], begin[i])
            # The outputs of a resident are in memory from time 0.
            begin[home] = 0 if resident[o] else position[o]
    for i in range(d * (last + 2)):
        change[i] = 0
    for i in range(len(begin)):
        if begin[i] < last:
            row = i % d * (last + 2)
            change[row + begin[i]] += size[i // d]
            change[row + min(end[i] + 1, last + 1)] -= size[i // d]
    for k in range(d):
        held, peak[k] = 0, 0
        for i in range(last):
            held += change[k * (last + 2) + i]
            peak[k] = max(peak[k], held)
            o = order[i]
            if o < n and place[o] == k:
                peak[k] = max(peak[k], held + temp[o])
    return room
