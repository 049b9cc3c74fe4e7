"""`Solver`: a way to plan a graph, as a value that holds its settings."""

import abc
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from regal_jax.checks import check_kind, counted, flag, is_list, real, shown
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch
from regal_jax.plan import Objective, Plan
from regal_jax.policies import ahead
from regal_jax.runtime.ahead import Task
from regal_jax.search import AnnealingConfig, BrkgaConfig
from regal_jax.solve import CHROMOSOME, Encoding, Part, encoding_of
from regal_jax.solvers.guide import Guide

__all__ = [
    "Agenda",
    "Constructive",
    "DeviceSolver",
    "DeviceStage",
    "HostSolver",
    "HostStage",
    "Instance",
    "Solver",
    "agenda_of",
    "checked_shares",
]


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """The input of a solver that runs on the host: one graph, and its cluster.

    Attributes:
      graph: The graph.
      cluster: The cluster.
      objective: What to minimise; memory capacities count in any case.
      seed: Whole numbers for `numpy.random.default_rng`, from the seed of the call and the graph's content.
      starts: Known plans of the graph, best first; none for a constructive solver.
      number: The seed of the call as one number, for code that takes no other.
      seconds: What is left of the call's time limit; ``None`` for no limit.
    """

    graph: ComputationGraph
    cluster: Cluster
    objective: Objective
    seed: Sequence[int] = (0,)
    starts: Sequence[Plan] = ()
    number: int = 0
    seconds: float | None = None


class Solver(abc.ABC):
    """A way to plan graphs: an immutable value with its settings.

    Solvers are frozen dataclasses that derive from one of three classes: `HostSolver`, which searches one
    graph at a time on the host; `DeviceSolver`, which searches a batch of graphs in one compiled program;
    `Constructive`, which makes one plan and spends no evaluations. `Portfolio` joins some of them.

    Attributes:
      name: Name in the command, in tables and in ``plan.provenance["method"]``.
      searches: Whether it spends evaluations and uses warm starts.
      objective: The only objective that it supports; ``None`` for all.
      most_devices: Largest number of devices that it supports; ``None`` for any.
    """

    name: ClassVar[str]
    searches: ClassVar[bool] = True
    objective: ClassVar[Objective | None] = None
    most_devices: ClassVar[int | None] = None

    @property
    def config(self) -> Any:
        """A dataclass of plain values: the settings, as a plan's provenance has them."""
        return self

    @abc.abstractmethod
    def agenda(self, objective: Objective, num_devices: int) -> "Agenda":
        """The stages for a cluster with this number of devices; none if there is nothing to search.

        Raises:
          ConfigError: It does not support the objective or the number of devices, or a policy that it names
            cannot be read.
        """

    def finish(
        self, graph: ComputationGraph, cluster: Cluster, plan: Plan, evaluations: int, seconds: float
    ) -> Plan:
        """The plan of a graph whose budget is spent. A solver may replace the best one that its stages found.

        It is called in a thread, for several graphs at the same time.

        Args:
          graph: The graph.
          cluster: Its cluster.
          plan: The best plan, with its provenance.
          evaluations: The budget of the call.
          seconds: What is left of the time limit of the call; infinite without one.
        """
        del graph, cluster, evaluations, seconds
        return plan

    @property
    def finishes(self) -> bool:
        """Whether it has a `finish` of its own."""
        return type(self).finish is not Solver.finish

    def suits(self, objective: Objective, num_devices: int) -> bool:
        """Whether it supports the objective and the number of devices."""
        few = self.most_devices is None or num_devices <= self.most_devices
        return few and self.objective in (None, objective)

    def require(self, objective: Objective, num_devices: int) -> None:
        """Checks that it `suits`.

        Raises:
          ConfigError: It does not support the objective or the number of devices.
        """
        if self.suits(objective, num_devices):
            return
        if self.objective not in (None, objective):
            raise ConfigError(f"method: {self.name} is for {self.objective}, not for {objective}; use auto")
        most = "1 device" if self.most_devices == 1 else f"at most {self.most_devices} devices"
        raise ConfigError(f"method: {self.name} is for {most}, not for {num_devices}; use auto")


class Constructive(Solver):
    """A solver that makes one plan, by rules or exactly.

    Attributes:
      together: Number of graphs that it plans at once; if above 1, it overrides `construct_all`.
    """

    searches: ClassVar[bool] = False
    together: ClassVar[int] = 1

    def agenda(self, objective: Objective, num_devices: int) -> "Agenda":
        """No stages: there is nothing to search."""
        self.require(objective, num_devices)
        return Agenda()

    @abc.abstractmethod
    def construct(self, instance: Instance) -> Plan:
        """The plan of one graph."""

    def construct_all(self, instances: Sequence[Instance]) -> Sequence[Plan]:
        """The plan of each of at most `together` graphs. No plan may depend on the other graphs."""
        return [self.construct(instance) for instance in instances]


class HostSolver(Solver):
    """A solver that searches one graph at a time, on one core of the host.

    Attributes:
      least_devices: Smallest number of devices with which there is something to choose.
    """

    least_devices: ClassVar[int] = 1

    @abc.abstractmethod
    def begin(self, instance: Instance) -> HostSearch:
        """A search of one graph that has evaluated nothing yet."""

    def ahead(self) -> Sequence[Task]:
        """What another process may compile before the search begins."""
        return ()

    def agenda(self, objective: Objective, num_devices: int) -> "Agenda":
        """One stage, if there is anything to choose."""
        self.require(objective, num_devices)
        return Agenda((HostStage(self),) if num_devices >= self.least_devices else ())


class DeviceSolver(Solver):
    """A solver that searches a batch of graphs in one compiled program, on any backend of JAX.

    Attributes:
      encoding: Name of what its genes mean (`regal_jax.solve.ENCODINGS`): ``"chromosome"``, as in the papers,
        or ``"schedule"``.
    """

    encoding: str = "chromosome"

    @property
    @abc.abstractmethod
    def config(self) -> BrkgaConfig | AnnealingConfig:
        """The settings; their class selects the search."""

    @property
    def guide(self) -> Guide | None:
        """The policy that first populations and mutants are drawn from, if it takes one."""
        return None

    def agenda(self, objective: Objective, num_devices: int) -> "Agenda":
        """One stage.

        Raises:
          ConfigError: It does not support the objective or the number of devices, or its encoding is unknown.
        """
        self.require(objective, num_devices)
        encoding = encoding_of(self.encoding)
        return Agenda((DeviceStage((Part(1.0, self.config),), self.guide, encoding),))


@dataclasses.dataclass(frozen=True)
class HostStage:
    """A search on the host that takes turns with others.

    Attributes:
      solver: The solver whose search it runs.
      contracts: Whether the contracted graph (`regal_jax.contract`) is searched as well if it is much
        smaller.

    Raises:
      ConfigError: The solver is no `HostSolver`, or ``contracts`` is neither true nor false.
    """

    solver: HostSolver
    contracts: bool = False

    def __post_init__(self) -> None:
        check_kind("HostStage: solver", self.solver, HostSolver)
        flag("HostStage", "contracts", self.contracts)

    @property
    def count(self) -> int:
        """Number of solvers."""
        return 1


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceStage:
    """Searches in compiled programs, which share one turn.

    Attributes:
      parts: The searches and their shares of the turn.
      guide: The policy that guides all of them.
      encoding: What their genes mean.
    """

    parts: tuple[Part, ...]
    guide: Guide | None = None
    encoding: Encoding = CHROMOSOME

    @property
    def count(self) -> int:
        """Solvers in it."""
        return len(self.parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Agenda:
    """The stages of a solver for one cluster, and how they share the budget.

    Attributes:
      stages: The stages, in the order in which they run.
      shares: Each stage has one turn and gets its share of the budget that is left then. The last stage gets
        all that is left, whatever its share. With ``None``, the first stage runs for as long as it improves
        the plan. Then each of the others gets a tenth of the budget as a probe. The first stage that improves
        the plan gets the rest; if none does, the rest goes to the first stage.

    Raises:
      ConfigError: A stage is neither a `HostStage` nor a `DeviceStage`, or shares are not one number in
        (0, 1] for each stage.
    """

    stages: tuple[HostStage | DeviceStage, ...] = ()
    shares: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        stages = tuple(self.stages) if is_list(self.stages) else (self.stages,)
        for stage in stages:
            if not isinstance(stage, (HostStage, DeviceStage)):
                raise ConfigError(
                    f"Agenda: {shown(stage)} is no stage; give a tuple of them, as HostStage(ListSearch())"
                )
        object.__setattr__(self, "stages", stages)
        object.__setattr__(self, "shares", checked_shares("Agenda", self.shares, len(stages), "stage"))

    def ahead(self, objective: Objective) -> list[Task]:
        """What another process may compile while heuristics run and the first stage begins on the host."""
        first = self.stages[0] if self.stages else None
        if not isinstance(first, HostStage):
            return []
        tasks = list(first.solver.ahead())
        if self.device_stages:
            guided = any(stage.guide is not None for stage in self.device_stages)
            tasks += ahead.tasks(peaks=objective is Objective.PEAK_MEMORY, guided=guided)
        return tasks

    @property
    def device_stages(self) -> tuple[DeviceStage, ...]:
        """The stages in compiled programs."""
        return tuple(stage for stage in self.stages if isinstance(stage, DeviceStage))

    @property
    def count(self) -> int:
        """Number of solvers in all stages."""
        return sum(stage.count for stage in self.stages)


def agenda_of(solver: Solver, objective: Objective, num_devices: int) -> Agenda:
    """The stages of a solver, which may be a user's own.

    Raises:
      ConfigError: As `Solver.agenda`, or it returned something else.
    """
    agenda = solver.agenda(objective, num_devices)
    if not isinstance(agenda, Agenda):
        raise ConfigError(f"{solver.name}: agenda returned a {type(agenda).__name__}; return an Agenda")
    return agenda


def checked_shares(owner: str, shares: Any, count: int, what: str) -> tuple[float, ...] | None:
    """Shares of a budget as floats; ``None`` for ``None``.

    Args:
      owner: What has them, for messages.
      shares: They may be invalid.
      count: How many there must be.
      what: The word for what gets one.

    Raises:
      ConfigError: They are no list, not as many as ``count``, or one is no number above 0 and at most 1.
    """
    if shares is None:
        return None
    check_kind(f"{owner}: shares", shares, Iterable)
    shares = tuple(shares)
    if len(shares) != count:
        raise ConfigError(f"{owner}: {len(shares)} shares for {counted(count, what)}; give one each")
    found = [real(share, above=0, most=1) for share in shares]
    for share, number in zip(shares, found, strict=True):
        if number is None:
            raise ConfigError(f"{owner}: a share is {shown(share)}; give numbers above 0 and at most 1")
    return tuple(number for number in found if number is not None)
