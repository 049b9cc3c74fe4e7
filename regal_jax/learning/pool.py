"""`Pool`: graphs of one bucket on the device, from which training takes its batches."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.policies import GraphFeatures, PolicyConfig, Prior, make_inputs
from regal_jax.problem import Bucket, Problem, make_problem
from regal_jax.solve import graph_identities

__all__ = ["Pool", "make_pools", "rows"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Pool:
    """``G`` graphs of one bucket.

    Attributes:
      problem: ``G`` graphs.
      features: Features of the same graphs.
      prior: Priors of the same graphs.
      identity: ``[G, 2]`` uint32, from which their keys are derived.
      reference: ``[G]`` float32, mean fitness of uniform searches; ones until these have run.
    """

    problem: Problem
    features: GraphFeatures
    prior: Prior
    identity: jax.Array
    reference: jax.Array

    @property
    def size(self) -> int:
        """``G``."""
        return self.identity.shape[0]


@jax.jit
def rows(tree: Any, index: jax.Array) -> Any:
    """Rows ``index`` of every array of a pytree whose leaves share their leading axis."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), tree)


def make_pools(
    graphs: Sequence[ComputationGraph],
    cluster: Cluster,
    config: PolicyConfig,
    most: int,
) -> list[tuple[list[int], Pool]]:
    """Groups graphs by bucket, merges groups until there are at most ``most``, and pads each.

    Args:
      graphs: At least one.
      cluster: Cluster on which all are placed.
      config: Config of the policy.
      most: Largest number of pools; each costs a compilation, fewer cost more padding.

    Returns:
      Pools from small to large, each with the indices of its graphs.

    Raises:
      ConfigError: There are no graphs.
      ClusterError: The cluster cannot run a graph.
      GraphError: A feature or time is out of range.
    """
    if not graphs:
        raise ConfigError("train: no graphs; give at least one for training and one for validation")
    groups: dict[Bucket, list[int]] = {}
    for i, graph in enumerate(graphs):
        groups.setdefault(Bucket.of(graph), []).append(i)
    pools = []
    for bucket, members in _joined(groups, most):
        chosen = [graphs[i] for i in members]
        features, prior = jax.device_put(make_inputs(chosen, cluster, bucket, config))
        pool = Pool(
            problem=make_problem(chosen, cluster, bucket),
            features=features,
            prior=prior,
            identity=jnp.asarray(graph_identities(chosen)),
            reference=jnp.ones(len(chosen), jnp.float32),
        )
        pools.append((members, pool))
    return pools


def _joined(groups: dict[Bucket, list[int]], most: int) -> list[tuple[Bucket, list[int]]]:
    """At most ``most`` groups, by repeatedly merging the two neighbours whose union costs least."""
    joined = sorted(groups.items(), key=lambda group: dataclasses.astuple(group[0]))
    while len(joined) > most:
        pairs = [_join(*pair) for pair in itertools.pairwise(joined)]
        costs = [
            _cells(new) - _cells(a) - _cells(b) for new, a, b in zip(pairs, joined, joined[1:], strict=False)
        ]
        best = int(np.argmin(costs))
        joined[best : best + 2] = [pairs[best]]
    return joined


def _join(a: tuple[Bucket, list[int]], b: tuple[Bucket, list[int]]) -> tuple[Bucket, list[int]]:
    return Bucket.common([a[0], b[0]]), sorted(a[1] + b[1])


def _cells(group: tuple[Bucket, list[int]]) -> int:
    bucket, members = group
    return sum(dataclasses.astuple(bucket)) * len(members)
