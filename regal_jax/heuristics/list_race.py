"""A race between a list search that begins with given plans and one that does not."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Final

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.list_search import ListSearchRun
from regal_jax.heuristics.list_search_config import ListSearchConfig
from regal_jax.plan import Plan

__all__ = ["ListSearchRace"]

_LENGTH: Final = 250
"""Schedules that each search makes before only the better one continues; chosen on training and validation
graphs, see docs/ablations/host_searches.md."""
_TURN: Final = 50
"""Schedules of one turn in the race, so that a small budget is divided as well."""


class ListSearchRace(HostSearch):
    """Two list searches (`ListSearchRun`), one without the given plans and one that begins with them.

    The insertion moves of either may begin with the best of the plans.

    To reproduce a plan, list search gives prohibitive prices to all other devices, which few perturbations
    remove. From a worse schedule without such prices it may therefore reach a better one. After the race the
    better search continues alone, the one without plans if they are equal.

    Each schedule of either search is one evaluation.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        seed: int | Sequence[int],
        config: ListSearchConfig | None,
        starts: Sequence[Plan],
    ) -> None:
        """Prepares both searches without evaluating anything.

        Args:
          graph: The graph.
          cluster: The cluster.
          seed: As `numpy.random.default_rng` takes it; both searches have it.
          config: ``None`` for the defaults.
          starts: Plans of the graph; if there is none, there is no race.

        Raises:
          ClusterError: The cluster does not fit the graph.
        """
        super().__init__(graph, cluster, seed)
        begin = [(), starts] if starts else [()]
        fit = [plan for plan in starts if plan.feasible]
        known = min(fit, key=lambda plan: plan.makespan, default=None)
        self._runs = [ListSearchRun(graph, cluster, seed, config, plans, known=known) for plans in begin]
        # For each search, its evaluations and its improvements that have been counted here.
        self._followed: dict[ListSearchRun, tuple[int, int]] = {}

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """See `HostSearch.run`."""
        last = self.evaluations + evaluations
        while self.evaluations < last and self.best > goal:
            run, most = self._next(last - self.evaluations)
            before = run.evaluations
            run.run(most, functools.partial(self._ends, run, ends), goal)
            self._follow(run)
            if run.evaluations < before + most:
                return

    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first."""
        plans = [plan for plan in (run.plan() for run in self._runs) if plan is not None]
        return min(plans, key=lambda plan: plan.sort_key, default=None)

    def _next(self, left: int) -> tuple[ListSearchRun, int]:
        """The search whose turn it is, and how many schedules it makes."""
        if len(self._runs) > 1 and all(run.evaluations >= _LENGTH for run in self._runs):
            self._runs = [min(self._runs, key=lambda run: run.least)]
        run = min(self._runs, key=lambda run: run.evaluations)
        return run, left if len(self._runs) == 1 else min(left, _TURN)

    def _ends(self, run: ListSearchRun, ends: Callable[[], bool] | None) -> bool:
        # The caller looks at this search, not at that one.
        self._follow(run)
        return ends is not None and ends()

    def _follow(self, run: ListSearchRun) -> None:
        """Counts the evaluations of a search since the last call, and records its improvements."""
        before, known = self._followed.get(run, (0, 0))
        others = self.evaluations - before
        for done, value in run.history[known:]:
            if value is not None:
                self.evaluations = others + done
                self.improves((0.0, value))
        self.evaluations = others + run.evaluations
        self.improves(run.least)
        self._followed[run] = run.evaluations, len(run.history)
