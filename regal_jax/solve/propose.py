"""The proposals that a policy makes for the searches of graphs."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import counted
from regal_jax.encoding import Proposal, uniform_proposal
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.policies import (
    GraphFeatures,
    Policy,
    Prior,
    action_table,
    make_inputs,
    sample_action,
    to_proposal,
)
from regal_jax.policies.actions import offset_around
from regal_jax.problem import Problem
from regal_jax.programs import program

__all__ = ["check_devices", "propose", "propose_orders"]

_FOLD: Final = np.uint32(2**32 - 1)
"""The keys themselves are the search's."""
_REACH: Final = 4
_SHARE: Final = 0.5
"""Parameters of `propose_orders`, which are those of the policies that ship."""
_table = functools.lru_cache(maxsize=16)(action_table)


def propose(
    policy: Policy,
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    problem: Problem,
    keys: jax.Array,
) -> Proposal:
    """The policy's proposal for the search of each graph.

    Args:
      policy: A policy for the number of devices of the clusters.
      graphs: ``B`` graphs.
      clusters: One for all, or one per graph.
      problem: The problem of the same graphs and clusters.
      keys: ``[B]`` typed keys, those of the searches: the action is a sample, as in training, drawn with
        keys that are made from them.

    Raises:
      ConfigError: A policy for another number of devices, or a problem of other graphs.
      GraphError: A graph whose features are not finite.
    """
    config = policy.config
    check_devices(policy, problem.num_devices)
    features, prior = make_inputs(graphs, clusters, problem.bucket, config)
    return _propose(policy, features, prior, keys, _table(config), problem)


def propose_orders(orders: Sequence[np.ndarray], problem: Problem) -> Proposal:
    """Priorities near given orders: in half of the individuals every op moves by a few places at most.

    Args:
      orders: ``[N]`` ops of each graph, ``B`` of them.
      problem: The problem of the same graphs.
    """
    place = np.zeros((problem.num_graphs, problem.bucket.ops), np.float32)
    for row, order in zip(place, orders, strict=True):
        # As in the order prior of policies, priorities fall along the order.
        row[order] = (len(order) - np.arange(len(order)) - 0.5) / max(len(order), 1)
    uniform = uniform_proposal(problem)
    scale = jnp.minimum(2 * _REACH / problem.num_ops.astype(jnp.float32), 1)
    offset = offset_around(jnp.asarray(place), scale)
    return dataclasses.replace(uniform, share=_SHARE, scale=scale, offset=offset)


def check_devices(policy: Policy, num_devices: int) -> None:
    """Refuses a policy for another number of devices.

    Raises:
      ConfigError: The policy is for another number of devices.
    """
    if policy.config.num_devices != num_devices:
        raise ConfigError(
            f"policy: made for {counted(policy.config.num_devices, 'device')}, but the cluster has "
            f"{num_devices}; take one that was trained for as many"
        )


# A module is a pytree; `nnx.split` at every call would take longer than the program does for a small graph.
@program()
def _propose(
    policy: Policy,
    features: GraphFeatures,
    prior: Prior,
    keys: jax.Array,
    table: jax.Array,
    problem: Problem,
) -> Proposal:
    logits = policy(features, prior)
    action = sample_action(logits, jax.vmap(lambda key: jax.random.fold_in(key, _FOLD))(keys))
    return to_proposal(policy.config, table, action, problem, prior)
