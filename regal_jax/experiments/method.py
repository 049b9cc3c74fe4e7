"""`Method`: a solver with the conditions of a table, and `Results`: its plans and their figures."""

import dataclasses
import time
import warnings
from collections.abc import Sequence
from typing import Self

import jax
import numpy as np

from regal_jax.api import optimize_many
from regal_jax.api.remote import plan_remotely
from regal_jax.checks import check_kind, check_whole, flag
from regal_jax.engines import Engine
from regal_jax.errors import ConfigError, InfeasiblePlanWarning
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan
from regal_jax.runtime.deadline import Deadline
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.solvers import Solver
from regal_jax.solvers.loop.runs import MOST_RUNS
from regal_jax.solvers.loop.settings import Settings, check_pairs, each, one_seed

__all__ = ["Method", "Results"]


@dataclasses.dataclass(frozen=True, eq=False)
class Results:
    """Results of one method for ``B`` graphs.

    Attributes:
      value: ``[B]`` float64, the objective by exact replay: time units of the graph, or bytes.
      overflow: ``[B]`` float64, bytes beyond the devices' memory, summed over devices.
      evaluations: ``[B]`` int64, simulated candidates; 0 for methods that simulate none.
      seconds: ``[B]`` float64, wall-clock time. Graphs that are searched together share theirs equally.
        Compilation is part of it unless the method was told to run everything twice.
      processor: ``[B]`` float64, likewise the seconds of this process on all cores of the host; ``None`` if
        graphs were planned elsewhere.
      plans: One plan per graph.
    """

    value: np.ndarray
    overflow: np.ndarray
    evaluations: np.ndarray
    seconds: np.ndarray
    plans: tuple[Plan, ...]
    processor: np.ndarray | None = None

    @classmethod
    def of(
        cls,
        plans: Sequence[Plan],
        seconds: Sequence[float] | np.ndarray,
        processor: np.ndarray | None = None,
    ) -> Self:
        """The figures of plans and their times."""
        return cls(
            value=np.array([plan.objective_value for plan in plans], np.float64),
            overflow=np.array([plan.overflow.sum() for plan in plans], np.float64),
            evaluations=np.array([plan.provenance.get("evaluations", 0) for plan in plans], np.int64),
            seconds=np.array(seconds, np.float64),
            plans=tuple(plans),
            processor=processor,
        )

    @property
    def feasible(self) -> np.ndarray:
        """``[B]`` bool: whether the plan fits the memory."""
        return self.overflow == 0

    @property
    def order(self) -> np.ndarray:
        """``[B]`` int64, indices of the graphs: first those whose plan fits, then by overflow and value."""
        return np.lexsort((self.value, self.overflow))


@dataclasses.dataclass(frozen=True)
class Method:
    """A solver as a row of a table. A call plans all given graphs within a budget.

    Attributes:
      name: Name in tables.
      solver: Solver that makes the plans.
      warm_start: Start from the heuristics' plans; the paper's methods do not.
      evaluations: A fixed budget that replaces the caller's, as in "BRKGA 50K".
      runs: Independent runs of a search, each with the budget. The best plan counts, and the evaluations of
        all do.
      twice: Run everything twice and report the seconds of the second run, in which nothing is compiled.

    Raises:
      ConfigError: A value is out of range or of another type.
    """

    name: str
    solver: Solver
    warm_start: bool = False
    evaluations: int | None = None
    runs: int = 1
    twice: bool = False

    def __post_init__(self) -> None:
        check_kind("method: name", self.name, str)
        check_kind("method: solver", self.solver, Solver)
        for field in ("warm_start", "twice"):
            flag("method", field, getattr(self, field))
        for field, most in (("evaluations", MAX_EVALUATIONS), ("runs", MOST_RUNS)):
            value = getattr(self, field)
            if value is not None or field == "runs":
                object.__setattr__(self, field, check_whole(f"method: {field}", value, 1, most))
        searching = {"evaluations": self.evaluations is not None, "runs": self.runs > 1}
        for field, given in {**searching, "warm_start": self.warm_start}.items():
            if given and not self.solver.searches:
                raise ConfigError(f"method: {self.name} is no search, and has no {field}; leave it out")

    def __call__(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Cluster | Sequence[Cluster],
        *,
        objective: Objective | str = Objective.MAKESPAN,
        evaluations: int = 5000,
        seed: int | jax.Array = 0,
        time_limit: float | None = None,
        engine: Engine | None = None,
        warm_up: bool = False,
        key: int | jax.Array | None = None,
    ) -> Results:
        """Plans every graph.

        Args:
          graphs: ``B`` graphs; may be empty.
          clusters: One for all graphs, or one per graph.
          objective: Objective to minimise.
          evaluations: Most candidates that may be simulated for each graph.
          seed: A number or a typed `jax.random.key`; each graph's key is derived from it and the graph's
            content.
          time_limit: Seconds for each call of `regal_jax.optimize_many`: for all graphs that are searched
            together.
          engine: Workers that plan the graphs. Seconds are then measured where a graph is planned.
          warm_up: Whether each of these workers runs the first graphs of a size twice, so that nothing is
            compiled in the seconds that count.
          key: The same as ``seed``.

        Raises:
          ConfigError: An argument is invalid, or the method does not cover the problem.
          ClusterError: A cluster cannot run its graph.
        """
        graphs = list(graphs)
        clusters = each(clusters, len(graphs))
        check_pairs(graphs, clusters)
        budget, seed = self.evaluations or evaluations, one_seed(seed, key)
        if engine is not None:
            settings = self._settings(Objective(objective), budget, seed, time_limit)
            pairs = list(zip(graphs, clusters, strict=True))
            warm_up = warm_up or self.twice
            return Results.of(*plan_remotely(engine, pairs, settings, warm_up=warm_up))
        plans: list[Plan] = []
        seconds, processor = np.zeros((2, len(graphs)))
        for _ in range(2 if self.twice else 1):
            plans = []
            # Methods without a search gain nothing from batches, and run alone each graph has its own time.
            alone = not self.solver.searches
            for members in [[i] for i in range(len(graphs))] if alone else [list(range(len(graphs)))]:
                clock, began = Deadline(), time.process_time()
                with warnings.catch_warnings():
                    # The results state which plans are infeasible.
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
                        runs=self.runs,
                        progress=False,
                    )
                count = max(len(members), 1)
                seconds[members] = clock.spent / count
                processor[members] = (time.process_time() - began) / count
        return Results.of(plans, seconds, processor)

    def _settings(
        self, objective: Objective, evaluations: int, seed: int | jax.Array, time_limit: float | None
    ) -> Settings:
        return Settings.checked(
            objective=objective,
            evaluations=evaluations,
            seed=seed,
            method=self.solver,
            policy=None,
            warm_start=self.warm_start,
            contract=None,
            target=None,
            stall=None,
            time_limit=time_limit,
            runs=self.runs,
            progress=False,
        )
