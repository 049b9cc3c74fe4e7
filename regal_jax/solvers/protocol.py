"""`Solver`: a way to plan a graph, as a value that holds its settings."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HostSearch
from regal_jax.plan import Objective, Plan
from regal_jax.search import AnnealingConfig, BrkgaConfig
from regal_jax.solve import Part
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
]


@dataclasses.dataclass(frozen=True, eq=False)
class Instance:
    """What a solver that runs on the host is given: one graph, and where it is to run.

    Attributes:
      graph: The graph.
      cluster: The cluster.
      objective: What to minimise; the memory capacities hold in any case.
      seed: Whole numbers, as `numpy.random.default_rng` takes them: of the call and of the graph's content.
      starts: Plans of the graph that are known, best first; none for a constructive solver.
      number: The seed of the call as one number, for what takes no other.
      seconds: That are left of the call's time limit; ``None`` for no limit.
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
      name: In the command, in tables and in ``plan.provenance["method"]``.
      searches: Does it spend evaluations, and begin from warm starts?
      objective: The only one that it is for; ``None`` if it is for all.
      most_devices: It is for clusters of no more; ``None`` if it is for all.
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
        """Its stages for a cluster of so many devices; none where there is nothing to search.

        Raises:
          ConfigError: It is not for the objective or so many devices, or a policy that it names cannot be
            read.
        """

    def suits(self, objective: Objective, num_devices: int) -> bool:
        """Is it for the objective, and for so many devices?"""
        few = self.most_devices is None or num_devices <= self.most_devices
        return few and self.objective in (None, objective)

    def require(self, objective: Objective, num_devices: int) -> None:
        """Nothing, if it `suits`.

        Raises:
          ConfigError: It does not.
        """
        if self.suits(objective, num_devices):
            return
        if self.objective not in (None, objective):
            raise ConfigError(f"method: {self.name} is for {self.objective}, not for {objective}; use auto")
        most = "1 device" if self.most_devices == 1 else f"at most {self.most_devices} devices"
        raise ConfigError(f"method: {self.name} is for {most}, not for {num_devices}; use auto")


class Constructive(Solver):
    """Makes one plan, by rules, or exactly.

    Attributes:
      together: Graphs that it would rather have at once; it then overrides `construct_all`.
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
        """The plan of each of at most `together` graphs. What else is there may change no plan."""
        return [self.construct(instance) for instance in instances]


class HostSolver(Solver):
    """Searches one graph at a time, on one core of the host.

    Attributes:
      least_devices: Fewer leave it nothing to choose.
    """

    least_devices: ClassVar[int] = 1

    @abc.abstractmethod
    def begin(self, instance: Instance) -> HostSearch:
        """A search of one graph that has not looked at anything yet."""

    def agenda(self, objective: Objective, num_devices: int) -> "Agenda":
        """One stage, if there is anything to choose."""
        self.require(objective, num_devices)
        return Agenda((HostStage(self),) if num_devices >= self.least_devices else ())


class DeviceSolver(Solver):
    """Searches a batch of graphs in one compiled program, wherever JAX runs."""

    @property
    @abc.abstractmethod
    def config(self) -> BrkgaConfig | AnnealingConfig:
        """Which search it is, and its settings."""

    @property
    def guide(self) -> Guide | None:
        """The policy that says where it draws its first population and mutants, if it takes one."""
        return None

    def agenda(self, objective: Objective, num_devices: int) -> "Agenda":
        """One stage."""
        del objective, num_devices
        return Agenda((DeviceStage((Part(1.0, self.config),), self.guide),))


@dataclasses.dataclass(frozen=True)
class HostStage:
    """A search on the host that takes turns with others.

    Attributes:
      solver: What begins it.
      contracts: Is the contracted graph searched as well, where it is much smaller (`regal_jax.contract`)?
      time: Share of a time limit that it may use where other stages may be needed, too.
    """

    solver: HostSolver
    contracts: bool = False
    time: float = 0.5

    @property
    def count(self) -> int:
        """Solvers in it."""
        return 1


@dataclasses.dataclass(frozen=True, eq=False)
class DeviceStage:
    """Searches in compiled programs, one after another within one turn.

    Attributes:
      parts: The searches and their shares of the turn.
      guide: The policy that guides all of them.
    """

    parts: tuple[Part, ...]
    guide: Guide | None = None

    @property
    def count(self) -> int:
        """Solvers in it."""
        return len(self.parts)


@dataclasses.dataclass(frozen=True, eq=False)
class Agenda:
    """The stages of a solver for one cluster, and how they share the budget.

    Attributes:
      stages: In their order.
      shares: Of what is left of the budget when a stage's only turn comes, the last one's is 1. ``None``: by
        what pays. The first stage goes on for as long as that pays. Then each of the others has a probe of a
        tenth of the budget; the first one that gains has the rest, and if none does, the first stage has it.
    """

    stages: tuple[HostStage | DeviceStage, ...] = ()
    shares: tuple[float, ...] | None = None

    @property
    def device_stages(self) -> tuple[DeviceStage, ...]:
        """Those in compiled programs."""
        return tuple(stage for stage in self.stages if isinstance(stage, DeviceStage))

    @property
    def count(self) -> int:
        """Solvers in all stages."""
        return sum(stage.count for stage in self.stages)
