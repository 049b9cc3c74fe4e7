"""A graph in its own units, and numbers of its ops that do not depend on how it numbers them."""

import dataclasses
import functools

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, mean_transfer_times, once_a_pair, runtime_matrix
from regal_jax.graph.arrays import all_edges
from regal_jax.heuristics.levels import Levels, levels, quantised

__all__ = ["Scaled", "neutral_numbers", "scaled"]


@dataclasses.dataclass(frozen=True, eq=False)
class Scaled:
    """A graph in its own units: times in mean runtimes, sizes in mean tensor sizes.

    Attributes:
      graph: The graph.
      cluster: Cluster on which it runs.
      runtime: ``[N, D]`` runtimes.
      amounts: ``[4, N]`` mean runtime, temp, output and input bytes.
      size: ``[T]`` sizes of tensors.
      transfer: ``[T]`` transfer times, as means over all ordered pairs of devices.
      sender: ``[E + C]`` sending ops, data edges first.
      receiver: ``[E + C]`` receiving ops.
      levels: Levels by mean runtime.
      critical: Length of the longest path; 1 if that is 0.
    """

    graph: ComputationGraph
    cluster: Cluster
    runtime: np.ndarray
    amounts: np.ndarray
    size: np.ndarray
    transfer: np.ndarray
    sender: np.ndarray
    receiver: np.ndarray
    levels: Levels
    critical: float

    @functools.cached_property
    def order(self) -> np.ndarray:
        """``[N]`` ops in a topological order, by depth."""
        path = self.levels
        top, bottom = quantised(path.top / self.critical), quantised(path.bottom / self.critical)
        return np.lexsort((*quantised(self.amounts[[0, 1, 3, 2]]), -bottom, top, path.depth))

    @functools.cached_property
    def numbers(self) -> np.ndarray:
        """``[N]`` position of every op in `order`, which breaks ties."""
        return np.argsort(self.order)


def scaled(graph: ComputationGraph, cluster: Cluster) -> Scaled:
    """The graph in its own units.

    Raises:
      ClusterError: The cluster does not fit the graph.
    """
    n = graph.num_ops
    runtime, transfer = runtime_matrix(graph, cluster), mean_transfer_times(graph, cluster)
    time = _scale(runtime, transfer)
    byte = _scale(graph.tensor_bytes, graph.temp_bytes)
    runtime, transfer, size = runtime / time, transfer / time, graph.tensor_bytes / byte
    mean = runtime[:, 0] if graph.runtime.ndim == 1 else runtime.mean(axis=1)
    amounts = np.stack([
        mean,
        graph.temp_bytes / byte,
        np.bincount(graph.tensor_op, weights=size, minlength=n),
        np.bincount(graph.edge_op, weights=size[graph.edge_tensor], minlength=n),
    ])  # fmt: skip
    sender, receiver = all_edges(graph)
    paths = levels(sender, receiver, graph.topological_order, mean)
    critical = float(paths.bottom.max()) or 1.0
    return Scaled(graph, cluster, runtime, amounts, size, transfer, sender, receiver, paths, critical)


@once_a_pair
def neutral_numbers(graph: ComputationGraph, cluster: Cluster) -> np.ndarray:
    """``[N]`` int64, each from 0 to ``N - 1`` once: ops by depth, then by levels and sizes.

    Heuristics that break ties by these numbers do not depend on the graph's own, except between ops that are
    equal in all of these.

    Raises:
      ClusterError: The cluster does not fit the graph.
    """
    # The order does not matter where a sum of runtimes is not finite.
    with np.errstate(over="ignore", invalid="ignore"):
        return scaled(graph, cluster).numbers


def _scale(values: np.ndarray, otherwise: np.ndarray) -> float:
    """The mean of ``values``, or of ``otherwise`` if that is 0, or 1 if both are 0."""
    for array in (values, otherwise):
        mean = float(array.mean()) if array.size else 0.0
        if mean > 0:
            return mean
    return 1.0
