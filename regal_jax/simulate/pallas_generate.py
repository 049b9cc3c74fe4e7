"""One block of the fused GPU kernel of schedule generation: all ops of one candidate, one after another.

A block is one warpgroup of 128 lanes, as in `regal_jax.simulate.pallas_kernel`, whose rule it follows: shared
memory is written by rows of 128 lanes. The choice of an op compares 128 ops at a time. All else is scalar,
and every lane computes it. `regal_jax.simulate.pallas_generate_layout` describes the state.
"""

import functools
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.simulate.pallas_generate_layout import (
    MADE,
    NONE,
    Block,
    Clocks,
    Now,
    Sizes,
    code_of,
    device_of,
    make_block,
    slot_of,
    spot_of,
)
from regal_jax.simulate.pallas_generate_memory import (
    add_copy,
    add_input,
    begin_held,
    cost_of,
    fits,
    free,
    insert,
    need_of,
    remember,
)
from regal_jax.simulate.pallas_rows import LANES, any_of, put, row_at, when

__all__ = ["program"]

_ROWS: Final = 2**24
"""More than any op."""
_ALL: Final = 2**31 - 1
"""More than any excess."""


def _copy(source: Any, target: Any, length: int, at: int = 0) -> None:
    """Copies rows to ``target`` from ``at`` on."""

    def step(i: jax.Array, _: None) -> None:
        target[row_at(at + i * LANES)] = source[row_at(i * LANES)]

    jax.lax.fori_loop(0, length // LANES, step, None)


def _set_all(ref: Any, length: int, value: jax.Array) -> None:
    def step(i: jax.Array, _: None) -> None:
        ref[row_at(i * LANES)] = jnp.full(LANES, value)

    jax.lax.fori_loop(0, length // LANES, step, None)


def _fill(block: Block) -> None:
    """The state before the first op."""
    sizes, none = block.sizes, jnp.int32(-1)
    _copy(block.inputs.waiting, block.waiting, sizes.ops)
    _copy(block.inputs.may, block.may, sizes.ops)
    _set_all(block.release, sizes.ops, jnp.float32(0))
    _set_all(block.spot, sizes.ops, none)
    if block.late is not None:
        _set_all(block.late, sizes.pairs * sizes.ops, jnp.float32(NONE if sizes.blocking else 0))
    if block.sent is not None:
        _set_all(block.sent, sizes.copies, none)
    if sizes.memory:
        _set_all(block.lacks, sizes.d * sizes.ops, jnp.int32(0))
        _copy(block.memory.readers, block.left, sizes.tensors)
    if block.growth is not None:
        for k in range(sizes.d):
            _copy(block.memory.stays, block.growth, sizes.ops, k * sizes.ops)


def _starts(block: Block, now: Now, base: jax.Array, k: int) -> jax.Array:
    """When a row of ops could start on device ``k``, each transfer by itself."""
    sizes, at = block.sizes, row_at(k * block.sizes.ops + base)
    start = jnp.maximum(block.release[row_at(base)], now.clock[k])
    if not sizes.pairs:
        return start
    if not sizes.blocking:
        return jnp.maximum(start, block.late[at])
    for h in range(sizes.d):
        if h == k:
            continue
        late = block.late[row_at(block.pair(h, k) + base)]
        both = jnp.maximum(now.clock[h], now.clock[k]) + jnp.maximum(late, jnp.float32(0))
        least = now.meet[h][k].astype(jnp.float32) - MADE
        if now.held is not None:
            # Nothing is inserted where the copies do not fit.
            inside = fits(block, now.held.since[k][h], block.lacks[at], k)
            least = jnp.where(inside, least, jnp.float32(-2 * MADE))
        start = jnp.maximum(start, jnp.where(late >= least, both, jnp.float32(0)))
    return start


def _choose(block: Block, now: Now) -> jax.Array:
    """The ready op of the least excess, then cost, less urgency; the lowest on ties."""
    sizes, inputs, held = block.sizes, block.inputs, now.held

    def look(i: jax.Array, carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        best, found, most = carry
        base = i * LANES
        may = block.may[row_at(base)]
        # `room` is 2**31 - 1 less the excess, 0 if the op may not run there.
        value, room = jnp.full(LANES, jnp.float32(NONE)), jnp.full(LANES, jnp.int32(0))
        for k in range(sizes.d):
            at = row_at(k * sizes.ops + base)
            need = None
            if held is not None:
                need = need_of(block, held, row_at(base), block.lacks[at], k)
            if sizes.goal == "peak" and held is not None and need is not None:
                cost = cost_of(block, held, need, block.growth[at], k)
            else:
                cost = _starts(block, now, base, k)
            allowed = (may & (1 << k)) != 0
            here = jnp.where(allowed, -(cost + inputs.early * inputs.price[at]), jnp.float32(NONE))
            if need is None:
                value = jnp.maximum(value, here)
                continue
            mine = jnp.where(allowed, _ALL - _excess(block, need, k), 0)
            value = jnp.where(mine > room, here, jnp.where(mine == room, jnp.maximum(value, here), value))
            room = jnp.where(mine > room, mine, room)
        ready = block.waiting[row_at(base)] == 0
        value = jnp.where(ready, value + inputs.urgency[row_at(base)], jnp.float32(NONE))
        better = value > best
        if held is not None:
            room = jnp.where(ready, room, 0)
            better = (room > most) | ((room == most) & better)
            most = jnp.maximum(most, room)
        mine = (_ROWS - base) - block.lane
        return jnp.where(better, value, best), jnp.where(better, mine, found), most

    # Made from `lane`, since JAX 0.10 lays a constant out in another way than what the loop makes of it.
    none = block.lane * 0
    begin = none.astype(jnp.float32) + jnp.float32(NONE), none + 1, none
    best, found, most = jax.lax.fori_loop(0, now.rows, look, begin)
    if held is not None:
        best = jnp.where(most == jnp.max(most), best, jnp.float32(NONE))
    return _ROWS - jnp.max(jnp.where(best == jnp.max(best), found, 1))


def _excess(block: Block, need: jax.Array, k: int) -> jax.Array:
    """What of a need is above the capacity."""
    return jnp.maximum(need - block.memory.capacity[k], 0)


class _Moves(NamedTuple):
    """What happens before an op on each device ``k``: registers.

    Attributes:
      lag: ``D`` times ``D``, row ``k``: the clocks after the transfers.
      lost: ``D``, time that the other devices lose.
      since, most: As in `Held`, row ``k`` and element ``k`` after insertions; ``None`` if memory does not
        decide.
    """

    lag: tuple[Clocks, ...]
    lost: Clocks
    since: tuple[Clocks, ...] | None
    most: Clocks | None


def _each_input(block: Block, op: jax.Array, clock: Clocks, carry: Any, visit: Any) -> Any:
    """Visits the inputs of an op by the clocks of their homes, by number on ties.

    Args:
      block: The block.
      op: The op.
      clock: Of each device.
      carry: Of the loop.
      visit: ``(carry, tensor, home, slot in which it was made) -> carry``.
    """
    inputs, sizes = block.inputs, block.sizes
    begin, end = inputs.reads[op], inputs.reads[op + 1]

    def after(last: jax.Array) -> jax.Array:
        """The next clock of a home, infinite if there is none."""

        def least(i: jax.Array, level: jax.Array) -> jax.Array:
            tensor = inputs.read[i]
            mine = any_of(clock, device_of(block.spot_of_maker(tensor)))
            return jnp.where((tensor < sizes.t) & (mine > last) & (mine < level), mine, level)

        return jax.lax.fori_loop(begin, end, least, jnp.float32(jnp.inf))

    def visit_level(carry: Any) -> Any:
        level, inner = carry

        def one(i: jax.Array, inner: Any) -> Any:
            tensor = inputs.read[i]
            spot = block.spot_of_maker(tensor)
            home = device_of(spot)
            here = (tensor < sizes.t) & (any_of(clock, home) == level)
            return jax.lax.cond(here, lambda: visit(inner, tensor, home, slot_of(spot)), lambda: inner)

        return after(level), jax.lax.fori_loop(begin, end, one, inner)

    start = after(jnp.float32(-1)), carry
    return jax.lax.while_loop(lambda c: c[0] < jnp.inf, visit_level, start)[1]


def _rides(
    block: Block, now: Now, op: jax.Array, tensor: jax.Array, home: jax.Array, made: jax.Array, k: Any
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Time of a transfer, last meeting of its devices, and whether it is inserted there."""
    cost, meeting = block.over(tensor, home, k), any_of(_row_of(now.meet, k), home)
    rides = (cost == 0) & (made < meeting)
    if block.sizes.goal == "peak":
        return cost, meeting, rides & False
    if now.held is not None:
        since = any_of(_row_of(now.held.since, k), home)
        rides &= fits(block, since, block.lacks[k * block.sizes.ops + op], k)
    return cost, meeting, rides


def _row_of(rows: tuple[Clocks, ...], k: Any) -> Clocks:
    """``rows[k]``; ``k`` may be in a register."""
    return rows[k] if isinstance(k, int) else tuple(any_of(column, k) for column in zip(*rows, strict=True))


def _consider(block: Block, op: jax.Array, now: Now, begin: _Moves) -> _Moves:
    """The transfers that an op needs on each device, one after another."""
    d = block.sizes.d

    def visit(moves: _Moves, tensor: jax.Array, home: jax.Array, made: jax.Array) -> _Moves:
        lag, lost = list(moves.lag), list(moves.lost)
        for k in range(d):
            cost, _, rides = _rides(block, now, op, tensor, home, made, k)
            lacks = (home != k) & (block.sent[tensor * d + k] < 0)
            runs = lacks & ~rides
            before = any_of(lag[k], home)
            done = jnp.maximum(lag[k][k], before) + cost
            lost[k] += jnp.where(runs, done - before, jnp.float32(0))
            lag[k] = tuple(
                jnp.where(runs & (home == h) if h != k else runs, done, old) for h, old in enumerate(lag[k])
            )
            if block.sizes.goal == "fit" and moves.since is not None and moves.most is not None:
                new, most = insert(block, moves.since[k], moves.most[k], now.meet[k], tensor, home)
                inserted = lacks & rides
                row = tuple(jnp.where(inserted, *each) for each in zip(new, moves.since[k], strict=True))
                most = jnp.where(inserted, most, moves.most[k])
                moves = moves._replace(
                    since=(*moves.since[:k], row, *moves.since[k + 1 :]),
                    most=(*moves.most[:k], most, *moves.most[k + 1 :]),
                )
        return moves._replace(lag=tuple(lag), lost=tuple(lost))

    return _each_input(block, op, now.clock, begin, visit)


def _has_copy(block: Block, op: jax.Array, tensor: jax.Array, home: jax.Array, k: jax.Array) -> None:
    """Updates the other readers of a tensor of which device ``k`` has got a copy."""
    inputs, sizes = block.inputs, block.sizes
    codes = sizes.blocking and sizes.pairs > 0

    def latest(i: jax.Array, code: jax.Array) -> jax.Array:
        other = inputs.read[i]
        spot, inside = block.spot_of_maker(other), jnp.minimum(other, sizes.t - 1)
        lacks = (other < sizes.t) & (spot >= 0) & (device_of(spot) == home)
        lacks &= block.sent[inside * sizes.d + k] < 0
        found = code_of(block.over(inside, home, k), slot_of(spot))
        return jnp.where(lacks, jnp.maximum(code, found), code)

    code = code_of(block.over(tensor, home, k), slot_of(block.spot_of_maker(tensor)))
    pair = block.pair(home, k)

    def visit(i: jax.Array, _: None) -> None:
        reader = inputs.successor[i]

        def again() -> None:
            each = inputs.reads[reader], inputs.reads[reader + 1]
            found = jax.lax.fori_loop(*each, latest, jnp.float32(NONE))
            put(block.late, block.lane, pair + reader, found)

        def update() -> None:
            if sizes.memory:
                add_copy(block, reader, tensor, k)
            if codes:
                # Other inputs decide unless this one was the latest.
                when(block.late[pair + reader] == code, again)

        when((reader != op) & (block.waiting[reader] >= 0), update)

    if codes or sizes.memory:
        jax.lax.fori_loop(inputs.first[tensor], inputs.last[tensor], visit, None)


def _send(block: Block, op: jax.Array, k: jax.Array, now: Now) -> tuple[Now, Clocks]:
    """Records the transfers to the device of an op; the clocks stay as they are.

    Returns:
      The new state, and the slot of the meeting with each device, -1 for none.
    """
    d, blocking = block.sizes.d, block.sizes.blocking
    none = (jnp.int32(-1),) * d

    def visit(
        carry: tuple[jax.Array, Clocks], tensor: jax.Array, home: jax.Array, made: jax.Array
    ) -> tuple[jax.Array, Clocks]:
        slots, met = carry
        lacks = (home != k) & (block.sent[tensor * d + k] < 0)
        code, runs = jnp.int32(0), lacks
        if blocking:
            _, meeting, rides = _rides(block, now, op, tensor, home, made, k)
            code, runs = jnp.where(rides, 2 * meeting + 1, 2 * slots), lacks & ~rides

        def record() -> None:
            put(block.sent, block.lane, tensor * d + k, code)
            _has_copy(block, op, tensor, home, k)

        when(lacks, record)
        if not blocking:
            return carry
        met = tuple(jnp.where(runs & (home == h), slots, old) for h, old in enumerate(met))
        return slots + jnp.where(runs, 1, 0), met

    slots, met = _each_input(block, op, now.clock, (now.slots, none), visit)
    meet = tuple(
        tuple(
            jnp.where(k == j, jnp.maximum(old, met[i]), jnp.where(k == i, jnp.maximum(old, met[j]), old))
            for j, old in enumerate(each)
        )
        for i, each in enumerate(now.meet)
    )
    return now._replace(slots=slots, meet=meet), met


def _settle(block: Block, op: jax.Array, k: jax.Array, finish: jax.Array, now: Now) -> Now:
    """Records the op and updates its group and its successors."""
    inputs, sizes = block.inputs, block.sizes
    put(block.spot, block.lane, op, spot_of(now.slots, k))
    put(block.waiting, block.lane, op, -1)

    def bind(i: jax.Array, _: None) -> None:
        member = inputs.member[i]
        put(block.may, block.lane, member, block.may[member] & jax.lax.shift_left(jnp.int32(1), k))

    def arrive(reader: jax.Array, tensor: jax.Array, other: int) -> None:
        """Updates the time at which ``reader`` has a tensor on another device."""
        cost = block.over(tensor, k, other)
        at = (block.pair(k, other) if sizes.blocking else other * sizes.ops) + reader
        new = code_of(cost, now.slots) if sizes.blocking else finish + cost
        put(block.late, block.lane, at, jnp.maximum(block.late[at], new))

    def spread(i: jax.Array, rows: jax.Array) -> jax.Array:
        reader, tensor = inputs.successor[i], inputs.via[i]
        left = block.waiting[reader] - 1
        put(block.waiting, block.lane, reader, left)
        put(block.release, block.lane, reader, jnp.maximum(block.release[reader], finish))
        data, inside = tensor < sizes.t, jnp.minimum(tensor, sizes.t - 1)
        for other in range(sizes.d if sizes.pairs else 0):
            when((k != other) & data, functools.partial(arrive, reader, inside, other))
        if sizes.memory:
            when(data, functools.partial(add_input, block, reader, inside, k))
        return jnp.where(left == 0, jnp.maximum(rows, jax.lax.div(reader, jnp.int32(LANES)) + 1), rows)

    leader = inputs.leader[op]
    jax.lax.fori_loop(inputs.joins[leader], inputs.leaves[leader], bind, None)
    rows = jax.lax.fori_loop(inputs.begin[op], inputs.end[op], spread, now.rows)
    return now._replace(slots=now.slots + 1, rows=rows)


class _Best(NamedTuple):
    """A device for an op: excess and cost, and what follows.

    Attributes:
      excess, cost, device: As they say.
      finish: When the op ends there.
      clock: Of each device, then.
      need, since, most: Memory, as in `_Moves`; ``None`` if it does not decide.
    """

    excess: jax.Array
    cost: jax.Array
    device: jax.Array
    finish: jax.Array
    clock: Clocks
    need: jax.Array | None
    since: Clocks | None
    most: jax.Array | None


def _on_device(block: Block, op: jax.Array, now: Now, moves: _Moves, k: int) -> _Best:
    """The op on device ``k``."""
    inputs, sizes, held, at = block.inputs, block.sizes, now.held, k * block.sizes.ops + op
    start = jnp.maximum(moves.lag[k][k], block.release[op])
    if not sizes.blocking and sizes.pairs:
        start = jnp.maximum(start, block.late[at])
    finish = start + inputs.runtime[op * sizes.d + k]
    cost = finish + inputs.price[at] + inputs.waste * moves.lost[k]
    cost += inputs.behind * now.clock[k]
    excess, need = jnp.int32(0), None
    if held is not None:
        need = need_of(block, held, op, block.lacks[at], k)
        excess = _excess(block, need, k)
        if sizes.goal == "peak":
            cost = cost_of(block, held, need, block.growth[at], k) + inputs.price[at]
    allowed = (block.may[op] & (1 << k)) != 0
    return _Best(
        excess=jnp.where(allowed, excess, _ALL),
        cost=jnp.where(allowed, cost, jnp.float32(jnp.inf)),
        device=jnp.int32(k),
        finish=finish,
        clock=tuple(finish if h == k else old for h, old in enumerate(moves.lag[k])),
        need=need,
        since=None if moves.since is None else moves.since[k],
        most=None if moves.most is None else moves.most[k],
    )


def _better(best: _Best, other: _Best) -> _Best:
    """The choice of the less excess, then cost; the first on ties."""
    better = (other.excess < best.excess) | ((other.excess == best.excess) & (other.cost < best.cost))
    return jax.tree.map(functools.partial(jnp.where, better), other, best)


def _take(block: Block, _: jax.Array, now: Now) -> Now:
    """Takes one op."""
    sizes, held = block.sizes, now.held
    op = _choose(block, now)
    moves = _Moves(
        lag=(now.clock,) * sizes.d,
        lost=(jnp.float32(0),) * sizes.d,
        since=None if held is None else held.since,
        most=None if held is None else held.most,
    )
    if sizes.blocking and sizes.d > 1:
        moves = _consider(block, op, now, moves)
    best = functools.reduce(_better, (_on_device(block, op, now, moves, j) for j in range(sizes.d)))
    k, met = best.device, (jnp.int32(-1),) * sizes.d
    if block.sent is not None and sizes.d > 1:
        now, met = _send(block, op, k, now)
    if held is not None and best.need is not None and best.since is not None and best.most is not None:
        held = remember(block, held, op, best.need, best.since, best.most, met, k)
        held = free(block, held, op)
    return _settle(block, op, k, best.finish, now._replace(clock=best.clock, held=held))


def program(sizes: Sizes, *refs: Any) -> None:
    """The kernel: generates the schedule of one candidate from its operands."""
    candidate = jax.lax.axis_index("candidate")
    arrays = len(refs) - len(sizes.scratch())
    outputs = 3 if sizes.positions else 2
    operands = refs[: arrays - outputs]
    makespan, spot, *sent = refs[arrays - outputs : arrays]
    block = make_block(sizes, candidate, operands, refs[arrays:])
    _fill(block)
    d = sizes.d
    begin = Now(
        clock=(jnp.float32(0),) * d,
        meet=((jnp.int32(-1),) * d,) * d,
        slots=jnp.int32(0),
        rows=block.inputs.rows,
        held=begin_held(d) if sizes.memory else None,
    )
    take: Callable[[jax.Array, Now], Now] = functools.partial(_take, block)
    now = jax.lax.fori_loop(0, block.inputs.num_ops, take, begin)
    makespan[candidate] = functools.reduce(jnp.maximum, now.clock)
    _copy(block.spot, spot.at[candidate], sizes.ops)
    for ref in sent:
        _copy(block.sent, ref.at[candidate], sizes.copies)
