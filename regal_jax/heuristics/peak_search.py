"""Iterated local search for placements and orders with small peaks of memory."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from regal_jax.checks import check_setting, real, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, op_classes
from regal_jax.heuristics.host_search import MOST_COUNT, HostSearch
from regal_jax.heuristics.numbering import neutral_numbers
from regal_jax.heuristics.orders import given_order
from regal_jax.heuristics.peaks import MOST_OVER, Descent, PeakBalance, least_peak_balance
from regal_jax.heuristics.work import note
from regal_jax.plan import Objective, Plan, insert_transfers
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["PeakSearchConfig", "PeakSearchRun"]


@dataclasses.dataclass(frozen=True)
class PeakSearchConfig:
    """How `PeakSearchRun` perturbs a placement and lowers the peaks again.

    The defaults were chosen on training and validation graphs, see docs/ablations/host_searches.md.

    Attributes:
      tries: Moves to evaluate after each perturbation.
      reorder_share: Probability that the moves after a perturbation also change the order of the ops.
      blocks: Each perturbation draws one of these numbers and changes a block of consecutive ops of the
        order. The block has at most ``2 / number`` of all ops, and half as many on average.
      class_share: Probability that a perturbation also changes all ops that are like one of the block
        (`regal_jax.graph.op_classes`).

    Raises:
      ConfigError: A value is out of range.
    """

    tries: int = 80
    reorder_share: float = 0.25
    blocks: tuple[int, ...] = (4, 16, 64)
    class_share: float = 0.5

    def __post_init__(self) -> None:
        owner, given = type(self).__name__, self.blocks
        object.__setattr__(self, "tries", check_setting(owner, "tries", self.tries, 1, MOST_COUNT))
        if isinstance(given, (str, Mapping)) or not isinstance(given, Iterable):
            raise ConfigError(
                f"{owner}: blocks is {shown(given)}; give a sequence of whole numbers, e.g. blocks=(4, 16)"
            )
        blocks = tuple(given)
        found = tuple(whole(value, 1, MOST_COUNT) for value in blocks)
        if not found or None in found:
            raise ConfigError(
                f"{owner}: blocks has {shown(blocks)}; "
                f"give whole numbers from 1 to {MOST_COUNT}, at least one"
            )
        object.__setattr__(self, "blocks", found)
        for field in ("reorder_share", "class_share"):
            share = real(getattr(self, field), 0, 1)
            if share is None:
                value = shown(getattr(self, field))
                raise ConfigError(f"{owner}: {field} is {value}; give a number from 0 to 1")
            object.__setattr__(self, field, share)


class PeakSearchRun(HostSearch):
    """Iterated local search for the peak of memory, among placements and orders of the ops.

    A perturbation puts all ops of a random block of the order on one device, or rotates their devices. It may
    do the same with all ops that are like these, as those of repeated layers are. `PeakBalance.descend` then
    lowers the peaks by single moves, of ops to other devices and in the order. The result is kept if it is no
    worse. Each placement, or order, whose peaks are summed up is one evaluation. Sums are exact for transfers
    just before their first readers, and `plan` has been replayed. Evaluations by `least_peak_balance`, which
    runs first, are not counted, nor are those of heuristics.

    References:
      Lourenço, Martin and Stützle 2003, "Iterated local search", Handbook of Metaheuristics, chapter 11.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        cluster: Cluster,
        seed: int | Sequence[int],
        config: PeakSearchConfig | None = None,
        starts: Sequence[Plan] = (),
    ) -> None:
        """Prepares the search without evaluating anything.

        Args:
          graph: The graph.
          cluster: The cluster.
          seed: As `numpy.random.default_rng` takes it.
          config: ``None`` for the defaults.
          starts: Plans whose placements, each with its own order and with those of the search, are begun
            with if they are better than those of the search.

        Raises:
          ConfigError: The cluster has a single device, so there is nothing to choose.
          ClusterError: The cluster does not fit the graph.
        """
        if cluster.num_devices < 2:
            raise ConfigError("peak-search: the cluster has 1 device; give at least 2")
        super().__init__(graph, cluster, seed)
        self._config = config or PeakSearchConfig()
        self._starts = list(starts)
        self._class = op_classes(graph).of
        self._balance: PeakBalance | None = None
        self._placement = self._order = np.zeros(0, np.int64)

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Evaluates more placements.

        Args:
          evaluations: Largest number of placements.
          ends: Called before each perturbation; ``True`` ends the run.
          goal: The run ends at a placement that fits the memory and whose largest peak is no larger.
        """
        last = self.evaluations + evaluations
        # Each placement with the two orders of the search, and that of a plan with its own.
        if self._balance is None and evaluations > 2 + 3 * len(self._starts):
            self._start()
        # The evaluations of the moves after a perturbation, and that of its result.
        while self._balance is not None and self.evaluations + self._config.tries + MOST_OVER <= last:
            if (ends is not None and ends()) or self.best <= goal:
                return
            check_interrupt()
            self._step(self._balance)

    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first."""
        if self._balance is None:
            return None
        graph, cluster = self.graph, self.cluster
        return Plan.from_events(
            graph,
            cluster,
            self._placement,
            insert_transfers(graph, cluster, self._placement, self._order),
            objective=Objective.PEAK_MEMORY,
            provenance={"method": "peak-search", "placements": self.evaluations, "transfers": "late"},
        )

    def _start(self) -> None:
        """The best initial placement, and the order of ops for which it is best."""
        graph, cluster = self.graph, self.cluster
        least, placement = least_peak_balance(graph, cluster, neutral_numbers(graph, cluster))
        given = [plan.placement for plan in self._starts]
        pairs = [
            (balance, start)
            for balance in (least, PeakBalance(graph, cluster, given_order(graph)))
            for start in (placement, *given)
        ]
        for plan in self._starts:
            events = plan.event_ids(graph)
            own = PeakBalance(graph, cluster, events[events < graph.num_ops])
            pairs.append((own, plan.placement))
        for balance, start in pairs:
            if self._judge(Descent(start, balance.order, balance.peaks(start))):
                self._balance = balance

    def _step(self, balance: PeakBalance) -> None:
        n, d, random = len(self._placement), self.cluster.num_devices, self.random
        share = 2 * random.random() / int(random.choice(self._config.blocks))
        length = int(np.clip(share * n, 1, n))
        first = int(random.integers(n - length + 1))
        hit = self._order[first : first + length]
        if random.random() < self._config.class_share:
            hit = np.flatnonzero(np.isin(self._class, self._class[hit]))
        placement = self._placement.copy()
        if random.random() < 0.5:
            placement[hit] = random.integers(d)
        else:
            placement[hit] = (placement[hit] + random.integers(1, d)) % d
        looked, reorder = balance.looked, random.random() < self._config.reorder_share
        found = balance.descend(balance.allow(placement), self._order, self._config.tries, reorder=reorder)
        # The initial placement is counted with the result.
        self.evaluations += balance.looked - looked - 1
        note(placements=looked - balance.looked + 1)  # From here on these placements count as evaluations.
        self._judge(found)

    def _judge(self, found: Descent) -> bool:
        """Keeps the result if it is no worse; returns whether it does."""
        self.evaluations += 1
        note(placements=-1)
        value = self.value(found.peaks, found.peaks.max())
        kept = self.improves(value) or value == self._least
        if kept:
            self._placement, self._order = found.placement, found.order
        return kept
