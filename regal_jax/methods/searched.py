"""Methods that `optimize_many` runs: the searches, with and without a policy."""

import dataclasses
import os
import time
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from regal_jax.api import optimize_many
from regal_jax.api.names import MethodName
from regal_jax.api.settings import Config, one_seed
from regal_jax.errors import InfeasiblePlanWarning
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.methods.method import Results
from regal_jax.plan import Objective

if TYPE_CHECKING:
    from regal_jax.policies import Policy

__all__ = ["Searched"]


@dataclasses.dataclass(frozen=True)
class Searched:
    """A search by its name in `optimize`.

    Attributes:
      name: As in tables.
      method: ``"brkga"``, ``"annealing"``, ``"local-search"``, ``"list-search"``,
        ``"peak-search"`` or ``"auto"``.
      policy: As in `optimize`; its time counts.
      config: As in `optimize`.
      warm_start: Begin from the heuristics' plans; the paper's methods do not.
      evaluations: A budget of its own, instead of the caller's: "BRKGA 50K".
      twice: Run everything twice and tell the seconds of the second time, in which nothing is compiled.
    """

    name: str
    method: MethodName = "brkga"
    policy: "Policy | str | os.PathLike[str] | None" = None
    config: Config | None = None
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
        key: int | jax.Array | None = None,
    ) -> Results:
        """As `Method` has it."""
        graphs, seconds, plans = list(graphs), 0.0, []
        for _ in range(2 if self.twice else 1):
            began = time.perf_counter()
            with warnings.catch_warnings():
                # The results say it.
                warnings.simplefilter("ignore", InfeasiblePlanWarning)
                plans = optimize_many(
                    graphs,
                    clusters,
                    objective=Objective(objective),
                    evaluations=self.evaluations or evaluations,
                    seed=one_seed(seed, key),
                    method=self.method,
                    policy=self.policy,
                    config=self.config,
                    warm_start=self.warm_start,
                    progress=False,
                )
            seconds = time.perf_counter() - began
        return Results.of(plans, np.full(len(graphs), seconds / max(len(graphs), 1)))
