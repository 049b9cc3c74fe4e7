"""The decoder that a user would write without regal_jax: docs/design.md, part 1, in plain Python.

It supports blocking transfers at no cost and graphs that pass `benchmarks.peers.plain_graph`. It is as fast
as plain Python allows, and independent of `regal_jax.plan`, with which tests compare it.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from benchmarks.peers import plain_graph
from regal_jax.graph import ComputationGraph

__all__ = ["PythonDecoder"]


class PythonDecoder:
    """Decoder of keys to makespan and peak memory.

    Args:
      graph: Single-output ops and data edges only.
      devices: ``D``.

    Raises:
      ConfigError: The graph has other features.
    """

    def __init__(self, graph: ComputationGraph, devices: int) -> None:
        plain_graph(graph)
        n = graph.num_ops
        self.num_ops, self.devices = n, devices
        self.runtime: list[float] = graph.runtime.tolist()
        self.size: list[int] = graph.tensor_bytes.tolist()
        offset, tensor = graph.inputs
        self.predecessors = [tensor[offset[o] : offset[o + 1]].tolist() for o in range(n)]
        bounds = graph.consumer_offset
        self.successors = [graph.edge_op[bounds[o] : bounds[o + 1]].tolist() for o in range(n)]
        self.waiting = [len(p) for p in self.predecessors]
        self.sources = [o for o in range(n) if not self.predecessors[o]]

    @property
    def num_keys(self) -> int:
        """Length of a chromosome: ``N * D`` affinities, ``N`` priorities, ``N * D`` transfer priorities."""
        return self.num_ops * (2 * self.devices + 1)

    def placement(self, keys: Sequence[float]) -> list[int]:
        """``[N]`` device of each op: the largest affinity, lowest index on ties."""
        d = self.devices
        rows = (keys[i : i + d] for i in range(0, self.num_ops * d, d))
        return [row.index(max(row)) for row in rows]

    def __call__(self, keys: Sequence[float]) -> tuple[float, int]:
        """``(makespan, largest peak)`` of one chromosome in [0, 1], a list of `num_keys` numbers."""
        n, d, place = self.num_ops, self.devices, self.placement(keys)
        # The event with the largest key, lowest index on ties, is the smallest pair (-key, e).
        key = [-k for k in keys[n * d :]]
        runtime, size, successors = self.runtime, self.size, self.successors
        waiting, readers = self.waiting.copy(), self._readers(place)
        push, pop = heapq.heappush, heapq.heappop
        clock, held, peak = [0.0] * d, [0] * d, [0] * d
        ready = [(key[o], o) for o in self.sources]
        heapq.heapify(ready)
        while ready:
            event = pop(ready)[1]
            # Tensors that this event reads, and where: the last reader on a device frees its tensor there.
            if event < n:
                op, k = event, place[event]
                clock[k] += runtime[op]
                for j in range(d):
                    if j != k and readers[op * d + j]:
                        push(ready, (key[n + op * d + j], n + op * d + j))
                read, where = self.predecessors[op], k
            else:
                op, k = divmod(event - n, d)
                where = place[op]
                clock[where] = clock[k] = max(clock[where], clock[k])
                read = (op,)
            held[k] += size[op]
            if held[k] > peak[k]:
                peak[k] = held[k]
            if not readers[op * d + k]:
                held[k] -= size[op]
            for u in read:
                readers[u * d + where] -= 1
                if not readers[u * d + where]:
                    held[where] -= size[u]
            for w in successors[op]:
                if place[w] == k:
                    waiting[w] -= 1
                    if not waiting[w]:
                        push(ready, (key[w], w))
        return max(clock), max(peak)

    def _readers(self, place: list[int]) -> list[int]:
        """``[N * D]`` readers of each op's tensor on each device; at home every copy counts as one."""
        d = self.devices
        readers = [0] * (self.num_ops * d)
        for o, successors in enumerate(self.successors):
            for w in successors:
                readers[o * d + place[w]] += 1
            home = o * d + place[o]
            elsewhere = d - readers[o * d : o * d + d].count(0) - (readers[home] > 0)
            readers[home] += elsewhere
        return readers


def genes_in_order(genes: dict[str, np.ndarray]) -> list[float]:
    """One individual's genes (`regal_jax.encoding.Genes`, no padding) as keys in the decoder's order."""
    parts = (genes[name].reshape(-1) for name in ("affinity", "priority", "transfer_priority"))
    return (np.concatenate([*parts]).astype(np.float64) / 65535).tolist()
