"""Search for the order of lowest peak memory on one device: beams under a falling limit."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.beam_kernel import BITS
from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.order_beam import Field, Front, advance
from regal_jax.heuristics.order_costs import order_costs, order_peak
from regal_jax.heuristics.order_search_config import OrderSearchConfig
from regal_jax.heuristics.orders import bfs_order, lpmf_order
from regal_jax.heuristics.xla import xla_dfs_order, xla_list_order, xla_post_order
from regal_jax.plan import Objective, Plan, lower_bound
from regal_jax.runtime.compiling import for_loops, loops
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["OrderSearchRun"]

_AT_ONCE: Final = 20_000
"""Partial orders between two checks whether the search should end: a few milliseconds."""
_MOST_LINKS: Final = 2**25
"""Limit on the parents and ops that a beam keeps to trace its partial orders back: 256 MiB."""
_NO_LIMIT: Final = 2**62
_ORDERS: Final = (lpmf_order, xla_list_order, xla_dfs_order, xla_post_order)
"""Heuristics whose orders the search begins with, after the plans that it is given."""


@dataclasses.dataclass(frozen=True, eq=False)
class _Attempt:
    """A beam to run.

    Attributes:
      back: Whether it goes backwards.
      limit: Bytes that its peaks stay below.
      width: Largest number of partial orders of each length.
      score: ``[N]``, what ops add to the bytes by which sets are compared.
    """

    back: bool
    limit: int
    width: int
    score: np.ndarray


class OrderSearchRun(HostSearch):
    """Beam search for orders below a limit on the peak; the limit falls whenever an order below it is found.

    Deciding whether an order stays below a limit is simpler than minimising the peak: partial orders below
    the limit are compared by the memory that they hold, and one that can run an op at no cost has no other
    continuation. A beam goes forwards or backwards; the bottleneck of an order is late for one of them and
    early for the other. If neither gets below the limit, beams are widened.

    The search begins with the plans that it is given, then with LPMF and XLA's three orders. Each of these is
    one evaluation. So are as many partial orders as the graph has ops, the work of one whole order. The
    search ends by itself when a beam that dropped nothing proves that there is no better order.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        seed: int | Sequence[int],
        config: OrderSearchConfig | None = None,
        starts: Sequence[Plan] = (),
        priorities: np.ndarray | Callable[[ComputationGraph], np.ndarray] | None = None,
    ) -> None:
        """Prepares the search without evaluating anything.

        Args:
          graph: The graph.
          cluster: The cluster, of one device.
          seed: As `numpy.random.default_rng` takes it.
          config: ``None`` for the defaults.
          starts: Plans of the graph to begin with; the result is never worse than these.
          priorities: ``[N]``, the higher the earlier: beams guided by them alternate with beams that compare
            memory alone. A function that makes them is called after `OrderSearchConfig.guide_after` partial
            orders.

        Raises:
          ConfigError: Several devices, or priorities that are not one finite number per op.
          ClusterError: The cluster does not fit the graph.
        """
        if cluster.num_devices != 1:
            raise ConfigError(f"order-search: the cluster has {cluster.num_devices} devices; give one of 1")
        super().__init__(graph, cluster, seed)
        self._config = config or OrderSearchConfig()
        given = [plan.event_ids(graph) for plan in starts]
        self._starts = collections.deque[Callable[[ComputationGraph], np.ndarray]](
            [*(functools.partial(_constant, order) for order in given), *_ORDERS]
        )
        self._ask = priorities if callable(priorities) else None
        self._guide = None if callable(priorities) else _standardised(priorities, graph.num_ops)
        self._order: np.ndarray | None = None
        self._peak = _NO_LIMIT
        # No order has a lower peak. Rounded up to a whole number, since peaks are whole numbers.
        self._lower = math.ceil(lower_bound(graph, cluster, Objective.PEAK_MEMORY))
        self._made = 0
        self._begun = [_Beginning(graph, back=back) for back in (False, True)]
        self._unit = max(1.0, float(np.mean(order_costs(graph).need)))
        self._attempts = self._plan_attempts()
        self._beam: _Beam | None = None

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Makes more partial orders.

        Args:
          evaluations: Largest number of evaluations, each the work of one whole order.
          ends: Called every few milliseconds; ``True`` ends the run. The next run continues the same beam.
          goal: The run ends at an order that fits the memory and whose peak is at most this.
        """
        n = self.graph.num_ops
        last = (self.evaluations + evaluations) * n
        while not (ends is not None and ends()) and self.best > goal:
            check_interrupt()
            if self._starts:
                if self._made + n > last:
                    return
                self._made += n
                self._judge(self._starts.popleft()(self.graph))
                continue
            if self._beam is None:
                attempt = next(self._attempts, None)
                if attempt is None:
                    return
                self._beam = _Beam(attempt, self._begun[attempt.back])
            room = last - self._made
            if room < self._beam.attempt.width:
                return
            self._made += self._beam.advance(min(room, max(_AT_ONCE, self._beam.attempt.width)))
            self.evaluations = -(-self._made // n)
            if self._beam.ended:
                self._finish(self._beam)
                self._beam = None

    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first."""
        if self._order is None:
            return None
        said = {"method": "order-search", "partial_orders": self._made, "proven": self._lower >= self._peak}
        said |= {"guided": True} if self._guide is not None else {}
        placement = np.zeros(self.graph.num_ops, np.int64)
        return Plan.from_events(
            *(self.graph, self.cluster, placement, self._order), objective=Objective.PEAK_MEMORY,
            provenance=said,
        )  # fmt: skip

    def _judge(self, order: np.ndarray) -> None:
        """Keeps the order if it is better than the best so far."""
        self.evaluations = -(-self._made // self.graph.num_ops)
        peak = order_peak(self.graph, order)
        if self.improves(self.value(np.array([peak]), peak)):
            self._order, self._peak = order, peak

    def _finish(self, beam: "_Beam") -> None:
        order = beam.order()
        if order is not None:
            self._judge(order)
        elif not beam.dropped:
            self._lower = max(self._lower, beam.attempt.limit)

    def _plan_attempts(self) -> Iterator[_Attempt]:
        """Yields the next attempt, given the results of those before."""
        config, n = self._config, self.graph.num_ops
        most = max(1, min(config.most_width, _MOST_LINKS // n))
        rounds = 0
        while self._lower < self._peak:
            width = min(config.width, most)
            while True:
                ask = self._ask
                if ask is not None and self._made >= config.guide_after:
                    priorities, self._ask = ask(self.graph), None
                    self._guide = _standardised(priorities, n)
                for back, score in self._scores(rounds):
                    yield from self._lowering(back, width, score)
                if width == most:
                    break
                width = min(width * config.growth, most)
            rounds += 1

    def _scores(self, rounds: int) -> Iterator[tuple[bool, np.ndarray]]:
        """Yields, for both directions, the scores that are added to the bytes that sets hold."""
        n = self.graph.num_ops
        for guide in [0.0] if self._guide is None else [0.0, -self._config.guide * self._unit]:
            for back in (False, True):
                score = np.zeros(n) if self._guide is None else self._guide * (-guide if back else guide)
                if rounds:
                    score = score + self.random.normal(0.0, self._config.noise * self._unit, n)
                yield back, score

    def _lowering(self, back: bool, width: int, score: np.ndarray) -> Iterator[_Attempt]:
        """Beams under ever lower limits, until even the smallest step down fails."""
        for share in (*self._config.steps, 0.0):
            while self._lower < self._peak:
                before = self._peak
                limit = max(int(before * (1 - share)), self._lower + 1)
                yield _Attempt(back, limit, width, score)
                if self._peak == before:
                    break


def _constant(order: np.ndarray, graph: ComputationGraph) -> np.ndarray:
    del graph
    return order


class _Beginning:
    """The empty partial order of a graph, in one direction.

    Attributes:
      field: The graph.
      front: The partial order.
    """

    def __init__(self, graph: ComputationGraph, *, back: bool) -> None:
        n, costs = graph.num_ops, order_costs(graph, backwards=back)
        position = np.argsort(bfs_order(graph))
        word, mask = position // BITS, 1 << (position % BITS)
        code = np.random.default_rng(0).integers(0, 2**BITS, n)
        names = set(Field._fields) & set(costs._fields)
        self.field = for_loops(
            Field(
                **{name: getattr(costs, name) for name in names}, word=word, mask=mask, code=code, back=back
            )
        )
        ready = np.flatnonzero(np.diff(costs.before_rows) == 0)
        held = int(graph.tensor_bytes[graph.tensor_keep].sum()) if back else costs.start
        # Gains when no op has run: backwards all inputs are allocated, forwards those with one reader freed.
        alone = np.ones(len(costs.input_size), bool) if back else np.diff(costs.other_rows) == 0
        reader = np.repeat(np.arange(n), np.diff(costs.input_rows))
        inputs = np.bincount(reader, weights=costs.input_size * alone, minlength=n).astype(np.int64)
        gain = inputs - costs.kept if back else costs.kept - inputs
        self.front = Front(
            *(np.array([held]), np.zeros(1), np.zeros(1, np.int64), np.array([0, len(ready)]), ready),
            *(gain[ready], np.zeros(int(word.max()) + 1, np.int64)),
        )


class _Beam:
    """An attempt in progress.

    Attributes:
      attempt: The attempt.
      dropped: Whether any partial orders were dropped because they exceeded the width.
    """

    def __init__(self, attempt: _Attempt, begin: _Beginning) -> None:
        self.attempt, self.dropped = attempt, False
        self._field, self._front, self._level = begin.field, begin.front, 0
        self._count = len(attempt.score)
        self._parent, self._op = np.empty((2, self._count * attempt.width), np.int32)

    @property
    def ended(self) -> bool:
        """Whether its orders are complete, or no partial order is left below the limit."""
        return self._level == self._count or not len(self._front.held)

    def advance(self, most: int) -> int:
        """Makes at most ``most`` partial orders; returns how many it made."""
        counts = np.zeros(3, np.int64)
        self._front = loops(advance)(
            *(self._field, self._front, self.attempt.score, self.attempt.limit, self.attempt.width),
            *(self._level, most, self._parent, self._op, counts),
        )
        self._level = int(counts[0])
        self.dropped = self.dropped or bool(counts[2])
        return int(counts[1])

    def order(self) -> np.ndarray | None:
        """``[N]`` int64, the first whole order; ``None`` if there is none."""
        if not len(self._front.held):
            return None
        order, place = np.empty(self._count, np.int64), 0
        for level in reversed(range(self._count)):
            link = level * self.attempt.width + place
            order[level], place = self._op[link], self._parent[link]
        return order[::-1].copy() if self.attempt.back else order


def _standardised(priorities: np.ndarray | None, count: int) -> np.ndarray | None:
    """``[N]`` of mean 0 and standard deviation 1, or 0 where all are equal."""
    if priorities is None:
        return None
    given = np.asarray(priorities, np.float64)
    if given.shape != (count,) or not np.isfinite(given).all():
        raise ConfigError(f"order-search: priorities of shape {given.shape}; give {count} finite numbers")
    return (given - given.mean()) / (given.std() or 1.0)
