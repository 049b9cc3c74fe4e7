"""Solvers that make one plan: heuristics, and CP-SAT under a time limit."""

import dataclasses
from typing import ClassVar

from regal_jax.checks import check_field, check_kind, known_name, real, shown
from regal_jax.errors import ConfigError
from regal_jax.heuristics import HEURISTICS
from regal_jax.heuristics.time_left import until
from regal_jax.plan import Plan
from regal_jax.runtime.deadline import Deadline
from regal_jax.solvers.protocol import Constructive, Instance

__all__ = ["CpSat", "Heuristic"]


@dataclasses.dataclass(frozen=True)
class Heuristic(Constructive):
    """A heuristic by its name.

    Attributes:
      heuristic: A key of `regal_jax.heuristics.HEURISTICS`.

    Raises:
      ConfigError: There is no such heuristic.
    """

    # It is the name of the method, not a setting of it.
    heuristic: str = dataclasses.field(default="critical-path", metadata={"setting": False})

    def __post_init__(self) -> None:
        check_kind("Heuristic: heuristic", self.heuristic, str)
        object.__setattr__(self, "heuristic", known_name(self.heuristic, HEURISTICS))
        if self.heuristic not in HEURISTICS:
            names = ", ".join(HEURISTICS)
            raise ConfigError(f"Heuristic: unknown heuristic {self.heuristic!r}; use one of {names}")

    @property
    def name(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The name of the heuristic."""
        return self.heuristic

    def construct(self, instance: Instance) -> Plan:
        """The plan of the heuristic; after the time limit it makes no more drafts."""
        make, limit = HEURISTICS[self.heuristic], Deadline(instance.seconds)
        with until(lambda: limit.over):
            return make(instance.graph, instance.cluster, instance.objective, seed=instance.number)


@dataclasses.dataclass(frozen=True)
class CpSat(Constructive):
    """Constraint programming (extra ``exact``), exact if time suffices; for graphs of up to about 50 ops.

    Attributes:
      time_limit: Seconds for each graph. The plan depends on the machine unless the optimum is proven.
      workers: Threads of the solver. With more than one, the plan may be another each time; with
        ``workers=1`` it is always the same for the same seed, unless the time limit ends the solver.

    Raises:
      ConfigError: A value is out of range.
    """

    name: ClassVar[str] = "cp-sat"
    time_limit: float = 60.0
    workers: int = 2

    def __post_init__(self) -> None:
        seconds = real(self.time_limit, above=0, infinite=True)
        if seconds is None:
            raise ConfigError(f"CpSat: time_limit is {shown(self.time_limit)}; give a number above zero")
        object.__setattr__(self, "time_limit", seconds)
        check_field(self, "workers", 1)

    def construct(self, instance: Instance) -> Plan:
        """The best plan that was found.

        Raises:
          MissingExtraError: OR-Tools is not installed.
          ConfigError: The model does not cover the problem.
        """
        from regal_jax.heuristics.exact import cp_sat

        return cp_sat(
            instance.graph,
            instance.cluster,
            instance.objective,
            time_limit=self.time_limit,
            seconds=instance.seconds,
            workers=self.workers,
            # CP-SAT takes seeds of 31 bits.
            seed=instance.number % 2**31,
        )
