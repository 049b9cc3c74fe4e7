"""Search for the order of lowest peak memory on one device: beams under a falling limit."""

import collections
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, runtime_matrix
from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.order_beam import Progress, advance, make_front, make_work, widened
from regal_jax.heuristics.order_costs import order_costs
from regal_jax.heuristics.order_search_config import OrderSearchConfig
from regal_jax.heuristics.order_windows import Beginning, Profile
from regal_jax.heuristics.orders import lpmf_order
from regal_jax.heuristics.xla import xla_dfs_order, xla_list_order, xla_post_order
from regal_jax.plan import Objective, Plan, lower_bound, proven_status
from regal_jax.runtime.compiling import loops
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["OrderSearchRun"]

_AT_ONCE: Final = 20_000
"""Most partial orders between two checks whether the search should end: a few milliseconds."""
_MOST_OPS: Final = 2**24
"""Most ops in these partial orders, all of which may be ready: of a large graph there are fewer at once."""
_MOST_LINKS: Final = 2**25
"""Limit on the parents and ops that a beam keeps to trace its partial orders back: 256 MiB."""
_READY: Final = 1024
"""Least space for the ready ops of the partial orders of one length; it grows."""
_READY_EACH: Final = 16
"""Space for the ready ops of each of them; it grows."""
_NO_LIMIT: Final = 2**62
_SHARES: Final = (0.5, 0.125, 0.875)
"""Where in a window the step of the peak is."""
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
      begin: The ops, and the empty partial order.
      first: The first step of a window; ``None`` for the whole graph.
    """

    back: bool
    limit: int
    width: int
    score: np.ndarray
    begin: Beginning
    first: int | None = None


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
        objective: Objective = Objective.PEAK_MEMORY,
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
          objective: For the makespan, which all orders have in common, every order that fits the memory is
            as good as another.

        Raises:
          ConfigError: Several devices, or priorities that are not one finite number per op.
          ClusterError: The cluster does not fit the graph.
        """
        if cluster.num_devices != 1:
            raise ConfigError(
                f"order-search: the cluster has {cluster.num_devices} devices; give a cluster of 1 device"
            )
        super().__init__(graph, cluster, seed)
        self._config = config or OrderSearchConfig()
        given = [plan.event_ids(graph) for plan in starts]
        self._starts = collections.deque[Callable[[ComputationGraph], np.ndarray]](
            [*(functools.partial(_constant, order) for order in given), *_ORDERS]
        )
        self._ask = priorities if callable(priorities) else None
        self._guide = None if callable(priorities) else _standardised(priorities, graph.num_ops)
        self._objective = objective
        self._makespan = float(runtime_matrix(graph, cluster).sum())
        self._costs = order_costs(graph)
        self._profile: Profile | None = None
        self._peak = _NO_LIMIT
        # No order has a lower peak. Rounded up to a whole number, since peaks are whole numbers.
        self._lower = math.ceil(lower_bound(graph, cluster, Objective.PEAK_MEMORY))
        self._made = 0
        self._proven = False
        self._begun = [Beginning.of_graph(graph, back=back) for back in (False, True)]
        self._unit = max(1.0, float(np.mean(self._costs.need)))
        self._attempts = self._plan_attempts()
        self._beam: _Beam | None = None

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Makes more partial orders.

        Args:
          evaluations: Largest number of evaluations, each the work of one whole order.
          ends: Called every few milliseconds; ``True`` ends the run. The next run continues the same beam.
          goal: The run ends at an order that fits the memory and whose peak, or makespan, is at most this.
        """
        n = self.graph.num_ops
        last = (self.evaluations + evaluations) * n
        while not (ends is not None and ends()) and self.best > goal:
            check_interrupt()
            if self._starts:
                if self._made + n > last:
                    return
                self._made += n
                self._judge(Profile(self._costs, self._starts.popleft()(self.graph)))
                continue
            if self._beam is None:
                attempt = next(self._attempts, None)
                if attempt is None:
                    return
                self._beam = _Beam(attempt)
            if self._beam.ended:
                # Replaying the order of a window inside the whole order costs as much as a whole order.
                judging = n if self._beam.attempt.first is not None and self._beam.found else 0
                if self._made + judging > last:
                    return
                self._made += judging
                self._finish(self._beam)
                self._beam = None
                continue
            room = last - self._made
            if room < self._beam.attempt.width:
                return
            at_once = max(min(_AT_ONCE, _MOST_OPS // n), self._beam.attempt.width)
            self._made += self._beam.advance(min(room, at_once))
            self.evaluations = -(-self._made // n)

    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first."""
        if self._profile is None:
            return None
        said: dict[str, Any] = {"method": "order-search", "partial_orders": self._made}
        said |= {"guided": True} if self._guide is not None else {}
        if self._objective is Objective.PEAK_MEMORY and self._lower >= self._peak:
            fits = self._peak <= self.cluster.memory[0]
            said |= {"status": proven_status(feasible=fits, proven=True), "bound": self._peak}
        placement = np.zeros(self.graph.num_ops, np.int64)
        return Plan.from_events(
            *(self.graph, self.cluster, placement, self._profile.order), objective=self._objective,
            provenance=said,
        )  # fmt: skip

    @property
    def proven_bytes(self) -> int:
        """No order has a lower peak."""
        return min(self._lower, self._peak)

    def _judge(self, profile: Profile) -> None:
        """Keeps the order if it is better than the best so far."""
        self.evaluations = -(-self._made // self.graph.num_ops)
        peak = profile.peak
        objective = peak if self._objective is Objective.PEAK_MEMORY else self._makespan
        if self.improves(self.value(np.array([peak]), objective)):
            self._profile, self._peak = profile, peak

    def _finish(self, beam: "_Beam") -> None:
        """Judges the order of a beam that has ended, or records that there is none."""
        order, first = beam.order(), beam.attempt.first
        self._proven = order is None and not beam.dropped
        if order is None:
            if first is None and self._proven:
                self._lower = max(self._lower, beam.attempt.limit)
        elif first is None or self._profile is None:
            self._judge(Profile(self._costs, order))
        else:
            before = self._profile
            changed = before.replaced(first, before.order[first : first + len(order)][order])
            self._judge(changed)
            if changed.peak == self._peak:
                # The peak is reached at several steps, and this order may lower one of them.
                self._profile = changed

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
                yield from self._windows(width, rounds)
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
                yield _Attempt(back, limit, width, score, self._begun[back])
                if self._peak == before:
                    break

    def _windows(self, width: int, rounds: int) -> Iterator[_Attempt]:
        """Windows around the first step of the peak, from the smallest size again after each improvement."""
        n = self.graph.num_ops
        places = [(s, share) for s in self._config.windows if 2 * s <= n for share in _SHARES]
        while self._profile is not None and self._lower < self._peak:
            profile, step = self._profile, int(self._profile.peaks.argmax())
            firsts = [(min(max(0, step - int(share * size)), n - size), size) for size, share in places]
            for first, size in dict.fromkeys(firsts):
                yield from self._window(first, first + size, width, rounds)
                if self._profile is not profile:
                    break
            else:
                return

    def _window(self, first: int, last: int, width: int, rounds: int) -> Iterator[_Attempt]:
        """Beams in one window, until one lowers its peak, or it is proven that none does."""
        profile = self._profile
        if profile is None:
            return
        peaks, noise = profile.peaks, self._config.noise * self._unit
        outside = max(peaks[:first].max(initial=0), peaks[last:].max(initial=0))
        # A limit below the peak outside of the window cannot lower the peak of the whole order.
        least = max(int(outside), self._lower) + 1
        limits = {min(max(int(self._peak * (1 - share)), least), self._peak) for share in self._config.steps}
        for back in (False, True):
            begin = Beginning.of_window(profile, first, last, back=back)
            for limit in sorted(limits | {self._peak}):
                score = self.random.normal(0.0, noise, last - first) if rounds else np.zeros(last - first)
                yield _Attempt(back, limit, width, score, begin, first)
                if self._profile is not profile or (self._proven and limit == self._peak):
                    return


def _constant(order: np.ndarray, graph: ComputationGraph) -> np.ndarray:
    del graph
    return order


class _Beam:
    """An attempt in progress.

    Attributes:
      attempt: The attempt.
    """

    def __init__(self, attempt: _Attempt) -> None:
        start, width = attempt.begin.start, attempt.width
        self.attempt, self._count = attempt, len(attempt.score)
        self._front = make_front(start, width, max(_READY, _READY_EACH * width, 2 * len(start.ready)))
        self._work = make_work(self._count, width)
        self._parent, self._op = np.empty((2, self._count * width), np.int32)
        self._progress = Progress(level=0, count=1, half=0, dropped=0, crowded=0, made=0)

    @property
    def ended(self) -> bool:
        """Whether its orders are complete, or no partial order is left below the limit."""
        return self._progress.level == self._count or not self.found

    @property
    def found(self) -> bool:
        """Whether it holds partial orders."""
        return self._progress.count > 0

    @property
    def dropped(self) -> bool:
        """Whether any partial orders were dropped because they exceeded the width."""
        return self._progress.dropped > 0

    def advance(self, most: int) -> int:
        """Makes at most ``most`` partial orders; returns how many it made."""
        attempt, made, progress = self.attempt, 0, np.array(self._progress)
        while True:
            loops(advance)(
                *(attempt.begin.field, self._front, self._work, attempt.score, attempt.limit, attempt.width),
                *(most - made, self._parent, self._op, progress),
            )
            self._progress = Progress(*progress.tolist())
            made += self._progress.made
            if not self._progress.crowded:
                return made
            self._front = widened(self._front, self._progress.half)

    def order(self) -> np.ndarray | None:
        """``[N]`` int64, the first whole order; ``None`` if there is none."""
        if not self.found:
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
