"""Inputs of a policy: features of graphs and its prior, computed on the host."""

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind, counted
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import counting
from regal_jax.policies.choices import Balance, Cut
from regal_jax.policies.config import FeatureConfig, PolicyConfig
from regal_jax.policies.features import GraphFeatures, features_of
from regal_jax.policies.measured import Measured, measure
from regal_jax.policies.priors import Prior
from regal_jax.problem import Bucket
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["make_features", "make_inputs", "make_prior"]

_CUTS: Final = (Cut.ALONG, Cut.ACROSS)

_Graphs = Sequence[ComputationGraph]
_Clusters = Cluster | Sequence[Cluster]


@interruptible()
def make_inputs(
    graphs: _Graphs, clusters: _Clusters, bucket: Bucket | None, config: PolicyConfig
) -> tuple[GraphFeatures, Prior]:
    """Computes the features of graphs and the prior of a policy for them, as NumPy arrays.

    Args:
      graphs: ``B`` graphs, at least one.
      clusters: One for all graphs, or one per graph, each with ``config.num_devices`` devices.
      bucket: Padded sizes; ``None`` for the common bucket of the graphs.
      config: Config of the policy.

    Raises:
      ConfigError: There is no graph, the bucket is too small, a cluster has another number of devices, or an
        argument is of another kind.
      ClusterError: A cluster does not fit its graph.
      GraphError: A feature is not finite.

    Examples:
      >>> from regal_jax import Cluster
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.policies import default_policy, make_inputs
      >>> policy = default_policy("makespan", 2)
      >>> cluster = Cluster.uniform(2, transfer="blocking")
      >>> features, prior = make_inputs([generate("chain", 3, 0)], cluster, None, policy.config)
      >>> prior.order[0, :3].tolist()
      [0.8333333134651184, 0.5, 0.1666666716337204]
    """
    check_kind("config", config, PolicyConfig)
    batch = _Batch(graphs, clusters, bucket, config.num_devices)
    features, priors = _empty_features(batch, config.feature_config), _empty_prior(batch, config)

    def one(b: int, measured: Measured) -> None:
        _fill(features, b, features_of(measured, config.feature_config))
        check_interrupt()
        _fill(priors, b, config.maker.arrays(measured, config.placements))

    batch.each(config.feature_config.balance, config.feature_config.cuts, one)
    return GraphFeatures(**features), Prior(**priors)


@interruptible()
def make_features(
    graphs: _Graphs, clusters: _Clusters, bucket: Bucket | None, config: FeatureConfig
) -> GraphFeatures:
    """Computes the features alone.

    Args:
      graphs: As in `make_inputs`.
      clusters: As in `make_inputs`.
      bucket: As in `make_inputs`.
      config: The features; `PolicyConfig.feature_config` for those of a policy.

    Raises:
      ConfigError: As in `make_inputs`.
      ClusterError: As in `make_inputs`.
      GraphError: A feature is not finite.
    """
    check_kind("config", config, FeatureConfig)
    batch = _Batch(graphs, clusters, bucket, config.num_devices)
    features = _empty_features(batch, config)
    batch.each(config.balance, config.cuts, lambda b, seen: _fill(features, b, features_of(seen, config)))
    return GraphFeatures(**features)


@interruptible()
def make_prior(graphs: _Graphs, clusters: _Clusters, bucket: Bucket | None, config: PolicyConfig) -> Prior:
    """Computes the prior alone.

    Args:
      graphs: As in `make_inputs`.
      clusters: As in `make_inputs`.
      bucket: As in `make_inputs`.
      config: As in `make_inputs`.

    Raises:
      ConfigError: As in `make_inputs`.
      ClusterError: As in `make_inputs`.
      GraphError: A runtime is not finite.
    """
    check_kind("config", config, PolicyConfig)
    batch = _Batch(graphs, clusters, bucket, config.num_devices)
    priors, told = _empty_prior(batch, config), config.feature_config

    def one(b: int, measured: Measured) -> None:
        _fill(priors, b, config.maker.arrays(measured, config.placements))

    batch.each(told.balance, told.cuts, one)
    return Prior(**priors)


class _Batch:
    """Graphs with their clusters and padded sizes."""

    def __init__(self, graphs: _Graphs, clusters: _Clusters, bucket: Bucket | None, num_devices: int) -> None:
        check_kind("graphs", graphs, Sequence)
        if not graphs:
            raise ConfigError("policy inputs: no graphs; give at least one")
        for graph in graphs:
            check_kind("graphs", graph, ComputationGraph)
        if not isinstance(clusters, Cluster):
            check_kind("clusters", clusters, Sequence)
        each = [clusters] * len(graphs) if isinstance(clusters, Cluster) else list(clusters)
        if len(each) != len(graphs):
            raise ConfigError(
                f"policy inputs: {counted(len(graphs), 'graph')} but {counted(len(each), 'cluster')}; "
                "give one per graph"
            )
        for cluster in each:
            check_kind("cluster", cluster, Cluster)
            if cluster.num_devices != num_devices:
                raise ConfigError(
                    f"policy inputs: a cluster of {counted(cluster.num_devices, 'device')}, but the features "
                    f"are for {num_devices}; take the policy and the cluster for the same number"
                )
        self._pairs = list(zip(graphs, each, strict=True))
        self.size = len(each)
        self.bucket = Bucket.common([Bucket.of(graph) for graph in graphs]) if bucket is None else bucket

    def each(self, balance: Balance, cuts: Sequence[Cut], use: Callable[[int, Measured], None]) -> None:
        """Measures one graph after another and passes each to ``use`` with its index."""
        for b, (graph, cluster) in enumerate(self._pairs):
            check_interrupt()
            self.bucket.check_holds(graph)
            # Non-finite values raise an error later; NumPy's warnings would precede it.
            with np.errstate(over="ignore", invalid="ignore"), counting():
                use(b, measure(graph, cluster, balance, (*_CUTS, *cuts)))


def _empty_features(batch: _Batch, config: FeatureConfig) -> dict[str, Any]:
    """The fields of `GraphFeatures`, filled with padding."""
    b, n, e = batch.size, batch.bucket.ops, batch.bucket.edges + batch.bucket.controls
    return {
        "nodes": np.zeros((b, n, len(config.node_names)), np.float32),
        "edges": np.zeros((b, e, len(config.edge_names)), np.float32),
        "senders": np.full((b, e), n - 1, np.int32),
        "receivers": np.full((b, e), n - 1, np.int32),
        "node_mask": np.zeros((b, n), np.bool_),
        "edge_mask": np.zeros((b, e), np.bool_),
        "order": np.tile(np.arange(n, dtype=np.int32), (b, 1)),
    }


def _empty_prior(batch: _Batch, config: PolicyConfig) -> dict[str, Any]:
    """The fields of `Prior` that the policy has, filled with padding."""
    return {
        name: np.zeros((batch.size, batch.bucket.ops, *rest), np.float32)
        for name, rest in config.prior_shapes.items()
    }


def _fill(arrays: dict[str, Any], row: int, found: dict[str, np.ndarray]) -> None:
    for name, array in found.items():
        arrays[name][row, : len(array)] = array
