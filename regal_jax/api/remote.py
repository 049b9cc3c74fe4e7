"""Batches of graphs on an engine: what its workers are sent, and what becomes of their answers."""

import hashlib
import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np

from regal_jax.api.pinned import Pinned
from regal_jax.engines import Engine, Item, Message
from regal_jax.errors import WorkerError
from regal_jax.graph import Cluster, Colocate, ComputationGraph, Pin
from regal_jax.graph.constraints import plain_constraints
from regal_jax.importers.native import format_native
from regal_jax.plan import Plan
from regal_jax.plan.files import cluster_document
from regal_jax.problem import Bucket
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import first_interrupt_waits
from regal_jax.runtime.versions import package_versions
from regal_jax.search import Status
from regal_jax.solvers.loop.earlier import share_earlier
from regal_jax.solvers.loop.outcome import Start, finished_plan
from regal_jax.solvers.loop.progress import Bar
from regal_jax.solvers.loop.settings import Settings
from regal_jax.solvers.loop.watch import Improvement, Watch
from regal_jax.solvers.sources import outside_sources
from regal_jax.solvers.wire import pack_solver

__all__ = ["call_message", "digest_of", "plan_remotely"]

_WORK: Final = "regal_jax.api.remote_worker:plan_graphs"
_NAMES: Final = 10
"""Most names of graphs in a message."""


def call_message(settings: Settings, pin: Pin | None, colocate: Colocate) -> Message:
    """The settings of a call as values and bytes.

    Raises:
      ConfigError: The solver cannot be sent.
    """
    solver, weights = pack_solver(settings.solver)
    pins, patterns = plain_constraints(pin, colocate)
    head = {
        "version": package_versions()["regal-jax"],
        "objective": str(settings.objective),
        "evaluations": settings.evaluations,
        "seed": settings.seed,
        "key": settings.key_words,
        "key_kind": str(jax.random.key_impl(settings.key)),
        "solver": solver,
        "warm_start": settings.warm_start,
        "contract": settings.contract,
        "target": settings.target,
        "stall": settings.stall,
        "runs": settings.runs,
        "time_limit": settings.time_limit,
        "pin": {pattern: list(devices) for pattern, devices in pins.items()},
        "colocate": list(patterns),
    }
    # Solvers of the package are known by its version.
    outside = outside_sources(settings.solver)
    return Message(head | ({"sources": outside} if outside else {}), weights)


def digest_of(message: Message) -> str:
    """Digest of a message."""
    digest = hashlib.sha256(json.dumps(message.head, sort_keys=True).encode())
    for blob in message.blobs:
        digest.update(hashlib.sha256(blob).digest())
    return digest.hexdigest()[:32]


def plan_remotely(
    engine: Engine,
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    settings: Settings,
    pin: Pin | None = None,
    colocate: Colocate = (),
    *,
    batch_size: int | None = None,
    warm_up: bool = False,
    on_plan: Callable[[int, Plan], object] | None = None,
    on_improvement: Callable[[int, Improvement], object] | None = None,
) -> tuple[list[Plan], list[float]]:
    """Plans graphs on the workers of an engine, as `optimize_many` does in this process.

    Args:
      engine: The engine.
      pairs: Graphs and their clusters.
      settings: Settings of the call.
      pin: As in `optimize`.
      colocate: As in `optimize`.
      batch_size: Most graphs that a worker gets at once.
      warm_up: Whether a worker runs the first graphs of each size twice, and measures the second time.
      on_plan: As in `optimize_many`.
      on_improvement: As in `optimize_many`.

    Returns:
      One plan per graph, and the seconds that each took on its worker. Graphs that a worker got together
      share theirs equally.

    Raises:
      ConfigError: An argument is invalid, or the engine cannot be reached.
      WorkerError: Graphs were given up; it has all other plans.
      KeyboardInterrupt: Ctrl-C before there was a plan of any graph.
    """
    call = _RemoteCall(pairs, settings, pin, colocate, on_plan, on_improvement)
    return call.run(engine, batch_size, warm_up=warm_up), call.seconds


class _RemoteCall:
    """The state of a call."""

    def __init__(
        self,
        pairs: Sequence[tuple[ComputationGraph, Cluster]],
        settings: Settings,
        pin: Pin | None,
        colocate: Colocate,
        on_plan: Callable[[int, Plan], object] | None,
        on_improvement: Callable[[int, Improvement], object] | None,
    ) -> None:
        self._pairs, self._settings, self._on_plan = pairs, settings, on_plan
        self._deadline = Deadline(settings.time_limit)
        self._common = call_message(settings, pin, colocate)
        self._pinned = Pinned([graph for graph, _ in pairs], [cluster for _, cluster in pairs], pin, colocate)
        restricted = self._pinned.restrict(settings.earlier)
        searched = list(zip(self._pinned.graphs, [cluster for _, cluster in pairs], strict=True))
        self._searched = searched
        self._earlier = share_earlier(restricted, searched, settings.objective)
        self._watch = Watch(on_improvement, len(pairs), self._deadline)
        self._plans: dict[int, Plan] = {}
        self.seconds = [0.0] * len(pairs)

    def run(self, engine: Engine, batch_size: int | None, *, warm_up: bool) -> list[Plan]:
        settings = self._settings
        head = {"improvements": self._watch.enabled, "warm_up": warm_up, "batch_size": batch_size}
        common = Message({**self._common.head, **head, "call": digest_of(self._common)}, self._common.blobs)
        items = [self._item(graph, cluster) for graph, cluster in self._pairs]
        total = len(self._pairs) * settings.evaluations * settings.runs
        given_up: dict[int, str] = {}
        with (
            Bar(total, enabled=settings.progress and settings.solver.searches) as bar,
            first_interrupt_waits() as interrupted,
        ):

            def answer(member: int, message: Message, last: bool) -> None:
                self._answered(member, message)
                if last:
                    bar.advance(settings.evaluations * settings.runs)

            try:
                given_up |= engine.run(
                    _WORK,
                    common,
                    items,
                    answer,
                    most=batch_size,
                    limits=self._limits,
                    interrupted=interrupted,
                    waiting=bar.say,
                )
            except KeyboardInterrupt:
                if not (self._plans or any(self._earlier)):
                    raise
            if self._pairs and not (self._plans or given_up or any(self._earlier)):
                raise KeyboardInterrupt
            for member in range(len(self._pairs)):
                if member not in self._plans and member not in given_up:
                    self._done(member, self._unsearched(member))
        if given_up:
            raise self._error(given_up)
        return [self._plans[member] for member in range(len(self._pairs))]

    def _item(self, graph: ComputationGraph, cluster: Cluster) -> Item:
        earlier = [plan for plan in self._settings.earlier if plan.graph_hash == graph.content_hash]
        unlimited = bool(np.isinf(cluster.memory).all())
        kind = f"{Bucket.of(graph)} {cluster.num_devices} {cluster.transfer} {unlimited}"

        def message() -> Message:
            blobs = [format_native(graph).encode(), *(plan.to_json().encode() for plan in earlier)]
            return Message({"cluster": cluster_document(cluster)}, blobs)

        return Item(kind, message)

    def _limits(self, count: int, left: int, workers: int) -> dict[str, Any]:
        """The time of a parcel: its share of what is left, if all workers have parcels like it."""
        seconds = self._deadline.left
        return {"seconds": None if seconds is None else seconds * min(1.0, count * workers / left)}

    def _answered(self, member: int, message: Message) -> None:
        head = message.head
        if "seconds" in head:
            self.seconds[member] = head["seconds"]
            return
        plan = Plan.from_json(message.blobs[0].decode())
        if "evaluations" in head:
            self._watch.see(member, plan, head["evaluations"])
        else:
            self._done(member, plan)

    def _done(self, member: int, plan: Plan) -> None:
        self._plans[member] = plan
        self._watch.see(member, plan, plan.provenance.get("evaluations", 0))
        if self._on_plan is not None:
            self._on_plan(member, plan)

    def _unsearched(self, member: int) -> Plan:
        """The plan of a graph whose search never began."""
        pair = self._searched[member]
        known = self._earlier[member]
        plan = finished_plan(*pair, self._settings, known, [], Start(), Status.INTERRUPTED)
        return self._pinned.release(member, plan)

    def _error(self, given_up: dict[int, str]) -> WorkerError:
        names = [f"{self._pairs[member][0].name!r} ({why})" for member, why in sorted(given_up.items())]
        more = f" and {len(names) - _NAMES} more" if len(names) > _NAMES else ""
        plans = [self._plans.get(member) for member in range(len(self._pairs))]
        done = len(plans) - len(given_up)
        return WorkerError(
            f"engine: gave up {', '.join(names[:_NAMES])}{more}; {done} of {len(plans)} graphs have plans; "
            "mend a solver that raised an error; run graphs whose workers died apart, with more memory",
            plans,
        )
