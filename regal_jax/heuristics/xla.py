"""XLA's three memory orders, from openxla's hlo_memory_scheduler, for any graph.

XLA uses facts that a `ComputationGraph` does not have: its List order also puts scalars first and treats
parameters and constants as free. Those rules are left out.
"""

import heapq
from typing import Any, Final

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.heuristics.links import Freeing, Links, Rows
from regal_jax.runtime.compiling import only_borrows, run_loops
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["post_order", "xla_dfs_order", "xla_list_order", "xla_post_order"]

_SECONDS: Final = 2e-6
"""Seconds per op in Python."""


def xla_list_order(graph: ComputationGraph) -> np.ndarray:
    """Takes the ready op with the largest balance of bytes, then the one with most users.

    The balance is the bytes of the inputs whose last reader it is, minus the bytes that it allocates. Ties go
    to the op whose priority was set last.
    """
    links = Links.of(graph)
    freeing = Freeing(links)
    defined = links.allocated().tolist()
    users = [len({o for t in row for o in links.readers[t]}) for row in links.outputs]
    waiting = [len(row) for row in links.before]
    latest = [-1] * graph.num_ops
    ready: list[tuple[int, int, int, int]] = []
    pushed = 0

    def push(o: int) -> None:
        nonlocal pushed
        latest[o] = pushed = pushed + 1
        heapq.heappush(ready, (defined[o] - freeing.freed[o], -users[o], -pushed, o))

    for o, count in enumerate(waiting):
        if count == 0:
            push(o)
    order: list[int] = []
    while ready:
        check_interrupt()
        _, _, stamp, o = heapq.heappop(ready)
        if -stamp != latest[o]:
            continue
        latest[o] = -1
        order.append(o)
        grown = freeing.take(o)
        for v in links.after[o]:
            waiting[v] -= 1
            if waiting[v] == 0:
                push(v)
        for v in grown:
            if latest[v] >= 0 and waiting[v] == 0:
                push(v)
    return np.array(order, dtype=np.int64)


def xla_post_order(graph: ComputationGraph) -> np.ndarray:
    """Depth-first post-order from the ops without successors, operands in their own order."""
    return post_order(Links.of(graph))


def post_order(links: Links) -> np.ndarray:
    """`xla_post_order` of links."""
    return _post_order(links, links.needs.item)


def xla_dfs_order(graph: ComputationGraph) -> np.ndarray:
    """Depth-first post-order, operands with most extra users first, then most bytes, then by name.

    Both numbers are summed over all ancestors of the operand, once per path, and are capped at the number of
    ops and the bytes seen so far, as in XLA.
    """
    links, n = Links.of(graph), graph.num_ops
    order = _post_order(links, links.needs.item)
    # Distinct pairs of a producer and an op that reads one of its outputs.
    pair = np.unique(links.made_by[links.reads.item] * n + links.reads.row)
    producer, reader = np.divmod(pair, n)
    operands = Rows.of(n, reader, producer)
    users = np.bincount(producer, minlength=n)
    bytes_of = links.makes.sums(links.sizes)
    space = np.zeros(n, np.int64), np.zeros(n, np.int64)
    arguments = order, users, bytes_of, *operands, *space
    extra, total = map(np.array, run_loops(_summed, *arguments, seconds=_SECONDS * n))
    by_name = np.empty(n, np.int64)
    by_name[sorted(range(n), key=graph.op_names.__getitem__)] = np.arange(n)
    op, before = links.needs.row, links.needs.item
    return _post_order(links, before[np.lexsort((by_name[before], -total[before], -extra[before], op))])


@only_borrows
def _summed(order: Any, users: Any, bytes_of: Any, rows: Any, operands: Any, extra: Any, total: Any) -> Any:
    """Sums of extra users and of bytes over all ancestors of each op, into ``extra`` and ``total``."""
    seen = 0
    for i in range(len(order)):
        o = order[i]
        seen += bytes_of[o]
        extra[o], total[o] = max(users[o] - 1, 0), bytes_of[o]
        for j in range(rows[o], rows[o + 1]):
            # Capped at each operand, so that no sum exceeds 64 bits.
            extra[o] = min(extra[o] + extra[operands[j]], len(order))
            total[o] = min(total[o] + total[operands[j]], seen)
        extra[o] = min(extra[o], len(order))
    return extra, total


def _post_order(links: Links, before: np.ndarray) -> np.ndarray:
    """Visits the predecessors ``before`` of an op in order, then the op, for every op without successors.

    Args:
      links: The links.
      before: As the items of `Links.needs`; those of each op may be in another order.
    """
    bounds, count = links.needs.bounds, len(links.temps)
    ends = (np.diff(links.needed_by.bounds) == 0).astype(np.int64)
    space = np.zeros(len(before) + 1, np.int64), np.zeros(count, np.int64), np.zeros(count, np.int64)
    found = run_loops(_visited, ends, bounds, before, *space, seconds=_SECONDS * count)
    return np.array(found, dtype=np.int64)


@only_borrows
def _visited(ends: Any, rows: Any, before: Any, stack: Any, visited: Any, order: Any) -> Any:
    """`_post_order` in loops, which write the result to ``order``; ``stack`` and ``visited`` are space."""
    taken = 0
    for root in range(len(ends)):
        if ends[root] == 0:
            continue
        stack[0] = root
        top = 1
        while top > 0:
            o, under = stack[top - 1], top
            if visited[o] == 0:
                for i in range(rows[o + 1] - rows[o]):
                    u = before[rows[o + 1] - 1 - i]
                    if visited[u] == 0:
                        stack[top] = u
                        top += 1
            if top > under:
                continue
            top -= 1
            if visited[o] == 0:
                visited[o] = 1
                order[taken] = o
                taken += 1
    return order
