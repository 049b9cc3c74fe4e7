"""Longest paths of a graph, and where its ops stand along them."""

from typing import Any, Final, NamedTuple

import numpy as np

from regal_jax.compiling import run_loops

__all__ = ["Levels", "levels", "quantised", "standing"]

_STEPS: Final = 2**20


class Levels(NamedTuple):
    """Longest paths to and from every op.

    Attributes:
      top: ``[N]`` float64, the longest path of runtimes before the op, without it.
      bottom: ``[N]`` float64, the longest path from the op on, with it.
      depth: ``[N]`` float64, the most edges on a path to the op.
      height: ``[N]`` float64, the most edges on a path from the op.
    """

    top: np.ndarray
    bottom: np.ndarray
    depth: np.ndarray
    height: np.ndarray


def levels(sender: np.ndarray, receiver: np.ndarray, order: np.ndarray, runtime: np.ndarray) -> Levels:
    """Longest paths in one pass over the edges each way.

    Args:
      sender: ``[E]``.
      receiver: ``[E]``.
      order: ``[N]``, topological.
      runtime: ``[N]`` float64.
    """
    n = len(runtime)
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    # By the place of their senders, edges come when all that lead to their sender have come.
    sequence = np.argsort(position[sender], kind="stable")
    sender, receiver = sender[sequence], receiver[sequence]
    none = np.zeros(n)
    top, depth = run_loops(_longest, none, none, none, sender, receiver, runtime)
    below, height = run_loops(_longest, none, none, none, receiver[::-1], sender[::-1], runtime)
    return Levels(np.array(top), np.array(below) + runtime, np.array(depth), np.array(height))


def _longest(start: Any, end: Any, depth: Any, sender: Any, receiver: Any, time: Any) -> Any:
    """Per op the largest sum of times before it, into ``start``, and of edges before it, into ``depth``."""
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

    Sums along two equally long paths may differ in their last bits, which must not decide who is first. The
    odd offset keeps the fractions that real levels are made of away from the edges of the steps.
    """
    return np.floor(level * _STEPS + 0.3)


def standing(level: np.ndarray, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank of every op by level as a share of the ops, and as a share of the mass: work, or bytes.

    Equal levels share the middle of their ranks, so that no op is told apart by its number.

    Args:
      level: ``[N]``, from `quantised`.
      mass: ``[N]`` float64, not negative.
    """
    n = len(level)
    order = np.argsort(level, kind="stable")
    by_level = level[order]
    changes = np.flatnonzero(by_level[1:] != by_level[:-1]) + 1
    # Where each run of equals begins, and where the last one ends.
    bounds = np.concatenate([[0], changes, [n]])
    run = np.empty(n, np.int64)
    run[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    low, high = bounds[run], bounds[run + 1]
    work = np.concatenate([[0.0], np.cumsum(mass[order])])
    rank = (low + high) / (2 * n)
    return rank, (work[low] + work[high]) / (2 * work[-1]) if work[-1] > 0 else rank
