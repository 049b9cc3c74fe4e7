"""A bound on the peak memory of every order of a graph on one device.

While an op runs, a buffer is in memory if it was made before and is read later. The ancestors of the op have
run, and its descendants have not; any other op may have run or not. The least memory over all sets of ops
that may have run is a minimum cut, so the largest of these cuts over all ops is a bound on the peak of every
order.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import numpy as np

from regal_jax.checks import check_kind
from regal_jax.errors import PlanError
from regal_jax.graph import ComputationGraph
from regal_jax.graph.arrays import all_edges
from regal_jax.plan.replay import as_ids
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["Lives", "least_peak", "lives_of", "order_bound"]

_BEGINNING: Final = -1
"""The maker of a buffer that is there from the beginning."""
_MOST: Final = 2**29
"""Limit on the sum of the capacities of a network, which are 32-bit numbers."""
_MOST_NODES: Final = 30_000
"""Nodes up to which sets of ancestors are made: 225 MiB."""
_CUTS: Final = 400
"""Nodes for which a minimum cut is found, those of the largest possible need first."""


@dataclasses.dataclass(frozen=True)
class Lives:
    """Which buffers are needed when, whatever the order.

    Attributes:
      source: ``[E]``, nodes that run before..
      target: ``[E]``, ..these.
      size: ``[B]``, bytes of each buffer.
      maker: ``[B]``, the node that makes it; -1 if it is there from the beginning.
      readers: ``[B]``, the nodes that read it.
      keep: ``[B]``, whether it stays to the end.
      beside: ``[N]``, buffers that are in memory while a node runs, in every order.
      extra: ``[N]``, other bytes that a node needs while it runs.
      over: ``[N]``, pairs of a buffer that a node reads and one that it makes, which it may write over the
        former if nothing reads that later.
    """

    source: np.ndarray
    target: np.ndarray
    size: np.ndarray
    maker: np.ndarray
    readers: Sequence[Sequence[int]]
    keep: np.ndarray
    beside: Sequence[Sequence[int]]
    extra: np.ndarray
    over: Sequence[Sequence[tuple[int, int]]]


def order_bound(graph: ComputationGraph, order: np.ndarray | None = None) -> int:
    """A number of bytes that no order of ``graph`` on one device can stay below.

    It is at least `lower_bound` of one device, and needs more time: sets of ancestors of all ops, and some
    hundreds of minimum cuts.

    Args:
      graph: The graph.
      order: ``[N]``, an order with a low peak: its steps of most memory are examined first. By default
        `ComputationGraph.topological_order`.

    Raises:
      ConfigError: The graph is of another kind.
      PlanError: The order does not have each op once.

    Examples:
      >>> from regal_jax import GraphBuilder
      >>> from regal_jax.plan import order_bound
      >>> builder = GraphBuilder("diamond")
      >>> _ = builder.add_op("root", outputs=[1])
      >>> _ = builder.add_op("left", inputs=["root"], outputs=[8])
      >>> _ = builder.add_op("right", inputs=["root"], outputs=[8])
      >>> _ = builder.add_op("end", inputs=["left", "right"], outputs=[1])
      >>> order_bound(builder.build())
      17
    """
    check_kind("graph", graph, ComputationGraph)
    given = graph.topological_order if order is None else as_ids("order", order)
    if sorted(given.tolist()) != list(range(graph.num_ops)):
        raise PlanError(f"order: give each of the {graph.num_ops} ops once")
    return least_peak(lives_of(graph), given)


def lives_of(graph: ComputationGraph) -> Lives:
    """The `Lives` of a graph on one device."""
    resident = graph.tensor_resident
    beside: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for t, o in enumerate(graph.tensor_op.tolist()):
        beside[o].append(t)
    readers: list[list[int]] = [[] for _ in range(graph.num_tensors)]
    for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
        readers[t].append(o)
        beside[o].append(t)
    return Lives(
        *all_edges(graph),
        graph.tensor_bytes,
        np.where(resident, _BEGINNING, graph.tensor_op),
        readers,
        graph.tensor_keep,
        beside,
        graph.temp_bytes,
        [()] * graph.num_ops,
    )


@interruptible()
def least_peak(lives: Lives, order: np.ndarray, known: int = 0) -> int:
    """Bytes that are in memory at some moment of every order.

    Args:
      lives: The buffers and nodes.
      order: ``[N]``, an order of the nodes, with a low peak.
      known: A bound that is known. If ``order`` needs no more, nothing else is examined.
    """
    n = len(lives.extra)
    ends = (lives.size[lives.maker == _BEGINNING].sum(), lives.size[lives.keep].sum())
    least = int(max(known, *ends))
    most = _need(lives, order)
    if most.max(initial=0) <= least:
        return least
    if n > _MOST_NODES:
        return int(max(least, _alone(lives).max()))
    sides = _Sides(lives, order)
    certain = _certain(lives, sides)
    least = int(max(least, certain.max()))
    for o in np.argsort(-most, kind="stable")[:_CUTS].tolist():
        if most[o] <= least:
            break
        check_interrupt()
        least = max(least, int(certain[o]) + _Cut(lives, sides, o).bytes())
    return least


class _Sides:
    """The ancestors and descendants of each node, as bits."""

    def __init__(self, lives: Lives, order: np.ndarray) -> None:
        n = len(lives.extra)
        self.count = n
        self.before: list[int] = [0] * n
        self.after: list[int] = [0] * n
        behind: list[list[int]] = [[] for _ in range(n)]
        for u, v in zip(lives.source.tolist(), lives.target.tolist(), strict=True):
            behind[u].append(v)
        steps = order.tolist()
        for u in steps:
            mine = self.before[u] | 1 << u
            for v in behind[u]:
                self.before[v] |= mine
        for u in reversed(steps):
            for v in behind[u]:
                self.after[u] |= self.after[v] | 1 << v

    def bits(self, members: int) -> np.ndarray:
        """``[N]`` bool."""
        raw = members.to_bytes(-(-self.count // 8), "little")
        return np.unpackbits(np.frombuffer(raw, np.uint8), count=self.count, bitorder="little").view(bool)


def _alone(lives: Lives) -> np.ndarray:
    """``[N]`` bytes that are in memory while a node runs, apart from buffers that it does not use."""
    beside = [sum(lives.size[b] for b in set(row)) for row in lives.beside]
    return lives.extra + np.array(beside, dtype=np.int64)


def _certain(lives: Lives, sides: _Sides) -> np.ndarray:
    """``[N]`` bytes that are in memory while a node runs, in every order."""
    n, size = sides.count, lives.size
    total = _alone(lives)
    members: list[dict[int, bool]] = [dict.fromkeys(row, False) for row in lives.beside]
    users: list[list[int]] = [[] for _ in lives.size]
    for o, row in enumerate(members):
        for b in row:
            users[b].append(o)
    for b, (maker, row) in enumerate(zip(lives.maker.tolist(), lives.readers, strict=True)):
        until = (1 << n) - 1 if lives.keep[b] else 0
        for reader in row:
            until |= sides.before[reader]
        through = until if maker == _BEGINNING else until & sides.after[maker]
        if not through:
            continue
        total += size[b] * sides.bits(through)
        for o in users[b]:
            if through >> o & 1:
                total[o] -= size[b]  # It was counted as one that the node uses.
                members[o][b] = True
    for o, pairs in enumerate(lives.over):
        ending = [(old, new) for old, new in pairs if not members[o][old]]
        if ending:
            total[o] -= min(sum(size[b] for b in set(column)) for column in zip(*ending, strict=True))
    return total


def _need(lives: Lives, order: np.ndarray) -> np.ndarray:
    """``[N]`` bytes that are in memory while a node runs in ``order``, at least."""
    n = len(order)
    step = np.empty(n, np.int64)
    step[order] = np.arange(n)
    change = np.zeros(n + 1, np.int64)
    for b, (maker, row) in enumerate(zip(lives.maker.tolist(), lives.readers, strict=True)):
        start = 0 if maker == _BEGINNING else int(step[maker])
        end = n - 1 if lives.keep[b] else max((int(step[reader]) for reader in row), default=start)
        change[start] += lives.size[b]
        change[end + 1] -= lives.size[b]
    return np.cumsum(change)[step] + lives.extra


class _Cut:
    """The network of one node: what else must be in memory while it runs.

    The nodes of the network may run before or after it. Those on the side of the source run before.
    """

    def __init__(self, lives: Lives, sides: _Sides, node: int) -> None:
        self.arcs: list[tuple[int, int, int]] = []
        here = 1 << node
        before, after = sides.before[node], sides.after[node] | here
        free = sides.bits(((1 << sides.count) - 1) & ~(before | after))
        self.number: list[int] = (np.cumsum(free) + 1).tolist()  # 0 is the source, 1 the sink.
        self.count = int(free.sum()) + 2
        both = free[lives.source] & free[lives.target]
        for u, v in zip(lives.source[both].tolist(), lives.target[both].tolist(), strict=True):
            self.arcs.append((self.number[v], self.number[u], -1))
        used, loose, late = set(lives.beside[node]), free.tolist(), sides.bits(after).tolist()
        for b, (maker, row) in enumerate(zip(lives.maker.tolist(), lives.readers, strict=True)):
            if b not in used and ((maker >= 0 and loose[maker]) or any(loose[reader] for reader in row)):
                self._add(lives, b, loose, late)

    def _add(self, lives: Lives, b: int, free: list[bool], late: list[bool]) -> None:
        maker, row, size = int(lives.maker[b]), lives.readers[b], int(lives.size[b])
        ends_late = bool(lives.keep[b]) or any(late[reader] for reader in row)
        if maker != _BEGINNING and not free[maker]:
            if late[maker]:
                return
            maker = _BEGINNING
        if maker == _BEGINNING and ends_late:
            return  # It is certain.
        start = 0 if maker == _BEGINNING else self.number[maker]
        ends = [1] if ends_late else [self.number[reader] for reader in row if free[reader]]
        if len(ends) == 1:
            self.arcs.append((start, ends[0], size))
        elif ends:
            middle, self.count = self.count, self.count + 1
            self.arcs.append((start, middle, size))
            self.arcs += [(middle, end, -1) for end in ends]

    def bytes(self) -> int:
        """The value of a minimum cut, rounded down to the unit in which it is found."""
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import maximum_flow

        if not any(v == 1 for _, v, _ in self.arcs) or not any(u == 0 for u, _, _ in self.arcs):
            return 0
        u, v, capacity = (np.array(column, np.int64) for column in zip(*self.arcs, strict=True))
        unit = max(1, -(-int(capacity[capacity > 0].sum()) // _MOST))
        capacity = np.where(capacity < 0, _MOST, capacity // unit)
        # Sums of parallel arcs stay below the limit of 32 bits only if those without a limit are merged.
        network = _joined(u, v, capacity, self.count)
        matrix = coo_array((network[2].astype(np.int32), (network[0], network[1])), shape=(self.count,) * 2)
        return unit * int(maximum_flow(matrix.tocsr(), 0, 1).flow_value)


def _joined(u: np.ndarray, v: np.ndarray, capacity: np.ndarray, count: int) -> tuple[np.ndarray, ...]:
    """The arcs, with parallel ones as one of the sum of their capacities."""
    pairs, which = np.unique(u * count + v, return_inverse=True)
    total = np.zeros(len(pairs), np.int64)
    np.add.at(total, which, capacity)
    return pairs // count, pairs % count, np.minimum(total, _MOST)
