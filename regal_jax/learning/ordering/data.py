"""Batches of graphs to order: fresh layered ones, and those of sets."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.datasets.layered import layered_graph
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.orders import lpmf_order
from regal_jax.learning.ordering.config import OrderDataConfig
from regal_jax.ordering import OrderInputs, TopoformerConfig, make_order_inputs
from regal_jax.problem import Bucket, Problem, make_problem
from regal_jax.solve import graph_identities

__all__ = ["OrderBatch", "OrderSource", "make_batch"]

_CLUSTER: Final = Cluster.uniform(1, transfer="free")
_VALIDATION: Final = 1
"""Of layered graphs, what the seeds of those to validate on have where others have 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OrderBatch:
    """``B`` graphs to order.

    Attributes:
      problem: The graphs, on one device.
      inputs: What the network reads of them.
      identity: ``[B, 2]`` uint32, what their keys are made from.
      order: ``[B, N]`` int32, the reference: that of least peak memory first.
      unit: ``[B]`` float32, memory units: the graph's bytes over its ops.
    """

    problem: Problem
    inputs: OrderInputs
    identity: jax.Array
    order: jax.Array
    unit: jax.Array

    @property
    def size(self) -> int:
        """``B``."""
        return self.identity.shape[0]


def make_batch(
    graphs: Sequence[ComputationGraph], config: TopoformerConfig, bucket: Bucket | None = None
) -> OrderBatch:
    """A batch on the host's side of the door: the arrays of the problem are on the device.

    Args:
      graphs: ``B``, at least one.
      config: Of the network.
      bucket: Padded sizes; ``None`` for the ones that suit the graphs.

    Raises:
      ConfigError: No graph, or a bucket too small.
    """
    bucket = bucket or _bucket(graphs)
    problem = make_problem(graphs, _CLUSTER, bucket)
    order = np.tile(np.arange(bucket.ops, dtype=np.int32), (len(graphs), 1))
    for row, graph in zip(order, graphs, strict=True):
        row[: graph.num_ops] = lpmf_order(graph)
    ops = np.array([graph.num_ops for graph in graphs], np.float32)
    arrays: Any = (graph_identities(graphs), order, np.asarray(problem.total_size) / ops)
    return OrderBatch(problem, make_order_inputs(graphs, config, bucket.ops), *jax.device_put(arrays))


def _bucket(graphs: Sequence[ComputationGraph]) -> Bucket:
    """Few sizes, and no op more than there is: attention costs the square of the ops, edges cost little."""
    exact = Bucket.common([Bucket.exact(graph) for graph in graphs])
    unit = 4 * exact.ops
    return Bucket(
        ops=exact.ops,
        tensors=exact.ops * -(-exact.tensors // exact.ops),
        edges=unit * -(-exact.edges // unit),
        controls=unit * -(-exact.controls // unit),
    )


@dataclasses.dataclass(frozen=True, eq=False)
class OrderSource:
    """The graphs of a run: what a step gets depends on the seed and the step alone.

    Attributes:
      data: Settings.
      model: Of the network.
      seed: Of the run.
      graphs: Those of the sets to train on.
      held_out: Those of the sets to validate on.
    """

    data: OrderDataConfig
    model: TopoformerConfig
    seed: int
    graphs: Sequence[ComputationGraph] = ()
    held_out: Sequence[ComputationGraph] = ()

    @property
    def num_pools(self) -> int:
        """Sizes of layered graphs, and groups of graphs of sets of alike sizes."""
        return len(self.data.ops) + len(self._groups)

    @property
    def _groups(self) -> list[list[int]]:
        """Graphs of the sets by their padded number of ops."""
        groups: dict[int, list[int]] = {}
        for i, graph in enumerate(self.graphs):
            groups.setdefault(Bucket.of(graph).ops, []).append(i)
        return [groups[size] for size in sorted(groups)]

    def pool(self, step: int) -> int:
        """Which of the pools the step takes its graphs from."""
        rng = np.random.default_rng([self.seed, 0, step, 0])
        sizes = len(self.data.ops)
        if self.graphs and rng.random() < self.data.share:
            counts = np.array([len(group) for group in self._groups], np.float64)
            return sizes + int(rng.choice(len(counts), p=counts / counts.sum()))
        return int(rng.integers(sizes))

    def batch(self, step: int, size: int) -> OrderBatch:
        """The graphs of a step."""
        pool, sizes = self.pool(step), len(self.data.ops)
        if pool < sizes:
            seeds = ([self.seed, 0, step, 1 + i] for i in range(size))
            n = self.data.ops[pool]
            return make_batch([layered_graph(np.random.default_rng(s), n) for s in seeds], self.model)
        group = self._groups[pool - sizes]
        rng = np.random.default_rng([self.seed, 0, step, 1])
        chosen = [self.graphs[group[i]] for i in rng.integers(len(group), size=size)]
        bucket = Bucket.common([Bucket.of(self.graphs[i]) for i in group])
        return make_batch(chosen, self.model, bucket)

    def validation(self, size: int) -> list[OrderBatch]:
        """All graphs to validate on, in batches of ``size``; a last one may have fewer."""
        batches = []
        for n in self.data.ops:
            seeds = ([self.seed, _VALIDATION, n, i] for i in range(self.data.validation_graphs))
            batches.append([layered_graph(np.random.default_rng(s), n) for s in seeds])
        groups: dict[Bucket, list[ComputationGraph]] = {}
        for graph in self.held_out:
            groups.setdefault(Bucket.of(graph), []).append(graph)
        batches += groups.values()
        return [
            make_batch(graphs[first : first + size], self.model, _bucket(graphs))
            for graphs in batches
            for first in range(0, len(graphs), size)
        ]
