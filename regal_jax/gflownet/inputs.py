"""`ScheduleInputs`: one graph and its cluster as inputs of the environment and the networks."""

import dataclasses
from typing import Any

import jax
import numpy as np

from regal_jax.checks import check_kind, check_whole, counted
from regal_jax.errors import ConfigError
from regal_jax.graph import MAX_DEVICES, Cluster, ComputationGraph
from regal_jax.graph.pairing import allowed_matrix, runtime_matrix
from regal_jax.ordering.precedence import MOST_OPS
from regal_jax.ordering.relations import Relation, relation_matrix
from regal_jax.runtime.interrupts import interruptible

__all__ = ["ScheduleInputs", "assembled", "make_schedule_inputs", "padded_ops"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ScheduleInputs:
    """One graph on one cluster, padded to ``N`` ops and ``D`` devices.

    Padding is inert: no op may run on a padded device, and a padded op may run on none.

    Attributes:
      relations: ``[N, N]`` uint8, the `regal_jax.ordering.Relation` of the op of the column to that of the
        row.
      runtime: ``[N, D]`` float32, in units of a power of two of the graph's time unit, so that sums are
        rounded as in the graph's unit.
      allowed: ``[N, D]`` bool, whether the op, and its whole colocation group, may run on the device.
      leader: ``[N]`` int32, the first op of each op's colocation group.
      path: ``[N]`` float32, the longest path of runtimes from the start of each op to the end of the graph;
        a runtime that depends on the device counts with its minimum.
      longest: float32 scalar, the longest runtime, to which features are relative; 1 if all are 0.
      work: float32 scalar, the sum of the shortest runtimes of the ops: the makespan of a single device.
      devices: float32 scalar, ``m``, the number of devices of the cluster.
      num_ops: int32 scalar, number of ops without padding.
    """

    relations: jax.Array
    runtime: jax.Array
    allowed: jax.Array
    leader: jax.Array
    path: jax.Array
    longest: jax.Array
    work: jax.Array
    devices: jax.Array
    num_ops: jax.Array

    @property
    def shape(self) -> tuple[int, int]:
        """``(N, D)``."""
        n, d = self.runtime.shape[-2:]
        return n, d


def padded_ops(ops: int) -> int:
    """``N`` for a graph of ``ops`` ops: the next multiple of 8, or of an eighth of the next power of two.

    The work of a network grows with the cube of ``N``, and every size needs a separate program.
    """
    unit = max(8, (1 << (max(ops, 1) - 1).bit_length()) // 8)
    return unit * -(-max(ops, 1) // unit)


@interruptible()
def make_schedule_inputs(
    graph: ComputationGraph, cluster: Cluster, *, ops: int | None = None, devices: int | None = None
) -> ScheduleInputs:
    """Computes the inputs of networks for a graph, as NumPy arrays.

    Args:
      graph: The graph.
      cluster: The cluster. Its transfer model, links and memory do not matter.
      ops: ``N``, the padded size; ``None`` for that of the graph.
      devices: ``D``, as `GflownetConfig` has it; ``None`` for those of the cluster.

    Raises:
      ClusterError: The cluster does not fit the graph.
      ConfigError: The graph or the cluster exceeds ``ops`` or ``devices``.

    Examples:
      >>> from regal_jax.datasets import generate
      >>> from regal_jax.gflownet import make_schedule_inputs
      >>> from regal_jax.graph import Cluster
      >>> inputs = make_schedule_inputs(generate("chain", 3, 0), Cluster.uniform(2), ops=4, devices=4)
      >>> inputs.shape, inputs.allowed[2].tolist(), inputs.allowed[3].any().item()
      ((4, 4), [True, True, False, False], False)

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, appendix E.1.
    """
    check_kind("graph", graph, ComputationGraph)
    check_kind("cluster", cluster, Cluster)
    size, most = graph.num_ops, cluster.num_devices
    n = max(size, 1) if ops is None else check_whole("schedule inputs: ops", ops, 1, MOST_OPS)
    d = most if devices is None else check_whole("schedule inputs: devices", devices, 1, MAX_DEVICES)
    if size > n:
        raise ConfigError(f"schedule inputs: graph {graph.name!r} has {size} ops, more than {n}; give more")
    if most > d:
        raise ConfigError(
            f"schedule inputs: the cluster has {counted(most, 'device')}, but the network is for {d}; "
            "use a network for more devices, or a smaller cluster"
        )
    relations, leader = np.zeros((n, n), np.uint8), np.arange(n, dtype=np.int32)
    runtime, allowed = np.zeros((n, d), np.float32), np.zeros((n, d), np.bool_)
    relations[:size, :size] = relation_matrix(graph)
    leader[:size] = graph.colocation_leader
    allowed[:size, :most] = allowed_matrix(graph, cluster)
    times = runtime_matrix(graph, cluster)
    longest = float(times.max(initial=0.0))
    # Division by a power of two does not change how sums are rounded.
    mantissa, exponent = np.frexp(longest) if longest else (1.0, 0)
    runtime[:size, :most] = np.ldexp(times, -int(exponent))
    return assembled(relations, runtime, allowed, leader, float(mantissa), size, most)


def assembled(
    relations: np.ndarray,
    runtime: np.ndarray,
    allowed: np.ndarray,
    leader: np.ndarray,
    longest: float,
    size: int,
    devices: int | jax.Array,
) -> ScheduleInputs:
    """Completes inputs: computes the remaining fields from the given ones.

    Args:
      relations: See `ScheduleInputs`.
      runtime: See `ScheduleInputs`.
      allowed: See `ScheduleInputs`.
      leader: See `ScheduleInputs`.
      longest: See `ScheduleInputs`.
      size: Number of ops.
      devices: See `ScheduleInputs`.
    """
    shortest = np.where(allowed, runtime, np.inf).min(axis=1)
    shortest[size:] = 0
    path = shortest.copy()
    after = (relations == Relation.REDUCED_SUCCESSOR) | (relations == Relation.OTHER_SUCCESSOR)
    behind = after | (relations == Relation.DESCENDANT)
    # An op has more descendants than any of its successors.
    for o in np.argsort(behind.sum(axis=1), kind="stable"):
        path[o] += path[after[o]].max(initial=0)
    arrays: Any = (relations, runtime, allowed, leader, path)
    work = shortest.sum(dtype=np.float64)
    scalars: Any = (np.float32(longest), np.float32(work), np.float32(devices), np.int32(size))
    return ScheduleInputs(*arrays, *scalars)
