"""Orders of ops that look at the graph alone: as given, breadth first, depth first, random, least memory.

Each function takes a graph, or its links, and returns ``[N]`` op indices in an order that keeps every edge.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.heuristics.links import Freeing, Links

__all__ = ["bfs_order", "dfs", "dfs_order", "given_order", "lpmf", "lpmf_order", "random_order"]

_Entry = tuple[int, int]
"""Of a heap: bytes, the op."""
_LOOK_AHEAD: Final = 64
"""LPMF looks at this many ready ops, best first, for one that stays under the peak."""


def _kahn(links: Links, key: Callable[[int, int], Any]) -> np.ndarray:
    """Kahn's order; smallest ``key(ops taken when it became ready, op)`` first, lowest index on ties."""
    waiting = [len(row) for row in links.before]
    ready = [(key(0, o), o) for o, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        o = heapq.heappop(ready)[1]
        order.append(o)
        for v in links.after[o]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(ready, (key(len(order), v), v))
    return np.array(order, dtype=np.int64)


def bfs_order(graph: ComputationGraph) -> np.ndarray:
    """Among the ready ops the one that has been ready for longest."""
    return _kahn(Links.of(graph), lambda step, _: step)


def dfs_order(graph: ComputationGraph) -> np.ndarray:
    """Among the ready ops the one that became ready last."""
    return dfs(Links.of(graph))


def dfs(links: Links) -> np.ndarray:
    """`dfs_order` of links."""
    return _kahn(links, lambda step, _: -step)


def given_order(graph: ComputationGraph) -> np.ndarray:
    """The graph's own order, that of op indices; among the ready ops the lowest where that breaks an edge.

    It is XLA's own schedule for a graph of `regal_jax.importers.from_hlo`, and program order for one of
    `regal_jax.importers.from_jax`.
    """
    return graph.topological_order


def random_order(graph: ComputationGraph, seed: int = 0) -> np.ndarray:
    """Among the ready ops the one with the smallest of ``N`` random keys."""
    keys = np.random.default_rng(seed).random(graph.num_ops).tolist()
    return _kahn(Links.of(graph), lambda _, o: keys[o])


def lpmf_order(graph: ComputationGraph) -> np.ndarray:
    """Least peak memory first, as in PyTorch Inductor (torch/_inductor/memory.py).

    Among the ready ops that stay under the peak so far, the one after which least is held; if there is
    none, the one that needs least while it runs. Unlike Inductor, it looks for the former among the first 64
    only, which keeps it near linear. The lowest index decides between equals.
    """
    return lpmf(Links.of(graph))


def lpmf(links: Links) -> np.ndarray:
    """`lpmf_order` of links."""
    count = len(links.inputs)
    freeing = Freeing(links)
    kept = [sum(links.size[t] for t in row if links.readers[t] or links.keep[t]) for row in links.outputs]
    need = [
        sum(links.size[t] for t in row) + temp for row, temp in zip(links.outputs, links.temp, strict=True)
    ]
    waiting = [len(row) for row in links.before]
    done = [False] * count
    by_need: list[_Entry] = []
    by_growth: list[_Entry] = []

    def offer(o: int) -> None:
        heapq.heappush(by_growth, (kept[o] - freeing.freed[o], o))

    def ready(o: int) -> None:
        heapq.heappush(by_need, (need[o], o))
        offer(o)

    for o, left in enumerate(waiting):
        if left == 0:
            ready(o)
    held = peak = 0
    order: list[int] = []
    while len(order) < count:
        o = _under(by_growth, need, done, freeing.freed, kept, peak - held)
        while o is None:
            candidate = heapq.heappop(by_need)[1]
            o = None if done[candidate] else candidate
        done[o] = True
        order.append(o)
        peak = max(peak, held + need[o])
        held += kept[o] - freeing.freed[o]
        for v in freeing.take(o):
            if waiting[v] == 0 and not done[v]:
                offer(v)
        for v in links.after[o]:
            waiting[v] -= 1
            if waiting[v] == 0:
                ready(v)
    return np.array(order, dtype=np.int64)


def _under(
    heap: list[_Entry],
    need: list[int],
    done: list[bool],
    freed: list[int],
    kept: list[int],
    room: int,
) -> int | None:
    """Pops the op of least growth that needs at most ``room``, if it is among the first few."""
    aside: list[_Entry] = []
    found = None
    while heap and found is None and len(aside) < _LOOK_AHEAD:
        entry = heapq.heappop(heap)
        growth, o = entry
        if done[o] or growth != kept[o] - freed[o]:
            continue  # An entry from before the op, or its growth, was settled.
        if need[o] <= room:
            found = o
        else:
            aside.append(entry)
    for entry in aside:
        heapq.heappush(heap, entry)
    return found
