"""The loops of `list_scheduling`: compiled where Numba is, plain Python over lists where it is not."""

import heapq
from collections import namedtuple
from typing import Any

import numpy as np

__all__ = ["Layout", "State", "schedule"]

Layout = namedtuple(
    "Layout",
    "input_rows inputs predecessors after_rows after output_rows producer readers size temp keep "
    "runtime cost link links leader allowed memory position blocking resident least tail",
)
"""A graph on its cluster. Lists of lists are flat, with where each begins; so are matrices.

Attributes:
  input_rows, inputs: ``[N + 1]``, ``[E]``, the tensors that each op reads.
  predecessors: ``[N]``, how many, once for each edge.
  after_rows, after: ``[N + 1]``, ``[E + C]``, successors, once for each edge.
  output_rows: ``[N + 1]``, the tensors that each op makes.
  producer: ``[T]``.
  readers: ``[T]``, how many ops read the tensor.
  size, temp, keep: ``[T]``, ``[N]``, ``[T]``, bytes and results.
  runtime: ``[N * D]``.
  cost: ``[T * L]``, of a transfer over each kind of link.
  link: ``[D * D]``, the kind of link from one device to another one.
  links: ``L``.
  leader: ``[N]``, the first op of the colocation group.
  allowed: ``[N * D]``, where the group may run.
  memory: ``[D]`` float.
  position: ``[N]``, in a topological order: who goes first of equal rank.
  blocking: Are transfers events?
  resident: ``[N]``, those that go first: what they make is there before anything runs.
  least: ``[N]``, the shortest runtime of each op.
  tail: ``[N]``, the longest path of such runtimes after it.
"""

State = namedtuple(
    "State",
    "clock place finish copied made meet left held most lag moves bound waiting release event slot counts",
)
"""What changes while ops are taken, all of it set anew by every `schedule`.

Attributes:
  clock: ``[D]``.
  place, finish: ``[N]``.
  copied: ``[T * D]``, is the tensor there?
  made: ``[N]``, the slot of the op: slots are groups of events, one after another.
  meet: ``[D * D]``, the last slot after which two devices stood at the same time.
  left: ``[T]``, readers that have not run.
  held, most: ``[D]`` bytes, now and at most; never too few.
  lag: ``[D]``, clocks after the transfers that an op would need, of the devices that these are from.
  moves: ``[T]``, those transfers.
  bound: ``[N]``, where a colocation group is, or -1.
  waiting: ``[N]``, edges from predecessors that have not run.
  release: ``[N]``, when the last of those that have run finishes.
  event, slot: ``[M]``, what happens, and in which slot.
  counts: ``[2]``, of events and of slots.
"""

# The parts are closures, which Numba inlines. In functions of their own that take named tuples, it would
# count references at every access, which is many times slower.


def schedule(
    layout: Any, state: Any, rank: Any, price: Any, look: int, waste: float, behind: float, weight: float,
    by_finish: bool, goal: int, limit: float,
) -> Any:  # fmt: skip
    """Takes op after op, each on the device that suits it best at that moment, into ``state``.

    Args:
      layout: The graph.
      state: What is in it does not matter.
      rank: ``[N]``.
      price: ``[N * D]``, of each op on each device, beside what the rule says.
      look: As in `regal_jax.heuristics.list_scheduling.Rule`, like all that follow.
      waste: As there.
      behind: As there.
      weight: As there, ``rank``.
      by_finish: As there, ``finish``.
      goal: 0 for ``"time"``, 1 for ``"fit"``, 2 for ``"peak"``.
      limit: A schedule that is bound to be longer is given up, unless this is infinite.

    Returns:
      ``state``; all clocks are infinite if it was given up.
    """
    (
        input_rows, inputs, predecessors, after_rows, after, output_rows, producer, readers, size,
        temp, keep, runtime, cost, link, links, leader, allowed, memory, position, blocking, resident,
        least, tail,
    ) = layout  # fmt: skip
    (
        clock, place, finish, copied, made, meet, left, held, most, lag, moves, bound, waiting, release,
        event, slot, counts,
    ) = state  # fmt: skip
    n, d = len(place), len(clock)

    def time_of(t, h, k):
        """Of a transfer from ``h`` to ``k``."""
        return cost[t] if links == 1 else cost[t * links + link[h * d + k]]

    def rides(t, h, k):
        """Could the transfer have happened when the two last met, at no cost to anyone?

        Then it is put there after the fact; not when memory matters, as the copy is held for longer.
        """
        return time_of(t, h, k) == 0 and goal == 0 and made[producer[t]] < meet[h * d + k]

    def list_moves(o, k):
        """Lists the tensors that the op lacks on device ``k``; how many.

        Who is ahead meets last, so that the others need not wait for it; of equals who was due last.
        """
        count = 0
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            h = place[producer[t]]
            if h != k and copied[t * d + k] == 0:
                i, u = count, producer[t]
                while blocking and i > 0:
                    v = producer[moves[i - 1]]
                    if (clock[place[v]], position[v]) <= (clock[h], position[u]):
                        break
                    moves[i] = moves[i - 1]
                    i -= 1
                moves[i] = t
                count += 1
        return count

    def begin(o, k, count):
        """``(start, clocks of others put forward)`` if the op went to device ``k`` now."""
        start, lost = clock[k], 0.0
        if blocking and count > 0:
            for i in range(count):
                h = place[producer[moves[i]]]
                lag[h] = clock[h]
            for i in range(count):
                t = moves[i]
                h = place[producer[t]]
                if not rides(t, h, k):
                    start = max(start, lag[h]) + time_of(t, h, k)
                    lost += start - lag[h]
                    lag[h] = start
        elif not blocking:
            for j in range(input_rows[o], input_rows[o + 1]):
                t = inputs[j]
                u = producer[t]
                start = max(start, finish[u] + (0.0 if place[u] == k else time_of(t, place[u], k)))
        return max(start, release[o]), lost

    def judge(o, k, start, lost):
        """What the rule says, the less the better, if the op starts then and others lose so much."""
        score = start + waste * (lost + start - clock[k]) + behind * clock[k] - weight * rank[o]
        return score + price[o * d + k] + (runtime[o * d + k] if by_finish else 0.0)

    def stays(o, t):
        """Is the output there after its op? An unread resident is until all residents have had their turn."""
        return readers[t] > 0 or keep[t] or resident[o]

    def needs(o, k, count):
        """``(bytes held while the op runs, bytes held more after it)``.

        Never too few, and at most a little too many: where the other readers of a tensor will run is not
        known yet, so its original is held here until all have run.
        """
        need, more = held[k] + temp[o], 0
        for i in range(count):
            need += size[moves[i]]
            more += size[moves[i]]
        for t in range(output_rows[o], output_rows[o + 1]):
            need += size[t]
            if stays(o, t):
                more += size[t]
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            if left[t] == 1 and not keep[t]:
                more -= size[t]
        return need, more

    def happens(what, where):
        event[counts[0]], slot[counts[0]] = what, where
        counts[0] += 1

    def move(t, k):
        h = place[producer[t]]
        copied[t * d + k] = 1
        held[k] += size[t]
        if blocking and rides(t, h, k):
            happens(n + t * d + k, meet[h * d + k])
        elif blocking:
            time = max(clock[h], clock[k]) + time_of(t, h, k)
            clock[h] = clock[k] = time
            meet[h * d + k] = meet[k * d + h] = counts[1]
            happens(n + t * d + k, counts[1])
            counts[1] += 1

    def free(t):
        """All readers have run: every copy goes, and the original unless it is kept."""
        home = place[producer[t]]
        for k in range(d):
            if copied[t * d + k] == 1 or (k == home and not keep[t]):
                held[k] -= size[t]

    def take(o, k, count, start, need):
        """The transfers that the op needs on device ``k``, and then the op."""
        most[k] = max(most[k], need)
        for i in range(count):
            move(moves[i], k)
        for t in range(output_rows[o], output_rows[o + 1]):
            if stays(o, t):
                held[k] += size[t]
        place[o] = bound[leader[o]] = k
        finish[o] = clock[k] = start + runtime[o * d + k]
        made[o] = counts[1]
        happens(o, counts[1])
        counts[1] += 1
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            left[t] -= 1
            if left[t] == 0:
                free(t)

    for k in range(d):
        clock[k], held[k], most[k] = 0.0, 0, 0
    for i in range(d * d):
        meet[i] = -1
    for i in range(len(copied)):
        copied[i] = 0
    for t in range(len(left)):
        left[t] = readers[t]
    counts[0] = counts[1] = 0
    # Memory that is there from the beginning comes first, so that nothing else is put where it has no room.
    lead = 2 * max(rank) + 1
    # Not empty at first: a compiler has to see what is in them.
    ready, few = [(-rank[0], position[0], 0)], [(-rank[0], position[0], 0)]
    ready.clear()
    few.clear()
    for o in range(n):
        place[o] = bound[o] = -1
        waiting[o], release[o] = predecessors[o], 0.0
        if waiting[o] == 0:
            heapq.heappush(ready, (-rank[o] - lead * resident[o], position[o], o))
    # Those of highest rank, in order, are compared; the heap has the others.
    while len(few) < look and len(ready) > 0:
        few.append(heapq.heappop(ready))
    # Work that is left, and what sums of floats may be wrong by.
    rest, slack = 0.0, 1e-9 * limit
    for o in range(n):
        rest += least[o]
    while len(few) > 0:
        best, device = 0, -1
        over, more, score, first = 0.0, 0.0, 0.0, 0.0
        among = 1
        while among < len(few) and (resident[few[among][2]] or not resident[few[0][2]]):
            among += 1
        # At last the best of them once more: what looks at a choice is compiled once.
        for i in range(among + 1):
            taken = i == among
            o = few[best if taken else i][2]
            for k in range(device if taken else 0, device + 1 if taken else d):
                if not allowed[o * d + k] or (bound[leader[o]] >= 0 and bound[leader[o]] != k):
                    continue
                # Before the transfers are looked at: no op begins earlier than this.
                known = goal == 0 and device >= 0 and not taken
                if known and judge(o, k, max(clock[k], release[o]), 0.0) > score:
                    continue
                count = list_moves(o, k)
                start, lost = begin(o, k, count)
                need, grown = 0, 0
                if goal > 0 or taken:
                    need, grown = needs(o, k, count)
                if taken:
                    take(o, k, count, start, need)
                    continue
                mine = judge(o, k, start, lost)
                above, added = 0.0, 0.0
                if goal > 0:
                    room = memory[k] if goal == 1 else float(max(most))
                    above, added = max(0.0, need - room), 0.0 if goal == 1 else float(grown)
                if (
                    device < 0
                    or above < over
                    or (above == over and (added, mine, clock[k]) < (more, score, first))
                ):
                    best, device = i, k
                    over, more, score, first = above, added, mine, clock[k]
        o = few.pop(best)[2]
        if limit < np.inf:
            rest -= least[o]
            idle = -rest
            for k in range(d):
                idle += max(0.0, limit - clock[k])
            if idle < -slack * d or finish[o] + tail[o] > limit + slack:
                for k in range(d):
                    clock[k] = np.inf
                break
        if len(ready) > 0:
            few.append(heapq.heappop(ready))
        for j in range(after_rows[o], after_rows[o + 1]):
            v = after[j]
            waiting[v] -= 1
            release[v] = max(release[v], finish[o])
            if waiting[v] == 0:
                now = (-rank[v], position[v], v)
                if len(few) == look:
                    if few[-1] < now:
                        heapq.heappush(ready, now)
                        continue
                    heapq.heappush(ready, few.pop())
                few.append(now)
                i = len(few) - 1
                while i > 0 and now < few[i - 1]:
                    few[i] = few[i - 1]
                    i -= 1
                few[i] = now
    return state
