"""The graph as plain Python lists, which are faster than arrays in loops over single ops."""

import dataclasses
import functools
import itertools
from typing import Self

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.graph.topology import rows, stable_order

__all__ = ["Freeing", "Links"]


def _rows(count: int, row: np.ndarray, item: np.ndarray) -> list[list[int]]:
    """The items of each row from 0 to ``count``, ascending."""
    ascending = stable_order(item, int(item.max(initial=0)) + 1)
    bounds, flat = (array.tolist() for array in rows(row[ascending], item[ascending], count))
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]


@dataclasses.dataclass(frozen=True)
class Links:
    """Adjacency of a `ComputationGraph`, row by row. The lists are shared, so callers must not change them.

    Attributes:
      inputs: ``[N]`` tensors that each op reads, ascending.
      outputs: ``[N]`` tensors that each op produces.
      readers: ``[T]`` ops that read each tensor, ascending.
      before: ``[N]`` distinct predecessors (data, then control) of each op.
      after: ``[N]`` distinct successors (data or control) of each op, ascending.
      producer: ``[T]`` op that produces each tensor.
      size: ``[T]`` size of each tensor in bytes.
      temp: ``[N]`` scratch memory of each op in bytes, while it runs.
      keep: ``[T]`` whether each tensor stays in memory to the end.
      resident: ``[N]`` whether each op is resident: its outputs are in memory from time 0.
    """

    inputs: list[list[int]]
    outputs: list[range]
    readers: list[list[int]]
    before: list[list[int]]
    after: list[list[int]]
    producer: list[int]
    size: list[int]
    temp: list[int]
    keep: list[bool]
    resident: list[bool]

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
        ops = np.argsort(numbers)
        tensors = np.lexsort((graph.tensor_port, numbers[graph.tensor_op]))
        called = np.empty(graph.num_tensors, np.int64)
        called[tensors] = np.arange(graph.num_tensors)
        reader, tensor = numbers[graph.edge_op], called[graph.edge_tensor]
        target, source = numbers[graph.control_target], numbers[graph.control_source]
        inputs = _rows(graph.num_ops, reader, tensor)
        producer = numbers[graph.tensor_op[tensors]].tolist()
        before = [
            list(dict.fromkeys([producer[t] for t in row] + control))
            for row, control in zip(inputs, _rows(graph.num_ops, target, source), strict=True)
        ]
        after: list[list[int]] = [[] for _ in before]
        for o, row in enumerate(before):
            for u in row:
                after[u].append(o)
        bounds = np.cumsum([0, *np.diff(graph.output_offset)[ops]]).tolist()
        return cls(
            inputs=inputs,
            outputs=[range(a, b) for a, b in itertools.pairwise(bounds)],
            readers=_rows(graph.num_tensors, tensor, reader),
            before=before,
            after=after,
            producer=producer,
            size=graph.tensor_bytes[tensors].tolist(),
            temp=graph.temp_bytes[ops].tolist(),
            keep=graph.tensor_keep[tensors].tolist(),
            resident=graph.resident[ops].tolist(),
        )

    def allocated(self) -> list[int]:
        """``[N]`` bytes that each op allocates: its outputs, unless it is resident, and scratch memory."""
        return [
            (0 if there else sum(self.size[t] for t in row)) + temp
            for there, row, temp in zip(self.resident, self.outputs, self.temp, strict=True)
        ]


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
