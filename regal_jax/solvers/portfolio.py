"""Solvers that join others: `Portfolio`, and `Auto`, the one that is best on the development cases."""

import dataclasses
from importlib.util import find_spec
from typing import Any, ClassVar, Final

from regal_jax.checks import flag
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import ListSearchConfig, PeakSearchConfig
from regal_jax.plan import Objective, Plan
from regal_jax.runtime.compiling import usable
from regal_jax.search import AnnealingConfig, BrkgaConfig
from regal_jax.solve import Part
from regal_jax.solvers.guide import Guide, PolicyLike
from regal_jax.solvers.orders import OrderSearch
from regal_jax.solvers.protocol import (
    Agenda,
    DeviceSolver,
    DeviceStage,
    HostSolver,
    HostStage,
    Solver,
    agenda_of,
    checked_shares,
)
from regal_jax.solvers.searches import ListSearch, PeakSearch, settings_of

__all__ = ["Auto", "Portfolio"]

_BRKGA_SHARE: Final = 0.8
_ORDER_SEARCH: Final = OrderSearch(weights="default")
"""The search on the host for peak memory on one device."""
_LEAST_TO_PROVE: Final = 2000
"""Evaluations of the smallest budget with which a proof is tried."""
_EFFORT: Final = 3e-5
"""Deterministic time of CP-SAT for each evaluation; with 5000 a few tenths of a second at most."""
_MOST_EFFORT: Final = 3.0


@dataclasses.dataclass(frozen=True, init=False)
class Portfolio(Solver):
    """Several searches that share one budget, each from the best plans of those before it.

    Without `shares` the budget goes to the searches that improve the plan of the graph at hand, see `Agenda`.
    A search that does not support the objective or the number of devices, or has nothing to choose on one
    device, is left out.

    Args:
      *solvers: At least one `HostSolver` or `DeviceSolver`.
      shares: One number in (0, 1] per solver: its share of the budget that is left when its turn comes. The
        last solver that suits the problem gets all that is left.

    Raises:
      ConfigError: There is no solver, one cannot be a stage, or shares are invalid.

    Examples:
      >>> from regal_jax import Brkga, Cluster, ListSearch, Portfolio, optimize
      >>> from regal_jax.datasets import generate
      >>> solver = Portfolio(ListSearch(), Brkga(population=20, elites=4, mutants=3), shares=(0.5, 1))
      >>> plan = optimize(generate("layered", 20, seed=0), Cluster.uniform(2), method=solver, evaluations=200)
      >>> plan.feasible
      True
    """

    name: ClassVar[str] = "portfolio"
    solvers: tuple[HostSolver | DeviceSolver, ...]
    shares: tuple[float, ...] | None = None

    def __init__(self, *solvers: HostSolver | DeviceSolver, shares: Any = None) -> None:
        object.__setattr__(self, "solvers", solvers)
        if not solvers:
            raise ConfigError(
                "Portfolio: no solvers; give at least one, e.g. Portfolio(ListSearch(), Brkga())"
            )
        for solver in solvers:
            if not isinstance(solver, (HostSolver, DeviceSolver)):
                raise ConfigError(f"Portfolio: {solver!r} cannot be a stage; give searches, e.g. Brkga()")
        object.__setattr__(self, "shares", checked_shares("Portfolio", shares, len(solvers), "solver"))

    @property
    def config(self) -> Any:
        """Names, settings and shares of the solvers."""
        return _Stages(
            tuple({solver.name: dataclasses.asdict(solver.config)} for solver in self.solvers), self.shares
        )

    def agenda(self, objective: Objective, num_devices: int) -> Agenda:
        """A stage for each solver that has something to choose."""
        stages: list[HostStage | DeviceStage] = []
        shares: list[float] = []
        able = False
        for i, solver in enumerate(self.solvers):
            if not solver.suits(objective, num_devices):
                continue
            able = True
            inner = agenda_of(solver, objective, num_devices).stages
            stages += inner
            shares += [1.0 if self.shares is None else self.shares[i]] * len(inner)
        if not able:
            where = f"on {num_devices} device{'s' if num_devices > 1 else ''}"
            if all(solver.objective not in (None, objective) for solver in self.solvers):
                where = "on any number of devices"
            raise ConfigError(f"method: no solver of this portfolio is for {objective} {where}; use auto")
        return Agenda(tuple(stages), None if self.shares is None else tuple(shares))


@dataclasses.dataclass(frozen=True)
class _Stages:
    solvers: tuple[Any, ...]
    shares: tuple[float, ...] | None


@dataclasses.dataclass(frozen=True)
class _Searches:
    brkga: BrkgaConfig
    list_search: ListSearchConfig
    peak_search: PeakSearchConfig
    prove: bool


@dataclasses.dataclass(frozen=True)
class Auto(Solver):
    """The default: a search on the host, or BRKGA where there is none.

    For the makespan on several devices the search on the host is `ListSearch`, which also searches the
    contracted graph if that is much smaller. For peak memory it is `PeakSearch`. On one device it is
    `OrderSearch`. It has the whole budget, unless BRKGA is asked for by a policy or settings of its own; then
    BRKGA takes over when the search on the host no longer improves. Where there is no search on the host,
    since there are no compiled loops, BRKGA gets four fifths of the budget, and annealing from its best plan
    the rest.

    Attributes:
      brkga: Settings of BRKGA.
      policy: What guides BRKGA, as in `Brkga`. With ``None``, nothing does after a search on the host, else
        the shipped weights, if there are any.
      list_search: Settings of the search on the host for the makespan.
      peak_search: The same for peak memory on several devices.
      prove: Whether to ask CP-SAT for better plans of small graphs at the end, which finds one, or proves the
        plan optimal or that none fits the memory. This needs OR-Tools (extra ``exact``) and is left out
        without it.

    Raises:
      ConfigError: A field holds no settings of its search.
    """

    name: ClassVar[str] = "auto"
    brkga: BrkgaConfig = dataclasses.field(default_factory=BrkgaConfig)
    policy: PolicyLike = None
    list_search: ListSearchConfig = dataclasses.field(default_factory=ListSearchConfig)
    peak_search: PeakSearchConfig = dataclasses.field(default_factory=PeakSearchConfig)
    prove: bool = True

    def __post_init__(self) -> None:
        flag("Auto", "prove", self.prove)
        kinds = {"brkga": BrkgaConfig, "list_search": ListSearchConfig, "peak_search": PeakSearchConfig}
        for name, kind in kinds.items():
            given = getattr(self, name)
            if not isinstance(given, kind) or isinstance(given, Solver):
                raise ConfigError(f"Auto: {name} is {given!r}; give a {kind.__name__}")

    @property
    def config(self) -> Any:
        """The settings without the policy. ``parts`` of a plan's provenance has those of each turn."""
        return settings_of(self, _Searches)

    @property
    def guide(self) -> Guide | None:
        """The guide of `policy`."""
        return Guide.of(self.policy, optional=True)

    def finish(
        self, graph: ComputationGraph, cluster: Cluster, plan: Plan, evaluations: int, seconds: float
    ) -> Plan:
        """The plan, or a better one; proven optimal if CP-SAT can do that in a short time."""
        if not self.prove or evaluations < _LEAST_TO_PROVE or seconds <= 0 or find_spec("ortools") is None:
            return plan
        from regal_jax.heuristics.exact import is_provable, prove

        if plan.impossible or not is_provable(graph, cluster, plan.objective):
            return plan
        effort = min(evaluations * _EFFORT, _MOST_EFFORT)
        return prove(graph, cluster, plan, effort=effort, seconds=seconds)

    def agenda(self, objective: Objective, num_devices: int) -> Agenda:
        """One or two stages."""
        guide = self.guide
        # In Python the loops take twenty times as long.
        if not usable():
            parts = (Part(_BRKGA_SHARE, self.brkga), Part(1.0, AnnealingConfig()))
            return Agenda((DeviceStage(parts, guide),))
        if num_devices == 1:
            host = HostStage(_ORDER_SEARCH)
        elif objective is Objective.MAKESPAN:
            host = HostStage(settings_of(self.list_search, ListSearch), contracts=True)
        else:
            host = HostStage(settings_of(self.peak_search, PeakSearch))
        if self.policy is None:
            # After a search on the host, BRKGA gains nothing, nor do the shipped weights.
            guide = None
        if guide is None and self.brkga == BrkgaConfig():
            return Agenda((host,))
        return Agenda((host, DeviceStage((Part(1.0, self.brkga),), guide)))
