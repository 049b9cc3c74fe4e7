"""`Plan`: a placement, an order, and everything that follows from them."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, runtime_matrix
from regal_jax.plan.bounds import Objective, lower_bound
from regal_jax.plan.replay import Timeline, replay

__all__ = ["Plan"]


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Who runs what, when, and what memory that takes; always the result of an exact replay.

    Attributes:
      graph_name: Name of the graph.
      graph_hash: Its `ComputationGraph.content_hash`.
      time_unit: Unit of every time in the plan.
      op_names: ``[N]``.
      cluster: What it runs on.
      objective: What it was made to minimise.
      placement: ``[N]`` int64 device of each op.
      timeline: Events with times, makespan, peaks and memory profile.
      one_device_makespan: Makespan of everything on the fastest single device, in `time_unit`.
      lower_bound: No plan on this cluster has a smaller value of `objective`.
      provenance: How it was made: ``method``, ``evaluations``, ``seed``, ``versions``, ...;
        JSON values only.
    """

    graph_name: str
    graph_hash: str
    time_unit: str
    op_names: tuple[str, ...]
    cluster: Cluster
    objective: Objective
    placement: np.ndarray
    timeline: Timeline
    one_device_makespan: float
    lower_bound: float
    provenance: Mapping[str, Any]

    @classmethod
    def from_events(
        cls,
        graph: ComputationGraph,
        cluster: Cluster,
        placement: np.ndarray,
        events: Sequence[int] | np.ndarray,
        *,
        objective: Objective | str = Objective.MAKESPAN,
        provenance: Mapping[str, Any] | None = None,
    ) -> Self:
        """Replays ``events`` (ids as in `replay`) exactly and keeps the result.

        Raises:
          PlanError: ``placement`` or ``events`` are not a valid execution.
          ClusterError: The cluster does not fit the graph.
        """
        objective = Objective(objective)
        placement = np.array(placement, dtype=np.int64)
        timeline = replay(graph, cluster, placement, events)
        return cls(
            graph_name=graph.name,
            graph_hash=graph.content_hash,
            time_unit=graph.time_unit,
            op_names=graph.op_names,
            cluster=cluster,
            objective=objective,
            placement=placement,
            timeline=timeline,
            one_device_makespan=min(math.fsum(r) for r in runtime_matrix(graph, cluster).T),
            lower_bound=lower_bound(graph, cluster, objective),
            provenance=dict(provenance or {}),
        )

    @property
    def makespan(self) -> float:
        """The largest finish, in `time_unit`."""
        return self.timeline.makespan

    @property
    def peak_memory(self) -> np.ndarray:
        """``[D]`` int64 bytes."""
        return self.timeline.peak_memory

    @property
    def overflow(self) -> np.ndarray:
        """``[D]`` float64 bytes by which each peak exceeds its device's capacity."""
        return np.maximum(self.peak_memory - np.array(self.cluster.memory), 0.0)

    @property
    def feasible(self) -> bool:
        """Does every device have the memory?"""
        return not self.overflow.any()

    @property
    def objective_value(self) -> float:
        """Makespan, or the largest peak, as `objective` says."""
        return self.makespan if self.objective is Objective.MAKESPAN else float(self.peak_memory.max())

    @property
    def sort_key(self) -> tuple[float, float]:
        """Smaller is better: total overflow first, then the objective."""
        return float(self.overflow.sum()), self.objective_value
