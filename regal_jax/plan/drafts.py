"""The best of several drafts: a plan is made of that one only."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan.bounds import Objective
from regal_jax.plan.limits import overflow_of
from regal_jax.plan.plan import Plan
from regal_jax.plan.replay import outcome

__all__ = ["BestDraft"]


class BestDraft:
    """Drafts of one call, each replayed exactly; the first of the best is kept.

    A draft is ``placement`` ``[N]``, ``events`` ``[M]`` as `regal_jax.plan.replay` takes them, and a
    provenance. Drafts are compared as plans are by `Plan.sort_key`.

    Args:
      graph: The graph.
      cluster: The cluster.
      objective: The objective.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster, objective: Objective | str) -> None:
        self._graph, self._cluster, self._objective = graph, cluster, Objective(objective)
        self._key: tuple[float, float] | None = None
        self._draft: tuple[np.ndarray, np.ndarray, Mapping[str, Any]] | None = None

    def offer(self, placement: np.ndarray, events: np.ndarray, provenance: Mapping[str, Any]) -> None:
        """Keeps the draft if it is better than all before.

        Raises:
          PlanError: ``placement`` or ``events`` are not a valid execution.
          ClusterError: The cluster does not fit the graph.
        """
        makespan, peaks = outcome(self._graph, self._cluster, placement, events)
        for_time = self._objective is Objective.MAKESPAN
        key = overflow_of(peaks, self._cluster), makespan if for_time else float(peaks.max())
        if self._key is None or key < self._key:
            self._key, self._draft = key, (placement, events, provenance)

    @property
    def feasible(self) -> bool:
        """Whether a draft fits the memory."""
        return self._key is not None and self._key[0] == 0

    def plan(self) -> Plan:
        """The plan of the best draft.

        Raises:
          PlanError: There was no draft.
        """
        if self._draft is None:
            raise PlanError("there is no draft to make a plan of")
        placement, events, provenance = self._draft
        return Plan.from_events(
            self._graph, self._cluster, placement, events, objective=self._objective, provenance=provenance
        )
