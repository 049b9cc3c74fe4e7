"""Placements with low peak memory on every device, for ops in a given order."""

import functools
from types import ModuleType
from typing import Any, Final

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix, once_a_pair
from regal_jax.graph.arrays import all_edges
from regal_jax.graph.topology import rows
from regal_jax.heuristics import peaks_kernel
from regal_jax.heuristics.links import Links
from regal_jax.heuristics.orders import dfs, lpmf
from regal_jax.heuristics.peaks_arrays import Held, Part, norm_of, ranges, sums
from regal_jax.heuristics.peaks_kernel import Layout, penalise
from regal_jax.heuristics.work import note, uncounted
from regal_jax.heuristics.xla import post_order
from regal_jax.plan import overflow_of
from regal_jax.runtime.compiling import is_loaded, loops, usable
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["PeakBalance", "least_peak_balance"]

_WIDTHS: Final = (4, 12, 48)
"""Numbers of moves to try in a step: the later ones only if none of the earlier moves lowers the norm."""
_LEAST_GAIN: Final = 1e-9
_BLOCKS: Final = (4, 16, 64)
"""Numbers of blocks to try, since the best one depends on the graph; single ops are tried as well."""
_SMALL: Final = 20_000
"""Up to this number of ops times devices, NumPy evaluates placements until the loops are loaded."""
_ORDERS: Final = (lpmf, post_order, dfs)


@functools.cache
def _kernel() -> ModuleType | None:
    """The compiled loops if Numba is installed; otherwise NumPy gives the same results, bit for bit."""
    if not usable():
        return None
    return peaks_kernel


class PeakBalance:
    """Finds placements for an order of ops; each transfer is just before its first reader on the device.

    The order is cut where the peaks on either side are equal, then single moves lower the peaks. A graph
    partition balances sums of bytes instead. Weights are held from beginning to end and results only for a
    while, so equal sums are not equal peaks.

    Internally ops are identified by their places in the order, so the result does not depend on op indices.

    Attributes:
      order: ``[N]`` op indices.
      looked: Number of placements whose peaks it has summed up so far.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster, order: np.ndarray) -> None:
        """Prepares arrays of the graph.

        Args:
          graph: The graph.
          cluster: The cluster.
          order: ``[N]`` op indices, respecting every edge.

        Raises:
          ClusterError: The cluster does not fit the graph.
        """
        n = graph.num_ops
        self._cluster, self._devices = cluster, cluster.num_devices
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
        self._memory = np.array(cluster.memory, np.float64)
        self._unequal = len(set(cluster.memory)) > 1
        self._allowed = allowed_matrix(graph, cluster)[order]
        # A colocation group has the place of its first op.
        first = np.full(n, n)
        leader = graph.colocation_leader[order]
        np.minimum.at(first, leader, np.arange(n))
        self._group = first[leader]
        self._bounds, self._by_group = rows(self._group, np.arange(n), n)
        self._graph = graph
        self._kernel = _kernel()
        self._all = Part(
            np.arange(n), np.arange(graph.num_tensors), np.arange(len(self._tensor)), self._tensor
        )
        self._parts: dict[int, Part] = {}

    def peaks(self, placement: np.ndarray) -> np.ndarray:
        """``[D]`` float64 bytes: the peaks of the exact replay of ``placement`` (``[N]``) in this order."""
        return self._highest(placement[self.order])

    def cut(self, coordinate: np.ndarray | None = None) -> np.ndarray:
        """Cuts the ops along a coordinate into one part per device, with peaks as equal as possible.

        Ops without inputs go to the device of their first reader. If the parts do not fit the memory of some
        devices, those of the others become larger.

        Args:
          coordinate: ``[N]``; by default the place in the order.

        Returns:
          ``[N]`` int64 placement; an op that may not run on the device of its part goes to its first allowed
          one.
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
        self._divide(part, group[self._group], 0, self._devices, np.zeros(self._devices))
        penalty = self._penalty_of(self._allow(part))
        if penalty.any():
            part[:] = 0
            self._divide(part, group[self._group], 0, self._devices, penalty)
        return self._allow(part)[self._position]

    def refine(self, placement: np.ndarray, tries: int = 240) -> np.ndarray:
        """Moves single ops, with their colocation groups, while the peaks become lower.

        Each step considers the highest peak and the ops that hold most of it, or for which copies are held.
        It tries to move them to the device that holds least at that time, and takes the best of these moves.
        Where capacities differ, `penalise` has what counts for a device that exceeds its memory.

        Args:
          placement: ``[N]``, the initial placement.
          tries: Approximate number of placements to evaluate, each in time linear in the size of the graph.

        Returns:
          ``[N]`` int64, the one with the lowest peak.
        """
        place = placement[self.order].astype(np.int64)
        penalty = self._penalty_of(place)
        if self._kernel is not None:
            state, left = self._refined(self._kernel, place, tries, penalty)
            found = state.found
        else:
            found, left = self._refine(place, tries, penalty)
        self.looked += tries - left
        note(placements=tries - left)
        return found[self._position]

    def penalty(self, peaks: np.ndarray) -> np.ndarray:
        """``[D]`` bytes, those of `penalise` for ``peaks [D]``."""
        penalty = np.zeros(self._devices)
        penalise(peaks, self._memory, penalty)
        return penalty

    def value(self, placement: np.ndarray) -> tuple[float, float]:
        """The bytes by which a placement exceeds the memory, and its highest peak."""
        peaks = self.peaks(placement)
        return overflow_of(peaks, self._cluster), float(peaks.max())

    def allow(self, placement: np.ndarray) -> np.ndarray:
        """``[N]`` int64: a colocation group goes to the device of its first op, or else the first allowed."""
        return self._allow(placement[self.order][self._group])[self._position]

    def blocks(self, tries: int = 80) -> np.ndarray:
        """The best of many refined starts: blocks of the order, few or many, on random devices.

        The result of `refine` depends on its start, and the best start depends on the graph. The random
        numbers are the same in every call.

        Args:
          tries: Evaluations for each start; the two best starts get twice as many more.

        Returns:
          ``[N]`` int64 placement.
        """
        n, d = len(self.order), self._devices
        rng = np.random.default_rng(0)
        found: list[tuple[tuple[float, float], np.ndarray]] = []
        for count in (*_BLOCKS, n):
            for _ in range(2):
                borders = np.sort(rng.random(count - 1)) * n
                devices = (rng.random(count) * d).astype(np.int64)
                part = devices[np.searchsorted(borders, np.arange(n) + 0.5)]
                found.append(self._with_value(self.allow(part[self._position]), tries))
        found.sort(key=lambda pair: pair[0])
        again = [self._with_value(start, 2 * tries) for _, start in found[:2]]
        return min(again, key=lambda pair: pair[0])[1]

    def _with_value(self, placement: np.ndarray, tries: int) -> tuple[tuple[float, float], np.ndarray]:
        placement = self.refine(placement, tries)
        return self.value(placement), placement

    def _penalty_of(self, place: np.ndarray) -> np.ndarray:
        """`penalty` of a placement by places in the order."""
        return self.penalty(self._highest(place)) if self._unequal else np.zeros(self._devices)

    def _refined(self, kernel: Any, place: np.ndarray, tries: int, penalty: np.ndarray) -> tuple[Any, int]:
        """The state in which compiled loops end, and the tries that are left."""
        state = kernel.make_state(place, np.arange(len(place)), self._devices, len(self._size))
        state.penalty[:] = penalty
        return state, loops(kernel.refine)(self.layout, state, tries, _WIDTHS, 0, 0, _LEAST_GAIN)

    def _refine(self, place: np.ndarray, tries: int, penalty: np.ndarray) -> tuple[np.ndarray, int]:
        """`refine` without Numba, by places in the order; returns the number of tries that are left, too."""
        held = self._held(place, penalty)
        best = float(held.counted.max(initial=0))
        scale = 1 / (best or 1.0)
        found, now = place.copy(), norm_of(held.counted, scale)
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
            held = self._held(place, penalty)
            peak = float(held.counted.max())
            if peak < best:
                best, found = peak, place.copy()
        return found, tries

    @functools.cached_property
    def layout(self) -> Layout:
        """The arrays of the kernel, which is compiled for writable ones. It numbers ops by their places."""
        graph = self._graph
        made, read = np.diff(graph.output_offset)[self.order], np.diff(graph.inputs[0])[self.order]
        each = np.arange(len(self.order))
        op = np.concatenate([np.repeat(each, made), np.repeat(each, read)])
        tensor = np.concatenate([
            ranges(graph.output_offset, self.order),
            graph.inputs[1][ranges(graph.inputs[0], self.order)],
        ])  # fmt: skip
        touched_rows, touched = rows(op, tensor, len(self.order))
        first, second = (self._position[ops] for ops in all_edges(graph))
        before_rows, before = rows(second, first, len(self.order))
        after_rows, after = rows(first, second, len(self.order))
        return Layout(
            begin=self._begin,
            resident=graph.tensor_resident.copy(),
            size=self._size,
            keep=self._keep.copy(),
            rows=graph.consumer_offset.copy(),
            readers=self._reader,
            temp=self._temp,
            allowed=self._allowed.ravel(),
            group=self._group,
            bounds=self._bounds,
            members=self._by_group,
            touched_rows=touched_rows,
            touched=touched,
            before_rows=before_rows,
            before=before,
            after_rows=after_rows,
            after=after,
            memory=self._memory,
        )

    def _highest(self, place: np.ndarray) -> np.ndarray:
        """`peaks`, by places in the order."""
        self.looked += 1
        note(placements=1)
        kernel = self._kernel
        # A few passes over a small graph take less time than it takes to compile or load the loops.
        if kernel is not None and (is_loaded(kernel.refine) or len(place) * self._devices > _SMALL):
            return self._refined(kernel, place, 0, np.zeros(self._devices))[0].peaks
        return self._summed(self._changes(place)[0]).max(axis=1, initial=0)

    def _try(self, place: np.ndarray, held: Held, scale: float, group: int, device: int) -> float:
        """The norm after a move. Only tensors that the group makes or reads are evaluated again."""
        part = self._part(group)
        line, size, _, _ = self._lines(place, part)
        before = place[part.ops]
        place[part.ops] = device
        moved, same, _, _ = self._lines(place, part)
        place[part.ops] = before
        change = held.change.copy()
        np.subtract.at(change, line, size)
        np.add.at(change, moved, same)
        return norm_of(self._counted(self._summed(change), held.penalty), scale)

    def _counted(self, held: np.ndarray, penalty: np.ndarray) -> np.ndarray:
        """Bytes ``[D, N]`` with the penalty of a device where they exceed its memory."""
        return held + np.where(held > self._memory[:, None], penalty[:, None], 0.0)

    def _held(self, place: np.ndarray, penalty: np.ndarray) -> Held:
        change, home, end = self._changes(place)
        held = self._summed(change)
        return Held(change, held, self._counted(held, penalty), penalty, home, end)

    def _changes(self, place: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`Held.change`, and ``home``, ``end`` of all tensors."""
        line, size, home, end = self._lines(place, self._all)
        # Sums of whole numbers are exact in any order.
        return sums(line, size, self._devices * (len(place) + 1)), home, end

    def _summed(self, change: np.ndarray) -> np.ndarray:
        return change.reshape(self._devices, -1).cumsum(axis=1)[:, :-1]

    def _lines(self, place: np.ndarray, part: Part) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Positions and amounts by which a part changes `Held.change`; ``home``, ``end`` of its tensors."""
        n, d, count = len(place), self._devices, len(part.tensors)
        made, reader = self._begin[part.tensors], self._reader[part.edges]
        home = place[made]
        there = part.owner * d + place[reader]
        first, last = np.full(count * d, n), np.full(count * d, -1)
        np.minimum.at(first, there, reader)
        np.maximum.at(last, there, reader)
        own = np.arange(count) * d + home
        # A transfer reads the tensor on its home at the position of the first reader on the other device.
        sent = np.where(first < n, first, -1)
        sent[own] = last[own]
        end = np.maximum(sent.reshape(count, d).max(axis=1, initial=-1), made)
        end[self._keep[part.tensors]] = n - 1
        last[own] = -1
        away = np.flatnonzero(last >= 0)
        lane = n + 1  # One entry more than positions: tensors that are held to the end are freed there.
        runs = place[part.ops] * lane + part.ops
        begin = np.concatenate([home * lane + self._born[part.tensors], away % d * lane + first[away], runs])
        after = np.concatenate([home * lane + end, away % d * lane + last[away], runs]) + 1
        bytes_of = self._size[part.tensors]
        size = np.concatenate([bytes_of, bytes_of[away // d], self._temp[part.ops]])
        return np.concatenate([begin, after]), np.concatenate([size, -size]), home, end

    def _part(self, group: int) -> Part:
        if group not in self._parts:
            graph, ops = self._graph, self._members(group)
            numbers = self.order[ops]
            made = ranges(graph.output_offset, numbers)
            read = graph.inputs[1][ranges(graph.inputs[0], numbers)]
            tensors = np.unique(np.concatenate([made, read]))
            edges = ranges(graph.consumer_offset, tensors)
            count = graph.consumer_offset[tensors + 1] - graph.consumer_offset[tensors]
            self._parts[group] = Part(ops, tensors, edges, np.repeat(np.arange(len(tensors)), count))
        return self._parts[group]

    def _members(self, group: int) -> np.ndarray:
        return self._by_group[self._bounds[group] : self._bounds[group + 1]]

    def _moves(self, place: np.ndarray, held: Held) -> list[tuple[int, int]]:
        """Candidate moves of groups off the device with the highest peak, those that hold most first."""
        device, position = (int(i) for i in np.unravel_index(held.counted.argmax(), held.bytes.shape))
        n = len(place)
        live = (held.home == device) & (self._born <= position) & (held.end >= position)
        weight = sums(self._group[self._begin[live]], self._size[live], n)
        # A copy counts for all of its readers on the device.
        edges = np.flatnonzero((place[self._reader] == device) & (held.home[self._tensor] != device))
        tensor, reader = self._tensor[edges], self._reader[edges]
        first, last = np.full(len(self._size), n), np.full(len(self._size), -1)
        np.minimum.at(first, tensor, reader)
        np.maximum.at(last, tensor, reader)
        copied = (first[tensor] <= position) & (last[tensor] >= position)
        weight += sums(self._group[reader[copied]], self._size[tensor[copied]], n)
        if place[position] == device:
            weight[self._group[position]] = np.inf
        moves: list[tuple[int, int]] = []
        others = np.arange(self._devices) != device
        for group in np.argsort(-weight, kind="stable").tolist():
            if weight[group] <= 0 or len(moves) == sum(_WIDTHS):
                break
            free = self._allowed[group] & others
            if free.any():
                there = held.bytes[:, position] + held.penalty
                moves.append((group, int(np.where(free, there, np.inf).argmin())))
        return moves

    def _divide(self, part: np.ndarray, along: np.ndarray, low: int, high: int, less: np.ndarray) -> None:
        """Shares out the ops of part ``low`` among the devices from there to ``high``, in place.

        Each device gets fewer bytes than the others, by ``less [D]``.
        """
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
            each = (
                (peaks[low] + less[low:middle].sum()) / (middle - low),
                (peaks[middle] + less[middle:high].sum()) / (high - middle),
            )
            if best is None or max(each) < best[0]:
                best = max(each), at
            left, right = (left, at) if each[0] > each[1] else (at + 1, right)
        if best is not None:
            part[mine] = np.where(along[mine] < values[best[1]], low, middle)
        self._divide(part, along, low, middle, less)
        self._divide(part, along, middle, high, less)

    def _allow(self, part: np.ndarray) -> np.ndarray:
        may = self._allowed[np.arange(len(part)), part]
        return np.where(may, part, self._allowed.argmax(axis=1))


def least_peak_balance(
    graph: ComputationGraph, cluster: Cluster, numbers: np.ndarray, tries: int = 80
) -> tuple[PeakBalance, np.ndarray]:
    """The `PeakBalance` of the order that needs least memory on several devices.

    The orders are LPMF, depth-first post-order, and depth first: each is best for many graphs.

    Args:
      graph: The graph.
      cluster: The cluster.
      numbers: ``[N]``, a permutation of ``0 ... N - 1``. It decides ties, and the order in which the inputs
        of an op are visited.
      tries: As in `PeakBalance.refine`, for a cut of each order.

    Returns:
      The best one, the first on ties, and the refined cut of its order, ``[N]``. What exceeds the memory
      least is best, then the lowest peak.
    """
    order, placement, looked = _least_balance(graph, cluster, numbers.astype(np.int64).tobytes(), tries)
    note(placements=looked)  # Also if they are remembered: counts do not depend on earlier calls.
    return PeakBalance(graph, cluster, order), placement


@once_a_pair
def _least_balance(
    graph: ComputationGraph, cluster: Cluster, numbers: bytes, tries: int
) -> tuple[np.ndarray, np.ndarray, int]:
    """The order and the placement of `least_peak_balance`, and how many placements that took."""
    given = np.frombuffer(numbers, np.int64)
    links, ops = Links.of(graph, given), np.argsort(given)
    balances = [PeakBalance(graph, cluster, ops[make(links)]) for make in _ORDERS]
    with uncounted():
        placements = [balance.refine(balance.cut(), tries) for balance in balances]
        values = [balance.value(placement) for balance, placement in zip(balances, placements, strict=True)]
    best = values.index(min(values))
    placements[best].setflags(write=False)
    return balances[best].order, placements[best], sum(balance.looked for balance in balances)
