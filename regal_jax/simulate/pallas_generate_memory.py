"""What the GPU kernel of schedule generation knows about memory: the numbers of `generate_memory`.

Bytes that an op lacks, and the growth that it would cause, are kept for every op and device. They change when
an input is made, copied, or left to one reader.
"""

from typing import Any

import jax
import jax.numpy as jnp

from regal_jax.simulate.pallas_generate_layout import Block, Clocks, Held, device_of
from regal_jax.simulate.pallas_rows import any_of, put, when

__all__ = ["add_copy", "add_input", "begin_held", "cost_of", "fits", "free", "insert", "need_of", "remember"]


def begin_held(d: int) -> Held:
    """No op has been taken."""
    none = (jnp.int32(0),) * d
    return Held(none, none, (none,) * d)


def need_of(block: Block, held: Held, at: Any, lacks: jax.Array, k: int) -> jax.Array:
    """What device ``k`` would hold while ops run. ``at`` is an op or a row of ops."""
    memory = block.memory
    # Without a selection: JAX 0.10 takes a scalar that is selected by lanes for unsigned.
    usual = lacks + held.now[k]
    return memory.fixed[at] + usual + memory.resident[at] * (held.most[k] - usual)


def cost_of(block: Block, held: Held, need: jax.Array, growth: jax.Array, k: int) -> jax.Array:
    """Cost of choices for peak memory, without price."""
    peak = need
    for most in held.most:
        peak = jnp.maximum(peak, most)
    cost = peak.astype(jnp.float32) + block.inputs.waste * growth.astype(jnp.float32)
    return cost + block.inputs.behind * held.now[k].astype(jnp.float32)


def fits(block: Block, since: jax.Array, lacks: jax.Array, k: Any) -> jax.Array:
    """Whether the copies that an op lacks fit beside the most that device ``k`` has held since a meeting."""
    return since + lacks <= block.memory.capacity[k]


def insert(
    block: Block, row: Clocks, most: jax.Array, meet: Clocks, tensor: jax.Array, home: jax.Array
) -> tuple[Clocks, jax.Array]:
    """Inserts a copy after the last meeting with its home.

    Args:
      block: The block.
      row: Row ``k`` of `Held.since`.
      most: The device's highest need.
      meet: Row ``k`` of `Now.meet`.
      tensor: The tensor.
      home: Where it is.

    Returns:
      The row and the highest need with the copy.
    """
    size, last = block.memory.size[tensor], any_of(meet, home)
    base = any_of(row, home) + size
    # The copy is part of all that was held since a later meeting.
    new = tuple(
        jnp.where(meeting >= last, old + size, jnp.maximum(old, base))
        for meeting, old in zip(meet, row, strict=True)
    )
    return new, jnp.maximum(most, base)


def remember(
    block: Block,
    held: Held,
    op: jax.Array,
    need: jax.Array,
    column: Clocks,
    most: jax.Array,
    met: Clocks,
    k: jax.Array,
) -> Held:
    """After an op on device ``k``, before its inputs are freed.

    Args:
      block: The block.
      held: Before.
      op: The op.
      need: Its need.
      column: Row ``k`` of `Held.since` after insertions.
      most: The device's highest need after insertions.
      met: Slots of the meetings for the op with each device, -1 for none.
      k: The device.
    """
    d, memory = block.sizes.d, block.memory
    grows = block.lacks[k * block.sizes.ops + op] + memory.stays[op]
    kept = memory.resident[op] != 0
    longer = tuple(jnp.where(kept, old + memory.out[op], jnp.maximum(old, need)) for old in column)
    mine = tuple(jnp.where(met[h] >= 0, need, longer[h]) for h in range(d))
    since = tuple(
        tuple(
            jnp.where(k == i, mine[j], jnp.where((k == j) & (met[i] >= 0), held.now[i], held.since[i][j]))
            for j in range(d)
        )
        for i in range(d)
    )
    now = tuple(jnp.where(k == i, old + grows, old) for i, old in enumerate(held.now))
    highest = tuple(jnp.where(k == i, jnp.maximum(most, need), old) for i, old in enumerate(held.most))
    return Held(now, highest, since)


def _add(ref: Any, block: Block, index: jax.Array, value: jax.Array) -> None:
    put(ref, block.lane, index, ref[index] + value)


def add_input(block: Block, reader: jax.Array, tensor: jax.Array, home: jax.Array) -> None:
    """A tensor has been made on ``home``, and ``reader`` reads it."""
    sizes, memory = block.sizes, block.memory
    size = memory.size[tensor]
    ends = block.left[tensor] == 1
    freed = jnp.where(ends & (memory.keep[tensor] == 0), size, 0)
    for k in range(sizes.d):
        lacks = jnp.where(home != k, size, 0)
        _add(block.lacks, block, k * sizes.ops + reader, lacks)
        if block.growth is not None:
            _add(block.growth, block, k * sizes.ops + reader, jnp.where(ends, 0, lacks) - freed)


def add_copy(block: Block, reader: jax.Array, tensor: jax.Array, k: jax.Array) -> None:
    """Device ``k`` has got a copy, and ``reader``, which is not the one that needed it, reads it."""
    size = block.memory.size[tensor]
    _add(block.lacks, block, k * block.sizes.ops + reader, -size)
    if block.growth is not None:
        _add(block.growth, block, k * block.sizes.ops + reader, -size)


def free(block: Block, held: Held, op: jax.Array) -> Held:
    """After the inputs of an op, which has been taken, have lost a reader."""
    inputs, sizes, memory = block.inputs, block.sizes, block.memory

    def last(tensor: jax.Array, home: jax.Array) -> None:
        """Updates the growth of the only reader that is left."""

        def visit(i: jax.Array, _: None) -> None:
            reader = inputs.successor[i]

            def update() -> None:
                size = memory.size[tensor]
                freed = jnp.where(memory.keep[tensor] == 0, size, 0)
                for k in range(sizes.d):
                    lacked = (home != k) & (block.sent[tensor * sizes.d + k] < 0)
                    change = -freed - jnp.where(lacked, size, 0)
                    _add(block.growth, block, k * sizes.ops + reader, change)

            when(block.waiting[reader] >= 0, update)

        jax.lax.fori_loop(inputs.first[tensor], inputs.last[tensor], visit, None)

    def visit(i: jax.Array, now: Clocks) -> Clocks:
        tensor = inputs.read[i]

        def lose() -> Clocks:
            left = block.left[tensor] - 1
            put(block.left, block.lane, tensor, left)
            home = device_of(block.spot_of_maker(tensor))
            if block.growth is not None:
                when(left == 1, lambda: last(tensor, home))
            size, kept = memory.size[tensor], memory.keep[tensor] != 0
            held_there = (
                (block.sent[tensor * sizes.d + k] >= 0) | ((home == k) & ~kept) for k in range(sizes.d)
            )
            return tuple(
                jnp.where((left == 0) & there, old - size, old)
                for there, old in zip(held_there, now, strict=True)
            )

        return jax.lax.cond(tensor < sizes.t, lose, lambda: now)

    now = jax.lax.fori_loop(inputs.reads[op], inputs.reads[op + 1], visit, held.now)
    return held._replace(now=now)
