"""Turns of a search on the host of one graph, under the stopping rules of the call."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch, counting, run_heuristic
from regal_jax.plan import Contraction, Plan, contract_for, lower_bound, rounded_up
from regal_jax.runtime.deadline import Deadline
from regal_jax.search import Status, status_of
from regal_jax.solve import graph_identities
from regal_jax.solvers import HostSolver, HostStage, Instance
from regal_jax.solvers.loop import turns
from regal_jax.solvers.loop.replayed import check_claims, check_counts, naming_errors, replayed
from regal_jax.solvers.loop.settings import Settings
from regal_jax.solvers.loop.turns import Turn
from regal_jax.solvers.sources import is_of_package

__all__ = ["HostRun", "Report", "begin_run", "instance_of"]

Report = Callable[[int, Plan | None], object]
"""``(evaluations of the turn so far, a plan that is better than all before, or None)``."""
_EVERY: Final = 0.25
"""Seconds between two reports."""
_PLANS_SHARE: Final = 0.1
"""Largest share of the time that the plans of reports take."""


class HostRun:
    """The searches of one graph on the host: of the contracted graph, if it is given, then of the original.

    Args:
      graph: The graph.
      cluster: The cluster.
      settings: Settings of the call.
      stage: Index of the stage in the agenda.
      solver: The solver.
      while_it_pays: Whether the first turn ends when it stops improving.
      contraction: Contraction of the graph, if it is to be searched; its best plan is expanded as a start.
      run: Number of the run, on which random numbers depend.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        settings: Settings,
        *,
        stage: int,
        solver: HostSolver,
        while_it_pays: bool,
        contraction: Contraction | None = None,
        run: int = 0,
    ) -> None:
        self._run = run
        self._pair, self._settings, self._contraction = (graph, cluster), settings, contraction
        self._stage, self._solver, self._while_it_pays = stage, solver, while_it_pays
        self._search: HostSearch | None = None
        self._seconds: float | None = None
        self._first = True

    def turn(
        self,
        known: Sequence[Plan],
        evaluations: int,
        *,
        seconds: float | None,
        interrupted: Callable[[], bool],
        report: Report | None = None,
        plans: bool = False,
    ) -> Turn:
        """Spends the budget: in the first turn while plans improve, later all of it.

        Args:
          known: Plans of the graph, best first.
          evaluations: The budget.
          seconds: Time limit in seconds.
          interrupted: Stop as soon as this is true.
          report: Called a few times a second, with a plan if it is wanted and there is a better one.
          plans: Whether reports have plans.
        """
        objective = self._settings.objective
        goal = rounded_up(lower_bound(*self._pair, objective), objective)
        goal = max(goal, self._settings.target or 0.0)
        watch = _Watch(self._settings, self._solver, known, goal, seconds, interrupted, report, plans)
        with counting() as work, naming_errors(self._solver, self._pair[:1]):
            turn = self._turn(known, evaluations, seconds, watch)
        return dataclasses.replace(turn, work=work)

    def _turn(
        self,
        known: Sequence[Plan],
        evaluations: int,
        seconds: float | None,
        watch: "_Watch",
    ) -> Turn:
        self._seconds = seconds
        plans: list[Plan] = []
        while_it_pays = self._first and self._while_it_pays
        shown = {}
        if self._first and self._contraction is not None:
            shown["contracted"] = self._contraction.graph.num_ops
            plans += self._race(self._contraction, known, evaluations, watch)
        self._first = False
        if watch.status is Status.BUDGET:
            if self._search is None:
                begin = sorted([*plans, *known], key=lambda plan: plan.sort_key)
                self._search = self._begin(*self._pair, begin)
            steps = turns.most_steps(contracted=False) if while_it_pays else None
            watch.run(self._search, evaluations, steps, self._found)
        found = None if self._search is None else self._found(self._search)
        plans += [] if found is None else [found]
        plans.sort(key=lambda plan: plan.sort_key)
        best = known[0] if known else None
        gained = turns.improves(best, plans[0] if plans else None)
        return watch.turn(self._stage, tuple(plans), evaluations, shown, gained=gained)

    def _begin(self, graph: ComputationGraph, cluster: Cluster, starts: Sequence[Plan]) -> HostSearch:
        instance = instance_of(graph, cluster, self._settings, starts, self._run, seconds=self._seconds)
        search = self._solver.begin(instance)
        if not isinstance(search, HostSearch):
            kind = type(search).__name__
            raise ConfigError(f"{self._solver.name}: begin returned a {kind}; return a HostSearch")
        return search

    def _found(self, search: HostSearch) -> Plan | None:
        """The best plan of a search of the original graph so far."""
        found = search.plan()
        return None if found is None else self._replayed(found, self._pair[0])

    def _raced(self, search: HostSearch, graph: ComputationGraph) -> Plan | None:
        """The best plan of a search of one of two graphs so far; of our own, `Plan.from_events` is enough."""
        found = search.plan()
        return found if found is None or is_of_package(self._solver) else self._replayed(found, graph)

    def _replayed(self, found: Any, graph: ComputationGraph) -> Plan:
        return replayed(found, graph, self._pair[1], self._settings.objective, self._solver)

    def _race(
        self, contraction: Contraction, known: Sequence[Plan], evaluations: int, watch: "_Watch"
    ) -> list[Plan]:
        """Searches both graphs for a few steps, and continues with the contracted one if that is better.

        Otherwise the search of the original continues from its own state, since it might not leave the
        neighbourhood of a plan of the contracted graph.

        Returns:
          The plans found, as plans of the original, without those of the search that continues.
        """
        small, cluster = contraction.graph, self._pair[1]
        # List schedules rarely consider memory; other plans of the contracted graph are found quickly.
        begin = [] if math.isinf(min(cluster.memory)) else [run_heuristic("peak-balance", small, cluster)]
        contracted = self._begin(small, cluster, begin)
        whole = self._begin(*self._pair, known)

        def expanded(search: HostSearch) -> Plan | None:
            found = self._raced(search, small)
            return None if found is None else contraction.expand(found)

        watch.run(contracted, evaluations, turns.RACE, expanded)
        if watch.status is Status.BUDGET:
            watch.run(whole, evaluations, 2 * turns.RACE, self._found)
        best, other = expanded(contracted), self._raced(whole, self._pair[0])
        leads = best is not None and (other is None or best.sort_key <= other.sort_key)
        if watch.status is Status.BUDGET and leads:
            watch.run(contracted, evaluations, turns.most_steps(contracted=True), expanded)
            best = expanded(contracted)
        else:
            self._search, other = whole, None
        return [plan for plan in (best, other) if plan is not None]


class _Watch:
    """Observes the searches of a turn, and decides when they end."""

    def __init__(
        self,
        settings: Settings,
        solver: HostSolver,
        known: Sequence[Plan],
        goal: float,
        seconds: float | None,
        interrupted: Callable[[], bool],
        report: Report | None,
        plans: bool,
    ) -> None:
        self.status = Status.BUDGET
        self._settings, self._goal, self._interrupted = settings, goal, interrupted
        self._solver = solver
        self._report, self._plans = report, plans
        self._quiet = Deadline(_EVERY)
        self._deadline = Deadline(seconds)
        self._steps = self._spent = self._last = 0
        self._whole = False
        self._least = known[0].objective_value if known and known[0].feasible else math.inf
        self._evaluations, self._best = [0], [self._least]
        self._told = self._known = self._least

    def run(
        self,
        search: HostSearch,
        evaluations: int,
        steps: int | None,
        found: Callable[[HostSearch], Plan | None],
    ) -> None:
        """Runs a search up to this number of evaluations of the turn, or of steps while it improves.

        ``found`` makes the plan of the graph from the search.
        """
        before = search.evaluations

        def ends() -> bool:
            if self._report is not None and self._quiet.over:
                self._tell(self._report, search, before, found)
            return self._ends(search, before)

        if steps is None:
            self._run(search, evaluations - self._spent, ends)
            self._whole = True
        else:
            while self._steps < steps and self.status is Status.BUDGET:
                self._steps += 1
                last = turns.step_evaluations(evaluations, self._steps) - self._spent
                self._run(search, last - (search.evaluations - before), ends)
                if not turns.pays(search, evaluations):
                    break
        if not is_of_package(self._solver):
            plan = found(search)
            if plan is not None and plan.feasible:
                self._known = min(self._known, plan.objective_value)
            check_claims(search, self._solver, self._known)
        self._note(search, before)

    def _run(self, search: HostSearch, evaluations: int, ends: Callable[[], bool]) -> None:
        before = search.evaluations
        search.run(evaluations, ends, self._goal)
        check_counts(search, self._solver, before, evaluations)

    def _tell(
        self,
        report: Report,
        search: HostSearch,
        before: int,
        found: Callable[[HostSearch], Plan | None],
    ) -> None:
        clock, plan = Deadline(), None
        if self._plans and search.best < self._told:
            plan, self._told = found(search), search.best
        report(self._spent + search.evaluations - before, plan)
        self._quiet = Deadline(max(_EVERY, clock.spent / _PLANS_SHARE))

    def _ends(self, search: HostSearch, before: int) -> bool:
        done, last = self._spent + search.evaluations - before, self._last
        if search.history:
            last = max(last, self._spent + search.history[-1][0] - before)
        stall = math.inf if self._settings.stall is None else self._settings.stall
        judged = Status(int(status_of(min(self._least, search.best), done, last, self._goal, stall)))
        if self._interrupted():
            self.status = Status.INTERRUPTED
        elif judged is not Status.RUNNING:
            self.status = judged
        elif done and self._deadline.over:
            self.status = Status.TIME
        return self.status is not Status.BUDGET

    def _note(self, search: HostSearch, before: int) -> None:
        for done, value in search.history:
            if done > before and value is not None and value < self._best[-1]:
                self._evaluations.append(self._spent + done - before)
                self._best.append(value)
                self._last = self._evaluations[-1]
        self._least = min(self._least, search.best)
        self._spent += search.evaluations - before

    def turn(
        self,
        stage: int,
        plans: tuple[Plan, ...],
        evaluations: int,
        shown: dict[str, Any],
        *,
        gained: bool,
    ) -> Turn:
        """The result of all searches."""
        if self._evaluations[-1] < self._spent:
            self._evaluations.append(self._spent)
            self._best.append(self._best[-1])
        if plans and plans[0].feasible:
            # The search does not compare all transfers that its plan is made with.
            self._best[-1] = min(self._best[-1], plans[0].objective_value)
        best = [None if math.isinf(x) else x for x in self._best]
        used = evaluations if self._whole else turns.step_evaluations(evaluations, self._steps)
        if used - self._spent >= max(1, turns.step_evaluations(evaluations, 1)):
            # The rest of a budget may be too small for a last step; other stages can use it.
            used = self._spent
        return Turn(
            stage=stage,
            budget=used,
            evaluations=self._spent,
            plans=plans,
            gained=gained,
            history={"evaluations": self._evaluations, "best": best},
            status=self.status,
            seconds=self._deadline.spent,
            shown=shown,
        )


def begin_run(
    graph: ComputationGraph, cluster: Cluster, settings: Settings, number: int, run: int = 0
) -> HostRun:
    """The searches of a graph in the stage with this number, with the contraction of the graph if it pays."""
    agenda = settings.agenda(cluster.num_devices)
    stage = agenda.stages[number]
    if not isinstance(stage, HostStage):
        raise TypeError(f"stage {number} is none of the host")
    contraction = None
    if stage.contracts and settings.contract is None:
        made = contract_for(graph, cluster, settings.objective)
        worth = made.graph.num_ops <= turns.WORTH_CONTRACTING * graph.num_ops
        contraction = made if worth else None
    return HostRun(
        graph,
        cluster,
        settings,
        stage=number,
        solver=stage.solver,
        while_it_pays=number == 0 and agenda.shares is None and len(agenda.stages) > 1,
        contraction=contraction,
        run=run,
    )


def instance_of(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    starts: Sequence[Plan] = (),
    run: int = 0,
    **more: Any,
) -> Instance:
    """The input of a solver on the host in this run, from the settings of a call."""
    seed = (*settings.key_words, *graph_identities([graph])[0].tolist(), *([run] if run else []))
    return Instance(graph, cluster, settings.objective, seed, starts, settings.number, **more)
