"""Orders of ops that depend on the graph alone: as given, breadth first, depth first, random, least memory.

Each function takes a graph, or its links, and returns ``[N]`` op indices in an order that keeps every edge.
"""

import heapq
import itertools
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from regal_jax.graph import ComputationGraph, once_a_pair
from regal_jax.heuristics.links import Links
from regal_jax.runtime.compiling import run_loops
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["bfs_order", "dfs", "dfs_order", "given_order", "lpmf", "lpmf_order", "random_order"]

_LPMF_SECONDS: Final = 15e-6
"""Seconds per op in Python."""


def _kahn(links: Links, key: Callable[[int, int], Any]) -> np.ndarray:
    """Takes the ready op of smallest ``key(ops taken when it became ready, op)``, then of lowest index."""
    waiting = [len(row) for row in links.before]
    ready = [(key(0, o), o) for o, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order: list[int] = []
    while ready:
        check_interrupt()
        o = heapq.heappop(ready)[1]
        order.append(o)
        for v in links.after[o]:
            waiting[v] -= 1
            if waiting[v] == 0:
                heapq.heappush(ready, (key(len(order), v), v))
    return np.array(order, dtype=np.int64)


@once_a_pair
def bfs_order(graph: ComputationGraph) -> np.ndarray:
    """Takes the op that has been ready for longest."""
    return _kahn(Links.of(graph), lambda step, _: step)


@once_a_pair
def dfs_order(graph: ComputationGraph) -> np.ndarray:
    """Takes the op that became ready last."""
    return dfs(Links.of(graph))


def dfs(links: Links) -> np.ndarray:
    """`dfs_order` of links."""
    return _kahn(links, lambda step, _: -step)


def given_order(graph: ComputationGraph) -> np.ndarray:
    """The order of op indices; where that breaks an edge, the ready op of lowest index goes next.

    It is XLA's own schedule for a graph of `regal_jax.importers.from_hlo`, and program order for one of
    `regal_jax.importers.from_jax`.
    """
    return graph.topological_order


def random_order(graph: ComputationGraph, seed: int = 0) -> np.ndarray:
    """Takes the ready op with the smallest of ``N`` random keys."""
    keys = np.random.default_rng(seed).random(graph.num_ops).tolist()
    return _kahn(Links.of(graph), lambda _, o: keys[o])


@once_a_pair
def lpmf_order(graph: ComputationGraph) -> np.ndarray:
    """Least peak memory first, as in PyTorch Inductor (torch/_inductor/memory.py).

    Among the ready ops that stay below the peak so far, it takes the one after which least memory is held. If
    there is none, it takes the ready op that needs least memory while it runs. Ties go to the lowest index.
    """
    return lpmf(Links.of(graph))


def lpmf(links: Links) -> np.ndarray:
    """`lpmf_order` of links."""
    need = links.allocated()
    unread = [
        sum(links.size[t] for t in row if not (links.readers[t] or links.keep[t])) for row in links.outputs
    ]
    # Memory is counted relative to what residents hold at time 0, which is part of the peak.
    kept = [a - b - c for a, b, c in zip(need, links.temp, unread, strict=True)]
    by_need = sorted(range(len(need)), key=lambda o: (need[o], o))
    spared = [not keep and len(row) > 0 for keep, row in zip(links.keep, links.readers, strict=True)]
    lists = (
        need,
        kept,
        by_need,
        links.size,
        spared,
        [len(row) for row in links.readers],
        [sum(row) for row in links.readers],
        *_flat(links.inputs),
        [len(row) for row in links.before],
        *_flat(links.after),
    )
    numbers = (np.array(each, dtype=np.int64) for each in lists)
    return np.array(run_loops(_lpmf, *numbers, seconds=_LPMF_SECONDS * len(need)), dtype=np.int64)


def _flat(rows: list[list[int]]) -> tuple[list[int], list[int]]:
    """The bounds of each row in the concatenation of all rows, and the concatenation."""
    return list(itertools.accumulate(map(len, rows), initial=0)), list(itertools.chain.from_iterable(rows))


def _lpmf(
    need: Any, kept: Any, by_need: Any, size: Any, spared: Any, left: Any, readers: Any,
    input_rows: Any, inputs: Any, waiting: Any, after_rows: Any, after: Any,
) -> list[int]:  # fmt: skip
    """`lpmf` in loops over lists, or over arrays once compiled.

    The ready ops are leaves of a binary tree, sorted by the memory that they need. Every node stores the best
    op below it, so the op of least growth below a limit is found in logarithmic time.
    """
    count = len(need)
    leaves = 1
    while leaves < count:
        leaves *= 2
    tree, rank, freed = [-1] * (2 * leaves), [0] * count, [0] * count
    for r in range(count):
        rank[by_need[r]] = r
    for o in range(count):
        for j in range(input_rows[o], input_rows[o + 1]):
            if left[inputs[j]] == 1 and spared[inputs[j]]:
                freed[o] += size[inputs[j]]
    changed = [o for o in range(count) if waiting[o] == 0]
    order = [0] * 0
    ready = [False] * count
    for o in changed:
        ready[o] = True
    held = 0
    peak = 0
    while True:
        for o in changed:
            node = leaves + rank[o]
            tree[node] = o if ready[o] else -1
            while node > 1:
                node //= 2
                a, b = tree[2 * node], tree[2 * node + 1]
                if a < 0:
                    a = b
                elif b >= 0:
                    first, second = kept[a] - freed[a], kept[b] - freed[b]
                    if second < first or (second == first and b < a):
                        a = b
                if a == tree[node] and a != o:
                    break  # Nothing above depends on the op.
                tree[node] = a
        if len(order) == count:
            return order
        # The number of leaves whose need stays below the peak.
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if need[by_need[middle]] <= peak - held:
                low = middle + 1
            else:
                high = middle
        best = -1
        left_end, right_end = leaves, leaves + low
        while left_end < right_end:
            for node in (left_end * (left_end & 1), (right_end - 1) * (right_end & 1)):
                o = tree[node] if node else -1
                if o >= 0 and (
                    best < 0
                    or kept[o] - freed[o] < kept[best] - freed[best]
                    or (kept[o] - freed[o] == kept[best] - freed[best] and o < best)
                ):
                    best = o
            left_end, right_end = (left_end + 1) // 2, right_end // 2
        if best < 0:
            node = 1
            while node < leaves:
                node = 2 * node if tree[2 * node] >= 0 else 2 * node + 1
            best = tree[node]
        order.append(best)
        ready[best] = False
        changed = [best]
        peak = max(peak, held + need[best])
        held += kept[best] - freed[best]
        for j in range(input_rows[best], input_rows[best + 1]):
            t = inputs[j]
            left[t] -= 1
            readers[t] -= best
            if left[t] == 1 and spared[t]:
                freed[readers[t]] += size[t]
                if ready[readers[t]]:
                    changed.append(readers[t])
        for j in range(after_rows[best], after_rows[best + 1]):
            waiting[after[j]] -= 1
            if waiting[after[j]] == 0:
                ready[after[j]] = True
                changed.append(after[j])
