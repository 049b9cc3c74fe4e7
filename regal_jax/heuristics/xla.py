"""XLA's three memory orders, from openxla's hlo_memory_scheduler, for any graph.

XLA uses facts that a `ComputationGraph` does not have: its List order also puts scalars first and treats
parameters and constants as free. Those rules are left out.
"""

import heapq

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.heuristics.links import Freeing, Links
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["post_order", "xla_dfs_order", "xla_list_order", "xla_post_order"]


def xla_list_order(graph: ComputationGraph) -> np.ndarray:
    """Takes the ready op with the largest balance of bytes, then the one with most users.

    The balance is the bytes of the inputs whose last reader it is, minus the bytes that it allocates. Ties go
    to the op whose priority was set last.
    """
    links = Links.of(graph)
    freeing = Freeing(links)
    defined = links.allocated()
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
    return _post_order(links, links.before)


def xla_dfs_order(graph: ComputationGraph) -> np.ndarray:
    """Depth-first post-order, operands with most extra users first, then most bytes, then by name.

    Both numbers are summed over all ancestors of the operand, once per path, and are capped at the number of
    ops and the bytes seen so far, as in XLA.
    """
    links = Links.of(graph)
    extra, total = [0] * graph.num_ops, [0] * graph.num_ops
    seen = 0
    for o in _post_order(links, links.before).tolist():
        own = sum(links.size[t] for t in links.outputs[o])
        seen += own
        users = len({v for t in links.outputs[o] for v in links.readers[t]})
        operands = {links.producer[t] for t in links.inputs[o]}
        extra[o] = min(max(users - 1, 0) + sum(extra[u] for u in operands), graph.num_ops)
        total[o] = min(own + sum(total[u] for u in operands), seen)
    names = graph.op_names
    before = [sorted(row, key=lambda u: (-extra[u], -total[u], names[u])) for row in links.before]
    return _post_order(links, before)


def _post_order(links: Links, before: list[list[int]]) -> np.ndarray:
    """Visits ``before[o]`` in order, then ``o``, for every op without successors by index."""
    visited = [False] * len(before)
    order: list[int] = []
    for root, after in enumerate(links.after):
        stack = [] if after else [root]
        while stack:
            check_interrupt()
            o = stack[-1]
            first = [] if visited[o] else [u for u in reversed(before[o]) if not visited[u]]
            if first:
                stack += first
                continue
            stack.pop()
            if not visited[o]:
                visited[o] = True
                order.append(o)
    return np.array(order, dtype=np.int64)
