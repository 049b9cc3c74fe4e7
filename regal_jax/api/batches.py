"""Which graphs are searched in one compiled call."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from regal_jax.encoding import encode
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.plan import ROUNDING, Objective, Plan, lower_bound
from regal_jax.problem import Bucket, Problem, make_problem, memory_unit, rung
from regal_jax.search import AnnealingConfig, BrkgaConfig, WarmStart

__all__ = ["Batch", "Share", "layout", "make_batch", "share_out"]

_MOST_GRAPHS: Final = 256
_MOST_BYTES: Final = 2**36
"""A single graph whose search would take more than this is refused."""
_BYTES: Final = 2**30
"""What the populations and simulator states of one batch may take, roughly."""


@dataclasses.dataclass(frozen=True, eq=False)
class Share:
    """Graphs that one call will search.

    Attributes:
      members: Where they stand in the caller's list.
      bucket: Of all of them.
      most: Graphs in a full batch of their group.
      devices: To spread over.
    """

    members: Sequence[int]
    bucket: Bucket
    most: int
    devices: Sequence[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Graphs of one bucket, ready for the device.

    Attributes:
      members: Where the graphs stand in the caller's list. The batch may have more rows than members:
        copies of the last one that fill it up to a size for which a program is kept.
      graphs: ``[B]``.
      clusters: ``[B]``.
      known: ``[B]``, plans of heuristics, best first.
      problem: ``B`` graphs.
      warm: The known plans as genes.
      mesh: Devices to spread over, if there are several.
    """

    members: Sequence[int]
    graphs: Sequence[ComputationGraph]
    clusters: Sequence[Cluster]
    known: Sequence[Sequence[Plan]]
    problem: Problem
    warm: WarmStart | None
    mesh: Mesh | None

    def scale(self, objective: Objective) -> np.ndarray:
        """``[B]`` float64: the objective of a feasible plan is its fitness times this."""
        if objective is Objective.MAKESPAN:
            return np.asarray(self.problem.upper_bound, dtype=np.float64)
        units = [memory_unit(graph) for graph in self.graphs]
        return np.asarray(self.problem.total_size, dtype=np.float64) * units

    def goals(self, target: float | None, objective: Objective) -> np.ndarray:
        """``[B]`` the fitness that ends each search: of ``target``, or of what no plan can beat."""
        goal = np.array(
            [
                plans[0].lower_bound if plans else lower_bound(graph, cluster, objective)
                for plans, graph, cluster in zip(self.known, self.graphs, self.clusters, strict=True)
            ]
        )
        # On one device every plan that fits takes as long as any other, however the sum is rounded.
        same = objective is Objective.MAKESPAN and self.problem.num_devices == 1
        bounds = np.ones(len(goal)) if same else self.relative(goal, objective)
        return bounds if target is None else np.maximum(bounds, self.relative(target, objective))

    def relative(self, target: float | np.ndarray, objective: Objective) -> np.ndarray:
        """``[B]`` the fitness of a plan whose objective is ``target``, give or take float32 rounding."""
        scale = self.scale(objective)
        return np.minimum(target / np.where(scale > 0, scale, 1) * (1 + ROUNDING), 1)


def share_out(
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    config: BrkgaConfig | AnnealingConfig,
    batch_size: int | None,
    devices: Sequence[Any] | None,
) -> list[Share]:
    """Groups graphs by what one compiled program needs in common, and cuts the groups into batches.

    Raises:
      ConfigError: A batch size or devices that cannot be, or a graph too large to be searched.
    """
    if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
        raise ConfigError(f"batch_size: must be at least 1, got {batch_size!r}")
    groups: dict[tuple[Bucket, int, bool, bool], list[int]] = {}
    for i, (graph, cluster) in enumerate(pairs):
        blocking = cluster.transfer is TransferModel.BLOCKING
        unlimited = bool(np.isinf(cluster.memory).all())
        groups.setdefault((Bucket.of(graph), cluster.num_devices, blocking, unlimited), []).append(i)
    devices = jax.devices() if devices is None else devices
    if not len(devices):
        raise ConfigError("devices: got none; name at least one JAX device, or leave it out")
    shares = []
    for (bucket, _, _, _), members in groups.items():
        most = _most_graphs(*pairs[members[0]], bucket, config)
        most = batch_size or most
        shares += [
            Share(members[first : first + most], bucket, most, devices)
            for first in range(0, len(members), most)
        ]
    return shares


def _most_graphs(
    graph: ComputationGraph, cluster: Cluster, bucket: Bucket, config: BrkgaConfig | AnnealingConfig
) -> int:
    """How many graphs like this one may be searched in one call."""
    devices, blocking = cluster.num_devices, cluster.transfer is TransferModel.BLOCKING
    genes = bucket.ops * (devices + 1) + bucket.tensors * devices * blocking
    events = bucket.ops + bucket.tensors * devices * blocking
    individuals = config.first_evaluations
    each = individuals * (8 * genes + 16 * events + 16 * bucket.ops)
    if each > _MOST_BYTES:
        raise ConfigError(
            f"graph {graph.name!r}: {graph.num_ops} ops, {devices} devices and a population of {individuals} "
            f"need about {each / 2**30:.0f} GiB; use fewer devices or a smaller population"
        )
    return int(np.clip(_BYTES // each, 1, _MOST_GRAPHS))


def layout(members: int, most: int, devices: int) -> tuple[int, int]:
    """Rows of a batch of ``members`` graphs, and how many of ``devices`` it is spread over.

    Every device gets the same number of rows, one of the rungs; then as few devices as that takes, for
    rows beyond the members are copies: less than a third of all.

    Args:
      members: Graphs, at most ``most``.
      most: Graphs in a full batch.
      devices: That there are.
    """
    shards = min(devices, members)
    each = min(rung(-(-members // shards)), -(-most // shards))
    shards = -(-members // each)
    return each * shards, shards


def make_batch(
    share: Share,
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    known: Sequence[Sequence[Plan]],
    config: BrkgaConfig | AnnealingConfig,
) -> Batch:
    """Pads the graphs of ``share`` and puts them on the device, with ``known`` plans as genes."""
    members, devices = share.members, share.devices
    rows, shards = layout(len(members), share.most, len(devices))
    index = [*members, *[members[-1]] * (rows - len(members))]
    graphs, clusters = [pairs[i][0] for i in index], [pairs[i][1] for i in index]
    plans = [known[i] for i in index]
    return Batch(
        members=members,
        graphs=graphs,
        clusters=clusters,
        known=plans,
        problem=make_problem(graphs, clusters, share.bucket),
        warm=_warm(graphs, clusters, plans, share.bucket, config),
        mesh=Mesh(np.array(devices[:shards]), ("graphs",)) if shards > 1 else None,
    )


def _warm(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    plans: Sequence[Sequence[Plan]],
    bucket: Bucket,
    config: BrkgaConfig | AnnealingConfig,
) -> WarmStart | None:
    plans = [each[: config.first_evaluations] for each in plans]
    most = max(map(len, plans))
    if most == 0:
        return None
    rows = []
    for graph, cluster, each in zip(graphs, clusters, plans, strict=True):
        genes = [encode(graph, cluster, p.placement, p.event_ids(graph), bucket) for p in each]
        genes += genes[-1:] * (most - len(genes))
        rows.append(jax.tree.map(lambda *leaves: np.stack(leaves), *genes))
    count = jnp.asarray([len(each) for each in plans], dtype=jnp.int32)
    return WarmStart(jax.tree.map(lambda *leaves: jnp.asarray(np.stack(leaves)), *rows), count)
