"""Search among list schedules: the same rules, shown other ranks and prices than the graph's own."""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.compiling import for_loops, loops
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.host_search import HostSearch, Value
from regal_jax.heuristics.list_scheduling import (
    MEMORY_RULES,
    TIME_RULES,
    Rule,
    kernel_arguments,
    placement_and_events,
)
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.interrupts import check_interrupt
from regal_jax.plan import Objective, Plan, insert_transfers

__all__ = ["ListSearch", "ListSearchConfig"]

_FIT: Final = next(rule for rule in MEMORY_RULES if rule.goal == "fit")


@dataclasses.dataclass(frozen=True)
class ListSearchConfig:
    """How `ListSearch` changes what a list schedule goes by.

    The best of 1000 schedules was 3.02 % shorter than the best of the six rules alone on 24 real graphs of up
    to 1000 ops (training and validation, two devices, free blocking transfers), and 0.60 % on 20 synthetic
    ones (validation). With ranks only it is 0.62 and 0.60 %. Prices that hardly do more than break ties, on
    several ops at once, gain most: half of the changes, four ops and a noise of 0.05, 0.01, 0.003, 0.001 or
    0.0003 gained 2.13, 2.27, 2.39, 2.59 and 2.72 %. To look at 32 ready ops instead of 8 gains 0.04 points
    and takes three times as long.

    Attributes:
      ranks: How many ops get another rank, where ranks change.
      rank_noise: Standard deviation of that rank around the op's own, as a share of the longest path.
      prices: How many ops get other prices on all devices, where prices change.
      price_noise: Standard deviation of a price around 0, as a share of the longest path.
      price_share: Probability that prices change, else ranks do.
      other_rule: Probability of drawing the rule anew.
      look: The rules compare at most so many ready ops.

    Raises:
      ConfigError: An impossible value.
    """

    ranks: int = 8
    rank_noise: float = 0.02
    prices: int = 8
    price_noise: float = 0.001
    price_share: float = 0.7
    other_rule: float = 0.1
    look: int = 8

    def __post_init__(self) -> None:
        for name in ("ranks", "prices", "look"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(f"ListSearchConfig: {name} is {value!r}; give a whole number of at least 1")
        shares = (("price_share", 1.0), ("other_rule", 1.0))
        for name, most in (("rank_noise", math.inf), ("price_noise", math.inf), *shares):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
                raise ConfigError(f"ListSearchConfig: {name} is {value!r}; give a number from 0 to {most:g}")

    @property
    def rules(self) -> tuple[Rule, ...]:
        """What is begun with, and drawn from."""
        return tuple(dataclasses.replace(rule, look=min(rule.look, self.look)) for rule in TIME_RULES)


class ListSearch(HostSearch):
    """Hill climbing for the makespan, from list schedule to list schedule.

    A schedule that list scheduling has made is hard to improve by changes of its own: where transfers are
    rendezvous, an op that moves alone makes a meeting of its own. So what changes are the numbers that the
    schedule is made from: a few ops get another rank, or other prices on the devices, and the rules make all
    of it anew. A schedule is kept if it is no longer than the one before; one that fits the memory is shorter
    than any that does not.

    Begins with every rule under the graph's own ranks. What is told of times is exact, of memory never too
    little; `plan` has been replayed.

    A schedule that was made is one evaluation.

    References:
      Storer, Wu and Vaccari 1992, "New search spaces for sequencing problems with application to job shop
      scheduling", Management Science 38(10): problem space search.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        seed: int | Sequence[int],
        config: ListSearchConfig | None = None,
    ) -> None:
        """Makes nothing yet.

        Args:
          graph: The graph.
          cluster: The cluster.
          seed: As `numpy.random.default_rng` takes it.
          config: ``None`` for the defaults.

        Raises:
          ClusterError: The cluster does not fit the graph.
        """
        # Its import may load Numba, which takes longer than most heuristics.
        from regal_jax.heuristics.list_kernel import schedule

        super().__init__(graph, cluster, seed)
        self._config = config or ListSearchConfig()
        self._rules = list(self._config.rules)
        self._schedule: Callable[..., Any] = loops(schedule)
        self._layout, self._state = map(for_loops, kernel_arguments(graph, cluster))
        self._rank = upward_rank(graph, cluster)
        self._longest = float(self._rank.max())
        self._free = np.zeros((graph.num_ops, cluster.num_devices))
        self._now: _Recipe | None = None
        self._best: _Recipe | None = None

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None) -> None:
        """Makes so many more schedules, or fewer: ``ends`` is asked before each."""
        for _ in range(evaluations):
            if ends is not None and ends():
                return
            check_interrupt()
            self._step()

    def plan(self) -> Plan | None:
        """The best so far, its transfers as scheduled or as early as can be; ``None`` before the first."""
        if self._best is None:
            return None
        placement, events = placement_and_events(self._make(self._best))
        drafts = [(events, "as scheduled")]
        if len(events) > self._graph.num_ops:
            ops = events[events < self._graph.num_ops]
            drafts.append((insert_transfers(self._graph, self._cluster, placement, ops, eager=True), "early"))
        plans = [
            Plan.from_events(
                self._graph,
                self._cluster,
                placement,
                each,
                objective=Objective.MAKESPAN,
                provenance={
                    "method": "list-search",
                    "schedules": self.evaluations,
                    "rule": dataclasses.asdict(self._best.rule),
                    "transfers": transfers,
                },
            )
            for each, transfers in drafts
        ]
        return min(plans, key=lambda plan: plan.sort_key)

    def _step(self) -> None:
        if self.evaluations < len(self._rules) or self._now is None:
            recipe = _Recipe(self._rank, self._free, self._rules[self.evaluations])
        else:
            recipe = self._changed(self._now)
        state = self._make(recipe)
        self.evaluations += 1
        value = self._value(np.array(state.most), max(state.clock))
        self._judge(dataclasses.replace(recipe, value=value))
        if self.evaluations == len(TIME_RULES) and math.isinf(self.best):
            # Nothing fits: from now on also by a rule that looks at memory.
            self._rules.append(dataclasses.replace(_FIT, look=self._config.look))

    def _changed(self, now: "_Recipe") -> "_Recipe":
        config, random = self._config, self._random
        rank, price, rule = now.rank, now.price, now.rule
        count, devices = price.shape
        if random.random() < config.price_share:
            price = price.copy()
            ops = random.integers(count, size=config.prices)
            noise = random.standard_normal((config.prices, devices))
            price[ops] = config.price_noise * self._longest * noise
        else:
            rank = rank.copy()
            ops = random.integers(count, size=config.ranks)
            noise = random.standard_normal(config.ranks)
            rank[ops] = self._rank[ops] + config.rank_noise * self._longest * noise
        if random.random() < config.other_rule:
            rule = self._rules[int(random.integers(len(self._rules)))]
        return _Recipe(rank, price, rule)

    def _make(self, recipe: "_Recipe") -> Any:
        numbers = for_loops(recipe.rank), for_loops(recipe.price.ravel())
        return self._schedule(self._layout, self._state, *numbers, *recipe.rule.numbers)

    def _judge(self, recipe: "_Recipe") -> None:
        if self._now is None or recipe.value <= self._now.value:
            self._now = recipe
        if self._improves(recipe.value):
            self._best = recipe


@dataclasses.dataclass(frozen=True, eq=False)
class _Recipe:
    """What a schedule is made from, and its value.

    Attributes:
      rank: ``[N]``.
      price: ``[N, D]``.
      rule: Whose turn it is.
      value: Known when the schedule is made.
    """

    rank: np.ndarray
    price: np.ndarray
    rule: Rule
    value: Value = (math.inf, math.inf)
