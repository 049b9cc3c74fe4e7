"""Starting points of beams of partial orders: a whole graph, or a window of an order.

The ops of a window are reordered; all others keep their steps. The memory held before and after a window does
not depend on the order within it. A window is therefore a problem of the same form as a graph. It consists of
its ops, their allocations, and those of their inputs that are freed within it.
"""

from typing import Any, Final

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.heuristics.beam_kernel import BITS
from regal_jax.heuristics.order_beam import Field, Start
from regal_jax.heuristics.order_costs import OrderCosts, lent, order_costs
from regal_jax.heuristics.orders import bfs_order
from regal_jax.runtime.compiling import for_loops, loops, only_borrows

__all__ = ["Beginning", "Profile"]

_TURNED: Final = {
    "after_rows": "before_rows",
    "after": "before",
    "before_rows": "after_rows",
    "before": "after",
}
"""Fields of costs for backward beams, by the fields for forward beams."""


class Profile:
    """An order, and the memory at each of its steps.

    Attributes:
      costs: Costs of the graph.
      order: ``[N]`` int64 ops.
      peaks: ``[N]`` int64 bytes while each step runs.
      held: ``[N + 1]`` int64 bytes before each step, and at the end.
      step: ``[N]`` int64, the step of each op.
      freed: ``[T]`` int64, the step after which each tensor is freed if it is not kept; -1 without readers.
    """

    def __init__(self, costs: OrderCosts, order: np.ndarray) -> None:
        """The memory of ``order``."""
        n = len(order)
        self.costs, self.order = costs, np.asarray(order, np.int64)
        arrays = [np.empty(size, np.int64) for size in (n, n + 1, n, len(costs.readers))]
        given = for_loops(self.order), for_loops(costs.readers)
        if isinstance(given[0], np.ndarray):
            loops(_profile)(for_loops(costs), *given, *arrays)
        else:
            lists = [[0] * len(each) for each in arrays]
            _profile(for_loops(costs), *given, *lists)
            arrays = [np.array(each, np.int64) for each in lists]
        self.peaks, self.held, self.step, self.freed = arrays

    @property
    def peak(self) -> int:
        """Peak memory in bytes; equal to that of the exact replay."""
        return int(self.peaks.max(initial=self.costs.start))

    def replaced(self, first: int, ops: np.ndarray) -> "Profile":
        """The order with ``ops``, a permutation of the present ones, from step ``first`` on."""
        order = self.order.copy()
        order[first : first + len(ops)] = ops
        return Profile(self.costs, order)


@only_borrows
def _profile(costs: Any, order: Any, left: Any, peaks: Any, held: Any, step: Any, freed: Any) -> None:
    """Sets the arrays of a `Profile`. ``left [T]`` is initially `OrderCosts.readers` and is modified."""
    for t in range(len(freed)):
        freed[t] = -1
    now = costs.start
    for i in range(len(order)):
        o = order[i]
        step[o], held[i], peaks[i] = i, now, now + costs.need[o]
        now += costs.kept[o]
        for j in range(costs.input_rows[o], costs.input_rows[o + 1]):
            t = costs.input_tensor[j]
            left[t] -= 1
            if left[t] == 0:
                now -= costs.input_size[j]
                freed[t] = i
    held[len(order)] = now


class Beginning:
    """The empty partial order, in one direction.

    Attributes:
      field: The ops of the beam.
      start: The partial order.
    """

    def __init__(self, costs: Any, position: np.ndarray, held: int, *, back: bool) -> None:
        """Prepares a beam.

        Args:
          costs: `OrderCosts` of the ops, in the direction of the beam.
          position: ``[N]``, places of the ops in sets.
          held: Bytes held at the start of the beam.
          back: Whether the beam goes backwards.
        """
        n = len(costs.need)
        word, mask = position // BITS, 1 << (position % BITS)
        code = np.random.default_rng(0).integers(0, 2**BITS, n)
        names = set(Field._fields) & set(OrderCosts._fields)
        self.field = for_loops(
            Field(
                **{name: getattr(costs, name) for name in names}, word=word, mask=mask, code=code, back=back
            )
        )
        ready = np.flatnonzero(np.diff(costs.before_rows) == 0)
        # Gains when no op has run: backwards all inputs are allocated, forwards those with one reader freed.
        alone = np.ones(len(costs.input_size), bool)
        if not back:
            alone = np.diff(costs.reader_rows)[costs.input_tensor] == 1
        reader = np.repeat(np.arange(n), np.diff(costs.input_rows))
        inputs = np.bincount(reader, weights=costs.input_size * alone, minlength=n).astype(np.int64)
        gain = inputs - costs.kept if back else costs.kept - inputs
        words = np.zeros(int(word.max(initial=0)) + 1, np.int64)
        self.start = Start(held, lent(ready), lent(gain[ready]), lent(words))

    @classmethod
    def of_graph(cls, graph: ComputationGraph, *, back: bool) -> "Beginning":
        """The beginning for all ops of a graph."""
        costs = order_costs(graph, backwards=back)
        held = int(graph.tensor_bytes[graph.tensor_keep].sum()) if back else costs.start
        return cls(costs, np.argsort(bfs_order(graph)), held, back=back)

    @classmethod
    def of_window(cls, profile: Profile, first: int, last: int, *, back: bool) -> "Beginning":
        """The beginning for the ops at steps ``first`` to ``last - 1``, which are numbered by step."""
        costs, ops = profile.costs, profile.order[first:last]
        local = np.where((profile.step >= first) & (profile.step < last), profile.step - first, -1)
        found: dict[str, np.ndarray] = {"need": costs.need[ops], "kept": costs.kept[ops]}
        for name in ("after", "before"):
            rows, place = _picked(getattr(costs, name + "_rows"), ops)
            other = local[getattr(costs, name)[place]]
            found[name + "_rows"], found[name] = _filtered(rows, other, other >= 0)
        rows, place = _picked(costs.input_rows, ops)
        # An input with a reader after the window stays in memory.
        freed = profile.freed[costs.input_tensor[place]]
        found["input_rows"], place = _filtered(rows, place, freed < last)
        found["input_size"] = costs.input_size[place]
        tensors, found["input_tensor"] = np.unique(costs.input_tensor[place], return_inverse=True)
        rows, place = _picked(costs.reader_rows, tensors)
        reader = local[costs.reader[place]]
        found["reader_rows"], found["reader"] = _filtered(rows, reader, reader >= 0)
        if back:
            found |= {name: found[turned] for name, turned in _TURNED.items()}
        held = int(profile.held[last if back else first])
        part = costs._replace(**found)
        return cls(part, np.arange(last - first), held, back=back)


def _picked(rows: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """``(bounds [K + 1], places)`` of the entries of ``which [K]`` rows, one row after another."""
    sizes = rows[which + 1] - rows[which]
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    places = np.arange(bounds[-1]) + np.repeat(rows[which] - bounds[:-1], sizes)
    return bounds, places


def _filtered(rows: np.ndarray, entries: np.ndarray, stays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bounds and entries of rows without some of the entries."""
    return np.concatenate([[0], np.cumsum(stays)])[rows], entries[stays]
