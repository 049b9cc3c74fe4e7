"""Scenarios: cost models drawn around the proxy."""

import dataclasses
import math
from typing import Any, Final

import jax
import numpy as np

from regal_jax.checks import check_number, check_whole
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, runtime_matrix, transfer_times
from regal_jax.problem import Problem
from regal_jax.robust.timing import delayed_times, mean_read_bytes, mean_runtime

__all__ = ["DrawnScenarios", "Scenarios", "generator"]

_TIMES_AT_ONCE: Final = 2**23
"""Number of start times that are in memory at once."""


@dataclasses.dataclass(frozen=True)
class Scenarios:
    """A distribution of cost models around the proxy. The paper has no scenarios.

    Some scenarios are the proxy itself. In the others, moving a tensor takes longer than by the proxy, by
    ``a * bytes + b``, and every runtime has an independent factor. Let ``r`` be the mean runtime of the ops
    that take time. The mean of ``a * bytes + b`` over the tensors that are read is log-uniform from
    ``delays[0] * r`` to ``delays[1] * r``, and the share of ``a * bytes`` in it is uniform. The factor of a
    runtime is ``exp(s * N(0, 1))``, with one ``s`` for each scenario, uniform from 0 to `noise`.

    Attributes:
      delays: Smallest and largest mean delay, in mean runtimes; positive.
      exact: Probability that a scenario is the proxy, from 0 to 1.
      noise: Largest ``s``, from 0 to 10.
      count: Number of scenarios among which `cover` chooses.
      slack: A schedule is good in a scenario if it takes at most this many times as long as the best one
        there; at least 1. `cover` fills up with good schedules that differ.
      moves: Random moves for each op with which `cover` varies these; 0 for none.

    Raises:
      ConfigError: A value is out of range.
    """

    delays: tuple[float, float] = (0.1, 4.0)
    exact: float = 0.25
    noise: float = 0.5
    count: int = 32
    slack: float = 1.05
    moves: int = 50

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        name = type(self).__name__
        for field, low, high in (("exact", 0, 1), ("noise", 0, 10), ("slack", 1, 1e6)):
            set_(self, field, check_number(f"{name}: {field}", getattr(self, field), low, high))
        for field, low in (("count", 1), ("moves", 0)):
            set_(self, field, check_whole(f"{name}: {field}", getattr(self, field), low, 1_000_000))
        if not isinstance(self.delays, (tuple, list)) or len(self.delays) != 2:
            raise ConfigError(f"{name}: delays is {self.delays!r}; give the smallest and the largest")
        low, high = (check_number(f"{name}: delays", value, 1e-6, 1e6) for value in self.delays)
        if low > high:
            raise ConfigError(
                f"{name}: delays begin at {low:g} and end at {high:g}; give the smaller one first"
            )
        set_(self, "delays", (low, high))

    def draw(self, graph: ComputationGraph, count: int, key: jax.Array) -> "DrawnScenarios":
        """Draws scenarios. The first ones do not depend on ``count``.

        Args:
          graph: The graph; its means determine the delays.
          count: Number of scenarios ``S``.
          key: Typed, consumed.
        """
        delay, share, spread, factor = generator(key).spawn(4)
        unit, mean = mean_runtime(graph), mean_read_bytes(graph)
        exact, size = delay.random((count, 2)).T
        other = exact >= self.exact
        low, high = map(math.log, self.delays)
        total = unit * other * np.exp(low + (high - low) * size)
        slow = total * share.random(count) if mean else np.zeros(count)
        noise = self.noise * (other * spread.random(count))[:, None]
        return DrawnScenarios(
            runtime=np.exp(noise * factor.standard_normal((count, graph.num_ops))),
            latency=total - slow,
            per_byte=slow / mean if mean else slow,
        )


@dataclasses.dataclass(frozen=True, eq=False)
class DrawnScenarios:
    """``S`` scenarios of one graph.

    Attributes:
      runtime: ``[S, N]`` float64, factor of each op's runtime.
      latency: ``[S]`` float64, added to the time of moving a tensor, in the graph's time unit.
      per_byte: ``[S]`` float64, the same for each byte.
    """

    runtime: np.ndarray
    latency: np.ndarray
    per_byte: np.ndarray

    def __len__(self) -> int:
        return len(self.latency)

    def take(self, index: np.ndarray) -> "DrawnScenarios":
        """The scenarios at ``index``, ``[K]`` whole numbers, in that order."""
        return DrawnScenarios(self.runtime[index], self.latency[index], self.per_byte[index])

    def costs(self, graph: ComputationGraph, cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
        """The costs of each scenario, as `regal_jax.robust.timing.delayed_times` takes them.

        Args:
          graph: The graph.
          cluster: The cluster of the proxy.

        Returns:
          ``(runtime [N, D, S], moves [T, L, S])``, in the graph's time unit.
        """
        runtime = runtime_matrix(graph, cluster)[..., None] * self.runtime.T[:, None]
        added = self.latency + self.per_byte * graph.tensor_bytes[:, None]
        return runtime, transfer_times(graph, cluster)[..., None] + added[:, None]

    def makespans(
        self, graph: ComputationGraph, cluster: Cluster, sequence: np.ndarray, devices: np.ndarray
    ) -> np.ndarray:
        """``[C, S]`` float64 makespans of schedules, in the graph's time unit.

        Blocking transfers count as delays of the same length.

        Args:
          graph: The graph.
          cluster: The cluster of the proxy.
          sequence: ``[C, N]`` ops in the order in which they are scheduled.
          devices: ``[C, N]`` device of each op.
        """
        runtime, moves = self.costs(graph, cluster)
        found = np.zeros((len(sequence), len(self)))
        # As many schedules at once as fit into a moderate part of the memory.
        some = max(1, _TIMES_AT_ONCE // max(1, len(self) * graph.num_ops))
        for first in range(0, len(sequence), some):
            rows = slice(first, first + some)
            each = sequence[rows], devices[rows]
            found[rows] = delayed_times(graph, cluster.link_index, runtime, moves, *each)[1]
        return found

    def problem(self, graph: ComputationGraph, problem: Problem) -> Problem:
        """``S`` graphs, each with the costs of a scenario.

        Args:
          graph: The graph.
          problem: The graph alone, with the costs of the proxy.
        """
        several: Any = jax.tree.map(lambda leaf: np.repeat(np.asarray(leaf), len(self), axis=0), problem)
        factor = np.ones((len(self), problem.bucket.ops), np.float32)
        factor[:, : graph.num_ops] = self.runtime
        added = np.zeros((len(self), problem.bucket.tensors), np.float32)
        added[:, : graph.num_tensors] = self.latency[:, None] + self.per_byte[:, None] * graph.tensor_bytes
        # A tensor moves to at most all devices, one transfer after another.
        longest = several.upper_bound * factor.max(axis=1) + problem.num_devices * added.sum(axis=1)
        return dataclasses.replace(
            several,
            runtime=several.runtime * factor[:, :, None],
            transfer_time=several.transfer_time + added[:, :, None],
            upper_bound=longest.astype(np.float32),
        )


def generator(key: jax.Array) -> np.random.Generator:
    """NumPy's generator with the seed of a typed key, which is consumed."""
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
