"""Variants of a graph with the same topology and other costs."""

import dataclasses
from typing import Final

import numpy as np

from regal_jax.checks import check_kind, check_number, check_whole
from regal_jax.graph import ComputationGraph

__all__ = ["MOST_NOISE", "with_noise"]

MOST_NOISE: Final = 10
"""Largest standard deviation of a factor."""


def with_noise(
    graph: ComputationGraph, seed: int, *, scale: float = 0.1, whole_runtimes: bool = False
) -> ComputationGraph:
    """``graph`` with multiplicative noise on its sizes and runtimes, as REGAL augments its data.

    Every op's runtime, every op's `temp_bytes` and every tensor's size is multiplied by a factor of its own.
    The paper names no distribution; ours is log-normal with mean 1 and standard deviation ``scale``:
    ``exp(N(-s^2 / 2, s^2))`` with ``s^2 = log(1 + scale^2)``. So factors are positive, and the expected work
    and bytes do not change. Runtimes that differ between devices keep their ratios. Zeros stay zero. Sizes
    are rounded to whole bytes and stay at least 1 if they were at least 1.

    Args:
      graph: The graph.
      seed: Non-negative seed; the same seed gives the same variant.
      scale: Standard deviation of a factor, non-negative.
      whole_runtimes: Round runtimes to whole numbers, at least 1 if they were positive, for formats without
        fractions (``.pbtxt`` in microseconds).

    Returns:
      A graph with the same ops, edges and constraints, named ``NAME-noise-SEED``.

    Raises:
      ConfigError: The seed is negative, or the scale is invalid.
      GraphError: A cost exceeds the limits of a graph.

    Examples:
      >>> from regal_jax.datasets import generate, with_noise
      >>> graph = generate("chain", 3, seed=0)
      >>> graph.runtime.tolist(), with_noise(graph, seed=1, whole_runtimes=True).runtime.tolist()
      ([51.0, 49.0, 56.0], [53.0, 53.0, 58.0])

    References:
      Paliwal et al. 2020, ICLR, "Tasks and datasets": multiplicative noise to tensor sizes and op running
      times, variants of a graph sharing its topology.
    """
    check_kind("graph", graph, ComputationGraph)
    check_whole("seed", seed, 0)
    scale = check_number("scale", scale, 0, MOST_NOISE)
    rng = np.random.default_rng(seed)
    log_variance = float(np.log1p(scale**2))

    def noisy(values: np.ndarray, whole: bool) -> np.ndarray:
        factor = np.exp(rng.normal(-log_variance / 2, np.sqrt(log_variance), size=len(values)))
        result = values * factor.reshape(-1, *[1] * (values.ndim - 1))
        return np.where(values > 0, np.maximum(1.0, np.rint(result)), 0.0) if whole else result

    return dataclasses.replace(
        graph,
        name=f"{graph.name}-noise-{seed}",
        runtime=noisy(graph.runtime, whole_runtimes),
        temp_bytes=noisy(graph.temp_bytes, True),
        tensor_bytes=noisy(graph.tensor_bytes, True),
    )
