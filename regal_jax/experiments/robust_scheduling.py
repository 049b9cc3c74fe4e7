"""The suite of robust scheduling: Tables 1 to 3 of Zhang et al. 2023, "Robust Scheduling with GFlowNets".

Sources propose schedules for four devices and free transfers; those with the smallest makespans are kept,
equal ones included. Three sets of graphs:

- ``one``: one real graph, the contracted training step of the example ``mlp`` without residents, 59 ops.
- ``synthetic``: graphs of the five distributions of appendix E.5. Their seeds begin at `FIRST_SEED`: those of
  training must be smaller.
- ``real``: contracted graphs of a split, without residents, that four devices can run at least 1.25 times as
  fast as one.
"""

import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np

from regal_jax.datasets import generate
from regal_jax.datasets.gflownet import GFLOWNET_TOPOLOGIES
from regal_jax.datasets.load import computing_graphs, one_graph
from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.programs.words import source_word
from regal_jax.robust import (
    BANDWIDTH_DELAY,
    LATENCY_DELAY,
    LEARNED,
    NOISE,
    SOURCES,
    BrkgaPopulation,
    Candidates,
    Proposer,
    bandwidth_limited,
    latency_limited,
    make_source,
    noisy,
    speedup,
)
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.search import BrkgaConfig
from regal_jax.solve import graph_keys

__all__ = [
    "CASES",
    "CLUSTER",
    "FIRST_SEED",
    "LIMIT",
    "MAX_OPS",
    "SETS",
    "Proposing",
    "RobustCase",
    "measure",
    "proposing",
    "robust_cases",
]

SETS: Final = ("one", "synthetic", "real")
CLUSTER: Final = Cluster.uniform(4, transfer="free")
FIRST_SEED: Final = 1_000_000
"""First seed of `regal_jax.datasets.generate` for the graphs of the set ``synthetic``."""
CASES: Final = 10
"""Number of synthetic graphs of each distribution."""
MAX_OPS: Final = 128
LIMIT: Final = 4
"""Number of real graphs."""
_MIN_OPS: Final = 12
_PARALLEL: Final = 1.25
"""Smallest ratio of work to longest path of a graph; a smaller ratio leaves nothing to schedule."""
_POPULATION: Final = {"population": 500, "elites": 100, "mutants": 75}
"""Settings of BRKGA. The 100 best are part of the population, as in the paper, which gives no sizes."""


@dataclasses.dataclass(frozen=True, eq=False)
class RobustCase:
    """A graph of the suite.

    Attributes:
      set: One of `SETS`.
      graph: The graph.
    """

    set: str
    graph: ComputationGraph

    @property
    def key(self) -> str:
        """Key of the results. It has the set, since weights may depend on it."""
        return f"{self.set}-{self.graph.content_hash}"

    def as_document(self) -> dict[str, Any]:
        """What the report needs to know."""
        return {"hash": self.key, "name": self.graph.name, "ops": self.graph.num_ops, "set": self.set}


def robust_cases(config: EvaluationConfig) -> list[RobustCase]:
    """The graphs of the suite; equal graphs occur once in a set.

    Raises:
      ConfigError: There is no such split, or no real graph.
      FormatError: No file can be read.
    """
    found = [RobustCase("one", one_graph())]
    for ops in config.sizes:
        for topology in GFLOWNET_TOPOLOGIES:
            for i in range(config.cases or CASES):
                check_interrupt()
                found.append(RobustCase("synthetic", generate(f"gflownet-{topology}", ops, FIRST_SEED + i)))
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
        path = float(upward_rank(graph, CLUSTER).max())
        if graph.num_ops >= _MIN_OPS and graph.runtime.sum() >= _PARALLEL * path > 0:
            left -= 1
            yield graph


@dataclasses.dataclass(frozen=True, eq=False)
class Proposing:
    """A source with a seed and its budgets.

    Attributes:
      name: Name of the source.
      title: Title in tables.
      seed: Seed of the source.
      count: Number of schedules requested.
      evaluations: Budget of BRKGA; 0 for other sources.
      key: Digest of all settings that determine the result for a graph.
      sources: Set -> source.
    """

    name: str
    title: str
    seed: int
    count: int
    evaluations: int
    key: str
    sources: Mapping[str, Proposer]

    def as_document(self) -> dict[str, Any]:
        """What the report needs to know."""
        return {
            name: getattr(self, name) for name in ("key", "name", "title", "seed", "count", "evaluations")
        }


def proposing(config: EvaluationConfig) -> tuple[list[Proposing], dict[str, str]]:
    """The jobs of a config, and name -> reason for the sources that cannot run."""
    jobs: list[Proposing] = []
    left_out: dict[str, str] = {}
    for name in config.methods:
        try:
            jobs += _jobs(name, config)
        except (ConfigError, FormatError, MissingExtraError, OSError) as error:
            left_out[name] = " ".join(str(error).split())
    return jobs, left_out


def _jobs(name: str, config: EvaluationConfig) -> list[Proposing]:
    options = {**({"count": 1} if name == "list-scheduling" else {}), **config.options.get(name, {})}
    title, count = options.pop("name", SOURCES[name].title), options.pop("count", config.count)
    identity: dict[str, Any] = {"options": json.loads(json.dumps(options, default=str))}
    evaluations, sources = 0, dict[str, Proposer]()
    if name in LEARNED:
        sources, identity["weights"] = _learned(name, config)
        identity["temperature"] = config.temperature
    elif name == "brkga":
        evaluations = config.evaluations
        sources.update(dict.fromkeys(SETS, _brkga(options, evaluations)))
    else:
        sources.update(dict.fromkeys(SETS, make_source(name, **options)[1]))
    common = {
        "code": source_word(),
        "suite": config.suite, "method": name, "count": count, "keep": config.keep, "draws": config.draws,
        "evaluations": evaluations, "targets": [NOISE, BANDWIDTH_DELAY, LATENCY_DELAY], **identity,
    }  # fmt: skip
    # List scheduling makes one schedule, which does not depend on the seed.
    seeds = config.seeds[:1] if name == "list-scheduling" and count == 1 else config.seeds
    made = []
    for seed in seeds:
        text = json.dumps({**common, "seed": seed}, sort_keys=True)
        key = hashlib.sha256(text.encode()).hexdigest()[:16]
        made.append(Proposing(name, title, seed, count, evaluations, key, sources))
    return made


def _brkga(options: Mapping[str, Any], evaluations: int) -> BrkgaPopulation:
    given = {**_POPULATION, **options}
    runs = given.pop("runs", 1)
    try:
        config = BrkgaConfig(**given)
    except TypeError as error:
        raise ConfigError(f"options.brkga: {error}") from None
    return BrkgaPopulation(evaluations, config, runs)


def _learned(name: str, config: EvaluationConfig) -> tuple[dict[str, Proposer], dict[str, str]]:
    """Set -> policy, and set -> digest of its weights. ``NAME:SET`` takes precedence over ``NAME``."""
    sources, digests = {}, {}
    for set_ in SETS:
        file = config.weights.get(f"{name}:{set_}", config.weights.get(name))
        if file is not None:
            sources[set_] = make_source(name, weights=file, temperature=config.temperature)[1]
            path = pathlib.Path(file)
            digests[set_] = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else file
    if not sources:
        raise ConfigError(f"needs weights: give --weights {name}=FILE, or {name}:SET=FILE for one set")
    return sources, digests


def measure(job: Proposing, case: RobustCase, keep: int, draws: int) -> dict[str, Any]:
    """The fields of a result: schedules are proposed, and the best of them are tried on the targets.

    Args:
      job: The source.
      case: The graph.
      keep: Number of schedules that are kept.
      draws: Number of noisy targets.

    Raises:
      ConfigError: The source does not cover the graph.
    """
    source = job.sources.get(case.set)
    if source is None:
        raise ConfigError(f"{job.title} has no weights for the set {case.set!r}")
    graph = case.graph
    key = graph_keys(jax.random.key(np.uint32(job.seed)), [graph])[0]
    clock = Deadline()
    proposed = Candidates.of(graph, CLUSTER, *source.propose(graph, CLUSTER, job.count, key), job.name)
    seconds = clock.spent
    kept = proposed.best(keep, unique=False)
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
    if case.set == "one":
        # Figure 2 shows every schedule, not only those that are kept.
        columns = {target.name: target.speedups(proposed) for target in (noise[0], *limited)}
        columns = {"proxy": speedup(graph, proposed.makespan), **columns}
        fields["points"] = {name: np.round(values, 5).tolist() for name, values in columns.items()}
    return fields
