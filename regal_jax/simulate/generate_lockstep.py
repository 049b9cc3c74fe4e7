"""The reference implementation of schedule generation: all candidates take their next op together.

Every candidate of a graph takes one op per step, so all of them end together. The inputs of the op are
visited one at a time in an inner loop, which lasts as long as any candidate has inputs left. Both loops are
outside of the vmaps, as in `lockstep`.
"""

import functools
from typing import Final, Literal, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Preferences, Problem
from regal_jax.simulate import generate_memory
from regal_jax.simulate.generate_memory import Considered, Held, Needs, Sizes
from regal_jax.simulate.lockstep import Run

__all__ = ["Goal", "Inputs", "generate", "inputs_of", "positions_of"]

Goal = Literal["time", "fit", "peak"]
"""What decides: time alone, time within the capacities, or the peaks of memory."""

_NOTHING: Final = 2**30
"""An index that is out of range in every array."""
_NEVER: Final = jnp.inf
_ALL: Final = 2**31 - 1
"""More than any excess."""


class Inputs(NamedTuple):
    """Edges of one graph by reader.

    Attributes:
      row: ``[N + 1]`` int32, bounds of the edges to each op.
      tensor: ``[E + C]`` int32, the tensor of each edge; ``T`` for a control edge.
      reader: ``[E + C]`` int32, the op that each edge leads to; ``N`` for padding.
      sizes: Sums of bytes; ``None`` if memory does not decide.
    """

    row: jax.Array
    tensor: jax.Array
    reader: jax.Array
    sizes: Sizes | None


def inputs_of(problem: Problem, goal: Goal) -> Inputs:
    """`Inputs` of one graph (no ``B``)."""
    n = problem.runtime.shape[-2]
    reader, tensor = jax.lax.sort((problem.successor, problem.via), dimension=0, num_keys=2)
    row = jnp.searchsorted(reader, jnp.arange(n + 1, dtype=jnp.int32)).astype(jnp.int32)
    return Inputs(row, tensor, reader, None if goal == "time" else generate_memory.sizes_of(problem))


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
      sent: ``[T, D]`` int32, slot of each transfer, -1 for none; without transfers, not -1 where the device
        has a copy, and ``[0, D]`` if memory does not decide.
      rides: ``[T, D]`` bool, whether the transfer was inserted at an earlier meeting.
      meet: ``[D, D]`` int32, slot of the last meeting of two devices, -1 for none.
      slots: Number of slots.
      held: Memory; ``None`` if it does not decide.
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
    held: Held | None
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
      memory: The same for memory; ``None`` if it does not decide.
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
    memory: Considered | None


def _begin(problem: Problem, inputs: Inputs) -> _State:
    n, d = problem.runtime.shape
    t = problem.size.shape[0] if problem.blocking or inputs.sizes is not None else 0
    zero, none = jnp.int32(0), jnp.full((t, d), -1, jnp.int32)
    apart, clock = jnp.full((d, d), -1, jnp.int32), jnp.zeros(d, jnp.float32)
    off = jnp.zeros((t, d), bool)
    held = None if inputs.sizes is None else generate_memory.begin_held(problem, inputs.sizes)
    row = jnp.zeros(d, jnp.int32)
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
        memory=None if held is None else Considered(Needs(row, row, row, row), held.since, held.most),
    )
    each = jnp.full(n, -1, jnp.int32)
    begin = jnp.zeros(n, jnp.float32)
    return _State(
        clock=clock,
        place=each,
        bound=each,
        waiting=problem.indegree,
        release=begin,
        finish=begin,
        made=each,
        sent=none,
        rides=off,
        meet=apart,
        slots=zero,
        held=held,
        choice=choice,
    )


def _homes(problem: Problem, state: _State, tensor: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Of tensors ``[X]``: ``[X]`` home, ``[X, D]`` whether the device is another one."""
    home = state.place[problem.tensor_op.at[tensor].get(mode="clip")]
    inside = tensor < problem.tensor_op.shape[0]
    other = home[:, None] != jnp.arange(problem.num_devices, dtype=jnp.int32)[None]
    return home, inside[:, None] & other & (home[:, None] >= 0)


def _needs(problem: Problem, inputs: Inputs, state: _State) -> Needs | None:
    """``[N, D]`` the memory that each ready op needs, if it decides."""
    if inputs.sizes is None or state.held is None:
        return None
    lacks = _homes(problem, state, inputs.tensor)[1] & (state.sent.at[inputs.tensor].get(mode="clip") < 0)
    return generate_memory.needs(problem, inputs.sizes, state.held, inputs.tensor, inputs.reader, lacks)


def _lacks(
    problem: Problem, goal: Goal, state: _State, tensor: jax.Array, copies: jax.Array | None
) -> tuple[jax.Array, ...]:
    """Of tensors ``[X]``: device, ``[X, D]`` cost to each device, whether it needs a transfer, and rides.

    ``copies`` are those of `Needs` for the reader of each tensor, if memory decides.
    """
    d = problem.num_devices
    maker = problem.tensor_op.at[tensor].get(mode="clip")
    home, lacks = _homes(problem, state, tensor)
    target = jnp.arange(d, dtype=jnp.int32)
    cost = jax.vmap(lambda k: problem.transfer_cost(tensor, jnp.maximum(home, 0), k), out_axes=1)(target)
    if not problem.blocking:
        return home, cost, lacks, jnp.zeros_like(lacks), state.finish[maker]
    lacks &= state.sent.at[tensor].get(mode="clip") < 0
    meet = state.meet.at[home].get(mode="clip")
    rides = lacks & (cost == 0) & (state.made[maker][:, None] < meet)
    if state.held is not None and copies is not None:
        fits = state.held.since.at[home].get(mode="clip") + copies <= problem.capacity[None]
        rides &= fits if goal == "fit" else False
    return home, cost, lacks, rides, state.finish[maker]


def _starts(problem: Problem, goal: Goal, inputs: Inputs, state: _State, needs: Needs | None) -> jax.Array:
    """``[N, D]`` the time at which each ready op could start on each device, as far as it is estimated.

    Each transfer is looked at alone; `_visit` adds up those of the op that is chosen.
    """
    copies = None if needs is None else needs.copies.at[inputs.reader].get(mode="clip")
    home, cost, lacks, rides, finish = _lacks(problem, goal, state, inputs.tensor, copies)
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


def _choose(goal: Goal, problem: Problem, inputs: Inputs, preferences: Preferences, state: _State) -> _State:
    """Chooses the next op: the least start, or peak, less urgency, lowest op on ties."""
    n, d = problem.runtime.shape
    needs = _needs(problem, inputs, state)
    start = _starts(problem, goal, inputs, state, needs)
    cost = start
    if goal == "peak" and state.held is not None and needs is not None:
        cost = generate_memory.cost_of(state.held, needs, preferences)
    may = _allowed(problem, state)
    ready = (state.waiting == 0) & (state.place < 0)
    if needs is not None:
        excess = jnp.where(may & ready[:, None], needs.excess, _ALL)
        may &= excess == excess.min(axis=-1, keepdims=True)
        ready &= excess.min(axis=-1) == excess.min()
    priced = jnp.where(may, cost + preferences.early * preferences.price, _NEVER)
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
    if state.held is not None and needs is not None:
        mine = Needs(*(each.at[op].get(mode="clip") for each in needs))
        choice = choice._replace(memory=Considered(mine, state.held.since.T, state.held.most))
    if not problem.blocking:
        # There is nothing to add up.
        lag = jnp.where(jnp.eye(d, dtype=bool), start.at[op].get(mode="clip"), choice.lag)
        choice = choice._replace(lag=lag, done=jnp.bool_(True))
    return state._replace(choice=choice)


def _visit(goal: Goal, problem: Problem, inputs: Inputs, state: _State) -> _State:
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
    copies = None if choice.memory is None else choice.memory.needs.copies[None]
    source, cost, lacks, rides, _ = (x[0] for x in _lacks(problem, goal, state, tensor[None], copies))
    moves = lacks & ~rides & some
    own = choice.lag[jnp.arange(d), jnp.arange(d)]
    before = choice.lag.at[:, source].get(mode="clip")
    after = jnp.maximum(own, before) + cost
    sends = (jnp.arange(d) == source)[None]
    slot = state.slots + choice.slots
    where = jnp.where(some, tensor, _NOTHING)
    meeting = state.meet.at[source].get(mode="clip")
    memory = choice.memory
    if memory is not None:
        size = problem.size.at[where].get(mode="fill", fill_value=0)
        memory = generate_memory.inserted(memory, state.meet, source, size, rides & lacks & some)
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
            memory=memory,
        )
    )


def _take(goal: Goal, problem: Problem, inputs: Inputs, preferences: Preferences, state: _State) -> _State:
    """Puts the chosen op on the device of least cost, lowest index on ties, after its transfers."""
    choice, (n, d) = state.choice, problem.runtime.shape
    some, op = choice.op < _NOTHING, jnp.minimum(choice.op, n - 1)
    row = jnp.arange(d)
    start = jnp.maximum(choice.lag[row, row], state.release[op])
    finish = start + problem.runtime[op]
    may, cost = _allowed(problem, state)[op], finish + preferences.price[op] + preferences.waste * choice.lost
    cost += preferences.behind * state.clock
    if choice.memory is not None and state.held is not None:
        excess = jnp.where(may, choice.memory.needs.excess, _ALL)
        may &= excess == excess.min()
        if goal == "peak":
            cost = generate_memory.cost_of(state.held, choice.memory.needs, preferences)
            cost += preferences.price[op]
    cost = jnp.where(may, cost, _NEVER)
    k = jnp.argmin(cost).astype(jnp.int32)
    clock = jnp.where(row == k, finish[k], choice.lag[k] if problem.blocking else state.clock)
    sent, rides, meet, held = state.sent, state.rides, state.meet, state.held
    edge = jnp.arange(inputs.tensor.shape[0], dtype=jnp.int32)
    mine = (edge >= inputs.row[op]) & (edge < inputs.row[op + 1]) & some
    slot = state.slots + choice.slots[k]
    if problem.blocking:
        at = jnp.where(mine, inputs.tensor, _NOTHING)
        moved = choice.sent.at[at, k].get(mode="clip")
        at = jnp.where(moved >= 0, at, _NOTHING)
        sent = sent.at[at, k].set(moved, mode="drop")
        rides = rides.at[at, k].set(choice.rides.at[at, k].get(mode="clip"), mode="drop")
        met = choice.met[k]
        meet = jnp.where((row == k)[:, None], jnp.maximum(meet, met[None]), meet)
        meet = jnp.where((row == k)[None], jnp.maximum(meet, met[:, None]), meet)
        meet = jnp.where(some, meet, state.meet)
    elif held is not None:
        other = _homes(problem, state, inputs.tensor)[1].at[:, k].get()
        sent = sent.at[jnp.where(mine & other, inputs.tensor, _NOTHING), k].set(slot, mode="drop")
    if held is not None and choice.memory is not None and inputs.sizes is not None:
        tensor = jnp.where(mine, inputs.tensor, _NOTHING)
        copied = sent.at[tensor].get(mode="clip") >= 0
        held = generate_memory.taken(held, choice.memory, inputs.sizes, op, k, choice.met[k] >= 0)
        held = generate_memory.freed(problem, held, tensor, copied, _homes(problem, state, inputs.tensor)[0])
        held = jax.tree.map(lambda new, old: jnp.where(some, new, old), held, state.held)
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
        held=held,
    )


def positions_of(sent: jax.Array, made: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Ranks of the events: by slot, an inserted transfer after the event of the slot, then by id.

    Args:
      sent: ``[T, D]`` int32, twice the slot of each transfer, plus 1 if it was inserted there; negative for
        none.
      made: ``[N]`` int32, slot of each op; negative for padding.
    """
    slot = jnp.concatenate([2 * made, sent.reshape(-1)])
    slot = jnp.where(slot < 0, _NOTHING, slot)
    size = slot.shape[0]
    order = jnp.argsort(slot, stable=True)
    rank = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    rank = jnp.where(slot < _NOTHING, rank, -1)
    return rank[: made.shape[0]], rank[made.shape[0] :].reshape(sent.shape)


def generate(
    problem: Problem, preferences: Preferences, goal: Goal, *, positions: bool
) -> tuple[jax.Array, Run]:
    """Generates the schedule of every candidate.

    Args:
      problem: ``B`` graphs.
      preferences: ``[B, P, ...]``.
      goal: What decides.
      positions: Whether to record positions; otherwise they are empty.

    Returns:
      ``[B, P, N]`` int32, device of each op, 0 for padding; and the timelines.
    """
    inputs = jax.vmap(functools.partial(inputs_of, goal=goal))(problem)
    state = jax.vmap(_begin)(problem, inputs)
    p = preferences.waste.shape[1]
    state = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], p, axis=1), state)

    choose = jax.vmap(jax.vmap(functools.partial(_choose, goal), (None, None, 0, 0)))
    visit = jax.vmap(jax.vmap(functools.partial(_visit, goal), (None, None, 0)))
    take = jax.vmap(jax.vmap(functools.partial(_take, goal), (None, None, 0, 0)))

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
        sent = 2 * state.sent + state.rides.astype(jnp.int32)
        if not problem.blocking:
            sent = sent[..., :0, :]
        op, transfer = jax.vmap(jax.vmap(positions_of))(sent, state.made)
        run = run._replace(op_position=op, transfer_position=transfer)
    return jnp.maximum(state.place, 0), run
