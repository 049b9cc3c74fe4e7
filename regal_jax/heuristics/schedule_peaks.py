"""The peaks of memory of a schedule, in a few sums over arrays: for searches, which look at thousands."""

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, TransferModel

__all__ = ["SchedulePeaks"]


class SchedulePeaks:
    """What the devices hold at most under the schedules of a graph.

    The same numbers as those of `regal_jax.plan.replay`, at a fiftieth of its price.

    Args:
      graph: The graph.
      cluster: The cluster.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster) -> None:
        self._graph, self._devices = graph, cluster.num_devices
        self._blocking = cluster.transfer is TransferModel.BLOCKING
        self._ops, self._size = graph.num_ops, graph.tensor_bytes
        self._home_edge = graph.edge_tensor * cluster.num_devices

    def __call__(self, placement: np.ndarray, events: np.ndarray) -> np.ndarray:
        """``[D]`` bytes.

        Args:
          placement: ``[N]``.
          events: ``[M]`` ids in schedule order.
        """
        graph, n, d = self._graph, self._ops, self._devices
        last = len(events)
        position = np.empty(n, np.int64)
        computes = events < n
        position[events[computes]] = np.flatnonzero(computes)
        home = placement[graph.tensor_op]
        at_home = np.arange(graph.num_tensors) * d + home
        # Of each tensor on each device, [T D]: from where to where it is there.
        begin = np.full(graph.num_tensors * d, last)
        reader, there = position[graph.edge_op], self._home_edge + placement[graph.edge_op]
        if self._blocking:
            moved = events[~computes] - n
            sent = np.flatnonzero(~computes)
        else:
            np.minimum.at(begin, there, reader)
            moved = np.flatnonzero(begin < last)
            moved = moved[moved % d != home[moved // d]]
            sent = begin[moved]
        begin[moved] = sent
        # What a resident makes is there from the beginning.
        begin[at_home] = np.where(graph.resident[graph.tensor_op], 0, position[graph.tensor_op])
        end = np.full(graph.num_tensors * d, -1)
        end[at_home] = position[graph.tensor_op]
        np.maximum.at(end, there, reader)
        np.maximum.at(end, at_home[moved // d], sent)
        end[at_home[graph.tensor_keep]] = last
        held = np.flatnonzero(begin < last)
        size, device = self._size[held // d], held % d
        change = np.bincount(device * (last + 2) + begin[held], size, d * (last + 2))
        change -= np.bincount(device * (last + 2) + np.minimum(end[held] + 1, last + 1), size, d * (last + 2))
        level = np.cumsum(change.reshape(d, last + 2), axis=1)
        peaks = level.max(axis=1)
        np.maximum.at(peaks, placement, level[placement, position] + graph.temp_bytes)
        return peaks
