"""`Method`: a solver under the conditions of a table, and `Results`, what came of it."""

import dataclasses
import time
import warnings
from collections.abc import Sequence
from typing import Self

import jax
import numpy as np

from regal_jax.api import optimize_many
from regal_jax.errors import InfeasiblePlanWarning
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan
from regal_jax.solvers import Solver
from regal_jax.solvers.loop.settings import check_pairs, each, one_seed

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


@dataclasses.dataclass(frozen=True)
class Method:
    """A solver as a row of a table: called with graphs and a budget, it plans all of them.

    Attributes:
      name: As in tables.
      solver: What plans.
      warm_start: Begin from the heuristics' plans; the paper's methods do not.
      evaluations: A budget of its own, instead of the caller's: "BRKGA 50K".
      twice: Run everything twice and tell the seconds of the second time, in which nothing is compiled.
    """

    name: str
    solver: Solver
    warm_start: bool = False
    evaluations: int | None = None
    twice: bool = False

    def __call__(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Cluster | Sequence[Cluster],
        *,
        objective: Objective | str = Objective.MAKESPAN,
        evaluations: int = 5000,
        seed: int | jax.Array = 0,
        time_limit: float | None = None,
        key: int | jax.Array | None = None,
    ) -> Results:
        """Plans every graph.

        Args:
          graphs: ``B`` graphs; none is allowed.
          clusters: One for all, or one a graph.
          objective: What to minimise.
          evaluations: Most candidates that may be simulated for each graph.
          seed: A number or a typed `jax.random.key`; each graph's own is made from it and its content.
          time_limit: Seconds for each call of `regal_jax.optimize_many`: for all graphs that are searched
            together.
          key: The former name of ``seed``.

        Raises:
          ConfigError: An argument that cannot be, or a problem that the method does not cover.
          ClusterError: A cluster that cannot run its graph.
        """
        graphs = list(graphs)
        clusters = each(clusters, len(graphs))
        check_pairs(graphs, clusters)
        budget, seed = self.evaluations or evaluations, one_seed(seed, key)
        plans: list[Plan] = []
        seconds = np.zeros(len(graphs))
        for _ in range(2 if self.twice else 1):
            plans = []
            # What searches nothing gains nothing by company, and each graph has its own time.
            alone = not self.solver.searches
            for members in [[i] for i in range(len(graphs))] if alone else [list(range(len(graphs)))]:
                began = time.perf_counter()
                with warnings.catch_warnings():
                    # The results say it.
                    warnings.simplefilter("ignore", InfeasiblePlanWarning)
                    plans += optimize_many(
                        [graphs[i] for i in members],
                        [clusters[i] for i in members],
                        objective=Objective(objective),
                        evaluations=budget,
                        seed=seed,
                        method=self.solver,
                        warm_start=self.warm_start,
                        time_limit=time_limit,
                        progress=False,
                    )
                seconds[members] = (time.perf_counter() - began) / max(len(members), 1)
        return Results.of(plans, seconds)
