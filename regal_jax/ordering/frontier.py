"""Partial orders on one device: the memory they hold, their ready ops, and the effect of running one.

Everything here is for one graph, no ``B``; `regal_jax.ordering.beam` maps it over graphs. The memory model is
that of docs/design.md, part 1: equations 2, 3 and 15 of the paper, with kept, resident and unread tensors.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.ordering.precedence import sources
from regal_jax.problem import Problem

__all__ = ["Flow", "States", "advance", "chunks", "empty", "make_flow", "spread"]

_CHUNK = 8
"""Entries of an op's row that one step of `spread` processes."""


class Flow(NamedTuple):
    """A graph as partial orders read it.

    Attributes:
      num_ops: Number of ops, without padding.
      waiting: ``[N]`` int32, number of distinct direct predecessors; 1 for padding.
      after: ``[E + C]`` int32, successors, row by row; ``N`` for duplicates and padding.
      after_row: ``[N, 2]`` int32, bounds of each op's row.
      inputs: ``[E + C]`` int32, tensors that an op reads, row by row; ``T`` in the rest.
      inputs_row: ``[N, 2]`` int32, bounds of each op's row.
      need: ``[N]`` int32, units that an op allocates while it runs.
      change: ``[N]`` int32, units held after the op less those held before it, inputs not counted.
      size: ``[T]`` int32, units that are freed after the last reader: 0 for kept tensors.
      unread: ``[T]`` uint32, number of readers in the upper half, the exclusive or of them in the lower.
      saving: ``[N]`` int32, units of inputs that only this op reads.
      held: Units at time 0.
      resident: ``[N]`` bool.
      zobrist: ``[N, 2]`` uint32, random words; the words of a set are the exclusive or of its ops' words.
    """

    num_ops: jax.Array
    waiting: jax.Array
    after: jax.Array
    after_row: jax.Array
    inputs: jax.Array
    inputs_row: jax.Array
    need: jax.Array
    change: jax.Array
    size: jax.Array
    unread: jax.Array
    saving: jax.Array
    held: jax.Array
    resident: jax.Array
    zobrist: jax.Array


class States(NamedTuple):
    """``W`` partial orders of one length.

    Attributes:
      valid: ``[W]`` bool, whether the place holds a partial order.
      score: ``[W]`` float32, log-probability.
      peak: ``[W]`` int32, peak so far, in units.
      held: ``[W]`` int32, units held after the last op.
      last: ``[W]`` int32, the last op; ``N`` if there is none.
      done: ``[W, ceil(N / 32)]`` uint32, bits of the ops that have run.
      words: ``[W, 2]`` uint32, `Flow.zobrist` words of that set.
      waiting, unread, saving: ``[W, N]``, ``[W, T]``, ``[W, N]``, as in `Flow`, of the ops that have not run.
      ready: ``[W, R]`` int32, the ready ops in any order in the first ``listed`` places, then ``N``.
      listed: ``[W]`` int32, number of ready ops; above ``R`` some did not fit, and the state is invalid.
    """

    valid: jax.Array
    score: jax.Array
    peak: jax.Array
    held: jax.Array
    last: jax.Array
    done: jax.Array
    words: jax.Array
    waiting: jax.Array
    unread: jax.Array
    saving: jax.Array
    ready: jax.Array
    listed: jax.Array


def _rows(owner: jax.Array, count: int) -> jax.Array:
    """``[count, 2]`` int32 bounds of the row of each owner in a sorted list."""
    number = jnp.arange(count, dtype=jnp.int32)
    bounds = [jnp.searchsorted(owner, number, side=side) for side in ("left", "right")]
    return jnp.stack(bounds, axis=1).astype(jnp.int32)


def _zobrist(count: int) -> np.ndarray:
    """``[count, 2]`` uint32; every row depends only on its index (SplitMix64)."""
    with np.errstate(over="ignore"):
        z = (np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return np.stack([z >> np.uint64(32), z & np.uint64(0xFFFFFFFF)], axis=1).astype(np.uint32)


def make_flow(problem: Problem) -> Flow:
    """The `Flow` of one graph."""
    n, t = problem.indegree.shape[0], problem.size.shape[0]
    owner, after = jax.lax.sort((sources(problem), problem.successor), num_keys=2)
    twice = (owner[1:] == owner[:-1]) & (after[1:] == after[:-1])
    after = jnp.where(jnp.pad(twice, (1, 0)), n, after)
    real = jnp.arange(n) < problem.num_ops
    waiting = jnp.zeros(n, jnp.int32).at[after].add(1, mode="drop")
    reader = jnp.where(problem.via < t, problem.successor, n)
    reader, inputs = jax.lax.sort((reader, problem.via), num_keys=2)
    size = jnp.where(problem.keep, 0, problem.size)
    count = problem.tensor_row[:, 1] - problem.tensor_row[:, 0]
    zeros = jnp.zeros(n, jnp.int32)
    outputs = zeros.at[problem.tensor_op].add(jnp.where(problem.resident, 0, problem.size))
    lost = zeros.at[problem.tensor_op].add(jnp.where(count == 0, size, 0))
    # Every reader adds its bits once, so that the parity of the sum of each bit is the exclusive or.
    bits = (problem.successor[:, None] >> jnp.arange(16, dtype=jnp.int32)[None]) & 1
    parity = jnp.zeros((t, 16), jnp.int32).at[problem.via].add(bits, mode="drop") & 1
    readers = (parity << jnp.arange(16, dtype=jnp.int32)[None]).sum(axis=1)
    single = jnp.where(count == 1, readers, n)
    return Flow(
        num_ops=problem.num_ops,
        waiting=jnp.where(real, waiting, 1),
        after=after,
        after_row=_rows(owner, n),
        inputs=inputs,
        inputs_row=_rows(reader, n),
        need=outputs + problem.temp,
        change=outputs - lost,
        size=size,
        unread=count.astype(jnp.uint32) << jnp.uint32(16) | readers.astype(jnp.uint32),
        saving=zeros.at[single].add(size, mode="drop"),
        held=jnp.where(problem.resident, problem.size, 0).sum(),
        resident=jnp.zeros(n, bool).at[problem.tensor_op].max(problem.resident),
        zobrist=jnp.asarray(_zobrist(n)),
    )


def empty(flow: Flow, width: int, ready: int) -> States:
    """The empty order and ``width - 1`` free places; ``ready`` is ``R``."""
    n = flow.waiting.shape[0]
    first = flow.waiting == 0
    ops = jnp.sort(jnp.where(first, jnp.arange(n, dtype=jnp.int32), n))
    ops = jnp.pad(ops, (0, max(0, ready - n)), constant_values=n)[:ready]
    return States(
        valid=jnp.arange(width) == 0,
        score=jnp.zeros(width, jnp.float32),
        peak=jnp.full(width, flow.held),
        held=jnp.full(width, flow.held),
        last=jnp.full(width, n, jnp.int32),
        done=jnp.zeros((width, -(-n // 32)), jnp.uint32),
        words=jnp.zeros((width, 2), jnp.uint32),
        waiting=jnp.broadcast_to(flow.waiting, (width, n)),
        unread=jnp.broadcast_to(flow.unread, (width, *flow.unread.shape)),
        saving=jnp.broadcast_to(flow.saving, (width, n)),
        ready=jnp.broadcast_to(ops, (width, ready)),
        listed=jnp.full(width, first.sum(dtype=jnp.int32)),
    )


def advance(flow: Flow, states: States, op: jax.Array) -> States:
    """Every state runs ``op`` (``[W]`` int32, ``N`` for none), except for the part that `spread` does."""
    width, n = states.waiting.shape
    row = jnp.arange(width)
    runs = op < n
    own = jnp.minimum(op, n - 1)
    held = states.held + flow.need[own]
    saved = jnp.take_along_axis(states.saving, own[:, None], axis=1)[:, 0]
    later = states.held + flow.change[own] - saved
    bit = jnp.where(runs, jnp.uint32(1) << (own % 32).astype(jnp.uint32), jnp.uint32(0))
    # The last ready op moves to the place of the one that runs.
    end = states.listed - 1
    moved = states.ready.at[row, end].get(mode="fill", fill_value=n)
    ready = jnp.where(runs[:, None] & (states.ready == op[:, None]), moved[:, None], states.ready)
    ready = ready.at[row, jnp.where(runs, end, ready.shape[1])].set(n, mode="drop")
    return states._replace(
        peak=jnp.where(runs, jnp.maximum(states.peak, held), states.peak),
        held=jnp.where(runs, later, states.held),
        last=jnp.where(runs, op, states.last),
        done=states.done.at[row, own // 32].add(bit),
        words=states.words ^ jnp.where(runs[:, None], flow.zobrist[own], jnp.uint32(0)),
        ready=ready,
        listed=jnp.where(runs, end, states.listed),
    )


def spread(flow: Flow, states: States, op: jax.Array, step: jax.Array) -> States:
    """The ``step``-th chunk of updates by ``op`` (``[W]`` int32, ``N``: none) to successors and inputs."""
    width, n = states.waiting.shape
    row = jnp.arange(width)[:, None]
    after = _chunk(flow.after, flow.after_row, op, step, n)
    waiting = states.waiting.at[row, after].add(-1, mode="drop")
    free = (after < n) & (waiting.at[row, after].get(mode="fill", fill_value=1) == 0)
    place = states.listed[:, None] + jnp.cumsum(free, axis=1, dtype=jnp.int32) - 1
    place = jnp.where(free, place, states.ready.shape[1])
    t = states.unread.shape[1]
    tensor = _chunk(flow.inputs, flow.inputs_row, op, step, t)
    unread = states.unread.at[row, tensor].get(mode="fill", fill_value=0)
    unread = (unread - (jnp.uint32(1) << jnp.uint32(16))) ^ op[:, None].astype(jnp.uint32)
    single = (tensor < t) & (unread >> jnp.uint32(16) == 1)
    reader = jnp.where(single, (unread & jnp.uint32(0xFFFF)).astype(jnp.int32), n)
    size = flow.size.at[tensor].get(mode="fill", fill_value=0)
    return states._replace(
        waiting=waiting,
        unread=states.unread.at[row, tensor].set(unread, mode="drop"),
        saving=states.saving.at[row, reader].add(size, mode="drop"),
        ready=states.ready.at[row, place].set(after, mode="drop"),
        listed=states.listed + free.sum(axis=1, dtype=jnp.int32),
    )


def chunks(flow: Flow, op: jax.Array) -> jax.Array:
    """Number of steps of `spread` for the longest row of ``op`` (``[W]`` int32, ``N`` for none)."""
    rows = (flow.after_row, flow.inputs_row)
    length = [(r[:, 1] - r[:, 0]).at[op].get(mode="fill", fill_value=0).max() for r in rows]
    return -(-jnp.maximum(*length) // _CHUNK)


def _chunk(entries: jax.Array, rows: jax.Array, op: jax.Array, step: jax.Array, fill: int) -> jax.Array:
    """``[W, _CHUNK]`` entries of the row of each op; ``fill`` beyond its end."""
    bounds = rows.at[op].get(mode="fill", fill_value=0)
    index = bounds[:, :1] + step * _CHUNK + jnp.arange(_CHUNK, dtype=jnp.int32)[None]
    found = entries.at[index].get(mode="fill", fill_value=fill)
    return jnp.where(index < bounds[:, 1:], found, fill)
