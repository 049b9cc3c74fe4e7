"""One call, whatever ends it: heuristics, then batch after batch, and a plan for every graph."""

import bisect
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import Final

import jax

from regal_jax.api.batches import Batch, Share, make_batch
from regal_jax.api.host_search import HostResult, search_on_host
from regal_jax.api.outcome import decoded_plan, fallback, heuristic_plan, searched_plan, settled_plan
from regal_jax.api.progress import Bar
from regal_jax.api.settings import Settings
from regal_jax.api.watch import Watch
from regal_jax.cores import available_cores
from regal_jax.encoding import Proposal
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import heuristic_plans
from regal_jax.interrupts import check_interrupt, first_interrupt_waits
from regal_jax.plan import Contraction, Plan
from regal_jax.search import Progress, Status, Stopping
from regal_jax.solve import graph_keys, solve_in_parts

__all__ = ["Call"]

_BLINK: Final = 0.1
"""Seconds."""


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
        self._hosted: list[HostResult | None] = [None for _ in pairs]
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
            for i, pair in enumerate(self._pairs):
                if i not in self._plans:
                    self._done(i, fallback(*pair, settings, self._known[i], ended, self._hosted[i]))
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
        for i, (pair, known) in enumerate(zip(self._pairs, self._known, strict=True)):
            whole = self._best_uncontracted[i]
            best = [*known[:1], *([] if whole is None else [whole])]
            if i not in self._plans and any(plan.optimal for plan in best):
                hosted = self._hosted[i]
                with first_interrupt_waits():
                    self._done(i, settled_plan(*pair, self._settings, known, Status.OPTIMAL, hosted))

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
        if self._run_host_searches(bar):
            return Status.INTERRUPTED
        self._finish_optimal()
        for share in shares:
            left_over = [i for i in share.members if i not in self._plans]
            if not left_over:
                continue
            share = dataclasses.replace(share, members=left_over)
            batch = make_batch(share, self._pairs, self._known, self._settings.parts[0].config)
            left = self._seconds_left()
            if left is not None and left <= 0:
                return Status.TIME
            if self._search(batch, left, bar):
                return Status.INTERRUPTED
        return Status.BUDGET

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

    def _run_host_searches(self, bar: Bar) -> bool:
        """Those that the method has, on all cores; tells whether Ctrl-C ended them."""
        settings = self._settings
        budgets = [settings.host_evaluations(cluster.num_devices) for _, cluster in self._pairs]
        todo = [i for i, budget in enumerate(budgets) if budget and i not in self._plans]
        if not todo:
            return False
        bar.say("searching on the host")
        workers = min(available_cores(), len(todo))
        # In a method that goes on afterwards, they get as much of the time as of the budget.
        left, seconds = self._seconds_left(), None
        if left is not None:
            seconds = max(left, 0) * max(budgets) / settings.evaluations / math.ceil(len(todo) / workers)
        # Compiled loops hold no lock, and each search has its own random numbers.
        with first_interrupt_waits() as interrupted, ThreadPoolExecutor(workers) as pool:

            def search(i: int) -> HostResult:
                known, pair = self._known[i], self._pairs[i]
                return search_on_host(*pair, settings, known, seconds=seconds, interrupted=interrupted)

            running = {pool.submit(search, i): i for i in todo}
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

    def _searched_on_host(self, member: int, result: HostResult, bar: Bar) -> None:
        self._hosted[member] = result
        if result.plan is not None:
            self._know(member, result.plan, result.evaluations)
        bar.advance(result.evaluations)
        if not self._settings.parts:
            known = self._known[member]
            self._done(
                member, settled_plan(*self._pairs[member], self._settings, known, result.status, result)
            )

    def _search(self, batch: Batch, left: float | None, bar: Bar) -> bool:
        """Finds the plans of one batch; tells whether Ctrl-C ended that."""
        settings = self._settings
        keys = graph_keys(settings.key, batch.graphs)
        proposal = self._proposal(batch, keys)
        # Of every graph, whatever it did with the rest: in other company it must get the same.
        budget = settings.evaluations - settings.host_evaluations(batch.clusters[0].num_devices)
        target = batch.goals(settings.target, settings.objective)
        # Search and replays together: genes that nobody has replayed yet are no plans.
        with first_interrupt_waits() as interrupted:
            result = solve_in_parts(
                batch.problem,
                keys,
                Stopping(budget, stall=settings.stall, target=target, seconds=left),
                settings.parts,
                objective=settings.objective,
                proposal=proposal,
                warm=batch.warm,
                callback=self._follow(batch, bar.follow(len(batch.members), budget)),
                mesh=batch.mesh,
            )
            for row, member in enumerate(batch.members):
                check_interrupt()
                hosted = self._hosted[member]
                self._done(member, searched_plan(batch, row, result, settings, proposal, hosted))
        return interrupted() or Status.INTERRUPTED in result.status

    def _follow(self, batch: Batch, bar: Callable[[Progress], None]) -> Callable[[Progress], None]:
        """``bar``, and what tells of better plans."""
        made, hosted = self._contractions, [self._hosted[member] for member in batch.members]

        def decode(row: int, progress: Progress) -> Plan:
            plan = decoded_plan(batch, row, progress.genes, self._settings)
            return plan if made is None else made[batch.members[row]].expand(plan)

        before = [0 if one is None else one.evaluations for one in hosted]
        return self._watch.follow(batch.members, before, decode, bar)

    def _proposal(self, batch: Batch, keys: jax.Array) -> Proposal | None:
        """What the policy says of a batch, if there is one."""
        policy = self._settings.guide(batch.clusters[0].num_devices)
        if policy is None:
            return None
        from regal_jax.solve.propose import propose

        return propose(policy, batch.graphs, batch.clusters, batch.problem, keys)
