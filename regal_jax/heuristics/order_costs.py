"""Memory of orders on one device: a graph in flat arrays, peaks of orders, random orders."""

from collections import namedtuple
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from regal_jax.checks import check_whole
from regal_jax.errors import PlanError
from regal_jax.graph import ComputationGraph
from regal_jax.graph.arrays import all_edges
from regal_jax.heuristics.links import Links
from regal_jax.plan.replay import as_ids
from regal_jax.runtime.compiling import for_loops, loops, only_borrows, run_loops, usable
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible

__all__ = ["OrderCosts", "kahn", "least_random_order", "lent", "order_costs", "order_peak", "space"]

_PEAK_SECONDS: Final = 2e-6
"""Interpreted loops: seconds per op and per edge."""
_AT_ONCE: Final = 64
"""Random orders between two checks for interrupts."""

OrderCosts = namedtuple(
    "OrderCosts",
    "start need kept after_rows after before_rows before input_rows input_size input_tensor reader_rows "
    "reader readers",
)
"""A graph on one device. Lists of lists are flat, with the bounds of each row; sizes are in bytes.

Attributes:
  start: Memory held at time 0: the outputs of residents.
  need: ``[N]``, what an op allocates: outputs, unless it is resident, and scratch memory.
  kept: ``[N]``, growth of the memory held once an op has run, before inputs are freed: outputs that are read
    or are results. Negative for a resident with unread outputs.
  after_rows, after: ``[N + 1]``, ``[E]``, distinct successors, ascending.
  before_rows, before: ``[N + 1]``, ``[E]``, distinct predecessors.
  input_rows, input_size, input_tensor: ``[N + 1]``, ``[I]``, ``[I]``, the inputs that an op may free.
  reader_rows, reader: ``[T + 1]``, ``[E]``, the ops that read each tensor, ascending.
  readers: ``[T]``, number of ops that read a tensor.
"""


def order_costs(graph: ComputationGraph, *, backwards: bool = False) -> OrderCosts:
    """The costs of ``graph``, in arrays of int64.

    Args:
      graph: The graph.
      backwards: Exchange successors and predecessors; everything else stays the same.
    """
    links = Links.of(graph)
    need, reads = links.allocated(), links.reads
    freed = (~links.kept & (links.sizes > 0))[reads.item]
    inputs = reads.item[freed]
    after, before = links.needed_by, links.needs
    if backwards:
        after, before = before, after
    return OrderCosts(
        int(links.makes.sums(links.sizes)[links.there].sum()),
        need,
        need - links.temps - links.unread(),
        *after,
        *before,
        np.concatenate([[0], np.cumsum(freed)])[reads.bounds],
        links.sizes[inputs],
        inputs,
        *links.read_by,
        np.diff(links.read_by.bounds),
    )


def space(count: int, kind: type = np.int64) -> Any:
    """``count`` numbers that loops may write to: an uninitialised array if compiled, else a list of zeros."""
    return np.empty(count, kind) if usable() else [0] * count


def lent(array: np.ndarray) -> Any:
    """``array`` itself for compiled loops, which may write to it; a list of its values in Python."""
    return array if usable() else array.tolist()


def order_peak(graph: ComputationGraph, order: np.ndarray) -> int:
    """Peak memory of ``order [N]`` on one device in bytes, equal to that of the exact replay.

    Raises:
      PlanError: It does not have every op once, or an op is before another one that it waits for.
    """
    order = as_ids("order", order)
    if len(order) != graph.num_ops or (np.sort(order) != np.arange(graph.num_ops)).any():
        raise PlanError(f"order: give each of the {graph.num_ops} ops of {graph.name!r} once")
    position = np.argsort(order)
    before, after = all_edges(graph)
    late = position[before] > position[after]
    if late.any():
        names = [graph.op_names[ops[np.argmax(late)]] for ops in (after, before)]
        raise PlanError(f"order: op {names[0]!r} is before {names[1]!r}, for which it waits")
    costs = order_costs(graph)
    seconds = _PEAK_SECONDS * (len(order) + len(costs.reader))
    return int(run_loops(peak, costs, order, costs.readers.copy(), seconds=seconds))


@only_borrows
def peak(costs: Any, order: Any, left: Any) -> int:
    """`order_peak` as loops. ``left [T]`` begins as `OrderCosts.readers` and is written to."""
    held = highest = costs.start
    for o in order:
        highest = max(highest, held + costs.need[o])
        held += costs.kept[o]
        for j in range(costs.input_rows[o], costs.input_rows[o + 1]):
            t = costs.input_tensor[j]
            left[t] -= 1
            if left[t] == 0:
                held -= costs.input_size[j]
    return highest


@interruptible()
def least_random_order(
    graph: ComputationGraph, count: int, seed: int | Sequence[int] = 0, seconds: float | None = None
) -> np.ndarray:
    """``[N]``, the order of the lowest peak among random ones on one device, the first on ties.

    Each order takes a uniformly random ready op at every step, independently of the other orders.

    Args:
      graph: The graph.
      count: Number of orders, at least 1.
      seed: As `numpy.random.default_rng` takes it.
      seconds: Time limit, after which no more orders are drawn; a few are drawn in any case.

    Raises:
      ConfigError: The number of orders is out of range.
    """
    count = check_whole("random orders: count", count, 1)
    deadline = Deadline(seconds)
    random, costs = np.random.default_rng(seed), order_costs(graph)
    n = graph.num_ops
    arrays = for_loops(costs)
    trial, best = space(n), space(n)
    least = -1
    for first in range(0, count, _AT_ONCE):
        check_interrupt()
        if first and deadline.over:
            break
        for draws in random.random((min(_AT_ONCE, count - first), n)):
            waiting, left = for_loops(np.diff(costs.before_rows)), for_loops(costs.readers)
            loops(kahn)(arrays, for_loops(draws), waiting, trial)
            value = loops(peak)(arrays, trial, left)
            if least < 0 or value < least:
                least, trial, best = value, best, trial
    return np.array(best, dtype=np.int64)


@only_borrows
def kahn(costs: Any, draws: Any, waiting: Any, order: Any) -> None:
    """Sets ``order [N]``: at each step the ready op that the draw in [0, 1) selects.

    ``waiting [N]`` holds the numbers of predecessors and is written to.
    """
    n = len(order)
    ready = 0  # ``order[:ready]``: the ops taken so far, then the ready ones.
    for o in range(n):
        if waiting[o] == 0:
            order[ready] = o
            ready += 1
    for step in range(n):
        chosen = step + int(draws[step] * (ready - step))
        o = order[chosen]
        order[chosen] = order[step]
        order[step] = o
        for j in range(costs.after_rows[o], costs.after_rows[o + 1]):
            v = costs.after[j]
            waiting[v] -= 1
            if waiting[v] == 0:
                order[ready] = v
                ready += 1
