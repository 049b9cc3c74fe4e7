"""Iterated local search for placements, orders and times of transfers with small peaks of memory."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel, op_classes
from regal_jax.heuristics.host_search import HostSearch
from regal_jax.heuristics.numbering import neutral_numbers
from regal_jax.heuristics.orders import given_order
from regal_jax.heuristics.peak_climb import (
    DRAWS,
    LEAST_GAIN,
    MOST_OVER,
    REORDERED,
    RESENT,
    WIDTHS,
    Perturbation,
    Placed,
    climb,
)
from regal_jax.heuristics.peak_search_config import PeakSearchConfig
from regal_jax.heuristics.peaks import PeakBalance, least_peak_balance
from regal_jax.heuristics.peaks_kernel import make_state, penalise, refine
from regal_jax.heuristics.work import uncounted
from regal_jax.plan import Objective, Plan, insert_transfers, outcome
from regal_jax.runtime.compiling import compile_for, for_loops, loops, usable
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.runtime.pointers import address_of

__all__ = ["PeakSearchRun"]

_AT_ONCE: Final = 16
"""Largest number of perturbations between two checks of whether to end; their numbers are drawn at once."""
_OPS_AT_ONCE: Final = 16_000
"""Number of perturbations times ops between two checks, in compiled loops."""


class PeakSearchRun(HostSearch):
    """Iterated local search for the peak of memory, among placements, orders and times of transfers.

    A perturbation puts all ops of a block on one device, or rotates their devices. It may do the same with
    all ops that are like these, as those of repeated layers are. A block has consecutive ops of the order, or
    ops that tensors connect, and may be around the producer of a tensor that is held at the peak. A descent
    then lowers the peaks by single moves, and its result is kept if it is no worse.

    Each step of a descent considers the highest peak and what is held there, in the order of its bytes. An op
    is tried on the device that holds least at that time. A tensor is tried with its readers before the peak,
    and with its producer behind it; the ops between which these need, or which need them, move along. A step
    takes the best of a few moves, and the first few after which nothing is lower end the descent.

    Where transfers block, a tensor is sent just before its first reader on a device, or just after its
    producer; a move may change that.

    Each result of a move whose peaks are summed up is one evaluation. Sums are those of the exact replay.
    Evaluations by `least_peak_balance`, which runs first, are not counted, nor are those of heuristics.

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
        self._balance: PeakBalance | None = None
        self._uniform = np.zeros((0, DRAWS))

    def run(self, evaluations: int, ends: Callable[[], bool] | None = None, goal: float = -math.inf) -> None:
        """Evaluates more placements.

        Args:
          evaluations: Largest number of placements.
          ends: Called before every few perturbations; ``True`` ends the run.
          goal: The run ends at a placement that fits the memory and whose largest peak is no larger.
        """
        last = self.evaluations + evaluations
        # Each placement with the two orders of the search, and that of a plan with its own.
        if self._balance is None and evaluations > 2 + 3 * len(self._starts):
            self._start()
        # The evaluations of the moves after a perturbation, and that of its result.
        least = self._config.tries + MOST_OVER
        while self._balance is not None and self.evaluations + least <= last:
            if (ends is not None and ends()) or self.best <= goal:
                return
            check_interrupt()
            self._advance(last - self.evaluations, goal)

    def plan(self) -> Plan | None:
        """The best plan so far; ``None`` before the first."""
        if self._balance is None:
            return None
        graph, cluster, ops = self.graph, self.cluster, self._balance.order
        placement, order = np.empty(len(ops), np.int64), ops[np.asarray(self._now.order, np.int64)]
        placement[ops] = self._now.place
        early = np.asarray(self._now.early, bool)
        return Plan.from_events(
            graph,
            cluster,
            placement,
            insert_transfers(graph, cluster, placement, order, eager=early),
            objective=Objective.PEAK_MEMORY,
            provenance={
                "method": "peak-search",
                "placements": self.evaluations,
                "transfers": "moved" if early.any() else "late",
            },
        )

    def compile_loops(self) -> None:
        """Begins the search, and compiles its loops without a call."""
        with uncounted():
            self._start()
        compile_for(climb, *self._arguments(self.random.random((1, DRAWS)), np.zeros(3), 0, -math.inf))

    def _start(self) -> None:
        """The best initial placement, and the order of ops for which it is best."""
        graph, cluster = self.graph, self.cluster
        least, placement = least_peak_balance(graph, cluster, neutral_numbers(graph, cluster))
        late = np.zeros(graph.num_tensors, bool)
        given = [plan.placement for plan in self._starts]
        pairs = [
            (balance, start, late)
            for balance in (least, PeakBalance(graph, cluster, given_order(graph)))
            for start in (placement, *given)
        ]
        for plan in self._starts:
            events = plan.event_ids(graph)
            own = PeakBalance(graph, cluster, events[events < graph.num_ops])
            pairs.append((own, plan.placement, _sent_early(graph, cluster, plan.placement, events)))
        self._balance, placement, early = pairs[0]
        for balance, start, sent in pairs:
            self.evaluations += 1
            if sent.any():
                events = insert_transfers(graph, cluster, start, balance.order, eager=sent)
                peaks = outcome(graph, cluster, start, events)[1]
            else:
                with uncounted():
                    peaks = balance.peaks(start)
            if self.improves(self.value(peaks, peaks.max(initial=0))):
                self._balance, placement, early = balance, start, sent
        ops, n, d = self._balance.order, graph.num_ops, cluster.num_devices
        place, order = placement[ops].astype(np.int64), np.arange(n)
        state = make_state(place, order, d, graph.num_tensors)
        state.early[:] = early
        self._state, self._layout = for_loops(state), for_loops(self._balance.layout)
        self._hit = for_loops(np.zeros(n, np.int64))
        # Without tries it only finds what is held at the peak.
        loops(refine)(self._layout, self._state, 0, WIDTHS, 0, 0, LEAST_GAIN)
        penalise(self._state.peaks, self._memory, self._state.penalty)
        now = place, order, early.astype(np.int64), np.array(self._state.at_peak), np.array(self._least)
        self._now = for_loops(Placed(*now))
        moves = self._config.tries, WIDTHS, RESENT, REORDERED, LEAST_GAIN
        self._refine = address_of(refine, 2, self._layout, self._state, *moves)
        blocks = cluster.transfer is TransferModel.BLOCKING
        self._perturbation = for_loops(
            Perturbation(
                blocks=np.array(self._config.blocks, np.int64),
                class_of=op_classes(graph).of[ops].astype(np.int64),
                class_share=float(self._config.class_share),
                connected_share=float(self._config.connected_share),
                peak_share=float(self._config.peak_share),
                reorder_share=float(self._config.reorder_share),
                resend_share=float(self._config.resend_share if blocks else 0.0),
                tries=self._config.tries,
            )
        )

    def _advance(self, most: int, goal: float) -> None:
        """A few perturbations; the first one is made even if ``most`` evaluations are too few."""
        if not len(self._uniform):
            self._uniform = self.random.random((_AT_ONCE, DRAWS))
        # One at a time in Python.
        rows = self._uniform[: max(1, (_OPS_AT_ONCE if usable() else 0) // self.graph.num_ops)]
        values = for_loops(np.zeros(3 * len(rows)))
        made = loops(climb)(*self._arguments(rows, values, most, goal))
        self._uniform, before = self._uniform[made:], self.evaluations
        for used, *value in np.reshape(values, (-1, 3))[:made].tolist():
            self.evaluations = before + int(used)
            self.improves((value[0], value[1]))

    def _arguments(self, rows: np.ndarray, values: Any, most: int, goal: float) -> tuple[Any, ...]:
        """Arguments of `climb`; ``values`` is what it writes to."""
        space = self._layout, self._state, self._perturbation, self._now, self._hit
        return self._refine, *space, for_loops(rows.ravel()), values, most, goal


def _sent_early(
    graph: ComputationGraph, cluster: Cluster, placement: np.ndarray, events: np.ndarray
) -> np.ndarray:
    """``[T]`` bool: whether a plan sends the tensor nearer to its producer than to its first readers."""
    late = insert_transfers(graph, cluster, placement, events[events < graph.num_ops])
    n, sums = graph.num_ops, np.zeros(graph.num_tensors)
    position = np.zeros(n, np.int64)
    position[events[events < n]] = np.arange(n)
    for order in (events, late):
        # The number of ops before a transfer, from the producer on.
        sent = order >= n
        tensor = (order[sent] - n) // cluster.num_devices
        before = np.cumsum(~sent)[sent] - 1 - position[graph.tensor_op[tensor]]
        np.add.at(sums, tensor, before if order is late else -2.0 * before)
    return sums > 0
