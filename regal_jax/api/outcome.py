"""From the genes that a search found to the plan that a user gets."""

import dataclasses
import functools
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax
import numpy as np

from regal_jax.api.batches import Batch
from regal_jax.api.host_search import HostResult
from regal_jax.api.settings import Settings
from regal_jax.encoding import Proposal, genes_to_keys
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HEURISTICS
from regal_jax.plan import Plan, decode_order, decode_placement
from regal_jax.search import SearchResult, Status

__all__ = ["decoded_plan", "fallback", "heuristic_plan", "searched_plan", "settled_plan"]


@functools.cache
def _versions() -> dict[str, str]:
    """Read once: looking for them takes as long as a search of 200 evaluations."""
    found: dict[str, str] = {}
    for name in ("regal-jax", "jax", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "seed": settings.key_words if settings.seed is None else settings.seed,
        "versions": dict(_versions()),
    }


def heuristic_plan(graph: ComputationGraph, cluster: Cluster, settings: Settings) -> Plan:
    """The plan of the heuristic that ``settings`` names."""
    plan = HEURISTICS[settings.method](graph, cluster, settings.objective, seed=settings.seed or 0)
    return dataclasses.replace(plan, provenance={**_common(settings), **plan.provenance})


def fallback(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    known: Sequence[Plan],
    ended: Status,
    hosted: HostResult | None = None,
) -> Plan:
    """What a graph gets whose search did not begin."""
    plan = known[0] if known else HEURISTICS["single-device"](graph, cluster, settings.objective)
    stopped = {"evaluations": hosted.evaluations if hosted else 0, "stopped": ended.name.lower()}
    return dataclasses.replace(plan, provenance={**_common(settings), **plan.provenance, **stopped})


def settled_plan(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    known: Sequence[Plan],
    ended: Status,
    hosted: HostResult | None,
) -> Plan:
    """The best known plan, where nothing is left to be searched: on the host only, or not at all."""
    if not known:
        return fallback(graph, cluster, settings, [], ended)
    best, value = known[0], known[0].objective_value
    history = {"evaluations": [0], "best": [value if best.feasible else None]}
    provenance = {
        "method": settings.method,
        "evaluations": hosted.evaluations if hosted else 0,
        **_common(settings),
        "stopped": _stopped(ended, best),
        "seconds": round(hosted.seconds, 3) if hosted else 0.0,
        "config": dataclasses.asdict(settings.config if settings.parts else settings.host_config),
        "history": hosted.history if hosted else history,
        "warm_start": {
            p.provenance["method"]: p.objective_value for p in known if not hosted or p is not hosted.plan
        },
    }
    if not hosted or best is not hosted.plan:
        provenance["best_from"] = best.provenance["method"]
    elif settings.parts:
        provenance["found_by"] = best.provenance["method"]
    return dataclasses.replace(best, provenance=provenance)


def decoded_plan(batch: Batch, row: int, genes: Any, settings: Settings) -> Plan:
    """What one row of ``genes`` means, exactly replayed."""
    graph, cluster = batch.graphs[row], batch.clusters[row]
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    keys = genes_to_keys(jax.tree.map(lambda leaf: np.asarray(leaf[row]), genes))
    placement = decode_placement(graph, cluster, keys["affinity"][:n, :d])
    transfers = keys["transfer_priority"][:t, :d]
    events = decode_order(graph, cluster, placement, keys["priority"][:n], transfers)
    said = {"method": settings.method}
    return Plan.from_events(graph, cluster, placement, events, objective=settings.objective, provenance=said)


def _stopped(status: Status, plan: Plan) -> str:
    """Why a search ended; whether it met the caller's target or a bound, the plan tells."""
    return "optimal" if status is Status.TARGET and plan.optimal else status.name.lower()


def searched_plan(
    batch: Batch,
    row: int,
    result: SearchResult,
    settings: Settings,
    proposal: Proposal | None = None,
    hosted: HostResult | None = None,
) -> Plan:
    """The exactly replayed plan of one row of a batch, or a heuristic's if that is better.

    Args:
      batch: What was searched.
      row: Of the batch.
      result: Of the search.
      settings: Of the call.
      proposal: What the policy said of the batch, if there was one.
      hosted: What a search on the host came to before, if there was one.
    """
    cluster, n = batch.clusters[row], batch.graphs[row].num_ops
    plan = decoded_plan(batch, row, result.genes, settings)
    provenance = {
        "method": settings.method,
        "evaluations": int(result.evaluations[row]) + (hosted.evaluations if hosted else 0),
        **_common(settings),
        **({} if proposal is None else _guidance(proposal, row, n, settings)),
        "stopped": _stopped(result.status[row], plan),
        "seconds": round(result.seconds + (hosted.seconds if hosted else 0), 3),
        "graphs_in_call": len(batch.members),
        "config": dataclasses.asdict(settings.config),
        **_parts(settings, cluster),
        "history": _history(batch, row, result, settings, hosted),
    }
    known = batch.known[row]
    if known:
        provenance["warm_start"] = {p.provenance["method"]: p.objective_value for p in known}
        if known[0].sort_key <= plan.sort_key:
            # Of a part of the method or of a heuristic.
            found = "found_by" if hosted and known[0] is hosted.plan else "best_from"
            plan, provenance[found] = known[0], known[0].provenance["method"]
    return dataclasses.replace(plan, provenance=provenance)


def _guidance(proposal: Proposal, row: int, num_ops: int, settings: Settings) -> dict[str, Any]:
    """Which policy it was, and how mixed its actions."""
    from regal_jax.policies import placement_entropy

    taken = np.asarray(proposal.index)[row, :num_ops, :-1]
    return {"policy": settings.policy_name or "default", "action_entropy": round(placement_entropy(taken), 6)}


def _parts(settings: Settings, cluster: Cluster) -> dict[str, Any]:
    """Which searches shared the budget, if there were several."""
    parts: list[tuple[float, Any]] = [(part.share, part.config) for part in settings.parts]
    on_host = settings.host_evaluations(cluster.num_devices)
    if on_host:
        parts.insert(0, (on_host / settings.evaluations, settings.host_config))
    if len(parts) == 1:
        return {}
    return {
        "parts": [
            {"share": share, type(config).__name__: dataclasses.asdict(config)} for share, config in parts
        ]
    }


def _history(
    batch: Batch, row: int, result: SearchResult, settings: Settings, hosted: HostResult | None
) -> dict[str, list[Any]]:
    """The incumbent's objective whenever it improved, and at the end; ``None`` while it was infeasible."""
    fitness = np.asarray(result.history_fitness[:, row], dtype=np.float64)
    evaluations = result.history_evaluations[:, row]
    # An instance that has finished repeats its last row until the slowest of its batch has.
    last = int(np.argmax(evaluations == evaluations[-1]))
    moments = np.union1d(np.flatnonzero(np.diff(fitness, prepend=np.inf)), [last])
    best = fitness[moments] * batch.scale(settings.objective)[row]
    history = {
        "evaluations": evaluations[moments].tolist(),
        "best": [None if f > 1 else float(b) for f, b in zip(fitness[moments], best, strict=True)],
    }
    if hosted is None:
        return history
    # What has begun with a schedule is no worse than it, but for the rounding of its fitness.
    before = hosted.history["best"][-1]
    later = [b if before is None or b is None else min(b, before) for b in history["best"]]
    return {
        "evaluations": [
            *hosted.history["evaluations"],
            *(hosted.evaluations + e for e in history["evaluations"]),
        ],
        "best": [*hosted.history["best"], *(before if b is None else b for b in later)],
    }
