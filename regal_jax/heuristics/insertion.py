"""Insertion moves: a search among orders of events and placements, for the makespan."""

import math
from typing import Any, Final, NamedTuple

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.graph.topology import rows
from regal_jax.heuristics.insertion_memory import fits_there, make_usage, set_usage, shift_fits
from regal_jax.heuristics.insertion_policy import InsertionPolicy
from regal_jax.heuristics.schedule_peaks import make_listed, peaks
from regal_jax.runtime.compiling import compile_for, for_loops, loops
from regal_jax.runtime.pointers import address_of

__all__ = ["Insertion", "Schedule"]

_AT_ONCE: Final = 512
"""Number of moves for which random numbers are drawn at once."""


class Schedule(NamedTuple):
    """A schedule.

    Attributes:
      placement: ``[N]``, the device of each op.
      events: ``[M]``, the events in their order, as a plan has them.
      makespan: Its makespan.
    """

    placement: np.ndarray
    events: np.ndarray
    makespan: float


class Insertion:
    """Hill climbing for the makespan by insertion moves, from a schedule that fits the memory.

    See `regal_jax.heuristics.insertion_kernel.insert`.

    Args:
      graph: The graph.
      layout: The graph, as list scheduling takes it.
      room: Space for peaks, which others may use between two calls.
      random: The source of random numbers.
      policy: What chooses the moves; ``None`` for the choice without weights.
      ops: Largest number of ops that a move takes to another device together.
      walk_candidates: Largest number of candidates of each kind where ``deviation`` is positive; ``None`` for
        those of the policy.
      describe: Whether to keep what describes each move, and what it did, in `described`.
    """

    def __init__(
        self,
        graph: ComputationGraph,
        layout: Any,
        room: Any,
        random: np.random.Generator,
        policy: InsertionPolicy | None = None,
        *,
        ops: int = 1,
        walk_candidates: int | None = None,
        describe: bool = False,
    ) -> None:
        # Its import may load Numba, which takes longer than most heuristics.
        from regal_jax.heuristics.insertion_kernel import Scorer, make_work

        self._layout, self._room = layout, room
        self._limited = bool(np.isfinite(layout.memory).any())
        self._listed = for_loops(make_listed(layout))
        self._usage = for_loops(make_usage(layout, limited=self._limited))
        self._edges, self._work = for_loops(_edges(graph)), for_loops(make_work(layout))
        policy = policy or InsertionPolicy()
        weights = [np.array(each, np.float64) for each in (policy.move, policy.place)]
        few = policy.candidates if walk_candidates is None else min(policy.candidates, walk_candidates)
        self._scorer, self._walker = (
            for_loops(Scorer(weights[0], weights[1], candidates, ops))
            for candidates in (policy.candidates, few)
        )
        self._describe, self.described = describe, list[np.ndarray]()
        """Of each call of `run`, ``[moves, SEEN + 2]``: what describes each move (see `insert` in
        `regal_jax.heuristics.insertion_kernel`), the number of its insertions, and the time by which it made
        the schedule shorter."""
        self._random, self._rows = random, np.zeros((0, 1))
        self._now: Any = None
        self._best: Schedule | None = None
        self._mean = 0.0
        """Mean time of an event of the best schedule."""

    @property
    def best(self) -> Schedule | None:
        """The best schedule so far, of equal ones the latest outside walks; ``None`` before the first."""
        return self._best

    @property
    def least(self) -> float:
        """The makespan of the best schedule, infinite before the first."""
        return math.inf if self._best is None else self._best.makespan

    @property
    def makespan(self) -> float:
        """The makespan of the current schedule."""
        return float(self._now.value[0])

    @property
    def excess(self) -> float:
        """By how many bytes the current schedule exceeds the memory, once `run` has been called."""
        return float(self._now.value[1])

    def begin(self, schedule: Schedule) -> None:
        """Continues from another schedule."""
        from regal_jax.heuristics.insertion_kernel import make_events

        self._now = for_loops(make_events(self._layout, *schedule))

    def run(
        self, moves: int, enough: int, goal: float, deviation: float = 0.0, weight: float = 0.0
    ) -> tuple[int, list[tuple[int, float]]]:
        """Makes some moves.

        Args:
          moves: Largest number of moves.
          enough: No move begins after so many insertions.
          goal: The run ends at a makespan of at most this.
          deviation: If positive, schedules are kept that are longer than the best by at most this many mean
            times of its events, and the run ends at a schedule that is shorter than the best.
          weight: If positive, schedules may exceed the memory, each byte weighs as much as this time, and the
            run ends at a schedule that fits.

        Returns:
          The number of insertions, and for each move that made the schedule shorter the number of its first
          one and the makespan after it.
        """
        from regal_jax.heuristics.insertion_kernel import DRAWS, SEEN, insert

        if not len(self._rows):
            self._rows = self._random.random((_AT_ONCE, DRAWS))
        drawn, before = self._rows[:moves], self.makespan
        made = for_loops(np.zeros(2 * len(drawn)))
        seen = for_loops(np.zeros(SEEN * len(drawn) if self._describe else 0))
        most = 0.0
        best = self._best
        if deviation > 0 and best is not None and best.makespan > 0:
            most, goal = best.makespan + deviation * self._mean, max(goal, math.nextafter(best.makespan, 0))
        given = for_loops(drawn.ravel()), made, seen, self._limited, enough, goal, most, weight
        scorer = self._walker if most > 0 else self._scorer
        done = loops(insert)(self._weighs(), *self._space, scorer, *given)
        self._rows = self._rows[done:]
        # In a walk, whether a later schedule is as short would depend on where its runs end.
        shorter = self.makespan < self.least or (most == 0 and self.makespan == self.least)
        if shorter and self.excess == 0:
            placement, events = np.array(self._now.home), np.array(self._now.event)[: self._now.counts[0]]
            self._best = Schedule(placement, events, self.makespan)
            self._mean = float(np.array(self._now.takes)[events].mean())
        each = np.reshape(made[: 2 * done], (done, 2))
        if self._describe:
            begun = np.append(each[:, 0], 1 + self._now.counts[1])
            gained = -np.diff(each[:, 1], prepend=before)
            told = np.reshape(seen, (-1, SEEN))[:done]
            self.described.append(np.column_stack([told, np.diff(begun), gained]))
        steps = each[np.diff(each[:, 1], prepend=before) < 0]
        return int(self._now.counts[1]), [(int(number), float(makespan)) for number, makespan in steps]

    def compile_loops(self) -> None:
        """Compiles the loops without a call."""
        from regal_jax.heuristics.insertion_kernel import insert

        self.begin(Schedule(np.zeros(len(self._layout.leader), np.int64), np.zeros(0, np.int64), math.inf))
        blank = for_loops(np.zeros(1)), for_loops(np.zeros(2)), for_loops(np.zeros(0))
        given = *blank, self._limited, 1, -math.inf, 0.0, 0.0
        compile_for(insert, self._weighs(), *self._space, self._scorer, *given)

    def _weighs(self) -> tuple[Any, Any, Any, Any]:
        """The addresses of the loops for memory, zeros where it is not limited."""
        if not self._limited:
            return 0, 0, 0, 0
        layout, room, now, usage = self._layout, self._room, self._now, self._usage
        return (
            address_of(peaks, 2, layout, self._listed, room),
            address_of(set_usage, 5, layout, self._edges, room, now, self._work, usage),
            address_of(fits_there, 4, layout, self._edges, now, self._work, usage, 1, 0),
            address_of(shift_fits, 3, layout, self._edges, now, usage, 0, 0),
        )

    @property
    def _space(self) -> tuple[Any, ...]:
        memory = self._listed, self._room, self._usage
        return self._layout, *memory, self._edges, self._now, self._work


def _edges(graph: ComputationGraph) -> Any:
    from regal_jax.heuristics.insertion_kernel import Edges

    n = graph.num_ops
    waiting = graph.control_offset, graph.control_target
    readers = graph.consumer_offset, graph.edge_op
    groups = rows(graph.colocation_leader, np.arange(n), n)
    each = *graph.control_predecessors, *waiting, *readers, *groups
    return Edges(*(ids.astype(np.int64) for ids in each))
