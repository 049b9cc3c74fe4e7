"""Sources of candidate schedules: their protocol, and the registry of their names."""

import dataclasses
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

import jax
import numpy as np

from regal_jax.checks import check_number, known_name, real, shown
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix
from regal_jax.graph.arrays import all_edges
from regal_jax.heuristics.list_scheduling import Rule, list_schedule
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.robust.genetic import BrkgaPopulation, BrkgaRuns, ScenarioRuns
from regal_jax.robust.scenarios import generator
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solvers.gflownet import gflownet_of
from regal_jax.storage.documents import parse_json

if TYPE_CHECKING:
    from regal_jax.gflownet import SchedulePolicy

__all__ = [
    "LEARNED",
    "LOADERS",
    "SOURCES",
    "ListSchedules",
    "Proposer",
    "RandomSchedules",
    "SampledSchedules",
    "Source",
    "automatic_source",
    "check_options",
    "make_source",
]

Proposed = tuple[np.ndarray, np.ndarray]
"""``(sequence [C, N], devices [C, N])``."""


@runtime_checkable
class Proposer(Protocol):
    """An object that proposes schedules: a source, a trained policy, or an object of the caller."""

    def propose(self, graph: ComputationGraph, cluster: Cluster, count: int, key: jax.Array) -> Proposed:
        """Schedules of ``graph`` on ``cluster``.

        Args:
          graph: The graph.
          cluster: The cluster of the proxy.
          count: Number of schedules requested; fewer are returned if there are no more.
          key: Typed, consumed.

        Returns:
          ``(sequence [C, N], devices [C, N])`` whole numbers: ops in the order in which they are scheduled, a
          topological order, and the device of each op.
        """
        ...


@dataclasses.dataclass(frozen=True)
class ListSchedules:
    """Critical-path list scheduling (Zhang et al. 2023, section 5): one schedule, then variants of it.

    Ops are scheduled in the order of their upward ranks, each on the device where it finishes first. The
    paper's source is the first schedule only (``count=1``). In the variants, which the paper does not have,
    each rank is multiplied by an independent factor ``exp(noise * N(0, 1))``.

    Attributes:
      noise: Standard deviation of the logarithm of a factor, from 0 to 10.

    Raises:
      ConfigError: The noise is out of range.
    """

    noise: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", check_number("ListSchedules: noise", self.noise, 0, 10))

    def propose(self, graph: ComputationGraph, cluster: Cluster, count: int, key: jax.Array) -> Proposed:
        """See `Proposer`."""
        rng, n = generator(key), graph.num_ops
        rank = upward_rank(graph, cluster)
        sequence, devices = np.zeros((count, n), np.int32), np.zeros((count, n), np.int32)
        for i in range(count):
            check_interrupt()
            factor = np.exp(self.noise * rng.standard_normal(n)) if i else 1.0
            placement, events = list_schedule(graph, cluster, Rule(), rank=rank * factor)
            sequence[i], devices[i] = events[events < n], placement
        return sequence, devices


@dataclasses.dataclass(frozen=True)
class RandomSchedules:
    """Every ready op is equally likely to be the next, and every allowed device to run it."""

    def propose(self, graph: ComputationGraph, cluster: Cluster, count: int, key: jax.Array) -> Proposed:
        """See `Proposer`."""
        rng, n = generator(key), graph.num_ops
        allowed = allowed_matrix(graph, cluster)
        draws = np.where(allowed, rng.random((count, n, cluster.num_devices)), -1.0)
        devices = draws.argmax(axis=2)[:, graph.colocation_leader]
        successors = _successor_matrix(graph)
        waiting = np.tile(successors.sum(axis=0), (count, 1))
        sequence, row = np.zeros((count, n), np.int64), np.arange(count)
        for i in range(n):
            check_interrupt()
            op = np.where(waiting == 0, rng.random((count, n)), -1.0).argmax(axis=1)
            sequence[:, i] = op
            waiting -= successors[op]
            waiting[row, op] = -1
        return sequence, devices


@dataclasses.dataclass(frozen=True)
class SampledSchedules:
    """Schedules that a trained network samples (`regal_jax.gflownet.sample_schedules`).

    Attributes:
      weights: ``"default"`` for the weights that ship, a file of weights, or a
        `regal_jax.gflownet.SchedulePolicy`.
      temperature: The lower, the higher the mean speed-up and the lower the diversity.

    Raises:
      ConfigError: There are no such weights, or the temperature is out of range.
      FormatError: The file holds no network.
    """

    weights: Any = "default"
    temperature: float = 0.005

    def __post_init__(self) -> None:
        check_number("SampledSchedules: temperature", self.temperature, 1e-6, 1e6)
        _ = gflownet_of(self.weights)

    @property
    def most_devices(self) -> int:
        """Largest number of devices of the network."""
        return gflownet_of(self.weights).config.devices

    @property
    def lookahead(self) -> bool:
        """Whether the network has features that the paper's does not have."""
        return gflownet_of(self.weights).config.lookahead

    def propose(self, graph: ComputationGraph, cluster: Cluster, count: int, key: jax.Array) -> Proposed:
        """See `Proposer`."""
        from regal_jax.gflownet import sample_schedules

        found = sample_schedules(
            gflownet_of(self.weights), graph, cluster, key, count=count, temperature=self.temperature
        )
        return found.sequence, found.devices


Loader = Callable[[str, float], Proposer]
"""``(file of weights, or "default" for those that ship; temperature)`` -> the policy."""


_PPO_TEMPERATURE: Final = 0.25
"""The paper's, and the default of `regal_jax.learning.gflownet.PpoConfig`."""


def _ppo(weights: str, temperature: float) -> Proposer:
    del temperature  # A PPO policy always uses the temperature of its training.
    source = SampledSchedules(_PPO if weights == "default" else weights)
    return dataclasses.replace(source, temperature=_trained_at(source.weights))


def _trained_at(weights: str) -> float:
    """The temperature with which PPO trained the weights, by the metadata of their file."""
    number = real(_training(weights, "ppo").get("temperature"), 1e-6, 1e6)
    return _PPO_TEMPERATURE if number is None else number


def _training(weights: str, table: str) -> Mapping[str, Any]:
    """A table of the settings with which weights were trained, by the metadata of their file."""
    from regal_jax.gflownet import read_gflownet_metadata
    from regal_jax.gflownet.shipped import SHIPPED

    if weights in SHIPPED:
        return {}
    try:
        found = parse_json(read_gflownet_metadata(weights)["training"])[table]
    except (OSError, FormatError, KeyError, TypeError):  # Weights of another origin, or none.
        return {}
    return found if isinstance(found, Mapping) else {}


_NETWORK: Final = "gflownet"
_PPO: Final = "ppo"
LOADERS: Final[dict[str, Loader]] = {_NETWORK: SampledSchedules, _PPO: _ppo}
"""Learned source -> function that reads its weights."""
LEARNED: Final[Mapping[str, str]] = MappingProxyType({_NETWORK: "GFlowNet", _PPO: "PPO"})
"""Name -> title of the sources that need weights."""


@dataclasses.dataclass(frozen=True)
class Source:
    """A row of `SOURCES`.

    Attributes:
      name: Name in the command, as ``source``, and in the provenance of plans.
      title: Title in tables.
      summary: Description in the help of the command, one line.
      make: Makes the source with its default settings; ``None`` for a source that needs weights.
    """

    name: str
    title: str
    summary: str
    make: Callable[..., Proposer] | None


SOURCES: Final[Mapping[str, Source]] = MappingProxyType(
    {
        source.name: source
        for source in (
            Source(
                "list-scheduling",
                "List scheduling",
                "critical-path list scheduling, then with perturbed ranks",
                ListSchedules,
            ),
            Source("brkga", "BRKGA", "final populations of genetic search", BrkgaPopulation),
            Source(
                "brkga-runs",
                "BRKGA, best of each run",
                "the best schedule of each of many genetic searches",
                BrkgaRuns,
            ),
            Source(
                "scenario-runs",
                "Scenarios, best of each run",
                "the same, each search with costs of its own around the cost model's",
                ScenarioRuns,
            ),
            Source("random", "Random", "random orders on random devices", RandomSchedules),
            Source(_NETWORK, LEARNED[_NETWORK], "samples of a trained GFlowNet", None),
            Source(_PPO, LEARNED[_PPO], "samples of a policy trained by PPO", None),
        )
    }
)
"""Every source by name."""


def automatic_source(weights: "str | Proposer | SchedulePolicy | None" = None) -> str:
    """The source of ``"auto"``.

    Args:
      weights: As in `make_source`.

    Returns:
      ``"scenario-runs"`` without weights; ``"ppo"`` for ``"ppo"`` and for a file that PPO trained, by its
      metadata; ``"gflownet"`` for all other weights.
    """
    if weights is None:
        return "scenario-runs"
    return (_learner(weights) if isinstance(weights, str) else None) or _NETWORK


def _learner(weights: str) -> str | None:
    """The source that weights are for, by their name or the metadata of their file, if these tell."""
    from regal_jax.gflownet.shipped import SHIPPED

    if weights in SHIPPED:
        return _PPO if weights == _PPO else _NETWORK
    loss = _training(weights, "optimizer").get("loss")
    if not isinstance(loss, str):
        return None
    return _PPO if loss == _PPO else _NETWORK


_NEEDS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"evaluations": ("brkga", "brkga-runs", "scenario-runs"), "temperature": (_NETWORK,)}
)
"""Option of `propose` -> the sources that have it."""


def check_options(source: "str | Proposer", **options: Any) -> dict[str, Any]:
    """The options that are given, those that are not ``None``.

    Args:
      source: As in `make_source`.
      **options: ``evaluations`` and ``temperature``, or ``None`` for the source's own.

    Raises:
      ConfigError: The source has no such option.
    """
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        sources = _NEEDS.get(name, SOURCES)
        if not isinstance(source, str):
            raise ConfigError(f"{name}: an object as source has its own; leave it out")
        if source in SOURCES and source not in sources:
            raise ConfigError(f"{name}: {source} takes none; leave it out, or use {', '.join(sources)}")
    return given


def make_source(
    source: "str | Proposer",
    *,
    weights: "str | Proposer | SchedulePolicy | None" = None,
    temperature: float | None = None,
    **options: Any,
) -> tuple[str, Proposer]:
    """A source's name and the source.

    Args:
      source: A key of `SOURCES`, or an object with the method of `Proposer`.
      weights: Weights of a learned source: a `regal_jax.gflownet.SchedulePolicy`, an object with the method
        of `Proposer`, a file, or ``"default"`` for the weights that ship.
      temperature: Temperature of ``"gflownet"``, by default 0.005. ``"ppo"`` uses that of its training, by
        the metadata of a file, and 0.25 if that is unknown. An object has its own.
      **options: Settings of the source, as its class takes them.

    Raises:
      ConfigError: The source is unknown, weights are missing or those of another source, or a setting is not
        allowed.
    """
    if temperature is not None:
        check_number("temperature", temperature, 1e-6, 1e6)
    if not isinstance(source, str):
        _check_proposer("source", source)
        if weights is not None:
            raise ConfigError("weights: an object as source takes none; leave them out")
        check_options(source, temperature=temperature, **options)
        return getattr(source, "name", type(source).__name__), source
    source = known_name(source, SOURCES)
    if source not in SOURCES:
        raise ConfigError(f"source: unknown {source!r}; use one of auto, {', '.join(SOURCES)}")
    options = check_options(source, temperature=temperature, **options)
    if source in LEARNED:
        return source, _learned(source, weights, temperature)
    if weights is not None:
        raise ConfigError(f"weights: {source} takes none; leave them out")
    make = SOURCES[source].make
    try:
        return source, make(**options)  # pyright: ignore[reportOptionalCall]
    except TypeError as error:
        reason = str(error).partition(") ")[2] or str(error)
        raise ConfigError(f"source {source}: {reason}") from None


def _check_proposer(argument: str, given: Any) -> None:
    """Refuses what is not an object with the method of `Proposer`."""
    if isinstance(given, type):
        raise ConfigError(f"{argument}: {given.__name__} is a class; give an object, {given.__name__}()")
    if not isinstance(given, Proposer):
        raise ConfigError(
            f"{argument}: {type(given).__name__} has no method propose(graph, cluster, count, key)"
        )


def _learned(
    source: str, weights: "str | Proposer | SchedulePolicy | None", temperature: float | None
) -> Proposer:
    chosen = 0.005 if temperature is None else temperature
    if weights is not None and not isinstance(weights, str):
        from regal_jax.gflownet import SchedulePolicy

        if isinstance(weights, SchedulePolicy):
            return SampledSchedules(weights, chosen if source == _NETWORK else _PPO_TEMPERATURE)
        _check_proposer("weights", weights)
        if temperature is not None:
            raise ConfigError("temperature: an object as weights has its own; leave it out")
        return weights
    if weights in (None, "", "default"):  # Each learned source has its own.
        return LOADERS[source]("default", chosen)
    learner = _learner(weights)
    if learner is not None and learner != source:
        raise ConfigError(
            f"weights: {shown(weights)} were trained by {LEARNED[learner]}; use the source {learner}"
        )
    return LOADERS[source](weights, chosen)


def _successor_matrix(graph: ComputationGraph) -> np.ndarray:
    """``[N, N]`` int32: 1 if there is an edge from row to column, else 0."""
    matrix = np.zeros((graph.num_ops, graph.num_ops), np.int32)
    matrix[all_edges(graph)] = 1
    return matrix
