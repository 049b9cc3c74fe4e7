"""Orders of ops that depend on the graph alone: as given, breadth first, depth first, random, least memory.

Each function takes a graph, or its links, and returns ``[N]`` op indices in an order that keeps every edge.
"""

import heapq
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from regal_jax.graph import ComputationGraph, once_a_pair
from regal_jax.heuristics.links import Links
from regal_jax.runtime.compiling import only_borrows, run_loops
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["bfs_order", "dfs", "dfs_order", "given_order", "lpmf", "lpmf_order", "random_order"]

_SECONDS: Final = 1e-6
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
    count = len(links.temps)
    space = np.zeros(count, np.int64), np.zeros(count, np.int64)
    arguments = np.diff(links.needs.bounds), *links.needed_by, *space
    return np.array(run_loops(_dfs, *arguments, seconds=_SECONDS * count), dtype=np.int64)


@only_borrows
def _dfs(waiting: Any, after_rows: Any, after: Any, ready: Any, order: Any) -> Any:
    """`dfs` in loops, which write the result to ``order``; ``ready`` is space.

    What became ready last is on top of a stack, ops of lower index above those that became ready with them.
    """
    count, top, taken = len(waiting), 0, 0
    for i in range(count):
        o = count - 1 - i
        if waiting[o] == 0:
            ready[top] = o
            top += 1
    while top > 0:
        top -= 1
        o = ready[top]
        order[taken] = o
        taken += 1
        for i in range(after_rows[o + 1] - after_rows[o]):
            v = after[after_rows[o + 1] - 1 - i]
            waiting[v] -= 1
            if waiting[v] == 0:
                ready[top] = v
                top += 1
    return order


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
    readers = np.diff(links.read_by.bounds)
    # Memory is counted relative to what residents hold at time 0, which is part of the peak.
    kept = need - links.temps - links.unread()
    numbers = (
        need,
        kept,
        np.argsort(need, kind="stable"),
        links.sizes,
        (~links.kept & (readers > 0)).astype(np.int64),
        readers,
        links.read_by.sums(links.read_by.item),
        *links.reads,
        np.diff(links.needs.bounds),
        *links.needed_by,
    )
    count, after = len(need), np.diff(links.needed_by.bounds)
    leaves = 1 << max(count - 1, 0).bit_length()
    # Ops that change at once: all that are ready, or an op, its successors, and a reader of each input.
    most = count + 1 + len(links.sizes) + int(after.max(initial=0))
    arrays = *(np.zeros(count, np.int64) for _ in range(4)), np.zeros(most, np.int64), np.full(2 * leaves, -1)
    return np.array(run_loops(_lpmf, *numbers, *arrays, seconds=_LPMF_SECONDS * count), dtype=np.int64)


@only_borrows
def _lpmf(
    need: Any, kept: Any, by_need: Any, size: Any, spared: Any, left: Any, readers: Any,
    input_rows: Any, inputs: Any, waiting: Any, after_rows: Any, after: Any,
    order: Any, rank: Any, freed: Any, ready: Any, changed: Any, tree: Any,
) -> Any:  # fmt: skip
    """`lpmf` in loops, which write the result to ``order``.

    The last six arguments are space: ``tree`` is filled with -1, the others with zeros.

    The ready ops are leaves of a binary tree, sorted by the memory that they need. Every node stores the best
    op below it, so the op of least growth below a limit is found in logarithmic time.
    """
    count, leaves = len(need), len(tree) // 2
    for r in range(count):
        rank[by_need[r]] = r
    fresh = 0
    for o in range(count):
        for j in range(input_rows[o], input_rows[o + 1]):
            if left[inputs[j]] == 1 and spared[inputs[j]]:
                freed[o] += size[inputs[j]]
        if waiting[o] == 0:
            ready[o] = 1
            changed[fresh] = o
            fresh += 1
    held = peak = 0
    for step in range(count):
        for i in range(fresh):
            o = changed[i]
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
            for side in range(2):
                # At an odd bound is a node whose parent has leaves outside of the range.
                bound = left_end if side == 0 else right_end
                o = tree[bound - side] if bound & 1 else -1
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
        order[step] = best
        ready[best] = 0
        changed[0] = best
        fresh = 1
        peak = max(peak, held + need[best])
        held += kept[best] - freed[best]
        for j in range(input_rows[best], input_rows[best + 1]):
            t = inputs[j]
            left[t] -= 1
            readers[t] -= best
            if left[t] == 1 and spared[t]:
                freed[readers[t]] += size[t]
                if ready[readers[t]]:
                    changed[fresh] = readers[t]
                    fresh += 1
        for j in range(after_rows[best], after_rows[best + 1]):
            waiting[after[j]] -= 1
            if waiting[after[j]] == 0:
                ready[after[j]] = 1
                changed[fresh] = after[j]
                fresh += 1
    return order
