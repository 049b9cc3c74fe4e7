"""Sources that search with BRKGA: final populations, and the best schedules of many runs or scenarios."""

import dataclasses
from collections.abc import Callable
from typing import Final

import jax
import numpy as np

from regal_jax.checks import check_whole, shown
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.problem import Bucket, Problem, make_problem
from regal_jax.programs import program
from regal_jax.robust.scenarios import Scenarios
from regal_jax.search import BrkgaConfig
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.solve import best_individuals, encoding_of, final_population

__all__ = ["BrkgaPopulation", "BrkgaRuns", "ScenarioRuns"]

_STEPS_AT_ONCE: Final = 2**27
"""Approximate number of steps of a generation of the runs that are searched side by side: a second's work."""


@dataclasses.dataclass(frozen=True)
class _Settings:
    """Settings of independent runs, checked."""

    evaluations: int = 5000
    config: BrkgaConfig = BrkgaConfig()  # noqa: RUF009
    runs: int = 0

    def __post_init__(self) -> None:
        name = type(self).__name__
        for field, low in (("evaluations", 1), ("runs", 0)):
            value = check_whole(f"{name}: {field}", getattr(self, field), low, MAX_EVALUATIONS)
            object.__setattr__(self, field, value)
        if not isinstance(self.config, BrkgaConfig):
            raise ConfigError(f"{name}: config is {shown(self.config)}; give a BrkgaConfig")
        if self.config.islands != 1:
            raise ConfigError(f"{name}: config has several islands; set runs instead")


@dataclasses.dataclass(frozen=True)
class BrkgaPopulation(_Settings):
    """The final population of BRKGA with uniform proposals and no warm starts.

    One run gives a whole population: elites, children and mutants. If more schedules are requested, there are
    as many independent runs as needed.

    Attributes:
      evaluations: Budget of a run.
      config: Settings of a run, which has one island.
      runs: Number of runs; 0 for as many as needed.

    Raises:
      ConfigError: A number is out of range, or `config` is something else.
    """

    def propose(
        self, graph: ComputationGraph, cluster: Cluster, count: int, key: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Proposer`."""
        config = self.config.fit(self.evaluations)
        runs = self.runs or -(-count // config.population)
        budget = runs * (
            config.first_evaluations + config.generations(self.evaluations) * config.step_evaluations
        )
        problem = make_problem([graph], cluster, Bucket.of(graph))
        placement, position = jax.device_get(
            final_population(problem, key[None], budget, config=dataclasses.replace(config, islands=runs))
        )
        return _schedules(graph, placement[0], position[0])


@dataclasses.dataclass(frozen=True)
class BrkgaRuns(_Settings):
    """The best schedule of each of many independent runs of BRKGA, a source that the paper does not have.

    The schedules of one population are alike; those of independent runs differ. The runs are searched side by
    side. A run whose budget is one population, the default, is the best of so many draws. Run ``i`` has the
    key ``fold_in(key, i)`` and does not depend on the number of runs.

    Attributes:
      evaluations: Budget of a run.
      config: Settings of a run, which has one island.
      runs: Most runs, and thus most schedules; 0 for as many as are requested.
      encoding: What genes mean: ``"schedule"`` or, as in the papers, ``"chromosome"`` (`regal_jax.Brkga`).

    Raises:
      ConfigError: As in `BrkgaPopulation`, or the encoding is unknown.
    """

    evaluations: int = 10
    config: BrkgaConfig = BrkgaConfig(population=10, elites=2, mutants=2)  # noqa: RUF009
    encoding: str = "schedule"

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = encoding_of(self.encoding)

    def propose(
        self, graph: ComputationGraph, cluster: Cluster, count: int, key: jax.Array
    ) -> tuple[np.ndarray, np.ndarray]:
        """See `Proposer`."""
        runs = min(count, self.runs) if self.runs else count
        problem = make_problem([graph], cluster, Bucket.of(graph))
        config, encoding = self.config.fit(self.evaluations), encoding_of(self.encoding)
        size = _side_by_side(problem, config, runs)
        key, several = self._problems(graph, problem, runs, key)
        placement, position = (np.zeros((runs, problem.bucket.ops), np.int32) for _ in range(2))
        for first in range(0, runs, size):
            # The last call may make more than are left, so that all calls have one program.
            numbers = np.arange(first, first + size, dtype=np.uint32)
            found = jax.device_get(
                best_individuals(
                    several(numbers),
                    _run_keys(key, numbers),
                    self.evaluations,
                    config=config,
                    encoding=encoding,
                )
            )
            for rows, new in zip((placement, position), found, strict=True):
                rows[first : first + size] = new[: runs - first]
        return _schedules(graph, placement, position)

    def _problems(
        self, graph: ComputationGraph, problem: Problem, runs: int, key: jax.Array
    ) -> tuple[jax.Array, Callable[[np.ndarray], Problem]]:
        """The key of the runs, and the graphs of the runs of some numbers: one more graph is one more run."""
        del graph, runs
        return key, lambda numbers: jax.tree.map(
            lambda leaf: np.repeat(np.asarray(leaf), len(numbers), axis=0), problem
        )


@dataclasses.dataclass(frozen=True)
class ScenarioRuns(BrkgaRuns):
    """The best schedule of each of many independent runs of BRKGA, each in a scenario of its own.

    A schedule that is best by the proxy may be far from the best on a target, for example where moving data
    takes longer than expected. Each run therefore searches with costs that are drawn around the proxy. The
    paper has no such source. Run ``i`` does not depend on the number of runs.

    Attributes:
      evaluations: As in `BrkgaRuns`.
      config: As in `BrkgaRuns`.
      runs: As in `BrkgaRuns`.
      encoding: As in `BrkgaRuns`.
      scenarios: The distribution of the scenarios.

    Raises:
      ConfigError: As in `BrkgaRuns`, or `scenarios` is something else.
    """

    scenarios: Scenarios = Scenarios()  # noqa: RUF009

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.scenarios, Scenarios):
            raise ConfigError(f"ScenarioRuns: scenarios is {self.scenarios!r}; give Scenarios")

    def _problems(
        self, graph: ComputationGraph, problem: Problem, runs: int, key: jax.Array
    ) -> tuple[jax.Array, Callable[[np.ndarray], Problem]]:
        drawn_key, key = jax.random.split(key)
        drawn = self.scenarios.draw(graph, runs, drawn_key)
        return key, lambda numbers: drawn.take(np.minimum(numbers, runs - 1)).problem(graph, problem)


def _schedules(
    graph: ComputationGraph, placement: np.ndarray, position: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Schedules from ``[C, N]`` devices and ranks of padded ops."""
    n = graph.num_ops
    return np.argsort(position[:, :n], axis=1), placement[:, :n]


def _side_by_side(problem: Problem, config: BrkgaConfig, runs: int) -> int:
    """Number of runs of each call: all, or as many as time and memory allow, in calls of equal size."""
    ops, d = problem.bucket.ops, problem.num_devices
    steps = config.population * (ops + problem.blocking * problem.bucket.tensors) * (ops + d)
    calls = -(-runs // max(1, _STEPS_AT_ONCE // steps))
    return -(-runs // calls) if calls else 1


@program()
def _run_keys(key: jax.Array, numbers: jax.Array) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(key, numbers)
