"""Tuned BRKGA: the best settings of a grid on a training set."""

import dataclasses
import hashlib
import itertools
import json
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Self

import jax
import numpy as np

from regal_jax.api import optimize_many
from regal_jax.checks import check_callback, check_kind, check_whole, counted, real, shown, whole
from regal_jax.engines import Engine, opened
from regal_jax.errors import ConfigError, FormatError, InfeasiblePlanWarning
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, plan_fitness
from regal_jax.runtime.interrupts import interrupt_at_end, interruptible
from regal_jax.runtime.stack import outer_level
from regal_jax.search import BrkgaConfig
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.solvers import Brkga
from regal_jax.solvers.loop.settings import check_pairs, each, one_seed
from regal_jax.storage.atomic import write_atomically, writing
from regal_jax.storage.documents import parse_json
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.locks import locked_file
from regal_jax.storage.paths import path_text
from regal_jax.storage.reading import read_limited

__all__ = ["DEFAULT_GRID", "TunedConfig", "tune"]

DEFAULT_GRID: Final[Mapping[str, Sequence[float]]] = MappingProxyType(
    {
        "population": (50, 100, 200),
        "elites": (0.1, 0.2, 0.25),
        "mutants": (0.1, 0.2, 0.3),
        "elite_bias": (0.5, 0.6, 0.7, 0.8),
    }
)
"""The ranges that Gonçalves and Resende (2011, section 2) recommend; elites and mutants are shares."""

_FORMAT: Final = "regal-jax-tuned-brkga"
_MAKE: Final = "make them with 'regal-jax tune'"


@dataclasses.dataclass(frozen=True)
class TunedConfig:
    """The best settings of a grid.

    Attributes:
      config: The settings with the lowest ratio.
      ratio: Geometric mean over the training graphs of their fitness relative to the default settings'.
      evaluations: Evaluations of each search.
      objective: The objective of the searches.
      graphs: Number of training graphs.
      points: Number of settings that were tried.
    """

    config: BrkgaConfig
    ratio: float
    evaluations: int
    objective: str
    graphs: int
    points: int

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a JSON file.

        Raises:
          FormatError: The file cannot be written.
        """
        document = {"format": _FORMAT, "version": 1, **dataclasses.asdict(self)}
        with writing(path):
            write_atomically(path, (json.dumps(document, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads what `save` wrote.

        Raises:
          FormatError: The file is missing or is not such a file.
          ConfigError: A setting is invalid.
        """
        name = path_text(path)
        try:
            document = parse_json(read_limited(name))
        except OSError as error:
            reason = error.strerror or error
            raise FormatError(f"{path}: no tuned settings there ({reason}); {_MAKE}") from None
        except ValueError as error:
            raise FormatError(f"{path}: no tuned settings there ({error}); {_MAKE}") from None
        if (
            not isinstance(document, dict)
            or document.get("format") != _FORMAT
            or document.get("version") != 1
        ):
            raise FormatError(f"{path}: no tuned settings of version 1; {_MAKE}")
        fields: dict[str, Any] = {field.name: document.get(field.name) for field in dataclasses.fields(cls)}
        try:
            return cls(**{**fields, "config": BrkgaConfig(**dict(fields["config"]))})
        except ConfigError:
            raise
        except (TypeError, ValueError) as error:
            raise FormatError(f"{path}: damaged settings ({error}); {_MAKE}") from None


@interruptible()
def tune(
    graphs: Sequence[ComputationGraph],
    clusters: Cluster | Sequence[Cluster],
    *,
    objective: Objective | str = Objective.MAKESPAN,
    evaluations: int = 5000,
    grid: Mapping[str, Sequence[float]] = DEFAULT_GRID,
    seed: int | jax.Array = 0,
    results: str | os.PathLike[str] | None = None,
    progress: Callable[..., Any] | None = None,
    engine: str | Engine = "local",
    key: int | jax.Array | None = None,
) -> TunedConfig:
    """Tries every point of a grid on all graphs, without warm starts, and returns the best one.

    All points and the default settings are searched with the same seed. A point is rated by the mean of
    ``log(fitness / fitness of the defaults)``; docs/design.md, part 1, defines the fitness of a plan.
    Impossible points (more elites and mutants than individuals, or elites alone) are skipped. Ctrl-C
    abandons the current point.

    Args:
      graphs: The training set, at least one graph.
      clusters: One for all graphs, or one per graph.
      objective: Objective to minimise.
      evaluations: Budget of each search.
      grid: Values of `BrkgaConfig` fields; ``elites`` and ``mutants`` below 1 are shares of the population,
        at least one individual.
      seed: A number or a typed `jax.random.key`.
      results: JSONL file to which each finished point is added. Points in the file with the same graphs,
        clusters, objective, budget and seed are not computed again.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.
      engine: Where graphs are planned, as in `regal_jax.optimize_many`.
      key: The same as ``seed``.

    Raises:
      ConfigError: There are no graphs, the grid is empty, a setting is invalid, or another process writes the
        file of results.
      FormatError: The file of results is damaged.
      KeyboardInterrupt: Ctrl-C was pressed. The finished points are in the file of results.

    Warns:
      InfeasiblePlanWarning: With the best settings, plans of some graphs do not fit the memory.
    """
    check_kind("graphs", graphs, Iterable)
    graphs = list(graphs)
    clusters = each(clusters, len(graphs))
    check_pairs(graphs, clusters)
    check_kind("grid", grid, Mapping)
    check_whole("evaluations", evaluations, 1, MAX_EVALUATIONS)
    check_callback("progress", progress)
    points = _points(grid)
    if not graphs or not grid or not points:
        raise ConfigError("tune: needs at least one graph and one possible point of the grid")
    options = {"objective": Objective(objective), "evaluations": evaluations, "seed": one_seed(seed, key)}
    with opened(engine) as workers:
        if results is None:
            return _best(graphs, clusters, points, options, None, progress, workers)
        path = pathlib.Path(path_text(results))
        with locked_file(path):
            return _best(graphs, clusters, points, options, JsonLines(path, "tune again"), progress, workers)


def _best(
    graphs: list[ComputationGraph],
    clusters: Sequence[Cluster],
    points: list[BrkgaConfig],
    options: dict[str, Any],
    file: JsonLines | None,
    progress: Callable[..., Any] | None,
    engine: Engine | None,
) -> TunedConfig:
    """The best of the points; results that ``file`` holds are reused."""
    setup = _digest(graphs, clusters, options)
    known = {} if file is None else _known(file, setup, len(graphs))

    def logs(config: BrkgaConfig) -> list[float]:
        name = json.dumps(dataclasses.asdict(config), sort_keys=True)
        if name not in known:
            with interrupt_at_end(), warnings.catch_warnings():
                # A plan that does not fit counts with its fitness.
                warnings.simplefilter("ignore", InfeasiblePlanWarning)
                plans = optimize_many(
                    graphs,
                    clusters,
                    method=Brkga(**dataclasses.asdict(config)),
                    warm_start=False,
                    progress=False,
                    engine=engine or "local",
                    **options,
                )
            known[name] = [
                float(np.log(max(plan_fitness(plan, graph), 1e-12)))
                for plan, graph in zip(plans, graphs, strict=True)
            ]
            if file is not None:
                file.append({"setup": setup, "config": dataclasses.asdict(config), "logs": known[name]})
        return known[name]

    default = np.array(logs(BrkgaConfig()))
    means = [float(np.mean(np.array(logs(point)) - default)) for point in _shown(points, progress)]
    best = int(np.argmin(means))
    ratio = float(np.exp(means[best]))
    # The fitness of a plan that does not fit is more than 1.
    over = [graph.name for graph, log in zip(graphs, logs(points[best]), strict=True) if log > 0]
    if over:
        warnings.warn(
            f"tune: with the best settings, plans of {len(over)} of {counted(len(graphs), 'graph')} do not "
            f"fit the memory, such as that of {over[0]!r}; give more memory or evaluations",
            InfeasiblePlanWarning,
            stacklevel=outer_level(),
        )
    budget, objective = options["evaluations"], str(options["objective"])
    return TunedConfig(points[best], ratio, budget, objective, len(graphs), len(points))


def _shown(points: list[BrkgaConfig], progress: Callable[..., Any] | None) -> Any:
    return points if progress is None else progress(points, unit="point", desc="tune")


def _points(grid: Mapping[str, Sequence[float]]) -> list[BrkgaConfig]:
    names = [field.name for field in dataclasses.fields(BrkgaConfig)]
    for name, values in grid.items():
        if name not in names:
            raise ConfigError(f"tune: BrkgaConfig has no {name}; mend the grid")
        if isinstance(values, str) or not isinstance(values, Iterable):
            raise ConfigError(f"tune: {name} is {shown(values)}; give a list of values")
    points: dict[BrkgaConfig, None] = {}
    for values in itertools.product(*grid.values()):
        fields: dict[str, Any] = dict(zip(grid, values, strict=True))
        population = whole(fields.get("population", BrkgaConfig().population))
        if population is None:
            raise ConfigError(f"tune: population is {shown(fields['population'])}; give whole numbers")
        for name in ("elites", "mutants"):
            value = fields.get(name, getattr(BrkgaConfig(), name))
            fields[name] = _individuals(name, value, population)
        if fields["elites"] < population and fields["elites"] + fields["mutants"] <= population:
            points[BrkgaConfig(**{**fields, "population": population})] = None
    return list(points)


def _individuals(name: str, value: Any, population: int) -> int:
    """A number of individuals, which may be given as a share of the population."""
    share = real(value, above=0, below=1)
    number = whole(value, 0) if share is None else max(1, round(share * population))
    if number is None:
        raise ConfigError(f"tune: {name} is {shown(value)}; give whole numbers, or shares below 1")
    return number


def _digest(graphs: Sequence[ComputationGraph], clusters: Sequence[Cluster], options: dict[str, Any]) -> str:
    """Digest of all that determines the results of a point."""
    seed = options["seed"]
    number = whole(seed)
    words = np.asarray(jax.random.key_data(seed)).tolist() if number is None else number
    ran_on = [repr(dataclasses.astuple(cluster)) for cluster in clusters]
    parts = [[graph.content_hash for graph in graphs], ran_on]
    text = json.dumps([*parts, str(options["objective"]), options["evaluations"], words])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _known(file: JsonLines, setup: str, count: int) -> dict[str, list[float]]:
    """The points in the file, each with its logarithms for ``count`` graphs."""
    file.mend()
    found = {}
    for record in file.read():
        if record.get("setup") == setup:
            logs = record.get("logs")
            numbers = [real(x) for x in logs] if isinstance(logs, list) else []
            if len(numbers) != count or None in numbers or "config" not in record:
                raise FormatError(f"{file.path}: a point is damaged; delete its line and tune again")
            found[json.dumps(record["config"], sort_keys=True)] = numbers
    return found
