"""Validation of a policy on held-out graphs."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from regal_jax.learning.pool import Pool, rows
from regal_jax.learning.step import Learner
from regal_jax.policies import entropy, sample_action, to_proposal
from regal_jax.programs import program
from regal_jax.solve import keys_of, solve_traced

__all__ = ["Validation", "validate"]

_CHUNK = 64


class Validation(NamedTuple):
    """Metrics on held-out graphs.

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


def validate(learner: Learner, weights: Any, pools: Sequence[Pool], key: jax.Array) -> Validation:
    """Metrics of one search per graph with one action each, always with the same random numbers.

    Args:
      learner: Static part of a step.
      weights: Weights of the policy.
      pools: Pools with references.
      key: Typed, consumed.
    """
    saved, bits = [], []
    for pool in pools:
        width = min(_CHUNK, pool.size)
        for first in range(0, pool.size, width):
            members = np.arange(first, first + width) % pool.size
            chunk = rows(pool, jnp.asarray(members, dtype=jnp.int32))
            fitness, nats = _search(learner, weights, chunk, learner.table, key)
            count = min(width, pool.size - first)
            reference = np.asarray(chunk.reference)
            ratio = np.where(reference > 0, np.asarray(fitness) / np.where(reference > 0, reference, 1), 1)
            saved.append(1 - ratio[:count])
            bits.append(np.asarray(nats)[:count])
    shares = np.concatenate(saved).astype(np.float64)
    return Validation(
        improvement=float(shares.mean()),
        matched=float((shares >= 0).mean()),
        worst=float(shares.min()),
        best=float(shares.max()),
        entropy=float(np.concatenate(bits).mean()),
    )


@program(static=(0,))
def _search(
    learner: Learner, weights: Any, pool: Pool, table: jax.Array, key: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Fitness and entropy, ``[G]`` each."""
    config = learner.config
    act, search = jax.random.split(key)
    logits = nnx.merge(learner.graphdefs[0], weights)(pool.features, pool.prior)
    action = sample_action(logits, keys_of(act, pool.identity))
    found = solve_traced(
        pool.problem,
        keys_of(search, pool.identity),
        config.task.evaluations,
        objective=config.task.objective,
        proposal=to_proposal(config.policy, table, action, pool.problem, pool.prior),
        config=config.search,
        implementation=learner.implementation,
    )
    return found.fitness, entropy(logits, pool.features.node_mask)
