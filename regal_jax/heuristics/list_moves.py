"""Moves of single ops in a list schedule: compiled where Numba is, plain Python over lists where it is not.

A schedule in which one op moves is that of a list with fixed devices, so that nothing has to be compared. Its
first steps are those of the schedule before, whose clocks are kept for every step.
"""

from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.runtime.compiling import address_only

__all__ = ["Steps", "make_steps", "move_op"]

Steps = namedtuple("Steps", "order home index clock finish row moved arrived rest blocked result")
"""A schedule, step by step: of the current schedule, or of one with a change.

Attributes:
  order, home: ``[N]``, the op of each step, and the device of each op.
  index: ``[N]``, the step of each op.
  clock: ``[(N + 1) * D]``, the clocks before each step, and at the end.
  finish: ``[N]``, the finish of each op.
  row: ``[N + 1]``, begin of each step in ``moved``.
  moved: ``[E]``, the transfers, as ``t * D + k``.
  arrived: ``[T * D]``, the step of each transfer; ``N`` for none, and between two changes.
  rest: ``[N + 1]``, the sum of the shortest runtimes of all ops from each step on.
  blocked: ``[N]``, scratch: the last change in which the op waited for the one that moved.
  result: ``[2]``; of a change: the makespan, infinite if the schedule was abandoned, and the number of
    changes so far; of the current schedule: whether these are its steps.
"""


def make_steps(layout: Any, devices: int) -> Steps:
    """Space for the schedules of a `regal_jax.heuristics.list_state.Layout`."""
    n, t, e = len(layout.predecessors), len(layout.size), len(layout.inputs)
    return Steps(
        order=np.zeros(n, np.int64),
        home=np.zeros(n, np.int64),
        index=np.zeros(n, np.int64),
        clock=np.zeros((n + 1) * devices),
        finish=np.zeros(n),
        row=np.zeros(n + 1, np.int64),
        moved=np.zeros(e, np.int64),
        arrived=np.full(t * devices, n),
        rest=np.zeros(n + 1),
        blocked=np.zeros(n, np.int64),
        result=np.zeros(2),
    )


@address_only
def move_op(
    layout: Any, space: Any, now: Any, trial: Any, op: int, device: int, shift: float, limit: float
) -> Any:
    """Times the current schedule with one op on another device, or at another place in its order.

    Ops go in the order of their ranks as soon as those before them have run, which are those of the current
    order except for this op.

    Args:
      layout: The graph, as `regal_jax.heuristics.list_kernel.schedule` takes it; all transfers take time.
      space: `regal_jax.heuristics.list_climb.Space`.
      now: The current schedule; replaced, but for its ``order`` and ``home``, if the other one is no longer
        than ``limit``.
      trial: The other schedule. Its ``order``, ``home`` and ``finish`` are those of ``now`` before the call,
        and after it if the other one is longer.
      op: The op; -1 if only ``order`` and ``home`` are those of the current schedule so far, of both.
      device: Device to which it and its colocation group move.
      shift: Change of its rank; its rank and those of the others are `Space.unit` times their places from the
        end.
      limit: A schedule that must become longer than this is abandoned.

    Returns:
      ``trial``, with the makespan.
    """
    input_rows, inputs, producer = layout.input_rows, layout.inputs, layout.producer
    after_rows, after, leader, resident = layout.after_rows, layout.after, layout.leader, layout.resident
    cost, link, links, position = layout.cost, layout.link, layout.links, layout.position
    runtime, least, tail, blocking = layout.runtime, layout.least, layout.tail, layout.blocking
    control_rows, controls, grouped, unit = space.control_rows, space.controls, space.grouped, space.unit
    path, homes, index, clocks = now.order, now.home, now.index, now.clock
    order, home, clock, finish = trial.order, trial.home, trial.clock, trial.finish
    row, moved, arrived, rest, blocked = trial.row, trial.moved, trial.arrived, trial.rest, trial.blocked
    n = len(path)
    d = len(clock) // (n + 1)
    place = index[max(op, 0)]

    def time_of(t, h, k):
        return cost[t] if links == 1 else cost[t * links + link[h * d + k]]

    def goes_before(i):
        """Whether the op goes before that of step ``i``."""
        there, here = unit * (n - i), unit * (n - place) + shift
        return there < here or (there == here and position[path[i]] > position[op])

    def move_up():
        """Moves the op to an earlier step; returns it."""
        lowest = 0
        for j in range(input_rows[op], input_rows[op + 1]):
            lowest = max(lowest, index[producer[inputs[j]]] + 1)
        for j in range(control_rows[op], control_rows[op + 1]):
            lowest = max(lowest, index[controls[j]] + 1)
        i = place
        while i > lowest and goes_before(i - 1) and resident[path[i - 1]] <= resident[op]:
            order[i] = path[i - 1]
            i -= 1
        order[i] = op
        return i

    def move_down():
        """Moves the op, with those that wait for it, behind others; returns the first step that changes."""
        trial.result[1] += 1
        number = int(trial.result[1])
        for j in range(after_rows[op], after_rows[op + 1]):
            blocked[after[j]] = number
        i, last = place, place + 1
        while last < n and not goes_before(last) and resident[path[last]] >= resident[op]:
            v = path[last]
            if blocked[v] == number:
                for j in range(after_rows[v], after_rows[v + 1]):
                    blocked[after[j]] = number
            else:
                order[i] = v
                i += 1
            last += 1
        order[i] = op
        for j in range(place + 1, last):
            if blocked[path[j]] == number:
                i += 1
                order[i] = path[j]
        return place

    def list_moves(o, k, first, begin, here):
        """Lists the transfers that the op needs, the latest sender last; returns the end of the list."""
        count = begin
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            u = producer[t]
            h, c = home[u], t * d + k
            if h != k and now.arrived[c] >= first and arrived[c] == n:
                i = count
                while i > begin:
                    v = producer[moved[i - 1] // d]
                    if (clock[here + home[v]], position[v]) <= (clock[here + h], position[u]):
                        break
                    moved[i] = moved[i - 1]
                    i -= 1
                moved[i] = c
                count += 1
        return count

    def start_of(o, k, begin, end, here, step):
        """The start of the op after its transfers, which take the time of both devices."""
        for m in range(begin, end):
            c = moved[m]
            t = c // d
            h = home[producer[t]]
            clock[here + h] = clock[here + k] = max(clock[here + h], clock[here + k]) + time_of(t, h, k)
            arrived[c] = step
        start = clock[here + k]
        if not blocking:
            for j in range(input_rows[o], input_rows[o + 1]):
                t = inputs[j]
                u = producer[t]
                start = max(start, finish[u] + (time_of(t, home[u], k) if home[u] != k else 0.0))
        for j in range(control_rows[o], control_rows[o + 1]):
            start = max(start, finish[controls[j]])
        return start

    first = 0 if op < 0 else n
    if op >= 0:
        if shift > 0:
            first = move_up()
        elif shift < 0:
            first = move_down()
        if device != homes[op]:
            home[op] = device
            first = min(first, place)
            for o in range(n if grouped else 0):
                if leader[o] == leader[op]:
                    home[o] = device
                    first = min(first, index[o])
    else:
        now.rest[0], now.row[0] = 0.0, 0
        for o in range(n):
            now.rest[0] += least[o]
        for k in range(d):
            clocks[k] = 0.0
        for c in range(len(arrived)):
            now.arrived[c] = n
    for k in range(d):
        clock[first * d + k] = clocks[first * d + k]
    row[first], rest[first] = now.row[first], now.rest[first]
    slack, done, short = 1e-9 * limit, first, True
    while done < n and short:
        o = order[done]
        k, here, begin = home[o], (done + 1) * d, row[done]
        for h in range(d):
            clock[here + h] = clock[here + h - d]
        end = list_moves(o, k, first, begin, here) if blocking else begin
        start = start_of(o, k, begin, end, here, done)
        finish[o] = clock[here + k] = start + runtime[o * d + k]
        row[done + 1], rest[done + 1] = end, rest[done] - least[o]
        done += 1
        if limit < np.inf:
            idle = -rest[done]
            for h in range(d):
                idle += max(0.0, limit - clock[here + h])
            short = idle >= -slack * d and finish[o] + tail[o] <= limit + slack
    makespan = 0.0 if short else np.inf
    for k in range(d):
        makespan = max(makespan, clock[done * d + k])
    trial.result[0] = makespan
    for m in range(row[first], row[done]):
        arrived[moved[m]] = n
    if makespan <= limit:
        for m in range(now.row[first], now.row[n] if op >= 0 else 0):
            now.arrived[now.moved[m]] = n
        for i in range(first, n):
            o = order[i]
            index[o], now.finish[o] = i, finish[o]
            now.row[i + 1], now.rest[i + 1] = row[i + 1], rest[i + 1]
            for m in range(row[i], row[i + 1]):
                now.moved[m] = moved[m]
                now.arrived[moved[m]] = i
        for i in range(first * d, (n + 1) * d):
            clocks[i] = clock[i]
    else:
        for i in range(first, n):
            o = path[i]
            order[i], home[o], finish[o] = o, homes[o], now.finish[o]
    return trial
