"""`Pool`: graphs of one bucket on the device, from which training takes its batches."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.learning.mesh import AXIS, everywhere, spread
from regal_jax.learning.share import Entry, GraphShare
from regal_jax.policies import GraphFeatures, PolicyConfig, Prior, make_inputs
from regal_jax.problem import Bucket, Problem, make_problem
from regal_jax.solve import graph_identities

__all__ = ["Pool", "PoolShare", "SpreadPool", "make_pools", "rows", "spread_pool"]


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


@dataclasses.dataclass(frozen=True, eq=False)
class PoolShare:
    """The graphs of a pool that this process holds.

    Attributes:
      members: Numbers of all graphs of the pool in their set, ascending.
      entries: The same graphs.
      pool: Those of this process, in the order of the members; one row of padding if there are none.
    """

    members: list[int]
    entries: list[Entry]
    pool: Pool

    def held_by(self, process: int) -> list[int]:
        """Positions among the members of the graphs of a process."""
        return [i for i, entry in enumerate(self.entries) if entry.owner == process]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SpreadPool:
    """``G`` graphs of one bucket, spread over the devices of a mesh.

    Attributes:
      pool: ``K`` rows on each device: graphs, and copies of graphs where devices hold different numbers.
      row: ``[G]`` int32, row of each graph among those of all devices; it is on every device.
    """

    pool: Pool
    row: jax.Array

    @property
    def size(self) -> int:
        """``G``."""
        return self.row.shape[0]

    @classmethod
    def specs(cls) -> Any:
        """What of it is spread, for `on_mesh`."""
        return cls(PartitionSpec(AXIS), PartitionSpec())  # pyright: ignore[reportArgumentType]

    def chosen(self, number: jax.Array, shards: int) -> Pool:
        """Within `on_mesh`: this device's part of the graphs with these numbers.

        Args:
          number: ``[B]`` int32, the same on every device.
          shards: Number of devices, of which ``B`` is a multiple.
        """
        if shards == 1:
            return rows(self.pool, number)
        # Every device contributes the rows that it holds, as bits, and zeros for the others.
        row = jnp.take(self.row, number) - lax.axis_index(AXIS) * self.pool.size
        held = (row >= 0) & (row < self.pool.size)
        leaves, tree = jax.tree.flatten(rows(self.pool, jnp.where(held, row, 0)))
        words = [_words(leaf) for leaf in leaves]
        mine = jnp.where(held[:, None], jnp.concatenate(words, axis=1), 0)
        # Not `psum_scatter`, in which Gloo waits 30 s at most: the other processes may still compile.
        part = len(number) // shards
        sums = lax.dynamic_slice_in_dim(lax.psum(mine, AXIS), lax.axis_index(AXIS) * part, part)
        parts = jnp.split(sums, np.cumsum([word.shape[1] for word in words])[:-1].tolist(), axis=1)
        found = [_of_words(part, leaf) for part, leaf in zip(parts, leaves, strict=True)]
        return jax.tree.unflatten(tree, found)


def _words(leaf: jax.Array) -> jax.Array:
    """``[B, W]`` uint32 with the content of an array of 32 bits a number, or of truth values."""
    flat = leaf.reshape(leaf.shape[0], -1)
    return flat.astype(jnp.uint32) if flat.dtype == bool else lax.bitcast_convert_type(flat, jnp.uint32)


def _of_words(words: jax.Array, like: jax.Array) -> jax.Array:
    """The array of `_words`, shaped as ``like`` except for the number of rows."""
    shaped = words.reshape(-1, *like.shape[1:])
    return shaped.astype(bool) if like.dtype == bool else lax.bitcast_convert_type(shaped, like.dtype)


@jax.jit
def rows(tree: Any, index: jax.Array) -> Any:
    """Rows ``index`` of every array of a pytree whose leaves share their leading axis."""
    return jax.tree.map(lambda leaf: jnp.take(leaf, index, axis=0), tree)


def make_pools(
    graphs: Sequence[ComputationGraph] | GraphShare,
    cluster: Cluster | Callable[[ComputationGraph], Cluster],
    config: PolicyConfig,
    most: int,
) -> list[PoolShare]:
    """Groups graphs by bucket, merges groups until there are at most ``most``, and pads each.

    Args:
      graphs: At least one.
      cluster: Cluster on which all are placed, or a function that gives the cluster of a graph.
      config: Config of the policy.
      most: Largest number of pools; each costs a compilation, fewer cost more padding.

    Returns:
      Pools from small to large.

    Raises:
      ConfigError: There are no graphs.
      ClusterError: The cluster cannot run a graph.
      GraphError: A feature or time is out of range.
    """
    share = GraphShare.of(graphs)
    if not len(share):
        raise ConfigError("train: no graphs; give at least one for training and one for validation")
    groups: dict[Bucket, list[int]] = {}
    for i, entry in enumerate(share.entries):
        groups.setdefault(entry.bucket, []).append(i)
    pools = []
    for bucket, members in _joined(groups, most):
        chosen = [share.graphs[i] for i in members if i in share.graphs] or [_padding()]
        clusters = [cluster if isinstance(cluster, Cluster) else cluster(graph) for graph in chosen]
        features, prior = jax.device_put(make_inputs(chosen, clusters, bucket, config))
        pool = Pool(
            problem=make_problem(chosen, clusters, bucket),
            features=features,
            prior=prior,
            identity=jnp.asarray(graph_identities(chosen)),
            reference=jnp.ones(len(chosen), jnp.float32),
        )
        pools.append(PoolShare(members, [share.entries[i] for i in members], pool))
    return pools


def _padding() -> ComputationGraph:
    """A graph for a process that holds none of a pool."""
    builder = GraphBuilder("padding")
    builder.add_op("op", runtime=1.0)
    return builder.build()


def spread_pool(share: PoolShare, mesh: Mesh) -> SpreadPool:
    """The pool of which every process holds a share, on the devices of the mesh."""
    here = len(mesh.local_devices)
    held = [share.held_by(process) for process in range(mesh.size // here)]
    each = max(1, *(-(-len(theirs) // here) for theirs in held))
    row = np.zeros(len(share.members), np.int32)
    for process, theirs in enumerate(held):
        row[theirs] = process * here * each + np.arange(len(theirs))
    pool = share.pool
    if pool.size != here * each:
        pool = rows(pool, jnp.arange(here * each, dtype=jnp.int32) % pool.size)
    return SpreadPool(spread(pool, mesh), everywhere(row, mesh))


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
