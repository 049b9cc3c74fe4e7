"""The reference implementation of schedule generation: all candidates take their next op together.

Every candidate of a graph takes one op per step, so all of them end together. The inputs of the op are
visited one at a time in an inner loop, which lasts as long as any candidate has inputs left. Both loops are
outside of the vmaps, as in `lockstep`.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Preferences, Problem
from regal_jax.simulate.lockstep import Run

__all__ = ["Inputs", "generate", "inputs_of"]

_NOTHING: Final = 2**30
"""An index that is out of range in every array."""
_NEVER: Final = jnp.inf


class Inputs(NamedTuple):
    """Edges of one graph by reader.

    Attributes:
      row: ``[N + 1]`` int32, bounds of the edges to each op.
      tensor: ``[E + C]`` int32, the tensor of each edge; ``T`` for a control edge.
      reader: ``[E + C]`` int32, the op that each edge leads to; ``N`` for padding.
    """

    row: jax.Array
    tensor: jax.Array
    reader: jax.Array


def inputs_of(problem: Problem) -> Inputs:
    """`Inputs` of one graph (no ``B``)."""
    n = problem.runtime.shape[-2]
    reader, tensor = jax.lax.sort((problem.successor, problem.via), dimension=0, num_keys=2)
    row = jnp.searchsorted(reader, jnp.arange(n + 1, dtype=jnp.int32)).astype(jnp.int32)
    return Inputs(row, tensor, reader)


class _State(NamedTuple):
    """One candidate.

    Attributes:
      clock: ``[D]`` float32.
      place: ``[N]`` int32, -1 before the op is taken.
      bound: ``[N]`` int32, device of the group that each op leads, -1 before.
      waiting: ``[N]`` int32, edges from ops that have not been taken.
      release: ``[N]`` float32, latest finish of the predecessors that have been taken.
      finish: ``[N]`` float32.
      made: ``[N]`` int32, slot of each op.
      sent: ``[T, D]`` int32, slot of each transfer, -1 for none; ``[0, D]`` unless blocking.
      rides: ``[T, D]`` bool, whether the transfer was inserted at an earlier meeting.
      meet: ``[D, D]`` int32, slot of the last meeting of two devices, -1 for none.
      slots: Number of slots.
      choice: The op that is being placed.
    """

    clock: jax.Array
    place: jax.Array
    bound: jax.Array
    waiting: jax.Array
    release: jax.Array
    finish: jax.Array
    made: jax.Array
    sent: jax.Array
    rides: jax.Array
    meet: jax.Array
    slots: jax.Array
    choice: "_Choice"


class _Choice(NamedTuple):
    """The op that is taken, and what would happen on each device ``k``.

    Attributes:
      op: The op, `_NOTHING` if all have been taken.
      after: Clock of the source and number of the last input that was visited.
      done: Whether all inputs have been visited.
      lag: ``[D, D]`` float32, row ``k``: clocks of all devices after the transfers.
      lost: ``[D]`` float32, time that the other devices lose.
      met: ``[D, D]`` int32, row ``k``: slot of the last of these transfers from each device, -1 for none.
      slots: ``[D]`` int32, slots that the transfers take.
      sent: ``[T, D]`` int32, slots of the transfers.
      rides: ``[T, D]`` bool.
    """

    op: jax.Array
    after: tuple[jax.Array, jax.Array]
    done: jax.Array
    lag: jax.Array
    lost: jax.Array
    met: jax.Array
    slots: jax.Array
    sent: jax.Array
    rides: jax.Array


def _begin(problem: Problem) -> _State:
    n, d = problem.runtime.shape
    t = problem.size.shape[0] if problem.blocking else 0
    zero, none = jnp.int32(0), jnp.full((t, d), -1, jnp.int32)
    apart, clock = jnp.full((d, d), -1, jnp.int32), jnp.zeros(d, jnp.float32)
    off = jnp.zeros((t, d), bool)
    choice = _Choice(
        op=zero,
        after=(jnp.float32(-1), zero),
        done=jnp.bool_(True),
        lag=jnp.zeros((d, d), jnp.float32),
        lost=clock,
        met=apart,
        slots=jnp.zeros(d, jnp.int32),
        sent=none,
        rides=off,
    )
    each = jnp.full(n, -1, jnp.int32)
    begin = jnp.zeros(n, jnp.float32)
    return _State(clock, each, each, problem.indegree, begin, begin, each, none, off, apart, zero, choice)


def _lacks(problem: Problem, state: _State, tensor: jax.Array) -> tuple[jax.Array, ...]:
    """Of tensors ``[X]``: device, ``[X, D]`` cost to each device, whether it needs a transfer, and rides."""
    d = problem.num_devices
    inside = tensor < problem.tensor_op.shape[0]
    maker = problem.tensor_op.at[tensor].get(mode="clip")
    home = state.place[maker]
    target = jnp.arange(d, dtype=jnp.int32)
    cost = jax.vmap(lambda k: problem.transfer_cost(tensor, jnp.maximum(home, 0), k), out_axes=1)(target)
    lacks = inside[:, None] & (home[:, None] != target[None]) & (home[:, None] >= 0)
    if not problem.blocking:
        return home, cost, lacks, jnp.zeros_like(lacks), state.finish[maker]
    lacks &= state.sent.at[tensor].get(mode="clip") < 0
    meet = state.meet.at[home].get(mode="clip")
    rides = lacks & (cost == 0) & (state.made[maker][:, None] < meet)
    return home, cost, lacks, rides, state.finish[maker]


def _starts(problem: Problem, inputs: Inputs, state: _State) -> jax.Array:
    """``[N, D]`` the time at which each ready op could start on each device, as far as it is estimated.

    Each transfer is looked at alone; `_visit` adds up those of the op that is chosen.
    """
    home, cost, lacks, rides, finish = _lacks(problem, state, inputs.tensor)
    if problem.blocking:
        both = jnp.maximum(state.clock.at[home].get(mode="clip")[:, None], state.clock[None])
        when = jnp.where(lacks & ~rides, both + cost, 0)
    else:
        when = jnp.where(lacks, finish[:, None] + cost, 0)
    start = jnp.maximum(state.release[:, None], state.clock[None])
    return start.at[inputs.reader].max(when, mode="drop")


def _allowed(problem: Problem, state: _State) -> jax.Array:
    """``[N, D]`` whether the op may run there, given its colocation group."""
    bound = state.bound[problem.leader][:, None]
    return problem.allowed & ((bound < 0) | (bound == jnp.arange(problem.num_devices)[None]))


def _choose(problem: Problem, inputs: Inputs, preferences: Preferences, state: _State) -> _State:
    """Chooses the next op: the least start less urgency, lowest op on ties."""
    n, d = problem.runtime.shape
    start = _starts(problem, inputs, state)
    priced = jnp.where(_allowed(problem, state), start + preferences.early * preferences.price, _NEVER)
    ready = (state.waiting == 0) & (state.place < 0)
    score = jnp.where(ready, priced.min(axis=-1) - preferences.urgency, _NEVER)
    least = score.min()
    op = jnp.where(score == least, jnp.arange(n, dtype=jnp.int32), _NOTHING).min()
    op = jnp.where(ready.any(), op, _NOTHING)
    choice = state.choice._replace(
        op=op,
        after=(jnp.float32(-1), jnp.int32(-1)),
        done=op == _NOTHING,
        lag=jnp.broadcast_to(state.clock, (d, d)),
        lost=jnp.zeros(d, jnp.float32),
        met=jnp.full((d, d), -1, jnp.int32),
        slots=jnp.zeros(d, jnp.int32),
    )
    if not problem.blocking:
        # There is nothing to add up.
        lag = jnp.where(jnp.eye(d, dtype=bool), start.at[op].get(mode="clip"), choice.lag)
        choice = choice._replace(lag=lag, done=jnp.bool_(True))
    return state._replace(choice=choice)


def _visit(problem: Problem, inputs: Inputs, state: _State) -> _State:
    """Adds the transfers of the next input of the chosen op, if it has one: that of the least clock."""
    choice, d = state.choice, problem.num_devices
    row = inputs.row.at[jnp.stack([choice.op, choice.op + 1])].get(mode="clip")
    index = jnp.arange(inputs.tensor.shape[0], dtype=jnp.int32)
    mine = (index >= row[0]) & (index < row[1]) & (inputs.tensor < problem.tensor_op.shape[0])
    home = state.place[problem.tensor_op.at[inputs.tensor].get(mode="clip")]
    clock = state.clock.at[home].get(mode="clip")
    last, number = choice.after
    mine &= (clock > last) | ((clock == last) & (inputs.tensor > number))
    first = jnp.where(mine, clock, _NEVER).min()
    tensor = jnp.where(mine & (clock == first), inputs.tensor, _NOTHING).min()
    some = ~choice.done & (tensor < _NOTHING)
    source, cost, lacks, rides, _ = (x[0] for x in _lacks(problem, state, tensor[None]))
    moves = lacks & ~rides & some
    own = choice.lag[jnp.arange(d), jnp.arange(d)]
    before = choice.lag.at[:, source].get(mode="clip")
    after = jnp.maximum(own, before) + cost
    sends = (jnp.arange(d) == source)[None]
    slot = state.slots + choice.slots
    where = jnp.where(some, tensor, _NOTHING)
    meeting = state.meet.at[source].get(mode="clip")
    return state._replace(
        choice=choice._replace(
            after=(jnp.where(some, first, last), jnp.where(some, tensor, number)),
            done=~some,
            lag=jnp.where(moves[:, None] & (sends | jnp.eye(d, dtype=bool)), after[:, None], choice.lag),
            lost=choice.lost + jnp.where(moves, after - before, 0),
            met=jnp.where(moves[:, None] & sends, slot[:, None], choice.met),
            slots=choice.slots + moves.astype(jnp.int32),
            sent=choice.sent.at[where].set(
                jnp.where(moves, slot, jnp.where(rides & lacks, meeting, -1)), mode="drop"
            ),
            rides=choice.rides.at[where].set(rides & lacks, mode="drop"),
        )
    )


def _take(problem: Problem, inputs: Inputs, preferences: Preferences, state: _State) -> _State:
    """Puts the chosen op on the device of least cost, lowest index on ties, after its transfers."""
    choice, (n, d) = state.choice, problem.runtime.shape
    some, op = choice.op < _NOTHING, jnp.minimum(choice.op, n - 1)
    row = jnp.arange(d)
    start = jnp.maximum(choice.lag[row, row], state.release[op])
    finish = start + problem.runtime[op]
    cost = finish + preferences.price[op] + preferences.waste * choice.lost
    cost += preferences.behind * state.clock
    cost = jnp.where(_allowed(problem, state)[op], cost, _NEVER)
    k = jnp.argmin(cost).astype(jnp.int32)
    clock = jnp.where(row == k, finish[k], choice.lag[k] if problem.blocking else state.clock)
    sent, rides, meet = state.sent, state.rides, state.meet
    if problem.blocking:
        edge = jnp.arange(inputs.tensor.shape[0], dtype=jnp.int32)
        mine = (edge >= inputs.row[op]) & (edge < inputs.row[op + 1]) & some
        at = jnp.where(mine, inputs.tensor, _NOTHING)
        moved = choice.sent.at[at, k].get(mode="clip")
        at = jnp.where(moved >= 0, at, _NOTHING)
        sent = sent.at[at, k].set(moved, mode="drop")
        rides = rides.at[at, k].set(choice.rides.at[at, k].get(mode="clip"), mode="drop")
        met = choice.met[k]
        meet = jnp.where((row == k)[:, None], jnp.maximum(meet, met[None]), meet)
        meet = jnp.where((row == k)[None], jnp.maximum(meet, met[:, None]), meet)
        meet = jnp.where(some, meet, state.meet)
    slot = state.slots + choice.slots[k]
    where = jnp.where(some, op, _NOTHING)
    edge = jnp.arange(problem.successor.shape[0], dtype=jnp.int32)
    after = (edge >= problem.op_row[op, 0]) & (edge < problem.op_row[op, 1]) & some
    successor = jnp.where(after, problem.successor, _NOTHING)
    return state._replace(
        clock=jnp.where(some, clock, state.clock),
        place=state.place.at[where].set(k, mode="drop"),
        bound=state.bound.at[jnp.where(some, problem.leader[op], _NOTHING)].set(k, mode="drop"),
        waiting=state.waiting.at[successor].add(-1, mode="drop"),
        release=state.release.at[successor].max(finish[k], mode="drop"),
        finish=state.finish.at[where].set(finish[k], mode="drop"),
        made=state.made.at[where].set(slot, mode="drop"),
        sent=sent,
        rides=rides,
        meet=meet,
        slots=jnp.where(some, slot + 1, state.slots),
    )


def _positions(state: _State, op_made: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ranks of the events: by slot, an inserted transfer after the event of the slot, then by id."""
    slot = jnp.concatenate([2 * op_made, (2 * state.sent + state.rides.astype(jnp.int32)).reshape(-1)])
    slot = jnp.where(slot < 0, _NOTHING, slot)
    size = slot.shape[0]
    order = jnp.argsort(slot, stable=True)
    rank = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    rank = jnp.where(slot < _NOTHING, rank, -1)
    return rank[: op_made.shape[0]], rank[op_made.shape[0] :].reshape(state.sent.shape)


def generate(problem: Problem, preferences: Preferences, *, positions: bool) -> tuple[jax.Array, Run]:
    """Generates the schedule of every candidate.

    Args:
      problem: ``B`` graphs.
      preferences: ``[B, P, ...]``.
      positions: Whether to record positions; otherwise they are empty.

    Returns:
      ``[B, P, N]`` int32, device of each op, 0 for padding; and the timelines.
    """
    inputs = jax.vmap(inputs_of)(problem)
    state = jax.vmap(_begin)(problem)
    p = preferences.waste.shape[1]
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], p, axis=1), state)

    choose = jax.vmap(jax.vmap(_choose, (None, None, 0, 0)))
    visit = jax.vmap(jax.vmap(_visit, (None, None, 0)))
    take = jax.vmap(jax.vmap(_take, (None, None, 0, 0)))

    def step(number_and_state: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
        number, state = number_and_state
        state = choose(problem, inputs, preferences, state)
        if problem.blocking:
            state = jax.lax.while_loop(
                lambda s: ~s.choice.done.all(), lambda s: visit(problem, inputs, s), state
            )
        return number + 1, take(problem, inputs, preferences, state)

    most = problem.num_ops.max()
    _, state = jax.lax.while_loop(lambda s: s[0] < most, step, (jnp.int32(0), state))
    d = problem.num_devices
    batch = preferences.waste.shape
    run = Run(
        makespan=state.clock.max(axis=-1),
        op_position=jnp.zeros((*batch, 0), jnp.int32),
        transfer_position=jnp.zeros((*batch, 0, d), jnp.int32),
    )
    if positions:
        op, transfer = jax.vmap(jax.vmap(_positions))(state, state.made)
        run = run._replace(op_position=op, transfer_position=transfer)
    return jnp.maximum(state.place, 0), run
