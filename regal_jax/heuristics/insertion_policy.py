"""Policies that choose insertion moves: linear functions of what is known about a move before it is tried."""

import dataclasses
import functools
import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_kind, check_setting, real, shown
from regal_jax.errors import ConfigError, FormatError
from regal_jax.heuristics.insertion_features import MOVE_FEATURES, PLACE_FEATURES
from regal_jax.storage.atomic import write_atomically, writing
from regal_jax.storage.documents import read_toml

__all__ = ["InsertionPolicy", "load_insertion_policy", "named_insertion_policy", "save_insertion_policy"]

_FEATURES: Final = {"move": MOVE_FEATURES, "place": PLACE_FEATURES}
_CONSTANT: Final = "constant"
_MOST: Final = 8
_UNTRAINED: Final = re.compile(r"untrained(?:-(0|[1-9]\d{0,5}))?")
_BY_HAND: Final = {
    "move": {"transfers_change": -1.0, _CONSTANT: 6.0},
    "place": {"before": 1.0, "behind": 1.0, "least_slack": -10.0},
}
"""Weights that no training chose: little slack and much room, or less time of transfers."""


@dataclasses.dataclass(frozen=True)
class InsertionPolicy:
    """Chooses the move of `regal_jax.heuristics.insertion.Insertion` that is tried next.

    A few moves are drawn, of either kind. The policy predicts for each the odds that it makes the schedule
    shorter, by a linear function of its features, and the move with the best odds for each event that it puts
    in is tried. Features are cheap: they come from the current schedule, without a pass over its events.

    Without weights, a move is of either kind with probability one half. Of `candidates` sets of ops the one
    with most neighbours on the other device, less those on its own, changes its device. An event that changes
    its place alone is drawn uniformly.

    Attributes:
      move: Weights of `MOVE_FEATURES`, for ops that change their device, and a constant. Empty for none.
      place: Weights of `PLACE_FEATURES`, for an event that changes its place alone, and a constant.
      candidates: Moves of each kind that are drawn, from 1 to 8; in walks there may be fewer
        (`ListSearchConfig.walk_candidates`).

    Raises:
      ConfigError: A value is out of range.

    Examples:
      >>> from regal_jax.heuristics import InsertionPolicy, ListSearchConfig
      >>> ListSearchConfig(insertion_policy=InsertionPolicy()).chosen_policy.candidates  # without weights
      8
    """

    move: tuple[float, ...] = ()
    place: tuple[float, ...] = ()
    candidates: int = _MOST

    def __post_init__(self) -> None:
        count = check_setting(type(self).__name__, "candidates", self.candidates, 1)
        if count > _MOST:
            raise ConfigError(f"InsertionPolicy: candidates is {count}; give at most {_MOST}")
        object.__setattr__(self, "candidates", count)
        sizes = {name: len(features) + 1 for name, features in _FEATURES.items()}
        for name, size in sizes.items():
            given: Any = getattr(self, name)
            if isinstance(given, (str, Mapping)) or not isinstance(given, Sequence):
                raise ConfigError(f"InsertionPolicy: {name} is {shown(given)}; give {size} numbers, or none")
            if len(given) not in (0, size):
                raise ConfigError(f"InsertionPolicy: {name} has {len(given)} numbers; give {size}, or none")
            weights = tuple(real(weight, -math.inf, math.inf) for weight in given)
            if None in weights:
                wrong = shown(given[weights.index(None)])
                raise ConfigError(f"InsertionPolicy: {name} has {wrong}; give finite numbers")
            object.__setattr__(self, name, weights)
        if bool(self.move) != bool(self.place):
            raise ConfigError("InsertionPolicy: only one of move and place has weights; give both, or none")


def load_insertion_policy(path: str | os.PathLike[str]) -> InsertionPolicy:
    """Reads the weights that `save_insertion_policy` wrote.

    Args:
      path: A TOML file with the tables ``move`` and ``place``: a weight for each feature by its name.

    Raises:
      ConfigError: There is no such file, or it is not TOML.
      FormatError: The file has anything else, or another set of features.
    """
    document = read_toml(path)
    weights = {}
    for table, features in _FEATURES.items():
        names, given = (*features, _CONSTANT), document.get(table)
        if not isinstance(given, Mapping) or set(given) != set(names):
            raise FormatError(f"{os.fspath(path)}: table {table} needs the numbers {', '.join(names)}")
        weights[table] = tuple(given[name] for name in names)
    others = [name for name in document if name not in _FEATURES]
    if others:
        raise FormatError(f"{os.fspath(path)}: has {shown(others[0])} beside the two tables; take it out")
    try:
        return InsertionPolicy(**weights)
    except ConfigError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


def save_insertion_policy(path: str | os.PathLike[str], policy: InsertionPolicy, note: str = "") -> None:
    """Writes the weights of a policy.

    Args:
      path: The file, which is replaced.
      policy: A policy with weights.
      note: Lines of a comment at the top.

    Raises:
      ConfigError: The policy has no weights, an argument is of another type, or the note has a character that
        cannot be printed.
      FormatError: The file cannot be written.
    """
    check_kind("policy", policy, InsertionPolicy)
    check_kind("note", note, str)
    if not policy.move:
        raise ConfigError("InsertionPolicy: it has no weights to save; train it")
    if not all(line.replace("\t", "").isprintable() for line in note.splitlines()):
        raise ConfigError(f"note: {shown(note)} has a character that cannot be printed; take it out")
    lines = [f"# {line}" for line in note.splitlines()]
    for table, features in _FEATURES.items():
        weights = zip((*features, _CONSTANT), getattr(policy, table), strict=True)
        lines += ["", f"[{table}]", *(f"{name} = {weight!r}" for name, weight in weights)]
    with writing(path):
        write_atomically(path, ("\n".join(lines).lstrip("\n") + "\n").encode())


def is_insertion_policy_name(name: object) -> bool:
    """Whether `named_insertion_policy` has a policy of that name."""
    return isinstance(name, str) and (
        name in ("default", "none", "by-hand") or bool(_UNTRAINED.fullmatch(name))
    )


def named_insertion_policy(name: str) -> InsertionPolicy:
    """A policy of the package.

    Args:
      name: ``"default"`` for the trained weights; the others are controls. ``"none"`` has no weights,
        ``"by-hand"`` has a few that were set by hand, and ``"untrained"`` random ones, of unit variance.
        ``"untrained-1"`` and so on have other random weights.

    Raises:
      ConfigError: There is no such name.
    """
    if not is_insertion_policy_name(name):
        raise ConfigError(
            f"InsertionPolicy: there is no {shown(name)}; use default, none, by-hand or untrained"
        )
    if name == "none":
        return InsertionPolicy()
    if name == "default":
        return default_insertion_policy()
    if name == "by-hand":
        move, place = (
            tuple(_BY_HAND[table].get(feature, 0.0) for feature in (*features, _CONSTANT))
            for table, features in _FEATURES.items()
        )
        return InsertionPolicy(move, place)
    drawn = _UNTRAINED.fullmatch(name)
    rng = np.random.default_rng(int(drawn[1] or 0) if drawn else 0)
    move, place = (rng.normal(size=len(features) + 1).tolist() for features in _FEATURES.values())
    return InsertionPolicy(move, place)


@functools.cache
def default_insertion_policy() -> InsertionPolicy:
    """The policy that is installed with the package; how it was trained is in docs/policies.md."""
    file = resources.files("regal_jax.heuristics") / "trained" / "insertion.toml"
    with resources.as_file(file) as path:
        return load_insertion_policy(path)
