"""How things are timed: in turns, after a warm-up, each until its result is there."""

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
    """What was asked for cannot run here; the message says why."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One run.

    Attributes:
      seconds: What it took.
      evaluations: Fitness calls in it, if it makes any.
      best: The objective it found, the mean over graphs, if it searches for one.
    """

    seconds: float
    evaluations: int | None = None
    best: float | None = None


@dataclasses.dataclass(frozen=True)
class Contender:
    """One of the things that are run in turns.

    Attributes:
      label: Distinct among them.
      run: Does all the work and returns when it is done.
      warm: Is there anything to warm up: compilation, caches?
      short: A run of the same programs for a profile, a few generations long.
    """

    label: str
    run: Callable[[], Outcome]
    warm: bool = True
    short: Callable[[], object] | None = None


@dataclasses.dataclass(frozen=True)
class Series:
    """The repeats of one measurement; less is better.

    Attributes:
      values: One a repeat, raw.
      unit: ``s``, ``bytes`` or ``share``.
      evaluations: Fitness calls in each repeat, if it makes any.
      first: Seconds of the first run, compilation included, if there was a warm-up.
      best: The objective that was found, if any.
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
        """Of the repeats."""
        return statistics.median(self.values)

    @property
    def least(self) -> float:
        """Of the repeats."""
        return min(self.values)

    def rates(self) -> dict[str, float]:
        """What follows from the values: evaluations per second and microseconds an evaluation."""
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
    """Runs contenders in turns, so that whatever else the machine does meets all of them alike.

    Args:
      contenders: Their labels are the keys of the result.
      repeats: Rounds, at least one.
      patience: Seconds after which rounds end early, three at the earliest.
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


def looped(label: str, call: Callable[[], Any], evaluations: int | None = None) -> Contender:
    """A call that may be too short for the clock: a run is as many as take some 20 ms.

    Args:
      label: Of the contender.
      call: Returns arrays, which are waited for after every call.
      evaluations: Fitness calls that one call stands for.

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

    return Contender(label, run, short=call)
