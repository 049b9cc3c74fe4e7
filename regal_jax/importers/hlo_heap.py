"""Packing of buffers with known lifetimes into one block of memory: best fit, large buffers first.

This module does not import JAX."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

__all__ = ["ALIGNMENT", "Interval", "best_gap", "pack_heap"]

ALIGNMENT: Final = 64
"""Bytes of which the offsets of buffers are multiples."""


@dataclasses.dataclass(eq=False, slots=True)
class Interval:
    """A buffer in the heap.

    Attributes:
      number: Rank among equal buffers; lower numbers are placed first.
      size: Bytes; more than 0.
      spans: First and last moment of each value in it, the first value first. All values share its place.
    """

    number: int
    size: int
    spans: list[tuple[int, int]]


def pack_heap(buffers: Sequence[Interval]) -> tuple[int, dict[int, int]]:
    """Size of the heap, and the offset of each buffer by number: the smaller one of two packings.

    One packs large buffers first, the other packs buffers with long lifetimes first. Each buffer takes the
    smallest gap that is free during its lifetimes, or the end of the heap.

    References:
      openxla/xla: heap_simulator, ``GlobalDecreasingSizeBestFitHeap``.
    """

    def by_size(buffer: Interval) -> tuple[int, int, int]:
        first, last = buffer.spans[0]
        return -buffer.size, first - last, buffer.number

    def by_life(buffer: Interval) -> tuple[int, int, int]:
        life = max(e for _, e in buffer.spans) - min(s for s, _ in buffer.spans)
        return -life, -buffer.size, buffer.number

    return min((_pack(buffers, key) for key in (by_size, by_life)), key=lambda made: made[0])


def _pack(buffers: Sequence[Interval], key: Callable[[Interval], Any]) -> tuple[int, dict[int, int]]:
    count = sum(len(buffer.spans) for buffer in buffers)
    starts, ends, tops, bottoms = (np.zeros(count, np.int64) for _ in range(4))
    offsets: dict[int, int] = {}
    placed = top = 0
    for buffer in sorted(buffers, key=key):
        taken = np.zeros(placed, bool)
        for first, last in buffer.spans:
            taken |= (starts[:placed] <= last) & (ends[:placed] >= first)
        here = np.flatnonzero(taken)
        offset = best_gap(bottoms[here], tops[here], buffer.size)
        top = max(top, offset + buffer.size)
        offsets[buffer.number] = offset
        for first, last in buffer.spans:
            starts[placed], ends[placed], bottoms[placed] = first, last, offset
            tops[placed] = -(-(offset + buffer.size) // ALIGNMENT) * ALIGNMENT
            placed += 1
    return top, offsets


def best_gap(bottoms: np.ndarray, tops: np.ndarray, size: int) -> int:
    """The start of the smallest gap between blocks that has ``size`` bytes."""
    if not bottoms.size:
        return 0
    order = np.argsort(bottoms, kind="stable")
    ends = np.maximum.accumulate(tops[order])
    free = np.concatenate((np.zeros(1, np.int64), ends[:-1]))
    gaps = bottoms[order] - free
    fitting = np.flatnonzero(gaps >= size)
    return int(free[fitting[np.argmin(gaps[fitting])]]) if fitting.size else int(ends[-1])
