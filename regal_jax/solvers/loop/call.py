"""One call of `optimize_many`: heuristics, then searches in batches, and a plan for every graph."""

import collections
import dataclasses
import functools
import math
import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import jax
import numpy as np

from regal_jax.heuristics import Work, counting
from regal_jax.plan import Plan
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import (
    check_interrupt,
    first_interrupt_waits,
    interrupts_wait,
    stopped_by,
)
from regal_jax.search import Progress, Status, Stopping
from regal_jax.solve import graph_keys, solve_in_parts
from regal_jax.solvers import Constructive, DeviceStage, HostStage
from regal_jax.solvers.loop.batches import Batch, Share, is_alone, make_batch, narrowed
from regal_jax.solvers.loop.host_turns import HostRun, begin_run
from regal_jax.solvers.loop.members import Members
from regal_jax.solvers.loop.outcome import (
    Start,
    constructed_plans,
    decoded_plan,
    device_turn,
    ended_with,
    finished_plan,
)
from regal_jax.solvers.loop.pool import HostPool
from regal_jax.solvers.loop.progress import Bar
from regal_jax.solvers.loop.replayed import naming_errors, replayed
from regal_jax.solvers.loop.starts import starting_plans
from regal_jax.solvers.loop.turns import Turn

__all__ = ["Call"]

_TOGETHER: Final = 4
"""Graphs for each core."""
_AHEAD: Final = 8
"""Largest number of turns for each core that may wait for a thread before more heuristics run."""
_SPENT: Final = ("budget", "stall")
"""Ends of a search after which a solver may finish the plan."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Group:
    """Graphs whose turns alternate.

    Attributes:
      shares: Their shares, for turns in compiled programs.
      pool: Runs their turns on the host.
      interrupted: Whether there was a Ctrl-C.
      eager: Whether heuristics and turns in compiled programs run while the host searches other graphs.
      due: The turns that have not begun, by graph: stage and budget.
    """

    shares: Sequence[Share]
    pool: HostPool
    interrupted: Callable[[], bool]
    eager: bool
    due: dict[int, tuple[int, int]] = dataclasses.field(default_factory=dict)


class Call:
    """Runs heuristics and turns until every member is done. What is known survives an interrupt at any time.

    Args:
      members: The runs of the graphs.
      deadline: Of the call.
    """

    def __init__(self, members: Members, deadline: Deadline) -> None:
        self._members, self._pairs, self._settings = members, members.pairs, members.settings
        self._on_host: dict[tuple[int, int], HostRun] = {}
        self._reports: queue.SimpleQueue[tuple[int, int, Plan | None]] = queue.SimpleQueue()
        """Members, evaluations of their turns and better plans, which searches on the host report."""
        self._reported: collections.Counter[int] = collections.Counter()
        """Evaluations of its present turn that a member has reported."""
        self._starts = [Start() for _ in members.pairs]
        self._heuristic: dict[int, list[Plan]] = {}
        """Plans of heuristics of the graph that began last, by its first run."""
        self._deadline = deadline
        self._threads: tuple[HostPool, Callable[[], bool]] | None = None
        """Threads for the solver's `finish`, and whether there was a Ctrl-C; none if no task may begin."""
        self._results: collections.deque[tuple[int, Callable[[], Turn | Plan]]] = collections.deque()
        """Results of turns that have ended and are not recorded yet; an interrupt keeps them."""
        self._made: dict[int, Plan] = {}
        """Plans of searches, as given to the solver's `finish`."""

    def run(self, shares: Sequence[Share]) -> list[Plan]:
        """One plan per graph, in the order of the graphs: the best of its runs.

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
            if not self._members.plans and not any(self._members.known) and not self._results:
                raise
            ended = Status.INTERRUPTED
        with first_interrupt_waits():
            for _ in self._record():
                check_interrupt()
            for i in range(len(self._pairs)):
                if i in self._made and i not in self._members.plans:
                    self._members.done(i, self._made[i])
                elif i not in self._members.plans:
                    self._finish(i, ended)
        return self._members.best()

    def _finish(self, member: int, ended: Status | None = None) -> None:
        """Makes the plan of a graph without further turns; after its budget the solver may replace it."""
        for searched in [key for key in self._on_host if key[0] == member]:
            del self._on_host[searched]
        known, turns, settings = self._members.known[member], self._members.turns[member], self._settings
        plan = finished_plan(*self._pairs[member], settings, known, turns, self._starts[member], ended)
        spent = ended is None and not self._members.contracted and plan.provenance["stopped"] in _SPENT
        if spent and self._threads is not None and settings.solver.finishes:
            pool, interrupted = self._threads
            self._made[member] = plan
            pool.submit(member, self._finished_by_solver, member, plan, interrupted)
        else:
            self._members.done(member, plan)

    def _finished_by_solver(self, member: int, plan: Plan, interrupted: Callable[[], bool]) -> Plan:
        """The plan after the solver's `finish`, which runs in a thread, unless there was a Ctrl-C before."""
        if interrupted():
            return plan
        left, clock = self._deadline.left, Deadline()
        seconds = math.inf if left is None else left
        pair, solver, evaluations = self._pairs[member], self._settings.solver, self._settings.evaluations
        with stopped_by(interrupted), naming_errors(solver, pair[:1]):
            made = solver.finish(*pair, plan, evaluations, seconds)
        if made is plan:
            return plan
        made = replayed(made, *pair, self._settings.objective, solver)
        said = dict(made.provenance)
        said["seconds"] = round(plan.provenance["seconds"] + clock.spent, 6)
        if made.sort_key < plan.sort_key:
            said.pop("best_from", None)
            target = self._settings.target
            if made.optimal:
                said["stopped"] = "optimal"
            elif target is not None and made.feasible and made.objective_value <= target:
                said["stopped"] = "target"
            if "history" in said:
                said["history"] = ended_with(said["history"], said["evaluations"], made)
        return dataclasses.replace(made, provenance=said)

    def _construct(self, solver: Constructive) -> Status:
        for first in range(0, len(self._pairs), solver.together):
            pairs = self._pairs[first : first + solver.together]
            plans = constructed_plans(pairs, self._settings, solver, self._deadline.left)
            with first_interrupt_waits() as interrupted:
                for i, plan in enumerate(plans, first):
                    self._members.done(i, plan)
            if interrupted():
                return Status.INTERRUPTED
        return Status.BUDGET

    def _search_all(self, shares: Sequence[Share], bar: Bar) -> Status:
        """Searches until all graphs are done or something ends it; returns what, if graphs are left."""
        # On one CPU device, a graph need not wait for the heuristics or the host turns of others.
        eager = self._deadline.seconds is None and len(self._pairs) > 1 and all(map(is_alone, shares))
        if not eager:
            bar.say("heuristics")
            for i in range(len(self._pairs)):
                self._run_heuristics(i)
        with first_interrupt_waits() as noted, HostPool(self._workers) as pool:

            def interrupted() -> bool:
                return noted() or pool.abandoned

            self._threads, ended = (pool, interrupted), Status.BUDGET
            try:
                for members, some in self._together(shares, eager=eager):
                    group = _Group(some, pool, interrupted, eager=eager)
                    ended = self._search_some(members, group, bar)
                    if ended is not Status.BUDGET:
                        break
            except KeyboardInterrupt:
                pool.abandoned, self._threads = True, None
                self._came_from_host(pool.drain(), bar)
                raise
            if ended is not Status.BUDGET:
                # `run` records these results.
                self._threads = None
                self._came_from_host(pool.drain(), bar)
        return ended

    @property
    def _workers(self) -> int:
        return max(1, min(available_cores(), len(self._pairs)))

    def _together(
        self, shares: Sequence[Share], *, eager: bool
    ) -> Iterator[tuple[Sequence[int], Sequence[Share]]]:
        """Groups of graphs whose turns alternate, with their shares: small, but with work for all cores."""
        members: list[int] = []
        some: list[Share] = []
        for share in shares:
            members, some = [*members, *share.members], [*some, share]
            if len(members) >= _TOGETHER * available_cores() and not eager:
                yield members, some
                members, some = [], []
        yield members if shares else range(len(self._pairs)), some

    def _search_some(self, members: Sequence[int], group: "_Group", bar: Bar) -> Status:
        """All turns of these graphs."""
        pool, due = group.pool, group.due
        waiting = collections.deque(members)
        while waiting or due or pool.load:
            crowded = pool.load >= _AHEAD * self._workers
            begins = bool(waiting) and not (group.eager and crowded)
            searches = bool(due) and not begins and (group.eager or not pool.load)
            with interrupts_wait():
                ended = pool.ended(patient=not (begins or searches))
                self._hear(bar)
                self._came_from_host(ended, bar)
            for i in self._record():
                self._continue(i, group)
            if group.interrupted():
                return Status.INTERRUPTED
            if self._deadline.over and (waiting or due):
                return Status.TIME
            if begins:
                self._begin(waiting.popleft(), group, bar)
            elif searches:
                ended = self._search_due(group, bar)
                if ended is not Status.BUDGET:
                    return ended
        return Status.BUDGET

    def _begin(self, member: int, group: "_Group", bar: Bar) -> None:
        if group.eager:
            bar.say("heuristics")
            self._run_heuristics(member, group.interrupted)
        if self._members.meets_bound(member):
            self._finish(member, Status.OPTIMAL)
        self._continue(member, group)

    def _continue(self, member: int, group: "_Group") -> None:
        """Begins the next turn of a graph, or notes that it is due."""
        turn = None if member in self._members.plans or group.interrupted() else self._members.due(member)
        if turn is None:
            return
        # Turns with a share of the time limit wait until it is known how many there are.
        if self._deadline.seconds is None and isinstance(self._members.stage(member, turn[0]), HostStage):
            group.pool.submit(member, self._host_turn, member, *turn, None, group.interrupted)
        else:
            group.due[member] = turn

    def _search_due(self, group: "_Group", bar: Bar) -> Status:
        """The turns that are due: those of the host first; of others only one while the host is at work."""
        stages = {i: self._members.stage(i, stage) for i, (stage, _) in group.due.items()}
        hosts = {i: stage for i, stage in stages.items() if isinstance(stage, HostStage)}
        if hosts:
            seconds = self._host_seconds()
            for i in hosts:
                arguments = i, *group.due.pop(i), seconds, group.interrupted
                group.pool.submit(i, self._host_turn, *arguments)
            return Status.BUDGET
        chosen = list(group.due)[: 1 if group.pool.load else None]
        turns = {i: group.due.pop(i) for i in chosen}
        for share, stage, budget, number in self._in_calls(group.shares, turns):
            if self._deadline.over:
                return Status.TIME
            if self._search(share, stage, budget, number, bar):
                return Status.INTERRUPTED
        for i in chosen:
            self._continue(i, group)
        return Status.BUDGET

    def _host_seconds(self) -> float | None:
        """The time limit of each turn of the host that begins now."""
        left = self._deadline.left
        if left is None:
            return None
        # The time is for all graphs that are not done, of which these are the first.
        return left / math.ceil((len(self._pairs) - len(self._members.plans)) / self._workers)

    def _host_turn(
        self,
        member: int,
        stage: int,
        evaluations: int,
        seconds: float | None,
        interrupted: Callable[[], bool],
    ) -> Turn:
        """A turn in a thread; each search has its own random numbers."""
        if (member, stage) not in self._on_host:
            self._on_host[member, stage] = begin_run(
                *self._pairs[member], self._settings, stage, self._members.run_of(member)
            )
        run = self._on_host[member, stage]
        return run.turn(
            self._members.known[member],
            evaluations,
            seconds=seconds,
            interrupted=interrupted,
            report=lambda spent, plan: self._reports.put((member, spent, plan)),
            plans=self._members.watch.enabled,
        )

    def _took(self, member: int, turn: Turn) -> None:
        """Records the result of a turn; the graph is finished if no other turn follows."""
        self._members.took(member, turn)
        if self._members.meets_bound(member):
            self._finish(member, Status.OPTIMAL)
        elif self._members.due(member) is None:
            self._finish(member)

    def _in_calls(
        self, shares: Sequence[Share], due: dict[int, tuple[int, int]]
    ) -> Iterator[tuple[Share, int, int, int]]:
        """The graphs that are ``due``, grouped by stage, budget and number of earlier turns of that kind."""
        for share in shares:
            groups: dict[tuple[int, int, int], list[int]] = {}
            for member in share.members:
                if member in due:
                    before = (self._members.stage(member, turn.stage) for turn in self._members.turns[member])
                    times = sum(isinstance(stage, DeviceStage) for stage in before)
                    groups.setdefault((*due[member], times), []).append(member)
            for (stage, budget, times), members in groups.items():
                for narrow in narrowed(share, members):
                    yield narrow, stage, budget, times

    def _run_heuristics(self, member: int, stopped: Callable[[], bool] | None = None) -> None:
        """Runs as many heuristics as there is time for, at least one."""
        if not self._settings.warm_start:
            return
        first = member - self._members.run_of(member)
        if first != member:
            # Heuristics are the same in every run.
            for plan in self._heuristic[first]:
                self._members.know(member, plan)
            self._members.share_uncontracted(member, first)
            return
        clock = Deadline()
        with counting() as work:
            self._run_heuristics_of(member, stopped)
        self._starts[member] = Start(clock.spent, work)

    def _run_heuristics_of(self, member: int, stopped: Callable[[], bool] | None) -> None:
        graph, cluster = self._pairs[member]
        rules = self._settings, self._deadline, stopped
        found: list[Plan] = []
        self._heuristic = {member: found}
        for plan in starting_plans(graph, cluster, *rules):
            found.append(plan)
            self._members.know(member, plan)
        original = self._members.original(member)
        if original is not None:
            # Plans of the original graph can use choices that merging removes.
            for plan in starting_plans(original, cluster, *rules):
                self._members.know_uncontracted(member, plan)

    def _hear(self, bar: Bar) -> None:
        """Passes on what searches on the host have reported."""
        while not self._reports.empty():
            member, spent, plan = self._reports.get()
            bar.say("searching on the host")
            bar.advance(spent - self._reported[member])
            self._reported[member] = spent
            if plan is not None:
                self._members.tell(member, plan, self._members.spent(member) + spent)

    def _came_from_host(self, results: Sequence[tuple[int, Turn | Plan]], bar: Bar) -> None:
        for member, result in results:
            self._results.append((member, lambda result=result: result))
            if isinstance(result, Turn):
                bar.advance(result.evaluations - self._reported.pop(member, 0))

    def _record(self) -> Iterator[int]:
        """Records the results that are there, and yields the member of each after it."""
        while self._results:
            member, result_of = self._results.popleft()
            with interrupts_wait():
                result = result_of()
                if isinstance(result, Plan):
                    self._members.done(member, result)
                else:
                    self._took(member, result)
            yield member

    def _search(self, share: Share, number: int, budget: int, times: int, bar: Bar) -> bool:
        """Runs one turn of a batch in a compiled program; returns whether Ctrl-C ended it."""
        settings, stage = self._settings, self._members.stage(share.members[0], number)
        if not isinstance(stage, DeviceStage):
            raise TypeError(f"stage {number} is one of the host")
        config, encoding = stage.parts[0].config, stage.encoding
        batch = make_batch(share, self._pairs, self._members.known, config, encoding, settings.objective)
        if self._deadline.over:
            return False
        key = jax.random.fold_in(settings.key, np.uint32(times)) if times else settings.key
        runs = [self._members.run_of(member) for member in batch.members]
        runs += runs[-1:] * (len(batch.graphs) - len(runs))
        keys = graph_keys(key, batch.graphs, runs)
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
                # The guide's network has had its part of the time.
                Stopping(budget, stall=settings.stall, target=target, seconds=self._deadline.left),
                stage.parts,
                objective=settings.objective,
                proposal=drawn_from,
                encoding=stage.encoding,
                warm=batch.warm,
                callback=self._follow(batch, bar.follow(len(batch.members), budget)),
                mesh=batch.mesh,
            )
            for row, member in enumerate(batch.members):
                rest = result, settings, number, budget, proposal, parts[row]
                self._results.append((member, functools.partial(device_turn, batch, row, *rest)))
            for _ in self._record():
                check_interrupt()
        return interrupted() or Status.INTERRUPTED in result.status

    def _follow(self, batch: Batch, bar: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """The callback of ``bar``, and of the watch for better plans."""

        def decode(row: int, progress: Progress) -> Plan:
            plan = decoded_plan(batch, row, progress.genes, self._settings)
            return self._members.expanded(batch.members[row], plan)

        before = [self._members.spent(member) for member in batch.members]
        return self._members.watch.follow(batch.members, before, decode, bar)
