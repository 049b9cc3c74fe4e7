"""The searches: genetic, by walks, and among list schedules or placements on the host."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar, Final, TypeVar

from regal_jax.heuristics import HostSearch, ListSearchConfig, ListSearchRace, PeakSearchConfig, ahead
from regal_jax.plan import Objective
from regal_jax.runtime.ahead import Task
from regal_jax.search import AnnealingConfig, BrkgaConfig
from regal_jax.solve import encoding_of
from regal_jax.solvers.guide import Guide, PolicyLike
from regal_jax.solvers.protocol import DeviceSolver, HostSolver, Instance

__all__ = [
    "STARTS",
    "Annealing",
    "Brkga",
    "ListSearch",
    "LocalSearch",
    "PeakSearch",
    "RandomSearch",
    "settings_of",
]

STARTS: Final = 4
"""Number of plans that a search on the host begins with."""
_Config = TypeVar("_Config")


def settings_of(solver: object, kind: type[_Config]) -> _Config:
    """The settings of type ``kind``, from the fields of ``solver`` with the same names."""
    fields: Any = dataclasses.fields(kind)  # pyright: ignore[reportArgumentType]
    return kind(**{field.name: getattr(solver, field.name) for field in fields})


@dataclasses.dataclass(frozen=True)
class Brkga(BrkgaConfig, DeviceSolver):
    """BRKGA (docs/design.md, part 2), uniform or guided by a policy.

    Attributes:
      policy: The policy that the first population and mutants are drawn from: ``"regal-faithful"`` or
        ``"regal-primed"`` (also ``"default"``) for weights of the package, a file of weights or a `Policy`;
        on one device also ``"topoformer"``, which draws around the order of a network. ``None`` or
        ``"none"`` draws uniformly.
      encoding: What its genes mean: ``"chromosome"``, as in the papers, or ``"schedule"``, ranks and prices
        from which schedules are generated.

    All other settings are those of `BrkgaConfig`.

    Raises:
      ConfigError: A value is out of range.

    Examples:
      >>> from regal_jax import Brkga, Cluster, optimize
      >>> from regal_jax.datasets import generate
      >>> solver = Brkga(population=20, elites=4, mutants=3)
      >>> plan = optimize(generate("chain", 4, seed=0), Cluster.uniform(2), method=solver, evaluations=100)
      >>> plan.feasible
      True

    References:
      Gonçalves and Resende 2011, J. Heuristics 17; Paliwal et al. 2020, ICLR, section 3.
    """

    name: ClassVar[str] = "brkga"
    policy: PolicyLike = None
    encoding: str = "chromosome"

    def __post_init__(self) -> None:
        super().__post_init__()
        encoding_of(self.encoding)

    @property
    def config(self) -> BrkgaConfig:
        """The settings without the policy."""
        return settings_of(self, BrkgaConfig)

    @property
    def guide(self) -> Guide | None:
        """The guide of `policy`."""
        return Guide.of(self.policy)


@dataclasses.dataclass(frozen=True)
class RandomSearch(DeviceSolver):
    """Independent uniform draws.

    Attributes:
      population: Number of draws that are simulated at once.
      encoding: As in `Brkga`.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "random-search"
    population: int = 100
    encoding: str = "chromosome"

    def __post_init__(self) -> None:
        _ = self.config, encoding_of(self.encoding)

    @property
    def config(self) -> BrkgaConfig:
        """BRKGA without elites and children."""
        return BrkgaConfig(population=self.population, elites=0, mutants=self.population)


@dataclasses.dataclass(frozen=True)
class Annealing(AnnealingConfig, DeviceSolver):
    """Simulated annealing over random keys; the other settings are those of `AnnealingConfig`.

    Attributes:
      encoding: As in `Brkga`.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "annealing"
    encoding: str = "chromosome"

    def __post_init__(self) -> None:
        super().__post_init__()
        encoding_of(self.encoding)

    @property
    def config(self) -> AnnealingConfig:
        """The settings."""
        return settings_of(self, AnnealingConfig)


@dataclasses.dataclass(frozen=True)
class LocalSearch(DeviceSolver):
    """Random walks that accept every neighbour that is no worse.

    Attributes:
      chains: Number of walks per graph.
      restart_after: As in `AnnealingConfig`.
      encoding: As in `Brkga`.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "local-search"
    chains: int = 1
    restart_after: int | None = None
    encoding: str = "chromosome"

    def __post_init__(self) -> None:
        _ = self.config, encoding_of(self.encoding)

    @property
    def config(self) -> AnnealingConfig:
        """Annealing at temperature 0."""
        return AnnealingConfig.local_search(chains=self.chains, restart_after=self.restart_after)


@dataclasses.dataclass(frozen=True)
class ListSearch(ListSearchConfig, HostSolver):
    """Search among list schedules, for the makespan; the settings are those of `ListSearchConfig`.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "list-search"
    objective: ClassVar[Objective | None] = Objective.MAKESPAN
    least_devices: ClassVar[int] = 2

    @property
    def config(self) -> ListSearchConfig:
        """The settings."""
        return settings_of(self, ListSearchConfig)

    def begin(self, instance: Instance) -> HostSearch:
        """A `ListSearchRace`."""
        starts = instance.starts[:STARTS]
        return ListSearchRace(instance.graph, instance.cluster, instance.seed, self.config, starts)

    def ahead(self) -> Sequence[Task]:
        """Its loops take longest to compile."""
        return ahead.list_search_tasks()


@dataclasses.dataclass(frozen=True)
class PeakSearch(PeakSearchConfig, HostSolver):
    """Search among placements and orders, for peak memory; the settings are those of `PeakSearchConfig`.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "peak-search"
    objective: ClassVar[Objective | None] = Objective.PEAK_MEMORY
    least_devices: ClassVar[int] = 2

    @property
    def config(self) -> PeakSearchConfig:
        """The settings."""
        return settings_of(self, PeakSearchConfig)

    def begin(self, instance: Instance) -> HostSearch:
        """A `PeakSearchRun`."""
        from regal_jax.heuristics import PeakSearchRun

        starts = instance.starts[:STARTS]
        return PeakSearchRun(instance.graph, instance.cluster, instance.seed, self.config, starts)

    def ahead(self) -> Sequence[Task]:
        """List scheduling, which heuristics need, and its own loops."""
        return ahead.peak_search_tasks()
