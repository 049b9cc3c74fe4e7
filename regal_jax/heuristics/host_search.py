"""What the searches of the host have in common: what they count, and what they know of the best so far."""

import abc
import math
from collections.abc import Callable, Sequence

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Plan

__all__ = ["HostSearch", "Value"]

Value = tuple[float, float]
"""``(bytes over the memory, objective)``; the smaller the better, and what fits before what does not."""


class HostSearch(abc.ABC):
    """A search of one graph that can be run piece by piece.

    Attributes:
      evaluations: Candidates that were looked at.
      history: ``(evaluations, objective)`` whenever that became better; ``None`` while nothing fits the
        memory.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster, seed: int | Sequence[int]) -> None:
        self.evaluations = 0
        self.history: list[tuple[int, float | None]] = []
        self.graph, self.cluster = graph, cluster
        self.random = np.random.default_rng(seed)
        self._memory = np.array(cluster.memory)
        self._least: Value = (math.inf, math.inf)

    @abc.abstractmethod
    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Goes on from where it is.

        Args:
          evaluations: Candidates to look at, at most.
          ends: Asked now and then; ``True`` ends the run.
          goal: The run ends as soon as the objective of a plan that fits the memory is no larger.
        """

    @abc.abstractmethod
    def plan(self) -> Plan | None:
        """The best so far; ``None`` before the first."""

    @property
    def best(self) -> float:
        """The objective of the best that fits the memory; infinite if there is none."""
        return self._least[1] if self._least[0] == 0 else math.inf

    def value(self, peaks: np.ndarray, objective: float) -> Value:
        """The value of a candidate with ``peaks [D]``."""
        return float(np.maximum(peaks - self._memory, 0).sum()), float(objective)

    def improves(self, value: Value) -> bool:
        """Is it better than all before? Then it is noted down."""
        better = value < self._least
        if better:
            self._least = value
            self.history.append((self.evaluations, None if value[0] > 0 else value[1]))
        return better
