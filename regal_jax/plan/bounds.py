"""Lower and upper bounds on the objectives of plans."""

import enum
import math
from typing import NoReturn

import numpy as np

from regal_jax.checks import check_kind, shown
from regal_jax.errors import ConfigError
from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    TransferModel,
    allowed_matrix,
    once_a_pair,
    runtime_matrix,
    shortest_runtimes,
    transfer_times,
)
from regal_jax.graph.arrays import mean_runtimes

__all__ = ["Objective", "critical_path", "lower_bound", "makespan_upper_bound", "parallelism"]


class Objective(enum.StrEnum):
    """The quantity that a plan minimises."""

    MAKESPAN = "makespan"
    PEAK_MEMORY = "peak-memory"

    @classmethod
    def _missing_(cls, value: object) -> NoReturn:
        raise ConfigError(f"objective: unknown {shown(value)}; use one of {', '.join(cls)}")


@once_a_pair
def lower_bound(graph: ComputationGraph, cluster: Cluster, objective: Objective | str) -> float:
    """A value of ``objective`` that no plan can beat.

    The bound on the makespan is the largest of:

    - the longest path, with every op on its fastest allowed device, and with the transfers between ops that
      share no allowed device;
    - all work, spread evenly over the devices;
    - the work that only some devices may do, spread evenly over these, with the blocking transfers to devices
      that readers are pinned to;
    - the work of a colocation group on its best device.

    The bound on peak memory is the largest amount that must be held at one time, by the device of a
    colocation group or spread evenly over the devices that may hold it. The times are time 0 (residents), the
    end (results) and the run of each op (its inputs, outputs and `temp_bytes`, with the residents that are
    kept).

    Work is summed exactly, and a timeline event by event, so a makespan may be below the bound in the last
    bits. Bytes above 2**53 are rounded as in `Plan.objective_value`, so a bound may be above a peak in whole
    bytes, but never above the value of a plan.

    Raises:
      ClusterError: The cluster does not fit the graph.
      ConfigError: There is no such objective.
    """
    if Objective(objective) is Objective.PEAK_MEMORY:
        allowed = allowed_matrix(graph, cluster)
        ends = (_spread(graph, allowed, held) for held in (graph.tensor_resident, graph.tensor_keep))
        return float(max(_busiest(graph, allowed), *ends))
    allowed = allowed_matrix(graph, cluster)
    runtime = shortest_runtimes(graph, cluster)
    path = critical_path(graph, runtime, _unavoidable(graph, cluster, allowed))
    devices, work = _work(graph, cluster, allowed, runtime)
    even = math.fsum(work) / cluster.num_devices
    return float(max(path, even, _restricted(devices, work), _together(graph, cluster, allowed)))


def _unavoidable(graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray) -> np.ndarray:
    """``[E]``, by `ComputationGraph.inputs`: least time of the transfer, 0 if it can be avoided."""
    offset, tensor = graph.inputs
    reader = np.repeat(np.arange(graph.num_ops), np.diff(offset))
    time = np.zeros(len(tensor))
    apart = np.flatnonzero(~(allowed[graph.tensor_op[tensor]] & allowed[reader]).any(axis=1))
    time[apart] = _least_time(graph, cluster, allowed, tensor[apart], reader[apart])
    return time


def _least_time(
    graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray, tensor: np.ndarray, reader: np.ndarray
) -> np.ndarray:
    """Least time of each transfer of a tensor to a reader, over all pairs of devices that they may be on."""
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
    """The work that must be done: the devices that may do it (``[W, D]`` bool), and its time (``[W]``).

    It consists of ops, with ``runtime [N]``, and of blocking transfers to devices that readers are pinned to
    and the producer may not use. Such a transfer occupies both of its devices.
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
    """The largest mean busy time of a set of devices with work that only they may do; work as in `_work`."""
    narrow = ~devices.all(axis=1)
    if not narrow.any():
        return 0.0
    sets, which = np.unique(devices[narrow], axis=0, return_inverse=True)
    by_set = np.split(work[narrow][np.argsort(which, kind="stable")], np.cumsum(np.bincount(which))[:-1])
    total = np.array([math.fsum(times) for times in by_set])
    inside = sets.astype(np.int64) @ ~sets.T == 0
    return max(math.fsum(total[inside[:, s]]) / sets[s].sum() for s in range(len(sets)))


def _together(graph: ComputationGraph, cluster: Cluster, allowed: np.ndarray) -> float:
    """The largest runtime of a colocation group of several ops, each on its best device."""
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
    """Bytes that some device must hold when every tensor in ``held`` (``[T]`` bool) is on its home.

    A tensor is on one of the devices that its producer may use (``allowed``, ``[N, D]``), and all tensors of
    a colocation group are on one device.
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
    """Bytes that some device must hold while some op runs: its need, and the residents that are kept."""
    size = graph.tensor_bytes
    need = graph.temp_bytes.copy()
    np.add.at(need, graph.tensor_op, size)
    np.add.at(need, graph.edge_op, size[graph.edge_tensor])
    stays = np.where(graph.tensor_resident & graph.tensor_keep, size, 0)
    if not stays.any():
        return int(need.max())
    # Spread evenly over the devices; inputs of the op are part of its need.
    others = np.full(graph.num_ops, stays.sum())
    np.subtract.at(others, graph.edge_op, stays[graph.edge_tensor])
    beside = np.where(allowed, _beside(graph, allowed, stays), np.iinfo(np.int64).max).min(axis=1)
    most = np.maximum(need + beside, -(-(need + others) // allowed.shape[1]))
    return int(np.where(graph.resident, need, most).max())


def _beside(graph: ComputationGraph, allowed: np.ndarray, stays: np.ndarray) -> np.ndarray:
    """``[N, D]`` bytes of ``stays`` (``[T]``, always at home) on a device where an op runs.

    These are the tensors that can be on no other device, and those of the op's colocation group, without the
    inputs of the op.
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
    """Upper bound on the makespan: the sum of all events, each on its slowest device or link."""
    runtime = runtime_matrix(graph, cluster).max(axis=1).sum()
    copies = np.minimum(np.diff(graph.consumer_offset), cluster.num_devices - 1)
    cost = transfer_times(graph, cluster).max(axis=1)
    if cluster.transfer is TransferModel.BLOCKING:
        return float(runtime + (copies * cost).sum())
    # Delays overlap: between two consecutive finishes the schedule waits for one delay at most.
    return float(runtime + cost[copies > 0].sum())


def critical_path(graph: ComputationGraph, runtime: np.ndarray, wait: np.ndarray | None = None) -> float:
    """Length of the longest path.

    Args:
      graph: The graph.
      runtime: ``[N]``, runtime of each op.
      wait: ``[E]``, time between each input (by `ComputationGraph.inputs`) and its reader; ``None`` for 0.

    Raises:
      ConfigError: The graph is of another kind.
    """
    check_kind("graph", graph, ComputationGraph)
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


def parallelism(graph: ComputationGraph) -> float:
    """Ratio of total work to longest path, with mean runtimes; 1 if there is no work."""
    check_kind("graph", graph, ComputationGraph)
    runtime = mean_runtimes(graph)
    longest = critical_path(graph, runtime)
    return float(runtime.sum() / longest) if longest > 0 else 1.0
