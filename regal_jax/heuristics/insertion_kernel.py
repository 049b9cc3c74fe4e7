"""The loops of `Insertion`: compiled where Numba is, loops of plain Python over lists where it is not.

A move takes some events out of the order of events, and puts each back where the longest path through it is
shortest. One pass forwards, for the clocks before every event, and one backwards, for the time that is left
after it, tell this for all places. Each pass begins where the schedule differs from the one before, and ends
where the event can be.
"""

from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.runtime.compiling import only_borrows
from regal_jax.runtime.pointers import caller

__all__ = ["DRAWS", "Edges", "Events", "Work", "insert", "make_events", "make_work"]

_CANDIDATES: Final = 8
"""Draws of an op and a device; the one with most neighbours on the device moves there."""
DRAWS: Final = _CANDIDATES + 4
"""Uniform numbers per move."""
_MOVES: Final = 0.5
"""Share of moves in which an op changes its device; in the others one event changes its place alone."""
_EQUAL: Final = 1e-9
"""Paths whose lengths differ by less, relatively, are equally long."""
_ROUNDING: Final = 1e-12
"""Sums in another order may be longer by this, relatively."""

_call = caller()

Edges = namedtuple("Edges", "control_rows controls reader_rows readers group_rows group")
"""What the layout of list scheduling lacks. Lists of lists are flat, with the bounds of each row.

Attributes:
  control_rows, controls: ``[N + 1]``, ``[C]``, the ops that each op waits for without data.
  reader_rows, readers: ``[T + 1]``, ``[E]``, the ops that read each tensor.
  group_rows, group: ``[N + 1]``, ``[N]``, the ops of the colocation group of each leader.
"""

Events = namedtuple("Events", "event home place sender receiver takes counts value")
"""A schedule as its order of events.

Attributes:
  event: ``[M]``, the events in their order; an op ``o`` is ``o``, a transfer is ``N + t * D + k``.
  home: ``[N]``, the device of each op.
  place: ``[N + T * D]``, the place of each event in ``event``; -1 for none.
  sender, receiver: ``[N + T * D]``, the devices that each event holds, which are the same for an op.
  takes: ``[N + T * D]``, the time that each event takes.
  counts: ``[2]``, numbers of events, and of insertions in the last call.
  value: ``[1]``, makespan.
"""

Work = namedtuple("Work", "event place clock rest finish after length taken member anchor moved todo")
"""Space for a move.

Attributes:
  event, place: Of the new schedule, as in `Events`.
  clock: ``[(M + 1) * D]``, the clocks before each event, and at the end.
  rest: ``[(M + 1) * D]``, the time that each device still needs before each of the last events, the last one
    first; zeros come before it.
  finish: ``[N]``, the finish of each op.
  after: ``[N]``, the longest path after an op to those that wait for it on other devices.
  length: ``[M + 1]``, the longest path through an event at each place.
  taken: ``[N + T * D]``, 1 for events that a move takes out, 2 for those that it puts in.
  member: ``[N]``, 1 for ops that the move takes to another device.
  anchor: ``[N]``, the first op of the schedule that waits for such an op; -1 for none.
  moved: ``[N]``, these ops in their order.
  todo: ``[M]``, the events that are put in.
"""


def make_events(layout: Any, home: np.ndarray, events: np.ndarray, makespan: float) -> Events:
    """A schedule with the devices ``home [N]`` and the ``events`` in their order."""
    n, t, e, d = len(home), len(layout.size), len(layout.inputs), len(layout.memory)
    event, place = np.zeros(n + e, np.int64), np.full(n + t * d, -1)
    event[: len(events)] = events
    place[events] = np.arange(len(events))
    home, runtime = home.astype(np.int64), np.reshape(layout.runtime, (n, d))
    source = home[np.asarray(layout.producer, np.int64)]
    cost, link = np.reshape(layout.cost, (t, layout.links)), np.reshape(layout.link, (d, d))
    takes = np.take_along_axis(cost, np.asarray(link, np.int64)[source], axis=1)
    return Events(
        event=event,
        home=home,
        place=place,
        sender=np.concatenate([home, np.repeat(source, d)]),
        receiver=np.concatenate([home, np.tile(np.arange(d), t)]),
        takes=np.concatenate([runtime[np.arange(n), home], takes.ravel()]),
        counts=np.array([len(events), 0]),
        value=np.array([float(makespan)]),
    )


def make_work(layout: Any) -> Work:
    """Space for the schedules of a `regal_jax.heuristics.list_state.Layout`."""
    n, t, e, d = (len(rows) for rows in (layout.leader, layout.size, layout.inputs, layout.memory))
    sizes = {"event": n + e, "todo": n + e, "place": n + t * d, "taken": n + t * d}
    whole = {name: np.zeros(sizes.get(name, n), np.int64) for name in (*sizes, "member", "anchor", "moved")}
    clocks = {name: np.zeros((n + e + 1) * d) for name in ("clock", "rest")}
    return Work(finish=np.zeros(n), after=np.zeros(n), length=np.zeros(n + e + 1), **whole, **clocks)


@only_borrows
def insert(
    peaks: Any, layout: Any, listed: Any, room: Any, edges: Any, now: Any, work: Any, uniform: Any, made: Any,
    limited: bool, enough: int, goal: float,
) -> int:  # fmt: skip
    """Hill climbing: moves events of the current schedule, and keeps the result if it is no longer.

    A move takes out one event, or the ops of a colocation group with all transfers from and to them. The
    events are then put in one after another, ops first: each at the place where the longest path through it
    is shortest. Of equal places one is drawn.

    Args:
      peaks: Address of `regal_jax.heuristics.schedule_peaks.peaks`; not used where memory is not limited.
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      listed: Space for `peaks`; overwritten.
      room: Space for `peaks`; overwritten.
      edges: The rest of the graph.
      now: The current schedule, which fits the memory; replaced.
      work: Space for a move.
      uniform: ``[S * DRAWS]`` from [0, 1), of ``S`` moves.
      made: ``[2 * S]``, set to the number of the first insertion of each move, and the makespan after it.
      limited: Whether memory is limited.
      enough: No move begins after so many insertions.
      goal: The loop ends at a schedule with at most this makespan.

    Returns:
      Number of moves made, at most ``S``.
    """
    input_rows, inputs, producer = layout.input_rows, layout.inputs, layout.producer
    after_rows, successors, leader, allowed = layout.after_rows, layout.after, layout.leader, layout.allowed
    cost, link, links, runtime, blocking = (
        layout.cost, layout.link, layout.links, layout.runtime, layout.blocking,
    )  # fmt: skip
    output_rows = layout.output_rows
    control_rows, controls, reader_rows, readers, group_rows, group = edges
    event, home, place, sender, receiver, takes, counts, value = now
    new, spot, clock, rest, finish, after, length, taken, member, anchor, moved, todo = work
    n, d = len(home), len(layout.memory)
    waits = len(controls) > 0 or not blocking

    def time_of(t, h, k):
        return cost[t] if links == 1 else cost[t * links + link[h * d + k]]

    def time_to(t, o):
        """Time of a transfer of the tensor to the device of the op, 0 if it is there."""
        h, k = home[producer[t]], home[o]
        return time_of(t, h, k) if h != k else 0.0

    def attraction(o, here, k):
        """How many more of its inputs and successors the op has on device ``k`` than on ``here``."""
        more = 0
        for j in range(input_rows[o], input_rows[o + 1]):
            h = home[producer[inputs[j]]]
            more += (h == k) - (h == here)
        for j in range(after_rows[o], after_rows[o + 1]):
            h = home[successors[j]]
            more += (h == k) - (h == here)
        return more

    def draw_move(u):
        """Draws an op and another device, that of most of its neighbours; ``o * d + k``, or -1."""
        found, highest = -1, 0
        for i in range(_CANDIDATES):
            x = uniform[u + 4 + i] * n
            o = int(x)
            here = k = home[o]
            # What is left of the number draws a neighbour.
            before = input_rows[o + 1] - input_rows[o]
            j = int((x - o) * (before + after_rows[o + 1] - after_rows[o]))
            if j < before:
                k = home[producer[inputs[input_rows[o] + j]]]
            elif after_rows[o] + j - before < after_rows[o + 1]:
                k = home[successors[after_rows[o] + j - before]]
            if k == here:
                k = int(uniform[u + 2] * (d - 1))
                k += k >= here
            if allowed[o * d + k]:
                more = attraction(o, here, k)
                if found < 0 or more > highest:
                    found, highest = o * d + k, more
        return found

    def take_group(op, k):
        """Marks what moves with ``op`` to device ``k``; returns how many ops and events to put in."""
        size, count = 0, 0
        for i in range(group_rows[leader[op]], group_rows[leader[op] + 1]):
            o = group[i]
            member[o], taken[o] = 1, 1
            j = size
            while j > 0 and place[moved[j - 1]] > place[o]:
                moved[j] = moved[j - 1]
                j -= 1
            moved[j] = o
            size += 1
        here = home[op]
        for i in range(size - 1, -1, -1):
            o = moved[i]
            anchor[o] = -1
            for j in range(after_rows[o], after_rows[o + 1]):
                v = successors[j]
                v = anchor[v] if member[v] else v
                if v >= 0 and (anchor[o] < 0 or place[v] < place[anchor[o]]):
                    anchor[o] = v
        for i in range(size):
            todo[count] = moved[i]
            count += 1
        for i in range(size if blocking else 0):
            o = moved[i]
            for j in range(input_rows[o], input_rows[o + 1]):
                t = inputs[j]
                h = home[producer[t]]
                if h != here:
                    alone = 1
                    for r in range(reader_rows[t], reader_rows[t + 1]):
                        if home[readers[r]] == here and not member[readers[r]]:
                            alone = 0
                    taken[n + t * d + here] = alone
                c = n + t * d + k
                if not member[producer[t]] and h != k and taken[c] < 2:
                    taken[c] = 2
                    todo[count] = c
                    count += 1
            for t in range(output_rows[o], output_rows[o + 1]):
                for r in range(reader_rows[t], reader_rows[t + 1]):
                    v = readers[r]
                    c = n + t * d + home[v]
                    if not member[v] and taken[c] < 2:
                        taken[c] = 1
                        if home[v] != k:
                            taken[c] = 2
                            todo[count] = c
                            count += 1
        return size, count

    def take_out(count, alike):
        """Lists the events that stay, of which the first ``alike`` are listed.

        Returns:
          The number of events that stay, and how many of them come before and after all those that leave.
        """
        first = 0
        while taken[event[first]] == 0:
            first += 1
        stay, last = min(alike, first), first
        for i in range(stay, counts[0]):
            e = event[i]
            if taken[e] == 0:
                new[stay], spot[e] = e, stay
                stay += 1
            else:
                taken[e], last = 0, i
        for i in range(count):
            spot[todo[i]], taken[todo[i]] = -1, 0
        return stay, first, counts[0] - 1 - last

    def bounds_of(e, count, moves):
        """The first and the last place of an event in the new schedule of ``count`` events."""
        low, high = 0, count
        if e >= n:
            t, k = (e - n) // d, (e - n) % d
            low = spot[producer[t]] + 1
            for r in range(reader_rows[t], reader_rows[t + 1]):
                if home[readers[r]] == k:
                    high = min(high, spot[readers[r]])
            return low, high
        k = home[e]
        for j in range(input_rows[e], input_rows[e + 1]):
            t = inputs[j]
            u = producer[t]
            there = blocking and not moves and home[u] != k
            low = max(low, 1 + spot[n + t * d + k if there else u])
        for j in range(control_rows[e], control_rows[e + 1]):
            low = max(low, 1 + spot[controls[j]])
        if moves:
            return low, min(high, spot[anchor[e]]) if anchor[e] >= 0 else high
        for j in range(after_rows[e], after_rows[e + 1]):
            high = min(high, spot[successors[j]])
        for t in range(output_rows[e], output_rows[e + 1] if blocking else 0):
            for r in range(reader_rows[t], reader_rows[t + 1]):
                h = home[readers[r]]
                if h != k:
                    high = min(high, spot[n + t * d + h])
        return low, high

    def place_group(size, k):
        """Puts the ops of the group on device ``k``."""
        for i in range(size):
            o = moved[i]
            home[o] = sender[o] = receiver[o] = k
            takes[o] = runtime[o * d + k]
            for t in range(output_rows[o], output_rows[o + 1] if blocking else 0):
                for h in range(d):
                    sender[n + t * d + h], takes[n + t * d + h] = k, time_of(t, k, h)

    def ready(o):
        """The latest finish of what the op waits for on other devices, of events that are in."""
        latest = 0.0
        for j in range(control_rows[o], control_rows[o + 1]):
            if spot[controls[j]] >= 0:
                latest = max(latest, finish[controls[j]])
        for j in range(input_rows[o], input_rows[o + 1] if not blocking else 0):
            t = inputs[j]
            u = producer[t]
            if spot[u] >= 0:
                latest = max(latest, finish[u] + time_to(t, o))
        return latest

    def go_forward(first, last):
        """Sets the clocks after the place ``first``, up to the place ``last``."""
        for i in range(first, last):
            e, here, there = new[i], i * d, i * d + d
            for k in range(d):
                clock[there + k] = clock[here + k]
            h, k = sender[e], receiver[e]
            end = max(clock[here + h], clock[here + k])
            if e < n:
                end = finish[e] = max(end, ready(e)) + takes[e]
            else:
                end += takes[e]
            clock[there + h] = clock[there + k] = end

    def length_at(count, i):
        """The longest path over the clocks at a place of a schedule of ``count`` events."""
        longest = 0.0
        for k in range(d):
            longest = max(longest, clock[i * d + k] + rest[(count - i) * d + k])
        return longest

    def pass_on(o, path):
        """Tells those that the op waits for how long the path from its start on is."""
        for j in range(control_rows[o], control_rows[o + 1]):
            after[controls[j]] = max(after[controls[j]], path)
        for j in range(input_rows[o], input_rows[o + 1] if not blocking else 0):
            t = inputs[j]
            u = producer[t]
            after[u] = max(after[u], path + time_to(t, o))

    def go_back(count, first, last):
        """Sets the times that are left before each of the ``last`` events; ``first`` of them are known."""
        for i in range(first, last):
            e, here, there = new[count - 1 - i], i * d + d, i * d
            for k in range(d):
                rest[here + k] = rest[there + k]
            h, k = sender[e], receiver[e]
            left = max(rest[there + h], rest[there + k])
            if e < n:
                left = max(left, after[e]) + takes[e]
                pass_on(e, left)
            else:
                left += takes[e]
            rest[here + h] = rest[here + k] = left

    def put_in(e, count, low, high, x):
        """Puts the event in at the best place; returns that, and the longest path through it."""
        before, behind = 0.0, 0.0
        if e < n:
            before, behind = ready(e), after[e]
        h, k, least, ties = sender[e], receiver[e], np.inf, 0
        for i in range(low, high + 1):
            start, j = max(max(clock[i * d + h], clock[i * d + k]), before), (count - i) * d
            length[i] = start + takes[e] + max(max(rest[j + h], rest[j + k]), behind)
            if length[i] < least * (1 - _EQUAL):
                least, ties = length[i], 0
            ties += length[i] <= least * (1 + _EQUAL)
        found, left = low - 1, int(x * ties)
        while left >= 0:
            found += 1
            left -= length[found] <= least * (1 + _EQUAL)
        for i in range(count, found, -1):
            new[i] = new[i - 1]
            spot[new[i]] = i
        new[found], spot[e] = e, found
        return found, least

    def fits(count):
        """Whether the new schedule fits the memory."""
        for i in range(count):
            listed.event[i], listed.slot[i] = new[i], i
        for o in range(n):
            listed.place[o] = home[o]
        listed.counts[0], listed.counts[1] = count, count
        _call(peaks, (layout, listed, room), 2)
        over = 0.0
        for k in range(d):
            over += max(0.0, room.peak[k] - layout.memory[k])
        return over == 0

    for k in range(d):
        clock[k] = rest[k] = 0.0
    # Of the current schedule: the first events that ``new`` lists, the last place whose clocks are known, and
    # the last events before which the times that are left are known.
    used = counts[1] = alike = fore = aft = 0
    for s in range(len(made) // 2):
        if used >= enough or value[0] <= goal:
            return s
        made[2 * s] = used + 1
        u, size, count, k, here = s * DRAWS, 0, 0, 0, 0
        c = draw_move(u) if d > 1 and uniform[u] < _MOVES else -1
        if c >= 0:
            o, k = c // d, c % d
            here = home[o]
            size, count = take_group(o, k)
        else:
            todo[0], count = event[int(uniform[u + 1] * counts[0])], 1
            taken[todo[0]] = 1
        stay, alike, last = take_out(count, alike)
        # What is known of the new schedule, whose first ``alike`` and last ``last`` events are as before.
        known, left, passed = min(fore, alike), min(aft, last), False
        longest, x = 0.0, uniform[u + 3]
        limit, shorter = value[0] * (1 + _ROUNDING), value[0] * (1 - _ROUNDING)
        place_group(size, k)
        for i in range(count + 1):
            low, high = 0, 0
            if i < count:
                low, high = bounds_of(todo[i], stay, size > 0)
                used += longest <= limit
                if size == 0 and low == high:
                    longest = np.inf
            # The clocks of a shorter schedule are added up to the end, as the replay does.
            if longest <= limit and (i < count or longest < shorter):
                passed = True
                # If ops wait for others, not all paths lead over the clocks at one place.
                end = stay if waits or i == count else high
                go_forward(known, end)
                known = max(known, end)
                if i < count:
                    for o in range(n if waits else 0):
                        after[o] = 0.0
                    left = 0 if waits else left
                    go_back(stay, left, stay - low)
                    left = max(left, stay - low)
                whole = length_at(stay, end)
                if i == count or whole > limit:
                    longest = whole
                else:
                    found, least = put_in(todo[i], stay, low, high, x)
                    longest = max(whole, least)
                    alike, known = min(alike, found), min(known, found)
                    last, left = min(last, stay - found), min(left, stay - found)
                    stay += 1
                    x = (x * 997.0 + 0.123) % 1.0
        if longest <= limit and (not limited or fits(stay)):
            value[0] = longest if longest < shorter else value[0]
            # A single event leaves the others where they are, and itself in the schedule.
            for i in range(alike, counts[0] if size > 0 else 0):
                place[event[i]] = -1
            counts[0] = stay
            for i in range(alike, stay):
                event[i], place[new[i]] = new[i], i
            alike, fore, aft = stay, known, left
        else:
            place_group(size, here)
            if passed:
                fore, aft = min(alike, known), min(last, left)
        for i in range(size):
            member[moved[i]] = 0
        made[2 * s + 1], counts[1] = value[0], used
    return len(made) // 2
