"""Improvements that a callback is told of during a search."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from regal_jax.plan import Plan
from regal_jax.runtime.deadline import Deadline
from regal_jax.search import Progress

__all__ = ["Improvement", "Watch"]


@dataclasses.dataclass(frozen=True, eq=False)
class Improvement:
    """A plan that is better than all before it.

    Attributes:
      plan: Replayed exactly on the host. Its provenance is that of the moment, not of the whole search.
      evaluations: Evaluations that its run had spent when it was found; 0 for plans of heuristics.
      seconds: Seconds since the call began.
    """

    plan: Plan
    evaluations: int
    seconds: float

    @property
    def objective_value(self) -> float:
        """Objective of the plan; it means little while `Plan.feasible` is false."""
        return self.plan.objective_value


class Watch:
    """Tells a callback of every plan that is better than those before it.

    Args:
      callback: Called with the index of a graph in the caller's list and an `Improvement`.
      graphs: Number of graphs.
      clock: It began when the call did.
      runs: Number of runs of each graph; run ``r`` of graph ``i`` is member ``i * runs + r``.
    """

    def __init__(
        self,
        callback: Callable[[int, Improvement], object] | None,
        graphs: int,
        clock: Deadline,
        runs: int = 1,
    ) -> None:
        self._callback, self._clock, self._runs = callback, clock, runs
        self._best: list[Plan | None] = [None] * graphs

    @property
    def enabled(self) -> bool:
        """Whether there is a callback."""
        return self._callback is not None

    def see(self, member: int, plan: Plan, evaluations: int) -> None:
        """Reports ``plan`` of a member if it is better than those of its graph that were seen before."""
        graph = member // self._runs
        best = self._best[graph]
        if self._callback is not None and (best is None or plan.sort_key < best.sort_key):
            self._best[graph] = plan
            self._callback(graph, Improvement(plan, evaluations, self._clock.spent))

    def follow(
        self,
        members: Sequence[int],
        before: Sequence[int],
        decode: Callable[[int, Progress], Plan],
        also: Callable[[Progress], object],
    ) -> Callable[[Progress], None]:
        """A callback for the search of a batch.

        Args:
          members: The members, one for each of its first rows.
          before: Evaluations of each member that were spent before.
          decode: Makes the plan of a row.
          also: Callback that is called first.
        """
        seen = np.full(len(members), np.inf)

        def callback(progress: Progress) -> None:
            also(progress)
            if not self.enabled:
                return
            fitness = progress.fitness[: len(members)]
            for row in np.flatnonzero(fitness < seen).tolist():
                seen[row] = fitness[row]
                spent = before[row] + int(progress.evaluations[row])
                self.see(members[row], decode(row, progress), spent)

        return callback
