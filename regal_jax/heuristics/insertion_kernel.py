"""The loops of `Insertion`: compiled where Numba is, loops of plain Python over lists where it is not.

A move takes some events out of the order of events, and puts each back where the longest path through it is
shortest. One pass forwards, for the clocks before every event, and one backwards, for the time that is left
after it, tell this for all places. Each pass begins where the schedule differs from the current one, and ends
where the event can be. The passes of a schedule that is kept end where all is as in the one before. The
clocks of the current schedule also tell a policy which moves are promising.
"""

import math
from collections import namedtuple
from typing import Any, Final

import numpy as np

from regal_jax.heuristics.insertion_memory import UNKNOWN
from regal_jax.runtime.compiling import only_borrows
from regal_jax.runtime.pointers import caller

__all__ = [
    "DRAWS",
    "MOST_CANDIDATES",
    "SEEN",
    "Edges",
    "Events",
    "Scorer",
    "Work",
    "insert",
    "make_events",
    "make_work",
]

MOST_CANDIDATES: Final = 8
"""Largest number of candidates of each kind of move."""
DRAWS: Final = 3 * MOST_CANDIDATES + 4
"""Uniform numbers per move."""
SEEN: Final = 18
"""Numbers that describe a move: 1 if an op changes its device, else 0, and its features."""
_MOVES: Final = 0.5
"""Share of moves in which an op changes its device; in the others one event changes its place alone."""
_ALONE: Final = 0.5
"""Share of candidates in which an op changes its device without others."""
_MOST_READERS: Final = 16
"""An op with more successors takes none of them along; of a tensor's readers so many are looked at."""
_EQUAL: Final = 1e-9
"""Paths whose lengths differ by less, relatively, are equally long."""
_ROUNDING: Final = 1e-12
"""Sums in another order may be longer by this, relatively."""

_call = caller()

Edges = namedtuple("Edges", "control_rows controls waiting_rows waiting reader_rows readers group_rows group")
"""What the layout of list scheduling lacks. Lists of lists are flat, with the bounds of each row.

Attributes:
  control_rows, controls: ``[N + 1]``, ``[C]``, the ops that each op waits for without data.
  waiting_rows, waiting: ``[N + 1]``, ``[C]``, the ops that wait for each op without data.
  reader_rows, readers: ``[T + 1]``, ``[E]``, the ops that read each tensor.
  group_rows, group: ``[N + 1]``, ``[N]``, the ops of the colocation group of each leader.
"""

Scorer = namedtuple("Scorer", "move place candidates ops")
"""How a move is chosen.

Attributes:
  move, place: The weights of `regal_jax.heuristics.insertion_policy.InsertionPolicy`, the constant last;
    empty if there are none.
  candidates: Number of candidates of each kind.
  ops: Largest number of ops that a move takes to another device together.
"""

Events = namedtuple("Events", "event home place sender receiver takes uses tries since counts value")
"""A schedule as its order of events.

Attributes:
  event: ``[M]``, the events in their order; an op ``o`` is ``o``, a transfer is ``N + t * D + k``.
  home: ``[N]``, the device of each op.
  place: ``[N + T * D]``, the place of each event in ``event``; -1 for none.
  sender, receiver: ``[N + T * D]``, the devices that each event holds, which are the same for an op.
  takes: ``[N + T * D]``, the time that each event takes.
  uses: ``[T * D]``, how many ops on each device read each tensor.
  tries, since: ``[2 * (N + T * D)]``, for each event how often it was tried on another device, and at another
    place, at the makespan in ``since``.
  counts: ``[2]``, numbers of events, and of insertions in the last call.
  value: ``[2]``, makespan, and bytes by which the devices hold more than they have.
"""

Work = namedtuple(
    "Work",
    "event place clock rest finish tail gain length taken member anchor moved stale todo clocks rests "
    "features",
)
"""Space for a move.

Attributes:
  event, place: Of the new schedule, as in `Events`.
  clock: ``[(M + 1) * D]``, the clocks before each event, and at the end.
  rest: ``[(M + 1) * D]``, the time that each device still needs before each of the last events, the last one
    first; zeros come before it.
  finish: ``[N]``, the finish of each op.
  tail: ``[N]``, the time from the start of each op to the end of the schedule, by the longest path.
  gain: ``[N]``, the time of transfers that a move saves if the op moves as well.
  clocks, rests: ``clock`` and ``rest`` of the current schedule.
  features: ``[SEEN]``, those of a candidate.
  length: ``[M + 1]``, the longest path through an event at each place.
  taken: ``[N + T * D]``, 1 for events that a move takes out, 2 for those that it puts in.
  member: ``[N]``, 1 for ops that the move takes to another device.
  anchor: ``[N]``, the first op of the schedule that waits for such an op; -1 for none.
  moved: ``[N]``, these ops in their order.
  stale: ``[N]``, zeros; during a pass 1 for ops next to one whose time has changed.
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
    uses = np.zeros((t, d), np.int64)
    rows = np.asarray(layout.input_rows, np.int64)
    np.add.at(uses, (np.asarray(layout.inputs, np.int64), home[np.repeat(np.arange(n), np.diff(rows))]), 1)
    cost, link = np.reshape(layout.cost, (t, layout.links)), np.reshape(layout.link, (d, d))
    takes = np.take_along_axis(cost, np.asarray(link, np.int64)[source], axis=1)
    return Events(
        event=event,
        home=home,
        place=place,
        sender=np.concatenate([home, np.repeat(source, d)]),
        receiver=np.concatenate([home, np.tile(np.arange(d), t)]),
        takes=np.concatenate([runtime[np.arange(n), home], takes.ravel()]),
        uses=uses.ravel(),
        tries=np.zeros(2 * (n + t * d), np.int64),
        since=np.zeros(2 * (n + t * d)),
        counts=np.array([len(events), 0]),
        value=np.array([float(makespan), 0.0]),
    )


def make_work(layout: Any) -> Work:
    """Space for the schedules of a `regal_jax.heuristics.list_state.Layout`."""
    n, t, e, d = (len(rows) for rows in (layout.leader, layout.size, layout.inputs, layout.memory))
    sizes = {"event": n + e, "todo": n + e, "place": n + t * d, "taken": n + t * d}
    names = *sizes, "member", "anchor", "moved", "stale"
    whole = {name: np.zeros(sizes.get(name, n), np.int64) for name in names}
    clocks = {name: np.zeros((n + e + 1) * d) for name in ("clock", "rest", "clocks", "rests")}
    real = {"finish": n, "tail": n, "gain": n, "length": n + e + 1, "features": SEEN}
    return Work(**{name: np.zeros(size) for name, size in real.items()}, **whole, **clocks)


@only_borrows
def insert(
    weighs: Any, layout: Any, listed: Any, room: Any, usage: Any, edges: Any, now: Any, work: Any,
    scorer: Any, uniform: Any, made: Any, seen: Any, limited: bool, enough: int, goal: float, most: float,
    weight: float,
) -> int:  # fmt: skip
    """Hill climbing: moves events of the current schedule, and keeps the result if it is no longer.

    Record-to-record travel if longer schedules are kept up to a makespan ``most``. If a schedule may exceed
    the memory, hill climbing is for the makespan plus a weight times the excess, until the schedule fits. The
    ops that change their device are then those of the largest excess (`Usage.holders`).

    A move takes out one event, or connected ops of one device with all transfers from and to them. The events
    are then put in one after another, ops first: each at the place where the longest path through it is
    shortest. Of equal places one is drawn.

    Args:
      weighs: Addresses of `peaks` in `regal_jax.heuristics.schedule_peaks`, and of `set_usage`, `fits_there`
        and `shift_fits` in `regal_jax.heuristics.insertion_memory`; not used where memory is not limited.
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it.
      listed: Space for `peaks`; overwritten.
      room: Space for `peaks`; overwritten.
      usage: `regal_jax.heuristics.insertion_memory.Usage`; overwritten.
      edges: The rest of the graph.
      now: The current schedule, which fits the memory if ``weight`` is 0; replaced.
      work: Space for a move.
      scorer: How a move is chosen.
      uniform: ``[S * DRAWS]`` from [0, 1), of ``S`` moves.
      made: ``[2 * S]``, set to the number of the first insertion of each move, and the makespan after it.
      seen: ``[S * SEEN]``, set to what describes each move; empty if that is not asked for.
      limited: Whether memory is limited.
      enough: No move begins after so many insertions.
      goal: The loop ends at a schedule with at most this makespan.
      most: Schedules of at most this makespan are kept, too.
      weight: If positive, schedules may exceed the memory, and a byte weighs as much as this time.

    Returns:
      Number of moves made, at most ``S``.
    """
    peaks, set_usage, fits_there, shift_fits = weighs
    input_rows, inputs, producer = layout.input_rows, layout.inputs, layout.producer
    after_rows, successors, leader, allowed = layout.after_rows, layout.after, layout.leader, layout.allowed
    cost, link, links, runtime, blocking = (
        layout.cost, layout.link, layout.links, layout.runtime, layout.blocking,
    )  # fmt: skip
    output_rows = layout.output_rows
    control_rows, controls, waiting_rows, waiting, reader_rows, readers, group_rows, group = edges
    event, home, place, sender, receiver, takes, uses, tries, since, counts, value = now
    (
        new, spot, clock, rest, finish, tail, gain, length, taken, member, anchor, moved, stale, todo,
        clocks, rests, features,
    ) = work  # fmt: skip
    to_move, to_place, candidates, most_ops = scorer
    n, d = len(home), len(layout.memory)
    waits = len(controls) > 0 or not blocking

    def time_of(t, h, k):
        return cost[t] if links == 1 else cost[t * links + link[h * d + k]]

    def time_to(t, o):
        """Time of a transfer of the tensor to the device of the op, 0 if it is there."""
        h, k = home[producer[t]], home[o]
        return time_of(t, h, k) if h != k else 0.0

    def gain_of(o, here, k):
        """The time of transfers that is saved, less what is added, if the op also moves to device ``k``."""
        total = 0.0
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            u = producer[t]
            if member[u] == 1 or home[u] == k:
                total += time_of(t, here, k)
            elif home[u] == here:
                total -= time_of(t, here, k)
        for t in range(output_rows[o], output_rows[o + 1]):
            goes, stays = 0.0, 0.0
            for r in range(reader_rows[t], min(reader_rows[t + 1], reader_rows[t] + _MOST_READERS)):
                v = readers[r]
                if member[v] == 1 or home[v] == k:
                    goes = 1.0
                elif home[v] == here:
                    stays = 1.0
            total += (goes - stays) * time_of(t, here, k)
        return total

    def gather(op, k, wanted):
        """Lists the ops that move with ``op`` to device ``k``, in their order, and marks them.

        One op after another joins, with its colocation group: of the neighbours on the same device the one
        with the largest `gain_of`, until there are ``wanted`` ops or no neighbour is left.

        Returns:
          The number of ops.
        """
        size, near, here, found = 0, 0, home[op], op
        while found >= 0:
            first, last = group_rows[leader[found]], group_rows[leader[found] + 1]
            for i in range(first, last):
                o = group[i]
                member[o] = 1
                j = size
                while j > 0 and place[moved[j - 1]] > place[o]:
                    moved[j] = moved[j - 1]
                    j -= 1
                moved[j] = o
                size += 1
            # ``todo`` lists the neighbours, marked by 2. Those of the latest ops have new gains.
            for i in range(first, last if size < wanted else first):
                o = group[i]
                before, behind = input_rows[o + 1] - input_rows[o], after_rows[o + 1] - after_rows[o]
                for j in range(before + behind if behind <= _MOST_READERS else before):
                    i_input, i_after = input_rows[o] + j, after_rows[o] + j - before
                    v = producer[inputs[i_input]] if j < before else successors[i_after]
                    if home[v] == here and member[v] != 1 and allowed[v * d + k]:
                        gain[v] = gain_of(v, here, k)
                        if member[v] == 0:
                            member[v], todo[near] = 2, v
                            near += 1
            found, most_gain = -1, -np.inf
            for i in range(near if size < wanted else 0):
                if member[todo[i]] == 2 and gain[todo[i]] > most_gain:
                    found, most_gain = todo[i], gain[todo[i]]
        for i in range(near):
            member[todo[i]] = member[todo[i]] == 1
        return size

    def take_group(op, k, size):
        """Marks the events that the move of ops to device ``k`` takes out; returns how many to put in."""
        count = 0
        here = home[op]
        for i in range(size - 1, -1, -1):
            o = moved[i]
            anchor[o] = -1
            taken[o] = 1
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
        return count

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

    def bounds_of(e, spot, count, moves):
        """The first and the last place of an event in a schedule of ``count`` events with places ``spot``."""
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

    def scaled(x):
        """The logarithm of a number that may be negative."""
        return math.log1p(x) if x >= 0 else -math.log1p(-x)

    def slack_of(e, k):
        """How much later device ``k`` could be busy before the event without a longer schedule."""
        i = place[e]
        return max(0.0, value[0] - clocks[i * d + k] - rests[(counts[0] - i) * d + k])

    def position_of(e):
        """When the event may begin, as a share of the makespan."""
        i = place[e] * d
        return max(clocks[i + sender[e]], clocks[i + receiver[e]]) / value[0] if value[0] > 0 else 0.0

    def tries_of(i):
        """How often this move was tried since the schedule has become shorter."""
        return math.log1p(tries[i]) if since[i] == value[0] else 0.0

    def describe_move(op, k, size, unit):
        """Sets the features of a move of ops to device ``k``, of which ``op`` is the first."""
        h, gone, come, leave, enter = home[op], 0.0, 0.0, 0, 0
        work_here, work_there, more = 0.0, 0.0, 0
        for i in range(size):
            o = moved[i]
            work_here, work_there = work_here + takes[o], work_there + runtime[o * d + k]
            for t in range(output_rows[o], output_rows[o + 1]):
                for v in range(d):
                    if v != h and uses[t * d + v] > 0:
                        gone, leave = gone + time_of(t, h, v), leave + 1
            for j in range(after_rows[o], after_rows[o + 1]):
                v = successors[j]
                if member[v] == 0:
                    more += (home[v] == k) - (home[v] == h)
        # Readers are counted as if they had moved, and are counted back.
        for i in range(size):
            o = moved[i]
            for j in range(input_rows[o], input_rows[o + 1]):
                t = inputs[j]
                u = producer[t]
                v = home[u]
                uses[t * d + h] -= 1
                if member[u] == 0:
                    more += (v == k) - (v == h)
                    if v != h and uses[t * d + h] == 0:
                        gone, leave = gone + time_of(t, v, h), leave + 1
                    if v != k and uses[t * d + k] == 0:
                        come, enter = come + time_of(t, v, k), enter + 1
                uses[t * d + k] += 1
        for i in range(size):
            o = moved[i]
            for t in range(output_rows[o], output_rows[o + 1]):
                for v in range(d):
                    if v != k and uses[t * d + v] > 0:
                        come, enter = come + time_of(t, k, v), enter + 1
        for i in range(size):
            o = moved[i]
            for j in range(input_rows[o], input_rows[o + 1]):
                uses[inputs[j] * d + h] += 1
                uses[inputs[j] * d + k] -= 1
        room_here, room_there = slack_of(op, h), slack_of(op, k)
        features[0] = scaled(room_here / unit)
        features[1] = scaled(room_there / unit)
        features[2] = min(max(more, -5), 5)
        features[3] = scaled(work_there / unit)
        features[4] = scaled(gone / unit)
        features[5] = scaled(come / unit)
        features[6] = scaled((come - gone) / unit)
        features[7] = leave
        features[8] = enter
        features[9] = position_of(op)
        features[10] = math.log1p(input_rows[op + 1] - input_rows[op])
        features[11] = math.log1p(after_rows[op + 1] - after_rows[op])
        features[12] = math.log(size)
        features[13] = scaled(work_here / unit)
        features[14] = tries_of(2 * op)
        features[15] = scaled(max(0.0, work_there + come - room_there) / unit)
        features[16] = scaled(max(0.0, work_here + gone - room_here) / unit)

    def describe_place(e, unit):
        """Sets the features of an event that may get another place."""
        h, k = sender[e], receiver[e]
        low, high = bounds_of(e, place, counts[0], False)
        before, behind = place[e] - low, high - 1 - place[e]
        first, second, i = slack_of(e, h) / unit, slack_of(e, k) / unit, place[e] * d
        features[0] = 1.0 if e >= n else 0.0
        features[1] = scaled(takes[e] / unit)
        features[2] = scaled(min(first, second))
        features[3] = scaled(max(first, second))
        features[4] = scaled(abs(clocks[i + h] - clocks[i + k]) / unit)
        features[5] = position_of(e)
        features[6] = math.log1p(before)
        features[7] = math.log1p(behind)
        features[8] = math.log1p(min(before, behind))
        features[9] = 1.0 if before + behind == 0 else 0.0
        features[10] = tries_of(2 * e + 1)

    def score(weights):
        """The logarithm of the odds that the move makes the schedule shorter."""
        total = weights[len(weights) - 1]
        for i in range(len(weights) - 1):
            total += weights[i] * features[i]
        return total

    def exceeds():
        """Whether the current schedule does not fit the memory."""
        return limited and usage.many[0] > 0

    def draw_op(x, other):
        """Draws an op and a device of one of its neighbours, or else a random one; ``o * d + k``, or -1."""
        x *= usage.many[0] if exceeds() else n
        o = usage.holders[int(x)] if exceeds() else int(x)
        here = k = home[o]
        # What is left of the number draws a neighbour.
        before = input_rows[o + 1] - input_rows[o]
        j = int((x - int(x)) * (before + after_rows[o + 1] - after_rows[o]))
        if j < before:
            k = home[producer[inputs[input_rows[o] + j]]]
        elif after_rows[o] + j - before < after_rows[o + 1]:
            k = home[successors[after_rows[o] + j - before]]
        if k == here:
            k = int(other * (d - 1))
            k += k >= here
        return o * d + k if allowed[o * d + k] else -1

    def wanted_ops(x):
        """Draws how many ops move together: one, or a number whose logarithm is uniform."""
        share = max(0.0, x - _ALONE) / (1 - _ALONE)
        return min(most_ops, int(math.exp(share * math.log(most_ops))) + (x >= _ALONE))

    def draw_move(u, unit, told):
        """Draws some moves.

        Returns:
          The best of them by its score, or if there is no policy an event, or the ops with most neighbours on
          the other device. Ops that change to device ``k`` are ``o * d + k``, of which ``o`` is the first; an
          event ``e`` that changes its place alone is ``-2 - e``. Then the number of ops that change their
          device, which are listed and marked. If ``told``, the features are those of this move.
        """
        learned, found, highest, size, chosen = len(to_move) > 0, -1, -np.inf, 0, 0
        ops = candidates if d > 1 and (learned or exceeds() or uniform[u] < _MOVES) else 0
        total = ops + candidates if learned and not exceeds() else ops
        for i in range(total + 1):
            c, x = found, 0.0
            if i < ops:
                c = draw_op(uniform[u + 4 + i], uniform[u + 2])
                x = uniform[u + 4 + 2 * MOST_CANDIDATES + i]
            elif i < total or found == -1:
                x = uniform[u + 4 + MOST_CANDIDATES + i - ops] if i < total else uniform[u + 1]
                c = -2 - event[int(x * counts[0])]
            elif found >= 0:
                # Later candidates have used the space for its ops, so that they are listed again.
                x = uniform[u + 4 + 2 * MOST_CANDIDATES + chosen]
            if c >= 0:
                size = gather(c // d, c % d, wanted_ops(x))
                if told or i < total:
                    describe_move(c // d, c % d, size, unit)
            elif c != -1 and (told or i < total):
                describe_place(-2 - c, unit)
            if i == total:
                found = c
            elif c != -1:
                more = features[2] + 0.0
                if learned:
                    more = score(to_move if c >= 0 else to_place)
                    # Each event that is put in is an evaluation.
                    more -= math.log(size + features[8]) if c >= 0 else 0.0
                better = found == -1 or more > highest
                if better and limited and c >= 0:
                    better = _call(fits_there, (layout, edges, now, work, usage, size, c % d), 4).fits[0] == 1
                if better:
                    found, highest, chosen = c, more, i
                for j in range(size if c >= 0 else 0):
                    member[moved[j]] = 0
        return found, size if found >= 0 else 0

    def place_group(size, k):
        """Puts the ops of the group on device ``k``."""
        for i in range(size):
            o = moved[i]
            for j in range(input_rows[o], input_rows[o + 1]):
                uses[inputs[j] * d + home[o]] -= 1
                uses[inputs[j] * d + k] += 1
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

    def step_forward(events, i):
        """Sets the clocks after the event at a place."""
        e, here, there = events[i], i * d, i * d + d
        for k in range(d):
            clock[there + k] = clock[here + k]
        h, k = sender[e], receiver[e]
        end = max(clock[here + h], clock[here + k])
        if e < n:
            end = finish[e] = max(end, ready(e)) + takes[e]
        else:
            end += takes[e]
        clock[there + h] = clock[there + k] = end

    def left_after(o):
        """The longest path after an op to those that wait for it on other devices, of ops that are in."""
        longest = 0.0
        for j in range(waiting_rows[o], waiting_rows[o + 1]):
            if spot[waiting[j]] >= 0:
                longest = max(longest, tail[waiting[j]])
        for t in range(output_rows[o], output_rows[o + 1] if not blocking else 0):
            for r in range(reader_rows[t], reader_rows[t + 1]):
                if spot[readers[r]] >= 0:
                    longest = max(longest, tail[readers[r]] + time_to(t, readers[r]))
        return longest

    def step_back(events, count, i):
        """Sets the times that are left before the event that ``i`` others follow."""
        e, here, there = events[count - 1 - i], i * d + d, i * d
        for k in range(d):
            rest[here + k] = rest[there + k]
        h, k = sender[e], receiver[e]
        left = max(rest[there + h], rest[there + k])
        if e < n:
            left = tail[e] = max(left, left_after(e)) + takes[e]
        else:
            left += takes[e]
        rest[here + h] = rest[here + k] = left

    def best_place(e, count, low, high, x):
        """The best place for an event between two others, and the longest path through it there."""
        before, behind = 0.0, 0.0
        if e < n:
            before, behind = ready(e), left_after(e)
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
        return found, least

    def put_in(e, count, found):
        """Puts an event in at a place of the new schedule."""
        for i in range(count, found, -1):
            new[i] = new[i - 1]
            spot[new[i]] = i
        new[found], spot[e] = e, found

    def shift(first, last):
        """Takes the event at a place of the current schedule to another."""
        e = event[first]
        for i in range(first, last):
            event[i] = event[i + 1]
        for i in range(first, last, -1):
            event[i] = event[i - 1]
        event[last] = e

    def excess(events, count):
        """By how much a schedule exceeds the memory."""
        for i in range(count):
            listed.event[i], listed.slot[i] = events[i], i
        for o in range(n):
            listed.place[o] = home[o]
        listed.counts[0], listed.counts[1] = count, count
        _call(peaks, (layout, listed, room), 2)
        over = 0.0
        for k in range(d):
            over += max(0.0, room.peak[k] - layout.memory[k])
        return over

    def end_forward(events, first, known, last, count):
        """Completes the clocks of the new schedule of ``count`` events, up to where all is as before.

        Its first ``first`` and last ``last`` events are those of the current schedule. Clocks up to the place
        ``known`` are set.

        Returns:
          A place up to which the clocks are set, and whether all is as before from there on.
        """
        more, pending, i, same = (count - counts[0]) * d, 0, first, False
        while i < count and (pending > 0 or not same):
            e = events[i]
            if i >= known and same and (e >= n or stale[e] == 0):
                for k in range(i * d + d, i * d + 2 * d):
                    clock[k] = clocks[k - more]
                if e < n:
                    finish[e] = clocks[(place[e] + 1) * d + home[e]]
            elif i >= known:
                step_forward(events, i)
            if waits and e < n:
                pending -= stale[e]
                stale[e] = 0
                if member[e] == 1 or finish[e] != clocks[(place[e] + 1) * d + home[e]]:
                    for j in range(after_rows[e], after_rows[e + 1]):
                        pending += 1 - stale[successors[j]]
                        stale[successors[j]] = 1
            i += 1
            same = i >= max(known, count - last)
            for k in range(i * d, i * d + d if same else 0):
                same = same and clock[k] == clocks[k - more]
        return i, same

    def end_back(events, first, left, last, count):
        """Completes the times that are left in the new schedule, up to where all is as before.

        Returns:
          A number of last events before which they are set.
        """
        more, pending, i, same = (count - counts[0]) * d, 0, last, False
        while i < count and (pending > 0 or not same):
            e = events[count - 1 - i]
            if i >= left and same and (e >= n or stale[e] == 0):
                for k in range(i * d + d, i * d + 2 * d):
                    rest[k] = rests[k - more]
                if e < n:
                    tail[e] = rests[(counts[0] - place[e]) * d + home[e]]
            elif i >= left:
                step_back(events, count, i)
            if waits and e < n:
                pending -= stale[e]
                stale[e] = 0
                if member[e] == 1 or tail[e] != rests[(counts[0] - place[e]) * d + home[e]]:
                    for j in range(input_rows[e], input_rows[e + 1]):
                        pending += 1 - stale[producer[inputs[j]]]
                        stale[producer[inputs[j]]] = 1
                    for j in range(control_rows[e], control_rows[e + 1]):
                        pending += 1 - stale[controls[j]]
                        stale[controls[j]] = 1
            i += 1
            same = i >= max(left, count - first)
            for k in range(i * d, i * d + d if same else 0):
                same = same and rest[k] == rests[k - more]
        return i

    def last_clock(count):
        """The makespan of the new schedule of ``count`` events."""
        latest = 0.0
        for k in range(count * d, count * d + d):
            latest = max(latest, clock[k])
        return latest

    def restore(events, first, reach, last, back, count):
        """Sets what is known of ops to that of the current schedule, for some of ``count`` events.

        Each finish is set from the place ``first`` up to the place ``reach``. Each time from the start to the
        end of the schedule is set before the ``last`` last ones, up to the ``back`` last ones.
        """
        for i in range(first, min(reach, count)):
            e = events[i]
            if e < n:
                finish[e] = clocks[(place[e] + 1) * d + home[e]]
        for i in range(last, min(back, count)):
            e = events[count - 1 - i]
            if e < n:
                tail[e] = rests[(counts[0] - place[e]) * d + home[e]]

    def know(events, first, last, end, reach, left, back, count):
        """What is known of a new schedule becomes what is known of the current one.

        From the place ``end`` on, and before the ``left`` last events, all is as in the current schedule.
        ``place`` is still that of the current one. Arguments are otherwise those of `forget`.
        """
        more = (count - counts[0]) * d
        restore(events, end, reach, left, back, count)
        for i in range((end + 1) * d, ((count if more != 0 else min(reach, count)) + 1) * d):
            clock[i] = clocks[i - more]
        for i in range((left + 1) * d, ((count if more != 0 else min(back, count)) + 1) * d):
            rest[i] = rests[i - more]
        for i in range(first * d, ((count if more != 0 else end) + 1) * d):
            clocks[i] = clock[i]
        for i in range(last * d, ((count if more != 0 else left) + 1) * d):
            rests[i] = rest[i]

    def forget(events, first, last, reach, back, count):
        """Restores what is known of the current schedule.

        Clocks up to the place ``reach`` of the new schedule, and times before its ``back`` last events, are
        those of the new one, but for the first ``first`` and the last ``last`` events.
        """
        for i in range(first * d, (min(reach, counts[0]) + 1) * d):
            clock[i] = clocks[i]
        for i in range(last * d, (min(back, counts[0]) + 1) * d):
            rest[i] = rests[i]
        restore(events, first, reach, last, back, count)

    for k in range(d):
        clock[k] = rest[k] = 0.0
    for i in range(counts[0]):
        new[i], spot[event[i]] = event[i], i
    for i in range(counts[0]):
        step_forward(event, i)
    for i in range(counts[0]):
        step_back(event, counts[0], i)
    for i in range((counts[0] + 1) * d):
        clocks[i], rests[i] = clock[i], rest[i]
    if limited:
        value[1] = excess(event, counts[0])
        _call(set_usage, (layout, edges, room, now, work, usage), 5)
    # ``new`` lists the first events of the current schedule.
    used, alike = 0, counts[0]
    counts[1] = 0
    for s in range(len(made) // 2):
        if used >= enough or value[0] <= goal:
            return s
        made[2 * s] = used + 1
        u, k, here, before = s * DRAWS, 0, 0, counts[0]
        unit = value[0] * d / before if value[0] > 0 else 1.0
        c, size = draw_move(u, unit, len(seen) > 0)
        for i in range(SEEN if len(seen) > 0 else 0):
            # An event alone has fewer features; what the others hold tells nothing.
            seen[s * SEEN + i] = features[i - 1] if i > 0 else 1.0 * (c >= 0)
        i = 2 * (c // d) if c >= 0 else 2 * (-2 - c) + 1
        tries[i] = 1 + (tries[i] if since[i] == value[0] else 0)
        since[i] = value[0]
        longer, shorter = value[0] * (1 + _ROUNDING), value[0] * (1 - _ROUNDING)
        limit = max(longer, most) + weight * value[1]
        longest, x, over, known_fit = 0.0, uniform[u + 3], 0.0, UNKNOWN
        # The others keep their order if one event goes to another place, so that ``event`` becomes the new
        # order. Otherwise ``new`` does.
        alone, events = c < 0, event if c < 0 else new
        at = found = place[-2 - c] if alone else 0
        count, first, last, stay = 1, at, before - 1 - at, before - 1
        if not alone:
            o, k = c // d, c % d
            here = home[o]
            count = take_group(o, k, size)
            stay, first, last = take_out(count, alike)
            place_group(size, k)
        # The first ``first`` and the last ``last`` events of the new schedule are as before. Its clocks are
        # set up to the place ``known``, and the times that are left before its ``left`` last events. Up to
        # ``reach`` and ``back`` they are no longer those of the current schedule.
        known, left, reach, back = first, last, 0, 0
        for i in range(count):
            e = -2 - c if alone else todo[i]
            low, high = bounds_of(e, place if alone else spot, before if alone else stay, not alone)
            used += longest <= limit
            if alone:
                high -= 1
                longest = np.inf if low == high else longest
                shift(at, high)
                found = high
            if longest <= limit:
                for j in range(known, high):
                    step_forward(events, j)
                for j in range(left, stay - low):
                    step_back(events, stay, j)
                known, left = max(known, high), max(left, stay - low)
                reach, back = max(reach, known) + 1, max(back, left) + 1
                found, least = best_place(e, stay, low, high, x)
                if alone:
                    shift(high, found)
                else:
                    put_in(e, stay, found)
                longest = max(longest, least)
                first, known = min(first, found), min(known, found)
                last, left = min(last, stay - found), min(left, stay - found)
                stay += 1
                x = (x * 997.0 + 0.123) % 1.0
        alike = alike if alone else first
        if longest <= limit:
            # Clocks of a schedule of another length are added up to the end, as the replay does.
            known, same = end_forward(events, first, known, last, stay)
            reach, longest = max(reach, known), value[0] if same else last_clock(stay)
            if limited and alone and weight == 0 and longest <= limit:
                known_fit = _call(shift_fits, (layout, edges, now, usage, -2 - c, found), 3).fits[0]
                over = 0.0 if known_fit == 1 else np.inf
            if limited and known_fit == UNKNOWN:
                over = excess(events, stay)
        if longest + weight * over <= limit and (weight > 0 or over == 0):
            value[1] = over
            value[0] = longest if longest < shorter or longest > longer else value[0]
            left = end_back(events, first, left, last, stay)
            know(events, first, last, known, reach, left, back, stay)
            if not alone:
                for i in range(first, before):
                    place[event[i]] = -1
                for i in range(first, stay):
                    event[i] = new[i]
            for i in range(first, before - last if alone else stay):
                place[event[i]] = i
            counts[0], alike = stay, min(alike, first) if alone else stay
            if limited and known_fit == UNKNOWN:
                _call(set_usage, (layout, edges, room, now, work, usage), 5)
        else:
            if alone:
                shift(found, at)
            else:
                place_group(size, here)
            for i in range(size):
                spot[moved[i]] = place[moved[i]]
            forget(events, first, last, reach, back, stay)
        for i in range(size):
            member[moved[i]] = 0
        made[2 * s + 1], counts[1] = value[0], used
        if weight > 0 and value[1] == 0:
            return s + 1
    return len(made) // 2
