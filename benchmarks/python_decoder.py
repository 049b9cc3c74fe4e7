"""The decoder that a user would write without regal_jax: docs/design.md, part 1, in plain Python.

For blocking transfers that cost nothing and graphs as `benchmarks.peers.plain_graph` takes them. Written for
speed as far as Python goes, and independent of `regal_jax.plan`, which tests compare it with.
"""

import heapq
from collections.abc import Sequence

import numpy as np

from benchmarks.peers import plain_graph
from regal_jax.graph import ComputationGraph

__all__ = ["PythonDecoder"]


class PythonDecoder:
    """Keys to makespan and peak memory.

    Args:
      graph: Single-output ops and data edges only.
      devices: ``D``.

    Raises:
      ConfigError: A graph that has more than that.
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
        # Event e of the key that is largest, lowest e on ties, is the smallest pair (-key, e).
        key = [-k for k in keys[n * d :]]
        runtime, size, waiting = self.runtime, self.size, self.waiting.copy()
        push, pop = heapq.heappush, heapq.heappop
        here, there = self._split(place)
        readers = [len(own) + len(away) for own, away in zip(here, there, strict=True)]
        copies: dict[int, int] = {}
        clock, held, peak = [0.0] * d, [0] * d, [0] * d
        ready = [(key[o], o) for o in self.sources]
        heapq.heapify(ready)
        while ready:
            event = pop(ready)[1]
            if event < n:
                k = place[event]
                clock[k] += runtime[event]
                held[k] += size[event]
                if held[k] > peak[k]:
                    peak[k] = held[k]
                if not readers[event]:
                    held[k] -= size[event]
                for u in self.predecessors[event]:
                    # The last reader on a device frees what it read there.
                    if place[u] == k:
                        readers[u] -= 1
                        if not readers[u]:
                            held[k] -= size[u]
                    else:
                        copies[u * d + k] -= 1
                        if not copies[u * d + k]:
                            held[k] -= size[u]
                for j in there[event]:
                    push(ready, (key[n + event * d + j], n + event * d + j))
                reached = here[event]
            else:
                u, k = divmod(event - n, d)
                home = place[u]
                clock[home] = clock[k] = max(clock[home], clock[k])
                held[k] += size[u]
                if held[k] > peak[k]:
                    peak[k] = held[k]
                readers[u] -= 1
                if not readers[u]:
                    held[home] -= size[u]
                reached = there[u][k]
                copies[event - n] = len(reached)
            for w in reached:
                waiting[w] -= 1
                if not waiting[w]:
                    push(ready, (key[w], w))
        return max(clock), max(peak)

    def _split(self, place: list[int]) -> tuple[list[list[int]], list[dict[int, list[int]]]]:
        """Readers of each op's tensor: those on its device, and those of every other device."""
        here: list[list[int]] = []
        there: list[dict[int, list[int]]] = []
        for o, successors in enumerate(self.successors):
            home, own, away = place[o], [], {}
            for w in successors:
                if place[w] == home:
                    own.append(w)
                else:
                    away.setdefault(place[w], []).append(w)
            here.append(own)
            there.append(away)
        return here, there


def genes_in_order(genes: dict[str, np.ndarray]) -> list[float]:
    """One individual's genes (`regal_jax.encoding.Genes`, no padding) as keys in the decoder's order."""
    parts = (genes[name].reshape(-1) for name in ("affinity", "priority", "transfer_priority"))
    return (np.concatenate([*parts]).astype(np.float64) / 65535).tolist()
