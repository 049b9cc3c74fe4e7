"""Stopping rule of searches, shared by the host and by compiled programs."""

import dataclasses
import enum
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import check_field, real, shown
from regal_jax.errors import ConfigError
from regal_jax.search.config import MAX_EVALUATIONS

__all__ = ["Limits", "Status", "Stopping", "status_of"]


class Status(enum.IntEnum):
    """Why the search of an instance ended."""

    RUNNING = 0
    BUDGET = 1
    """The evaluations are spent."""
    TARGET = 2
    """The incumbent has reached the target."""
    STALL = 3
    """Too many evaluations without improvement."""
    TIME = 4
    INTERRUPTED = 5
    """Ctrl-C ended the search."""
    OPTIMAL = 6
    """The caller knows that the incumbent is optimal; the loop itself never sets this."""

    @property
    def final(self) -> bool:
        """Whether a search with this status cannot continue, whatever is left of its budget."""
        return self in (Status.TARGET, Status.STALL)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Limits:
    """Conditions under which an instance finishes, apart from the budget.

    Attributes:
      target: ``[B]`` float32, fitness at or below which an instance finishes; ``-inf`` for never.
      stall: ``[B]`` int32, evaluations without improvement after which an instance finishes.
    """

    target: jax.Array
    stall: jax.Array

    @classmethod
    def none(cls, batch: int) -> Self:
        """No limits for ``batch`` instances."""
        largest = jnp.iinfo(jnp.int32).max
        return cls(jnp.full(batch, -jnp.inf, jnp.float32), jnp.full(batch, largest, jnp.int32))


def status_of(
    best: Any, evaluations: Any, improved_at: Any, target: Any, stall: Any, *, xp: ModuleType = np
) -> Any:
    """Status of a search: int32 value of ``Status.RUNNING``, ``TARGET`` or ``STALL``.

    Args:
      best: Value of the incumbent; smaller is better. All arguments are numbers or arrays.
      evaluations: Evaluations so far.
      improved_at: Evaluations when the incumbent was found.
      target: Value at or below which the search ends.
      stall: Evaluations without improvement after which the search ends.
      xp: `numpy` or `jax.numpy`.
    """
    stalled = evaluations - improved_at >= stall
    status = xp.where(stalled, xp.int32(Status.STALL), xp.int32(Status.RUNNING))
    return xp.where(best <= target, xp.int32(Status.TARGET), status)


@dataclasses.dataclass(frozen=True)
class Stopping:
    """Conditions of which the first ends a search.

    Attributes:
      evaluations: Fitness calls for each instance, the first population included; never exceeded.
      stall: Most evaluations without improvement; ``None`` for no such limit.
      target: Fitness at or below which an instance ends, one for all instances or ``[B]``; ``None`` for none.
      seconds: Wall-clock limit for the whole call, checked between chunks; ``None`` for none.

    Raises:
      ConfigError: A value is invalid.
    """

    evaluations: int
    stall: int | None = None
    target: float | Sequence[float] | np.ndarray | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        check_field(self, "evaluations", 1, MAX_EVALUATIONS)
        if self.stall is not None:
            check_field(self, "stall", 1, MAX_EVALUATIONS)
        if self.seconds is not None and real(self.seconds, above=0, infinite=True) is None:
            raise ConfigError(
                f"Stopping: seconds is {shown(self.seconds)}; give a number above zero, or None"
            )
        if self.target is not None:
            try:
                target = np.asarray(self.target, np.float32)
            except (TypeError, ValueError):
                target = np.asarray(np.nan)
            if target.ndim > 1 or np.isnan(target).any():
                raise ConfigError(
                    f"Stopping: target is {self.target!r}; give a number, or one per instance, or None"
                )

    def limits(self, batch: int) -> Limits:
        """Limits for ``batch`` instances."""
        target = np.asarray(-np.inf if self.target is None else self.target, np.float32)
        if target.ndim and target.shape != (batch,):
            raise ConfigError(f"Stopping: {target.shape[0]} targets for {batch} instances; give one each")
        stall = MAX_EVALUATIONS if self.stall is None else self.stall
        return Limits(*jax.device_put((np.full(batch, target), np.full(batch, stall, np.int32))))
