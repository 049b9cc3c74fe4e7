"""A pass for Inductor that orders its kernels for the least peak memory."""

import importlib
import warnings
from typing import Any

from torch._inductor.custom_graph_pass import CustomSchedulerPass

from regal_jax.api import order
from regal_jax.checks import check_number
from regal_jax.graph import ComputationGraph, GraphBuilder
from regal_jax.importers.torch_quiet import quiet
from regal_jax.plan import Objective
from regal_jax.solvers import Solver, solver

__all__ = ["KernelOrder", "inductor_options"]


def inductor_options(method: str | Solver = "order-search", time_limit: float = 10.0) -> dict[str, Any]:
    """Options of `torch.compile` with which Inductor runs its kernels in an order of less peak memory.

    When Inductor has decomposed and fused the ops of a graph, the order of its kernels is searched for. The
    result is never worse than Inductor's own order by Inductor's own estimate of memory. Forward and backward
    graphs are ordered each for itself. Inductor's caches work as usual.

    Args:
      method: What orders them, as in `regal_jax.order`.
      time_limit: Seconds for each graph that is compiled.

    Raises:
      ConfigError: ``method`` is unknown or not for peak memory, or ``time_limit`` is no number of seconds.

    Examples:
      >>> from regal_jax.execution import inductor_options
      >>> sorted(inductor_options())
      ['_post_fusion_custom_pass', 'reorder_for_peak_memory']
    """
    check_number("time_limit", time_limit, 0, 1e6)
    chosen = solver(method)
    chosen.agenda(Objective.PEAK_MEMORY, 1)  # Raises an error for an objective that it does not support.
    return {
        "reorder_for_peak_memory": False,
        "_post_fusion_custom_pass": KernelOrder(chosen, time_limit),
    }


class KernelOrder(CustomSchedulerPass):
    """A pass over the nodes of Inductor's scheduler; see `inductor_options`."""

    def __init__(self, method: Solver, time_limit: float) -> None:
        self._method, self._limit = method, time_limit

    def uuid(self) -> str:
        """What distinguishes the pass from others in Inductor's caches."""
        return f"regal_jax.KernelOrder({self._method!r}, {self._limit!r})"

    def __call__(self, nodes: list[Any]) -> list[Any]:
        """The nodes in the best order known: Inductor's, or one that was searched for.

        If anything fails, such as after a change of Inductor, they stay as they are, with a warning.
        """
        try:
            return self._ordered(nodes)
        except Exception as error:
            warnings.warn(
                f"regal_jax: the kernels keep Inductor's order: {type(error).__name__}: {error}", stacklevel=2
            )
            return nodes

    def _ordered(self, nodes: list[Any]) -> list[Any]:
        memory: Any = importlib.import_module("torch._inductor.memory")
        graph: Any = importlib.import_module("torch._inductor.virtualized").V.graph
        scheduler = graph.scheduler
        ordered: Any = importlib.import_module("torch.utils._ordered_set").OrderedSet
        results = ordered(graph.get_output_names())
        known = (scheduler.name_to_buf, scheduler.name_to_fused_node, ordered(graph.graph_inputs), results)
        own = memory.reorder_for_peak_memory(nodes, *known)
        _, inputs = memory.prepare_planning_info(nodes, *known)
        with quiet():
            plan = order(kernel_graph(own, inputs, results), method=self._method, time_limit=self._limit)
        sequence = plan.timeline.op[plan.timeline.port < 0] - len(inputs)
        found = [own[i] for i in sequence.tolist() if i >= 0]
        peaks = [memory.estimate_peak_memory(each, inputs, results)[0] for each in (own, found)]
        return found if peaks[1] < peaks[0] else own


def kernel_graph(nodes: list[Any], inputs: dict[str, Any], results: Any) -> ComputationGraph:
    """The graph of Inductor's kernels, with the buffers of its memory planning.

    Args:
      nodes: Scheduler nodes in an order in which they can run, with ``mpi_node``.
      inputs: Inputs of the compiled function that it may free, by name, with ``mpi_buffer``.
      results: Names of buffers that the function returns.

    Returns:
      The graph: an op for each of ``inputs``, then one for each node.
    """
    builder = GraphBuilder("kernels")
    reads: dict[Any, list[tuple[int, int]]] = {node: [] for node in nodes}
    for i, (name, buffer) in enumerate(inputs.items()):
        size, keep = buffer.mpi_buffer.size_free, [0] if name in results else []
        builder.add_op(f"input_{i}", outputs=[size], keep=keep, resident=True)
        for reader in buffer.mpi_buffer.succ_nodes:
            reads[reader].append((i, 0))
    index = {node: len(inputs) + i for i, node in enumerate(nodes)}
    for node in nodes:
        buffers = list(node.get_outputs())
        op = builder.add_op(
            node.get_name(),
            runtime=1.0,
            outputs=[buffer.mpi_buffer.size_alloc for buffer in buffers],
            keep=[k for k, buffer in enumerate(buffers) if buffer.get_name() in results],
            inputs=sorted(set(reads[node])),
            control_inputs=sorted(index[before] for before in node.mpi_node.pred_nodes),
        )
        for port, buffer in enumerate(buffers):
            # An op with several results owns the memory of all of them; other ops read that memory.
            parts = [buffer, *_parts(buffer)] if not buffer.mpi_buffer.size_free else [buffer]
            for part in parts:
                for reader in part.mpi_buffer.succ_nodes:
                    if reader is not node:
                        reads[reader].append((op, port))
    return builder.build()


def _parts(buffer: Any) -> list[Any]:
    users = (user.node for user in buffer.users)
    return [part for user in users if hasattr(user, "get_outputs") for part in user.get_outputs()]
