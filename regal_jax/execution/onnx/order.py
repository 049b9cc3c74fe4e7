"""Orders of the nodes of an ONNX model, from a plan or from a file."""

import dataclasses
import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from regal_jax.errors import PlanError
from regal_jax.heuristics.order_costs import order_peak
from regal_jax.importers.onnx_model import OnnxOps
from regal_jax.importers.onnx_nodes import callers, node_reads

__all__ = ["NodeOrders"]

_Key = tuple[int, int]


class NodeOrders:
    """The nodes of one model, and topological orders of them.

    Attributes:
      ops: The graph of the model, and the node of each op.
      node: ``[N]`` int64, the node of the model from which each op was made; -1 if there is none.
    """

    def __init__(self, model: Any, ops: OnnxOps) -> None:
        self.ops = ops
        self.node = np.where(ops.node < 0, -1, callers(model, ops.nodes)[ops.node])
        makers = {value: i for i, node in enumerate(model.graph.node) for value in node.output if value}
        self._before = [
            sorted({makers[v] for v in node_reads(node) if v in makers}) for node in model.graph.node
        ]
        self._after: list[list[int]] = [[] for _ in self._before]
        for i, row in enumerate(self._before):
            for j in row:
                self._after[j].append(i)

    def planned(self, order: Sequence[int]) -> list[int]:
        """The nodes in the order of ops ``order``.

        A node that calls a local function stands where the plan has the last op of the function. A node
        without an op, which is a constant, stands directly before the first node that needs it, or at the end
        if none does.

        Args:
          order: ``[N]`` ops, each after those that it reads from.
        """
        end = len(order)
        place = [-1] * len(self._before)
        for position, op in enumerate(order):
            if self.node[op] >= 0:
                place[self.node[op]] = position
        keys: list[_Key] = [(position, 1) for position in place]
        # Constants read only constants. In reverse order, each constant is visited after its readers.
        for i in reversed(self.filed()):
            if place[i] < 0:
                place[i] = min((place[reader] for reader in self._after[i]), default=end)
                keys[i] = (place[i], 0)
        return self._sorted(keys)

    def filed(self) -> list[int]:
        """The nodes in the order of the file, except those that stand before a node from which they read.

        At each step the first ready node of the file runs.
        """
        return self._sorted([(i, 1) for i in range(len(self._before))])

    def _sorted(self, keys: Sequence[_Key]) -> list[int]:
        """At each step the ready node with the smallest key; ties keep the order of the file."""
        waiting = [len(row) for row in self._before]
        ready = [(*keys[i], i) for i, count in enumerate(waiting) if not count]
        heapq.heapify(ready)
        order = []
        while ready:
            i = heapq.heappop(ready)[-1]
            order.append(i)
            for reader in self._after[i]:
                waiting[reader] -= 1
                if not waiting[reader]:
                    heapq.heappush(ready, (*keys[reader], reader))
        if len(order) < len(keys):
            raise PlanError("the nodes of the ONNX model form a cycle; mend the model")
        return order

    def peak(self, order: Sequence[int]) -> int:
        """Peak memory in bytes of the outputs of nodes in this order, on one device.

        This is `Plan.peak_memory` of the graph without parameters and inputs.
        """
        graph = self.ops.graph
        position = np.empty(len(order), dtype=np.int64)
        position[np.asarray(order, dtype=np.int64)] = np.arange(len(order))
        place = np.where(self.node < 0, -1, position[self.node])
        # Ops without a node are before all nodes, and the ops of one node keep their order.
        ops = np.lexsort((np.arange(graph.num_ops), place))
        free = np.where(graph.tensor_resident, 0, graph.tensor_bytes)
        return order_peak(dataclasses.replace(graph, tensor_bytes=free), ops)
