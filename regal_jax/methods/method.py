"""The interface of all methods, and what they return."""

import dataclasses
from collections.abc import Sequence
from typing import Protocol, Self

import jax
import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan

__all__ = ["Method", "Results"]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """What one method did with ``B`` graphs.

    Attributes:
      value: ``[B]`` float64, the objective by exact replay: time units of the graph, or bytes.
      overflow: ``[B]`` float64, bytes beyond the devices' memory, summed over devices.
      evaluations: ``[B]`` int64, simulated candidates; 0 for methods that simulate none.
      seconds: ``[B]`` float64, wall-clock time. Graphs that are searched together share theirs equally.
        Compilation is part of it unless the method was told to run everything twice.
      plans: One a graph.
    """

    value: np.ndarray
    overflow: np.ndarray
    evaluations: np.ndarray
    seconds: np.ndarray
    plans: tuple[Plan, ...]

    @classmethod
    def of(cls, plans: Sequence[Plan], seconds: Sequence[float] | np.ndarray) -> Self:
        """What these plans say."""
        return cls(
            value=np.array([plan.objective_value for plan in plans], np.float64),
            overflow=np.array([plan.overflow.sum() for plan in plans], np.float64),
            evaluations=np.array([plan.provenance.get("evaluations", 0) for plan in plans], np.int64),
            seconds=np.array(seconds, np.float64),
            plans=tuple(plans),
        )

    @property
    def feasible(self) -> np.ndarray:
        """``[B]`` bool: does the memory suffice?"""
        return self.overflow == 0

    @property
    def order(self) -> np.ndarray:
        """``[B]`` int64, the graphs, those whose plan fits the memory first, then by overflow and value."""
        return np.lexsort((self.value, self.overflow))


class Method(Protocol):
    """A way to plan graphs within a budget."""

    @property
    def name(self) -> str:
        """As in tables."""
        ...

    def __call__(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Cluster | Sequence[Cluster],
        *,
        objective: Objective | str = Objective.MAKESPAN,
        evaluations: int = 5000,
        seed: int | jax.Array = 0,
        key: int | jax.Array | None = None,
    ) -> Results:
        """Plans every graph.

        Args:
          graphs: ``B`` graphs; none is allowed.
          clusters: One for all, or one a graph.
          objective: What to minimise.
          evaluations: Most candidates that may be simulated for each graph.
          seed: A number or a typed `jax.random.key`; each graph's own is made from it and its content.
          key: The former name of ``seed``.

        Raises:
          ConfigError: An argument that cannot be, or a problem that the method does not cover.
          ClusterError: A cluster that cannot run its graph.
        """
        ...
