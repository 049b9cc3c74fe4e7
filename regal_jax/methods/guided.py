"""BRKGA guided by a policy: the place where REGAL, GAS and IDRS plug in."""

import dataclasses
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np

from regal_jax.api.batches import Batch, make_batch, share_out
from regal_jax.api.outcome import searched_plan
from regal_jax.api.settings import Settings, check_pairs, each
from regal_jax.encoding import Proposal
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.methods.method import Results
from regal_jax.plan import Objective, Plan
from regal_jax.problem import Problem
from regal_jax.search import BrkgaConfig, Stopping
from regal_jax.solve import graph_keys, solve

__all__ = ["Guided", "ProposalFn"]

ProposalFn = Callable[[Problem, Sequence[ComputationGraph], Sequence[Cluster], jax.Array], Proposal]
"""``(problem of B graphs, graphs, clusters, keys [B]) -> Proposal`` of ``B`` graphs.

The keys are those of the searches, one a graph, made from the graph's content: `regal_jax.solve.propose`
makes its own from them. What depends on its own key alone does not depend on the company. The problem may
have rows beyond the caller's graphs, copies of the last one.
"""


@dataclasses.dataclass(frozen=True)
class Guided:
    """Plain BRKGA whose first population and mutants come from what a policy says of each graph.

    Attributes:
      name: As in tables.
      proposal: See `ProposalFn`; its time counts.
      config: Of the BRKGA.
      twice: As in `Searched`.
    """

    name: str
    proposal: ProposalFn
    config: BrkgaConfig = dataclasses.field(default_factory=BrkgaConfig)
    twice: bool = False

    def __call__(
        self,
        graphs: Sequence[ComputationGraph],
        clusters: Cluster | Sequence[Cluster],
        *,
        objective: Objective | str = Objective.MAKESPAN,
        evaluations: int = 5000,
        key: int | jax.Array = 0,
    ) -> Results:
        """As `Method` has it."""
        graphs = list(graphs)
        clusters = each(clusters, len(graphs))
        check_pairs(graphs, clusters)
        settings = _settings(objective, evaluations, key, self.config)
        pairs = list(zip(graphs, clusters, strict=True))
        plans: dict[int, Plan] = {}
        seconds = np.zeros(len(graphs))
        for share in share_out(pairs, self.config.fit(settings.evaluations), None, None):
            for _ in range(2 if self.twice else 1):
                began = time.perf_counter()
                batch = make_batch(share, pairs, [[]] * len(pairs), self.config)
                plans |= self._search(batch, settings)
                seconds[list(share.members)] = (time.perf_counter() - began) / len(share.members)
        return Results.of([plans[i] for i in range(len(graphs))], seconds)

    def _search(self, batch: Batch, settings: Settings) -> dict[int, Plan]:
        keys = graph_keys(settings.key, batch.graphs)
        result = solve(
            batch.problem,
            keys,
            Stopping(settings.evaluations),
            objective=settings.objective,
            proposal=self.proposal(batch.problem, batch.graphs, batch.clusters, keys),
            config=self.config,
            mesh=batch.mesh,
        )
        made = {}
        for row, member in enumerate(batch.members):
            plan = searched_plan(batch, row, result, settings)
            made[member] = dataclasses.replace(plan, provenance={**plan.provenance, "method": self.name})
        return made


def _settings(
    objective: Objective | str, evaluations: int, key: int | jax.Array, config: BrkgaConfig
) -> Settings:
    return Settings.checked(
        objective=objective,
        evaluations=evaluations,
        key=key,
        method="brkga",
        policy=None,
        warm_start=False,
        contract=False,
        config=config,
        target=None,
        stall=None,
        time_limit=None,
        progress=False,
    )
