"""Timing of calls in turns, after a warm-up, until the result is available."""

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax

from regal_jax.errors import ConfigError

__all__ = ["Contender", "Outcome", "Series", "Skipped", "interleaved", "looped"]

_PATIENCE: Final = 15.0
_LEAST_REPEATS: Final = 3
_LEAST_SECONDS: Final = 0.02


class Skipped(Exception):
    """A measurement cannot run here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Outcome of one run.

    Attributes:
      seconds: Duration in seconds.
      evaluations: Number of fitness calls, if any.
      best: Objective that was found, as a mean over graphs, if it searches.
    """

    seconds: float
    evaluations: int | None = None
    best: float | None = None


@dataclasses.dataclass(frozen=True)
class Contender:
    """One of several calls that are timed in turns.

    Attributes:
      label: Unique label.
      run: Function that does all the work and returns when it is done.
      warm: Whether there is anything to warm up, such as compilation and caches.
      short: Short run of the same programs for a profile, with a few generations.
      moved: Bytes of the arguments and results of one call, which any implementation has to move.
      close: Ends what the contender has started, such as a process.
    """

    label: str
    run: Callable[[], Outcome]
    warm: bool = True
    short: Callable[[], object] | None = None
    moved: int | None = None
    close: Callable[[], None] = lambda: None


@dataclasses.dataclass(frozen=True)
class Series:
    """The repeats of one measurement; less is better.

    Attributes:
      values: One raw value per repeat.
      unit: ``s``, ``bytes`` or ``share``.
      evaluations: Number of fitness calls in each repeat, if any.
      first: Seconds of the first run, including compilation, if there was a warm-up.
      best: Objective that was found, if any.
    """

    values: tuple[float, ...]
    unit: str = "s"
    evaluations: int | None = None
    first: float | None = None
    best: float | None = None

    def __post_init__(self) -> None:
        if not self.values or not all(math.isfinite(v) and v >= 0 for v in self.values):
            raise ConfigError(f"series: values must be numbers of zero or more, got {self.values!r}")

    @property
    def median(self) -> float:
        """Median of the repeats."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """Smallest value of the repeats."""
        return min(self.values)

    def rates(self) -> dict[str, float]:
        """Rates from the values: evaluations per second and microseconds per evaluation."""
        if not self.evaluations or self.unit != "s" or not self.least:
            return {}
        return {
            "evaluations_per_second": self.evaluations / self.median,
            "evaluations_per_second_best": self.evaluations / self.least,
            "microseconds_per_evaluation": 1e6 * self.median / self.evaluations,
        }


def interleaved(
    contenders: Sequence[Contender], repeats: int, patience: float = _PATIENCE
) -> dict[str, Series]:
    """Runs contenders in turns, so that other load of the machine affects all of them equally.

    Args:
      contenders: Contenders, whose labels are the keys of the result.
      repeats: Number of rounds, at least one.
      patience: Seconds after which no more rounds start, but at least three rounds are run.
    """
    first = {c.label: c.run().seconds for c in contenders if c.warm}
    outcomes: dict[str, list[Outcome]] = {c.label: [] for c in contenders}
    began = time.perf_counter()
    for done in range(1, repeats + 1):
        for contender in contenders:
            outcomes[contender.label].append(contender.run())
        if done >= _LEAST_REPEATS and time.perf_counter() - began > patience:
            break
    return {
        label: Series(
            tuple(o.seconds for o in each),
            evaluations=each[-1].evaluations,
            first=first.get(label),
            best=each[-1].best,
        )
        for label, each in outcomes.items()
    }


def looped(
    label: str, call: Callable[[], Any], evaluations: int | None = None, moved: int | None = None
) -> Contender:
    """A contender for a call that may be too short for the clock; a run repeats it for some 20 ms.

    Args:
      label: Label of the contender.
      call: Function that returns arrays; every call waits for them.
      evaluations: Number of fitness calls in one call.
      moved: As in `Contender`.

    Returns:
      A contender whose seconds are those of one call.
    """
    count = 0

    def seconds(times: int) -> float:
        began = time.perf_counter()
        for _ in range(times):
            jax.block_until_ready(call())
        return (time.perf_counter() - began) / times

    def run() -> Outcome:
        nonlocal count
        if count:
            return Outcome(seconds(count), evaluations)
        first = seconds(1)
        count = max(1, math.ceil(_LEAST_SECONDS / seconds(1)))
        return Outcome(first, evaluations)

    return Contender(label, run, short=call, moved=moved)
