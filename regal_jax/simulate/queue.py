"""A priority queue over event ids for one candidate: a hierarchy of block maxima without sort or heap.

Level 0 has one entry per event, every further level one entry per block of the level below. An entry is -1
if no event in it is ready, else ``key << 15 | (32767 - child)``, so that a plain maximum finds the largest
key and, on ties, the lowest child and hence the lowest event id. A pop over ``M`` events costs about
``levels * M ** (1 / levels)`` comparisons in a fixed number of steps.
"""

from typing import Final

import jax
import jax.numpy as jnp

__all__ = ["NOTHING", "Queue", "make_queue", "pop", "push"]

Queue = tuple[jax.Array, ...]
"""Levels, the leaves first; each an int32 array."""

NOTHING: Final = 2**30
"""An unused event id, out of range in every level."""

_CHILD: Final = 32767


def _levels(num_events: int) -> int:
    return 1 if num_events <= 64 else 2 if num_events <= 4096 else 3


def _shift(num_events: int) -> int:
    """log2 of the block size, rounded down since gathering a block costs more than reducing the top level."""
    return min(6, max(num_events - 1, 1).bit_length() // _levels(num_events))


def _pack(key: jax.Array, child: jax.Array | int) -> jax.Array:
    return jnp.where(key < 0, -1, key << 15 | (_CHILD - child))


def make_queue(key: jax.Array, ready: jax.Array) -> Queue:
    """The queue of the events that are ``ready`` (``[M]`` bool), with ``key`` (``[M]`` int32, 16 bits)."""
    num_events = key.shape[0]
    shift = _shift(num_events)
    block = 1 << shift
    entry = jnp.where(ready, key, -1)
    levels: list[jax.Array] = []
    depth = _levels(num_events)
    for i in range(depth):
        last = i == depth - 1
        child = jnp.arange(entry.shape[0], dtype=jnp.int32)
        level = _pack(entry, child if last else child % block)
        if not last:
            level = jnp.pad(level, (0, -level.shape[0] % block), constant_values=-1)
            entry = level.reshape(-1, block).max(axis=1) >> 15
        levels.append(level)
    return tuple(levels)


def push(queue: Queue, num_events: int, event: jax.Array, key: jax.Array) -> Queue:
    """Adds events (``[C]`` int32, `NOTHING` to add none) with their keys (``[C]`` int32, 16 bits).

    Adding an event twice has no effect.
    """
    shift = _shift(num_events)
    levels = []
    for i, level in enumerate(queue):
        index = event >> (shift * i)
        child = index if i == len(queue) - 1 else index & ((1 << shift) - 1)
        levels.append(level.at[index].max(_pack(key, child), mode="drop"))
    return tuple(levels)


def pop(queue: Queue, num_events: int, active: jax.Array) -> tuple[jax.Array, Queue]:
    """Takes the event of the largest key, the lowest id on ties.

    Args:
      queue: The queue.
      num_events: ``M``.
      active: Whether to take an event; otherwise the queue does not change.

    Returns:
      The event, `NOTHING` if the queue is empty or not active; the queue without it.
    """
    shift = _shift(num_events)
    block = 1 << shift
    top = queue[-1].max()
    some = active & (top >= 0)
    index = _CHILD - (top & _CHILD)
    path, rows = [index], []
    for level in queue[-2::-1]:
        row = jax.lax.dynamic_slice(level, (index << shift,), (block,))
        index = (index << shift) + _CHILD - (row.max() & _CHILD)
        path.append(index)
        rows.append(row)
    levels, entry = [], jnp.int32(-1)
    for i, level in enumerate(queue):
        index = path[-1 - i]
        levels.append(level.at[jnp.where(some, index, NOTHING)].set(entry, mode="drop"))
        if i < len(queue) - 1:
            row = rows[-1 - i]
            best = jnp.where(jnp.arange(block) == index % block, entry, row).max()
            parent = path[-2 - i]
            child = parent if i == len(queue) - 2 else parent & (block - 1)
            entry = _pack(best >> 15, child)
    return jnp.where(some, path[-1], NOTHING), tuple(levels)
