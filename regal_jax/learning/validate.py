"""Validation of a policy on held-out graphs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from regal_jax.learning.mesh import AXIS, everywhere
from regal_jax.learning.pool import Pool, SpreadPool, rows
from regal_jax.learning.step import Learner, table_on
from regal_jax.policies import entropy, sample_action, to_proposal
from regal_jax.programs import on_mesh, program
from regal_jax.solve import keys_of

__all__ = ["Validation", "validate"]

_CHUNK = 64


class Validation(NamedTuple):
    """Metrics on held-out graphs. The objective is at most ``optimizer.worst`` times the reference's.

    Attributes:
      improvement: Mean share of the objective saved over the uniform searches.
      matched: Share of graphs on which it was at least as good.
      worst: Smallest improvement of a graph.
      best: Largest improvement of a graph.
      entropy: Entropy of the policy in nats per choice.
    """

    improvement: float
    matched: float
    worst: float
    best: float
    entropy: float


def validate(
    learner: Learner, mesh: Mesh, weights: Any, pools: Sequence[SpreadPool], key: jax.Array
) -> Validation:
    """Metrics of one search per graph with one action each, always with the same random numbers.

    Every device searches the graphs that it holds.

    Args:
      learner: Static part of a step.
      mesh: The devices.
      weights: Weights of the policy.
      pools: Pools with references.
      key: Typed, consumed.
    """
    table = table_on(learner, mesh)
    found = [_validated(learner, mesh, weights, pool, table, key) for pool in pools]
    fitness, nats, reference = (np.concatenate(each) for each in zip(*found, strict=True))
    ratio = np.where(reference > 0, fitness / np.where(reference > 0, reference, 1), 1)
    # As in rewards: one plan that does not fit would outweigh all others.
    shares = (1 - np.minimum(ratio, learner.config.optimizer.worst)).astype(np.float64)
    return Validation(
        improvement=float(shares.mean()),
        matched=float((shares >= 0).mean()),
        worst=float(shares.min()),
        best=float(shares.max()),
        entropy=float(nats.mean()),
    )


def _validated(
    learner: Learner, mesh: Mesh, weights: Any, pool: SpreadPool, table: jax.Array, key: jax.Array
) -> np.ndarray:
    """``[3, G]`` float32: fitness, entropy and reference of every graph of the pool."""
    each = pool.pool.size // mesh.size
    width = min(_CHUNK, each)
    parts = []
    for first in range(0, each, width):
        members = np.arange(first, first + width, dtype=np.int32) % each
        if mesh.size == 1:
            chunk = rows(pool.pool, jnp.asarray(members))
            found = np.stack([*_search(learner, weights, chunk, table, key), chunk.reference])[:, None]
        else:
            found = np.asarray(
                _spread_search(learner, mesh, weights, pool, everywhere(members, mesh), table, key)
            )
        parts.append(found[:, :, : min(width, each - first)])
    return np.concatenate(parts, axis=2).reshape(3, -1)[:, np.asarray(pool.row)]


@program(static=(0, 1))
def _spread_search(
    learner: Learner,
    mesh: Mesh,
    weights: Any,
    pool: SpreadPool,
    members: jax.Array,
    table: jax.Array,
    key: jax.Array,
) -> jax.Array:
    """``[3, S, C]`` float32: fitness, entropy and reference of these rows of each device."""

    def mine(pool: SpreadPool, weights: Any, members: jax.Array, table: jax.Array, key: jax.Array) -> Any:
        chunk = rows(pool.pool, members)
        found = jnp.stack([*_searched(learner, weights, chunk, table, key), chunk.reference])
        return lax.all_gather(found, AXIS, axis=1)

    same = PartitionSpec()
    run = on_mesh(mine, mesh, (SpreadPool.specs(), same, same, same, same), same)
    return run(pool, weights, members, table, key)


@program(static=(0,))
def _search(
    learner: Learner, weights: Any, pool: Pool, table: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    return _searched(learner, weights, pool, table, key)


def _searched(
    learner: Learner, weights: Any, pool: Pool, table: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Fitness and entropy, ``[G]`` each."""
    act, search = jax.random.split(key)
    logits = nnx.merge(learner.graphdefs[0], weights)(pool.features, pool.prior)
    action = sample_action(logits, keys_of(act, pool.identity))
    proposal = to_proposal(learner.config.policy, table, action, pool.problem, pool.prior)
    fitness = learner.searched(pool.problem, keys_of(search, pool.identity), proposal)
    return fitness, entropy(logits, pool.features.node_mask)
