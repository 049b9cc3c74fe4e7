"""Search among list schedules: the same rules, shown other ranks and prices than the graph's own."""

import collections
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
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
    prices_of,
    prohibitive_price,
)
from regal_jax.heuristics.orders import bfs_order, dfs_order
from regal_jax.heuristics.placements import device_subsets, partition_placement
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.schedule_peaks import SchedulePeaks
from regal_jax.interrupts import check_interrupt
from regal_jax.plan import Objective, Plan, insert_transfers

__all__ = ["ListSearch", "ListSearchConfig"]

_SHARES: Final = ("price_share", "other_rule", "block_share", "largest_block")
_START_RULES: Final = 3
"""How many of the rules begin from each placement."""
_NEAR: Final = 0.6
"""Probability that a block goes to a device of an op near it, if there is one."""
_SAME: Final = 0.7
"""Probability that of a block only those go that are where its middle is."""
_LEAST: Final = 0.1
"""Share of the tries of either kind of change."""
_PRIOR: Final = 20
"""So many tries of each kind of change count before there are any."""
_IN_ORDER: Final = Rule()
"""Takes ops by their ranks alone."""
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
      block_share: Probability that a block of ops is sent to a device, instead of changes of numbers, at
        first; then it follows what has improved the schedule.
      largest_block: Most ops in a block, as a share of all.
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
    block_share: float = 0.5
    largest_block: float = 0.25
    look: int = 8

    def __post_init__(self) -> None:
        for name in ("ranks", "prices", "look"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
                raise ConfigError(f"ListSearchConfig: {name} is {value!r}; give a whole number of at least 1")
        shares = tuple((name, 1.0) for name in _SHARES)
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
    of it anew. Where transfers take long, such small changes lead nowhere: an op that goes to another device
    alone takes longer there, whatever it would do for others. So a block of ops may be sent to a device as
    well, by a price on all others that no rule pays. Which kind of change is tried follows what has paid.
    A schedule is kept if it is no longer than the one before; one that fits the memory is shorter than any
    that does not.

    Begins with every rule under the graph's own ranks, and with a few of them on partitions of the graph for
    2, 4, 8, ... and all devices and on the plans that it is given. What is told of times and memory is exact.

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
        starts: Sequence[Plan] = (),
    ) -> None:
        """Makes nothing yet.

        Args:
          graph: The graph.
          cluster: The cluster.
          seed: As `numpy.random.default_rng` takes it.
          config: ``None`` for the defaults.
          starts: Plans of the graph to begin with, by their placement and order and by their placement alone.

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
        self._peaks = SchedulePeaks(graph, cluster)
        self._limited = bool(np.isfinite(self._memory).any())
        self._starts = self._prices([plan.placement for plan in starts])
        self._begin = collections.deque([*self._recipes(self._rules), *map(self._as_planned, starts)])
        self._blocks = _Blocks(graph, cluster)
        self._paid = {kind: [1.0, float(_PRIOR)] for kind in ("block", "numbers")}
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

    def _prices(self, starts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """``[N, D]`` each: what is begun with. Any device first, then partitions and ``starts``."""
        graph, cluster = self._graph, self._cluster
        shape = graph.num_ops, cluster.num_devices
        placements = [
            partition_placement(graph, cluster, by_bytes=by_bytes, devices=devices)
            for devices in device_subsets(graph, cluster)
            for by_bytes in (False, True)
        ]
        each = {place.tobytes(): place for place in (*placements, *starts)}.values()
        wanted = (place[:, None] == np.arange(shape[1]) for place in each)
        return [np.zeros(shape), *(prices_of(graph, cluster, here) for here in wanted)]

    def _as_planned(self, plan: Plan) -> "_Recipe":
        """With the placement of ``plan`` and its order of ops."""
        count = self._graph.num_ops
        events = plan.event_ids(self._graph)
        rank = np.empty(count)
        rank[events[events < count]] = self._longest * (1 - np.arange(count) / count)
        wanted = plan.placement[:, None] == np.arange(self._cluster.num_devices)
        return _Recipe(rank, prices_of(self._graph, self._cluster, wanted), _IN_ORDER)

    def _recipes(self, rules: Sequence[Rule]) -> Iterator["_Recipe"]:
        for number, price in enumerate(self._starts):
            for rule in rules[: None if number == 0 else _START_RULES]:
                yield _Recipe(self._rank, price, rule)

    def _step(self) -> None:
        if self._begin or self._now is None:
            self._judge(self._begin.popleft())
            if not self._begin and math.isinf(self.best) and _FIT.goal not in {r.goal for r in self._rules}:
                # Nothing fits: from now on also by a rule that looks at memory.
                self._rules.append(dataclasses.replace(_FIT, look=self._config.look))
                self._begin.extend(self._recipes(self._rules[-1:]))
            return
        kind, before = self._kind(), self._now.value
        self._judge(self._changed(self._now) if kind == "numbers" else self._with_block(self._now))
        self._paid[kind][0] += self._now.value < before
        self._paid[kind][1] += 1

    def _kind(self) -> str:
        """Of the next change: by the share of tries that made the schedule better."""
        if self._cluster.num_devices == 1:
            return "numbers"
        block, numbers = (won / tried for won, tried in self._paid.values())
        first = self._config.block_share
        share = first * block / (first * block + (1 - first) * numbers) if 0 < first < 1 else first
        share = np.clip(share, min(_LEAST, first), max(1 - _LEAST, first))
        return "block" if self._random.random() < share else "numbers"

    def _with_block(self, now: "_Recipe") -> "_Recipe":
        ops, device = self._blocks.draw(now.place, self._config.largest_block, self._random)
        price = now.price.copy()
        price[ops] = self._blocks.price
        price[ops, device] = 0.0
        return dataclasses.replace(now, price=price)

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
        """Makes the schedule, and keeps it if it is no worse."""
        state = self._make(recipe)
        self.evaluations += 1
        value = 0.0, float(max(state.clock))
        if self._limited and (self._now is None or value <= self._now.value):
            # The loops know neither later readers nor transfers that are put in after the fact.
            value = self._value(self._peaks(*placement_and_events(state)), value[1])
        recipe = dataclasses.replace(recipe, value=value, place=np.array(state.place))
        if self._now is None or value <= self._now.value:
            self._now = recipe
        if self._improves(value):
            self._best = recipe


@dataclasses.dataclass(frozen=True, eq=False)
class _Recipe:
    """What a schedule is made from, and what came of it.

    Attributes:
      rank: ``[N]``.
      price: ``[N, D]``.
      rule: Whose turn it is.
      value: Known when the schedule is made.
      place: ``[N]`` device of each op; likewise.
    """

    rank: np.ndarray
    price: np.ndarray
    rule: Rule
    value: Value = (math.inf, math.inf)
    place: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))


class _Blocks:
    """Draws ops that stand together in an order of the graph, and a device for them.

    Attributes:
      price: Of the other devices.
    """

    def __init__(self, graph: ComputationGraph, cluster: Cluster) -> None:
        self._orders = [dfs_order(graph), bfs_order(graph), graph.topological_order]
        self._devices = cluster.num_devices
        self.price = prohibitive_price(graph, cluster)

    def draw(self, place: np.ndarray, largest: float, random: np.random.Generator) -> tuple[np.ndarray, int]:
        """``(ops, device)``; lengths of all magnitudes are as likely."""
        order = self._orders[int(random.integers(len(self._orders)))]
        half = int(max(2.0, largest * len(order)) ** random.random()) // 2
        middle = int(random.integers(len(order)))
        block = order[max(0, middle - half) : middle + half + 1]
        home = place[order[middle]]
        if random.random() < _SAME:
            block = block[place[block] == home]
        around = place[order[max(0, middle - 4 * half - 2) : middle + 4 * half + 3]]
        others = around[around != home]
        if len(others) and random.random() < _NEAR:
            return block, int(others[int(random.integers(len(others)))])
        # Of those that have nothing to do one is as good as another, and one choice in all.
        busy = np.bincount(place, minlength=self._devices) > 0
        choices = np.flatnonzero(busy & (np.arange(self._devices) != home))
        if not busy.all():
            choices = np.append(choices, random.choice(np.flatnonzero(~busy)))
        return block, int(choices[int(random.integers(len(choices)))])
