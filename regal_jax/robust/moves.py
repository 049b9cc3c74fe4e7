"""Random moves of single ops of a schedule that is not to become longer than a limit.

The loop is compiled where Numba is installed, and is plain Python over lists where it is not.
"""

from collections import namedtuple
from typing import Any

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph, allowed_matrix
from regal_jax.graph.topology import rows
from regal_jax.robust.timing import predecessors
from regal_jax.runtime.compiling import for_loops, loops, only_borrows, part
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["moved"]

_Edges = namedtuple("_Edges", "into before tensor outof after")
"""What each op waits for, and what waits for it.

Attributes:
  into: ``[N + 1]``, bounds of each op's row in `before` and `tensor`.
  before: ``[E]``, ops that it waits for.
  tensor: ``[E]``, the tensor that it waits for; ``T`` if it waits for no tensor.
  outof: ``[N + 1]``, bounds of each op's row in `after`.
  after: ``[E]``, ops that wait for it.
"""

_Costs = namedtuple("_Costs", "runtime move kind kinds choice")
"""Costs, and the devices on which ops may run.

Attributes:
  runtime: ``[N * D]``, runtime of each op on each device.
  move: ``[(T + 1) * L]``, time of moving each tensor over each kind of link; 0 for the tensor ``T``.
  kind: ``[D * D]``, kind of link between two devices.
  kinds: Number ``L`` of kinds.
  choice: ``[N * D]``, whether an op may be moved to a device.
"""

_State = namedtuple("_State", "sequence device place finish trial clock")
"""A schedule; written to.

Attributes:
  sequence: ``[N]``, ops in the order in which they are scheduled.
  device: ``[N]``, device of each op.
  place: ``[N]``, place of each op in the sequence.
  finish: ``[N]``, end of each op.
  trial: ``[N]``, end of each op after the move that is tried.
  clock: ``[D]``, end of the last op on each device.
"""


def moved(
    graph: ComputationGraph,
    cluster: Cluster,
    sequence: np.ndarray,
    devices: np.ndarray,
    runtime: np.ndarray,
    moves: np.ndarray,
    limit: np.ndarray,
    count: int,
    source: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Schedules after random moves of single ops; moves that exceed a limit are taken back.

    A move changes the place of an op within the order and, half of the time, also its device. Transfers are
    delays. Ops with a colocation group stay on their devices.

    Args:
      graph: The graph, of which the edges and the devices that ops may have count.
      cluster: The cluster, of which the links' kinds count.
      sequence: ``[C, N]`` ops in the order in which they are scheduled.
      devices: ``[C, N]`` device of each op.
      runtime: ``[N, D, C]`` runtimes, of each schedule its own.
      moves: ``[T, L, C]`` time of moving each tensor over each kind of link.
      limit: ``[C]`` longest makespan of each schedule; at least the makespan that it has.
      count: Number of moves of each schedule.
      source: Source of the draws.

    Returns:
      ``(sequence [C, N], devices [C, N])`` int32.
    """
    n, d, _ = runtime.shape
    sequence, devices = (np.array(each, np.int32) for each in (sequence, devices))
    if not count:
        return sequence, devices
    move, edges = loops(_move), for_loops(_edges(graph))
    alone = np.bincount(graph.colocation_leader, minlength=n)[graph.colocation_leader] == 1
    choice = allowed_matrix(graph, cluster) & alone[:, None]
    moves = np.concatenate([moves, np.zeros((1, *moves.shape[1:]))])
    for c in range(len(sequence)):
        check_interrupt()
        costs = _Costs(
            runtime[..., c].ravel(),
            moves[..., c].ravel(),
            cluster.link_index.ravel().astype(np.int64),
            moves.shape[1],
            choice.ravel(),
        )
        order, where = sequence[c].astype(np.int64), devices[c].astype(np.int64)
        state = _State(order, where, np.argsort(order), np.zeros(n), np.zeros(n), np.zeros(d))
        draws = source.random(3 * count)
        sequence[c], devices[c] = move(
            edges, for_loops(costs), for_loops(state), float(limit[c]), for_loops(draws)
        )
    return sequence, devices


def _edges(graph: ComputationGraph) -> Any:
    into, before, tensor = predecessors(graph)
    reader = np.repeat(np.arange(graph.num_ops), np.diff(into))
    outof, after = rows(before, reader, graph.num_ops)
    return _Edges(*(a.astype(np.int64) for a in (into, before, tensor, outof, after)))


@only_borrows
def _shift(sequence: Any, place: Any, here: int, there: int) -> None:
    """Moves the op at one place to another; the ops between them move by one place."""
    op = sequence[here]
    step = 1 if there > here else -1
    for i in range(here, there, step):
        sequence[i] = sequence[i + step]
        place[sequence[i]] = i
    sequence[there] = op
    place[op] = there


_shifts = part(_shift)


@only_borrows
def _time(edges: Any, costs: Any, at: Any, first: int, limit: float) -> bool:
    """Computes `trial` of the ops from place ``first``; stops with ``False`` where one exceeds the limit."""
    d = len(at.clock)
    for i in range(d):
        at.clock[i] = 0.0
    for i in range(first):
        at.clock[at.device[at.sequence[i]]] = at.finish[at.sequence[i]]
    for i in range(first, len(at.sequence)):
        op = at.sequence[i]
        home = at.device[op]
        start = at.clock[home]
        for e in range(edges.into[op], edges.into[op + 1]):
            before = edges.before[e]
            arrival = at.finish[before] if at.place[before] < first else at.trial[before]
            there = at.device[before]
            if there != home:
                arrival += costs.move[edges.tensor[e] * costs.kinds + costs.kind[there * d + home]]
            start = max(start, arrival)
        at.clock[home] = at.trial[op] = start + costs.runtime[op * d + home]
        if at.trial[op] > limit:
            return False
    return True


_is_short = part(_time)


@only_borrows
def _move(edges: Any, costs: Any, at: Any, limit: float, draws: Any) -> Any:
    """``(sequence, device)`` after moves with draws uniform on [0, 1), three for each: op, place, device."""
    sequence, device, place = at.sequence, at.device, at.place
    n, d = len(sequence), len(at.clock)
    _is_short(edges, costs, at, 0, limit)
    for i in range(n):
        at.finish[i] = at.trial[i]
    for k in range(0, len(draws), 3):
        op = int(draws[k] * n)
        # The places between the last op that it waits for and the first one that waits for it.
        low, high = 0, n - 1
        for e in range(edges.into[op], edges.into[op + 1]):
            low = max(low, place[edges.before[e]] + 1)
        for e in range(edges.outof[op], edges.outof[op + 1]):
            high = min(high, place[edges.after[e]] - 1)
        here, there = place[op], low + int(draws[k + 1] * (high - low + 1))
        old = new = device[op]
        if draws[k + 2] < 0.5:
            other = int(2 * draws[k + 2] * d)
            if costs.choice[op * d + other]:
                new = other
        if here == there and old == new:
            continue
        _shifts(sequence, place, here, there)
        device[op] = new
        first = min(here, there)
        if _is_short(edges, costs, at, first, limit):
            for i in range(first, n):
                at.finish[sequence[i]] = at.trial[sequence[i]]
        else:
            _shifts(sequence, place, there, here)
            device[op] = old
    return sequence, device
