"""Targets, which measure a schedule in place of the proxy.

`SimulatedTarget` has the same ops on another cluster, or with other runtimes. `noisy`, `bandwidth_limited`
and `latency_limited` make the targets of Zhang et al. 2023, section 5.1.
"""

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Final, Protocol, runtime_checkable

import numpy as np

from regal_jax.checks import check_kind, check_number, shown
from regal_jax.datasets.noise import with_noise
from regal_jax.errors import ConfigError, PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.arrays import mean_runtimes
from regal_jax.plan import Plan
from regal_jax.robust.candidates import Candidates
from regal_jax.robust.timing import mean_read_bytes, mean_runtime, start_times
from regal_jax.solvers.loop.settings import check_pairs

__all__ = [
    "BANDWIDTH_DELAY",
    "LATENCY_DELAY",
    "NOISE",
    "TARGETS",
    "SimulatedTarget",
    "Target",
    "bandwidth_limited",
    "latency_limited",
    "make_target",
    "noisy",
    "speedup",
]

NOISE: Final = 0.5
"""Standard deviation of the factor of a runtime; see docs/design.md."""
BANDWIDTH_DELAY: Final = 2.0
"""Mean delay of a tensor that moves, in mean runtimes, of `bandwidth_limited`; see docs/design.md."""
LATENCY_DELAY: Final = 1.0
"""As `BANDWIDTH_DELAY`, of `latency_limited`."""
_DOMINANT: Final = 0.9
"""Share of the mean delay that the dominant term of ``a * z + b`` has."""


@runtime_checkable
class Target(Protocol):
    """An object that measures many plans at once."""

    def measure(self, plans: Sequence[Plan]) -> np.ndarray:
        """``[K]`` measurements of ``plans`` in any unit; infinite for a plan that cannot be run."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class SimulatedTarget:
    """The ops of a graph in the order and on the devices of a plan, by the simulator's rules.

    Attributes:
      name: Name in tables.
      graph: The graph with the runtimes and sizes of the target.
      cluster: The cluster with the links of the target.

    Raises:
      ConfigError: These are no graph and no cluster.
    """

    name: str
    graph: ComputationGraph
    cluster: Cluster

    def __post_init__(self) -> None:
        check_pairs([self.graph], [self.cluster])

    def makespans(self, sequence: np.ndarray, devices: np.ndarray) -> np.ndarray:
        """``[C]`` float64 makespans of schedules on the target, in the graph's time unit.

        Args:
          sequence: ``[C, N]`` ops in the order in which they are scheduled.
          devices: ``[C, N]`` device of each op.
        """
        return start_times(self.graph, self.cluster, sequence, devices)[1]

    def speedups(self, candidates: Candidates) -> np.ndarray:
        """``[C]`` float64: the sum of all runtimes of the target over the makespan on the target."""
        makespan = self.makespans(candidates.sequence, candidates.devices)
        return speedup(self.graph, makespan)

    def measure(self, plans: Sequence[Plan]) -> np.ndarray:
        """``[K]`` float64 makespans of plans of the same ops.

        Raises:
          PlanError: A plan has other ops, or another number of devices than the target.
          ConfigError: These are no plans.
        """
        check_kind("plans", plans, Iterable)
        plans = list(plans)
        for plan in plans:
            check_kind("plans", plan, Plan)
            if plan.op_names != self.graph.op_names:
                raise PlanError(f"target {self.name!r} has other ops than the plan for {plan.graph_name!r}")
            if plan.cluster.num_devices != self.cluster.num_devices:
                raise PlanError(
                    f"target {self.name!r} has {self.cluster.num_devices} devices, a plan "
                    f"{plan.cluster.num_devices}"
                )
        if not plans:
            return np.zeros(0)
        sequence = np.stack([plan.timeline.op[plan.timeline.port < 0] for plan in plans])
        try:
            return self.makespans(sequence, np.stack([plan.placement for plan in plans]))
        except PlanError as error:
            raise PlanError(f"target {self.name!r}: the plans do not run on its graph: {error}") from None

    def __call__(self, plan: Plan) -> float:
        """The makespan of one plan."""
        return float(self.measure([plan])[0])


def speedup(graph: ComputationGraph, makespan: np.ndarray) -> np.ndarray:
    """``sum(runtime) / makespan``, float64; 1 where the makespan is 0. Runtimes are means over devices."""
    check_kind("graph", graph, ComputationGraph)
    work = float(mean_runtimes(graph).sum())
    makespan = np.asarray(makespan, np.float64)
    return np.where(makespan > 0, work / np.where(makespan > 0, makespan, 1.0), 1.0)


def noisy(
    graph: ComputationGraph, cluster: Cluster, *, seed: int = 0, scale: float = NOISE
) -> SimulatedTarget:
    """Inaccurately profiled runtimes: each is multiplied by an independent random factor.

    Factors are log-normal with mean 1 (`regal_jax.datasets.with_noise`). Sizes are unchanged.

    Args:
      graph: The graph with the runtimes of the proxy.
      cluster: The cluster of the proxy.
      seed: Seed of the factors.
      scale: Standard deviation of a factor, from 0 to 10.

    Raises:
      ConfigError: The seed or the scale is out of range.
    """
    check_pairs([graph], [cluster])
    other = with_noise(graph, seed, scale=scale)
    return SimulatedTarget("noisy", dataclasses.replace(graph, runtime=other.runtime), cluster)


def bandwidth_limited(
    graph: ComputationGraph, cluster: Cluster, *, delay: float = BANDWIDTH_DELAY
) -> SimulatedTarget:
    """Moving ``m`` bytes takes ``a * m + b``, and ``a * m`` is nine tenths of it in the mean.

    Args:
      graph: The graph; its means determine ``a`` and ``b``.
      cluster: The cluster, of which devices and memory capacities are used but not links.
      delay: Mean delay of a tensor that is read, in mean runtimes of the ops that take time.

    Raises:
      ConfigError: The delay is out of range.
    """
    return _linear("bandwidth", graph, cluster, delay, _DOMINANT)


def latency_limited(
    graph: ComputationGraph, cluster: Cluster, *, delay: float = LATENCY_DELAY
) -> SimulatedTarget:
    """Moving ``m`` bytes takes ``a * m + b``, and ``b`` is nine tenths of it in the mean.

    Args:
      graph: See `bandwidth_limited`.
      cluster: See `bandwidth_limited`.
      delay: See `bandwidth_limited`.

    Raises:
      ConfigError: The delay is out of range.
    """
    return _linear("latency", graph, cluster, delay, 1 - _DOMINANT)


def _linear(
    name: str, graph: ComputationGraph, cluster: Cluster, delay: float, share: float
) -> SimulatedTarget:
    """A target with delays linear in the bytes, which cause ``share`` of the mean delay."""
    check_pairs([graph], [cluster])
    check_number("delay", delay, 0, 1e6)
    total, mean = delay * mean_runtime(graph), mean_read_bytes(graph)
    slow = share * total if mean else 0.0
    bandwidth = mean / slow if slow else np.inf
    target = Cluster(cluster.memory, "delay", latency=total - slow, bandwidth=bandwidth)
    return SimulatedTarget(name, graph, target)


TARGETS: Final[tuple[str, ...]] = ("noisy", "bandwidth", "latency")
"""Names of targets for `make_target`."""


def make_target(name: str, graph: ComputationGraph, cluster: Cluster, *, seed: int = 0) -> SimulatedTarget:
    """A target of the paper by its name, with the default parameters.

    Args:
      name: One of `TARGETS`.
      graph: The graph.
      cluster: The cluster of the proxy.
      seed: Seed of the noise.

    Raises:
      ConfigError: The name is unknown, or the seed is out of range.
    """
    if not isinstance(name, str) or name not in TARGETS:
        raise ConfigError(f"target: unknown {shown(name)}; use one of {', '.join(TARGETS)}")
    if name == "noisy":
        return noisy(graph, cluster, seed=seed)
    return bandwidth_limited(graph, cluster) if name == "bandwidth" else latency_limited(graph, cluster)
