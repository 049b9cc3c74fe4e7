"""Schedule generation as one compiled loop for CPUs: one candidate at a time, op by op.

It decides exactly as `generate_lockstep` does: both compute the same float32 numbers in the same order.
"""

# What Numba compiles is no Python to pyright: an intrinsic is called without its first argument.
# pyright: reportCallIssue=false, reportGeneralTypeIssues=false, reportPrivateImportUsage=false

import functools
import pathlib
import zlib
from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.simulate import (
    generate_kernel_memory,
    generate_layout,
    host_call,
    host_kernel,
    host_layout,
    host_memory,
)
from regal_jax.simulate.generate_kernel_memory import (
    begin_held,
    excess_of,
    held_words,
    highest,
    insert,
    make_held,
    needs,
    remember,
)
from regal_jax.simulate.generate_layout import (
    BEHIND,
    CAPACITY,
    EARLY,
    PEAKS,
    PRICE,
    TEMP,
    URGENCY,
    WASTE,
    extra_words,
    make_extra,
    order_events,
)
from regal_jax.simulate.host_call import allocate, c_function, free, operand, pointer, result, take, task_of
from regal_jax.simulate.host_kernel import answer_call, candidates_at_once, write_positions
from regal_jax.simulate.host_layout import (
    Candidate,
    compiled,
    make_scratch,
    regroup,
    regroup_memory,
    sizes_of,
)
from regal_jax.simulate.host_memory import peaks

__all__ = ["handler"]

_Preferred = namedtuple("_Preferred", "urgency price early waste behind")
"""One candidate: ``[N]`` and ``[N, D]`` float32, three numbers."""


@compiled
def _cost(t, source, k, g):
    """Time of a transfer."""
    if g.kinds == 1:
        return g.transfer_time[t]
    return g.transfer_time[t * g.kinds + g.kind[source * g.d + k]]


@compiled
def _rides(t, home, k, cost, copies, g, h, x):
    """Whether a transfer is inserted where its devices last met; there, all ``copies`` must fit."""
    if cost != 0 or x.made[g.tensor_op[t]] >= x.meet[home * g.d + k]:
        return False
    if h is None:
        return True
    return not h.peaks and np.int64(h.since[home * g.d + k]) + copies <= h.capacity[k]


@compiled
def _start(o, k, copies, g, c, transfers, s, h, x):
    """When a ready op could start on a device, each transfer by itself."""
    start = max(x.release[o], s.clock[k])
    for j in range(x.input_row[o], x.input_row[o + 1]):
        t = np.int64(x.inputs[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k:
            continue
        if transfers is None:
            start = max(start, x.finish[g.tensor_op[t]] + _cost(t, home, k, g))
        elif x.sent[t * g.d + k] < 0:
            cost = _cost(t, home, k, g)
            if not _rides(t, home, k, cost, copies, g, h, x):
                start = max(start, max(s.clock[home], s.clock[k]) + cost)
    return start


@compiled
def _feasible(o, k, g, x):
    bound = x.bound[x.leader[o]]
    return x.allowed[o * g.d + k] != 0 and (bound < 0 or bound == k)


@compiled
def _first_cost(o, k, g, c, p, transfers, s, h, x):
    """Excess and cost of a ready op on a device when ops are compared, without price."""
    if h is None:
        return 0, _start(o, k, 0, g, c, transfers, s, h, x)
    need, copies, growth = needs(o, k, g, c, transfers, h, x)
    excess = excess_of(need, k, h)
    if h.peaks:
        return excess, highest(need, k, growth, p, g, h)
    return excess, _start(o, k, copies, g, c, transfers, s, h, x)


@compiled
def _choose(ready, g, c, p, transfers, s, h, x):
    """Index of the ready op with the least excess, then cost less urgency, lowest op on ties."""
    best, over, least, chosen = -1, 0, np.float32(np.inf), g.n
    if h is None:
        # The op of the least bound comes first, so that more of the others are skipped.
        first, lowest = 0, np.float32(np.inf)
        clock = s.clock[0]
        for k in range(1, g.d):
            clock = min(clock, s.clock[k])
        for i in range(ready):
            o = np.int64(x.ready[i])
            low = max(x.release[o], clock) - p.urgency[o]
            if low < lowest:
                first, lowest = i, low
        o = x.ready[first]
        x.ready[first] = x.ready[0]
        x.ready[0] = o
    for i in range(ready):
        o = np.int64(x.ready[i])
        above, cost = -1, np.float32(np.inf)
        for k in range(g.d):
            if not _feasible(o, k, g, x):
                continue
            price = p.early * p.price[o * g.d + k]
            if h is None:
                # A cost that the op's inputs can only raise, and that is too high already.
                low = max(x.release[o], s.clock[k]) + price
                score = low - p.urgency[o]
                if above >= 0 and low >= cost:
                    continue
                if best >= 0 and (score > least or (score == least and o > chosen)):
                    continue
            excess, mine = _first_cost(o, k, g, c, p, transfers, s, h, x)
            mine += price
            if above < 0 or excess < above or (excess == above and mine < cost):
                above, cost = excess, mine
        if above < 0:
            continue
        score = cost - p.urgency[o]
        better = above == over and (score < least or (score == least and o < chosen))
        if best < 0 or above < over or better:
            best, over, least, chosen = i, above, score, o
    return best


@compiled
def _sort_inputs(o, g, c, s, x):
    """Lists the inputs by the clocks of their homes, by number on ties; returns how many."""
    count = 0
    for j in range(x.input_row[o], x.input_row[o + 1]):
        t = x.inputs[j]
        clock = s.clock[c.placement[g.tensor_op[t]]]
        i = count
        while i > 0 and s.clock[c.placement[g.tensor_op[x.order[i - 1]]]] > clock:
            x.order[i] = x.order[i - 1]
            i -= 1
        x.order[i] = t
        count += 1
    return count


@compiled
def _move(inputs, k, copies, g, c, s, h, x):
    """Considers the transfers to device ``k``: its clock afterwards, and what other devices lose."""
    for j in range(inputs):
        home = c.placement[g.tensor_op[x.order[j]]]
        x.lag[home] = s.clock[home]
    own, lost = s.clock[k], np.float32(0)
    for j in range(inputs):
        t = np.int64(x.order[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k or x.sent[t * g.d + k] >= 0:
            continue
        cost = _cost(t, home, k, g)
        if _rides(t, home, k, cost, copies, g, h, x):
            continue
        own = max(own, x.lag[home]) + cost
        lost += own - x.lag[home]
        x.lag[home] = own
    return own, lost


@compiled
def _send(inputs, k, copies, slot, g, c, s, h, x):
    """Makes the transfers to device ``k``; returns the next slot."""
    if h is not None:
        for other in range(g.d):
            h.column[other] = h.since[other * g.d + k]
    # Whether a transfer is inserted depends on the meetings before this op.
    for j in range(inputs):
        t = np.int64(x.order[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k or x.sent[t * g.d + k] >= 0:
            continue
        if _rides(t, home, k, _cost(t, home, k, g), copies, g, h, x):
            x.sent[t * g.d + k] = 2 * x.meet[home * g.d + k] + 1
            if h is not None:
                insert(t, home, k, g, h, x)
    if h is not None:
        for other in range(g.d):
            h.since[other * g.d + k] = h.column[other]
    for j in range(inputs):
        t = np.int64(x.order[j])
        home = np.int64(c.placement[g.tensor_op[t]])
        if home == k or x.sent[t * g.d + k] >= 0:
            continue
        finish = max(s.clock[k], s.clock[home]) + _cost(t, home, k, g)
        s.clock[k], s.clock[home] = finish, finish
        x.sent[t * g.d + k] = 2 * slot
        x.meet[home * g.d + k], x.meet[k * g.d + home] = slot, slot
        slot += 1
    return slot


@compiled
def _last_cost(o, k, inputs, g, c, p, transfers, s, h, x):
    """Excess, cost, need and copies of the chosen op on a device."""
    excess, need, copies, growth = 0, 0, 0, 0
    if h is not None:
        need, copies, growth = needs(o, k, g, c, transfers, h, x)
        excess = excess_of(need, k, h)
        if h.peaks:
            return excess, highest(need, k, growth, p, g, h) + p.price[o * g.d + k], need, copies
    if transfers is None:
        start, lost = _start(o, k, copies, g, c, transfers, s, h, x), np.float32(0)
    else:
        start, lost = _move(inputs, k, copies, g, c, s, h, x)
        start = max(start, x.release[o])
    cost = start + g.runtime[o * g.d + k] + p.price[o * g.d + k] + p.waste * lost + p.behind * s.clock[k]
    return excess, cost, need, copies


@compiled
def _place(o, g, c, p, transfers, s, h, x, slot):
    """Puts an op on the device of least excess, then cost, lowest index on ties; returns the next slot."""
    inputs = 0 if transfers is None else _sort_inputs(o, g, c, s, x)
    k, over, least, need, copies = -1, 0, np.float32(np.inf), 0, 0
    for device in range(g.d):
        if not _feasible(o, device, g, x):
            continue
        if h is None and k >= 0:
            # As in `_choose`: transfers can only add to this.
            low = max(s.clock[device], x.release[o]) + g.runtime[o * g.d + device] + p.price[o * g.d + device]
            if low + p.behind * s.clock[device] >= least:
                continue
        excess, cost, needed, copied = _last_cost(o, device, inputs, g, c, p, transfers, s, h, x)
        if k < 0 or excess < over or (excess == over and cost < least):
            k, over, least, need, copies = device, excess, cost, needed, copied
    first = slot
    if transfers is None:
        start = _start(o, k, copies, g, c, transfers, s, h, x)
    else:
        slot = _send(inputs, k, copies, slot, g, c, s, h, x)
        start = max(s.clock[k], x.release[o])
    s.clock[k] = start + g.runtime[o * g.d + k]
    x.finish[o] = s.clock[k]
    c.placement[o] = k
    x.bound[x.leader[o]] = k
    x.made[o] = slot
    if h is not None:
        remember(o, k, need, copies, first, g, c, transfers, h, x)
    return slot + 1


@compiled
def _generate(g, c, p, transfers, s, h, x):
    """Takes all ops; returns the number of slots."""
    for k in range(g.d):
        s.clock[k] = 0
    ready = 0
    for o in range(g.n):
        c.placement[o], x.bound[o], x.made[o], x.release[o] = 0, -1, -1, 0
        x.waiting[o] = g.indegree[o]
        if g.indegree[o] == 0:
            x.ready[ready] = o
            ready += 1
    if transfers is not None:
        for i in range(g.t * g.d):
            x.sent[i] = -1
        for i in range(g.d * g.d):
            x.meet[i] = -1
    if h is not None:
        begin_held(g, transfers, h)
    slot = 0
    while ready > 0:
        i = _choose(ready, g, c, p, transfers, s, h, x)
        o = np.int64(x.ready[i])
        ready -= 1
        x.ready[i] = x.ready[ready]
        slot = _place(o, g, c, p, transfers, s, h, x, slot)
        for j in range(g.rows[3 * o], g.rows[3 * o + 2]):
            v = np.int64(g.links[2 * j])
            x.release[v] = max(x.release[v], x.finish[o])
            x.waiting[v] -= 1
            if x.waiting[v] == 0:
                x.ready[ready] = v
                ready += 1
    return slot


@compiled
def _candidate(frame, i, j, g):
    """Where candidate ``j`` of graph ``i`` writes to, and its preferences."""
    at = i * g.p + j
    op_position, transfer_position = result(frame, 2), result(frame, 3)
    keys = pointer(0, np.uint16)
    c = Candidate(
        *(pointer(result(frame, 4) + 4 * at * g.n, np.int32), keys, keys, op_position != 0),
        pointer(op_position + 4 * at * g.n, np.int32),
        pointer(transfer_position + 4 * at * g.t * g.d, np.int32),
    )
    return c, _Preferred(
        pointer(operand(frame, URGENCY) + 4 * at * g.n, np.float32),
        pointer(operand(frame, PRICE) + 4 * at * g.n * g.d, np.float32),
        pointer(operand(frame, EARLY), np.float32)[at],
        pointer(operand(frame, WASTE), np.float32)[at],
        pointer(operand(frame, BEHIND), np.float32)[at],
    )


@compiled
def _make_held(frame, i, g, memory, at):
    """`Held` of graph ``i``, written to ``at``."""
    temp = pointer(operand(frame, TEMP) + 4 * i * g.n, np.int32)
    capacity = pointer(operand(frame, CAPACITY) + 4 * i * g.d, np.int32)
    return make_held(g, memory, temp, capacity, pointer(operand(frame, PEAKS), np.int32)[0] != 0, at)


@compiled
def _work(block, transfers, with_memory, decides):
    """Takes chunks of candidates of one graph until none is left."""
    chunk, frame = take(block, False)
    if chunk < 0:
        return 0
    sizes = sizes_of(frame)
    size = candidates_at_once(sizes)
    each = (sizes.p + size - 1) // size
    n, t, d, e = sizes.n, sizes.t, sizes.d, sizes.e
    scratch_at, s = make_scratch(sizes)
    links_at, memory_at = allocate(12 * (n + t) + 8 * e), allocate(16 * (n + t))
    extra_at, held_at = allocate(4 * extra_words(sizes)), allocate(4 * held_words(sizes))
    while chunk >= 0:
        i = chunk // each
        g = regroup(frame, i, sizes, links_at)
        memory = None if with_memory is None else regroup_memory(frame, i, g, memory_at)
        x = make_extra(frame, i, g, extra_at)
        h = None if decides is None else _make_held(frame, i, g, memory, held_at)
        makespan, peak = pointer(result(frame, 0), np.float32), pointer(result(frame, 1), np.int32)
        first = chunk % each * size
        for j in range(first, min(first + size, g.p)):
            c, p = _candidate(frame, i, j, g)
            slots = _generate(g, c, p, transfers, s, h, x)
            if with_memory is not None or c.positions:
                m = order_events(slots, g, c, transfers, s, x)
                if memory is not None:
                    peaks(m, g, memory, c, transfers, s)
                if c.positions:
                    write_positions(g, c, transfers, m, s)
            at = i * g.p + j
            makespan[at] = 0
            for k in range(d):
                makespan[at] = max(makespan[at], s.clock[k])
                if with_memory is not None:
                    peak[at * d + k] = s.peak[k]
        chunk, frame = take(block, True)
    free(scratch_at)
    free(links_at)
    free(memory_at)
    free(extra_at)
    free(held_at)
    return 0


def _by_time(block, transfers, with_memory):
    """A task."""
    return _work(block, transfers, with_memory, None)


def _by_memory(block, transfers, with_memory):
    """A task."""
    return _work(block, transfers, with_memory, True)


_time_task, _memory_task = task_of(_by_time), task_of(_by_memory)


def _version() -> int:
    """A digest of the other files that the kernel is compiled from."""
    modules = (
        *(host_call, host_layout, host_memory, host_kernel),
        *(generate_kernel_memory, generate_layout),
    )
    files = (str(module.__file__) for module in modules)
    return zlib.crc32(b"".join(pathlib.Path(file).read_bytes() for file in files))


@functools.cache
def handler(transfers: bool, memory: bool, decides: bool = False) -> Any:
    """As `regal_jax.simulate.host_kernel.handler`, for schedule generation.

    Args:
      transfers: As there.
      memory: As there.
      decides: Whether memory decides, which needs ``memory``.
    """
    # As in `host_kernel`. A task in the closure would differ from process to process, and nothing be found.
    first, second, version = transfers or None, memory or None, _version()

    def by_time(frame):
        return answer_call(frame, _time_task(first, second)) if version >= 0 else 1

    def by_memory(frame):
        return answer_call(frame, _memory_task(first, second)) if version >= 0 else 1

    return c_function(by_memory if decides else by_time)
