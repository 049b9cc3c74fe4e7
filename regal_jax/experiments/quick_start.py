"""`QuickStart`: the schedule that the priors of policies have, as the only start of a search."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import ClassVar, Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch
from regal_jax.heuristics.list_scheduling import quick_schedule
from regal_jax.heuristics.peaks import least_peak_balance
from regal_jax.plan import Objective, Plan, insert_transfers
from regal_jax.policies import Balance
from regal_jax.policies.measured import measure
from regal_jax.solvers import Brkga, HostSolver, Instance, Portfolio

__all__ = ["QuickStart", "brkga_from_quick_schedule"]

_SHARE: Final = 0.02
"""Share of the budget that the stage may take. It takes one evaluation, and the next stage has the others."""


def brkga_from_quick_schedule() -> Portfolio:
    """Plain BRKGA with one warm start, which costs one evaluation: the control of priors."""
    return Portfolio(QuickStart(), Brkga(), shares=(_SHARE, 1))


@dataclasses.dataclass(frozen=True)
class QuickStart(HostSolver):
    """One plan: for the makespan `quick_schedule`, for peak memory `least_peak_balance`.

    These are the order and the placement of the priors ``"schedule"`` and ``"memory"``.
    """

    name: ClassVar[str] = "quick-start"
    least_devices: ClassVar[int] = 2

    def begin(self, instance: Instance) -> HostSearch:
        """A search that ends after its only plan."""
        return _QuickStartRun(instance.graph, instance.cluster, instance.seed, instance.objective)


class _QuickStartRun(HostSearch):
    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        seed: int | Sequence[int],
        objective: Objective,
    ) -> None:
        super().__init__(graph, cluster, seed)
        self._objective = objective
        self._plan: Plan | None = None

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Makes the plan, if there is none yet."""
        del ends, goal
        if self._plan is None and evaluations > 0:
            self._plan = _plan(self.graph, self.cluster, self._objective)
            self.evaluations = 1
            self.improves(self.value(self._plan.peak_memory, self._plan.objective_value))

    def plan(self) -> Plan | None:
        """The plan; ``None`` before `run`."""
        return self._plan


def _plan(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> Plan:
    makespan = objective is Objective.MAKESPAN
    numbers = measure(graph, cluster, Balance.WORK if makespan else Balance.BYTES, ()).numbers
    if makespan:
        schedule = quick_schedule(graph, cluster, numbers)
        placement: np.ndarray = schedule.placement
        events = schedule.events
    else:
        balance, placement = least_peak_balance(graph, cluster, numbers)
        events = insert_transfers(graph, cluster, placement, balance.order)
    said = {"method": "quick-start"}
    return Plan.from_events(graph, cluster, placement, events, objective=objective, provenance=said)
