"""Settings of the search among list schedules."""

import dataclasses
import os
from typing import Final

from regal_jax.checks import check_setting, real, shown
from regal_jax.errors import ConfigError
from regal_jax.heuristics.host_search import MOST_COUNT
from regal_jax.heuristics.insertion_policy import (
    InsertionPolicy,
    is_insertion_policy_name,
    load_insertion_policy,
    named_insertion_policy,
)
from regal_jax.heuristics.list_scheduling import TIME_RULES, Rule
from regal_jax.storage.stamps import file_stamp

__all__ = ["ListSearchConfig"]

_MOST_NOISE: Final = 1e6
"""Largest standard deviation of ranks and prices, as a share of the longest path."""
_MOST_CHANGED: Final = 1000
"""Largest number of ops that get other ranks or prices: random numbers are drawn for all of them."""
_LARGE: Final = 400
"""Least number of ops of a graph that `ListSearchConfig.walk_candidates` is for."""
_POLICIES: Final = "give 'default', 'none', 'by-hand', 'untrained', a file of weights or an InsertionPolicy"
_SHARES: Final = (
    "price_share",
    "other_rule",
    "transfer_share",
    "block_share",
    "largest_block",
    "class_share",
    "least_gain",
    "move_share",
)


@dataclasses.dataclass(frozen=True)
class ListSearchConfig:
    """How `ListSearchRun` perturbs ranks, prices and the rule.

    The defaults were chosen on training and validation graphs, see docs/ablations/host_searches.md.

    Attributes:
      ranks: Number of ops that get another rank, if ranks change; at most 1000.
      rank_noise: Standard deviation of that rank around the op's own, as a share of the longest path.
      prices: Number of ops that get other prices on all devices, if prices change; at most 1000.
      price_noise: Standard deviation of a price around 0, as a share of the longest path.
      price_share: Probability that prices change; otherwise ranks do.
      other_rule: Probability of drawing the rule anew.
      transfer_share: Initial probability that a change of ranks or prices is at the scale of transfers, where
        these take time. It changes fewer ops, from one to `ranks` or `prices`. The standard deviation of a
        price is the mean time of a transfer of an input of the op, that of a rank up to five times
        `rank_noise`. It is adapted like `block_share`.
      block_share: Initial probability that a block of ops moves to a device instead of a change of ranks or
        prices. It is then adapted to the rate at which either has improved the schedule.
      largest_block: Largest number of ops in a block, as a share of all.
      class_share: Initial probability that a change of ranks, prices or a block is made to all ops of a class
        (`regal_jax.graph.op_classes`) at once, times the share of the ops that are like others. It is adapted
        like `block_share`.
      look: Largest number of ready ops that the rules compare.
      insert_after: Schedules after which insertion moves begin, where transfers take time.
      move_ops: Largest number of connected ops that an insertion move takes to another device together.
      move_share: The same as a share of the graph's ops; the smaller number counts, and is at least one op.
      turn: Number of insertions after which the search decides whether to make list schedules again.
      least_gain: Insertion moves go on after a turn that has made the makespan shorter by this share.
      walk: Number of insertions of a walk, after which the search decides in the same way. A walk comes after
        a turn that did not pay. After it list schedules are made again. 0 for no walks.
      deviation: Insertion moves of a walk keep schedules that are longer than the best by at most this many
        mean times of an event, op or transfer; with more than four devices ``D``, by ``4 / D`` of that.
      walk_candidates: Largest number of moves of each kind of which one is chosen in a walk, for graphs of at
        least 400 ops. Elsewhere it is `InsertionPolicy.candidates`; fewer are less greedy.
      insertion_policy: What chooses insertion moves: ``"default"`` for the trained weights of the package,
        another name of `regal_jax.heuristics.named_insertion_policy`, an `InsertionPolicy`, or a file of one,
        which is read at once. ``None`` or ``"none"`` chooses without weights.

    Raises:
      ConfigError: A value is out of range, or the file cannot be read.
      FormatError: The file holds no policy.
    """

    ranks: int = 8
    rank_noise: float = 0.02
    prices: int = 8
    price_noise: float = 0.001
    price_share: float = 0.7
    other_rule: float = 0.1
    transfer_share: float = 0.5
    block_share: float = 0.5
    largest_block: float = 0.25
    class_share: float = 0.5
    look: int = 8
    insert_after: int = 500
    move_ops: int = 16
    move_share: float = 0.0625
    turn: int = 250
    least_gain: float = 0.001
    walk: int = 4000
    deviation: float = 1.0
    walk_candidates: int = 4
    insertion_policy: InsertionPolicy | str | os.PathLike[str] | None = "default"

    def __post_init__(self) -> None:
        for name, least, most in (
            ("ranks", 1, _MOST_CHANGED),
            ("prices", 1, _MOST_CHANGED),
            ("look", 1, MOST_COUNT),
            ("insert_after", 0, MOST_COUNT),
            ("move_ops", 1, MOST_COUNT),
            ("turn", 1, MOST_COUNT),
            ("walk", 0, MOST_COUNT),
            ("walk_candidates", 1, MOST_COUNT),
        ):
            value = check_setting(type(self).__name__, name, getattr(self, name), least, most)
            object.__setattr__(self, name, value)
        noises = tuple((name, _MOST_NOISE) for name in ("rank_noise", "price_noise", "deviation"))
        for name, most in (*noises, *((name, 1.0) for name in _SHARES)):
            given = getattr(self, name)
            value = real(given, 0, most)
            if value is None:
                raise ConfigError(
                    f"{type(self).__name__}: {name} is {shown(given)}; give a number from 0 to {most:g}"
                )
            object.__setattr__(self, name, value)
        named = self.insertion_policy
        if named is None or is_insertion_policy_name(named) or isinstance(named, InsertionPolicy):
            return  # The weights of the package are read when they are needed.
        if not isinstance(named, (str, os.PathLike)):
            raise ConfigError(f"{type(self).__name__}: insertion_policy is {shown(named)}; {_POLICIES}")
        file_stamp(named, f"{type(self).__name__}: insertion_policy", _POLICIES)
        # Settings are values: a file that changes later changes none.
        object.__setattr__(self, "insertion_policy", load_insertion_policy(named))

    @property
    def chosen_policy(self) -> InsertionPolicy:
        """The policy that `insertion_policy` names."""
        if isinstance(self.insertion_policy, InsertionPolicy):
            return self.insertion_policy
        # A file was read when the settings were made.
        return named_insertion_policy(str(self.insertion_policy or "none"))

    def most_ops(self, ops: int) -> int:
        """Largest number of ops that an insertion move takes to another device, in a graph of ``ops`` ops."""
        return max(1, min(self.move_ops, int(ops * self.move_share)))

    def most_walk_candidates(self, ops: int) -> int | None:
        """`walk_candidates` for a graph of ``ops`` ops; ``None`` for as many as outside of walks."""
        return self.walk_candidates if ops >= _LARGE else None

    @property
    def rules(self) -> tuple[Rule, ...]:
        """The rules that the search begins with, and those that it draws from."""
        return tuple(dataclasses.replace(rule, look=min(rule.look, self.look)) for rule in TIME_RULES)
