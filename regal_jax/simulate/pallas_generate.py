"""One block of the fused GPU kernel of schedule generation: all ops of one candidate, one after another.

A block is one warpgroup of 128 lanes, as in `pallas_kernel`, whose rule it follows: shared memory is written
by rows of 128 lanes. The choice of an op compares 128 ops at a time. All else is scalar, and every lane
computes it.

The start of an op on a device depends on its inputs elsewhere and on the clocks. For every op and every pair
of devices, the block therefore keeps what the clocks do not change, the *latest code* of the inputs that the
second device lacks and the first one holds:

- ``c``, the time of the transfer, if it takes time. Rounding is monotone, so that the longest transfer gives
  the latest arrival.
- ``m - 2**23``, if it does not, for a tensor that was made in slot ``m``. The devices have to meet for it if
  it was made after their last meeting. Every code of this kind is less than every one of the other.
- ``-inf`` for no such input.

Without blocking transfers, arrivals do not depend on clocks, and the latest one is kept for every device.
"""

import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Preferences, Problem
from regal_jax.simulate.generate_lockstep import inputs_of
from regal_jax.simulate.pallas_rows import LANES, any_of, put, row_at, up, when

__all__ = ["MOST_DEVICES", "Inputs", "Sizes", "make_inputs", "make_sizes", "program", "spots"]

MOST_DEVICES: Final = 8
"""The loops over devices, and over pairs of them, are unrolled."""
_NONE: Final = -jnp.inf
_MADE: Final = float(2**23)
"""More than any slot; floats between this and its negative hold whole numbers exactly."""
_PLACES: Final = 32
"""More than any device."""
_ROWS: Final = 2**24
"""More than any op."""


class Sizes(NamedTuple):
    """Static sizes of a kernel.

    Attributes:
      n, t, d, links: ``N``, ``T``, ``D``, ``L``.
      population: ``P``.
      ops: ``N``, rounded up to rows.
      copies: ``T * D``, rounded up to rows; 0 unless transfers are blocking.
      pairs: Number of pairs of different devices; without blocking transfers number of devices, but 0 for
        one device.
      blocking: Whether transfers are blocking.
      positions: Whether to record the slots of transfers.
    """

    n: int
    t: int
    d: int
    links: int
    population: int
    ops: int
    copies: int
    pairs: int
    blocking: bool
    positions: bool

    @property
    def what(self) -> str:
        """The sizes that its shared memory depends on, in words."""
        return f"{self.n} ops and {self.t} tensors on {self.d} devices"

    def scratch(self) -> dict[str, tuple[int, Any]]:
        """Length and dtype of every array in shared memory, fields of `_Block`."""
        arrays: dict[str, tuple[int, Any]] = {
            "waiting": (self.ops, jnp.int32),
            "release": (self.ops, jnp.float32),
            "spot": (self.ops, jnp.int32),
            "may": (self.ops, jnp.int32),
        }
        if self.pairs:
            arrays["late"] = (self.pairs * self.ops, jnp.float32)
        if self.blocking:
            arrays["sent"] = (self.copies, jnp.int32)
        return arrays


def make_sizes(problem: Problem, population: int = 1, positions: bool = False) -> Sizes:
    """The sizes of the kernel for ``P`` candidates of each graph of ``problem``."""
    n, t, d = problem.bucket.ops, problem.bucket.tensors, problem.num_devices
    blocking = problem.blocking
    return Sizes(
        *(n, t, d, problem.num_links, population),
        ops=up(n),
        copies=up(t * d) if blocking else 0,
        pairs=d * (d - 1) if blocking else (d if d > 1 else 0),
        blocking=blocking,
        positions=positions and blocking,
    )


class Inputs(NamedTuple):
    """Operands of the kernel.

    Attributes:
      lane: ``[128]`` int32, 0 to 127.
      num_ops: ``[B]`` int32.
      rows: ``[B]`` int32, number of rows of ops up to the last op without predecessors.
      waiting: ``[B, ops]`` int32, predecessors of each op; 1 for padding.
      may: ``[B, ops]`` int32, bit ``k`` says whether the op may run on device ``k``.
      runtime: ``[B, N * D]`` float32.
      begin, end: ``[B, N]`` int32, bounds of the row of successors.
      successor, via: ``[B, E + C]`` int32, as in `Problem`.
      first, last: ``[B, T]`` int32, bounds of the consumers of each tensor, a part of ``successor``.
      maker: ``[B, T]`` int32, the producer.
      reads: ``[B, N + 1]`` int32, bounds of the edges to each op.
      read: ``[B, E + C]`` int32, their tensors, ascending for each op; ``T`` for a control edge.
      cost: ``[B, T * L]`` float32, time of each transfer over each kind of link.
      link: ``[B, D * D]`` int32, the kind of link from one device to another one.
      leader: ``[B, N]`` int32, as in `Problem`.
      joins, leaves: ``[B, N]`` int32, bounds of the members of the group that an op leads; none if it leads
        only itself.
      member: ``[B, N]`` int32.
      urgency: ``[B * P, ops]`` float32.
      price: ``[B * P, D * ops]`` float32, those of device 0 first.
      early, waste, behind: ``[B * P]`` float32.
    """

    lane: Any
    num_ops: Any
    rows: Any
    waiting: Any
    may: Any
    runtime: Any
    begin: Any
    end: Any
    successor: Any
    via: Any
    first: Any
    last: Any
    maker: Any
    reads: Any
    read: Any
    cost: Any
    link: Any
    leader: Any
    joins: Any
    leaves: Any
    member: Any
    urgency: Any
    price: Any
    early: Any
    waste: Any
    behind: Any


_OF_CANDIDATES: Final = ("urgency", "price", "early", "waste", "behind")
_SCALARS: Final = ("num_ops", "rows", "early", "waste", "behind")


def make_inputs(problem: Problem, preferences: Preferences, sizes: Sizes) -> Inputs:
    """The operands, prepared by XLA."""
    b, n, d = problem.num_graphs, sizes.n, sizes.d
    pad = (0, sizes.ops - n)
    edges = jax.vmap(functools.partial(inputs_of, goal="time"))(problem)
    number = jnp.arange(n, dtype=jnp.int32)
    last = jnp.where(problem.indegree == 0, number, 0).max(axis=-1)
    by_leader = jnp.argsort(problem.leader, axis=-1, stable=True).astype(jnp.int32)
    leaders = jnp.take_along_axis(problem.leader, by_leader, axis=-1)
    joins = jax.vmap(lambda each: jnp.searchsorted(each, number))(leaders).astype(jnp.int32)
    leaves = jax.vmap(lambda each: jnp.searchsorted(each, number, side="right"))(leaders).astype(jnp.int32)
    bits = jnp.left_shift(1, jnp.arange(d, dtype=jnp.int32))
    price = jnp.swapaxes(preferences.price, -1, -2)
    return Inputs(
        lane=jnp.arange(LANES, dtype=jnp.int32),
        num_ops=problem.num_ops,
        rows=(last // LANES + 1).astype(jnp.int32),
        waiting=jnp.pad(problem.indegree, ((0, 0), pad), constant_values=1),
        may=jnp.pad(jnp.where(problem.allowed, bits, 0).sum(axis=-1, dtype=jnp.int32), ((0, 0), pad)),
        runtime=problem.runtime.reshape(b, -1),
        begin=problem.op_row[..., 0],
        end=problem.op_row[..., 1],
        successor=problem.successor,
        via=problem.via,
        first=problem.tensor_row[..., 0],
        last=problem.tensor_row[..., 1],
        maker=problem.tensor_op,
        reads=edges.row,
        read=edges.tensor,
        cost=problem.transfer_time.reshape(b, -1),
        link=problem.link.reshape(b, -1),
        leader=problem.leader,
        joins=joins,
        leaves=jnp.where(leaves - joins == 1, joins, leaves),
        member=by_leader,
        urgency=jnp.pad(preferences.urgency, ((0, 0), (0, 0), pad)).reshape(-1, sizes.ops),
        price=jnp.pad(price, ((0, 0), (0, 0), (0, 0), pad)).reshape(-1, d * sizes.ops),
        early=preferences.early.reshape(-1),
        waste=preferences.waste.reshape(-1),
        behind=preferences.behind.reshape(-1),
    )


class _Block(NamedTuple):
    """State and operands of a block. A *spot* is ``32 * slot + device`` of an op, -1 before it is taken.

    Attributes:
      sizes: The padded sizes; static under jit.
      lane: ``[128]`` int32, in registers.
      inputs: Refs to this candidate's and its graph's part of the operands, and their scalars.
      waiting: ``[ops]`` int32, edges from ops that have not been taken; -1 once the op is taken.
      release: ``[ops]`` float32, latest finish of the predecessors that have been taken.
      spot: ``[ops]`` int32.
      may: ``[ops]`` int32, as in `Inputs`; a group that has been bound has one device.
      late: ``[pairs, ops]`` float32, latest codes by pair (source first), or latest arrivals by device.
      sent: ``[T, D]`` int32, twice the slot of each transfer, plus 1 if it was inserted there; -1 for none.
    """

    sizes: Sizes
    lane: jax.Array
    inputs: Inputs
    waiting: Any
    release: Any
    spot: Any
    may: Any
    late: Any = None
    sent: Any = None

    def over(self, tensor: Any, source: Any, target: Any) -> jax.Array:
        """Time of a transfer."""
        sizes = self.sizes
        if sizes.links == 1:
            return self.inputs.cost[tensor]
        return self.inputs.cost[tensor * sizes.links + self.inputs.link[source * sizes.d + target]]

    def pair(self, source: Any, target: Any) -> Any:
        """Index in ``late`` of op 0 for two different devices."""
        later = jnp.where(target > source, 1, 0) if not isinstance(source, int) else int(target > source)
        return (source * (self.sizes.d - 1) + target - later) * self.sizes.ops


_Clocks = tuple[jax.Array, ...]


class _Now(NamedTuple):
    """The loop's state in registers.

    Attributes:
      clock: Of each device.
      meet: ``D`` times ``D``, slot of the last meeting of two devices, -1 for none.
      slots: Number of slots so far.
      rows: Number of rows of ops that have held a ready op.
    """

    clock: _Clocks
    meet: tuple[_Clocks, ...]
    slots: jax.Array
    rows: jax.Array


def _copy(source: Any, target: Any, length: int) -> None:
    """Copies rows."""

    def step(i: jax.Array, _: None) -> None:
        target[row_at(i * LANES)] = source[row_at(i * LANES)]

    jax.lax.fori_loop(0, length // LANES, step, None)


def _set_all(ref: Any, length: int, value: jax.Array) -> None:
    def step(i: jax.Array, _: None) -> None:
        ref[row_at(i * LANES)] = jnp.full(LANES, value)

    jax.lax.fori_loop(0, length // LANES, step, None)


def _fill(block: _Block) -> None:
    """The state before the first op."""
    sizes, none = block.sizes, jnp.int32(-1)
    _copy(block.inputs.waiting, block.waiting, sizes.ops)
    _copy(block.inputs.may, block.may, sizes.ops)
    _set_all(block.release, sizes.ops, jnp.float32(0))
    _set_all(block.spot, sizes.ops, none)
    if block.late is not None:
        _set_all(block.late, sizes.pairs * sizes.ops, jnp.float32(_NONE if sizes.blocking else 0))
    if block.sent is not None:
        _set_all(block.sent, sizes.copies, none)


def _choose(block: _Block, now: _Now) -> jax.Array:
    """The ready op of the least start, plus price if it counts, less urgency; the lowest on ties."""
    sizes, inputs = block.sizes, block.inputs
    d, ops = sizes.d, sizes.ops

    def look(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        best, found = carry
        base = i * LANES
        release, may = block.release[row_at(base)], block.may[row_at(base)]
        value = jnp.full(LANES, jnp.float32(_NONE))
        for k in range(d):
            start = jnp.maximum(release, now.clock[k])
            if not sizes.blocking and sizes.pairs:
                start = jnp.maximum(start, block.late[row_at(k * ops + base)])
            for h in range(d if sizes.blocking else 0):
                if h == k:
                    continue
                late = block.late[row_at(block.pair(h, k) + base)]
                both = jnp.maximum(now.clock[h], now.clock[k]) + jnp.maximum(late, jnp.float32(0))
                met = now.meet[h][k].astype(jnp.float32) - _MADE
                start = jnp.maximum(start, jnp.where(late >= met, both, jnp.float32(0)))
            priced = start + inputs.early * inputs.price[row_at(k * ops + base)]
            here = jnp.where((may & (1 << k)) != 0, -priced, jnp.float32(_NONE))
            value = jnp.maximum(value, here)
        value = jnp.where(
            block.waiting[row_at(base)] == 0, value + inputs.urgency[row_at(base)], jnp.float32(_NONE)
        )
        better = value > best
        # Positive, since JAX 0.10 compiles an unsigned maximum for a selected value.
        mine = (_ROWS - base) - block.lane
        return jnp.where(better, value, best), jnp.where(better, mine, found)

    # Made from `lane`, since JAX 0.10 lays a constant out in another way than what the loop makes of it.
    none = block.lane * 0
    begin = none.astype(jnp.float32) + jnp.float32(_NONE), none + 1
    best, found = jax.lax.fori_loop(0, now.rows, look, begin)
    return _ROWS - jnp.max(jnp.where(best == jnp.max(best), found, 1))


class _Moves(NamedTuple):
    """What happens before an op on each device ``k``: registers.

    Attributes:
      lag: ``D`` times ``D``, row ``k``: the clocks after the transfers.
      lost: ``D``, time that the other devices lose.
    """

    lag: tuple[_Clocks, ...]
    lost: _Clocks


def _each_input(block: _Block, op: jax.Array, clock: _Clocks, carry: Any, visit: Any) -> Any:
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

    def home_of(i: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        tensor = inputs.read[i]
        spot = block.spot[inputs.maker[jnp.minimum(tensor, sizes.t - 1)]]
        return tensor, spot & (_PLACES - 1), jax.lax.shift_right_arithmetic(spot, 5)

    def after(last: jax.Array) -> jax.Array:
        """The next clock of a home, infinite if there is none."""

        def least(i: jax.Array, level: jax.Array) -> jax.Array:
            tensor, home, _ = home_of(i)
            mine = any_of(clock, home)
            return jnp.where((tensor < sizes.t) & (mine > last) & (mine < level), mine, level)

        return jax.lax.fori_loop(begin, end, least, jnp.float32(jnp.inf))

    def visit_level(carry: Any) -> Any:
        level, inner = carry

        def one(i: jax.Array, inner: Any) -> Any:
            tensor, home, made = home_of(i)
            here = (tensor < sizes.t) & (any_of(clock, home) == level)
            return jax.lax.cond(here, lambda: visit(inner, tensor, home, made), lambda: inner)

        return after(level), jax.lax.fori_loop(begin, end, one, inner)

    start = after(jnp.float32(-1)), carry
    return jax.lax.while_loop(lambda c: c[0] < jnp.inf, visit_level, start)[1]


def _consider(block: _Block, op: jax.Array, now: _Now) -> _Moves:
    """The transfers that an op needs on each device, one after another."""
    d = block.sizes.d
    begin = _Moves((now.clock,) * d, (jnp.float32(0),) * d)

    def visit(moves: _Moves, tensor: jax.Array, home: jax.Array, made: jax.Array) -> _Moves:
        lag, lost = list(moves.lag), list(moves.lost)
        for k in range(d):
            cost = block.over(tensor, home, k)
            rides = (cost == 0) & (made < any_of(now.meet[k], home))
            runs = (home != k) & (block.sent[tensor * d + k] < 0) & ~rides
            before = any_of(lag[k], home)
            done = jnp.maximum(lag[k][k], before) + cost
            lost[k] += jnp.where(runs, done - before, jnp.float32(0))
            lag[k] = tuple(
                jnp.where(runs & (home == h) if h != k else runs, done, old) for h, old in enumerate(lag[k])
            )
        return _Moves(tuple(lag), tuple(lost))

    return _each_input(block, op, now.clock, begin, visit)


def _code(cost: jax.Array, made: jax.Array) -> jax.Array:
    """Code of an input that a device lacks."""
    return jnp.where(cost > 0, cost, made.astype(jnp.float32) - _MADE)


def _forget(block: _Block, op: jax.Array, tensor: jax.Array, home: jax.Array, k: jax.Array) -> None:
    """Updates the codes of the other readers of a tensor that device ``k`` now has."""
    inputs, sizes = block.inputs, block.sizes
    pair = block.pair(home, k)
    made = jax.lax.shift_right_arithmetic(block.spot[inputs.maker[tensor]], 5)
    code = _code(block.over(tensor, home, k), made)

    def latest(i: jax.Array, code: jax.Array) -> jax.Array:
        other = inputs.read[i]
        inside = jnp.minimum(other, sizes.t - 1)
        spot = block.spot[inputs.maker[inside]]
        lacks = (other < sizes.t) & (spot >= 0) & ((spot & (_PLACES - 1)) == home)
        lacks &= block.sent[inside * sizes.d + k] < 0
        found = _code(block.over(inside, home, k), jax.lax.shift_right_arithmetic(spot, 5))
        return jnp.where(lacks, jnp.maximum(code, found), code)

    def update(reader: jax.Array) -> None:
        each = inputs.reads[reader], inputs.reads[reader + 1]
        put(block.late, block.lane, pair + reader, jax.lax.fori_loop(*each, latest, jnp.float32(_NONE)))

    def visit(i: jax.Array, _: None) -> None:
        reader = inputs.successor[i]
        waits = (reader != op) & (block.waiting[reader] >= 0)
        # Other inputs decide unless this one was the latest.
        when(waits & (block.late[pair + reader] == code), lambda: update(reader))

    jax.lax.fori_loop(inputs.first[tensor], inputs.last[tensor], visit, None)


def _send(block: _Block, op: jax.Array, k: jax.Array, now: _Now) -> _Now:
    """Records the transfers to the device of an op; the clocks stay as they are."""
    d = block.sizes.d
    none = (jnp.int32(-1),) * d

    def visit(
        carry: tuple[jax.Array, _Clocks], tensor: jax.Array, home: jax.Array, made: jax.Array
    ) -> tuple[jax.Array, _Clocks]:
        slots, met = carry
        meeting = any_of(tuple(any_of(each, k) for each in now.meet), home)
        rides = (block.over(tensor, home, k) == 0) & (made < meeting)
        lacks = (home != k) & (block.sent[tensor * d + k] < 0)

        def record() -> None:
            code = jnp.where(rides, 2 * meeting + 1, 2 * slots)
            put(block.sent, block.lane, tensor * d + k, code)
            _forget(block, op, tensor, home, k)

        when(lacks, record)
        runs = lacks & ~rides
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
    return now._replace(slots=slots, meet=meet)


def _settle(block: _Block, op: jax.Array, k: jax.Array, finish: jax.Array, now: _Now) -> _Now:
    """Records the op and updates its group and its successors."""
    inputs, sizes = block.inputs, block.sizes
    put(block.spot, block.lane, op, now.slots * _PLACES + k)
    put(block.waiting, block.lane, op, -1)

    def bind(i: jax.Array, _: None) -> None:
        member = inputs.member[i]
        put(block.may, block.lane, member, block.may[member] & jax.lax.shift_left(jnp.int32(1), k))

    def spread(i: jax.Array, rows: jax.Array) -> jax.Array:
        reader, tensor = inputs.successor[i], inputs.via[i]
        left = block.waiting[reader] - 1
        put(block.waiting, block.lane, reader, left)
        put(block.release, block.lane, reader, jnp.maximum(block.release[reader], finish))
        inside = jnp.minimum(tensor, sizes.t - 1)
        for other in range(sizes.d if sizes.pairs else 0):

            def arrive(other: int = other) -> None:
                cost = block.over(inside, k, other)
                at = (block.pair(k, other) if sizes.blocking else other * sizes.ops) + reader
                new = _code(cost, now.slots) if sizes.blocking else finish + cost
                put(block.late, block.lane, at, jnp.maximum(block.late[at], new))

            when((k != other) & (tensor < sizes.t), arrive)
        return jnp.where(left == 0, jnp.maximum(rows, jax.lax.div(reader, jnp.int32(LANES)) + 1), rows)

    leader = inputs.leader[op]
    jax.lax.fori_loop(inputs.joins[leader], inputs.leaves[leader], bind, None)
    rows = jax.lax.fori_loop(inputs.begin[op], inputs.end[op], spread, now.rows)
    return now._replace(slots=now.slots + 1, rows=rows)


def _take(block: _Block, _: jax.Array, now: _Now) -> _Now:
    """Takes one op: to the device of the least cost, the lowest on ties."""
    inputs, (d, ops) = block.inputs, (block.sizes.d, block.sizes.ops)
    op = _choose(block, now)
    moves = _Moves((now.clock,) * d, (jnp.float32(0),) * d)
    if block.sizes.blocking and d > 1:
        moves = _consider(block, op, now)
    release, may = block.release[op], block.may[op]
    least, k, clock = jnp.float32(jnp.inf), jnp.int32(0), now.clock
    finish = least
    for j in range(d):
        start = jnp.maximum(moves.lag[j][j], release)
        if not block.sizes.blocking and block.sizes.pairs:
            start = jnp.maximum(start, block.late[j * ops + op])
        done = start + inputs.runtime[op * d + j]
        cost = done + inputs.price[j * ops + op] + inputs.waste * moves.lost[j]
        cost += inputs.behind * now.clock[j]
        better = ((may & (1 << j)) != 0) & (cost < least)
        least, k = jnp.where(better, cost, least), jnp.where(better, j, k)
        finish = jnp.where(better, done, finish)
        after = tuple(done if h == j else old for h, old in enumerate(moves.lag[j]))
        clock = tuple(jnp.where(better, new, old) for new, old in zip(after, clock, strict=True))
    if block.sizes.blocking and d > 1:
        now = _send(block, op, k, now)
    return _settle(block, op, k, finish, now._replace(clock=clock))


def program(sizes: Sizes, *refs: Any) -> None:
    """The kernel: generates the schedule of one candidate from its operands."""
    candidate = jax.lax.axis_index("candidate")
    graph = candidate // sizes.population
    operands, outputs = Inputs(*refs[: len(Inputs._fields)]), list(refs[len(Inputs._fields) :])

    def part(name: str, ref: Any) -> Any:
        if name == "lane":
            return ref
        index = candidate if name in _OF_CANDIDATES else graph
        return ref[index] if name in _SCALARS else ref.at[index]

    inputs = Inputs(*(part(name, ref) for name, ref in operands._asdict().items()))
    makespan, spot = outputs.pop(0), outputs.pop(0).at[candidate]
    sent = outputs.pop(0).at[candidate] if sizes.positions else None
    block = _Block(sizes, operands.lane[:], inputs, **dict(zip(sizes.scratch(), outputs, strict=True)))
    _fill(block)
    d = sizes.d
    apart = ((jnp.int32(-1),) * d,) * d
    now = _Now((jnp.float32(0),) * d, apart, jnp.int32(0), inputs.rows)
    now = jax.lax.fori_loop(0, inputs.num_ops, functools.partial(_take, block), now)
    makespan[candidate] = functools.reduce(jnp.maximum, now.clock)

    _copy(block.spot, spot, sizes.ops)
    if sent is not None:
        _copy(block.sent, sent, sizes.copies)


def spots(spot: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Device of each op, 0 for padding, and its slot, -1 for padding."""
    taken = spot >= 0
    return jnp.where(taken, spot % _PLACES, 0), jnp.where(taken, spot // _PLACES, -1)
