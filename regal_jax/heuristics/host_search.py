"""The base class of searches on the host: their counts, and the best value so far."""

import abc
import math
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Plan

__all__ = ["MOST_COUNT", "HostSearch", "Value"]

MOST_COUNT: Final = 2**31 - 1
"""Largest number of evaluations, so that no other count has to be larger."""

Value = tuple[float, float]
"""``(bytes of overflow, objective)``; smaller is better, so candidates that fit the memory come first."""


class HostSearch(abc.ABC):
    """A search of one graph that can be run piece by piece.

    Attributes:
      evaluations: Number of candidates evaluated so far.
      history: ``(evaluations, objective)`` after each improvement; the objective is ``None`` while no
        candidate fits the memory.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster, seed: int | Sequence[int]) -> None:
        self.evaluations: int = 0
        self.history: list[tuple[int, float | None]] = []
        self.graph, self.cluster = graph, cluster
        self.random = np.random.default_rng(seed)
        self._memory = np.array(cluster.memory)
        self._least: Value = (math.inf, math.inf)

    @abc.abstractmethod
    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Continues the search.

        Args:
          evaluations: Largest number of candidates to evaluate.
          ends: Called from time to time; ``True`` ends the run.
          goal: The run ends at a plan that fits the memory and whose objective is at most this.
        """

    @abc.abstractmethod
    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first."""

    @property
    def best(self) -> float:
        """The objective of the best plan that fits the memory; infinite if there is none."""
        return self._least[1] if self._least[0] == 0 else math.inf

    @property
    def least(self) -> Value:
        """The value of the best candidate; infinite before the first."""
        return self._least

    def value(self, peaks: np.ndarray, objective: float) -> Value:
        """The value of a candidate with ``peaks [D]``."""
        return float(np.maximum(peaks - self._memory, 0).sum()), float(objective)

    def improves(self, value: Value) -> bool:
        """Whether the value is better than all before; if so, it is recorded."""
        better = value < self._least
        if better:
            self._least = value
            self.history.append((self.evaluations, None if value[0] > 0 else value[1]))
        return better
