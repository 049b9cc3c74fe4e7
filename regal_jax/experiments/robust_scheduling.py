"""The suite of robust scheduling: Tables 1 to 3 of Zhang et al. 2023, "Robust Scheduling with GFlowNets".

Sources propose schedules for four devices and free transfers; those with the smallest makespans are kept,
equal ones included. Three sets of graphs:

- ``one``: one real graph, the contracted training step of the example ``mlp`` without residents, 59 ops.
- ``synthetic``: graphs of the five distributions of appendix E.5. Their seeds begin at `FIRST_SEED`: those of
  training must be smaller, and those of the split ``validation`` begin at `VALIDATION_SEED`.
- ``real``: contracted graphs of a split, without residents, that four devices can run at least 1.25 times as
  fast as one.

A fourth set, ``temperature``, has the graph of Figure 3, from which GFlowNets sample at several temperatures.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any, Final

import jax
import numpy as np

from regal_jax.datasets import generate
from regal_jax.datasets.gflownet import GFLOWNET_TOPOLOGIES
from regal_jax.datasets.load import computing_graphs, one_graph
from regal_jax.errors import ConfigError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.robust_jobs import Proposing
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import parallelism
from regal_jax.robust import (
    Candidates,
    Scenarios,
    bandwidth_limited,
    cover,
    latency_limited,
    noisy,
    speedup,
)
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solve import graph_keys

__all__ = [
    "CASES",
    "CLUSTER",
    "FIRST_SEED",
    "LIMIT",
    "MAX_OPS",
    "VALIDATION_SEED",
    "RobustCase",
    "measure",
    "robust_cases",
]

CLUSTER: Final = Cluster.uniform(4, transfer="free")
FIRST_SEED: Final = 1_000_000
"""First seed of `regal_jax.datasets.generate` for the graphs of the set ``synthetic``."""
VALIDATION_SEED: Final = 900_000
"""As `FIRST_SEED`, for the split ``validation``, on which settings are chosen."""
CASES: Final = 10
"""Number of synthetic graphs of each distribution."""
MAX_OPS: Final = 128
LIMIT: Final = 4
"""Number of real graphs."""
_MIN_OPS: Final = 12
_PARALLEL: Final = 1.25
"""Smallest ratio of work to longest path of a graph; a smaller ratio leaves nothing to schedule."""
_TEMPERATURE_OPS: Final = 25
"""Number of ops of the graph of Figure 3."""


@dataclasses.dataclass(frozen=True, eq=False)
class RobustCase:
    """A graph of the suite.

    Attributes:
      set: One of `SETS`, or ``"temperature"`` for the graph of Figure 3.
      graph: The graph.
    """

    set: str
    graph: ComputationGraph

    @property
    def key(self) -> str:
        """Key of the results. It has the set, since weights may depend on it."""
        return f"{self.set}-{self.graph.content_hash}"

    def as_document(self, draws: int) -> dict[str, Any]:
        """What the report needs to know.

        Args:
          draws: Number of noisy targets.
        """
        noise = [noisy(self.graph, CLUSTER, seed=seed).graph for seed in range(draws)]
        return {
            "hash": self.key,
            "name": self.graph.name,
            "ops": self.graph.num_ops,
            "set": self.set,
            "bounds": {
                "proxy": _largest_speedup(self.graph),
                "noisy": float(np.mean([_largest_speedup(graph) for graph in noise])),
            },
        }


def _largest_speedup(graph: ComputationGraph) -> float:
    """A bound on the speed-up of every schedule, by the longest path and the number of devices."""
    return float(min(CLUSTER.num_devices, parallelism(graph)))


def robust_cases(config: EvaluationConfig) -> list[RobustCase]:
    """The graphs of the suite; equal graphs occur once in a set.

    Raises:
      ConfigError: There is no such split, or no real graph.
      FormatError: No file can be read.
    """
    chosen = config.split == "validation"
    first = VALIDATION_SEED if chosen else FIRST_SEED
    found = [] if chosen else [RobustCase("one", one_graph())]
    for ops in config.sizes:
        for topology in GFLOWNET_TOPOLOGIES:
            for i in range(config.cases or CASES):
                check_interrupt()
                found.append(RobustCase("synthetic", generate(f"gflownet-{topology}", ops, first + i)))
    if not chosen:
        figure = generate("gflownet-erdos-renyi", _TEMPERATURE_OPS, FIRST_SEED)
        found.append(RobustCase("temperature", figure))
    if config.graphs:
        real = [RobustCase("real", graph) for graph in _real(config)]
        if not real:
            raise ConfigError(
                f"graphs: {config.graphs} has no graph of {_MIN_OPS} to {config.max_ops or MAX_OPS} ops in "
                f"its split {config.split!r} that devices run {_PARALLEL} times as fast; raise max_ops"
            )
        found += real
    return list({case.key: case for case in found}.values())


def _real(config: EvaluationConfig) -> Iterator[ComputationGraph]:
    most, left = config.max_ops or MAX_OPS, config.limit or LIMIT
    for graph in computing_graphs(config.graphs, config.split, CLUSTER, most):
        if not left:
            return
        if graph.num_ops >= _MIN_OPS and parallelism(graph) >= _PARALLEL:
            left -= 1
            yield graph


def measure(job: Proposing, case: RobustCase, keep: int, draws: int, *, warm: bool = False) -> dict[str, Any]:
    """The fields of a result: schedules are proposed, and the best of them are tried on the targets.

    Args:
      job: The source.
      case: The graph.
      keep: Number of schedules that are kept.
      draws: Number of noisy targets.
      warm: Propose once before the clock starts, so that no compilation is timed.

    Raises:
      ConfigError: The source does not cover the graph.
    """
    graph = case.graph
    key = graph_keys(jax.random.key(np.uint32(job.seed)), [graph])[0]
    if case.set == "temperature":
        return _at_temperatures(job, graph, key)
    source = job.sources.get(case.set)
    if source is None:
        raise ConfigError(f"{job.title} has no weights for the set {case.set!r}")
    proposes, chooses = jax.random.split(key)
    if warm:
        _ = source.propose(graph, CLUSTER, job.count, proposes)
    clock = Deadline()
    proposed = Candidates.of(graph, CLUSTER, *source.propose(graph, CLUSTER, job.count, proposes), job.name)
    kept = _kept(proposed, keep, job.choose, chooses)
    seconds = clock.spent
    if not len(kept):
        raise ConfigError(f"{job.title} proposed no schedule")
    proxy = speedup(graph, kept.makespan)
    noise = [noisy(graph, CLUSTER, seed=seed) for seed in range(draws)]
    limited = (bandwidth_limited(graph, CLUSTER), latency_limited(graph, CLUSTER))
    fields: dict[str, Any] = {
        "value": float(kept.makespan.min()),
        "overflow": 0.0,
        "evaluations": job.evaluations,
        "seconds": round(seconds, 6),
        "proxy": float(proxy.max()),
        "proxy_mean": float(proxy.mean()),
        "noisy": float(np.mean([target.speedups(kept).max() for target in noise])),
        **{target.name: float(target.speedups(kept).max()) for target in limited},
        **dataclasses.asdict(kept.diversity),
        "proposed": len(proposed),
        "kept": len(kept),
        "distinct": len(kept.distinct()),
    }
    if case.set == "one" and job.drawn:
        # Figure 2 shows every schedule, not only those that are kept.
        columns = {target.name: target.speedups(proposed) for target in (noise[0], *limited)}
        columns = {"proxy": speedup(graph, proposed.makespan), **columns}
        fields["points"] = {name: np.round(values, 5).tolist() for name, values in columns.items()}
    return fields


def _kept(proposed: Candidates, keep: int, choose: Scenarios | None, key: jax.Array) -> Candidates:
    """The paper's choice is by the proxy, and equal schedules count as several."""
    if choose is None:
        return proposed.best(keep, unique=False)
    different = proposed.take(proposed.distinct())
    return cover(different, keep, choose, key)


def _at_temperatures(job: Proposing, graph: ComputationGraph, key: jax.Array) -> dict[str, Any]:
    """The fields of Figure 3: the speed-ups of schedules at each temperature, with the same draws."""
    clock = Deadline()
    found = {
        temperature: speedup(
            graph,
            Candidates.of(graph, CLUSTER, *source.propose(graph, CLUSTER, job.count, key), job.name).makespan,
        )
        for temperature, source in job.temperatures.items()
    }
    return {
        "value": float(graph.runtime.sum() / max(values.max() for values in found.values())),
        "overflow": 0.0,
        "evaluations": 0,
        "seconds": round(clock.spent, 6),
        "temperatures": {name: np.round(values, 5).tolist() for name, values in found.items()},
    }
