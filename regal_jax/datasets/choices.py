"""Which candidate each member of a synthetic set is: filter, attempts, and one topology once."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from regal_jax.datasets.candidates import SPLITS, Candidate, Recipe, draw_candidate
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph, topology_hash

__all__ = ["MAX_ATTEMPTS", "Choice", "Keep", "choose", "settle"]

Keep = Callable[[Sequence[ComputationGraph]], Sequence[bool]]
"""Says of each graph whether it may stay; must say the same whatever company a graph is shown in."""

MAX_ATTEMPTS: Final = 10_000
"""A member for which so many candidates were drawn in vain is an error."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A member of a set.

    Attributes:
      split: One of `SPLITS`.
      index: From 0.
      attempt: Which of its candidates it is.
      topology: Its kind.
      hash: `regal_jax.graph.topology_hash` of it.
      rejected: Kinds of the candidates before it that were not kept, in their order.
      repeated: How many candidates before it had the topology of an earlier member.
    """

    split: str
    index: int
    attempt: int
    topology: str
    hash: str
    rejected: tuple[str, ...] = ()
    repeated: int = 0


def choose(
    recipe: Recipe,
    seed: int,
    split: str,
    indices: Iterable[int],
    *,
    keep: Keep | None = None,
    batch: int = 64,
    taken: Collection[str] = (),
    first: Choice | None = None,
) -> list[Choice]:
    """The first candidate of each member that ``keep`` keeps and whose topology is not ``taken``.

    Members do not see each other: see `settle` for that.

    Args:
      recipe: What candidates are drawn from.
      seed: Of the set.
      split: One of `SPLITS`.
      indices: Members.
      keep: The filter; ``None`` keeps all.
      batch: Candidates shown to ``keep`` at once. Where fewer members than that wait, some of theirs are
        drawn ahead, to make up the number; that changes no choice.
      taken: Topologies that are not to be had any more.
      first: The choice that turned out to be taken, to go on behind it; then ``indices`` is its index alone.

    Returns:
      One choice an index, in their order.

    Raises:
      ConfigError: `MAX_ATTEMPTS` candidates of a member were drawn in vain.
    """
    indices = list(indices)
    start = 0 if first is None else first.attempt + 1
    attempt = dict.fromkeys(indices, start)
    rejected: dict[int, list[str]] = {i: list(first.rejected) if first else [] for i in indices}
    repeated = Counter({first.index: first.repeated + 1} if first else {})
    chosen: dict[int, Choice] = {}
    while waiting := [i for i in indices if i not in chosen]:
        _check_attempts(split, waiting, attempt)
        if keep is None:
            drawn = [draw_candidate(recipe, seed, split, i, attempt[i]) for i in waiting]
            kept: Sequence[bool] = [True] * len(drawn)
        else:
            # Always as many: a filter that compiles a program for a number of graphs compiles one.
            shown = [(waiting[j % len(waiting)], j // len(waiting)) for j in range(batch)]
            drawn = [draw_candidate(recipe, seed, split, i, attempt[i] + ahead) for i, ahead in shown]
            kept = keep([c.graph for c in drawn])
        for candidate, stays in zip(drawn, kept, strict=True):
            i = candidate.index
            if i in chosen:
                continue
            attempt[i] = candidate.attempt + 1
            fingerprint = topology_hash(candidate.graph) if stays else ""
            if not stays:
                rejected[i].append(candidate.topology)
            elif fingerprint in taken:
                repeated[i] += 1
            else:
                chosen[i] = _choice(split, candidate, fingerprint, rejected[i], repeated[i])
    return [chosen[i] for i in indices]


def _choice(split: str, candidate: Candidate, fingerprint: str, rejected: list[str], repeated: int) -> Choice:
    return Choice(
        split,
        candidate.index,
        candidate.attempt,
        candidate.topology,
        fingerprint,
        tuple(rejected),
        repeated,
    )


def _check_attempts(split: str, waiting: Sequence[int], attempt: dict[int, int]) -> None:
    for i in waiting:
        if attempt[i] >= MAX_ATTEMPTS:
            raise ConfigError(
                f"{split} graph {i}: none of {MAX_ATTEMPTS} candidates was kept and new; ask for less "
                "improvement, more ops or fewer graphs"
            )


def settle(choices: Iterable[Choice], again: Callable[[Choice, Collection[str]], Choice]) -> list[Choice]:
    """Gives every topology to one member only: the first in the order of split, then index.

    A member whose topology an earlier one has goes on to its next candidates, until one has a topology that
    no earlier member has. So a member depends on earlier ones, never on later ones, on the number of graphs
    asked for, or on the order in which the choices were made. (Members of the default recipe never meet in
    practice; small graphs do.)

    Args:
      choices: All of them, made without sight of each other.
      again: ``again(choice, taken)`` -> the member's next choice whose topology is not taken.

    Returns:
      The choices in order, no two with the same topology.
    """
    taken: dict[str, None] = {}
    settled = []
    for choice in sorted(choices, key=lambda c: (SPLITS.index(c.split), c.index)):
        if choice.hash in taken:
            choice = again(choice, taken.keys())
        taken[choice.hash] = None
        settled.append(choice)
    return settled
