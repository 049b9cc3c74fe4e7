"""Longest paths of a graph, and the positions of its ops along them."""

from typing import Any, Final, NamedTuple

import numpy as np

from regal_jax.runtime.compiling import only_borrows, run_loops

__all__ = ["Levels", "levels", "quantised", "standing"]

_STEPS: Final = 2**20


class Levels(NamedTuple):
    """Longest paths to and from every op.

    Attributes:
      top: ``[N]`` float64, runtime of the longest path to the op, without the op.
      bottom: ``[N]`` float64, runtime of the longest path from the op, including the op.
      depth: ``[N]`` float64, most edges on a path to the op.
      height: ``[N]`` float64, most edges on a path from the op.
    """

    top: np.ndarray
    bottom: np.ndarray
    depth: np.ndarray
    height: np.ndarray


def levels(sender: np.ndarray, receiver: np.ndarray, order: np.ndarray, runtime: np.ndarray) -> Levels:
    """Computes longest paths in one pass over the edges in each direction.

    Args:
      sender: ``[E]`` sending ops.
      receiver: ``[E]`` receiving ops.
      order: ``[N]`` topological order.
      runtime: ``[N]`` float64 runtimes.
    """
    n = len(runtime)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    # Edges are sorted by the position of their sender, so that all edges into the sender come first.
    sequence = np.argsort(position[sender], kind="stable")
    sender, receiver = sender[sequence], receiver[sequence]
    none = np.zeros(n)
    top, depth = run_loops(_longest, none, none, none, sender, receiver, runtime)
    below, height = run_loops(_longest, none, none, none, receiver[::-1], sender[::-1], runtime)
    return Levels(np.array(top), np.array(below) + runtime, np.array(depth), np.array(height))


@only_borrows
def _longest(start: Any, end: Any, depth: Any, sender: Any, receiver: Any, time: Any) -> Any:
    """Writes for each op the largest sum of times before it to ``start`` and of edges to ``depth``."""
    for o in range(len(time)):
        end[o] = time[o]
    for i in range(len(sender)):
        u, v = sender[i], receiver[i]
        if end[u] > start[v]:
            start[v] = end[u]
            end[v] = end[u] + time[v]
        if depth[u] >= depth[v]:
            depth[v] = depth[u] + 1.0
    return start, depth


def quantised(level: np.ndarray) -> np.ndarray:
    """Relative levels from 0 to 1 in steps of 2**-20.

    Sums along two equally long paths may differ in their last bits, which must not decide the order. The odd
    offset keeps simple fractions, which are common levels, away from the edges of the steps.
    """
    return np.floor(level * _STEPS + 0.3)


def standing(level: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of every op by level, as a share of the ops and as a share of the mass (work or bytes).

    Equal levels share the middle of their ranks, so that the numbers of ops do not matter.

    Args:
      level: ``[..., N]``, from `quantised`.
      mass: ``[N]`` float64, not negative.

    Returns:
      Ranks and shares, ``[..., N]`` each.
    """
    n = level.shape[-1]
    rows = level.reshape(-1, n)
    order = np.argsort(rows, axis=1, kind="stable").ravel()
    none = np.zeros(level.size)
    rank, share = run_loops(_standing, none, none, np.zeros(n + 1), rows.ravel(), order, mass)
    return np.array(rank).reshape(level.shape), np.array(share).reshape(level.shape)


@only_borrows
def _standing(rank: Any, share: Any, work: Any, level: Any, order: Any, mass: Any) -> Any:
    """`standing`, row after row, into ``rank`` and ``share``."""
    n = len(mass)
    for row in range(0, len(level), n):
        for i in range(n):
            work[i + 1] = work[i] + mass[order[row + i]]
        low = 0
        while low < n:
            high, value = low + 1, level[row + order[row + low]]
            while high < n and level[row + order[row + high]] == value:
                high += 1
            for i in range(low, high):
                o = row + order[row + i]
                rank[o] = (low + high) / (2 * n)
                share[o] = (work[low] + work[high]) / (2 * work[n]) if work[n] > 0 else rank[o]
            low = high
    return rank, share
