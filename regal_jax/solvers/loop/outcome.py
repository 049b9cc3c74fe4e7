"""The plans of a call, made from the genes that searches found."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from regal_jax.checks import shown
from regal_jax.encoding import Proposal, genes_to_keys
from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HEURISTICS, Work, counting
from regal_jax.plan import Objective, Plan, decode_order, decode_placement, proof_of
from regal_jax.plan.plan import json_values
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.versions import package_versions
from regal_jax.search import SearchResult, Status
from regal_jax.solve import CHROMOSOME, timeline_of
from regal_jax.solvers import Constructive, HostStage
from regal_jax.solvers.loop.batches import Batch
from regal_jax.solvers.loop.host_turns import instance_of
from regal_jax.solvers.loop.replayed import naming_errors, replayed
from regal_jax.solvers.loop.settings import Settings
from regal_jax.solvers.loop.turns import Turn, improves

__all__ = [
    "Start", "constructed_plans", "decoded_plan", "device_turn", "ended_with", "finished_plan", "proven",
]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Start:
    """Time and work of the heuristics of one graph.

    Attributes:
      seconds: Time in seconds.
      work: Schedules and placements that they made.
    """

    seconds: float = 0.0
    work: Work = dataclasses.field(default_factory=Work)


def _common(settings: Settings) -> dict[str, Any]:
    return {
        "seed": settings.key_words if settings.seed is None else settings.seed,
        "versions": dict(package_versions()),
    }


def constructed_plans(
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    settings: Settings,
    solver: Constructive,
    seconds: float | None,
) -> list[Plan]:
    """The plans of a constructive solver, within the seconds that are left.

    Graphs that it plans together share their total time and work equally.

    Raises:
      PlanError: It returned anything but one valid plan for each graph.
      SolverError: As `naming_errors`.
    """
    clock = Deadline()
    with counting() as work, naming_errors(solver, [graph for graph, _ in pairs]):
        plans = solver.construct_all([instance_of(*pair, settings, seconds=seconds) for pair in pairs])
    took = clock.spent / len(pairs)
    spent = {"seconds": round(took, 6), "work": _counts(work, len(pairs))}
    if not isinstance(plans, Sequence) or len(plans) != len(pairs):
        count = f"{len(plans)} plans" if isinstance(plans, Sequence) else f"a {type(plans).__name__}"
        raise PlanError(
            f"{solver.name}: construct_all returned {count} for {len(pairs)} graphs; return one each"
        )
    made = [
        replayed(plan, *pair, settings.objective, solver) for plan, pair in zip(plans, pairs, strict=True)
    ]
    return [
        dataclasses.replace(plan, provenance={**_common(settings), **plan.provenance, **spent})
        for plan in made
    ]


def _counts(work: Work, graphs: int = 1) -> dict[str, int]:
    return {"schedules": work.schedules // graphs, "placements": work.placements // graphs}


def finished_plan(
    graph: ComputationGraph,
    cluster: Cluster,
    settings: Settings,
    known: Sequence[Plan],
    turns: Sequence[Turn],
    start: Start,
    ended: Status | None = None,
) -> Plan:
    """The best known plan of a graph, with its provenance.

    Args:
      graph: The graph.
      cluster: The cluster.
      settings: Settings of the call.
      known: Plans of heuristics and of all turns, best first.
      turns: Turns of the searches of the graph.
      start: Time and work of the heuristics.
      ended: What ended its search early; by default what ended the last turn.
    """
    if not known:
        known = [HEURISTICS["single-device"](graph, cluster, settings.objective)]
    solver, agenda = settings.solver, settings.agenda(cluster.num_devices)
    best, spent = known[0], sum(turn.evaluations for turn in turns)
    found = next((turn for turn in turns if any(best is plan for plan in turn.plans)), None)
    status = turns[-1].status if turns and ended is None else ended or Status.BUDGET
    seconds = start.seconds + sum(turn.seconds for turn in turns)
    work = sum((turn.work for turn in turns), start.work)
    took = {"seconds": round(seconds, 6), "work": _counts(work)}
    if not turns and status is not Status.OPTIMAL:
        stopped = {"evaluations": spent, "stopped": status.name.lower(), **took}
        return dataclasses.replace(best, provenance={**_common(settings), **best.provenance, **stopped})
    told = {name: value for turn in turns for name, value in turn.told.items()}
    hosted = not agenda.device_stages
    provenance = {
        "method": solver.name,
        "evaluations": spent,
        **_common(settings),
        "stopped": _stopped(status, best),
        **took,
        **told,
        "config": _settings_of(solver.config),
        **_parts(settings, cluster.num_devices, turns),
        "history": _joined([turn.history for turn in turns]) if turns else _at_once(best),
        **proven(known),
    }
    others = [plan for plan in known if plan.provenance.get("method") != solver.name]
    if others or hosted:
        provenance["warm_start"] = _values(others)
    if found is None:
        provenance["best_from"] = best.provenance["method"]
    elif best.provenance["method"] != solver.name:
        # A part of the method has found the plan.
        provenance["found_by"] = best.provenance["method"]
    return dataclasses.replace(best, provenance=provenance)


def proven(known: Sequence[Plan]) -> dict[str, Any]:
    """What a search has proven of the best of some plans, as entries of its provenance; often nothing.

    Args:
      known: Plans of one graph, best first. The proof may be that of another plan of the same value.
    """
    proofs = (proof_of(plan) for plan in known if plan.sort_key == known[0].sort_key)
    return next(filter(None, proofs), {})


def decoded_plan(batch: Batch, row: int, genes: Any, settings: Settings) -> Plan:
    """The plan that one row of ``genes`` decodes to, exactly replayed."""
    graph, cluster = batch.graphs[row], batch.clusters[row]
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    said = {"method": settings.solver.name}
    if batch.encoding is not CHROMOSOME:
        placement, events = generated_events(batch, row, genes, settings.objective)
        return Plan.from_events(
            graph, cluster, placement, events, objective=settings.objective, provenance=said
        )
    keys = genes_to_keys(jax.tree.map(lambda leaf: np.asarray(leaf[row]), genes))
    placement = decode_placement(graph, cluster, keys["affinity"][:n, :d])
    transfers = keys["transfer_priority"][:t, :d]
    events = decode_order(graph, cluster, placement, keys["priority"][:n], transfers)
    return Plan.from_events(graph, cluster, placement, events, objective=settings.objective, provenance=said)


def generated_events(
    batch: Batch, row: int, genes: Any, objective: Objective
) -> tuple[np.ndarray, np.ndarray]:
    """Placement and event ids of one row, without the padding of ops, tensors and devices."""
    graph, cluster, problem = batch.graphs[row], batch.clusters[row], batch.problem
    placement, events = timeline_of(batch.encoding, problem, row, genes, objective)
    tensor, device = np.divmod(np.maximum(events - problem.bucket.ops, 0), problem.num_devices)
    there = graph.num_ops + tensor * cluster.num_devices + device
    return placement[: graph.num_ops].astype(np.int64), np.where(events < problem.bucket.ops, events, there)


def _stopped(status: Status, plan: Plan) -> str:
    """Why a search ended; the plan decides between the caller's target and a bound."""
    return "optimal" if status is Status.TARGET and plan.optimal else status.name.lower()


def device_turn(
    batch: Batch,
    row: int,
    result: SearchResult,
    settings: Settings,
    stage: int,
    budget: int,
    proposal: Proposal | None = None,
    work: Work | None = None,
) -> Turn:
    """The turn of one row of a batch in a compiled program, with plans that are exactly replayed.

    Args:
      batch: The batch.
      row: Row of the batch.
      result: Result of the search.
      settings: Settings of the call.
      stage: Index of the stage in the agenda.
      budget: Evaluations for each graph.
      proposal: The proposal of the policy for the batch, if there was one.
      work: Work of computing the policy's features of the graph.
    """
    plan = decoded_plan(batch, row, result.genes, settings)
    guidance, encoded = {}, {}
    if batch.encoding is not CHROMOSOME:
        encoded = {"encoding": batch.encoding.name}
    if proposal is not None:
        guide = getattr(settings.agenda(batch.clusters[row].num_devices).stages[stage], "guide", None)
        name = None if guide is None else guide.name
        guidance = _guidance(proposal, row, batch.graphs[row].num_ops, name or "default")
    return Turn(
        stage=stage,
        budget=budget,
        evaluations=int(result.evaluations[row]),
        plans=(plan,),
        gained=improves(batch.known[row][0] if batch.known[row] else None, plan),
        history=_history(batch, row, result, settings),
        status=result.status[row],
        seconds=result.seconds,
        work=work or Work(),
        told={**encoded, **guidance, "graphs_in_call": len(batch.members)},
    )


def _guidance(proposal: Proposal, row: int, num_ops: int, name: str) -> dict[str, Any]:
    """Name of the policy, and the entropy of its actions."""
    from regal_jax.policies import placement_entropy

    taken = np.asarray(proposal.index)[row, :num_ops, :-1]
    return {"policy": name, "action_entropy": round(placement_entropy(taken), 6)}


def _values(plans: Iterable[Plan]) -> dict[str, float]:
    """The best value of each method; ``plans`` are best first."""
    values: dict[str, float] = {}
    for plan in plans:
        values.setdefault(plan.provenance["method"], plan.objective_value)
    return values


def _parts(settings: Settings, num_devices: int, turns: Sequence[Turn]) -> dict[str, Any]:
    """The turns in order with their shares of the budget, unless the method is the only search."""
    agenda = settings.agenda(num_devices)
    hosts = [stage.solver.config for stage in agenda.stages if isinstance(stage, HostStage)]
    if agenda.count < 2 and hosts in ([], [settings.solver.config]):
        return {}
    parts: list[dict[str, Any]] = []
    for turn in turns:
        share, left = turn.budget / settings.evaluations, 1.0
        stage = agenda.stages[turn.stage]
        if isinstance(stage, HostStage):
            parts.append({**_part(share, stage.solver.config), **turn.shown})
            continue
        for part in stage.parts:
            parts.append(_part(share * left * part.share, part.config))
            left *= 1 - part.share
    return {"parts": parts}


def _part(share: float, config: Any) -> dict[str, Any]:
    return {"share": round(share, 6), type(config).__name__: _settings_of(config)}


def _settings_of(value: Any) -> Any:
    """Settings as the values of a file. What has no place in one, as in a user's solver, is a text."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: _settings_of(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _settings_of(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_settings_of(each) for each in value]
    try:
        return json_values(value, "config")
    except PlanError:
        return shown(value)


def _history(batch: Batch, row: int, result: SearchResult, settings: Settings) -> dict[str, list[Any]]:
    """The best objective whenever the incumbent improved, and at the end; ``None`` while nothing fitted."""
    fitness = np.asarray(result.history_fitness[:, row], dtype=np.float64)
    evaluations = result.history_evaluations[:, row]
    # A finished instance repeats its last row until its whole batch has finished.
    last = int(np.argmax(evaluations == evaluations[-1]))
    moments = np.union1d(np.flatnonzero(np.diff(fitness, prepend=np.inf)), [last])
    found = np.where(fitness[moments] > 1, np.inf, fitness[moments] * batch.scale(settings.objective)[row])
    # The individual that stands for a known plan may decode to a longer one.
    known = [plan.objective_value for plan in batch.known[row][:1] if plan.feasible]
    best = np.minimum(found, min(known, default=np.inf))
    return {
        "evaluations": evaluations[moments].tolist(),
        "best": [None if np.isinf(value) else float(value) for value in best],
    }


def _at_once(plan: Plan) -> dict[str, list[Any]]:
    """The history of a plan that was not searched for."""
    return {"evaluations": [0], "best": [plan.objective_value if plan.feasible else None]}


def ended_with(history: Mapping[str, Sequence[Any]], evaluations: int, plan: Plan) -> dict[str, list[Any]]:
    """The history, which ends with the plan if that is better than what the search has found."""
    counts, best = list(history["evaluations"]), list(history["best"])
    if plan.feasible and (best[-1] is None or plan.objective_value < best[-1]):
        counts.append(evaluations)
        best.append(plan.objective_value)
    return {"evaluations": counts, "best": best}


def _joined(histories: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
    """Joins histories; a search that starts from a plan is no worse, up to the rounding of fitness."""
    evaluations: list[int] = []
    best: list[Any] = []
    for history in histories:
        spent, before = (evaluations[-1], best[-1]) if evaluations else (0, None)
        later = zip(history["evaluations"], history["best"], strict=True)
        for number, (done, value) in enumerate(later):
            if evaluations and number == 0 and done == 0:
                continue
            evaluations.append(spent + done)
            best.append(before if value is None else value if before is None else min(value, before))
    return {"evaluations": evaluations, "best": best}
