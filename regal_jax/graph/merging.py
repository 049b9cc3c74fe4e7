"""Sets of ops that a compiler would fuse, found by rules that cannot create a cycle."""

import collections
import re
from collections.abc import Collection, Iterable
from typing import Final

import numpy as np

from regal_jax.graph.arrays import all_edges, slowest_runtimes
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.roots import root_of
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["ANCHOR_KINDS", "merge_labels"]

_JAX: Final = """
dot_general ragged_dot ragged_dot_general dot conv_general_dilated convolution scan while cond sort top_k fft
cholesky triangular_solve lu qr eig eigh svd pallas_call custom_call all_gather all_reduce all_to_all psum
ppermute reduce_scatter
"""
_ONNX: Final = """
conv convtranspose convinteger qlinearconv gemm matmul matmulinteger qlinearmatmul fusedmatmul einsum lstm gru
rnn attention multiheadattention groupqueryattention loop if topk nonmaxsuppression
"""
_ATEN_AND_TENSORFLOW: Final = """
mm addmm bmm baddbmm addbmm mv addmv linear convolution_backward conv1d conv2d conv3d embedding_bag
scaled_dot_product_attention _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention
_scaled_dot_product_flash_attention_for_cpu batchmatmul batchmatmulv2 conv2dbackpropinput conv2dbackpropfilter
depthwiseconv2dnative
"""
ANCHOR_KINDS: Final = frozenset((_JAX + _ONNX + _ATEN_AND_TENSORFLOW).split())
"""Kinds of ops that a compiler puts into kernels of their own, in lower case; a set has at most one."""

_ATEN: Final = re.compile(r"^(?:torch\.ops\.)?aten(?:\.|::)(\w+)(?:\.\w+)?$")


def _plain_kind(kind: str) -> str:
    """``"aten.mm.default"`` -> ``"mm"``, ``"MatMul"`` -> ``"matmul"``."""
    kind = kind.lower()
    aten = _ATEN.match(kind)
    return kind if aten is None else aten[1]


def merge_labels(
    graph: ComputationGraph,
    *,
    max_share: float,
    max_members: int | None,
    devices: int,
    anchors: Collection[str],
    spare_memory: bool,
) -> np.ndarray:
    """``[N]`` int64: ops with the same number are to be merged; the number is the index of one of them.

    `regal_jax.plan.contract` checks these arguments, and states the rules and why they are safe.
    """
    merger = _Merger(graph, max_share, max_members, devices, anchors, spare_memory)
    merger.run()
    # Each set is named after its anchor, or after the op that runs longest.
    rank = np.lexsort((-np.arange(graph.num_ops), merger.work, merger.is_anchor))
    root = np.array([root_of(merger.parent, o) for o in range(graph.num_ops)], dtype=np.int64)
    leader = np.empty(graph.num_ops, dtype=np.int64)
    leader[root[rank]] = rank  # If an index occurs several times, NumPy keeps the last value.
    return leader[root]


class _Merger:
    """The graph while sets grow; a set is identified by one of its ops."""

    def __init__(
        self,
        graph: ComputationGraph,
        max_share: float,
        max_members: int | None,
        devices: int,
        anchors: Collection[str],
        spare_memory: bool,
    ) -> None:
        n = graph.num_ops
        self.graph, self.spare_memory = graph, spare_memory
        self.most = n if max_members is None else max_members
        self.work = work = slowest_runtimes(graph)
        # Equal work must give equal sums in any order of merging: rounding must not decide at the limit.
        self.cap = max_share * float(work.sum()) * (1 + 1e-9)
        named = frozenset(anchor.lower() for anchor in anchors)
        self.is_anchor = np.array([_plain_kind(kind) in named for kind in graph.op_kinds]) | (work > self.cap)
        self.parent = list(range(n))
        self.size = [1] * n
        self.anchor: list[bool] = self.is_anchor.tolist()
        self.light: list[float] = np.where(self.is_anchor, 0.0, work).tolist()
        self.before: list[set[int]] = [set() for _ in range(n)]
        self.after: list[set[int]] = [set() for _ in range(n)]
        for u, v in zip(*(ops.tolist() for ops in all_edges(graph)), strict=True):
            self.after[u].add(v)
            self.before[v].add(u)
        self.bytes: list[int] = graph.tensor_bytes.tolist()
        self.keep: list[bool] = graph.tensor_keep.tolist()
        self.resident: list[bool] = graph.resident.tolist()
        self.readers: list[set[int]] = [set() for _ in self.bytes]
        self.reads: list[set[int]] = [set() for _ in range(n)]
        for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
            self.readers[t].add(o)
            self.reads[o].add(t)
        self.makes: list[set[int]] = [set() for _ in range(n)]
        for t, o in enumerate(graph.tensor_op.tolist()):
            if self.readers[t] or self.keep[t]:
                self.makes[o].add(t)
        self.begin, self.tail = _longest_paths(graph, work)
        self.length: list[float] = work.tolist()
        ends = [b + w for b, w in zip(self.begin, self.length, strict=True)]
        # A lower bound on the makespan; the margin covers the rounding of sums in another order.
        self.limit = max(*ends, float(work.sum()) / devices, 0.0) * (1 + 1e-9)
        self.units = _Units(graph, self.light, self.anchor)

    def run(self) -> None:
        """Applies the rules until none applies anywhere."""
        order = self.graph.topological_order.tolist()
        # A merge may also enable one of sets that are no neighbours, such as readers of the same tensor.
        while self._pass([o for o in order if self.parent[o] == o]):
            pass

    def _pass(self, order: list[int]) -> bool:
        """Tries every set, then the neighbours of changed sets; returns whether any has changed."""
        queue, queued, changed = collections.deque(order), set(order), False
        while queue:
            check_interrupt()
            o = queue.popleft()
            queued.discard(o)
            merged = self._try(o) if self.parent[o] == o else None
            if merged is None:
                continue
            changed = True
            near = {merged, *self.before[merged], *self.after[merged]} - queued
            queue.extend(sorted(near))
            queued |= near
        return changed

    def _try(self, o: int) -> int | None:
        """Merges set ``o`` with a neighbour if a rule allows it; returns the merged set."""
        if len(self.after[o]) == 1:
            (v,) = self.after[o]
            if self._linked(o, v) and self._may(o, v) and self._forward_pays(o, v):
                return self._merge(o, v)
        if len(self.before[o]) == 1:
            (u,) = self.before[o]
            if self._linked(u, o) and self._may(u, o) and self._backward_pays(o):
                return self._merge(u, o)
        return self._twin(o)

    def _linked(self, u: int, v: int) -> bool:
        """Whether ``v`` reads an output of ``u``; sets with only a control edge are not merged."""
        return not self.makes[u].isdisjoint(self.reads[v])

    def _may(self, u: int, v: int) -> bool:
        """Whether the merged set is within the limits and may run on the same devices as both."""
        return (
            self.size[u] + self.size[v] <= self.most
            and not (self.resident[u] or self.resident[v])
            and not (self.anchor[u] and self.anchor[v])
            and self.light[u] + self.light[v] <= self.cap
            and self.units.may_join(u, v, self.cap)
        )

    def _forward_pays(self, u: int, v: int) -> bool:
        """Rule 1: ``v`` is the only successor of ``u``, so ``u`` can wait for the predecessors of ``v``.

        It does not apply if the longest path would become longer, or if an anchor would be delayed.
        """
        others = self.before[v] - {u}
        if self.length[u] and self._arrival(others) > self.begin[u]:
            path = self._arrival(others) + self.length[u] + self.length[v] + self.tail[v]
            if self.anchor[u] or path > self.limit:
                return False
        if not self.spare_memory:
            return True
        gone = sum(self.bytes[t] for t in self.reads[u] - self.reads[v] if not self.keep[t])
        return self._made(u) >= gone or (not others and self._shrinks(v))

    def _arrival(self, sets: Iterable[int]) -> float:
        """The earliest time at which all of ``sets`` can have finished, with unlimited devices."""
        return max((self.begin[w] + self.length[w] for w in sets), default=0.0)

    def _backward_pays(self, v: int) -> bool:
        """Rule 2: ``v`` has a single predecessor and may run right after it if that holds no more memory."""
        return not self.anchor[v] and self._shrinks(v)

    def _shrinks(self, v: int) -> bool:
        gone = sum(self.bytes[t] for t in self.reads[v] if not self.keep[t] and len(self.readers[t]) == 1)
        return self._made(v) <= gone

    def _made(self, o: int) -> int:
        return sum(self.bytes[t] for t in self.makes[o])

    def _twin(self, o: int) -> int | None:
        """Rule 3: residents that are on the same device in every plan."""
        if not self.resident[o]:
            return None
        for v in sorted(self.after[o]):
            if not self._linked(o, v):
                continue
            for t in sorted(self.reads[v]):
                u = root_of(self.parent, int(self.graph.tensor_op[t]))
                if (
                    u != o
                    and self.resident[u]
                    and self.size[u] + self.size[o] <= self.most
                    and self.units.same(u, o)
                ):
                    return self._merge(min(o, u), max(o, u))
        return None

    def _merge(self, u: int, v: int) -> int:
        """Merges two sets, of which ``u`` is earlier; the result keeps the index with more neighbours."""
        begin = max(self.begin[u], self._arrival((self.before[u] | self.before[v]) - {u, v}))
        after = (self.after[u] | self.after[v]) - {u, v}
        tail = max((self.length[w] + self.tail[w] for w in after), default=0.0)
        self.units.join(u, v)
        near = [len(self.before[o]) + len(self.after[o]) + len(self.reads[o]) for o in (u, v)]
        a, b = (u, v) if near[0] >= near[1] else (v, u)
        self.parent[b] = a
        self.size[a] += self.size[b]
        self.light[a] += self.light[b]
        self.anchor[a] = self.anchor[a] or self.anchor[b]
        self.begin[a], self.tail[a] = begin, tail
        self.length[a] += self.length[b]
        for mine, theirs in ((self.before, self.after), (self.after, self.before)):
            for w in mine[b]:
                theirs[w].discard(b)
                theirs[w].add(a)
            mine[a] |= mine[b]
        for mine in (self.before, self.after):
            mine[a] -= {a, b}
        for t in self.reads[b]:
            self.readers[t].discard(b)
            self.readers[t].add(a)
        self.reads[a] |= self.reads[b]
        self.makes[a] |= self.makes[b]
        for t in self.reads[a] & self.makes[a]:
            self.readers[t].discard(a)
            self.reads[a].discard(t)
            if not self.readers[t] and not self.keep[t]:
                self.makes[a].discard(t)
        return a


class _Units:
    """Sets that share a device in every plan: colocation groups, and single ops."""

    def __init__(self, graph: ComputationGraph, light: list[float], anchor: list[bool]) -> None:
        self.parent: list[int] = graph.colocation_leader.tolist()
        self.grouped = [group is not None for group in graph.colocation_group]
        self.light = [0.0] * graph.num_ops
        self.anchors = [0] * graph.num_ops
        self.allowed: list[frozenset[int] | None] = [None] * graph.num_ops
        for o, leader in enumerate(self.parent):
            self.light[leader] += light[o]
            self.anchors[leader] += anchor[o]
            devices, here = graph.allowed_devices[o], self.allowed[leader]
            if devices is not None:
                self.allowed[leader] = frozenset(devices) if here is None else here & frozenset(devices)

    def same(self, u: int, v: int) -> bool:
        """Whether both are on the same device in every plan."""
        a, b = root_of(self.parent, u), root_of(self.parent, v)
        here = self.allowed[a]
        return a == b or (here is not None and len(here) == 1 and here == self.allowed[b])

    def may_join(self, u: int, v: int, cap: float) -> bool:
        """Whether both may use the same devices, and, in two colocation groups, are light enough.

        Merging ops of two colocation groups ties all ops of both groups together.
        """
        a, b = root_of(self.parent, u), root_of(self.parent, v)
        if a == b:
            return True
        if self.allowed[a] != self.allowed[b]:
            return False
        if not (self.grouped[a] and self.grouped[b]):
            return True
        return self.light[a] + self.light[b] <= cap and not (self.anchors[a] and self.anchors[b])

    def join(self, u: int, v: int) -> None:
        a, b = root_of(self.parent, u), root_of(self.parent, v)
        if a == b:
            return
        self.parent[b] = a
        self.grouped[a] = self.grouped[a] or self.grouped[b]
        self.light[a] += self.light[b]
        self.anchors[a] += self.anchors[b]


def _longest_paths(graph: ComputationGraph, work: np.ndarray) -> tuple[list[float], list[float]]:
    """The longest path that ends at the start of each op, and the longest that begins at its end."""
    source, target = (ops.tolist() for ops in all_edges(graph))
    before: list[list[int]] = [[] for _ in range(graph.num_ops)]
    after: list[list[int]] = [[] for _ in range(graph.num_ops)]
    for u, v in zip(source, target, strict=True):
        before[v].append(u)
        after[u].append(v)
    length = work.tolist()
    begin, tail = [0.0] * graph.num_ops, [0.0] * graph.num_ops
    order = graph.topological_order.tolist()
    for o in order:
        begin[o] = max((begin[u] + length[u] for u in before[o]), default=0.0)
    for o in reversed(order):
        tail[o] = max((length[v] + tail[v] for v in after[o]), default=0.0)
    return begin, tail
