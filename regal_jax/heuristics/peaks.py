"""Placements under which every device's peak of memory is small, for ops in an order that is given."""

import dataclasses
import functools
from types import ModuleType
from typing import Any, Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix
from regal_jax.graph.topology import rows
from regal_jax.heuristics.links import Links
from regal_jax.heuristics.orders import dfs, lpmf
from regal_jax.heuristics.work import note
from regal_jax.heuristics.xla import post_order
from regal_jax.runtime.compiling import usable
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["MOST_OVER", "PeakBalance", "least_peak_balance"]

_SQUARINGS: Final = 4
"""The norm that `PeakBalance.refine` lowers has the power 3 * 2**4: high enough to be about peaks, low enough
to see that one of several equal ones is gone."""
_WIDTHS: Final = (4, 12, 48)
"""Moves to try in a step: further ones only if none of those before is any good."""
MOST_OVER: Final = sum(_WIDTHS)
"""A refinement looks at fewer placements than these more than it was told to."""
_LEAST_GAIN: Final = 1e-9
_BLOCKS: Final = (4, 16, 64)
"""Which size is good depends on the graph; besides, every op is a block of its own."""
_ORDERS: Final = (lpmf, post_order, dfs)


@functools.cache
def _kernel() -> ModuleType | None:
    """The compiled loops, where Numba is; without them NumPy does the same, bit for bit."""
    if not usable():
        return None
    from regal_jax.heuristics import peaks_kernel

    return peaks_kernel


@dataclasses.dataclass(frozen=True, eq=False)
class _Held:
    """What is in memory under a placement.

    Attributes:
      change: ``[D (N + 1)]`` bytes, what each device holds more at a position than at the one before it, or
        after all of them.
      bytes: ``[D, N]``, on each device while the op at each position runs, wherever it does.
      home: ``[T]`` device of the producer.
      end: ``[T]``, the last position at which the producer's device holds the tensor.
    """

    change: np.ndarray
    bytes: np.ndarray
    home: np.ndarray
    end: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class _Part:
    """Ops and all tensors that they make or read, or all there are.

    Attributes:
      ops: ``[L]`` positions.
      tensors: ``[K]``.
      edges: ``[J]``, all those of the tensors.
      owner: ``[J]``, the place of each edge's tensor among the tensors.
    """

    ops: np.ndarray
    tensors: np.ndarray
    edges: np.ndarray
    owner: np.ndarray


class PeakBalance:
    """Finds placements for an order of ops, each transfer just before its first reader there.

    A cut through some coordinate of the ops, where the peaks on either side of it are alike, and then single
    moves: weights stay where they are from beginning to end and what is computed comes and goes, so equal
    sums of bytes, which graph partitions make, are not equal peaks.

    Within, ops are known by their places in the order, and numbers decide nothing.

    Attributes:
      order: ``[N]`` op indices.
      looked: Placements that `refine` has looked at so far.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster, order: np.ndarray) -> None:
        """Lays the graph out.

        Args:
          graph: The graph.
          cluster: The cluster.
          order: ``[N]`` op indices, respecting every edge.

        Raises:
          ClusterError: The cluster does not fit the graph.
        """
        n = graph.num_ops
        self._devices = cluster.num_devices
        self.order = order
        self.looked = 0
        self._position = np.empty(n, np.int64)
        self._position[order] = np.arange(n)
        self._tensor = graph.edge_tensor
        self._reader = self._position[graph.edge_op]
        self._begin = self._position[graph.tensor_op]
        self._born = np.where(graph.tensor_resident, 0, self._begin)
        self._size = graph.tensor_bytes.astype(np.float64)
        self._keep = graph.tensor_keep
        self._temp = graph.temp_bytes[order].astype(np.float64)
        self._allowed = allowed_matrix(graph, cluster)[order]
        # A colocation group goes by the place of its first op.
        first = np.full(n, n)
        leader = graph.colocation_leader[order]
        np.minimum.at(first, leader, np.arange(n))
        self._group = first[leader]
        self._bounds, self._by_group = rows(self._group, np.arange(n), n)
        self._graph = graph
        self._kernel = _kernel()
        self._layout = None if self._kernel is None else self._lay_out(self._kernel)
        self._all = _Part(
            np.arange(n), np.arange(graph.num_tensors), np.arange(len(self._tensor)), self._tensor
        )
        self._parts: dict[int, _Part] = {}

    def peaks(self, placement: np.ndarray) -> np.ndarray:
        """``[D]`` float64 bytes: what the exact replay of ``placement`` (``[N]``) in this order has."""
        return self._highest(placement[self.order])

    def cut(self, coordinate: np.ndarray | None = None) -> np.ndarray:
        """Cuts the ops along a coordinate into one part a device, with peaks as equal as can be.

        Ops that read nothing go where they are first read.

        Args:
          coordinate: ``[N]``; by default the place in the order.

        Returns:
          ``[N]`` int64 placement; who may not go to the device of its part goes to the first it may.
        """
        along = (self._position if coordinate is None else coordinate)[self.order].astype(np.float64)
        readers = np.full(len(along), np.inf)
        np.minimum.at(readers, self._begin[self._tensor], along[self._reader])
        reads = np.zeros(len(along), bool)
        reads[self._reader] = True
        along = np.where(reads | ~np.isfinite(readers), along, readers)
        group = np.full(len(along), -np.inf)
        np.maximum.at(group, self._group, along)
        part = np.zeros(len(along), np.int64)
        self._divide(part, group[self._group], 0, self._devices)
        return self._allow(part)[self._position]

    def refine(self, placement: np.ndarray, tries: int = 240) -> np.ndarray:
        """Moves one op after another, with its colocation group, while the peaks become smaller.

        Each step looks at the highest peak, tries those who hold most of it, or what copies are for, on the
        device that holds least at that moment, and takes the best of these moves.

        Args:
          placement: ``[N]``, where to begin.
          tries: About as many placements to look at, each at a cost linear in the size of the graph.

        Returns:
          ``[N]`` int64, the one with the lowest peak.
        """
        place = placement[self.order].astype(np.int64)
        if self._kernel is not None:
            with interruptible():
                found, left = self._kernel.refine(self._layout, place, tries, _WIDTHS, _LEAST_GAIN)
        else:
            found, left = self._refine(place, tries)
        self.looked += tries - left
        note(placements=tries - left)
        return found[self._position]

    def allow(self, placement: np.ndarray) -> np.ndarray:
        """``[N]`` int64: a colocation group goes where its first op is, or to the first device it may."""
        return self._allow(placement[self.order][self._group])[self._position]

    def blocks(self, tries: int = 80) -> np.ndarray:
        """The lowest of many: blocks of the order, few or many, on devices at random, each refined.

        A start decides where `refine` ends, and nobody knows which is good for a graph. The chances are the
        same in every call.

        Args:
          tries: Every start has so many, the two best ones twice as many again.

        Returns:
          ``[N]`` int64 placement.
        """
        n, d = len(self.order), self._devices
        rng = np.random.default_rng(0)
        found: list[tuple[float, np.ndarray]] = []
        for count in (*_BLOCKS, n):
            for _ in range(2):
                borders = np.sort(rng.random(count - 1)) * n
                devices = (rng.random(count) * d).astype(np.int64)
                part = devices[np.searchsorted(borders, np.arange(n) + 0.5)]
                found.append(self._with_peak(self.allow(part[self._position]), tries))
        found.sort(key=lambda pair: pair[0])
        return min((self._with_peak(start, 2 * tries) for _, start in found[:2]), key=lambda pair: pair[0])[1]

    def _with_peak(self, placement: np.ndarray, tries: int) -> tuple[float, np.ndarray]:
        placement = self.refine(placement, tries)
        return float(self.peaks(placement).max()), placement

    def _refine(self, place: np.ndarray, tries: int) -> tuple[np.ndarray, int]:
        """`refine` for those who have no Numba, by places in the order; and the tries that are left."""
        held = self._held(place)
        best = float(held.bytes.max(initial=0))
        scale = 1 / (best or 1.0)
        found, now = place.copy(), _norm(held.bytes, scale)
        while tries > 0:
            moves, first = self._moves(place, held), 0
            for width in _WIDTHS:
                tried = [
                    (self._try(place, held, scale, *move), *move) for move in moves[first : first + width]
                ]
                tries -= len(tried)
                first += width
                if tried and min(tried, key=lambda move: move[0])[0] < now * (1 - _LEAST_GAIN):
                    break
            else:
                break
            now, group, device = min(tried, key=lambda move: move[0])
            place[self._members(group)] = device
            held = self._held(place)
            peak = float(held.bytes.max())
            if peak < best:
                best, found = peak, place.copy()
        return found, tries

    def _lay_out(self, kernel: ModuleType) -> Any:
        """What the kernel works on: arrays that may be written to, as it is compiled for these."""
        graph = self._graph
        made, read = np.diff(graph.output_offset)[self.order], np.diff(graph.inputs[0])[self.order]
        each = np.arange(len(self.order))
        op = np.concatenate([np.repeat(each, made), np.repeat(each, read)])
        tensor = np.concatenate([
            _ranges(graph.output_offset, self.order),
            graph.inputs[1][_ranges(graph.inputs[0], self.order)],
        ])  # fmt: skip
        touched_rows, touched = rows(op, tensor, len(self.order))
        return kernel.Layout(
            begin=self._begin,
            born=self._born,
            size=self._size,
            keep=self._keep.copy(),
            rows=graph.consumer_offset.copy(),
            readers=self._reader,
            temp=self._temp,
            allowed=np.ascontiguousarray(self._allowed),
            group=self._group,
            bounds=self._bounds,
            members=self._by_group,
            touched_rows=touched_rows,
            touched=touched,
        )

    def _highest(self, place: np.ndarray) -> np.ndarray:
        """`peaks`, by places in the order."""
        note(placements=1)
        if self._kernel is not None:
            with interruptible():
                return self._kernel.peaks(self._layout, place.astype(np.int64, copy=False))
        return self._held(place).bytes.max(axis=1, initial=0)

    def _try(self, place: np.ndarray, held: _Held, scale: float, group: int, device: int) -> float:
        """The norm after a move. Only tensors that the group makes or reads are looked at again."""
        part = self._part(group)
        line, size, _, _ = self._lines(place, part)
        before = place[part.ops]
        place[part.ops] = device
        moved, same, _, _ = self._lines(place, part)
        place[part.ops] = before
        change = held.change.copy()
        np.subtract.at(change, line, size)
        np.add.at(change, moved, same)
        return _norm(self._summed(change), scale)

    def _held(self, place: np.ndarray) -> _Held:
        line, size, home, end = self._lines(place, self._all)
        # Sums of whole numbers are exact: in which order they are taken does not matter.
        change = _sums(line, size, self._devices * (len(place) + 1))
        return _Held(change, self._summed(change), home, end)

    def _summed(self, change: np.ndarray) -> np.ndarray:
        return change.reshape(self._devices, -1).cumsum(axis=1)[:, :-1]

    def _lines(self, place: np.ndarray, part: _Part) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Where a part changes `_Held.change` and by how much; ``home`` and ``end`` of its tensors."""
        n, d, count = len(place), self._devices, len(part.tensors)
        made, reader = self._begin[part.tensors], self._reader[part.edges]
        home = place[made]
        there = part.owner * d + place[reader]
        first, last = np.full(count * d, n), np.full(count * d, -1)
        np.minimum.at(first, there, reader)
        np.maximum.at(last, there, reader)
        own = np.arange(count) * d + home
        # A transfer reads the tensor at home when its first reader there is due.
        sent = np.where(first < n, first, -1)
        sent[own] = last[own]
        end = np.maximum(sent.reshape(count, d).max(axis=1, initial=-1), made)
        end[self._keep[part.tensors]] = n - 1
        last[own] = -1
        away = np.flatnonzero(last >= 0)
        lane = n + 1  # One more than there are positions: what is held to the end is freed there.
        runs = place[part.ops] * lane + part.ops
        begin = np.concatenate([home * lane + self._born[part.tensors], away % d * lane + first[away], runs])
        after = np.concatenate([home * lane + end, away % d * lane + last[away], runs]) + 1
        bytes_of = self._size[part.tensors]
        size = np.concatenate([bytes_of, bytes_of[away // d], self._temp[part.ops]])
        return np.concatenate([begin, after]), np.concatenate([size, -size]), home, end

    def _part(self, group: int) -> _Part:
        if group not in self._parts:
            graph, ops = self._graph, self._members(group)
            numbers = self.order[ops]
            made = _ranges(graph.output_offset, numbers)
            read = graph.inputs[1][_ranges(graph.inputs[0], numbers)]
            tensors = np.unique(np.concatenate([made, read]))
            edges = _ranges(graph.consumer_offset, tensors)
            count = graph.consumer_offset[tensors + 1] - graph.consumer_offset[tensors]
            self._parts[group] = _Part(ops, tensors, edges, np.repeat(np.arange(len(tensors)), count))
        return self._parts[group]

    def _members(self, group: int) -> np.ndarray:
        return self._by_group[self._bounds[group] : self._bounds[group + 1]]

    def _moves(self, place: np.ndarray, held: _Held) -> list[tuple[int, int]]:
        """Groups that might leave the device with the highest peak, and where to: what holds most first."""
        device, position = (int(i) for i in np.unravel_index(held.bytes.argmax(), held.bytes.shape))
        n = len(place)
        live = (held.home == device) & (self._born <= position) & (held.end >= position)
        weight = _sums(self._group[self._begin[live]], self._size[live], n)
        # A copy is there for all its readers on the device.
        edges = np.flatnonzero((place[self._reader] == device) & (held.home[self._tensor] != device))
        tensor, reader = self._tensor[edges], self._reader[edges]
        first, last = np.full(len(self._size), n), np.full(len(self._size), -1)
        np.minimum.at(first, tensor, reader)
        np.maximum.at(last, tensor, reader)
        copied = (first[tensor] <= position) & (last[tensor] >= position)
        weight += _sums(self._group[reader[copied]], self._size[tensor[copied]], n)
        if place[position] == device:
            weight[self._group[position]] = np.inf
        moves: list[tuple[int, int]] = []
        others = np.arange(self._devices) != device
        for group in np.argsort(-weight, kind="stable").tolist():
            if weight[group] <= 0 or len(moves) == sum(_WIDTHS):
                break
            free = self._allowed[group] & others
            if free.any():
                moves.append((group, int(np.where(free, held.bytes[:, position], np.inf).argmin())))
        return moves

    def _divide(self, part: np.ndarray, along: np.ndarray, low: int, high: int) -> None:
        """Shares out the ops of part ``low`` among the devices from there to ``high``, in place."""
        if high - low < 2:
            return
        middle = (low + high + 1) // 2
        mine = part == low
        values = np.unique(along[mine])
        best: tuple[float, int] | None = None
        left, right = 0, len(values)
        while left < right:
            check_interrupt()
            at = (left + right) // 2
            part[mine] = np.where(along[mine] < values[at], low, middle)
            peaks = self._highest(self._allow(part))
            each = peaks[low] / (middle - low), peaks[middle] / (high - middle)
            if best is None or max(each) < best[0]:
                best = max(each), at
            left, right = (left, at) if each[0] > each[1] else (at + 1, right)
        if best is not None:
            part[mine] = np.where(along[mine] < values[best[1]], low, middle)
        self._divide(part, along, low, middle)
        self._divide(part, along, middle, high)

    def _allow(self, part: np.ndarray) -> np.ndarray:
        may = self._allowed[np.arange(len(part)), part]
        return np.where(may, part, self._allowed.argmax(axis=1))


def least_peak_balance(
    graph: ComputationGraph, cluster: Cluster, numbers: np.ndarray, tries: int = 80
) -> tuple[PeakBalance, np.ndarray]:
    """The `PeakBalance` of that one of a few orders which needs least memory on several devices.

    LPMF, depth-first post-order, and depth first: each is the best for many graphs.

    Args:
      graph: The graph.
      cluster: The cluster.
      numbers: ``[N]``, each from 0 to ``N - 1`` once, by which an order decides between equals, and in which
        it goes through the inputs of an op.
      tries: Of `PeakBalance.refine`, from a cut of each order.

    Returns:
      The first of equals, and the refined cut of its order, ``[N]``.
    """
    links, ops = Links.of(graph, numbers), np.argsort(numbers)
    balances = [PeakBalance(graph, cluster, ops[make(links)]) for make in _ORDERS]
    placements = [balance.refine(balance.cut(), tries) for balance in balances]
    return min(zip(balances, placements, strict=True), key=lambda pair: float(pair[0].peaks(pair[1]).max()))


def _norm(held: np.ndarray, scale: float) -> float:
    # Squaring takes a tenth of the time of NumPy's powers, which would be most of the time of a try.
    share = held * scale
    share *= share * share
    for _ in range(_SQUARINGS):
        share *= share
    # One after the other, as loops sum.
    return float(share.ravel().cumsum()[-1]) if share.size else 0.0


def _sums(index: np.ndarray, size: np.ndarray, length: int) -> np.ndarray:
    """`np.bincount`, in floats also if there is nothing to count."""
    return np.bincount(index, size, length).astype(np.float64, copy=False)


def _ranges(offset: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The items of some rows, those of row ``i`` being ``offset[i]`` to ``offset[i + 1]``."""
    first = offset[rows]
    count = offset[rows + 1] - first
    start = np.repeat(first - np.cumsum(count) + count, count)
    return start + np.arange(count.sum())
