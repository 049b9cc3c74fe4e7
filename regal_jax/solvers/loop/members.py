"""`Members`: what a call knows of the runs of its graphs, and their finished plans."""

import bisect
import dataclasses
from collections.abc import Callable, Sequence

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Contraction, Plan
from regal_jax.solvers import DeviceStage, HostStage
from regal_jax.solvers.loop.outcome import ended_with, proven
from regal_jax.solvers.loop.runs import best_of_runs
from regal_jax.solvers.loop.settings import Settings
from regal_jax.solvers.loop.turns import Turn, is_settled, next_turn
from regal_jax.solvers.loop.watch import Watch

__all__ = ["Members"]


class Members:
    """The members of a call: run ``r`` of graph ``i`` is member ``i * runs + r``.

    Searches see the contracted graph of a member if there are contractions. Its plans become those of the
    original graph when they are done or told.

    Args:
      pairs: Graph and cluster of each member, contracted where there are contractions.
      settings: Of the call.
      on_plan: Called with the number of a graph and its plan when all its runs are done.
      contractions: One for each member; ``None`` for none.
      earlier: Known plans of the original graph of each member, best first.
      watch: Told of improvements.

    Attributes:
      pairs: As given.
      settings: As given.
      watch: As given.
      known: Plans of each member on the graph that is searched, best first.
      turns: Turns of each member.
      plans: Plans of the original graph, by member that is done.
    """

    def __init__(
        self,
        pairs: Sequence[tuple[ComputationGraph, Cluster]],
        settings: Settings,
        on_plan: Callable[[int, Plan], object] | None,
        *,
        contractions: Sequence[Contraction] | None,
        earlier: Sequence[Sequence[Plan]],
        watch: Watch,
    ) -> None:
        self.pairs = pairs
        self.known = [list(plans) for plans in earlier]
        self.turns: list[list[Turn]] = [[] for _ in pairs]
        self.plans: dict[int, Plan] = {}
        self.settings, self.watch, self._on_plan = settings, watch, on_plan
        self._contractions = contractions
        self._best_uncontracted: list[Plan | None] = [None] * len(pairs)
        """The best known plan among those that were made for the original graph of each member."""
        if contractions is not None:
            self.known = [
                sorted(map(c.project, plans), key=lambda plan: plan.sort_key)
                for c, plans in zip(contractions, earlier, strict=True)
            ]
            self._best_uncontracted = [next(iter(plans), None) for plans in earlier]

    @property
    def contracted(self) -> bool:
        """Whether there are contractions."""
        return self._contractions is not None

    def run_of(self, member: int) -> int:
        """The number of a member among the runs of its graph."""
        return member % self.settings.runs

    def best(self) -> list[Plan]:
        """The best plan of every graph, all of whose runs are done."""
        return [self._best_of(graph) for graph in range(len(self.pairs) // self.settings.runs)]

    def _best_of(self, graph: int) -> Plan:
        runs = self.settings.runs
        return best_of_runs([self.plans[graph * runs + run] for run in range(runs)])

    def stage(self, member: int, number: int) -> HostStage | DeviceStage:
        """A stage of the member's agenda."""
        return self.settings.agenda(self.pairs[member][1].num_devices).stages[number]

    def due(self, member: int) -> tuple[int, int] | None:
        """The next stage of the member and its budget; ``None`` at the end."""
        agenda = self.settings.agenda(self.pairs[member][1].num_devices)
        settled = is_settled(next(iter(self.known[member]), None))
        return next_turn(self.turns[member], self.settings.evaluations, agenda, settled=settled)

    def spent(self, member: int) -> int:
        """Evaluations of the member's turns."""
        return sum(turn.evaluations for turn in self.turns[member])

    def meets_bound(self, member: int) -> bool:
        """Whether the best plan is optimal, by its bound or a proof."""
        whole = self._best_uncontracted[member]
        best = [*self.known[member][:1], *([] if whole is None else [whole])]
        return any(plan.optimal for plan in best) or bool(proven(self.known[member]))

    def expanded(self, member: int, plan: Plan) -> Plan:
        """A plan of the graph that is searched, on the original graph."""
        return plan if self._contractions is None else self._contractions[member].expand(plan)

    def original(self, member: int) -> ComputationGraph | None:
        """The original graph, if it differs from the one that is searched."""
        if self._contractions is None or self._contractions[member].original is self.pairs[member][0]:
            return None
        return self._contractions[member].original

    def know(self, member: int, plan: Plan, evaluations: int = 0) -> None:
        """Inserts ``plan`` into the known plans; an interrupt keeps it."""
        bisect.insort(self.known[member], plan, key=lambda plan: plan.sort_key)
        self.tell(member, plan, evaluations)

    def tell(self, member: int, plan: Plan, evaluations: int) -> None:
        """Tells the watch of a plan of the graph that is searched."""
        if self.watch.enabled:
            self.watch.see(member, self.expanded(member, plan), evaluations)

    def know_uncontracted(self, member: int, plan: Plan) -> None:
        """Notes a plan of the original graph, which need not be one of the contracted graph."""
        best = self._best_uncontracted[member]
        if best is None or plan.sort_key < best.sort_key:
            self._best_uncontracted[member] = plan
            self.watch.see(member, plan, 0)

    def share_uncontracted(self, member: int, other: int) -> None:
        """The member knows the plan of the original graph that another run of the graph knows."""
        self._best_uncontracted[member] = self._best_uncontracted[other]

    def took(self, member: int, turn: Turn) -> None:
        """Records the result of a turn."""
        self.turns[member].append(turn)
        spent = self.spent(member)
        for plan in turn.plans:
            self.know(member, plan, spent)

    def done(self, member: int, plan: Plan) -> None:
        """Takes the final plan of a member on the graph that was searched."""
        if self._contractions is not None:
            plan = self._expanded_in_the_end(member, plan)
        self.plans[member] = plan
        self.watch.see(member, plan, plan.provenance.get("evaluations", 0))
        runs = self.settings.runs
        graph = member // runs
        if self._on_plan is not None and all(graph * runs + run in self.plans for run in range(runs)):
            self._on_plan(graph, self._best_of(graph))

    def _expanded_in_the_end(self, member: int, plan: Plan) -> Plan:
        """The better of ``plan`` and the best plan of the original graph, with the former's provenance."""
        plan = self.expanded(member, plan)
        other = self._best_uncontracted[member]
        if other is not None and other.sort_key < plan.sort_key:
            best_from = {"best_from": other.provenance["method"]}
            plan = dataclasses.replace(other, provenance={**plan.provenance, **best_from})
        said = dict(plan.provenance)
        if said.get("stopped") == "optimal" and not plan.optimal:
            # Only the contracted graph was solved to optimality.
            said["stopped"] = "contraction optimal"
        if "history" in said:
            said["history"] = ended_with(said["history"], said["evaluations"], plan)
        return dataclasses.replace(plan, provenance=said)
