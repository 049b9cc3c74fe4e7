"""Methods that simulate nothing: heuristics, and the exact solver under a time limit."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from regal_jax.api.settings import check_pairs, each, one_seed
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import run_heuristic
from regal_jax.heuristics.exact import cp_sat
from regal_jax.methods.method import Results
from regal_jax.plan import Objective, Plan

__all__ = ["CpSat", "HeuristicMethod"]


def _one_by_one(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    make: Callable[[ComputationGraph, Cluster], Plan],
) -> Results:
    graphs = list(graphs)
    clusters = each(clusters, len(graphs))
    check_pairs(graphs, clusters)
    plans, seconds = [], []
    for graph, cluster in zip(graphs, clusters, strict=True):
        began = time.perf_counter()
        plans.append(make(graph, cluster))
        seconds.append(time.perf_counter() - began)
    return Results.of(plans, seconds)


def _host_seed(seed: int | jax.Array) -> int:
    """A number for the host from a seed, which may be a typed key."""
    if isinstance(seed, (int, np.integer)):
        return int(seed)
    return int(np.asarray(jax.random.key_data(seed)).reshape(-1)[-1])


@dataclasses.dataclass(frozen=True)
class HeuristicMethod:
    """A heuristic alone; it spends no evaluations.

    Attributes:
      name: As in tables.
      heuristic: A key of `regal_jax.heuristics.HEURISTICS`.
    """

    name: str
    heuristic: str

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
        """As `Method` has it; ``evaluations`` is not used."""
        del evaluations
        number = _host_seed(one_seed(seed, key))
        return _one_by_one(
            graphs,
            clusters,
            lambda graph, cluster: run_heuristic(self.heuristic, graph, cluster, objective, seed=number),
        )


@dataclasses.dataclass(frozen=True)
class CpSat:
    """Constraint programming with a time limit instead of a budget (extra ``exact``).

    Attributes:
      time_limit: Seconds for each graph. The result depends on the machine unless the optimum is proven.
      workers: Threads of the solver.
      name: As in tables.
    """

    time_limit: float = 60.0
    workers: int = 2
    name: str = "CP-SAT"

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
        """As `Method` has it; ``evaluations`` is not used.

        Raises:
          MissingExtraError: OR-Tools is not installed.
        """
        del evaluations
        # The solver's seeds are 31 bits wide.
        number = _host_seed(one_seed(seed, key)) % 2**31

        def make(graph: ComputationGraph, cluster: Cluster) -> Plan:
            return cp_sat(
                graph, cluster, objective, time_limit=self.time_limit, workers=self.workers, seed=number
            )

        return _one_by_one(graphs, clusters, make)
