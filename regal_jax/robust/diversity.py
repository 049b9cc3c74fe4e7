"""Diversity of schedules of one graph (Zhang et al. 2023, appendix E.2)."""

import dataclasses

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.graph import ComputationGraph
from regal_jax.robust.timing import mean_runtime

__all__ = [
    "Diversity",
    "chain_successors",
    "diversity",
    "edit_distances_from",
    "graph_edit_distances",
    "start_distances",
    "time_scale",
]


@dataclasses.dataclass(frozen=True)
class Diversity:
    """Means over all pairs of schedules; 0 for a single schedule and for equal schedules.

    Attributes:
      ged: Graph-edit distance of the chain graphs, in percent.
      d_inv: L2 distance of the start times, in `time_scale`.
      d_sen: L2 distance of the start times, concatenated with the devices, one-hot.
      d_inv_squared: As `d_inv`, with squared distances.
      d_sen_squared: As `d_sen`, with squared distances.
    """

    ged: float
    d_inv: float
    d_sen: float
    d_inv_squared: float
    d_sen_squared: float


def chain_successors(sequence: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """The chain graph of each schedule, in which an edge leads to the next op on the same device.

    Args:
      sequence: ``[C, N]`` ops in the order in which they are scheduled.
      devices: ``[C, N]`` device of each op.

    Returns:
      ``[C, N]`` int32 ops; -1 for the last one on a device.
    """
    sequence, devices = np.asarray(sequence), np.asarray(devices)
    after = np.full(sequence.shape, -1, np.int32)
    if not sequence.size:
        return after
    where = np.take_along_axis(devices, sequence, axis=1)
    place = np.argsort(where, axis=1, kind="stable")
    ops = np.take_along_axis(sequence, place, axis=1)
    where = np.take_along_axis(where, place, axis=1)
    follows = np.where(where[:, 1:] == where[:, :-1], ops[:, 1:], -1)
    np.put_along_axis(after, ops[:, :-1], follows.astype(np.int32), axis=1)
    return after


def graph_edit_distances(after: np.ndarray) -> np.ndarray:
    """Graph-edit distances between chain graphs, in percent.

    ``100 * |A - B| / (|A| + |B|)``, where ``A`` and ``B`` are adjacency matrices of ops and ``|.|`` is the
    sum of absolute entries. The distance is 0 if all edges are the same or there are none, and 100 if no
    edge is shared. Edges of the computation graph, which all schedules share, do not count.

    Args:
      after: ``[C, N]`` as from `chain_successors`.

    Returns:
      ``[C, C]`` float64.
    """
    found = np.zeros((len(after), len(after)))
    for i in range(len(after)):
        found[i] = edit_distances_from(after, i)
    return found


def edit_distances_from(after: np.ndarray, index: int) -> np.ndarray:
    """One row of `graph_edit_distances`: ``[C]`` float64.

    Args:
      after: ``[C, N]`` as from `chain_successors`.
      index: The row.
    """
    real = after >= 0
    edges = real.sum(axis=1)
    both = edges[index] + edges
    shared = ((after == after[index]) & real[index]).sum(axis=1)
    return 100.0 * (both - 2 * shared) / np.maximum(both, 1)


def start_distances(start: np.ndarray, devices: np.ndarray | None = None) -> np.ndarray:
    """Squared L2 distances between vectors of start times, concatenated with devices if they are given.

    A device is a one-hot vector, so an op on another device adds 2 to the squared distance.

    Args:
      start: ``[C, N]`` start times.
      devices: ``[C, N]`` device of each op.

    Returns:
      ``[C, C]`` float64.
    """
    found = np.zeros((len(start), len(start)))
    for i in range(len(start)):
        found[i] = ((start - start[i]) ** 2).sum(axis=1)
        if devices is not None:
            found[i] += 2 * (devices != devices[i]).sum(axis=1)
    return found


def time_scale(graph: ComputationGraph) -> float:
    """Twice the mean runtime of the ops that take time; 1 if none does.

    Runtimes that are uniform on (0, 1), as in the paper, keep their scale. Distances do not depend on the
    unit.
    """
    check_kind("graph", graph, ComputationGraph)
    return 2 * mean_runtime(graph) or 1.0


def diversity(
    graph: ComputationGraph, sequence: np.ndarray, devices: np.ndarray, start: np.ndarray
) -> Diversity:
    """The diversity of ``C`` schedules.

    Args:
      graph: Their graph.
      sequence: ``[C, N]`` ops in the order in which they are scheduled.
      devices: ``[C, N]`` device of each op.
      start: ``[C, N]`` start times, as from `regal_jax.robust.start_times`.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, appendix E.2. docs/design.md lists
      the differences between its figures and its text.
    """
    start = np.asarray(start, np.float64) / time_scale(graph)
    alone, placed = start_distances(start), start_distances(start, np.asarray(devices))
    return Diversity(
        ged=_mean_of_pairs(graph_edit_distances(chain_successors(sequence, devices))),
        d_inv=_mean_of_pairs(np.sqrt(alone)),
        d_sen=_mean_of_pairs(np.sqrt(placed)),
        d_inv_squared=_mean_of_pairs(alone),
        d_sen_squared=_mean_of_pairs(placed),
    )


def _mean_of_pairs(distances: np.ndarray) -> float:
    """The mean over unordered pairs of different rows of a symmetric ``[C, C]``; 0 if there is no pair."""
    pairs = distances[np.triu_indices(len(distances), 1)]
    return float(pairs.mean()) if pairs.size else 0.0
