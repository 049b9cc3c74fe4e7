"""Arrays of `regal_jax.heuristics.peaks`, and sums over them, which NumPy makes where Numba is missing."""

import dataclasses
from typing import Final

import numpy as np

__all__ = ["SQUARINGS", "Held", "Part", "norm_of", "ranges", "sums"]

SQUARINGS: Final = 4
"""The norm that `PeakBalance.refine` lowers has the power 3 * 2**4: high enough to measure peaks, low enough
to fall when one of several equal peaks is lowered."""


@dataclasses.dataclass(frozen=True, eq=False)
class Held:
    """Memory held under a placement.

    Attributes:
      change: ``[D (N + 1)]`` bytes, change of the bytes that each device holds from the position before to
        this one; the last entry is the change after the last op.
      bytes: ``[D, N]``, on each device while the op at each position runs, wherever it does.
      counted: ``[D, N]``, these bytes, with the penalty of a device where they exceed its memory.
      penalty: ``[D]`` bytes, as from `peaks_kernel.penalise`.
      home: ``[T]`` device of the producer.
      end: ``[T]``, the last position at which the producer's device holds the tensor.
    """

    change: np.ndarray
    bytes: np.ndarray
    counted: np.ndarray
    penalty: np.ndarray
    home: np.ndarray
    end: np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Part:
    """Ops and all tensors that they make or read, or the whole graph.

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


def norm_of(held: np.ndarray, scale: float) -> float:
    # Repeated squaring, since NumPy's powers would dominate the time of a try.
    share = held * scale
    share *= share * share
    for _ in range(SQUARINGS):
        share *= share
    # Sequential, as the loops of the kernel sum.
    return float(share.ravel().cumsum()[-1]) if share.size else 0.0


def sums(index: np.ndarray, size: np.ndarray, length: int) -> np.ndarray:
    """`np.bincount`, with a float result for empty input, too."""
    return np.bincount(index, size, length).astype(np.float64, copy=False)


def ranges(offset: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The items of some rows, those of row ``i`` being ``offset[i]`` to ``offset[i + 1]``."""
    first = offset[rows]
    count = offset[rows + 1] - first
    start = np.repeat(first - np.cumsum(count) + count, count)
    return start + np.arange(count.sum())
