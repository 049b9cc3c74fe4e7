"""The graph as plain Python lists: what loops over ops one by one want."""

import dataclasses
import itertools
from typing import Self

import numpy as np

from regal_jax.graph import ComputationGraph

__all__ = ["Freeing", "Links"]


def _rows(offset: np.ndarray, items: np.ndarray) -> list[list[int]]:
    bounds, flat = offset.tolist(), items.tolist()
    return [flat[a:b] for a, b in itertools.pairwise(bounds)]


@dataclasses.dataclass(frozen=True)
class Links:
    """Adjacency of a `ComputationGraph`, row by row.

    Attributes:
      inputs: ``[N]`` tensors that each op reads, ascending.
      outputs: ``[N]`` tensors that each op produces.
      readers: ``[T]`` ops that read each tensor, ascending.
      before: ``[N]`` distinct predecessors (data, then control) of each op.
      after: ``[N]`` distinct successors (data or control) of each op, ascending.
      producer: ``[T]`` op that produces each tensor.
      size: ``[T]`` bytes.
      temp: ``[N]`` bytes.
      keep: ``[T]``.
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

    @classmethod
    def of(cls, graph: ComputationGraph) -> Self:
        """The links of ``graph``."""
        inputs = _rows(*graph.inputs)
        controls = _rows(*graph.control_predecessors)
        producer = graph.tensor_op.tolist()
        before = [
            list(dict.fromkeys([producer[t] for t in row] + control))
            for row, control in zip(inputs, controls, strict=True)
        ]
        after: list[list[int]] = [[] for _ in before]
        for o, row in enumerate(before):
            for u in row:
                after[u].append(o)
        bounds = graph.output_offset.tolist()
        return cls(
            inputs=inputs,
            outputs=[range(a, b) for a, b in itertools.pairwise(bounds)],
            readers=_rows(graph.consumer_offset, graph.edge_op),
            before=before,
            after=after,
            producer=producer,
            size=graph.tensor_bytes.tolist(),
            temp=graph.temp_bytes.tolist(),
            keep=graph.tensor_keep.tolist(),
        )


class Freeing:
    """Bytes that each op would free as the last reader of its inputs, kept up to date in O(1)."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.left = [len(row) for row in links.readers]
        # The sum of the readers still to run: when one is left, it is that reader.
        self.sum = [sum(row) for row in links.readers]
        self.freed = [0] * len(links.inputs)
        for t, row in enumerate(links.readers):
            if len(row) == 1 and not links.keep[t]:
                self.freed[row[0]] += links.size[t]

    def take(self, op: int) -> list[int]:
        """Counts ``op`` as run; returns the ops that would now free more than before."""
        grown = []
        for t in self.links.inputs[op]:
            self.left[t] -= 1
            self.sum[t] -= op
            if self.left[t] == 1 and not self.links.keep[t]:
                reader = self.sum[t]
                self.freed[reader] += self.links.size[t]
                grown.append(reader)
        return grown
