"""One call, whatever ends it: heuristics, then batch after batch, and a plan for every graph."""

import bisect
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Final

import jax
import numpy as np

from regal_jax.api.batches import Batch, Share, make_batch, narrowed
from regal_jax.api.budget import WORTH_CONTRACTING, Turn, Who, is_settled, next_turn
from regal_jax.api.host_search import HostRun
from regal_jax.api.outcome import accelerator_turn, decoded_plan, finished_plan, heuristic_plan
from regal_jax.api.progress import Bar
from regal_jax.api.settings import Settings
from regal_jax.api.watch import Watch
from regal_jax.cores import available_cores
from regal_jax.encoding import Proposal
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import heuristic_plans
from regal_jax.interrupts import check_interrupt, first_interrupt_waits
from regal_jax.plan import Contraction, Plan, contract_for
from regal_jax.search import Progress, Status, Stopping
from regal_jax.solve import Part, graph_keys, solve_in_parts

__all__ = ["Call"]

_TOGETHER: Final = 4
"""Graphs for each core."""
_BLINK: Final = 0.1
"""Seconds."""
_HOST_TIME: Final = 0.5
"""Share of a time limit that the host may use, if the accelerator may be needed, too."""


class Call:
    """What is known and what is done, kept in one place so that an interrupt at any moment loses neither."""

    def __init__(
        self,
        pairs: Sequence[tuple[ComputationGraph, Cluster]],
        settings: Settings,
        on_plan: Callable[[int, Plan], object] | None,
        *,
        contractions: Sequence[Contraction] | None,
        earlier: Sequence[Sequence[Plan]],
        watch: Watch,
        began: float,
    ) -> None:
        self._pairs = pairs
        self._contractions = contractions
        self._settings = settings
        self._on_plan = on_plan
        self._known = [list(plans) for plans in earlier]
        self._turns: list[list[Turn]] = [[] for _ in pairs]
        self._on_host: dict[int, HostRun] = {}
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
        self._began = began

    def run(self, shares: Sequence[Share]) -> list[Plan]:
        """One plan a graph, in their order.

        Raises:
          KeyboardInterrupt: Before there was a plan of any graph.
        """
        settings = self._settings
        searching = settings.searches
        try:
            with Bar(len(self._pairs) * settings.evaluations, enabled=settings.progress and searching) as bar:
                ended = self._search_all(shares, bar) if searching else self._run_heuristic()
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
                # Of what was searched, that is.
                ended = {"stopped": "contraction optimal"}
                plan = dataclasses.replace(plan, provenance={**plan.provenance, **ended})
        self._plans[member] = plan
        self._watch.see(member, plan, plan.provenance.get("evaluations", 0))
        if self._on_plan is not None:
            self._on_plan(member, plan)

    def _know(self, member: int, plan: Plan, evaluations: int = 0) -> None:
        """Puts ``plan`` in its place among those known, best first, where an interrupt will find it."""
        bisect.insort(self._known[member], plan, key=lambda plan: plan.sort_key)
        self._tell(member, plan, evaluations)

    def _tell(self, member: int, plan: Plan, evaluations: int) -> None:
        if self._watch.enabled:
            made = self._contractions
            self._watch.see(member, plan if made is None else made[member].expand(plan), evaluations)

    def _finish_optimal(self) -> None:
        """Graphs with a plan that meets its lower bound need no search."""
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
        self._done(member, finished_plan(*self._pairs[member], self._settings, known, turns, ended))

    def _run_heuristic(self) -> Status:
        for i, pair in enumerate(self._pairs):
            plan = heuristic_plan(*pair, self._settings)
            with first_interrupt_waits() as interrupted:
                self._done(i, plan)
            if interrupted():
                return Status.INTERRUPTED
        return Status.BUDGET

    def _search_all(self, shares: Sequence[Share], bar: Bar) -> Status:
        """Searches until all is done or something ends it; what, if graphs are left over."""
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
        """Graphs whose turns alternate, and their shares: work for all cores, but few."""
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
            left = self._seconds_left()
            if left is not None and left <= 0:
                return Status.TIME
            if self._run_host_searches({i: n for i, (who, n) in due.items() if who is Who.HOST}, bar):
                return Status.INTERRUPTED
            turns = {i: n for i, (who, n) in due.items() if who is Who.ACCELERATOR}
            for share, budget, number in self._in_calls(shares, turns):
                parts = self._settings.parts(self._pairs[share.members[0]][1].num_devices)
                batch = make_batch(share, self._pairs, self._known, parts[0].config)
                left = self._seconds_left()
                if left is not None and left <= 0:
                    return Status.TIME
                if self._search(batch, parts, budget, number, left, bar):
                    return Status.INTERRUPTED

    def _due(self, member: int) -> tuple[Who, int] | None:
        """Whose turn it is, and its budget."""
        settings, cluster = self._settings, self._pairs[member][1]
        places = settings.places(cluster.num_devices)
        settled = is_settled(next(iter(self._known[member]), None))
        return next_turn(self._turns[member], settings.evaluations, places, settled=settled)

    def _took(self, member: int, turn: Turn) -> None:
        """Notes what a turn came to; the graph is done if no other is to come."""
        before = sum(one.evaluations for one in self._turns[member])
        self._turns[member].append(turn)
        for plan in turn.plans:
            self._know(member, plan, before + turn.evaluations)
        if self._meets_bound(member):
            self._finish(member, Status.OPTIMAL)
        elif self._due(member) is None:
            self._finish(member)

    def _in_calls(self, shares: Sequence[Share], due: dict[int, int]) -> Iterator[tuple[Share, int, int]]:
        """Those that are ``due``, by budget and by how often they have been searched so."""
        for share in shares:
            groups: dict[tuple[int, int], list[int]] = {}
            for member in share.members:
                if member in due:
                    times = sum(turn.who is Who.ACCELERATOR for turn in self._turns[member])
                    groups.setdefault((due[member], times), []).append(member)
            for (budget, times), members in groups.items():
                for narrow in narrowed(share, members):
                    yield narrow, budget, times

    def _seconds_left(self) -> float | None:
        limit = self._settings.time_limit
        return None if limit is None else limit - (time.monotonic() - self._began)

    def _run_heuristics(self) -> None:
        """As many as there is time for, one a graph at least."""
        for i, (graph, cluster) in enumerate(self._pairs):
            for plan in self._plans_of(graph, cluster):
                self._know(i, plan)
            if self._contractions is None or self._contractions[i].original is graph:
                continue
            # What merging has lost would be missed by nobody else.
            for plan in self._plans_of(self._contractions[i].original, cluster):
                best = self._best_uncontracted[i]
                if best is None or plan.sort_key < best.sort_key:
                    self._best_uncontracted[i] = plan
                    self._watch.see(i, plan, 0)

    def _plans_of(self, graph: ComputationGraph, cluster: Cluster) -> Iterator[Plan]:
        for plan in heuristic_plans(graph, cluster, self._settings.objective, seed=self._settings.seed or 0):
            yield plan
            check_interrupt()
            left = self._seconds_left()
            if left is not None and left <= 0:
                return

    def _run_host_searches(self, due: dict[int, int], bar: Bar) -> bool:
        """Those of the graphs that are due, on all cores; tells whether Ctrl-C ended them."""
        if not due:
            return False
        bar.say("searching on the host")
        workers = min(available_cores(), len(due))
        left, seconds = self._seconds_left(), None
        if left is not None:
            share = _HOST_TIME if self._settings.accelerated else 1.0
            # Of all graphs that are not done: these are the first of them.
            seconds = max(left, 0) * share / math.ceil((len(self._pairs) - len(self._plans)) / workers)
        # Compiled loops hold no lock, and each search has its own random numbers.
        with first_interrupt_waits() as interrupted, ThreadPoolExecutor(workers) as pool:

            def search(i: int, evaluations: int) -> Turn:
                if i not in self._on_host:
                    self._on_host[i] = self._host_run(i)
                return self._on_host[i].turn(
                    self._known[i], evaluations, seconds=seconds, interrupted=interrupted
                )

            running = {pool.submit(search, i, evaluations): i for i, evaluations in due.items()}
            try:
                while running and not interrupted():
                    # Not longer: only between two bytecodes does Python look for signals.
                    done, _ = wait(running, timeout=_BLINK, return_when=FIRST_COMPLETED)
                    for future in done:
                        self._searched_on_host(running.pop(future), future.result(), bar)
            finally:
                pool.shutdown(cancel_futures=True)
            for future, i in running.items():
                if not future.cancelled():
                    self._searched_on_host(i, future.result(), bar)
        return interrupted()

    def _host_run(self, member: int) -> HostRun:
        settings, (graph, cluster) = self._settings, self._pairs[member]
        contraction = None
        if settings.contracts_on_host(cluster.num_devices):
            made = contract_for(graph, cluster, settings.objective)
            contraction = made if made.graph.num_ops <= WORTH_CONTRACTING * graph.num_ops else None
        return HostRun(graph, cluster, settings, contraction)

    def _searched_on_host(self, member: int, turn: Turn, bar: Bar) -> None:
        bar.advance(turn.evaluations)
        self._took(member, turn)

    def _search(
        self, batch: Batch, parts: Sequence[Part], budget: int, number: int, left: float | None, bar: Bar
    ) -> bool:
        """A turn of one batch, the graphs' ``number``-th; tells whether Ctrl-C ended that."""
        settings = self._settings
        key = jax.random.fold_in(settings.key, np.uint32(number)) if number else settings.key
        keys = graph_keys(key, batch.graphs)
        proposal = self._proposal(batch, keys)
        target = batch.goals(settings.target, settings.objective)
        # Search and replays together: genes that nobody has replayed yet are no plans.
        with first_interrupt_waits() as interrupted:
            result = solve_in_parts(
                batch.problem,
                keys,
                Stopping(budget, stall=settings.stall, target=target, seconds=left),
                parts,
                objective=settings.objective,
                proposal=proposal,
                warm=batch.warm,
                callback=self._follow(batch, bar.follow(len(batch.members), budget)),
                mesh=batch.mesh,
            )
            for row, member in enumerate(batch.members):
                check_interrupt()
                self._took(member, accelerator_turn(batch, row, result, settings, budget, proposal))
        return interrupted() or Status.INTERRUPTED in result.status

    def _follow(self, batch: Batch, bar: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """``bar``, and what tells of better plans."""
        made = self._contractions

        def decode(row: int, progress: Progress) -> Plan:
            plan = decoded_plan(batch, row, progress.genes, self._settings)
            return plan if made is None else made[batch.members[row]].expand(plan)

        before = [sum(turn.evaluations for turn in self._turns[member]) for member in batch.members]
        return self._watch.follow(batch.members, before, decode, bar)

    def _proposal(self, batch: Batch, keys: jax.Array) -> Proposal | None:
        """What the policy says of a batch, if there is one."""
        policy = self._settings.guide(batch.clusters[0].num_devices)
        if policy is None:
            return None
        from regal_jax.solve.propose import propose

        return propose(policy, batch.graphs, batch.clusters, batch.problem, keys)
