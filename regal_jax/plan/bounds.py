"""What no plan can beat, and what none can exceed."""

import enum
import math

import numpy as np

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    once_a_pair,
    runtime_matrix,
    transfer_times,
)

__all__ = ["Objective", "critical_path", "lower_bound", "makespan_upper_bound"]


class Objective(enum.StrEnum):
    """What a plan should be small in."""

    MAKESPAN = "makespan"
    PEAK_MEMORY = "peak-memory"


@once_a_pair
def lower_bound(graph: ComputationGraph, cluster: Cluster, objective: Objective) -> float:
    """A value of ``objective`` that no plan can beat.

    Makespan: the longest path, every op on its fastest allowed device, with the transfers between ops that
    share no allowed device; all the work, spread evenly; the work that only some devices may do, spread
    evenly over these, with blocking transfers to where a reader is pinned; or a colocation group on its best
    device: whichever is most. Peak memory: the most that is certainly held at one moment, by a colocation
    group or spread evenly over the devices that may hold it: the residents at time 0, what is kept in the
    end, and while an op runs its inputs, outputs and `temp_bytes` beside the residents that are kept.

    Work is summed exactly, a timeline event by event: the two may cross in the last bits of a float.

    Raises:
      ClusterError: The cluster does not fit the graph.
    """
    if objective is Objective.PEAK_MEMORY:
        allowed = allowed_matrix(graph, cluster)
        ends = (_spread(graph, allowed, held) for held in (graph.tensor_resident, graph.tensor_keep))
        return float(max(_busiest(graph, allowed), *ends))
    allowed = allowed_matrix(graph, cluster)
    runtime = np.where(allowed, runtime_matrix(graph, cluster), np.inf).min(axis=1)
    path = critical_path(graph, runtime, _unavoidable(graph, cluster, allowed))
    devices, work = _work(graph, cluster, allowed, runtime)
    even = math.fsum(work) / cluster.num_devices
    return float(max(path, even, _restricted(devices, work), _together(graph, cluster, allowed)))


def _unavoidable(graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray) -> np.ndarray:
    """``[E]``, by `ComputationGraph.inputs`: least time of the transfer, where no placement does without."""
    offset, tensor = graph.inputs
    reader = np.repeat(np.arange(graph.num_ops), np.diff(offset))
    time = np.zeros(len(tensor))
    apart = np.flatnonzero(~(allowed[graph.tensor_op[tensor]] & allowed[reader]).any(axis=1))
    time[apart] = _least_time(graph, cluster, allowed, tensor[apart], reader[apart])
    return time


def _least_time(
    graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray, tensor: np.ndarray, reader: np.ndarray
) -> np.ndarray:
    """Of each transfer of a tensor to a reader: over the fastest link between devices that they may be on."""
    time = np.zeros(len(tensor))
    if not len(tensor):
        return time
    sets, which = np.unique(allowed, axis=0, return_inverse=True)
    between = np.stack([which[graph.tensor_op[tensor]], which[reader]], axis=1)
    for source, target in np.unique(between, axis=0).tolist():
        mine = (between == (source, target)).all(axis=1)
        links = np.unique(cluster.link_index[np.ix_(sets[source], sets[target])])
        time[mine] = transfer_times(graph, cluster)[tensor[mine]][:, links].min(axis=1)
    return time


def _work(
    graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray, runtime: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """What devices must do: the devices that may (``[W, D]`` bool), and the time that it takes one (``[W]``).

    Ops, of ``runtime [N]``; and blocking transfers to devices that readers are pinned to and the producer may
    not use, which occupy a device on either side.
    """
    if cluster.transfer is not TransferModel.BLOCKING:
        return allowed, runtime
    tensor, reader, producer = graph.edge_tensor, graph.edge_op, graph.edge_producer
    home = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)[reader]
    moved = np.flatnonzero((home >= 0) & ~allowed[producer, home])
    # A tensor goes to a device once.
    moved = moved[np.unique(tensor[moved] * cluster.num_devices + home[moved], return_index=True)[1]]
    time = _least_time(graph, cluster, allowed, tensor[moved], reader[moved])
    devices = np.concatenate([allowed, allowed[producer[moved]], allowed[reader[moved]]])
    return devices, np.concatenate([runtime, time, time])


def _restricted(devices: np.ndarray, work: np.ndarray) -> float:
    """Longest that some devices are busy with what no others may do; as `_work` returns it."""
    narrow = ~devices.all(axis=1)
    if not narrow.any():
        return 0.0
    sets, which = np.unique(devices[narrow], axis=0, return_inverse=True)
    by_set = np.split(work[narrow][np.argsort(which, kind="stable")], np.cumsum(np.bincount(which))[:-1])
    total = np.array([math.fsum(times) for times in by_set])
    inside = sets.astype(np.int64) @ ~sets.T == 0
    return max(math.fsum(total[inside[:, s]]) / sets[s].sum() for s in range(len(sets)))


def _together(graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray) -> float:
    """How long the longest colocation group of several ops takes on the best device for it."""
    runtime, leader = runtime_matrix(graph, cluster), graph.colocation_leader
    several = np.flatnonzero(np.bincount(leader[runtime.any(axis=1)], minlength=graph.num_ops) > 1)
    return max(
        (
            min(math.fsum(times) for times in runtime[leader == first][:, allowed[first]].T)
            for first in several.tolist()
        ),
        default=0.0,
    )


def _spread(graph: ComputationGraph, allowed: np.ndarray, held: np.ndarray) -> int:
    """Bytes that some device holds when every tensor in ``held`` (``[T]`` bool) is at home.

    What can only be on some devices (``allowed``, ``[N, D]``) is on one of these, and a group on one device.
    """
    if not held.any():
        return 0
    size = np.where(held, graph.tensor_bytes, 0)
    group = np.zeros(graph.num_ops, dtype=np.int64)
    np.add.at(group, graph.colocation_leader[graph.tensor_op], size)
    holders = np.unique(graph.tensor_op[held])
    rows, which = np.unique(allowed[holders], axis=0, return_inverse=True)
    where = np.vstack([rows, np.ones_like(allowed[:1])])
    total = np.zeros(len(rows), dtype=np.int64)
    np.add.at(total, which[np.searchsorted(holders, graph.tensor_op[held])], graph.tensor_bytes[held])
    outside = rows.astype(np.int64) @ ~where.T
    inside = total @ (outside == 0)
    return max(int(group.max()), int((-(-inside // where.sum(axis=1))).max()))


def _busiest(graph: ComputationGraph, allowed: np.ndarray) -> int:
    """Bytes that some device holds while some op runs: what it needs, beside residents that are kept."""
    size = graph.tensor_bytes
    need = graph.temp_bytes.copy()
    np.add.at(need, graph.tensor_op, size)
    np.add.at(need, graph.edge_op, size[graph.edge_tensor])
    stays = np.where(graph.tensor_resident & graph.tensor_keep, size, 0)
    if not stays.any():
        return int(need.max())
    # Spread evenly, whoever holds them; what an op reads is in its need.
    others = np.full(graph.num_ops, stays.sum())
    np.subtract.at(others, graph.edge_op, stays[graph.edge_tensor])
    beside = np.where(allowed, _beside(graph, allowed, stays), np.iinfo(np.int64).max).min(axis=1)
    most = np.maximum(need + beside, -(-(need + others) // allowed.shape[1]))
    return int(np.where(graph.resident, need, most).max())


def _beside(graph: ComputationGraph, allowed: np.ndarray, stays: np.ndarray) -> np.ndarray:
    """``[N, D]`` bytes of ``stays`` (``[T]``, always at home) beside an op if it runs on a device.

    There are those that can be nowhere else, and those of the op's own group; not what the op reads.
    """
    (n, d), leader = allowed.shape, graph.colocation_leader
    pinned = np.where(allowed.sum(axis=1) == 1, allowed.argmax(axis=1), -1)
    at = pinned[graph.tensor_op]
    certain, group = np.zeros(d, dtype=np.int64), np.zeros(n, dtype=np.int64)
    np.add.at(certain, at[at >= 0], stays[at >= 0])
    np.add.at(group, leader[graph.tensor_op[at < 0]], stays[at < 0])
    beside = certain + group[leader][:, None]
    read, reader, pin = stays[graph.edge_tensor], graph.edge_op, at[graph.edge_tensor]
    own = (pin < 0) & (leader[graph.edge_producer] == leader[reader])
    np.subtract.at(beside, (reader[pin >= 0], pin[pin >= 0]), read[pin >= 0])
    np.subtract.at(beside, reader[own], read[own][:, None])
    return beside


@once_a_pair
def makespan_upper_bound(graph: ComputationGraph, cluster: Cluster) -> float:
    """No order of events on ``cluster`` takes longer: each at its slowest, one after another."""
    runtime = runtime_matrix(graph, cluster).max(axis=1).sum()
    copies = np.minimum(np.diff(graph.consumer_offset), cluster.num_devices - 1)
    cost = transfer_times(graph, cluster).max(axis=1)
    if cluster.transfer is TransferModel.BLOCKING:
        return float(runtime + (copies * cost).sum())
    # Delays overlap: between two finishes at most one is waited for at a time.
    return float(runtime + cost[copies > 0].sum())


def critical_path(graph: ComputationGraph, runtime: np.ndarray, wait: np.ndarray | None = None) -> float:
    """Length of the longest path.

    Args:
      graph: The graph.
      runtime: ``[N]``, of each op.
      wait: ``[E]``, between each input (by `ComputationGraph.inputs`) and its reader; ``None`` for no time.
    """
    finish = runtime.tolist()
    waits = np.zeros(len(graph.inputs[1])).tolist() if wait is None else wait.tolist()
    offset, tensor = graph.inputs
    control_offset, control = graph.control_predecessors
    producer = graph.tensor_op[tensor].tolist()
    bounds, control_bounds, controls = offset.tolist(), control_offset.tolist(), control.tolist()
    for o in graph.topological_order.tolist():
        mine = slice(bounds[o], bounds[o + 1])
        ready = [finish[u] + late for u, late in zip(producer[mine], waits[mine], strict=True)]
        ready += [finish[u] for u in controls[control_bounds[o] : control_bounds[o + 1]]]
        finish[o] += max(ready, default=0.0)
    return max(finish)
