"""Verification that a plan is a valid execution of a graph and that its numbers are right."""

from typing import TYPE_CHECKING

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import ClusterError, ConfigError, PlanError
from regal_jax.graph import ComputationGraph, TransferModel, constrain, transfer_times
from regal_jax.plan.replay import Timeline, check_placement
from regal_jax.plan.schedule import needed_transfers

if TYPE_CHECKING:
    from regal_jax.plan.plan import Plan

__all__ = ["check_graph", "verify"]


def verify(plan: "Plan", graph: ComputationGraph) -> None:
    """Checks that every number of ``plan`` is right, whether or not it fits the devices' memory.

    The first checks need no replay: the graph, the placement, and that every event occurs exactly once. Then,
    by the plan's own times, no device runs two events at once, and no event starts before those that it waits
    for. Finally, the exact replay must give every time and every byte that the plan states.

    Args:
      plan: The plan; ``plan.overflow`` says by how much it exceeds the memory, which is not an error here.
      graph: The graph for which it is stated to be.

    Raises:
      ConfigError: ``graph`` is no graph.
      PlanError: The first violation.
    """
    check_graph(plan, graph)
    if plan.time_unit != graph.time_unit:
        raise PlanError(f"the plan counts time in {plan.time_unit!r}, its graph in {graph.time_unit!r}")
    unknown = [name for name in plan.op_names if name not in graph.op_index]
    if unknown or len(set(plan.op_names)) != graph.num_ops or len(plan.op_names) != graph.num_ops:
        what = f"op {unknown[0]!r} is not in the graph" if unknown else "its ops are not those of the graph"
        raise PlanError(f"the plan does not place every op once: {what}")
    # By name, not by position, so that a tool may sort the keys of a JSON object.
    index = np.array([graph.op_index[name] for name in plan.op_names], dtype=np.int64)
    placement = np.empty_like(plan.placement)
    placement[index] = plan.placement
    try:
        graph = constrain(graph, plan.pin, plan.colocate, devices=plan.cluster.num_devices)
        check_placement(graph, plan.cluster, placement)
        events = _event_ids(plan, graph, placement, index)
        _check_times(plan, graph, placement, events)
        _check_figures(plan, graph, placement, events)
    except ClusterError as error:
        raise PlanError(f"the plan's cluster cannot run the graph: {error}") from None
    except ConfigError as error:
        raise PlanError(f"the plan's constraints are not for its graph: {error}") from None


def check_graph(plan: "Plan", graph: ComputationGraph) -> None:
    """Checks that ``plan`` is for ``graph``.

    Raises:
      ConfigError: ``graph`` is no graph, or ``plan`` no plan.
      PlanError: It is for another graph; the message names a difference that the plan shows.
    """
    from regal_jax.plan.plan import Plan

    check_kind("plan", plan, Plan)
    check_kind("graph", graph, ComputationGraph)
    if plan.graph_hash != graph.content_hash:
        raise PlanError(
            f"the plan is for graph {plan.graph_name!r} ({plan.graph_hash[:12]}), not for {graph.name!r} "
            f"({graph.content_hash[:12]}); {_difference(plan, graph)}"
        )


def _difference(plan: "Plan", graph: ComputationGraph) -> str:
    if sorted(plan.op_names) != sorted(graph.op_names):
        return (
            "their ops differ; make a plan of this graph, or give the options (dims, ...) with which that of "
            "the plan was made"
        )
    if plan.time_unit != graph.time_unit:
        return (
            f"the plan counts time in {plan.time_unit!r}, the graph in {graph.time_unit!r}; make a plan of "
            "this graph"
        )
    line = plan.timeline
    computes = line.port < 0
    op = np.array([graph.op_index[name] for name in plan.op_names], dtype=np.int64)[line.op[computes]]
    runtime = graph.runtime.reshape(graph.num_ops, -1)
    device = np.minimum(line.device[computes], runtime.shape[1] - 1)
    took = line.finish[computes] - line.start[computes]
    # The rounding error of a difference of times.
    if np.allclose(runtime[op, device], took, rtol=1e-6, atol=1e-9 * line.makespan):
        return (
            "their sizes, edges or constraints differ, as those of a model that is read with other options "
            "do: take the options (in_place, dims, ...; in the command --in-place, --dim) of the plan's graph"
        )
    return (
        "they have the same ops with other runtimes; make a plan of this graph, or take the profile and the "
        "sizes (shapes, dims) with which the graph of the plan was made"
    )


def _event_ids(plan: "Plan", graph: ComputationGraph, placement: np.ndarray, index: np.ndarray) -> np.ndarray:
    """``[M]`` ids as `replay` takes them; checks that each is there once, on the right device."""
    line, n, d = plan.timeline, graph.num_ops, plan.cluster.num_devices
    op = index[line.op]
    moves = line.port >= 0
    ports = np.diff(graph.output_offset)[op]
    home = np.where(moves, line.source, line.device)
    bad = (home != placement[op]) | (line.port >= ports) | (line.device < 0) | (line.device >= d)
    if bad.any():
        i = int(np.argmax(bad))
        raise PlanError(f"event {i}, {_name(plan, i)}: not where op {plan.op_names[line.op[i]]!r} is placed")
    events = np.where(moves, n + (graph.output_offset[op] + line.port) * d + line.device, op)
    first, count = np.unique(events, return_index=True, return_counts=True)[1:]
    if (count > 1).any():
        raise PlanError(f"{_name(plan, int(first[np.argmax(count > 1)]))} happens more than once")
    wanted = np.arange(n)
    if plan.cluster.transfer is TransferModel.BLOCKING:
        tensor, device = needed_transfers(graph, placement)
        wanted = np.concatenate([wanted, n + tensor * d + device])
    missing, surplus = np.setdiff1d(wanted, events), ~np.isin(events, wanted)
    if surplus.any():
        raise PlanError(
            f"event {int(np.argmax(surplus))}, {_name(plan, int(np.argmax(surplus)))}, is not needed"
        )
    if missing.size:
        tensor, device = divmod(int(missing[0]) - n, d)
        what = (
            f"compute {graph.op_names[missing[0]]!r}"
            if missing[0] < n
            else (f"transfer of {graph.tensor_name(tensor)!r} to device {device}")
        )
        raise PlanError(f"{what} never happens ({missing.size} events are missing)")
    return events


def _name(plan: "Plan", event: int) -> str:
    line = plan.timeline
    name = plan.op_names[line.op[event]]
    if line.port[event] < 0:
        return f"compute {name!r}"
    return f"transfer of '{name}:{line.port[event]}' to device {line.device[event]}"


def _check_times(plan: "Plan", graph: ComputationGraph, placement: np.ndarray, events: np.ndarray) -> None:
    """Checks that the plan's own times are consistent, independently of the replay."""
    line, n, d = plan.timeline, graph.num_ops, plan.cluster.num_devices
    wrong = ~((line.start >= 0) & (line.finish >= line.start) & np.isfinite(line.finish))
    if wrong.any():
        i = int(np.argmax(wrong))
        raise PlanError(f"{_name(plan, i)} runs from {line.start[i]} to {line.finish[i]}")
    for k in range(d):
        mine = np.flatnonzero((line.device == k) | (line.source == k))
        early = line.start[mine[1:]] < line.finish[mine[:-1]]
        if early.any():
            i = int(mine[1:][np.argmax(early)])
            raise PlanError(f"device {k} does two things at once: {_name(plan, i)} starts too early")
    position = np.full(n + graph.num_tensors * d, -1)
    position[events] = np.arange(len(events))

    def after(later: np.ndarray, earlier: np.ndarray, delay: np.ndarray | float, what: str) -> None:
        early = line.start[later] < line.finish[earlier] + delay
        if early.any():
            i, j = int(later[np.argmax(early)]), int(earlier[np.argmax(early)])
            raise PlanError(f"{_name(plan, i)} starts earlier than its {what} {_name(plan, j)} allows")

    after(position[graph.control_target], position[graph.control_source], 0.0, "control predecessor")
    reader, tensor = graph.edge_op, graph.edge_tensor
    remote = placement[reader] != placement[graph.edge_producer]
    if plan.cluster.transfer is TransferModel.BLOCKING:
        copy = n + tensor * d + placement[reader]
        arrival = np.where(remote, copy, graph.edge_producer)
        after(position[reader], position[arrival], 0.0, "input from")
        after(position[copy[remote]], position[graph.edge_producer[remote]], 0.0, "producer")
    else:
        link = plan.cluster.link_index[placement[graph.edge_producer], placement[reader]]
        delay = np.where(remote, transfer_times(graph, plan.cluster)[tensor, link], 0.0)
        after(position[reader], position[graph.edge_producer], delay, "input from")


def _check_figures(plan: "Plan", graph: ComputationGraph, placement: np.ndarray, events: np.ndarray) -> None:
    """Checks that every statement equals that of a new plan made from the same events."""
    line = plan.timeline
    again = type(plan).from_events(graph, plan.cluster, placement, events, objective=plan.objective)
    fresh: Timeline = again.timeline
    for field in ("start", "finish"):
        stated, exact = getattr(line, field), getattr(fresh, field)
        if (stated != exact).any():
            i = int(np.argmax(stated != exact))
            raise PlanError(f"{_name(plan, i)}: the {field} is {exact[i]}, the plan says {stated[i]}")
    for field in ("makespan", "lower_bound", "one_device_makespan", "num_transfers", "transfer_bytes"):
        if getattr(plan, field) != getattr(again, field):
            raise PlanError(f"the {field} is {getattr(again, field)}, the plan says {getattr(plan, field)}")
    # Files of earlier versions do not have it.
    if plan.impossible and not again.impossible:
        raise PlanError("the plan states that no plan fits the memory, which is not proven")
    if not np.array_equal(line.peak_memory, fresh.peak_memory):
        raise PlanError(
            f"peak_memory is {fresh.peak_memory.tolist()}, the plan says {line.peak_memory.tolist()}"
        )
    for k in range(plan.cluster.num_devices):
        for field in ("memory_time", "memory_bytes"):
            if not np.array_equal(getattr(line, field)[k], getattr(fresh, field)[k]):
                raise PlanError(f"the memory profile of device {k} is not that of the replay ({field})")
