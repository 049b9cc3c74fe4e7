"""Batches: the graphs that are searched in one compiled call."""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh

from regal_jax.checks import counted, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel
from regal_jax.plan import ROUNDING, Objective, Plan, lower_bound
from regal_jax.problem import Bucket, Problem, make_problem, memory_unit, rung
from regal_jax.runtime.compiling import usable
from regal_jax.runtime.memory import check_memory, machine_memory
from regal_jax.search import AnnealingConfig, BrkgaConfig, WarmStart
from regal_jax.solve import CHROMOSOME, Encoding

__all__ = ["Batch", "Share", "check_batches", "cut", "is_alone", "make_batch", "narrowed", "share_out"]

_MOST_GRAPHS: Final = 256
_MOST_BYTES: Final = 2**36
"""A single graph whose search would take more bytes than this, or than the machine has, is refused."""
_BYTES: Final = 2**30
"""Approximate limit in bytes for the populations and simulator states of one batch."""
_ROWS: Final = (64, 1)
"""Numbers of rows of a batch on a CPU: few, since each is a program of its own. Batches gain little there
(docs/ablations/compiled_code.md)."""
_ROWS_ON_ACCELERATORS: Final = (256, 192, 128, 96, 64, 48, 32, 24, 16, 12, 8, 6, 4, 3, 2, 1)
"""Numbers of rows on an accelerator, where a call takes as long for few rows as for many."""
_SMALL: Final = 512
"""Largest number of padded ops and tensors of graphs that share a bucket on a CPU, whatever their sizes."""
_PRECISION: Final = 2.0**-22
"""Relative rounding of a fitness of peak memory: two conversions to float32, a division, and some reserve.
A search cannot tell peaks apart that differ by less."""
_PLANS: Final = 16
"""Warm starts are padded to multiples of this number; heuristics make about a dozen plans."""


@dataclasses.dataclass(frozen=True, eq=False)
class Share:
    """Graphs that one call will search.

    Attributes:
      members: Their indices in the caller's list.
      bucket: Their common bucket.
      width: ``D``, devices of their clusters and padding.
      rows: Rows of the batch, at least the number of members.
      devices: JAX devices to spread the batch over.
    """

    members: Sequence[int]
    bucket: Bucket
    width: int
    rows: int
    devices: Sequence[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """Graphs of one bucket, ready for the device.

    Attributes:
      members: Indices of the graphs in the caller's list. The batch may have more rows than members: copies
        of the last one fill it up to one of few sizes.
      graphs: ``[B]``.
      clusters: ``[B]``.
      known: ``[B]``, plans of heuristics, best first.
      problem: ``B`` graphs.
      encoding: What genes mean.
      warm: The known plans as genes.
      mesh: Devices to spread over, if there are several.
    """

    members: Sequence[int]
    graphs: Sequence[ComputationGraph]
    clusters: Sequence[Cluster]
    known: Sequence[Sequence[Plan]]
    problem: Problem
    encoding: Encoding
    warm: WarmStart | None
    mesh: Mesh | None

    def scale(self, objective: Objective) -> np.ndarray:
        """``[B]`` float64: the objective of a feasible plan is its fitness times this."""
        if objective is Objective.MAKESPAN:
            return np.asarray(self.problem.upper_bound, dtype=np.float64)
        units = [memory_unit(graph) for graph in self.graphs]
        return np.asarray(self.problem.total_size, dtype=np.float64) * units

    def goals(self, target: float | None, objective: Objective) -> np.ndarray:
        """``[B]`` the fitness that ends each search: that of ``target``, or of the lower bound."""
        goal = np.array(
            [
                plans[0].lower_bound if plans else lower_bound(graph, cluster, objective)
                for plans, graph, cluster in zip(self.known, self.graphs, self.clusters, strict=True)
            ]
        )
        # On one device every plan that fits has the same makespan, up to rounding.
        same = objective is Objective.MAKESPAN and self.problem.num_devices == 1
        bounds = np.ones(len(goal)) if same else self.relative(goal, objective)
        return bounds if target is None else np.maximum(bounds, self.relative(target, objective))

    def relative(self, target: float | np.ndarray, objective: Objective) -> np.ndarray:
        """``[B]`` the fitness of a plan whose objective is ``target``, up to float32 rounding."""
        scale, slack = self.scale(objective), ROUNDING
        if objective is Objective.PEAK_MEMORY:
            target, slack = np.floor(target), _PRECISION
        return np.minimum(target / np.where(scale > 0, scale, 1) * (1 + slack), 1)


def check_batches(batch_size: int | None, devices: Sequence[Any] | None) -> None:
    """Checks these arguments of `share_out`.

    Raises:
      ConfigError: The batch size is not a positive whole number, or these are no different devices.
    """
    if batch_size is not None and whole(batch_size, 1) is None:
        raise ConfigError(f"batch_size: must be at least 1, got {shown(batch_size)}")
    if devices is None:
        return
    if not isinstance(devices, Sequence):
        raise ConfigError(f"devices: give a list of JAX devices, got {type(devices).__name__}")
    if not len(devices):
        raise ConfigError("devices: got none; name at least one JAX device, or leave it out")
    if not all(hasattr(device, "platform") for device in devices) or len({*map(id, devices)}) < len(devices):
        raise ConfigError(f"devices: give a list of different JAX devices, got {shown(devices)}")


def share_out(
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    config: BrkgaConfig | AnnealingConfig,
    batch_size: int | None,
    devices: Sequence[Any] | None,
    guided: Collection[int] = (),
) -> list[Share]:
    """Groups graphs that one compiled program can search, and divides the groups into batches.

    Args:
      pairs: Graphs and their clusters.
      config: Settings of the search that needs most memory.
      batch_size: Largest number of graphs in one call.
      devices: JAX devices to spread over.
      guided: Numbers of devices for which there is a policy; these are not padded, since a policy is for one
        number.

    Raises:
      ConfigError: An impossible batch size or devices, or a graph too large to be searched.
    """
    check_batches(batch_size, devices)
    devices = jax.local_devices() if devices is None else devices
    groups: dict[tuple[Bucket, int, bool, bool, bool], list[int]] = {}
    for bucket, (i, (_, cluster)) in zip(_buckets(pairs, devices), enumerate(pairs), strict=True):
        blocking = cluster.transfer is TransferModel.BLOCKING
        unlimited = bool(np.isinf(cluster.memory).all())
        policy = cluster.num_devices in guided
        width = cluster.num_devices if policy else rung(cluster.num_devices)
        groups.setdefault((bucket, width, blocking, unlimited, policy), []).append(i)
    shares = []
    for (bucket, width, blocking, _, _), members in groups.items():
        graph = pairs[members[0]][0]
        limit = _limit(devices)
        fits = _most_graphs(graph, width, blocking, bucket, config, limit)
        most = min(fits, whole(batch_size) or _MOST_GRAPHS)
        shares += _cut_up(Share(members, bucket, width, most, devices))
    return shares


def _buckets(pairs: Sequence[tuple[ComputationGraph, Cluster]], devices: Sequence[Any]) -> list[Bucket]:
    """The bucket of each graph; small graphs have one in common where padding costs little.

    That is on a CPU with compiled loops, which pass over what is padded.
    """
    buckets = [Bucket.of(graph) for graph, _ in pairs]
    small = [bucket for bucket in buckets if bucket.tensors <= _SMALL]
    if not small or not _on_cpu(devices) or not usable():
        return buckets
    common = Bucket.common(small)
    return [common if bucket.tensors <= _SMALL else bucket for bucket in buckets]


def narrowed(share: Share, members: Sequence[int]) -> list[Share]:
    """``share`` for some of its members only, in one or several calls.

    On a CPU every row costs time, so there are only as many as these members need. An accelerator takes as
    long for few rows as for many, so the number of rows, and with it the program, stays the same.
    """
    some = dataclasses.replace(share, members=members)
    return _cut_up(some) if _on_cpu(share.devices) else [some]


def is_alone(share: Share) -> bool:
    """Whether the graphs are searched on one CPU device, where calls with more of them gain little."""
    return _on_cpu(share.devices) and len(share.devices) == 1


def _cut_up(share: Share) -> list[Share]:
    """Divides the members of ``share`` into calls with at most its rows, on at most its devices."""
    sizes = _ROWS if _on_cpu(share.devices) else _ROWS_ON_ACCELERATORS
    shares, first = [], 0
    for count, rows, shards in cut(len(share.members), share.rows, len(share.devices), sizes):
        members, devices = share.members[first : first + count], share.devices[:shards]
        shares.append(dataclasses.replace(share, members=members, rows=rows, devices=devices))
        first += count
    return shares


def _limit(devices: Sequence[Any]) -> int:
    """Bytes above which the search of a single graph is refused."""
    memory = machine_memory() if _on_cpu(devices) else None
    return _MOST_BYTES if memory is None else min(_MOST_BYTES, memory)


def _on_cpu(devices: Sequence[Any]) -> bool:
    return devices[0].platform == "cpu"


def _most_graphs(
    graph: ComputationGraph,
    devices: int,
    blocking: bool,
    bucket: Bucket,
    config: BrkgaConfig | AnnealingConfig,
    limit: int,
) -> int:
    """Largest number of graphs of this size in one call; raises if one needs more than ``limit`` bytes."""
    genes = bucket.ops * (devices + 1) + bucket.tensors * devices * blocking
    events = bucket.ops + bucket.tensors * devices * blocking
    individuals = config.first_evaluations
    each = individuals * (8 * genes + 16 * events + 16 * bucket.ops)
    check_memory(
        f"graph {graph.name!r}: {graph.num_ops} ops, {counted(devices, 'device')} and a population of "
        f"{individuals}",
        each,
        limit,
        "use fewer devices or a smaller population, or method='list-search', which has none",
    )
    return int(np.clip(_BYTES // each, 1, _MOST_GRAPHS))


def cut(members: int, most: int, devices: int, sizes: Sequence[int] = _ROWS) -> list[tuple[int, int, int]]:
    """How a group of ``members`` graphs is cut into calls: ``(graphs, rows, shards)`` of each.

    Every shard has the same number of rows. There are few numbers of rows and of shards, since each
    combination is a program of its own. Rows beyond the graphs are copies, less than a third of all.

    Args:
      members: Number of graphs.
      most: Largest number of rows in a call.
      devices: Number of devices.
      sizes: Numbers of rows that a shard may have, falling.
    """
    calls = []
    while members:
        shards = _largest([devices, *(1 << i for i in reversed(range(devices.bit_length())))], members, most)
        each = _largest(sizes, members, most, shards)
        count = min(members, each * shards)
        calls.append((count, each * shards, shards))
        members -= count
    return calls


def _largest(choices: Sequence[int], members: int, most: int, unit: int = 1) -> int:
    """The first of the falling ``choices``, times ``unit``, of which the graphs fill more than two thirds."""
    fits = (n for n in choices if n * unit <= most and 2 * n * unit < 3 * members)
    return next(fits, 1)


def make_batch(
    share: Share,
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    known: Sequence[Sequence[Plan]],
    config: BrkgaConfig | AnnealingConfig,
    encoding: Encoding = CHROMOSOME,
    objective: Objective = Objective.MAKESPAN,
) -> Batch:
    """Pads the graphs of ``share`` and puts them on the device, with ``known`` plans as genes."""
    members, devices = share.members, share.devices
    index = [*members, *[members[-1]] * (share.rows - len(members))]
    graphs, clusters = [pairs[i][0] for i in index], [pairs[i][1] for i in index]
    plans = [known[i] for i in index]
    return Batch(
        members=members,
        graphs=graphs,
        clusters=clusters,
        known=plans,
        problem=make_problem(graphs, clusters, share.bucket, share.width),
        encoding=encoding,
        warm=_warm(graphs, clusters, plans, share, config, encoding, objective),
        mesh=Mesh(np.array(devices), ("graphs",)) if len(devices) > 1 else None,
    )


def _warm(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    plans: Sequence[Sequence[Plan]],
    share: Share,
    config: BrkgaConfig | AnnealingConfig,
    encoding: Encoding,
    objective: Objective,
) -> WarmStart | None:
    size, limit = (share.bucket, share.width), config.first_evaluations
    known = [
        [
            genes
            for plan in each[:limit]
            for genes in encoding.encode(
                graph, cluster, plan.placement, plan.event_ids(graph), *size, objective
            )
        ][:limit]
        for graph, cluster, each in zip(graphs, clusters, plans, strict=True)
    ]
    most = max(map(len, known))
    if most == 0:
        return None
    # Few widths mean few programs.
    most = min(-(-most // _PLANS) * _PLANS, limit)
    rows = []
    for genes in known:
        filled = genes + (genes or next(filter(None, known)))[-1:] * (most - len(genes))
        rows.append(jax.tree.map(lambda *leaves: np.stack(leaves), *filled))
    genes = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    return WarmStart(*jax.device_put((genes, np.array([len(each) for each in known], np.int32))))
