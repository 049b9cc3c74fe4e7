"""The loop of the exact replay: events one after another, as in docs/design.md, part 1.

Numba compiles it if installed; in Python the results are bit for bit the same.
"""

from collections import namedtuple
from typing import Any, Final

from regal_jax.runtime.compiling import only_borrows

__all__ = [
    "LATE_TRANSFER",
    "MISSING",
    "NEEDLESS",
    "NO_EVENT",
    "TOO_EARLY",
    "TWICE",
    "Layout",
    "State",
    "execute",
]

NO_EVENT: Final = 1
"""Fault: there is no such event."""
TWICE: Final = 2
"""Fault: the event occurs twice."""
TOO_EARLY: Final = 3
"""Fault: the event waits for an op that has not run."""
LATE_TRANSFER: Final = 4
"""Fault: the event reads a tensor that has not been sent to its device."""
NEEDLESS: Final = 5
"""Fault: no op reads the tensor on that device."""
MISSING: Final = 6
"""Fault: some ops are never computed."""

Layout = namedtuple(
    "Layout",
    "place runtime temp resident outputs input_rows inputs control_rows controls producer size keep "
    "reader_rows readers cost link links devices blocking events",
)
"""A placed graph. Lists of lists are flat, with the bounds of each row; matrices are flat too.

Attributes:
  place: ``[N]``, device of each op.
  runtime: ``[N]``, runtime of each op there.
  temp, resident: ``[N]``, as in the graph.
  outputs: ``[N + 1]``, tensors that each op makes.
  input_rows, inputs: ``[N + 1]`` and ``[E]``, tensors that each op reads.
  control_rows, controls: ``[N + 1]`` and ``[C]``, ops that each op waits for.
  producer, size, keep: ``[T]``, as in the graph.
  reader_rows, readers: ``[T + 1]`` and ``[E]``, ops that read each tensor.
  cost: ``[T * L]``, time of each tensor over each kind of link.
  link: ``[D * D]``, kind of the link from row to column.
  links: Number of kinds of links ``L``.
  devices: Number of devices ``D``.
  blocking: Whether transfers are events.
  events: ``[M]`` ids.
"""

State = namedtuple(
    "State", "start finish done copied clock held peak left moved on when level before last fault"
)
"""The state of the replay; all zeros at first.

Attributes:
  start, finish: ``[M]``, times of each event.
  done: ``[N]``, time at which each op finished; -1 before.
  copied: ``[T * D]``, time at which each copy arrived; -1 before.
  clock, held, peak: ``[D]``, clock, bytes held and peak of each device.
  left: ``[T * D]``, readers of each tensor on each device that have not run. At home a copy counts as one.
  moved: ``[most inputs]``, tensors that are copied for the current op.
  on, when, level: ``[D + 2 N + T + 2 E]``, device, time and bytes held of every change of memory.
  before: ``[D + 2 N + T + 2 E]``, previous change on the same device; -1 for the first.
  last: ``[D + 1]``, the last change on each device, then the number of changes.
  fault: ``[3]``, code of the fault or 0; the event or op; one more number for the message.
"""


@only_borrows
def execute(layout: Any, state: Any) -> Any:
    """Runs the events in order, up to the first that is impossible.

    Args:
      layout: The graph and the events.
      state: The initial state, all zeros.

    Returns:
      ``state``.
    """
    (
        place, runtime, temp, resident, outputs, input_rows, inputs, control_rows, controls, producer, size,
        keep, reader_rows, readers, cost, link, links, devices, blocking, events,
    ) = layout  # fmt: skip
    (
        start, finish, done, copied, clock, held, peak, left, moved, on, when, level, before, last, fault,
    ) = state  # fmt: skip
    n, tensors, d = len(place), len(producer), devices

    def note(k, time, previous):
        """Adds an entry to the memory history of a device."""
        i = last[d]
        on[i], when[i], level[i], before[i] = k, time, held[k], previous
        last[k], last[d] = i, i + 1

    def change(k, by, time, own):
        """Changes the memory held on a device."""
        if by == 0:
            return
        held[k] += by
        # A device's own events are in the order of its clock. A release by a reader elsewhere (delay, free)
        # has a place in the order of events but another time, which is limited by both neighbours.
        i = last[k]
        while own and i >= 0 and when[i] > time:
            when[i] = time
            i = before[i]
        note(k, max(time, when[last[k]]), last[k])

    def read(t, k, time, own):
        """One reader on the device has run; the last one frees the tensor there."""
        left[t * d + k] -= 1
        if left[t * d + k] == 0 and not (keep[t] and k == place[producer[t]]):
            change(k, -size[t], time, own)

    def time_of(t, k):
        """Time of the transfer to a device."""
        return cost[t * links + link[place[producer[t]] * d + k]]

    def refuse(what, event, other):
        fault[0], fault[1], fault[2] = what, event, other

    def begin():
        """Sets the state in which nothing has run and residents are in memory."""
        for o in range(n):
            done[o] = -1.0
        for i in range(tensors * d):
            copied[i] = -1.0
        for t in range(tensors):
            home = place[producer[t]]
            for j in range(reader_rows[t], reader_rows[t + 1]):
                k = place[readers[j]]
                if k != home and left[t * d + k] == 0:
                    left[t * d + home] += 1
                left[t * d + k] += 1
            if resident[producer[t]]:
                held[home] += size[t]
        for k in range(d):
            peak[k] = held[k]
            note(k, 0.0, -1)

    def ready(o):
        """Time at which the device is free and all inputs are there, and the number of copies."""
        k, count = place[o], 0
        time = clock[k]
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            home, arrival = place[producer[t]], done[producer[t]]
            if arrival < 0:
                refuse(TOO_EARLY, o, producer[t])
                return time, count
            if home != k:
                if copied[t * d + k] < 0:
                    if blocking:
                        refuse(LATE_TRANSFER, o, t * d + k)
                        return time, count
                    moved[count] = t
                    count += 1
                    copied[t * d + k] = arrival + time_of(t, k)
                arrival = copied[t * d + k]
            time = max(time, arrival)
        for j in range(control_rows[o], control_rows[o + 1]):
            if done[controls[j]] < 0:
                refuse(TOO_EARLY, o, controls[j])
                return time, count
            time = max(time, done[controls[j]])
        return time, count

    def compute(i, o):
        k = place[o]
        if done[o] >= 0:
            refuse(TWICE, o, 0)
            return
        time, count = ready(o)
        if fault[0] != 0:
            return
        after = time + runtime[o]
        start[i], finish[i], clock[k], done[o] = time, after, after, after
        for j in range(count):
            change(k, size[moved[j]], time, True)
        made = temp[o]
        for t in range(outputs[o], outputs[o + 1]):
            made += 0 if resident[o] else size[t]
        change(k, made, time, True)
        peak[k] = max(peak[k], held[k])
        change(k, -temp[o], after, True)
        for t in range(outputs[o], outputs[o + 1]):
            if reader_rows[t] == reader_rows[t + 1] and not keep[t]:
                change(k, -size[t], after, True)
        for j in range(input_rows[o], input_rows[o + 1]):
            read(inputs[j], k, after, True)
        for j in range(count):
            read(moved[j], place[producer[moved[j]]], time, False)

    def transfer(i, event):
        t, k = (event - n) // d, (event - n) % d
        home = place[producer[t]]
        if not blocking or k == home or left[t * d + k] == 0:
            refuse(NEEDLESS, event, 0)
        elif copied[t * d + k] >= 0:
            refuse(TWICE, event, 0)
        elif done[producer[t]] < 0:
            refuse(TOO_EARLY, event, producer[t])
        if fault[0] != 0:
            return
        time = max(clock[home], clock[k])
        after = time + time_of(t, k)
        start[i], finish[i], clock[home], clock[k], copied[t * d + k] = time, after, after, after, after
        change(k, size[t], time, True)
        peak[k] = max(peak[k], held[k])
        read(t, home, after, True)

    begin()
    for i in range(len(events)):
        if events[i] < 0 or events[i] >= n + tensors * d:
            refuse(NO_EVENT, events[i], 0)
        elif events[i] < n:
            compute(i, events[i])
        else:
            transfer(i, events[i])
        if fault[0] != 0:
            return state
    for o in range(n):
        if done[o] < 0:
            refuse(MISSING, fault[1] if fault[0] != 0 else o, fault[2] + 1)
    return state
