"""Batches of graphs to order: fresh layered ones, and those of sets."""

import dataclasses
import functools
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

__all__ = ["ONE_DEVICE", "OrderBatch", "OrderSource", "host_batch", "make_batch"]

ONE_DEVICE: Final = Cluster.uniform(1, transfer="free")
"""The cluster on which orders are made."""
_VALIDATION: Final = 1
"""Part of the seeds of layered validation graphs; training graphs have 0 there."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OrderBatch:
    """``B`` graphs to order.

    Attributes:
      problem: The graphs, on one device.
      inputs: Inputs of the network.
      identity: ``[B, 2]`` uint32, from which their keys are derived.
      order: ``[B, N]`` int32, the reference: the order of least peak memory first.
      unit: ``[B]`` float32, the graph's bytes divided by its ops, in memory units.
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
    graphs: Sequence[ComputationGraph],
    config: TopoformerConfig,
    bucket: Bucket | None = None,
    part: slice = slice(None),
) -> OrderBatch:
    """Makes a batch, with the problem's arrays on the device and the network's inputs on the host.

    Args:
      graphs: The graphs, at least one.
      config: Config of the network.
      bucket: Padded sizes; ``None`` for those that suit the graphs.
      part: The ``B`` rows of the batch that are made; all by default.

    Raises:
      ConfigError: There is no graph, or the bucket is too small.
    """
    bucket = bucket or _bucket(graphs)
    identities, graphs = _distinct(graph_identities(graphs))[part], graphs[part]
    problem = make_problem(graphs, ONE_DEVICE, bucket)
    order = np.tile(np.arange(bucket.ops, dtype=np.int32), (len(graphs), 1))
    for row, graph in zip(order, graphs, strict=True):
        row[: graph.num_ops] = lpmf_order(graph)
    ops = np.array([graph.num_ops for graph in graphs], np.float32)
    unit = (np.asarray(problem.total_size, np.float64) / ops).astype(np.float32)
    arrays: Any = (identities, order, unit)
    return OrderBatch(problem, make_order_inputs(graphs, config, bucket.ops), *jax.device_put(arrays))


def _distinct(identities: np.ndarray) -> np.ndarray:
    """The identities, made distinct for repeated graphs so that these get different orders."""
    seen: dict[bytes, int] = {}
    for row in identities:
        copies = seen[row.tobytes()] = seen.get(row.tobytes(), -1) + 1
        row[1] ^= np.uint32(copies)
    return identities


def _bucket(graphs: Sequence[ComputationGraph]) -> Bucket:
    """Padded sizes: ops are not padded, since attention is quadratic in them; edges cost little and are."""
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
    """The graphs of a run; the batch of a step depends only on the seed and the step.

    Attributes:
      data: Settings of the data.
      model: Config of the network.
      seed: Seed of the run.
      graphs: Graphs of the training sets.
      held_out: Graphs of the validation sets.
    """

    data: OrderDataConfig
    model: TopoformerConfig
    seed: int
    graphs: Sequence[ComputationGraph] = ()
    held_out: Sequence[ComputationGraph] = ()

    @functools.cached_property
    def _groups(self) -> list[tuple[Bucket, list[ComputationGraph]]]:
        """Graphs of the training sets, with their padded sizes."""
        return _grouped(self.graphs)

    def pool(self, step: int) -> int:
        """Number of the step's pool; sizes of layered graphs come first, then groups of sets."""
        rng = np.random.default_rng([self.seed, 0, step, 0])
        sizes = len(self.data.ops)
        if self.graphs and rng.random() < self.data.share:
            counts = np.array([len(group) for _, group in self._groups], np.float64)
            return sizes + int(rng.choice(len(counts), p=counts / counts.sum()))
        return int(rng.integers(sizes))

    def batch(self, step: int, size: int, part: slice = slice(None)) -> OrderBatch:
        """The ``part`` of the ``size`` graphs of a step; their padded sizes are those of all."""
        pool, sizes = self.pool(step), len(self.data.ops)
        if pool < sizes:
            seeds = ([self.seed, 0, step, 1 + i] for i in range(size))
            n = self.data.ops[pool]
            graphs = [layered_graph(np.random.default_rng(s), n) for s in seeds]
            return make_batch(graphs, self.model, part=part)
        bucket, group = self._groups[pool - sizes]
        rng = np.random.default_rng([self.seed, 0, step, 1])
        chosen = rng.choice(len(group), size=size, replace=len(group) < size)
        return make_batch([group[i] for i in chosen], self.model, bucket, part)

    def validation(self, size: int, index: int = 0, count: int = 1) -> list[OrderBatch]:
        """All graphs to validate on, in batches of ``size``; a last one may have fewer.

        Args:
          size: Graphs in a batch.
          index: Number of the first batch to make.
          count: One batch of so many is made.
        """
        groups: list[tuple[Bucket, list[ComputationGraph]]] = []
        for n in self.data.ops:
            seeds = ([self.seed, _VALIDATION, n, i] for i in range(self.data.validation_graphs))
            graphs = [layered_graph(np.random.default_rng(s), n) for s in seeds]
            if graphs:
                groups.append((_bucket(graphs), graphs))
        batches = [
            (graphs[first : first + size], bucket)
            for bucket, graphs in [*groups, *_grouped(self.held_out)]
            for first in range(0, len(graphs), size)
        ]
        return [make_batch(graphs, self.model, bucket) for graphs, bucket in batches[index::count]]


def host_batch(source: OrderSource, size: int, part: slice, step: int) -> OrderBatch:
    """`OrderSource.batch` with NumPy arrays."""
    return jax.device_get(source.batch(step, size, part))


def _grouped(graphs: Sequence[ComputationGraph]) -> list[tuple[Bucket, list[ComputationGraph]]]:
    """Graphs grouped by padded number of ops, each group with sizes that suit all its graphs."""
    groups: dict[int, list[ComputationGraph]] = {}
    for graph in graphs:
        groups.setdefault(Bucket.of(graph).ops, []).append(graph)
    return [(Bucket.common([Bucket.of(g) for g in groups[size]]), groups[size]) for size in sorted(groups)]
