"""The loops of packing: best fit in one range of addresses. Compiled where Numba is. No jax."""

from collections import namedtuple
from typing import Any

__all__ = ["Packable", "Placed", "pack"]

Packable = namedtuple("Packable", "size rows start end")
"""Pieces to pack.

Attributes:
  size: ``[P]`` bytes.
  rows: ``[P + 1]``, where the lives of each piece begin in ``start`` and ``end``.
  start, end: first and last moment of each life.
"""

Placed = namedtuple("Placed", "start end bottom top")
"""What is in memory: first and last moments, and addresses, ascending by ``bottom``; ``top`` is exclusive.

The arrays have room for the lives of all pieces that will be placed.
"""


def pack(pieces: Any, order: Any, placed: Any, count: Any, alignment: Any, address: Any) -> Any:
    """Gives each piece of ``order`` the smallest gap that is free during its lives, or the end.

    Args:
      pieces: `Packable`.
      order: Pieces to place.
      placed: `Placed`; written to.
      count: Number of entries of ``placed``.
      alignment: Gaps begin at multiples of this number of bytes.
      address: ``[P]``; written to.

    Returns:
      The highest end of a piece that was placed.
    """
    highest = 0
    for piece in order:
        size, first, last = pieces.size[piece], pieces.rows[piece], pieces.rows[piece + 1]
        here, least, end = -1, 0, 0
        for i in range(count):
            together = False
            for j in range(first, last):
                if placed.start[i] <= pieces.end[j] and placed.end[i] >= pieces.start[j]:
                    together = True
                    break
            if together:
                gap = placed.bottom[i] - end
                if gap >= size and (here < 0 or gap < least):
                    here, least = end, gap
                end = max(end, placed.top[i])
        if here < 0:
            here = end
        address[piece] = here
        highest = max(highest, here + size)
        top = (here + size + alignment - 1) // alignment * alignment
        spans = last - first
        i = count - 1
        while i >= 0 and placed.bottom[i] > here:
            placed.start[i + spans], placed.end[i + spans] = placed.start[i], placed.end[i]
            placed.bottom[i + spans], placed.top[i + spans] = placed.bottom[i], placed.top[i]
            i -= 1
        for j in range(spans):
            placed.start[i + 1 + j], placed.end[i + 1 + j] = pieces.start[first + j], pieces.end[first + j]
            placed.bottom[i + 1 + j], placed.top[i + 1 + j] = here, top
        count += spans
    return highest
