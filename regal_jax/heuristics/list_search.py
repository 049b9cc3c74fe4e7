"""Search among list schedules: the rules of list scheduling under perturbed ranks and prices."""

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, op_classes, transfer_times
from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.insertion import Insertion, Schedule
from regal_jax.heuristics.list_scheduling import (
    MEMORY_RULES,
    kernel_arguments,
    placement_and_events,
    prices_of,
    prohibitive_price,
)
from regal_jax.heuristics.list_search_config import ListSearchConfig
from regal_jax.heuristics.list_state import FOLLOWED
from regal_jax.heuristics.orders import bfs_order, dfs_order
from regal_jax.heuristics.placements import device_subsets, partition_placement
from regal_jax.heuristics.ranks import upward_rank
from regal_jax.heuristics.schedule_peaks import listed_of, make_room, peaks
from regal_jax.plan import BestDraft, Objective, Plan, insert_transfers
from regal_jax.runtime.compiling import compile_for, for_loops, loops, usable
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.runtime.pointers import address_of

__all__ = ["ListSearchRun"]

_START_RULES: Final = 3
"""Number of rules that are tried with each initial placement."""
_AT_ONCE: Final = 512
"""Number of changes for which random numbers are drawn at once."""
_OPS_AT_ONCE: Final = 100_000
"""About this many ops are scheduled between two checks of whether to end: ten milliseconds at most. A thread
may wait five milliseconds for Python's lock, which it needs between them."""
_OPS_IN_PYTHON: Final = 10_000
"""The same where Numba does not compile the loops."""
_PRIOR: Final = 20
"""Tries of each kind of change that are assumed at first."""
_VALUES: Final = -2
"""Index of the values among the arguments of `climb`."""
_LISTS: Final = 0.8
"""Least number of list schedules between insertion moves, as a share of a turn."""
_DEVIATES: Final = 4
"""Largest number of devices with the whole deviation in walks."""
_IN_ORDER: Final = 0
"""A rule that takes ops by rank alone."""
_FIT: Final = next(rule for rule in MEMORY_RULES if rule.goal == "fit")


class ListSearchRun(HostSearch):
    """Hill climbing for the makespan, from list schedule to list schedule.

    A list schedule is hard to improve by moving single ops: with blocking transfers, an op that changes its
    device alone needs a transfer of its own, for which both devices have to be idle. The search therefore
    perturbs the numbers that the schedule is made from. A few ops get other ranks, or other prices on the
    devices, and list scheduling makes a new schedule. Where transfers take long, an op that changes its
    device alone usually runs later. A perturbation may therefore also move a block of ops to one device, by
    prohibitive prices on all others. Models repeat their layers, so a perturbation may change all ops that
    are alike at once. The kind of perturbation that has improved the schedule more often is tried more
    often.
    A schedule is kept if it is no longer than the one before. One that fits the memory is better than any
    that does not.

    Where transfers take time, insertion moves (`regal_jax.heuristics.insertion.Insertion`) improve the best
    schedule: its placement, and its order of events, transfers included. They begin with the best list
    schedule, or with a known plan if that is shorter, and go on while that pays.
    Then comes a walk from the best schedule: its insertion moves may make schedules a little longer
    (record-to-record travel), and it goes on while it pays, too. After it the search makes more list
    schedules. If these have become better in the meantime, insertion moves begin again with the best one.

    The search begins with every rule under the graph's own ranks. A few rules are also tried on the plans
    that it is given, and on partitions of the graph for 2, 4, 8, ... and all devices. Times and peaks are
    exact.

    Each list schedule is one evaluation, and so is each insertion. A move of several insertions that begins
    within the budget is completed.

    References:
      Storer, Wu and Vaccari 1992, "New search spaces for sequencing problems with application to job shop
      scheduling", Management Science 38(10): problem space search. Taillard 1990, "Some efficient heuristic
      methods for the flow shop sequencing problem", European Journal of Operational Research 47(1): the best
      place of an insertion from the times before and after every place.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        seed: int | Sequence[int],
        config: ListSearchConfig | None = None,
        starts: Sequence[Plan] = (),
        *,
        known: Plan | None = None,
        describe: bool = False,
    ) -> None:
        """Prepares the search without evaluating anything.

        Args:
          graph: The graph.
          cluster: The cluster.
          seed: As `numpy.random.default_rng` takes it.
          config: ``None`` for the defaults.
          starts: Plans of the graph to begin with: each with its placement and order, and with its placement
            only.
          known: A plan that fits the memory. Insertion moves begin with its schedule if it is shorter than
            all list schedules.
          describe: Whether to keep what describes each insertion move, for `described_moves`.

        Raises:
          ClusterError: The cluster does not fit the graph.
        """
        super().__init__(graph, cluster, seed)
        self._config = config or ListSearchConfig()
        self._rules = list(self._config.rules)
        self._climb: Callable[..., int] | None = None
        self._rank = upward_rank(graph, cluster)
        self._longest = float(self._rank.max())
        layout, state = kernel_arguments(graph, cluster)
        n, d = graph.num_ops, cluster.num_devices
        space = layout, state, make_room(layout, state)
        self._layout, self._state, self._room = map(for_loops, space)
        self._events = listed_of(self._state)
        blank = _Given(np.zeros(n), np.zeros(n * d), 0)
        self._trial, self._now, self._best = (_recipes([blank]) for _ in range(3))
        self._none = type(self._trial)(*(each[:0] for each in self._trial))
        self._space = self._make_space()
        self._paid = for_loops(np.array([1.0, _PRIOR] * 8))
        self._normals, moves = self.random.spawn(2)
        pays = d > 1 and bool(self._transfer_times().any())
        self._moves: Insertion | None = None
        if pays:
            self._moves = Insertion(
                graph,
                self._layout,
                self._room,
                moves,
                self._config.chosen_policy,
                ops=self._config.most_ops(n),
                walk_candidates=self._config.most_walk_candidates(n),
                describe=describe,
            )
        self._inserting, self._walking, self._turn_ends = False, False, self._config.insert_after
        self._lists, self._insertions, self._owed = self._least_lists, 0, 0
        # The makespans of the schedules with which insertion moves, and their turn, began.
        self._began = self._before = math.inf
        self._draws = _Draws(np.zeros((0, 1)), np.zeros((0, 1)))
        self._starts = self._prices([plan.placement for plan in starts])
        self._begin = collections.deque([*self._recipes(range(len(self._rules)))])
        self._begin.extend(map(self._as_planned, starts))
        self._known: Schedule | None = None
        if known is not None:
            self._known = Schedule(known.placement, known.event_ids(graph), known.makespan)

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Makes more schedules, and insertion moves.

        Args:
          evaluations: Number of list schedules and insertions.
          ends: Called before every few schedules; ``True`` ends the run.
          goal: The run ends at a schedule that fits the memory and is no longer than this.
        """
        last = self.evaluations + evaluations
        paid = min(self._owed, evaluations)
        self.evaluations, self._insertions = self.evaluations + paid, self._insertions + paid
        self._owed -= paid
        while self.evaluations < last and not (ends is not None and ends()) and self.best > goal:
            check_interrupt()
            if self._begin:
                self._try_given(last - self.evaluations, goal)
            elif self._moves is not None and self._inserts(self._moves):
                self._insert(self._moves, last - self.evaluations, goal)
            else:
                self._try(last - self.evaluations, goal)

    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first.

        Transfers are where insertion moves put them, or as scheduled, or as early as possible.
        """
        if not self.evaluations:
            return None
        rule = dataclasses.asdict(self._rules[int(self._best.rule[0])])
        made = {
            "method": "list-search",
            "schedules": self.evaluations - self._insertions,
            "insertions": self._insertions,
            "rule": rule,
        }
        best = BestDraft(self.graph, self.cluster, Objective.MAKESPAN)
        moved = self._moves.best if self._moves is not None else None
        if moved is not None and (0.0, moved.makespan) <= self.least:
            best.offer(moved.placement, moved.events, {**made, "transfers": "moved"})
            return best.plan()
        placement, events = self._schedule()
        best.offer(placement, events, {**made, "transfers": "as scheduled"})
        if len(events) > self.graph.num_ops:
            ops = events[events < self.graph.num_ops]
            early = insert_transfers(self.graph, self.cluster, placement, ops, eager=True)
            best.offer(placement, early, {**made, "transfers": "early"})
        return best.plan()

    def described_moves(self) -> np.ndarray:
        """``[moves, SEEN + 2]``, as `Insertion.described` has it."""
        from regal_jax.heuristics.insertion_kernel import SEEN

        described = self._moves.described if self._moves is not None else []
        return np.concatenate([np.zeros((0, SEEN + 2)), *described])

    def compile_loops(self) -> None:
        """Compiles the loops without a call, but for those of list scheduling."""
        from regal_jax.heuristics.list_climb import climb

        given = self._arguments(_Draws(np.zeros((1, 1)), np.zeros((1, 1))), -math.inf, ())
        compile_for(climb, 0, 0, *given)
        if self._moves is not None:
            self._moves.compile_loops()

    def _schedule(self) -> tuple[np.ndarray, np.ndarray]:
        """Placement and events of the best list schedule."""
        # Its import may load Numba, which takes longer than most heuristics.
        from regal_jax.heuristics.list_kernel import schedule

        self._state.counts[FOLLOWED] = 0
        rule = self._rules[int(self._best.rule[0])]
        numbers = self._best.rank, self._best.price, *rule.numbers, math.inf
        return placement_and_events(loops(schedule)(self._layout, self._state, *numbers))

    def _loops(self) -> Callable[..., int]:
        """`climb` with the addresses of what it calls."""
        from regal_jax.heuristics.list_climb import climb
        from regal_jax.heuristics.list_kernel import schedule

        compiled = loops(climb)
        numbers = self._trial.rank, self._trial.price, *self._rules[0].numbers, math.inf
        makes = address_of(schedule, 1, self._layout, self._state, *numbers)
        weighs: Any = 0
        if self._space.limited:
            weighs = address_of(peaks, 2, self._layout, self._events, self._room)
        return functools.partial(compiled, makes, weighs)

    def _make_space(self) -> Any:
        """The distribution of changes."""
        from regal_jax.heuristics.list_climb import Space

        graph, cluster, config = self.graph, self.cluster, self._config
        takes = self._transfer_times()
        limited = bool(np.isfinite(self._memory).any())
        classes = op_classes(graph)
        return for_loops(
            Space(
                rank=self._rank,
                rules=np.array([rule.numbers for rule in self._rules], np.float64).ravel(),
                orders=np.concatenate([dfs_order(graph), bfs_order(graph), graph.topological_order]),
                ranks=int(config.ranks),
                prices=int(config.prices),
                rank_noise=float(config.rank_noise * self._longest),
                price_noise=float(config.price_noise * self._longest),
                price_share=float(config.price_share),
                other_rule=float(config.other_rule),
                block_share=float(config.block_share),
                largest_block=float(config.largest_block),
                prohibitive=prohibitive_price(graph, cluster),
                limited=limited,
                transfer_noise=np.maximum(takes, config.price_noise * self._longest),
                transfer_share=float(config.transfer_share if takes.any() else 0),
                class_of=classes.of,
                class_bounds=classes.bounds,
                class_ops=classes.ops,
                class_share=float(config.class_share * classes.repeated),
            )
        )

    def _transfer_times(self) -> np.ndarray:
        """``[N]``, mean time of a transfer of an input of each op, over the kinds of link."""
        graph = self.graph
        cost = transfer_times(graph, self.cluster).mean(axis=1)
        inputs = np.bincount(graph.edge_op, minlength=graph.num_ops)
        total = np.bincount(graph.edge_op, cost[graph.edge_tensor], graph.num_ops)
        return total / np.maximum(inputs, 1)

    def _prices(self, starts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """``[N, D]`` each, the initial prices: none, then those of partitions and of ``starts``."""
        graph, cluster = self.graph, self.cluster
        shape = graph.num_ops, cluster.num_devices
        placements = [
            partition_placement(graph, cluster, by_bytes=by_bytes, devices=devices)
            for devices in device_subsets(graph, cluster)
            for by_bytes in (False, True)
        ]
        each = {place.tobytes(): place for place in (*placements, *starts)}.values()
        wanted = (place[:, None] == np.arange(shape[1]) for place in each)
        return [np.zeros(shape), *(prices_of(graph, cluster, here) for here in wanted)]

    def _as_planned(self, plan: Plan) -> "_Given":
        """Ranks and prices that reproduce the placement and the order of ops of ``plan``."""
        count = self.graph.num_ops
        events = plan.event_ids(self.graph)
        rank = np.empty(count)
        rank[events[events < count]] = self._longest * (1 - np.arange(count) / count)
        wanted = plan.placement[:, None] == np.arange(self.cluster.num_devices)
        return _Given(rank, prices_of(self.graph, self.cluster, wanted), _IN_ORDER)

    def _recipes(self, rules: Sequence[int]) -> Iterator["_Given"]:
        for number, price in enumerate(self._starts):
            for rule in rules[: None if number == 0 else _START_RULES]:
                yield _Given(self._rank, price, rule)

    def _try_given(self, most: int, goal: float) -> None:
        """Tries the next schedules of those that the search begins with."""
        given = list(itertools.islice(self._begin, min(most, self._at_once)))
        blank = np.zeros((len(given), 1))
        for _ in range(self._advance(_Draws(blank, blank), goal, given)):
            self._begin.popleft()
        if not self._begin and math.isinf(self.best) and _FIT.goal not in {r.goal for r in self._rules}:
            # No schedule fits so far, so a rule that looks at memory joins the others.
            self._rules.append(dataclasses.replace(_FIT, look=self._config.look))
            self._space = self._make_space()
            self._begin.extend(self._recipes([len(self._rules) - 1]))

    def _try(self, most: int, goal: float) -> None:
        """Tries changes of the current schedule."""
        if not len(self._draws.uniform):
            self._draws = self._drawn()
        count = min(most, self._at_once)
        if self._moves is not None:
            count = min(count, self._turn_ends - self.evaluations)
        made = self._advance(_Draws(*(draws[:count] for draws in self._draws)), goal)
        self._draws = _Draws(*(draws[made:] for draws in self._draws))

    @property
    def _least_lists(self) -> int:
        """The least number of list schedules between insertion moves."""
        return max(1, int(_LISTS * self._config.turn))

    def _inserts(self, moves: Insertion) -> bool:
        """Whether an insertion is next, not a list schedule."""
        if self.evaluations < self._turn_ends:
            return self._inserting
        lists = self._lists
        if self._inserting:
            now = moves.least if self._walking else moves.makespan
            pays = now < self._before * (1 - self._config.least_gain)
            # After a turn that did not pay comes a walk, and after such a walk come list schedules.
            self._walking = self._walking if pays else self._config.walk > 0 and not self._walking
            self._inserting = pays or self._walking
            if pays:
                self._lists = self._least_lists
            elif not self._walking:
                # While insertion moves do not pay, list schedules get twice as many each time.
                self._lists = 2 * lists
            elif moves.best is not None:
                moves.begin(moves.best)
        else:
            start = self._beginning(moves)
            self._inserting = start is not None
            if start is not None:
                moves.begin(start)
        if self._inserting:
            self._before = moves.least if self._walking else moves.makespan
            lists = self._config.walk if self._walking else self._config.turn
        self._turn_ends = self.evaluations + lists
        return self._inserting

    def _beginning(self, moves: Insertion) -> Schedule | None:
        """The schedule with which insertion moves begin after list schedules; ``None`` if none fits."""
        listed = float(self._now.value[1]) if self._now.value[0] == 0 else math.inf
        known, self._known = self._known, None
        if known is not None and known.makespan < listed:
            self.improves((0.0, known.makespan))
            return known
        if listed < self._began:
            self._began = listed
            return Schedule(*self._schedule(), listed)
        return moves.best

    def _insert(self, moves: Insertion, most: int, goal: float) -> None:
        """Makes insertion moves. The last one is completed, and the next run pays for the rest of it."""
        before, enough = self.evaluations, min(most, self._turn_ends - self.evaluations)
        used, made = moves.run(self._at_once, enough, goal, self._deviation if self._walking else 0.0)
        for number, makespan in made:
            self.evaluations = before + number
            self.improves((0.0, makespan))
        paid = min(used, most)
        self.evaluations, self._insertions = before + paid, self._insertions + paid
        self._owed = used - paid

    @property
    def _deviation(self) -> float:
        return self._config.deviation * min(1.0, _DEVIATES / self.cluster.num_devices)

    @property
    def _at_once(self) -> int:
        """Number of schedules between two checks of whether to end."""
        return max(1, (_OPS_AT_ONCE if usable() else _OPS_IN_PYTHON) // self.graph.num_ops)

    def _drawn(self) -> "_Draws":
        from regal_jax.heuristics.list_climb import DRAWS

        ranks, prices = self._config.ranks, self._config.prices
        width = max(ranks, prices * self.cluster.num_devices)
        return _Draws(
            self.random.random((_AT_ONCE, DRAWS + max(ranks, prices))),
            self._normals.standard_normal((_AT_ONCE, width)),
        )

    def _advance(self, draws: "_Draws", goal: float, given: Sequence["_Given"] = ()) -> int:
        """Makes a schedule for each row of ``draws``, the first ones as ``given``; returns how many."""
        if self._climb is None:
            self._climb = self._loops()
        arguments = self._arguments(draws, goal, given)
        made, values = self._climb(*arguments), arguments[_VALUES]
        ends = self.evaluations + made
        # The value of the current schedule never becomes worse, so that the last one tells of all.
        if made and (float(values[2 * made - 2]), float(values[2 * made - 1])) < self._least:
            each, before = np.reshape(values[: 2 * made], (made, 2)), self.evaluations
            for i in (0, *(1 + np.flatnonzero((each[1:] != each[:-1]).any(axis=1)))):
                self.evaluations = before + int(i) + 1
                self.improves((float(each[i, 0]), float(each[i, 1])))
        self.evaluations = ends
        return made

    def _arguments(self, draws: "_Draws", goal: float, given: Sequence["_Given"]) -> tuple[Any, ...]:
        """The arguments of `climb` after the addresses."""
        return (
            *(self._layout, self._state, self._events, self._room, self._space),
            *(self._trial, self._now, self._best),
            *(_recipes(given) if given else self._none, self._paid),
            *(for_loops(rows.ravel()) for rows in draws),
            *(for_loops(np.zeros(2 * len(draws.uniform))), goal),
        )


class _Given(NamedTuple):
    """What a schedule is made from: rank ``[N]``, price ``[N, D]``, number of the rule."""

    rank: np.ndarray
    price: np.ndarray
    rule: int


class _Draws(NamedTuple):
    """``[S, U]`` and ``[S, Z]``: a row for each change."""

    uniform: np.ndarray
    normal: np.ndarray


def _recipes(given: Sequence[_Given]) -> Any:
    """The input of `climb` for schedules, one after another."""
    from regal_jax.heuristics.list_climb import Recipe

    ranks = np.concatenate([each.rank for each in given])
    prices = np.concatenate([each.price.ravel() for each in given])
    return for_loops(Recipe(ranks, prices, np.array([each.rule for each in given]), np.full(2, np.inf)))
