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
from regal_jax.experiments.records import code_word
from regal_jax.gflownet import SchedulePolicy, shipped_gflownet
from regal_jax.gflownet.shipped import SHIPPED
from regal_jax.robust import (
    BANDWIDTH_DELAY,
    LATENCY_DELAY,
    LEARNED,
    NOISE,
    SOURCES,
    BrkgaPopulation,
    BrkgaRuns,
    Proposer,
    ScenarioRuns,
    Scenarios,
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
_SEARCHES: Final[Mapping[str, BrkgaPopulation | BrkgaRuns]] = {
    "brkga": BrkgaPopulation(config=BrkgaConfig(population=500, elites=100, mutants=75), runs=1),
    "brkga-runs": BrkgaRuns(),
    "scenario-runs": ScenarioRuns(),
}
"""Sources with a budget. The paper gives no population; its 100 best are part of it."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class _Row:
    """One training, or a source that is not learned; it has a job for each seed.

    Attributes:
      name: Name of the row.
      title: Title in tables.
      sources: Set -> source.
      evaluations: Budget of BRKGA, of all runs together; 0 for other sources.
      training: Number of the training, if the row has the weights of several.
      paper: Whether the paper's figures for a source of this name are of the same system.
      temperatures: Temperature -> source, for Figure 3; empty for jobs that are not in it.
      choose: Scenarios by which schedules are chosen; ``None`` to choose by the proxy, as in the paper.
      identity: Other settings that determine the results.
    """

    name: str
    title: str
    sources: Mapping[str, Proposer]
    evaluations: int = 0
    training: int = 0
    paper: bool = True
    temperatures: Mapping[str, Proposer] = dataclasses.field(default_factory=dict)
    choose: Scenarios | None = None
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Proposing(_Row):
    """A source with a seed and its budgets.

    Attributes:
      seed: Seed of the source.
      count: Number of schedules requested.
      key: Digest of all settings that determine the result for a graph.
      drawn: Whether the row's points of Figure 2 are of this seed.
    """

    seed: int
    count: int
    key: str
    drawn: bool = True

    def covers(self, set_: str) -> bool:
        """Whether there is a source for the graphs of a set."""
        return bool(self.temperatures) if set_ == "temperature" else set_ in self.sources

    def as_document(self) -> dict[str, Any]:
        """What the report needs to know."""
        names = ("key", "name", "title", "seed", "count", "evaluations", "training", "paper", "identity")
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
    given = config.options.get(name, {})
    source = given.get("source", name)
    options = {**({"count": 1} if source == "list-scheduling" else {}), **given}
    options.pop("source", None)
    title = options.pop("name", SOURCES[name].title if name in SOURCES else name)
    count = options.pop("count", config.count)
    choose = _choice(name, options.pop("choose", "proxy"))
    # List scheduling makes one schedule, which does not depend on the seed.
    seeds = config.seeds[:1] if source == "list-scheduling" and count == 1 else config.seeds
    common = {
        "code": code_word(),
        "suite": config.suite, "method": source, "count": count, "keep": config.keep, "draws": config.draws,
        "targets": [NOISE, BANDWIDTH_DELAY, LATENCY_DELAY],
        "options": json.loads(json.dumps(options, default=str)), "choose": repr(choose),
    }  # fmt: skip
    for row in _rows(name, source, title, count, options, config):
        for seed in seeds:
            document = {**common, "evaluations": row.evaluations, **row.identity, "seed": seed}
            key = hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]
            # Figures 2 and 3 are of one seed, and Figure 3 of one training.
            first = seed == seeds[0]
            fields = vars(row) if first else {**vars(row), "temperatures": {}}
            # The paper's figures are of schedules that are chosen by the proxy.
            fields = {**fields, "choose": choose, "paper": row.paper and choose is None}
            yield Proposing(**fields, seed=seed, count=count, key=key, drawn=first)


def _rows(
    name: str, source: str, title: str, count: int, options: dict[str, Any], config: EvaluationConfig
) -> Iterator[_Row]:
    if source in LEARNED:
        yield from _learned(source, title, config)
        return
    if source in _SEARCHES:
        made = _search(name, source, options, config.evaluations)
        single = isinstance(made, BrkgaRuns)
        needed = -(-count // (1 if single else made.config.population))
        runs = min(made.runs or needed, needed) if single else made.runs or needed
        evaluations = made.evaluations * runs
    else:
        made, evaluations = make_source(source, **options)[1], 0
    # The paper has one row of each source.
    paper = name in SOURCES
    sources: dict[str, Proposer] = dict.fromkeys(SETS, made)
    yield _Row(name=name, title=title, sources=sources, evaluations=evaluations, paper=paper)


def _search(
    name: str, source: str, options: Mapping[str, Any], evaluations: int
) -> BrkgaPopulation | BrkgaRuns:
    """A source with its settings and those of its searches; `evaluations` is the budget of the paper's."""
    base = _SEARCHES[source]
    own: dict[str, Any] = {"evaluations": evaluations} if source == "brkga" else {}
    given = dict(options)
    own |= {field.name: given.pop(field.name) for field in dataclasses.fields(base) if field.name in given}
    if "scenarios" in own:
        own["scenarios"] = _choice(name, own["scenarios"])
    try:
        return dataclasses.replace(base, config=dataclasses.replace(base.config, **given), **own)
    except TypeError as error:
        raise ConfigError(f"options.{name}: {error}") from None


def _choice(name: str, given: Any) -> Scenarios | None:
    """Scenarios by their settings; `None` for the proxy."""
    if given == "proxy":
        return None
    try:
        return Scenarios(**({} if given == "scenarios" else given))
    except TypeError as error:
        raise ConfigError(
            f"options.{name}: {given!r} are no scenarios ({error}); give 'proxy', 'scenarios', or a table of "
            "settings of Scenarios"
        ) from None


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
    own = {"temperature": temperature} if kind == "gflownet" else {}  # PPO has that of its training.
    return make_source(kind, weights=given, **own)[1]


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
