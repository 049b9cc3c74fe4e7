"""The neighbours of every op, in flat arrays for compiled loops and in lists for Python's loops."""

import dataclasses
import functools
import itertools
from typing import NamedTuple, Self

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.graph.topology import rows, stable_order

__all__ = ["Freeing", "Links", "Rows"]


class Rows(NamedTuple):
    """Rows of whole numbers: row ``i`` has the items from ``bounds[i]`` to ``bounds[i + 1]``.

    Attributes:
      bounds: ``[R + 1]`` int64.
      item: ``[I]`` int64.
    """

    bounds: np.ndarray
    item: np.ndarray

    @classmethod
    def of(cls, count: int, row: np.ndarray, item: np.ndarray) -> Self:
        """The items of each row from 0 to ``count``, ascending."""
        ascending = stable_order(item, int(item.max(initial=0)) + 1)
        return cls(*rows(row[ascending], item[ascending], count))

    @property
    def row(self) -> np.ndarray:
        """``[I]`` row of each item."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    def sums(self, values: np.ndarray) -> np.ndarray:
        """``[R]`` int64 sums of ``values [I]`` int64 over the items of each row."""
        return np.diff(np.concatenate([[0], values.cumsum()])[self.bounds])

    def lists(self) -> list[list[int]]:
        """The rows."""
        flat = self.item.tolist()
        return [flat[a:b] for a, b in itertools.pairwise(self.bounds.tolist())]


@dataclasses.dataclass(frozen=True, eq=False)
class Links:
    """Adjacency of a `ComputationGraph`. Arrays and lists are shared, so callers must not change them.

    Attributes:
      reads: ``[N]`` tensors that each op reads, ascending.
      makes: ``[N]`` tensors that each op produces.
      read_by: ``[T]`` ops that read each tensor, ascending.
      needs: ``[N]`` distinct predecessors (data, then control) of each op.
      needed_by: ``[N]`` distinct successors (data or control) of each op, ascending.
      made_by: ``[T]`` int64, op that produces each tensor.
      sizes: ``[T]`` int64, size of each tensor in bytes.
      temps: ``[N]`` int64, scratch memory of each op in bytes, while it runs.
      kept: ``[T]`` bool, whether each tensor stays in memory to the end.
      there: ``[N]`` bool, whether each op is resident: its outputs are in memory from time 0.
    """

    reads: Rows
    makes: Rows
    read_by: Rows
    needs: Rows
    needed_by: Rows
    made_by: np.ndarray
    sizes: np.ndarray
    temps: np.ndarray
    kept: np.ndarray
    there: np.ndarray

    @classmethod
    def of(cls, graph: ComputationGraph, numbers: np.ndarray | None = None) -> Self:
        """The links of ``graph``.

        Args:
          graph: The graph.
          numbers: ``[N]``, each from 0 to ``N - 1`` once: the links are of the graph whose op ``o`` is
            called ``numbers[o]``, and its tensors accordingly. By default its own numbers.
        """
        if numbers is None or np.array_equal(numbers, np.arange(graph.num_ops)):
            return cls._own(graph)
        return cls._made(graph, numbers)

    @classmethod
    @functools.lru_cache(maxsize=2)  # Cached, since many heuristics ask for the links of the same graph.
    def _own(cls, graph: ComputationGraph) -> Self:
        return cls._made(graph, np.arange(graph.num_ops))

    @classmethod
    def _made(cls, graph: ComputationGraph, numbers: np.ndarray) -> Self:
        n, ops = graph.num_ops, np.argsort(numbers)
        tensors = np.lexsort((graph.tensor_port, numbers[graph.tensor_op]))
        called = np.empty(graph.num_tensors, np.int64)
        called[tensors] = np.arange(graph.num_tensors)
        reader, tensor = numbers[graph.edge_op], called[graph.edge_tensor]
        producer = numbers[graph.tensor_op[tensors]]
        reads = Rows.of(n, reader, tensor)
        control = Rows.of(n, numbers[graph.control_target], numbers[graph.control_source])
        # Each predecessor counts once, at its first place.
        op = np.concatenate([reads.row, control.row])
        before = np.concatenate([producer[reads.item], control.item])
        sequence = stable_order(op, n)
        op, before = op[sequence], before[sequence]
        first = np.sort(np.unique(op * n + before, return_index=True)[1])
        op, before = op[first], before[first]
        return cls(
            reads=reads,
            makes=Rows(*rows(producer, np.arange(graph.num_tensors), n)),
            read_by=Rows.of(graph.num_tensors, tensor, reader),
            needs=Rows(*rows(op, before, n)),
            needed_by=Rows(*rows(before, op, n)),
            made_by=producer,
            sizes=graph.tensor_bytes[tensors],
            temps=graph.temp_bytes[ops],
            kept=graph.tensor_keep[tensors],
            there=graph.resident[ops],
        )

    @functools.cached_property
    def inputs(self) -> list[list[int]]:
        """`reads` as lists."""
        return self.reads.lists()

    @functools.cached_property
    def outputs(self) -> list[range]:
        """`makes` as ranges."""
        return [range(a, b) for a, b in itertools.pairwise(self.makes.bounds.tolist())]

    @functools.cached_property
    def readers(self) -> list[list[int]]:
        """`read_by` as lists."""
        return self.read_by.lists()

    @functools.cached_property
    def before(self) -> list[list[int]]:
        """`needs` as lists."""
        return self.needs.lists()

    @functools.cached_property
    def after(self) -> list[list[int]]:
        """`needed_by` as lists."""
        return self.needed_by.lists()

    @functools.cached_property
    def producer(self) -> list[int]:
        """`made_by` as a list."""
        return self.made_by.tolist()

    @functools.cached_property
    def size(self) -> list[int]:
        """`sizes` as a list."""
        return self.sizes.tolist()

    @functools.cached_property
    def temp(self) -> list[int]:
        """`temps` as a list."""
        return self.temps.tolist()

    @functools.cached_property
    def keep(self) -> list[bool]:
        """`kept` as a list."""
        return self.kept.tolist()

    @functools.cached_property
    def resident(self) -> list[bool]:
        """`there` as a list."""
        return self.there.tolist()

    def allocated(self) -> np.ndarray:
        """``[N]`` int64 bytes that each op allocates: outputs, unless it is resident, and scratch memory."""
        return np.where(self.there, 0, self.makes.sums(self.sizes)) + self.temps

    def unread(self) -> np.ndarray:
        """``[N]`` int64 bytes of the outputs that no op reads and that are no results."""
        alone = (np.diff(self.read_by.bounds) == 0) & ~self.kept
        return self.makes.sums(np.where(alone, self.sizes, 0))


class Freeing:
    """Bytes that each op would free as the last reader of its inputs, kept up to date in O(1)."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.left = [len(row) for row in links.readers]
        # The sum of the indices of readers still to run: when one is left, it is that reader's index.
        self.sum = [sum(row) for row in links.readers]
        self.freed = [0] * len(links.inputs)
        for t, row in enumerate(links.readers):
            if len(row) == 1 and not links.keep[t]:
                self.freed[row[0]] += links.size[t]

    def take(self, op: int) -> list[int]:
        """Marks ``op`` as run; returns the ops that now free more than before."""
        grown = []
        for t in self.links.inputs[op]:
            self.left[t] -= 1
            self.sum[t] -= op
            if self.left[t] == 1 and not self.links.keep[t]:
                reader = self.sum[t]
                self.freed[reader] += self.links.size[t]
                grown.append(reader)
        return grown
