"""The loops of `list_scheduling`: compiled where Numba is, plain Python over lists where it is not."""

from typing import Any, Final

import numpy as np

# Numba's caches of earlier versions look for the named tuples here.
from regal_jax.heuristics.list_state import FOLLOWED, NONE, Layout, State
from regal_jax.runtime.compiling import only_borrows

__all__ = ["Layout", "State", "schedule"]

_FEW: Final = 20
"""Fewer ops than this are moved one place at a time when ops are sorted."""

# The parts are closures, which Numba inlines. In functions of their own that take named tuples, it would
# count references at every access, which is many times slower.


@only_borrows
def schedule(
    layout: Any, state: Any, rank: Any, price: Any, look: int, waste: float, behind: float, weight: float,
    by_finish: bool, goal: int, limit: float,
) -> Any:  # fmt: skip
    """Takes op after op, each on the device that suits it best at that moment, into ``state``.

    With a schedule to follow, choices are compared only where an op that was changed is ready, until the
    first other choice. If there is none, it ends when all changed ops have run: the rest would be the same.

    Args:
      layout: The graph.
      state: Overwritten.
      rank: ``[N]``.
      price: ``[N * D]``, added to the rule's cost of each op on each device.
      look: As in `regal_jax.heuristics.list_scheduling.Rule`.
      waste: As in `Rule`.
      behind: As in `Rule`.
      weight: `Rule.rank`.
      by_finish: `Rule.finish`.
      goal: 0 for ``"time"``, 1 for ``"fit"``, 2 for ``"peak"``.
      limit: A schedule that must become longer than this is abandoned.

    Returns:
      ``state``; all clocks are infinite if the schedule was abandoned. The devices of ops that have not run
      are -1 then, and if the rest is that of the followed schedule.
    """
    (
        input_rows, inputs, predecessors, after_rows, after, output_rows, producer, reader_rows, reader,
        readers, size, temp, keep, runtime, cost, link, links, leader, allowed, memory, position, blocking,
        resident, least, tail, span,
    ) = layout  # fmt: skip
    (
        clock, place, finish, copied, made, meet, left, held, most, lag, moves, bound, waiting, release,
        begins, owed, newest, sender, senders, vague, fixed, base, pick, lowest, key, ranked, spot, words,
        near, fresh, event, slot, path, homes, changed, level, counts,
    ) = state  # fmt: skip
    n, d = len(place), len(clock)
    blocks = blocking and d > 1

    def time_of(t, h, k):
        """Time of a transfer from ``h`` to ``k``."""
        return cost[t] if links == 1 else cost[t * links + link[h * d + k]]

    def rides(t, h, k, takes):
        """Whether it takes no time and its tensor existed when the clocks of both devices were last equal.

        Such a transfer is inserted at that time, unless memory matters: the copy would be held for longer.
        """
        return takes == 0 and goal == 0 and made[producer[t]] < meet[h * d + k]

    def list_moves(o, k):
        """Lists the tensors that the op lacks on device ``k``; returns how many.

        They are sorted by the clock of the sender, the latest last, so that no other sender waits for it.
        """
        count = 0
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            u = producer[t]
            h = place[u]
            if h != k and copied[t * d + k] == 0:
                i = count
                while blocking and i > 0:
                    v = producer[moves[i - 1]]
                    if (clock[place[v]], position[v]) <= (clock[h], position[u]):
                        break
                    moves[i] = moves[i - 1]
                    i -= 1
                moves[i] = t
                count += 1
        return count

    def list_pair(o, k):
        """`list_moves` with two devices, with fewer branches."""
        count, h = 0, 1 - k
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            moves[count] = t
            count += (place[producer[t]] == h) & (copied[2 * t + k] == 0)
        for i in range(1, count if blocking else 0):
            t, j = moves[i], i
            while j > 0 and position[producer[moves[j - 1]]] > position[producer[t]]:
                moves[j] = moves[j - 1]
                j -= 1
            moves[j] = t
        return count

    def begin(o, k, count):
        """``(start, total delay of the other clocks)`` if the op ran on device ``k`` next."""
        start, lost = clock[k], 0.0
        if blocking:
            for i in range(count):
                h = place[producer[moves[i]]]
                lag[h] = clock[h]
            for i in range(count):
                t = moves[i]
                h = place[producer[t]]
                takes = time_of(t, h, k)
                if not rides(t, h, k, takes):
                    start = max(start, lag[h]) + takes
                    lost += start - lag[h]
                    lag[h] = start
        return max(start, begins[o * d + k]), lost

    def judge(o, k, start, lost):
        """The rule's cost of an op with this start and this delay of other clocks; lower is better."""
        return start + waste * (lost + start - clock[k]) + behind * clock[k] + fixed[o * d + k]

    def stays(o, t):
        """Whether the output is held after its op; an unread one of a resident is held until all have run."""
        return readers[t] > 0 or keep[t] or resident[o]

    def needs(o, k, count):
        """``(bytes held while the op runs, growth of the bytes held after it)``; upper bounds.

        The devices of the other readers of a tensor are not known yet, so its original is held until all of
        them have run.
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

    def owe(v, first, end):
        """Notes down the transfers that a ready op needs on each device from ``first`` to ``end``."""
        for k in range(first, end):
            total, last, source, sources, unsure = 0.0, NONE, k, 0, False
            for j in range(input_rows[v], input_rows[v + 1]):
                t = inputs[j]
                u = producer[t]
                h = place[u]
                if h != k and copied[t * d + k] == 0:
                    takes = time_of(t, h, k)
                    unsure |= source != k and source != h
                    source, last = h, max(last, made[u])
                    if takes > 0:
                        total += takes
                        # A word has so many bits; without the others the bound is lower.
                        sources |= 1 << h if h < 63 else 0
            c = v * d + k
            owed[c], newest[c], sender[c], senders[c], vague[c] = total, last, source, sources, unsure

    def owe_pair(v):
        """`owe` on both of two devices, without branches."""
        sum0, sum1, last0, last1 = 0.0, 0.0, NONE, NONE
        for j in range(input_rows[v], input_rows[v + 1]):
            t = inputs[j]
            u = producer[t]
            h = place[u]
            takes, when = time_of(t, h, 1 - h), made[u] - NONE
            lacks0, lacks1 = h & (copied[2 * t] == 0), (1 - h) & (copied[2 * t + 1] == 0)
            sum0, sum1 = sum0 + takes * lacks0, sum1 + takes * lacks1
            last0, last1 = max(last0, NONE + when * lacks0), max(last1, NONE + when * lacks1)
        owed[2 * v], newest[2 * v], owed[2 * v + 1], newest[2 * v + 1] = sum0, last0, sum1, last1

    def move(t, k, quiet, pairs):
        u = producer[t]
        h = place[u]
        copied[t * d + k] = 1
        if goal > 0:
            held[k] += size[t]
        if blocking:
            takes, when = time_of(t, h, k), meet[h * d + k]
            if not rides(t, h, k, takes):
                clock[h] = clock[k] = max(clock[h], clock[k]) + takes
                when = counts[1]
                meet[h * d + k] = meet[k * d + h] = when
                counts[1] += 1
            happens(n + t * d + k, when)
            # What the followed schedule takes next is not compared.
            for j in range(reader_rows[t], reader_rows[t] if quiet else reader_rows[t + 1]):
                v = reader[j]
                if waiting[v] == 0 and place[v] < 0:
                    if pairs:
                        owe_pair(v)
                    else:
                        owe(v, k, k + 1)

    def free(t):
        """Frees all copies of a tensor whose readers have all run, and the original unless it is kept."""
        home = place[producer[t]]
        for k in range(d):
            if copied[t * d + k] == 1 or (k == home and not keep[t]):
                held[k] -= size[t]

    def take(o, k, count, start, quiet, pairs):
        """Schedules the transfers that the op needs on device ``k``, then the op."""
        place[o] = bound[leader[o]] = k
        for i in range(count):
            move(moves[i], k, quiet, pairs)
        finish[o] = clock[k] = start + runtime[o * d + k]
        made[o] = counts[1]
        happens(o, counts[1])
        counts[1] += 1

    def remember(o, k, need):
        """The memory that the op takes, and what it is the last to read."""
        most[k] = max(most[k], need)
        for t in range(output_rows[o], output_rows[o + 1]):
            if stays(o, t):
                held[k] += size[t]
        for j in range(input_rows[o], input_rows[o + 1]):
            t = inputs[j]
            left[t] -= 1
            if left[t] == 0:
                free(t)

    def arrive(v):
        """All before the op have run: says when it could begin on each device, whatever its clock."""
        for k in range(d):
            begins[v * d + k] = release[v]
        if not blocking:
            for j in range(input_rows[v], input_rows[v + 1]):
                t = inputs[j]
                u = producer[t]
                h, there = place[u], finish[u]
                for k in range(d):
                    c = v * d + k
                    moved = there + time_of(t, h, k) if h != k else there
                    begins[c] = max(begins[c], moved)

    def enable(v, pairs):
        """Notes down all that the comparison of a ready op needs."""
        arrive(v)
        if pairs and blocks:
            owe_pair(v)
        else:
            owe(v, 0, d if blocks else 0)
        base[v] = np.inf
        for k in range(d):
            c = v * d + k
            toll = price[c] + (runtime[c] if by_finish else 0.0) - weight * rank[v]
            fixed[c] = toll if allowed[c] else np.inf
            base[v] = min(base[v], fixed[c])
            if pairs:
                sender[c], vague[c] = 1 - k, 0
            if not blocks:
                owed[c], newest[c], sender[c], vague[c] = 0.0, NONE, k, 0

    def at_least(c, k):
        """A lower bound on the start of an op on device ``k`` if several devices send what it lacks."""
        at = clock[k]
        if owed[c] > 0:
            for h in range(min(d, 63)):
                if senders[c] >> h & 1:
                    at = max(at, clock[h])
            # A transfer takes the time of both devices, and begins after both clocks.
            at = max(at, clock[k] + owed[c])
        return at

    def place_of_bit(bit):
        """The place of a bit among 32, without branches."""
        low, high = (bit & 0xAAAAAAAA) != 0, (bit & 0xCCCCCCCC) != 0
        return (
            1 * low + 2 * high + 4 * ((bit & 0xF0F0F0F0) != 0)
            + 8 * ((bit & 0xFF00FF00) != 0) + 16 * ((bit & 0xFFFF0000) != 0)
        )  # fmt: skip

    def cost_of(c, k):
        """The rule's cost of a ready op on device ``k``, or a lower bound if several devices send."""
        # Without branches, which processors would mispredict.
        h, now = sender[c], clock[k]
        there = clock[h]
        meets = (owed[c] > 0) | (newest[c] >= meet[h * d + k])
        start = (max(now, there) if meets else now) + owed[c]
        lost = start - there if meets else 0.0
        if vague[c]:
            start, lost = at_least(c, k), owed[c]
        start = max(start, begins[c])
        return start + waste * (lost + start - now) + behind * now + fixed[c]

    def cost_of_pair(c, k, now, there, met):
        """`cost_of` with two devices, by products and a table instead of conditions: nothing branches."""
        meets = (owed[c] > 0) | (newest[c] >= met)
        start = level[2 * k + meets] + owed[c]
        lost = (start - there) * meets
        start = max(start, begins[c])
        return start + waste * (lost + start - now) + behind * now + fixed[c]

    def best_of_pair(among, soonest):
        """``(place in near, device, cost, clock)`` of the best of all choices.

        There are two devices. The device is -1 if rounding errors decide, or no cost is finite: then the
        general loop does.
        """
        score0 = score1 = np.inf
        now0, now1, met = clock[0], clock[1], meet[1]
        level[0], level[1], level[2], level[3] = now0, max(now0, now1), now1, max(now0, now1)
        for i in range(among):
            c = 2 * near[i]
            mine = cost_of_pair(c, 0, now0, now1, met)
            score0 = min(score0, mine)
            lowest[2 * i] = mine
            mine = cost_of_pair(c + 1, 1, now1, now0, met)
            score1 = min(score1, mine)
            lowest[2 * i + 1] = mine
        score = min(score0, score1)
        if not score < np.inf:
            return 0, -1, np.inf, 0.0
        bits0, bits1 = 1 << among, 1 << among
        for i in range(among):
            bits0 |= (lowest[2 * i] == score) << i
            bits1 |= (lowest[2 * i + 1] == score) << i
        place0, place1 = place_of_bit(bits0 & -bits0), place_of_bit(bits1 & -bits1)
        if score1 < score0 or (score1 == score0 and (now1, place1) < (now0, place0)):
            best, device, first = place1, 1, now1
        else:
            best, device, first = place0, 0, now0
        v = near[best]
        bound_of = max(soonest, release[v]) + behind * soonest + base[v]
        for i in range(2 * best if bound_of > score else 0):
            # The general loop would pass over the op.
            if lowest[i] < bound_of:
                device = -1
        if device < 0:
            score, first = np.inf, 0.0
        return best, device, score, first

    def sort():
        """Sorts the ops by key, from the order of an earlier schedule, and empties the set of ready ops."""
        count = 0
        for i in range(1, n):
            u, v = ranked[i - 1], ranked[i]
            count += (key[v] > key[u]) | ((key[v] == key[u]) & (position[v] < position[u]))
        # Insertion takes long where many are in disorder.
        gap = 1 if count < _FEW else max(1, n * 5 // 11)
        while count > 0:
            for i in range(gap, n):
                v, j = ranked[i], i
                while j >= gap:
                    u = ranked[j - gap]
                    if key[v] < key[u] or (key[v] == key[u] and position[v] > position[u]):
                        break
                    ranked[j] = u
                    j -= gap
                ranked[j] = v
            count = gap - 1
            gap = max(1, gap * 5 // 11)
        for i in range(n):
            spot[ranked[i]] = i
        for i in range(len(words)):
            words[i] = 0

    for k in range(d):
        clock[k], held[k], most[k] = 0.0, 0, 0
    for i in range(d * d):
        meet[i] = -1
    for i in range(len(copied)):
        copied[i] = 0
    for t in range(len(left)):
        left[t] = readers[t]
    counts[0] = counts[1] = 0
    # Residents come first, so that no other op is put where their memory leaves no room.
    lead = 2 * max(rank) + 1
    # The rounding errors of lower bounds are smaller than this.
    margin, dearest, grouped, pairs = 0.0, 0.0, False, False
    # Work that is left, and a bound on the rounding error of sums.
    rest, slack = 0.0, 1e-9 * limit
    # Whether all choices were those of the followed schedule so far, its changed ops that have not run, and
    # those of them that are ready. As long as none has been ready, nothing is compared: all is quiet.
    follows, differ, near_differ = counts[FOLLOWED] > 0, 0, 0
    quiet = follows
    for o in range(n):
        rest += least[o]
        place[o] = bound[o] = -1
        waiting[o], release[o], key[o] = predecessors[o], 0.0, rank[o] + lead * resident[o]
        grouped |= leader[o] != o
        if follows:
            differ += changed[o]
    if goal == 0:
        for i in range(n * d):
            dearest = max(dearest, abs(price[i]))
        pairs = d == 2 and not grouped and look < 32
        margin = 1e-12 * ((2 + 2 * waste + behind) * span + weight * lead + dearest)
    # Numbers of ready ops in ``words`` and in ``near``, and of those that have run. The last of these, or -1.
    # No word before ``word`` has a bit.
    far, few, done, o, word = 0, 0, 0, -1, 0
    # When all changed ops have run, the rest is as before.
    while done < n and not (follows and differ == 0):
        count = 0
        for j in range(after_rows[max(o, 0)], after_rows[o + 1]):
            v = after[j]
            waiting[v] -= 1
            release[v] = max(release[v], finish[o])
            fresh[count] = v
            count += waiting[v] == 0
        # At first, and when comparisons begin, all ready ops are new.
        everything = o < 0
        for turn in range(2):
            if everything:
                if not quiet:
                    sort()
                count = 0
                for v in range(n):
                    if waiting[v] == 0 and place[v] < 0:
                        fresh[count] = v
                        count += 1
            for j in range(count):
                v = fresh[j]
                if quiet:
                    few += changed[v]
                    continue
                enable(v, pairs)
                if follows:
                    near_differ += changed[v]
                if few == look:
                    w = v
                    if spot[v] < spot[near[few - 1]]:
                        few -= 1
                        w = near[few]
                    i = spot[w]
                    words[i >> 5] |= 1 << (i & 31)
                    word = min(word, i >> 5)
                    far += 1
                    if w == v:
                        continue
                i = few
                while i > 0 and spot[v] < spot[near[i - 1]]:
                    near[i] = near[i - 1]
                    i -= 1
                near[i] = v
                few += 1
            if turn == 1 or not quiet or few == 0:
                break
            # From now on, all ready ops are compared.
            quiet, everything, few, near_differ = False, True, 0, 0
        # Choices whose cost is known only roughly so far.
        rough, best, device = 0, 0, -1
        over, more, score, first = 0.0, 0.0, np.inf, 0.0
        if quiet or (follows and near_differ == 0):
            device = homes[path[done]]
            while not quiet and near[best] != path[done]:
                best += 1
        else:
            among = few
            if resident[near[0]]:
                among = 1
                while among < few and resident[near[among]]:
                    among += 1
            low, least_rough = np.inf, 0
            soonest = clock[0]
            for k in range(1, d):
                soonest = min(soonest, clock[k])
            if pairs:
                best, device, score, first = best_of_pair(among, soonest)
            for i in range(0 if device >= 0 else among):
                v = near[i]
                bound_of = max(soonest, release[v]) + behind * soonest + base[v]
                if goal == 0 and bound_of > score:
                    continue
                at = bound[leader[v]] if grouped else -1
                for k in range(d):
                    c, now = v * d + k, clock[k]
                    if grouped and at >= 0 and at != k:
                        continue
                    if goal > 0:
                        if allowed[c]:
                            pick[2 * rough], pick[2 * rough + 1], lowest[rough] = i, k, -np.inf
                            rough += 1
                        continue
                    mine = cost_of(c, k)
                    if vague[c]:
                        if allowed[c]:
                            pick[2 * rough], pick[2 * rough + 1], lowest[rough] = i, k, mine - margin
                            if lowest[rough] < low:
                                low, least_rough = lowest[rough], rough
                            rough += 1
                        continue
                    better = (mine < score) | ((mine == score) & (now < first))
                    best, device = (i if better else best), (k if better else device)
                    score, first = (mine if better else score), (now if better else first)
            if rough > 1:
                # The least bound comes first.
                j = 2 * least_rough
                pick[0], pick[1], pick[j], pick[j + 1] = pick[j], pick[j + 1], pick[0], pick[1]
                lowest[0], lowest[least_rough] = lowest[least_rough], lowest[0]
        # The best choice comes again at the end. One loop, so that the code of a choice is inlined once only.
        for turn in range(rough + 1):
            taken = turn == rough
            if taken:
                if device < 0:
                    # No choice is the best where costs are not finite. Take the first.
                    best, device = 0, max(bound[leader[near[0]]], 0)
                    while not allowed[near[0] * d + device]:
                        device += 1
                i, k = best, device
                o = path[done] if quiet else near[best]
                if quiet:
                    arrive(o)
            else:
                if lowest[turn] > score:
                    continue
                i, k = pick[2 * turn], pick[2 * turn + 1]
                o = near[i]
            count = 0
            if goal > 0 or (blocks and (quiet or newest[o * d + k] > NONE)):
                count = list_pair(o, k) if pairs else list_moves(o, k)
            start, lost = begin(o, k, count)
            need, grown = 0, 0
            if goal > 0:
                need, grown = needs(o, k, count)
            if taken:
                take(o, k, count, start, quiet, pairs)
                if goal > 0:
                    remember(o, k, need)
                continue
            mine = judge(o, k, start, lost)
            above, added = 0.0, 0.0
            if goal > 0:
                room = memory[k] if goal == 1 else float(max(most))
                above, added = max(0.0, need - room), 0.0 if goal == 1 else float(grown)
            if (
                device < 0
                or above < over
                or (above == over and (added, mine, clock[k], i, k) < (more, score, first, best, device))
            ):
                best, device = i, k
                over, more, score, first = above, added, mine, clock[k]
        if follows:
            follows = o == path[done] and device == homes[o]
            differ, near_differ = differ - changed[o], near_differ - changed[o]
        done += 1
        rest -= least[o]
        if limit < np.inf and not follows:
            idle = -rest
            for k in range(d):
                idle += max(0.0, limit - clock[k])
            if idle < -slack * d or finish[o] + tail[o] > limit + slack:
                for k in range(d):
                    clock[k] = np.inf
                break
        if quiet:
            continue
        few -= 1
        for i in range(best, few):
            near[i] = near[i + 1]
        if far > 0:
            while words[word] == 0:
                word += 1
            i = words[word] & -words[word]
            words[word] -= i
            near[few] = ranked[32 * word + place_of_bit(i)]
            few, far = few + 1, far - 1
    return state
