"""Several searches that share one budget, each starting from the best candidates of those before it."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.problem import Problem
from regal_jax.programs import program
from regal_jax.search import AnnealingConfig, BrkgaConfig, Progress, SearchResult, Status, Stopping, WarmStart
from regal_jax.solve.solve import solve

__all__ = ["Part", "solve_in_parts"]


@dataclasses.dataclass(frozen=True)
class Part:
    """One of several searches.

    Attributes:
      share: Share of the budget that is left when its turn comes, in (0, 1]; the last part gets all of it.
      config: Settings; their class selects the search.

    Raises:
      ConfigError: The share is out of range.
    """

    share: float
    config: BrkgaConfig | AnnealingConfig

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"Part: share is {self.share!r}; give a number above 0 and at most 1")


def solve_in_parts(
    problem: Problem,
    keys: jax.Array,
    stopping: Stopping,
    parts: Sequence[Part],
    *,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], Any] | None = None,
    **options: Any,
) -> SearchResult:
    """As `solve`, by several searches that share the budget.

    Each search begins from the incumbents of the one before and evaluates them again, so results never get
    worse. An instance that has met its target or has stalled is not searched further.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      stopping: Limits for all parts together; ``stall`` holds for each part.
      parts: At least one. A part whose share is less than one evaluation is left out.
      warm: Individuals that the first part begins with.
      callback: As in `solve`; evaluations, generations and seconds are those of all parts so far.
      **options: As in `solve`, for all parts.

    Raises:
      ConfigError: There is no part, or a setting is invalid.
      KeyboardInterrupt: Before there was an incumbent.
    """
    if not parts:
        raise ConfigError("parts: got none; give at least one Part")
    done: SearchResult | None = None
    for number, part in enumerate(parts[:-1]):
        spent = 0 if done is None else int(done.evaluations.max())
        budget = int((stopping.evaluations - spent) * part.share)
        if budget:
            one = _Turn(number, part, budget, len(parts) - 1 - number)
            done = _take(one, problem, keys, stopping, done, warm, callback, options)
    spent = 0 if done is None else int(done.evaluations.max())
    if done is not None and spent == stopping.evaluations:
        return done
    last = _Turn(len(parts) - 1, parts[-1], stopping.evaluations - spent, 0)
    return _take(last, problem, keys, stopping, done, warm, callback, options)


@dataclasses.dataclass(frozen=True)
class _Turn:
    number: int
    part: Part
    budget: int
    later: int


def _take(
    turn: _Turn,
    problem: Problem,
    keys: jax.Array,
    stopping: Stopping,
    done: SearchResult | None,
    warm: WarmStart | None,
    callback: Callable[[Progress], Any] | None,
    options: dict[str, Any],
) -> SearchResult:
    """Runs one part after those that are done, unless all instances have ended."""
    seconds = stopping.seconds
    if done is not None:
        if not any(status is Status.BUDGET for status in done.status):
            return done
        if seconds is not None:
            seconds -= done.seconds
            if seconds <= 0:
                return _ended(done, Status.TIME)
    try:
        result = solve(
            problem,
            keys if done is None else _other(keys, np.uint32(turn.number)),
            dataclasses.replace(stopping, evaluations=turn.budget, seconds=seconds),
            config=turn.part.config,
            warm=warm if done is None else _best_of(done),
            callback=None if callback is None else _told(callback, done, turn.later),
            **options,
        )
    except KeyboardInterrupt:
        if done is None:
            raise
        return _ended(done, Status.INTERRUPTED)
    return result if done is None else _join(done, result)


@program()
def _other(keys: jax.Array, number: jax.Array | np.uint32) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (0, None))(keys, number)


def _best_of(result: SearchResult) -> WarmStart:
    genes = jax.tree.map(lambda leaf: np.asarray(leaf)[:, None], result.genes)
    return WarmStart(*jax.device_put((genes, np.ones(len(result.fitness), np.int32))))


def _ended(result: SearchResult, status: Status) -> SearchResult:
    """``result`` with another status for the instances that would have continued."""
    ends = tuple(s if s.final else status for s in result.status)
    return dataclasses.replace(result, status=ends)


def _told(
    callback: Callable[[Progress], Any], done: SearchResult | None, later: int
) -> Callable[[Progress], None]:
    """``callback`` for one part: adds the figures of the parts before it, and tells of ``later`` parts."""

    def tell(progress: Progress) -> None:
        # Each later part counts as one generation, since the budget decides how many it will have.
        generation, generations = progress.generation, progress.generations + later
        fitness, evaluations, status = progress.fitness, progress.evaluations, progress.status
        seconds = progress.seconds
        if done is not None:
            rows = len(done.history_fitness)
            generation, generations = generation + rows, generations + rows
            finished = np.array([s.final for s in done.status])
            fitness = np.where(finished, done.fitness, np.minimum(done.fitness, fitness))
            evaluations = done.evaluations + np.where(finished, 0, evaluations)
            status = np.where(finished, np.array(done.status, np.int32), status)
            seconds += done.seconds
        callback(Progress(generation, generations, fitness, evaluations, status, seconds, progress.genes))

    return tell


def _join(first: SearchResult, second: SearchResult) -> SearchResult:
    """Joins two results; instances that finished in the first take nothing from the second."""
    finished = np.array([status.final for status in first.status])
    # The second part began at the incumbents of the first, so its own are at least as good, or NaN.
    worse = finished | ~(second.fitness <= first.fitness)

    def pick(a: Any, b: Any) -> np.ndarray:
        a, b = np.asarray(a), np.asarray(b)
        return np.where(worse.reshape(-1, *[1] * (a.ndim - 1)), a, b)

    later = np.where(finished, 0, second.history_evaluations)
    best = np.minimum(first.fitness, second.history_fitness)
    return SearchResult(
        genes=jax.tree.map(pick, first.genes, second.genes),
        fitness=np.where(worse, first.fitness, second.fitness),
        evaluations=first.evaluations + np.where(finished, 0, second.evaluations),
        status=tuple(
            a if keep else b for a, b, keep in zip(first.status, second.status, finished, strict=True)
        ),
        history_fitness=np.concatenate([first.history_fitness, np.where(finished, first.fitness, best)]),
        history_evaluations=np.concatenate([first.history_evaluations, first.evaluations + later]),
        seconds=first.seconds + second.seconds,
    )
