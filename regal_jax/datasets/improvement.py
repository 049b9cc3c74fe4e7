"""Room for improvement: the filter of REGAL's synthetic data."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.checks import check_kind, check_whole, real, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan.files import cluster_document
from regal_jax.problem import Bucket, rung
from regal_jax.search import BrkgaConfig, SearchResult, Status, Stopping
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.solve import graph_keys, solve
from regal_jax.solvers.loop.batches import Share, make_batch

__all__ = ["RoomForImprovement"]

_CONFIG: Final = BrkgaConfig()
_SEED: Final = 2_020_001
"""Default seed of the filter's searches. Evaluations have small seeds. With one of theirs, the filter would
prefer graphs on which that very search had bad luck at its beginning."""

_buckets: "dict[RoomForImprovement, Bucket]" = {}
"""Filter -> smallest bucket that holds all its graphs so far, so that one program is compiled per filter."""


@dataclasses.dataclass(frozen=True)
class RoomForImprovement:
    """A filter that keeps graphs for which a longer search finds a better plan.

    A graph is kept in two cases: BRKGA exceeds the memory of the cluster with a low limit of evaluations and
    fits with a high limit, or the high limit reduces the makespan by `improvement` or more. The search is
    plain BRKGA without warm starts. With the same key, the run with the low limit is the beginning of the run
    with the high limit, so one search gives both.

    The release names neither limit. The defaults lie below and above the 5000 evaluations of the paper's
    searches. docs/ablations/training.md gives the shares of graphs kept.

    Attributes:
      low: Low limit of evaluations, at least those of a first population (100).
      high: High limit of evaluations, above `low`.
      improvement: Share of the low limit's makespan that the high limit must save; 0.2 means "20 % faster".
      cluster: Cluster on which the graphs are placed; by default the paper's two devices without a limit of
        memory, with blocking transfers at no cost.
      seed: Seed of the searches; each graph's key is derived from it and the graph's content. Choose one that
        no evaluation on the set has.

    Raises:
      ConfigError: A value is invalid.

    References:
      The README of the paper's released data: "room for improvement".
    """

    low: int = 1000
    high: int = 10_000
    improvement: float = 0.2
    cluster: Cluster = dataclasses.field(default_factory=lambda: Cluster.uniform(2, transfer="blocking"))
    seed: int = _SEED

    def __post_init__(self) -> None:
        least = _CONFIG.first_evaluations
        for name in ("low", "high"):
            value, bound = getattr(self, name), least if name == "low" else self.low + 1
            if whole(value, bound, MAX_EVALUATIONS) is None:
                raise ConfigError(
                    f"{name}: must be a whole number of evaluations, from {bound} to {MAX_EVALUATIONS}: "
                    f"{shown(value)}"
                )
            object.__setattr__(self, name, whole(value))
        if real(self.improvement, above=0, below=1) is None:
            raise ConfigError(f"improvement: must be a share between 0 and 1, got {shown(self.improvement)}")
        check_kind("cluster", self.cluster, Cluster)
        object.__setattr__(self, "seed", check_whole("seed", self.seed, 0, 2**32 - 1))

    def as_document(self) -> dict[str, Any]:
        """For a manifest: plain values."""
        cluster = self.cluster
        return {
            "low": int(self.low),
            "high": int(self.high),
            "improvement": float(self.improvement),
            "seed": int(self.seed),
            "devices": cluster.num_devices,
            **cluster_document(cluster),
        }

    def __call__(self, graphs: Sequence[ComputationGraph]) -> list[bool]:
        """Whether each graph is kept; the answer does not depend on the other graphs.

        Args:
          graphs: All are searched in one compiled call.

        Raises:
          ClusterError: The cluster cannot run a graph.
        """
        if not graphs:
            return []
        result = self._search(graphs)
        fitness = result.history_fitness[:, : len(graphs)].astype(np.float64)
        spent = result.history_evaluations[:, : len(graphs)]
        last_low = (spent <= self.low).sum(axis=0) - 1
        low, high = fitness[last_low, np.arange(len(graphs))], fitness[-1]
        # A fitness above 1 means that the plan does not fit the memory. Up to 1, it is the makespan divided
        # by a constant of the graph.
        fits = high <= 1
        better = high <= (1 - self.improvement) * low
        return (fits & ((low > 1) | better)).tolist()

    def _search(self, graphs: Sequence[ComputationGraph]) -> SearchResult:
        seen = [_buckets[self]] if self in _buckets else []
        bucket = _buckets[self] = Bucket.common([*seen, *map(Bucket.of, graphs)])
        devices = jax.devices()[: len(graphs)]
        rows = rung(-(-len(graphs) // len(devices))) * len(devices)
        share = Share(range(len(graphs)), bucket, self.cluster.num_devices, rows, devices)
        pairs = [(graph, self.cluster) for graph in graphs]
        batch = make_batch(share, pairs, [[]] * len(graphs), _CONFIG)
        key = jax.random.key(np.uint32(self.seed))
        keys = graph_keys(key, batch.graphs)
        result = solve(batch.problem, keys, Stopping(self.high), config=_CONFIG, mesh=batch.mesh)
        if Status.INTERRUPTED in result.status:
            # An unfinished search must not decide whether a graph is kept.
            raise KeyboardInterrupt
        return result
