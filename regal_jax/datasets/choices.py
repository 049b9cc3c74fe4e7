"""Choice of a candidate for each member of a synthetic set: filter, attempts and unique topologies."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from regal_jax.checks import check_callback, check_whole, counted, is_list, shown
from regal_jax.datasets.candidates import SPLITS, Candidate, Recipe, draw_candidate
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph, topology_hash

__all__ = ["MAX_ATTEMPTS", "Choice", "Keep", "choose", "settle"]

Keep = Callable[[Sequence[ComputationGraph]], Sequence[bool]]
"""Returns for each graph whether it is kept; the answer must not depend on the other graphs."""

MAX_ATTEMPTS: Final = 10_000
"""Most candidates for one member; more raise an error."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """A member of a set.

    Attributes:
      split: One of `SPLITS`.
      index: Index of the member, from 0.
      attempt: Number of the chosen candidate.
      topology: Kind of its topology.
      hash: Its `regal_jax.graph.topology_hash`.
      rejected: Kinds of the earlier candidates that were not kept, in order.
      repeated: Number of earlier candidates with the topology of an earlier member.
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

    Members are chosen independently of each other; `settle` removes repeated topologies.

    Args:
      recipe: Distribution of candidates.
      seed: Seed of the set.
      split: One of `SPLITS`.
      indices: Indices of the members.
      keep: The filter; ``None`` keeps all.
      batch: Number of candidates that ``keep`` receives at once. If fewer members wait, further candidates of
        theirs fill the batch; this does not change the choices.
      taken: Topologies that are already used.
      first: A choice whose topology is taken; the search continues after it, and ``indices`` has only its
        index.

    Returns:
      One choice per index, in their order.

    Raises:
      ConfigError: An argument is invalid, or none of `MAX_ATTEMPTS` candidates of a member was kept.
    """
    if not is_list(indices):
        raise ConfigError(f"indices: give a list of the members, got {shown(indices)}")
    indices = [check_whole("indices", i, 0) for i in indices]
    check_callback("keep", keep)
    check_whole("batch", batch, 1)
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
            # The batch has a fixed size, so that a filter that compiles a program per size compiles only one.
            offered = [(waiting[j % len(waiting)], j // len(waiting)) for j in range(batch)]
            drawn = [draw_candidate(recipe, seed, split, i, attempt[i] + ahead) for i, ahead in offered]
            kept = _kept(keep, [c.graph for c in drawn])
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


def _kept(keep: Keep, graphs: Sequence[ComputationGraph]) -> list[bool]:
    """What ``keep`` says of each graph."""
    found = keep(graphs)
    kept = list(found) if is_list(found) else []
    if len(kept) != len(graphs):
        number = counted(len(graphs), "graph")
        raise ConfigError(
            f"keep: returned {shown(found)} for {number}; return a list with one value for each"
        )
    return kept


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
                f"{split} graph {i}: none of {MAX_ATTEMPTS} candidates passed the filter and was new; ask "
                "for less improvement, more ops or fewer graphs"
            )


def settle(choices: Iterable[Choice], again: Callable[[Choice, Collection[str]], Choice]) -> list[Choice]:
    """Makes topologies unique: each stays with the first member in the order of split, then index.

    A member that repeats the topology of an earlier one takes its next candidate with a topology that no
    earlier member has. So a member depends on earlier members only, not on later ones, on the number of
    graphs, or on the order in which the choices were made. (With the default recipe, repeats do not occur in
    practice; with small graphs they do.)

    Args:
      choices: All choices, made independently of each other.
      again: Function ``again(choice, taken)`` -> the member's next choice whose topology is not taken.

    Returns:
      The choices in order, with distinct topologies.
    """
    taken: dict[str, None] = {}
    settled = []
    for choice in sorted(choices, key=lambda c: (SPLITS.index(c.split), c.index)):
        if choice.hash in taken:
            choice = again(choice, taken.keys())
        taken[choice.hash] = None
        settled.append(choice)
    return settled
