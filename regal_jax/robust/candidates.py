"""`Candidates`: full schedules of one graph, as proposed by a source."""

import dataclasses
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

import numpy as np

from regal_jax.checks import check_kind, check_whole, shown, whole
from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel, allowed_matrix, runtime_matrix
from regal_jax.graph.arrays import all_edges
from regal_jax.plan import Plan, insert_transfers
from regal_jax.robust.diversity import Diversity, chain_successors, diversity
from regal_jax.robust.timing import start_times

__all__ = ["Candidates"]

_ARRAYS: Final = ("sequence", "devices", "start", "makespan")


@dataclasses.dataclass(frozen=True, eq=False)
class Candidates:
    """``C`` full schedules of one graph on one cluster, with their times.

    The proxy is the makespan on `cluster`.

    Attributes:
      graph: The graph.
      cluster: The cluster of the proxy.
      sequence: ``[C, N]`` int32, ops in the order in which they are scheduled: a topological order.
      devices: ``[C, N]`` int32, device of each op.
      start: ``[C, N]`` float64, start time of each op by the proxy, in the graph's time unit.
      makespan: ``[C]`` float64, makespan by the proxy, in the graph's time unit.
      source: Name of the source.
    """

    graph: ComputationGraph
    cluster: Cluster
    sequence: np.ndarray
    devices: np.ndarray
    start: np.ndarray
    makespan: np.ndarray
    source: str

    @classmethod
    def of(
        cls,
        graph: ComputationGraph,
        cluster: Cluster,
        sequence: np.ndarray,
        devices: np.ndarray,
        source: str = "",
    ) -> Self:
        """Checks schedules and computes their times.

        Args:
          graph: The graph.
          cluster: The cluster of the proxy.
          sequence: ``[C, N]`` whole numbers.
          devices: ``[C, N]`` whole numbers.
          source: Name of the source.

        Raises:
          PlanError: Arrays have another shape or type, or a schedule cannot be executed.
          ClusterError: The cluster does not fit the graph.
          ConfigError: These are no graph and no cluster.
        """
        check_kind("graph", graph, ComputationGraph)
        check_kind("cluster", cluster, Cluster)
        sequence, devices = (
            _whole_array(name, array, graph.num_ops)
            for name, array in (("sequence", sequence), ("devices", devices))
        )
        if len(sequence) != len(devices):
            raise PlanError(f"candidates: {len(sequence)} sequences but {len(devices)} rows of devices")
        _check_order(graph, sequence)
        _check_devices(graph, cluster, devices)
        start, makespan = start_times(graph, cluster, sequence, devices)
        return cls(graph, cluster, sequence, devices, start, makespan, source)

    @classmethod
    def of_plans(cls, graph: ComputationGraph, plans: Sequence[Plan], source: str = "") -> Self:
        """Candidates with the orders and devices of ``plans``.

        Args:
          graph: The graph of the plans.
          plans: At least one; the cluster is that of the first one.
          source: Name of the source.

        Raises:
          PlanError: There is no plan, or a plan is for another graph.
          ConfigError: These are no graph and no plans.
        """
        check_kind("graph", graph, ComputationGraph)
        check_kind("plans", plans, Iterable)
        plans = list(plans)
        for plan in plans:
            check_kind("plans", plan, Plan)
        if not plans:
            raise PlanError("candidates: no plans; give at least one")
        strange = next((plan for plan in plans if plan.graph_hash != graph.content_hash), None)
        if strange is not None:
            raise PlanError(f"candidates: a plan is for {strange.graph_name!r}, not for {graph.name!r}")
        sequence = np.stack([plan.timeline.op[plan.timeline.port < 0] for plan in plans])
        return cls.of(graph, plans[0].cluster, sequence, np.stack([p.placement for p in plans]), source)

    def __len__(self) -> int:
        return len(self.makespan)

    def take(self, index: np.ndarray | Sequence[int]) -> Self:
        """The candidates at ``index`` (``[K]`` whole numbers), in that order.

        Raises:
          PlanError: There is no such candidate.
        """
        try:
            rows = np.asarray(index)
        except ValueError:  # Lists of different lengths.
            rows = np.zeros((0, 0))
        if rows.ndim != 1 or (rows.size and not self._has(rows)):
            raise PlanError(
                f"candidates: take got {shown(index)}; give a list of whole numbers below {len(self)}"
            )
        rows = rows.astype(np.int64)
        return dataclasses.replace(self, **{name: getattr(self, name)[rows] for name in _ARRAYS})

    def _has(self, rows: np.ndarray) -> bool:
        return rows.dtype.kind in "iu" and 0 <= int(rows.min()) <= int(rows.max()) < len(self)

    def joined(self, other: Self) -> Self:
        """These candidates and then those of ``other``, of the same graph and cluster."""
        rows = {name: np.concatenate([getattr(each, name) for each in (self, other)]) for name in _ARRAYS}
        return dataclasses.replace(self, **rows)

    def distinct(self) -> np.ndarray:
        """``[K]`` int64, ascending: the first candidate of each different schedule.

        Two candidates are the same schedule if their devices run the same chains of ops. If all devices are
        equal, it does not matter which of them runs a chain. With blocking transfers, candidates with
        different sequences are different, since the order determines when transfers happen.
        """
        parts = [chain_successors(self.sequence, self.devices)]
        if self.cluster.transfer is TransferModel.BLOCKING:
            parts.append(self.sequence)
        if not _alike(self.graph, self.cluster):
            parts.append(self.devices)
        rows = np.concatenate(parts, axis=1)
        return np.sort(np.unique(rows, axis=0, return_index=True)[1]).astype(np.int64)

    def best(self, keep: int, *, unique: bool = True) -> Self:
        """The candidates with the smallest makespans, in ascending order; ties keep their order.

        Args:
          keep: Largest number of candidates.
          unique: Whether to keep only the first of equal schedules.

        Raises:
          ConfigError: ``keep`` is no whole number of at least zero.
        """
        keep = check_whole("keep", keep, 0)
        index = self.distinct() if unique else np.arange(len(self))
        return self.take(index[np.argsort(self.makespan[index], kind="stable")[:keep]])

    def plan(self, index: int, provenance: Mapping[str, Any] | None = None) -> Plan:
        """One candidate as a plan, replayed exactly.

        Args:
          index: Index of the candidate.
          provenance: Provenance of the plan; by default the source.

        Raises:
          PlanError: There is no such candidate.
        """
        row = whole(index, 0, len(self) - 1)
        if row is None:
            raise PlanError(
                f"candidates: there is no candidate {shown(index)}; there are {len(self)}, from 0"
            )
        events = insert_transfers(self.graph, self.cluster, self.devices[row], self.sequence[row])
        made = {"method": self.source} if provenance is None else provenance
        return Plan.from_events(self.graph, self.cluster, self.devices[row], events, provenance=made)

    @functools.cached_property
    def diversity(self) -> Diversity:
        """The diversity of all candidates."""
        return diversity(self.graph, self.sequence, self.devices, self.start)


def _whole_array(name: str, array: Any, ops: int) -> np.ndarray:
    try:
        found = np.asarray(array)
    except ValueError:
        raise PlanError(f"candidates: {name} has rows of different lengths; give (C, {ops})") from None
    if found.ndim != 2 or found.shape[1] != ops:
        raise PlanError(f"candidates: {name} has shape {found.shape}, expected (C, {ops})")
    if found.dtype.kind not in "iu":
        raise PlanError(f"candidates: {name} is of type {found.dtype}; give whole numbers")
    # Checked before the cast, which would overflow.
    if found.size and not (found.min() >= 0 and found.max() < 2**31):
        raise PlanError(f"candidates: {name} has {found.min()} to {found.max()}; give ids of ops and devices")
    return found.astype(np.int32)


def _check_order(graph: ComputationGraph, sequence: np.ndarray) -> None:
    """Checks that each op occurs once, after all ops that it waits for."""
    n = graph.num_ops
    once = (np.sort(sequence, axis=1) == np.arange(n)).all(axis=1)
    if not once.all():
        raise PlanError(f"candidates: sequence {int(np.argmin(once))} does not name every op once")
    position = np.empty_like(sequence)
    np.put_along_axis(position, sequence, np.arange(n, dtype=np.int32)[None], axis=1)
    before, after = all_edges(graph)
    late = position[:, before] > position[:, after]
    if late.any():
        row, edge = (int(i) for i in np.argwhere(late)[0])
        raise PlanError(
            f"candidates: sequence {row} has op {graph.op_names[after[edge]]!r} before "
            f"{graph.op_names[before[edge]]!r}, which it waits for"
        )


def _check_devices(graph: ComputationGraph, cluster: Cluster, devices: np.ndarray) -> None:
    """Checks that each op may run on its device and is with its colocation group."""
    if (devices >= cluster.num_devices).any():
        row, op = (int(i) for i in np.argwhere(devices >= cluster.num_devices)[0])
        raise PlanError(
            f"candidates: schedule {row} has op {graph.op_names[op]!r} on device {devices[row, op]}; there "
            f"are {cluster.num_devices}"
        )
    denied = ~allowed_matrix(graph, cluster)[np.arange(graph.num_ops), devices]
    denied |= devices != devices[:, graph.colocation_leader]
    if denied.any():
        row, op = (int(i) for i in np.argwhere(denied)[0])
        raise PlanError(
            f"candidates: schedule {row} has op {graph.op_names[op]!r} on device {devices[row, op]}, where "
            "it, or the rest of its colocation group, may not run"
        )


def _alike(graph: ComputationGraph, cluster: Cluster) -> bool:
    """Whether the devices are interchangeable."""
    runtime, allowed = runtime_matrix(graph, cluster), allowed_matrix(graph, cluster)
    return (
        len(set(cluster.memory)) == 1
        and len(cluster.links) == 1
        and bool((runtime == runtime[:, :1]).all())
        and bool((allowed == allowed[:, :1]).all())
    )
