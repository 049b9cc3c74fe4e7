"""One call of `optimize_many`: heuristics, then searches in batches, and a plan for every graph."""

import bisect
import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Final

import jax
import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import XLA_ORDERS, Work, counting, heuristic_plans
from regal_jax.heuristics.hurry import until
from regal_jax.plan import Contraction, Plan, contract_for
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, first_interrupt_waits
from regal_jax.search import Progress, Status, Stopping
from regal_jax.solve import graph_keys, solve_in_parts
from regal_jax.solvers import Constructive, DeviceStage, HostStage
from regal_jax.solvers.loop.batches import Batch, Share, make_batch, narrowed
from regal_jax.solvers.loop.host_turns import HostRun
from regal_jax.solvers.loop.outcome import Start, constructed_plans, decoded_plan, device_turn, finished_plan
from regal_jax.solvers.loop.progress import Bar
from regal_jax.solvers.loop.settings import Settings
from regal_jax.solvers.loop.turns import WORTH_CONTRACTING, Turn, is_settled, next_turn
from regal_jax.solvers.loop.watch import Watch

__all__ = ["Call"]

_TOGETHER: Final = 4
"""Graphs for each core."""
_BLINK: Final = 0.1
"""Seconds."""
_HEURISTICS_TIME: Final = 0.3
"""Share of a time limit that heuristics may use before a search; the first of each graph always runs."""


class Call:
    """The state of a call: known plans and finished graphs, which survive an interrupt at any time."""

    def __init__(
        self,
        pairs: Sequence[tuple[ComputationGraph, Cluster]],
        settings: Settings,
        on_plan: Callable[[int, Plan], object] | None,
        *,
        contractions: Sequence[Contraction] | None,
        earlier: Sequence[Sequence[Plan]],
        watch: Watch,
        deadline: Deadline,
    ) -> None:
        self._pairs = pairs
        self._contractions = contractions
        self._settings = settings
        self._on_plan = on_plan
        self._known = [list(plans) for plans in earlier]
        self._turns: list[list[Turn]] = [[] for _ in pairs]
        self._on_host: dict[tuple[int, int], HostRun] = {}
        self._starts = [Start() for _ in pairs]
        self._best_uncontracted: list[Plan | None] = [None] * len(pairs)
        if contractions is not None:
            self._known = [
                list(map(c.project, plans)) for c, plans in zip(contractions, earlier, strict=True)
            ]
            self._best_uncontracted = [next(iter(plans), None) for plans in earlier]
            for known in self._known:
                known.sort(key=lambda plan: plan.sort_key)
        self._plans: dict[int, Plan] = {}
        self._watch = watch
        self._deadline = deadline

    def run(self, shares: Sequence[Share]) -> list[Plan]:
        """One plan per graph, in the order of the graphs.

        Raises:
          KeyboardInterrupt: It came before any graph had a plan.
        """
        settings = self._settings
        solver = settings.solver
        searching = solver.searches
        try:
            with Bar(len(self._pairs) * settings.evaluations, enabled=settings.progress and searching) as bar:
                ended = (
                    self._construct(solver)
                    if isinstance(solver, Constructive)
                    else self._search_all(shares, bar)
                )
        except KeyboardInterrupt:
            if not self._plans and not any(self._known):
                raise
            ended = Status.INTERRUPTED
        with first_interrupt_waits():
            for i in range(len(self._pairs)):
                if i not in self._plans:
                    self._finish(i, ended)
        return [self._plans[i] for i in range(len(self._pairs))]

    def _done(self, member: int, plan: Plan) -> None:
        if self._contractions is not None:
            plan = self._contractions[member].expand(plan)
            other = self._best_uncontracted[member]
            if other is not None and other.sort_key < plan.sort_key:
                best_from = {"best_from": other.provenance["method"]}
                plan = dataclasses.replace(other, provenance={**plan.provenance, **best_from})
            if plan.provenance.get("stopped") == "optimal" and not plan.optimal:
                # Only the contracted graph was solved to optimality.
                ended = {"stopped": "contraction optimal"}
                plan = dataclasses.replace(plan, provenance={**plan.provenance, **ended})
        self._plans[member] = plan
        self._watch.see(member, plan, plan.provenance.get("evaluations", 0))
        if self._on_plan is not None:
            self._on_plan(member, plan)

    def _know(self, member: int, plan: Plan, evaluations: int = 0) -> None:
        """Inserts ``plan`` into the known plans, best first; an interrupt keeps it."""
        bisect.insort(self._known[member], plan, key=lambda plan: plan.sort_key)
        self._tell(member, plan, evaluations)

    def _tell(self, member: int, plan: Plan, evaluations: int) -> None:
        if self._watch.enabled:
            made = self._contractions
            self._watch.see(member, plan if made is None else made[member].expand(plan), evaluations)

    def _finish_optimal(self) -> None:
        """Finishes the graphs with a plan that meets its lower bound: they need no search."""
        for i in range(len(self._pairs)):
            if i not in self._plans and self._meets_bound(i):
                with first_interrupt_waits():
                    self._finish(i, Status.OPTIMAL)

    def _meets_bound(self, member: int) -> bool:
        whole = self._best_uncontracted[member]
        best = [*self._known[member][:1], *([] if whole is None else [whole])]
        return any(plan.optimal for plan in best)

    def _finish(self, member: int, ended: Status | None = None) -> None:
        known, turns = self._known[member], self._turns[member]
        self._done(
            member,
            finished_plan(*self._pairs[member], self._settings, known, turns, self._starts[member], ended),
        )

    def _construct(self, solver: Constructive) -> Status:
        for first in range(0, len(self._pairs), solver.together):
            pairs = self._pairs[first : first + solver.together]
            plans = constructed_plans(pairs, self._settings, solver, self._deadline.left)
            with first_interrupt_waits() as interrupted:
                for i, plan in enumerate(plans, first):
                    self._done(i, plan)
            if interrupted():
                return Status.INTERRUPTED
        return Status.BUDGET

    def _search_all(self, shares: Sequence[Share], bar: Bar) -> Status:
        """Searches until all graphs are done or something ends it; returns what, if graphs are left."""
        if self._settings.warm_start:
            bar.say("heuristics")
            self._run_heuristics()
        self._finish_optimal()
        for members, some in self._together(shares):
            ended = self._search_some(members, some, bar)
            if ended is not Status.BUDGET:
                return ended
        return Status.BUDGET

    def _together(self, shares: Sequence[Share]) -> Iterator[tuple[list[int], list[Share]]]:
        """Groups of graphs whose turns alternate, with their shares: small, but with work for all cores."""
        members: list[int] = []
        some: list[Share] = []
        for share in shares:
            members, some = [*members, *share.members], [*some, share]
            if len(members) >= _TOGETHER * available_cores():
                yield members, some
                members, some = [], []
        if not shares:
            members = list(range(len(self._pairs)))
        yield members, some

    def _search_some(self, members: Sequence[int], shares: Sequence[Share], bar: Bar) -> Status:
        """All turns of these graphs."""
        while True:
            due = {i: self._due(i) for i in members if i not in self._plans}
            due = {i: turn for i, turn in due.items() if turn is not None}
            if not due:
                return Status.BUDGET
            if self._deadline.over:
                return Status.TIME
            stages = {i: self._stage(i, stage) for i, (stage, _) in due.items()}
            if self._run_host_searches({i: due[i] for i in due if isinstance(stages[i], HostStage)}, bar):
                return Status.INTERRUPTED
            turns = {i: due[i] for i in due if isinstance(stages[i], DeviceStage)}
            for share, stage, budget, number in self._in_calls(shares, turns):
                if self._deadline.over:
                    return Status.TIME
                if self._search(share, stage, budget, number, bar):
                    return Status.INTERRUPTED

    def _stage(self, member: int, stage: int) -> HostStage | DeviceStage:
        return self._settings.agenda(self._pairs[member][1].num_devices).stages[stage]

    def _due(self, member: int) -> tuple[int, int] | None:
        """The next stage of each graph, and its budget."""
        agenda = self._settings.agenda(self._pairs[member][1].num_devices)
        settled = is_settled(next(iter(self._known[member]), None))
        return next_turn(self._turns[member], self._settings.evaluations, agenda, settled=settled)

    def _took(self, member: int, turn: Turn) -> None:
        """Records the result of a turn; the graph is finished if no other turn follows."""
        before = sum(one.evaluations for one in self._turns[member])
        self._turns[member].append(turn)
        for plan in turn.plans:
            self._know(member, plan, before + turn.evaluations)
        if self._meets_bound(member):
            self._finish(member, Status.OPTIMAL)
        elif self._due(member) is None:
            self._finish(member)

    def _in_calls(
        self, shares: Sequence[Share], due: dict[int, tuple[int, int]]
    ) -> Iterator[tuple[Share, int, int, int]]:
        """The graphs that are ``due``, grouped by stage, budget and number of earlier turns of that kind."""
        for share in shares:
            groups: dict[tuple[int, int, int], list[int]] = {}
            for member in share.members:
                if member in due:
                    before = (self._stage(member, turn.stage) for turn in self._turns[member])
                    times = sum(isinstance(stage, DeviceStage) for stage in before)
                    groups.setdefault((*due[member], times), []).append(member)
            for (stage, budget, times), members in groups.items():
                for narrow in narrowed(share, members):
                    yield narrow, stage, budget, times

    def _run_heuristics(self) -> None:
        """Runs as many heuristics as there is time for, at least one per graph."""
        for i in range(len(self._pairs)):
            clock = Deadline()
            with counting() as work:
                self._run_heuristics_of(i)
            self._starts[i] = Start(clock.spent, work)

    def _run_heuristics_of(self, member: int) -> None:
        graph, cluster = self._pairs[member]
        for plan in self._plans_of(graph, cluster):
            self._know(member, plan)
        if self._contractions is None or self._contractions[member].original is graph:
            return
        # Plans of the original graph can use choices that merging removes.
        for plan in self._plans_of(self._contractions[member].original, cluster):
            best = self._best_uncontracted[member]
            if best is None or plan.sort_key < best.sort_key:
                self._best_uncontracted[member] = plan
                self._watch.see(member, plan, 0)

    def _plans_of(self, graph: ComputationGraph, cluster: Cluster) -> Iterator[Plan]:
        # XLA's orders are made whatever the time limit, so that no result needs more memory than they do.
        always = len(XLA_ORDERS) if cluster.num_devices == 1 else 1
        plans = heuristic_plans(graph, cluster, self._settings.objective, seed=self._settings.number)
        heuristics = self._deadline.part(_HEURISTICS_TIME)
        for made in itertools.count(1):
            with until(heuristics):
                plan = next(plans, None)
            if plan is None:
                return
            yield plan
            check_interrupt()
            if heuristics.over and made >= always:
                return

    def _run_host_searches(self, due: dict[int, tuple[int, int]], bar: Bar) -> bool:
        """Runs the host searches that are due, and the host stages that follow them, on all cores.

        Returns:
          Whether Ctrl-C ended them.
        """
        if not due:
            return False
        bar.say("searching on the host")
        workers = min(available_cores(), len(due))
        left, seconds = self._deadline.left, None
        if left is not None:
            others = any(len(self._settings.agenda(self._pairs[i][1].num_devices).stages) > 1 for i in due)
            stages = [self._stage(i, stage) for i, (stage, _) in due.items()]
            times = [stage.time for stage in stages if isinstance(stage, HostStage)]
            share = min(times) if others else 1.0
            # The time is for all graphs that are not done, of which these are the first.
            seconds = left * share / math.ceil((len(self._pairs) - len(self._plans)) / workers)
        # Compiled loops hold no lock, and each search has its own random numbers.
        with first_interrupt_waits() as interrupted, ThreadPoolExecutor(workers) as pool:

            def search(i: int, stage: int, evaluations: int) -> Turn:
                if (i, stage) not in self._on_host:
                    self._on_host[i, stage] = self._host_run(i, stage)
                return self._on_host[i, stage].turn(
                    self._known[i], evaluations, seconds=seconds, interrupted=interrupted
                )

            running = {pool.submit(search, i, *turn): i for i, turn in due.items()}
            try:
                while running and not interrupted():
                    # Short, since Python handles signals only between two bytecodes.
                    done, _ = wait(running, timeout=_BLINK, return_when=FIRST_COMPLETED)
                    for future in done:
                        i = running.pop(future)
                        self._searched_on_host(i, future.result(), bar)
                        turn = None if i in self._plans or interrupted() else self._due(i)
                        # Begin the next turn at once, so that no core is idle. Turns with a share of the time
                        # limit must wait for their start.
                        if turn and seconds is None and isinstance(self._stage(i, turn[0]), HostStage):
                            running[pool.submit(search, i, *turn)] = i
            finally:
                pool.shutdown(cancel_futures=True)
            for future, i in running.items():
                if not future.cancelled():
                    self._searched_on_host(i, future.result(), bar)
        return interrupted()

    def _host_run(self, member: int, number: int) -> HostRun:
        settings, (graph, cluster) = self._settings, self._pairs[member]
        agenda = settings.agenda(cluster.num_devices)
        stage = agenda.stages[number]
        if not isinstance(stage, HostStage):
            raise TypeError(f"stage {number} is none of the host")
        contraction = None
        if stage.contracts and settings.contract is None:
            made = contract_for(graph, cluster, settings.objective)
            contraction = made if made.graph.num_ops <= WORTH_CONTRACTING * graph.num_ops else None
        return HostRun(
            graph,
            cluster,
            settings,
            stage=number,
            solver=stage.solver,
            while_it_pays=number == 0 and agenda.shares is None and len(agenda.stages) > 1,
            contraction=contraction,
        )

    def _searched_on_host(self, member: int, turn: Turn, bar: Bar) -> None:
        bar.advance(turn.evaluations)
        self._took(member, turn)

    def _search(self, share: Share, number: int, budget: int, times: int, bar: Bar) -> bool:
        """Runs one turn of a batch in a compiled program; returns whether Ctrl-C ended it."""
        settings, stage = self._settings, self._stage(share.members[0], number)
        if not isinstance(stage, DeviceStage):
            raise TypeError(f"stage {number} is one of the host")
        config, encoding = stage.parts[0].config, stage.encoding
        batch = make_batch(share, self._pairs, self._known, config, encoding, settings.objective)
        left = self._deadline.left
        if self._deadline.over:
            return False
        key = jax.random.fold_in(settings.key, np.uint32(times)) if times else settings.key
        keys = graph_keys(key, batch.graphs)
        with counting() as counted:
            proposal = None
            if stage.guide is not None:
                given = batch.graphs, batch.clusters, batch.problem
                proposal = stage.guide.propose(*given, keys, settings.objective)
        drawn_from = stage.encoding.proposal(batch.problem, proposal)
        # If the guide has counted work, each graph has its own part of it.
        parts = counted.parts or [Work()] * len(batch.graphs)
        target = batch.goals(settings.target, settings.objective)
        # Search and replays are one unit: genes become plans only when they have been replayed.
        with first_interrupt_waits() as interrupted:
            result = solve_in_parts(
                batch.problem,
                keys,
                Stopping(budget, stall=settings.stall, target=target, seconds=left),
                stage.parts,
                objective=settings.objective,
                proposal=drawn_from,
                encoding=stage.encoding,
                warm=batch.warm,
                callback=self._follow(batch, bar.follow(len(batch.members), budget)),
                mesh=batch.mesh,
            )
            for row, member in enumerate(batch.members):
                check_interrupt()
                self._took(
                    member, device_turn(batch, row, result, settings, number, budget, proposal, parts[row])
                )
        return interrupted() or Status.INTERRUPTED in result.status

    def _follow(self, batch: Batch, bar: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """The callback of ``bar``, and of the watch for better plans."""
        made = self._contractions

        def decode(row: int, progress: Progress) -> Plan:
            plan = decoded_plan(batch, row, progress.genes, self._settings)
            return plan if made is None else made[batch.members[row]].expand(plan)

        before = [sum(turn.evaluations for turn in self._turns[member]) for member in batch.members]
        return self._watch.follow(batch.members, before, decode, bar)
