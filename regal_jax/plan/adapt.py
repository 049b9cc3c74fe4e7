"""Conversion of a plan from one cluster to another."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import PlanError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel, allowed_matrix, runtime_matrix
from regal_jax.graph.topology import rows
from regal_jax.plan.bounds import Objective
from regal_jax.plan.drafts import BestDraft
from regal_jax.plan.plan import Plan, without_proof
from regal_jax.plan.schedule import insert_transfers, needed_transfers
from regal_jax.plan.verify import check_graph

__all__ = ["adapt_plan"]


def adapt_plan(
    plan: Plan,
    graph: ComputationGraph,
    cluster: Cluster,
    objective: Objective | str | None = None,
    *,
    provenance: Mapping[str, Any] | None = None,
) -> Plan:
    """``plan`` converted to ``cluster``, with as few changes as possible.

    Devices keep their indices, and ops stay on their device if they may run there. All ops of a device that
    ``cluster`` does not have move to the device with the least work. An op that may not run there moves, with
    its colocation group, to the allowed device with the least work. Ops keep their order. Transfers that are
    still needed keep their place in it. If new transfers are needed, the better of two orders is taken: new
    transfers just before their first readers, or all transfers as soon as their tensors exist. On a cluster
    with the same devices and transfer model the events are those of ``plan``.

    The result is replayed exactly; times and memory stated in ``plan`` are not used.

    Args:
      plan: A plan of ``graph`` on any cluster.
      graph: The graph.
      cluster: The new cluster.
      objective: Objective of the result; that of ``plan`` by default.
      provenance: Provenance of the result; by default that of ``plan``, without a proof that it is optimal.

    Raises:
      PlanError: ``plan`` is for another graph, or no valid order of its ops.
      ClusterError: ``cluster`` does not fit the graph.
      ConfigError: An argument is of another kind.
    """
    index = _op_index(plan, graph)
    check_kind("cluster", cluster, Cluster)
    check_kind("provenance", {} if provenance is None else provenance, Mapping)
    placement, target = _placement(plan, graph, cluster, index)
    objective = plan.objective if objective is None else objective
    provenance = without_proof(plan.provenance) if provenance is None else provenance
    kept, added = _events(plan, graph, cluster, placement, index, target)
    best = BestDraft(graph, cluster, objective)
    best.offer(placement, kept, provenance)
    if added:
        order = kept[kept < graph.num_ops]
        best.offer(placement, insert_transfers(graph, cluster, placement, order, eager=True), provenance)
    return best.plan()


def _op_index(plan: Plan, graph: ComputationGraph) -> np.ndarray:
    """``[N]``: the op of ``graph`` for each op of ``plan``, by name: a tool may have sorted them."""
    check_graph(plan, graph)
    found = [graph.op_index.get(name, -1) for name in plan.op_names]
    if sorted(found) != list(range(graph.num_ops)):
        raise PlanError("the plan does not place every op of its graph once")
    return np.array(found, dtype=np.int64)


def _placement(
    plan: Plan, graph: ComputationGraph, cluster: Cluster, index: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """``[N]`` device of each op, and the new device for each device of ``plan``."""
    d, most = cluster.num_devices, plan.cluster.num_devices
    runtime, allowed = runtime_matrix(graph, cluster), allowed_matrix(graph, cluster)
    before = np.empty(graph.num_ops, dtype=np.int64)
    before[index] = plan.placement
    before = before[graph.colocation_leader]
    everything = runtime.mean(axis=1)
    # A small weight for every op, so that ops without runtime are spread by their number.
    weight = everything + (everything.max() or 1.0) * 1e-9
    work = np.bincount(before, weight, minlength=most)
    target, load = np.arange(most), work[:d].copy()
    load.resize(d)
    for k in d + np.argsort(-work[d:], kind="stable"):
        target[k] = load.argmin()
        load[target[k]] += work[k]
    placement = target[before]
    bounds, ops = rows(graph.colocation_leader, np.arange(graph.num_ops), graph.num_ops)
    for leader in np.unique(graph.colocation_leader[~allowed[np.arange(graph.num_ops), placement]]).tolist():
        group = ops[bounds[leader] : bounds[leader + 1]]
        moved = weight[group].sum()
        load[placement[leader]] -= moved
        placement[group] = np.where(allowed[leader], load, np.inf).argmin()
        load[placement[leader]] += moved
    return placement, target


def _events(
    plan: Plan,
    graph: ComputationGraph,
    cluster: Cluster,
    placement: np.ndarray,
    index: np.ndarray,
    target: np.ndarray,
) -> tuple[np.ndarray, int]:
    """Event ids in the order of ``plan``, and the number of transfers among them that are new."""
    line, n, d = plan.timeline, graph.num_ops, cluster.num_devices
    op = index[line.op]
    if not np.array_equal(np.sort(op[line.port < 0]), np.arange(n)):
        raise PlanError("the plan does not compute every op once")
    if cluster.transfer is not TransferModel.BLOCKING:
        return op[line.port < 0], 0
    if (line.port >= np.diff(graph.output_offset)[op]).any():
        raise PlanError("the plan transfers a tensor that its graph does not have")
    missing = {n + t * d + k for t, k in np.stack(needed_transfers(graph, placement), axis=1).tolist()}
    offset, inputs = graph.inputs
    place, bounds, reads = placement.tolist(), offset.tolist(), inputs.tolist()
    moved = n + (graph.output_offset[op] + line.port) * d + target[line.device]
    events, added = [], 0
    for o, event in zip(op.tolist(), np.where(line.port < 0, op, moved).tolist(), strict=True):
        if event >= n:
            if event in missing:
                missing.remove(event)
                events.append(event)
            continue
        for t in reads[bounds[o] : bounds[o + 1]]:
            transfer = n + t * d + place[o]
            if transfer in missing:
                missing.remove(transfer)
                events.append(transfer)
                added += 1
        events.append(event)
    return np.array(events, dtype=np.int64), added
