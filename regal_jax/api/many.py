"""Batches of graphs, planned in this process or on an engine."""

import dataclasses
import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Final

from regal_jax.api.pinned import Pinned
from regal_jax.api.plausible import warn_of_units
from regal_jax.api.remote import call_message, digest_of, plan_remotely
from regal_jax.api.store import PlanStore
from regal_jax.engines import Engine
from regal_jax.errors import ConfigError, InfeasiblePlanWarning, WorkerError
from regal_jax.graph import Cluster, Colocate, ComputationGraph, Pin
from regal_jax.plan import Plan, contract_for
from regal_jax.plan.summary import shortage
from regal_jax.runtime.collection import rare_collection
from regal_jax.runtime.compiling import compile_ahead
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.stack import outer_level
from regal_jax.solvers.loop.batches import check_batches, share_out
from regal_jax.solvers.loop.call import Call
from regal_jax.solvers.loop.earlier import share_earlier
from regal_jax.solvers.loop.members import Members
from regal_jax.solvers.loop.runs import repeated
from regal_jax.solvers.loop.settings import Settings, check_pairs
from regal_jax.solvers.loop.watch import Improvement, Watch

__all__ = ["Batch", "check_and_warn", "optimize_here", "warn_of"]

_LARGE: Final = 100_000
"""Least number of ops times evaluations for which another process compiles ahead."""


@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """The arguments of `optimize_many`."""

    graphs: Sequence[ComputationGraph]
    clusters: Sequence[Cluster]
    settings: Settings
    pin: Pin | None
    colocate: Colocate
    batch_size: int | None
    devices: Sequence[Any] | None
    engine: Engine | None

    def run(
        self,
        store: str | os.PathLike[str] | None,
        on_plan: Callable[[int, Plan], object] | None,
        on_improvement: Callable[[int, Improvement], object] | None,
    ) -> list[Plan]:
        """The plans; those that ``store`` has are not made again."""
        if store is None:
            return self._plan(range(len(self.graphs)), on_plan, on_improvement)
        try:
            plans = PlanStore(store, digest_of(call_message(self.settings, self.pin, self.colocate)))
        except OSError as error:
            raise ConfigError(
                f"store: {store}: {error.strerror}; give a folder that can be written"
            ) from None
        pinned = Pinned(self.graphs, self.clusters, self.pin, self.colocate)
        pairs = list(zip(pinned.graphs, self.clusters, strict=True))
        earlier = share_earlier(pinned.restrict(self.settings.earlier), pairs, self.settings.objective)
        found = plans.found(self.graphs, self.clusters, earlier)
        missing = [member for member in range(len(self.graphs)) if member not in found]
        if on_plan is not None:
            for member, plan in found.items():
                on_plan(member, plan)

        def keep(member: int, plan: Plan) -> None:
            plans.put(self.graphs[member], self.clusters[member], plan)
            if on_plan is not None:
                on_plan(member, plan)

        try:
            made = self._plan(missing, keep, on_improvement, earlier)
        except WorkerError as error:
            given = {**found, **dict(zip(missing, error.plans, strict=True))}
            raise WorkerError(str(error), [given[member] for member in range(len(self.graphs))]) from None
        return [plan for _, plan in sorted([*found.items(), *zip(missing, made, strict=True)])]

    def _plan(
        self,
        members: Sequence[int],
        on_plan: Callable[[int, Plan], object] | None,
        on_improvement: Callable[[int, Improvement], object] | None,
        earlier: Sequence[Sequence[Plan]] | None = None,
    ) -> list[Plan]:
        """Plans of some of the graphs, here or on the engine.

        ``earlier`` has the earlier plans of all graphs, as `share_earlier` gives them, if they are known.
        """
        graphs = [self.graphs[member] for member in members]
        clusters = [self.clusters[member] for member in members]
        hashes = {graph.content_hash for graph in graphs} if self.settings.earlier else set()
        if len(members) < len(self.graphs):
            needed = tuple(plan for plan in self.settings.earlier if plan.graph_hash in hashes)
            settings = dataclasses.replace(self.settings, earlier=needed)
        else:
            settings = self.settings
        options: dict[str, Any] = {
            "batch_size": self.batch_size,
            "on_plan": _of_members(on_plan, members),
            "on_improvement": _of_members(on_improvement, members),
        }
        if self.engine is None:
            options |= {"devices": self.devices, "earlier": earlier and [earlier[m] for m in members]}
            return optimize_here(graphs, clusters, settings, self.pin, self.colocate, **options)
        if self.devices is not None:
            raise ConfigError("devices: an engine's workers use their own; leave it out")
        pairs = list(zip(graphs, clusters, strict=True))
        return plan_remotely(self.engine, pairs, settings, self.pin, self.colocate, **options)[0]


def _of_members(
    callback: Callable[[int, Any], object] | None, members: Sequence[int]
) -> Callable[[int, Any], object] | None:
    """``callback`` with the indices of the caller's list."""
    return callback and (lambda number, value: callback(members[number], value))


def warn_of(plans: Sequence[Plan], settings: Settings) -> None:
    """Warns of a policy that was not used, and of infeasible plans."""
    unguided = sum(settings.passes_over_policy(plan) for plan in plans)
    if unguided:
        more = f" for {unguided} of {len(plans)} graphs" if len(plans) > 1 else ""
        warnings.warn(
            f"policy: the policy guided no search{more}, since the search on the host took the whole budget; "
            "use method='brkga', which a policy guides",
            UserWarning,
            stacklevel=outer_level(),
        )
    over = [plan for plan in plans if not plan.feasible]
    if over:
        more = f"{len(over)} of {len(plans)} plans do not fit the memory; " if len(plans) > 1 else ""
        text = f"{more}{shortage(over[0], f' for {over[0].graph_name!r}')}"
        warnings.warn(text, InfeasiblePlanWarning, stacklevel=outer_level())


def check_and_warn(
    graphs: Sequence[ComputationGraph], clusters: Sequence[Cluster], settings: Settings
) -> None:
    """Checks types; warns once per cluster of implausible numbers and of a missing policy."""
    check_pairs(graphs, clusters)
    for cluster, graph in {cluster: graph for graph, cluster in zip(graphs, clusters, strict=True)}.items():
        warn_of_units(graph, cluster)
    for count in sorted({cluster.num_devices for cluster in clusters}):
        if settings.lacks_policy(count):
            warnings.warn(
                f"policy: none is shipped for {settings.objective} on {count} devices; auto runs without one",
                UserWarning,
                stacklevel=outer_level(),
            )


@rare_collection()
def optimize_here(
    graphs: Sequence[ComputationGraph],
    clusters: Sequence[Cluster],
    settings: Settings,
    pin: Pin | None,
    colocate: Colocate,
    *,
    batch_size: int | None,
    devices: Sequence[Any] | None,
    on_plan: Callable[[int, Plan], object] | None = None,
    on_improvement: Callable[[int, Improvement], object] | None = None,
    earlier: Sequence[Sequence[Plan]] | None = None,
) -> list[Plan]:
    deadline = Deadline(settings.time_limit)
    check_batches(batch_size, devices)  # Also where the search is on the host.
    pinned = Pinned(graphs, clusters, pin, colocate)
    counts = {cluster.num_devices for cluster in clusters}
    agendas = [settings.agenda(count) for count in counts]
    if settings.evaluations * sum(graph.num_ops for graph in graphs) >= _LARGE:
        compile_ahead([task for agenda in agendas for task in agenda.ahead(settings.objective)])
    pairs = list(zip(pinned.graphs, clusters, strict=True))
    if earlier is None:
        earlier = share_earlier(pinned.restrict(settings.earlier), pairs, settings.objective)
    made = [contract_for(*pair, settings.objective) for pair in pairs] if settings.contract else None
    if made is not None:
        pairs = list(zip((one.graph for one in made), clusters, strict=True))
    watch = Watch(pinned.releasing_improvements(on_improvement), len(pairs), deadline, settings.runs)
    pairs, earlier = repeated(pairs, settings.runs), repeated(earlier, settings.runs)
    made = made and repeated(made, settings.runs)
    on_plan = pinned.releasing(on_plan)
    members = Members(pairs, settings, on_plan, contractions=made, earlier=earlier, watch=watch)
    shares = []
    parts = [part for agenda in agendas for stage in agenda.device_stages for part in stage.parts]
    if parts:
        # Checked before the heuristics, which may take minutes.
        guided = {count for count in counts if settings.guided(count)}
        fitted = [part.config.fit(settings.evaluations) for part in parts]
        largest = max(fitted, key=lambda config: config.first_evaluations)
        shares = share_out(pairs, largest, batch_size, devices, guided)
    return [pinned.release(i, plan) for i, plan in enumerate(Call(members, deadline).run(shares))]
