"""Rows of 128 lanes: how the kernels for GPUs read and write shared memory.

Every lane computes every scalar, which requires a rule: **shared memory is written by rows of 128 lanes,
never by a scalar store.** Pallas puts barriers around a row store under both of its lowering semantics, but
not around a scalar store under the newer one. A slow warp would then read, modify and write a value that a
fast one has already modified.

The kernels use only features of Pallas that JAX 0.10 and 0.11 have in common: scalar loads at a computed
index, loads and stores of 128 lanes, their maximum, and loops and branches on scalars.
"""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp

__all__ = ["LANES", "any_of", "put", "row_at", "up", "when"]

LANES: Final = 128


def up(size: int) -> int:
    """``size``, rounded up to rows."""
    return -(-size // LANES) * LANES


def row_at(index: Any) -> Any:
    """The 128 elements from ``index`` on, a multiple of 128."""
    from jax.experimental import pallas as pl

    return pl.ds(index, LANES)


def put(ref: Any, lane: jax.Array, index: jax.Array, value: jax.Array | int) -> None:
    """``ref[index] = value``, as a row. ``lane`` is ``[128]``, 0 to 127."""
    base = index & -LANES
    ref[row_at(base)] = jnp.where(lane == index - base, value, ref[row_at(base)])


def when(condition: jax.Array, action: Callable[[], None]) -> None:
    """Runs ``action``, which changes refs, if the scalar ``condition`` holds."""
    jax.lax.cond(condition, action, lambda: None)


def any_of(values: tuple[jax.Array, ...], index: jax.Array) -> jax.Array:
    """``values[index]``, all in registers; the first if ``index`` is out of range."""
    chosen = values[0]
    for i, value in enumerate(values[1:], 1):
        chosen = jnp.where(index == i, value, chosen)
    return chosen
