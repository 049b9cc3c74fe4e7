"""The sources of the suite of robust scheduling, with their weights, seeds and budgets."""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.gflownet import SchedulePolicy, shipped_gflownet
from regal_jax.gflownet.shipped import SHIPPED
from regal_jax.programs.words import source_word
from regal_jax.robust import (
    BANDWIDTH_DELAY,
    LATENCY_DELAY,
    LEARNED,
    NOISE,
    SOURCES,
    BrkgaPopulation,
    Proposer,
    make_source,
)
from regal_jax.search import BrkgaConfig
from regal_jax.storage.shipped import shipped_weights

__all__ = ["SETS", "TEMPERATURES", "Proposing", "proposing"]

SETS: Final = ("one", "synthetic", "real")
TEMPERATURES: Final = (1.0, 0.3, 0.1, 0.03, 0.01, 0.005)
"""Temperatures of Figure 3; the last one is the paper's at inference."""
_UNTRAINED: Final = "untrained"
"""In place of a file: random weights in the network of the paper, as a control."""
_POPULATION: Final = {"population": 500, "elites": 100, "mutants": 75}
"""Settings of BRKGA. The 100 best are part of the population, as in the paper, which gives no sizes."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Row:
    """One training, or a source that is not learned; it has a job for each seed.

    Attributes:
      name: Name of the row.
      title: Title in tables.
      sources: Set -> source.
      evaluations: Budget of BRKGA; 0 for other sources.
      training: Number of the training, if the row has the weights of several.
      paper: Whether the paper's figures for a source of this name are of the same system.
      temperatures: Temperature -> source, for Figure 3; empty for jobs that are not in it.
      identity: Other settings that determine the results.
    """

    name: str
    title: str
    sources: Mapping[str, Proposer]
    evaluations: int = 0
    training: int = 0
    paper: bool = True
    temperatures: Mapping[str, Proposer] = dataclasses.field(default_factory=dict)
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Proposing(_Row):
    """A source with a seed and its budgets.

    Attributes:
      seed: Seed of the source.
      count: Number of schedules requested.
      key: Digest of all settings that determine the result for a graph.
    """

    seed: int
    count: int
    key: str

    def covers(self, set_: str) -> bool:
        """Whether there is a source for the graphs of a set."""
        return bool(self.temperatures) if set_ == "temperature" else set_ in self.sources

    def as_document(self) -> dict[str, Any]:
        """What the report needs to know."""
        names = ("key", "name", "title", "seed", "count", "evaluations", "training", "paper")
        return {name: getattr(self, name) for name in names}


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


def _jobs(name: str, config: EvaluationConfig) -> Iterator[Proposing]:
    options = {**({"count": 1} if name == "list-scheduling" else {}), **config.options.get(name, {})}
    title, count = options.pop("name", SOURCES[name].title), options.pop("count", config.count)
    # List scheduling makes one schedule, which does not depend on the seed.
    seeds = config.seeds[:1] if name == "list-scheduling" and count == 1 else config.seeds
    common = {
        "code": source_word(),
        "suite": config.suite, "method": name, "count": count, "keep": config.keep, "draws": config.draws,
        "targets": [NOISE, BANDWIDTH_DELAY, LATENCY_DELAY],
        "options": json.loads(json.dumps(options, default=str)),
    }  # fmt: skip
    for row in _rows(name, title, options, config):
        for seed in seeds:
            document = {**common, "evaluations": row.evaluations, **row.identity, "seed": seed}
            key = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
            # Figure 3 is of one training and one seed.
            fields = vars(row) if seed == seeds[0] else {**vars(row), "temperatures": {}}
            yield Proposing(**fields, seed=seed, count=count, key=key)


def _rows(name: str, title: str, options: dict[str, Any], config: EvaluationConfig) -> Iterator[_Row]:
    if name in LEARNED:
        yield from _learned(name, title, config)
    elif name == "brkga":
        source = _brkga(options, config.evaluations)
        budget = config.evaluations
        yield _Row(name=name, title=title, sources=dict.fromkeys(SETS, source), evaluations=budget)
    else:
        source = make_source(name, **options)[1]
        yield _Row(name=name, title=title, sources=dict.fromkeys(SETS, source))


def _brkga(options: Mapping[str, Any], evaluations: int) -> BrkgaPopulation:
    given = {**_POPULATION, **options}
    runs = given.pop("runs", 1)
    try:
        config = BrkgaConfig(**given)
    except TypeError as error:
        raise ConfigError(f"options.brkga: {error}") from None
    return BrkgaPopulation(evaluations, config, runs)


def _learned(kind: str, title: str, config: EvaluationConfig) -> Iterator[_Row]:
    """The rows whose names begin with ``kind``, each training by itself.

    ``NAME:SET`` takes precedence over ``NAME``.
    """
    names = dict.fromkeys(key.partition(":")[0] for key in config.weights)
    names = [name for name in names if name.partition("-")[0] == kind]
    if not names:
        raise ConfigError(f"needs weights: give --weights {kind}=FILE, or {kind}:SET=FILE for one set")
    for name in names:
        _, _, suffix = name.partition("-")
        files = {
            set_: _files(config.weights.get(f"{name}:{set_}", config.weights.get(name))) for set_ in SETS
        }
        for training in range(max(map(len, files.values()))):
            given = {set_: each[training] for set_, each in files.items() if training < len(each)}
            sources = {set_: _policy(kind, file, config.temperature) for set_, file in given.items()}
            ahead = any(getattr(source, "lookahead", False) for source in sources.values())
            temperatures: dict[str, Proposer] = {}
            if kind == "gflownet" and not training and "synthetic" in given:
                temperatures = {f"{t:g}": _policy(kind, given["synthetic"], t) for t in TEMPERATURES}
            yield _Row(
                name=name,
                title=f"{title}, {suffix}" if suffix else title + ahead * " with lookahead",
                sources=sources,
                training=training,
                # The paper's network has no lookahead.
                paper=not suffix and not ahead,
                temperatures=temperatures,
                identity={
                    "row": name,
                    "weights": {set_: _digest(file) for set_, file in given.items()},
                    "temperature": config.temperature,
                },
            )


def _files(given: Any) -> tuple[str, ...]:
    """The files of a row, one for each training."""
    return (given,) if isinstance(given, str) else tuple(given or ())


def _policy(kind: str, file: str, temperature: float) -> Proposer:
    given: Any = _untrained() if file == _UNTRAINED else file
    return make_source(kind, weights=given, temperature=temperature)[1]


@functools.cache
def _untrained() -> SchedulePolicy:
    from flax import nnx

    return SchedulePolicy(shipped_gflownet("gflownet").config, rngs=nnx.Rngs(0))


def _digest(file: str) -> str:
    if file in SHIPPED:
        with shipped_weights("regal_jax.gflownet", SHIPPED, file) as path:
            return hashlib.sha256(path.read_bytes()).hexdigest()
    path = pathlib.Path(file)
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else file
