"""The reference simulator: all candidates advance together, by one event or chunk of successors per step.

The loop is outside of the vmaps, so its trip count is one scalar: a vmapped loop with a batched
predicate would copy the whole state in every iteration. Candidates that are done, or busy with a long row
of successors, make writes that are dropped.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Decisions, Problem
from regal_jax.simulate.queue import NOTHING, Queue, make_queue, pop, push

__all__ = ["Run", "run"]

_CHUNK: Final = 4
"""Successors that one step looks at."""


class Run(NamedTuple):
    """The timeline of one candidate (with leading ``[B, P]``).

    Attributes:
      makespan: float32.
      op_position: ``[N]`` int32, rank of each compute among the events; -1 for padding.
      transfer_position: ``[T, D]`` int32; -1 if it does not happen. ``[0, D]`` unless blocking.
    """

    makespan: jax.Array
    op_position: jax.Array
    transfer_position: jax.Array


class _State(NamedTuple):
    """One candidate between two steps.

    Attributes:
      queue: Ready events.
      waiting: ``[N]`` int32, predecessors that have not run.
      arrival: ``[N]`` float32, latest arrival from predecessors that have run; ``[0]`` if clocks suffice.
      clock: ``[D]`` float32.
      position: ``[M]`` int32 rank of each event, -1 before it runs; ``[0]`` if positions are not needed.
      taken: Number of events so far.
      next, end: Bounds of the rest of the current event's row of successors.
      device: Device on which the current event makes its tensors available.
      is_op: Whether the current event is a compute.
      finish: Finish of the current event.
    """

    queue: Queue
    waiting: jax.Array
    arrival: jax.Array
    clock: jax.Array
    position: jax.Array
    taken: jax.Array
    next: jax.Array
    end: jax.Array
    device: jax.Array
    is_op: jax.Array
    finish: jax.Array


def _clocks_suffice(problem: Problem) -> bool:
    """Whether clocks alone delay every op: with transfers as events, if there are no control edges."""
    return problem.blocking and problem.bucket.controls == 0


def _keys(problem: Problem, decisions: Decisions) -> jax.Array:
    """``[B, P, M]`` int32 keys of all events, in the order of event ids."""
    keys = decisions.priority
    if problem.blocking:
        transfer = decisions.transfer_priority
        keys = jnp.concatenate([keys, transfer.reshape(*transfer.shape[:-2], -1)], axis=-1)
    return keys.astype(jnp.int32)


def _start(problem: Problem, key: jax.Array, positions: bool) -> _State:
    n, d = problem.runtime.shape
    ready = jnp.pad(problem.indegree == 0, (0, key.shape[0] - n))
    zero = jnp.int32(0)
    return _State(
        queue=make_queue(key, ready),
        waiting=problem.indegree,
        arrival=jnp.zeros(0 if _clocks_suffice(problem) else n, jnp.float32),
        clock=jnp.zeros(d, jnp.float32),
        position=jnp.full(key.shape[0] if positions else 0, -1, jnp.int32),
        taken=zero,
        next=zero,
        end=zero,
        device=zero,
        is_op=jnp.bool_(False),
        finish=jnp.float32(0),
    )


def _spread(problem: Problem, placement: jax.Array, key: jax.Array, state: _State) -> _State:
    """Looks at the next chunk of the current event's row and queues what has become ready."""
    n, d = problem.runtime.shape
    index = state.next + jnp.arange(_CHUNK, dtype=jnp.int32)
    inside = index < state.end
    op = problem.successor.at[index].get(mode="fill", fill_value=n)
    tensor = problem.via.at[index].get(mode="fill", fill_value=0)
    place = placement.at[op].get(mode="clip")
    here = inside
    event = jnp.full(_CHUNK, NOTHING, jnp.int32)
    delay = jnp.zeros(_CHUNK, jnp.float32)
    if problem.blocking:
        # A remote consumer queues the transfer (again and again if there are many: that is harmless);
        # the transfer, when it has run, goes through the same consumers for those on its device.
        here = inside & ((place == state.device) | (tensor == problem.size.shape[0]))
        event = jnp.where(inside & ~here & state.is_op, n + tensor * d + place, event)
    else:
        cost = problem.transfer_cost(tensor, state.device, place)
        delay = jnp.where(place == state.device, 0, cost)
    target = jnp.where(here, op, NOTHING)
    waiting = state.waiting.at[target].add(-1, mode="drop")
    arrival = state.arrival
    if arrival.shape[0]:
        arrival = arrival.at[target].max(state.finish + delay, mode="drop")
    freed = here & (waiting.at[op].get(mode="clip") == 0)
    event = jnp.where(freed, op, event)
    queue = push(state.queue, key.shape[0], event, key.at[event].get(mode="clip"))
    return state._replace(queue=queue, waiting=waiting, arrival=arrival, next=state.next + _CHUNK)


def _take(problem: Problem, placement: jax.Array, num_events: int, state: _State) -> _State:
    """If the current event's row is done, takes the next event and sets the clocks."""
    n, d = problem.runtime.shape
    event, queue = pop(state.queue, num_events, state.next >= state.end)
    some = event < NOTHING
    op, is_op = jnp.minimum(event, n - 1), event < n
    device = placement[op]
    start = state.clock[device]
    if state.arrival.shape[0]:
        start = jnp.maximum(start, state.arrival[op])
    duration, row, touched = problem.runtime[op, device], problem.op_row[op], jnp.arange(d) == device
    if problem.blocking:
        tensor = jnp.clip((event - n) // d, 0, problem.size.shape[0] - 1)
        source, target = placement[problem.tensor_op[tensor]], (event - n) % d
        device = jnp.where(is_op, device, target)
        met = jnp.maximum(state.clock[source], state.clock[target])
        start = jnp.where(is_op, start, met)
        duration = jnp.where(is_op, duration, problem.transfer_cost(tensor, source, target))
        row = jnp.where(is_op, row, problem.tensor_row[tensor])
        touched = (jnp.arange(d) == device) | (~is_op & (jnp.arange(d) == source))
    finish = start + duration
    position = state.position
    if position.shape[0]:
        position = position.at[event].set(state.taken, mode="drop")
    return _State(
        queue=queue,
        waiting=state.waiting,
        arrival=state.arrival,
        clock=jnp.where(some & touched, finish, state.clock),
        position=position,
        taken=state.taken + some.astype(jnp.int32),
        next=jnp.where(some, row[0], state.next),
        end=jnp.where(some, row[1], state.end),
        device=jnp.where(some, device, state.device),
        is_op=jnp.where(some, is_op, state.is_op),
        finish=jnp.where(some, finish, state.finish),
    )


def run(problem: Problem, decisions: Decisions, *, positions: bool) -> Run:
    """Takes every event of every candidate.

    Args:
      problem: ``B`` graphs.
      decisions: ``[B, P, ...]``.
      positions: Whether to record positions; otherwise they are empty.
    """

    def begin(problem: Problem, key: jax.Array) -> _State:
        return _start(problem, key, positions)

    def step(problem: Problem, placement: jax.Array, key: jax.Array, state: _State) -> _State:
        state = _spread(problem, placement, key, state)
        return _take(problem, placement, key.shape[0], state)

    def unfinished(state: _State) -> jax.Array:
        # The top level of the queue says whether anything is ready.
        return ((state.next < state.end) | (state.queue[-1].max(axis=-1) >= 0)).any()

    key = _keys(problem, decisions)
    all_begin = jax.vmap(jax.vmap(begin, in_axes=(None, 0)))
    all_step = jax.vmap(jax.vmap(step, in_axes=(None, 0, 0, 0)))
    state = jax.lax.while_loop(
        unfinished, lambda s: all_step(problem, decisions.placement, key, s), all_begin(problem, key)
    )
    n, d = problem.runtime.shape[-2:]
    batch = decisions.priority.shape[:2]
    return Run(
        makespan=state.clock.max(axis=-1),
        op_position=state.position[..., :n],
        transfer_position=state.position[..., n:].reshape(*batch, -1, d),
    )
