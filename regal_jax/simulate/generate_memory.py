"""What the reference implementation of schedule generation knows about memory (docs/design.md, part 2).

All numbers are int32, in units of `regal_jax.problem.memory_unit`, and upper bounds: tensors are held until
all of their readers have been taken.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from regal_jax.problem import Preferences, Problem

__all__ = [
    "Considered",
    "Held",
    "Needs",
    "Sizes",
    "begin_held",
    "cost_of",
    "freed",
    "inserted",
    "needs",
    "sizes_of",
    "taken",
]


class Sizes(NamedTuple):
    """Sums of one graph, which do not change.

    Attributes:
      out: ``[N]`` outputs of each op.
      stays: ``[N]`` of these, the ones that somebody reads or that are kept.
      resident: ``[N]`` bool, whether the outputs are there from time 0.
      readers: ``[T]`` number of readers.
    """

    out: jax.Array
    stays: jax.Array
    resident: jax.Array
    readers: jax.Array


class Held(NamedTuple):
    """Memory of one candidate so far.

    Attributes:
      now: ``[D]`` what each device holds.
      most: ``[D]`` its highest need.
      since: ``[D, D]`` column ``k``: the most that device ``k`` has held since it last met each other device.
      left: ``[T]`` readers that have not been taken.
    """

    now: jax.Array
    most: jax.Array
    since: jax.Array
    left: jax.Array


class Needs(NamedTuple):
    """What an op, or each op, would need on each device: ``[..., D]``.

    Attributes:
      need: What the device would hold while the op runs.
      excess: What of it is above the capacity.
      copies: Copies that the op lacks there.
      growth: What would be held in addition when the op has run.
    """

    need: jax.Array
    excess: jax.Array
    copies: jax.Array
    growth: jax.Array


class Considered(NamedTuple):
    """What the op that is being placed would change.

    Attributes:
      needs: ``[D]``, of the op.
      since: ``[D, D]``, row ``k``: that column of `Held.since` after insertions.
      most: ``[D]``, as in `Held`.
    """

    needs: Needs
    since: jax.Array
    most: jax.Array


def sizes_of(problem: Problem) -> Sizes:
    """`Sizes` of one graph (no ``B``)."""
    none = jnp.zeros(problem.temp.shape, jnp.int32)
    readers = problem.tensor_row[:, 1] - problem.tensor_row[:, 0]
    stays = jnp.where((readers > 0) | problem.keep, problem.size, 0)
    return Sizes(
        out=none.at[problem.tensor_op].add(problem.size),
        stays=none.at[problem.tensor_op].add(stays),
        resident=none.astype(bool).at[problem.tensor_op].max(problem.resident),
        readers=readers,
    )


def begin_held(problem: Problem, sizes: Sizes) -> Held:
    """No op has been taken."""
    d = problem.num_devices
    none = jnp.zeros(d, jnp.int32)
    return Held(none, none, jnp.zeros((d, d), jnp.int32), sizes.readers)


def needs(
    problem: Problem, sizes: Sizes, held: Held, tensor: jax.Array, reader: jax.Array, lacks: jax.Array
) -> Needs:
    """``[N, D]`` the needs of all ops, right for those that are ready.

    Args:
      problem: One graph.
      sizes: Its sums.
      held: Memory so far.
      tensor: ``[X]`` int32, the tensor of each edge; ``T`` for a control edge.
      reader: ``[X]`` int32, the op that it leads to.
      lacks: ``[X, D]`` whether the device has no copy and is not the tensor's home.
    """
    size = problem.size.at[tensor].get(mode="fill", fill_value=0)
    ends = held.left.at[tensor].get(mode="clip") == 1
    goes = jnp.where(ends & ~problem.keep.at[tensor].get(mode="clip"), size, 0)
    none = jnp.zeros(problem.runtime.shape, jnp.int32)
    moved = jnp.where(lacks, size[:, None], 0)
    copies = none.at[reader].add(moved, mode="drop")
    change = jnp.where(ends[:, None], 0, moved) - goes[:, None]
    growth = (none + sizes.stays[:, None]).at[reader].add(change, mode="drop")
    before = jnp.where(sizes.resident[:, None], held.most[None], held.now[None] + copies)
    need = before + (sizes.out + problem.temp)[:, None]
    return Needs(need, jnp.maximum(need - problem.capacity[None], 0), copies, growth)


def cost_of(held: Held, needs: Needs, preferences: Preferences) -> jax.Array:
    """``[..., D]`` float32, cost of choices for peak memory, without price."""
    # Products with powers of two are exact, so that all implementations round alike.
    peak = jnp.maximum(needs.need, held.most.max()).astype(jnp.float32)
    cost = peak + preferences.waste * needs.growth.astype(jnp.float32)
    return cost + preferences.behind * jnp.broadcast_to(held.now, cost.shape).astype(jnp.float32)


def inserted(
    considered: Considered, meet: jax.Array, source: jax.Array, size: jax.Array, rides: jax.Array
) -> Considered:
    """Adds a copy that is inserted right after the last meeting of its source with each device ``k``.

    Args:
      considered: Before.
      meet: ``[D, D]``, slot of the last meeting.
      source: The device that sends.
      size: Of the tensor.
      rides: ``[D]`` bool, whether it is inserted.
    """
    since, when = considered.since, meet.at[source].get(mode="clip")
    base = since.at[:, source].get(mode="clip") + size
    # The copy is part of all that was held since a later meeting.
    later = meet >= when[:, None]
    new = jnp.where(later, since + size, jnp.maximum(since, base[:, None]))
    most = jnp.where(rides, jnp.maximum(considered.most, base), considered.most)
    return considered._replace(since=jnp.where(rides[:, None], new, since), most=most)


def taken(
    held: Held, considered: Considered, sizes: Sizes, op: jax.Array, k: jax.Array, met: jax.Array
) -> Held:
    """After an op on device ``k``, before its inputs are freed.

    Args:
      held: Before.
      considered: What the op changes.
      sizes: Sums of the graph.
      op: The op.
      k: The device.
      met: ``[D]`` bool, devices that it has met for the op.
    """
    mine, needs = jnp.arange(held.now.shape[0]) == k, considered.needs
    need, column = needs.need[k], considered.since[k]
    # The op runs after all of its meetings.
    longer = jnp.where(sizes.resident[op], column + sizes.out[op], jnp.maximum(column, need))
    since = jnp.where(mine[None], jnp.where(met, need, longer)[:, None], held.since)
    since = jnp.where(mine[:, None] & met[None], held.now[None], since)
    most = jnp.where(mine, jnp.maximum(considered.most, need), held.most)
    now = jnp.where(mine, held.now + needs.copies + sizes.stays[op], held.now)
    return Held(now, most, since, held.left)


def freed(problem: Problem, held: Held, tensor: jax.Array, there: jax.Array, home: jax.Array) -> Held:
    """After the inputs of an op have lost a reader.

    Args:
      problem: One graph.
      held: Before.
      tensor: ``[X]`` int32, the inputs; out of range for what is none.
      there: ``[X, D]`` bool, whether the device has a copy.
      home: ``[X]`` int32, where the original is.
    """
    left = held.left.at[tensor].add(-1, mode="drop")
    ends = left.at[tensor].get(mode="fill", fill_value=1) == 0
    original = (home[:, None] == jnp.arange(held.now.shape[0])[None]) & ~problem.keep.at[tensor].get(
        mode="fill", fill_value=True
    )[:, None]
    size = problem.size.at[tensor].get(mode="fill", fill_value=0)
    gone = jnp.where(ends[:, None] & (there | original), size[:, None], 0).sum(axis=0)
    return held._replace(now=held.now - gone, left=left)
