"""The choice of schedules that together do well in many scenarios."""

from typing import Final

import jax
import numpy as np

from regal_jax.checks import check_kind, check_whole
from regal_jax.robust.candidates import Candidates
from regal_jax.robust.diversity import chain_successors, edit_distances_from
from regal_jax.robust.moves import moved
from regal_jax.robust.scenarios import Scenarios, generator
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solvers.loop.settings import as_key

__all__ = ["cover"]

_NO_GAIN: Final = 1e-4
"""A schedule that shortens the mean over scenarios by less than this share gains nothing."""


def cover(found: Candidates, keep: int, scenarios: Scenarios, key: int | jax.Array) -> Candidates:
    """Chooses candidates that together do well in many scenarios.

    The first is the best by the proxy. Each of the others is the one by which the mean over scenarios of the
    smallest makespan among the chosen falls most; makespans are relative to the best candidate of the
    scenario. This greedy choice is at least ``1 - 1 / e`` as good as the best choice of as many. When no
    candidate gains anything more, the others are those that are good in a scenario
    (`Scenarios.slack`) and differ most from the chosen, by the smallest graph-edit distance. Random moves
    make these differ more (`Scenarios.moves`). One that is then better by the proxy than all others goes
    first.

    Args:
      found: Different candidates.
      keep: Largest number of candidates that are chosen.
      scenarios: The scenarios.
      key: A number or a typed `jax.random.key`, consumed.

    Returns:
      Different schedules, at most ``keep``, in the order of the choice. If all candidates fit the memory, so
      do these.

    Raises:
      ConfigError: An argument is of another type, or ``keep`` is no whole number above zero.

    References:
      Nemhauser, Wolsey and Fisher 1978, "An analysis of approximations for maximizing submodular set
      functions", Mathematical Programming 14: the greedy choice.
    """
    check_kind("found", found, Candidates)
    check_kind("scenarios", scenarios, Scenarios)
    key = as_key(key, "key")
    keep = min(check_whole("keep", keep, 1), len(found))
    if keep < 2:
        return found.best(keep, unique=False)
    draws, moves = jax.random.split(key)
    drawn = scenarios.draw(found.graph, scenarios.count, draws)
    value = drawn.makespans(found.graph, found.cluster, found.sequence, found.devices)
    least = value.min(axis=0)
    relative = np.where(least > 0, value / np.where(least > 0, least, 1.0), 1.0)
    chosen, gaining = _greedy(found, keep, relative, scenarios.slack)
    rest = chosen[gaining:]
    own = relative[rest].argmin(axis=1)
    limit = np.maximum(scenarios.slack * least[own], value[rest, own])
    costs = drawn.take(own).costs(found.graph, found.cluster)
    count = scenarios.moves * found.graph.num_ops
    each = found.sequence[rest], found.devices[rest]
    varied = moved(found.graph, found.cluster, *each, *costs, limit, count, generator(moves))
    made = _in_place(found.take(chosen), gaining, varied)
    # Moves may have made one of the rest shorter by the proxy than all candidates.
    best = int(made.makespan.argmin())
    return made.take([best, *(i for i in range(len(made)) if i != best)])


def _greedy(found: Candidates, keep: int, value: np.ndarray, slack: float) -> tuple[np.ndarray, int]:
    """``(chosen, K)``: indices of candidates, of which the first ``K`` gain something in the scenarios.

    Args:
      found: As in `cover`.
      keep: Number of candidates that are chosen.
      value: ``[C, S]`` relative makespans.
      slack: As `Scenarios.slack`.
    """
    good = value.min(axis=1) <= slack
    after = chain_successors(found.sequence, found.devices)
    left = np.ones(len(found), np.bool_)
    best, near = np.full(value.shape[1], np.inf), np.full(len(found), np.inf)
    chosen: list[int] = []
    gaining = keep
    next_ = int(found.makespan.argmin())
    while True:
        chosen.append(next_)
        if len(chosen) == keep:
            return np.array(chosen), gaining
        check_interrupt()
        left[next_] = False
        best = np.minimum(best, value[next_])
        near = np.minimum(near, edit_distances_from(after, next_))
        gain = np.where(left, np.maximum(best - value, 0).mean(axis=1), -1.0)
        next_ = int(gain.argmax())
        if gain[next_] < _NO_GAIN:
            gaining = min(gaining, len(chosen))
            among = left & good if (left & good).any() else left
            next_ = int(np.where(among, near, -1.0).argmax())


def _in_place(chosen: Candidates, first: int, varied: tuple[np.ndarray, np.ndarray]) -> Candidates:
    """The chosen; those from ``first`` on are replaced by varied ones that are new and fit as well."""
    both = chosen.joined(Candidates.of(chosen.graph, chosen.cluster, *varied, chosen.source))
    new = both.distinct()
    new = new[new >= len(chosen)]
    old = new - len(chosen) + first
    if not np.isinf(both.cluster.memory).all():
        fits = [both.plan(i).feasible or not both.plan(j).feasible for i, j in zip(new, old, strict=True)]
        new, old = new[fits], old[fits]
    index = np.arange(len(chosen))
    index[old] = new
    return both.take(index)
