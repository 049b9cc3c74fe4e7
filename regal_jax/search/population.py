"""Layout of the individuals of BRKGA in its arrays, and functions that move them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regal_jax.search.config import BrkgaConfig
from regal_jax.search.loop import WarmStart

__all__ = ["everyone", "flat", "insert", "split", "take"]


def flat(x: jax.Array) -> jax.Array:
    """``[B, I, K, ...]`` as ``[B, I * K, ...]``."""
    return x.reshape(x.shape[0], x.shape[1] * x.shape[2], *x.shape[3:])


def _rows(genes: Any, index: jax.Array) -> Any:
    """Individuals ``index [B, ...]`` of ``genes [B, rows, ...]``; arbitrary if out of range."""
    pick = jax.vmap(lambda a, i: a.at[i].get(mode="clip"))
    return jax.tree.map(lambda x: pick(x, index), genes)


def split(c: BrkgaConfig, genes: Any) -> tuple[Any, Any]:
    """Elites and newcomers, as in `BrkgaState`, from all individuals ``[B, I * P, ...]``."""
    numbers = np.arange(c.islands * c.population, dtype=np.int32).reshape(c.islands, c.population)
    parts = np.split(numbers, [c.elites, c.elites + c.children], axis=1)
    places = (parts[0].reshape(-1), np.concatenate([parts[1].reshape(-1), parts[2].reshape(-1)]))
    batch = jax.tree.leaves(genes)[0].shape[0]
    elites, newcomers = (_rows(genes, jnp.broadcast_to(index, (batch, index.size))) for index in places)
    return elites, newcomers


def take(c: BrkgaConfig, elites: Any, newcomers: Any, index: jax.Array) -> Any:
    """Individuals ``index [B, ...]`` (island ``index // P``, place ``index % P``): ``[B, ..., ...]``."""
    island, place = index // c.population, index % c.population
    child, mutant = place - c.elites, place - c.elites - c.children
    newcomer = jnp.where(
        mutant < 0, island * c.children + child, (c.islands * c.children + island * c.mutants) + mutant
    )
    new = _rows(newcomers, newcomer)
    if not c.elites:
        return new
    old = _rows(elites, island * c.elites + place)

    def either(a: jax.Array, b: jax.Array) -> jax.Array:
        is_elite = (child < 0).reshape(*index.shape, *[1] * (a.ndim - index.ndim))
        return jnp.where(is_elite, a, b)

    return jax.tree.map(either, old, new)


def everyone(c: BrkgaConfig, elites: Any, newcomers: Any) -> Any:
    """``[B, I, P, ...]`` all individuals: an island's elites, then its children, then its mutants."""
    numbers = jnp.arange(c.islands * c.population, dtype=jnp.int32)
    batch = jax.tree.leaves(newcomers)[0].shape[0]
    taken = take(c, elites, newcomers, jnp.broadcast_to(numbers, (batch, numbers.size)))
    return jax.tree.map(lambda x: x.reshape(batch, c.islands, c.population, *x.shape[2:]), taken)


def insert(c: BrkgaConfig, genes: Any, warm: WarmStart) -> Any:
    """Replaces individual ``w // I`` of island ``w % I`` of ``[B, I, P, ...]`` by warm start ``w``."""
    w = jax.tree.leaves(warm.genes)[0].shape[1]
    rows = -(-w // c.islands)
    rank = lax.broadcasted_iota(jnp.int32, (c.islands, rows), 1) * c.islands
    rank = rank + lax.broadcasted_iota(jnp.int32, (c.islands, rows), 0)
    real = rank[None] < jnp.minimum(warm.count, w)[:, None, None]

    def put(x: jax.Array, y: jax.Array) -> jax.Array:
        y = jnp.take(y, jnp.minimum(rank, w - 1), axis=1)
        first = jnp.where(real.reshape(*real.shape, *[1] * (x.ndim - 3)), y, x[:, :, :rows])
        return jnp.concatenate([first, x[:, :, rows:]], axis=2)

    return jax.tree.map(put, genes, warm.genes) if rows else genes
