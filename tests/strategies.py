"""Random instances for hypothesis, small and shrinking towards fewer ops and one device.

`random_graph` and `random_cluster` take a NumPy generator; `instances` draws from them.
"""

from collections.abc import Callable, Sequence

import numpy as np
from hypothesis import strategies as st

from benchmarks.random_cases import random_cluster, random_graph, random_keys
from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder, TransferModel

__all__ = ["in_order", "instances", "random_cluster", "random_graph", "random_keys", "stacked"]

Instance = tuple[ComputationGraph, Cluster]


@st.composite
def instances(
    draw: st.DrawFn,
    max_ops: int = 12,
    devices: Sequence[int] = (1, 2, 3, 4),
    transfers: Sequence[TransferModel | str] = tuple(TransferModel),
    size_scale: int = 1,
    constraints: bool = True,
) -> Instance:
    """A random graph and a cluster that can run it, apart from its memory capacities."""
    num_ops, d = draw(st.integers(1, max_ops)), draw(st.sampled_from(devices))
    model = draw(st.sampled_from(transfers))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    graph = random_graph(
        rng,
        num_ops,
        d,
        inputs_per_op=draw(st.sampled_from([0.0, 1.5, 4.0])),
        controls_per_op=draw(st.sampled_from([0.0, 0.5])),
        constraints=constraints,
        size_scale=size_scale,
    )
    return graph, random_cluster(rng, d, model, memory_scale=100.0 * size_scale)


def in_order(
    graph: ComputationGraph,
    place: np.ndarray,
    *,
    sizes: Callable[[int], int] = lambda size: size,
    runtime: float | None = None,
) -> ComputationGraph:
    """The graph with op ``o`` as number ``place[o]``, other names and, if given, other sizes and runtimes."""
    builder = GraphBuilder("another")
    tensors = np.split(graph.inputs[1], graph.inputs[0][1:-1])
    controls = np.split(graph.control_predecessors[1], graph.control_predecessors[0][1:-1])
    for o in np.argsort(place).tolist():
        made = range(graph.output_offset[o], graph.output_offset[o + 1])
        builder.add_op(
            f"renamed{o}",
            kind=graph.op_kinds[o],
            runtime=float(np.mean(graph.runtime[o]))
            if runtime is None
            else runtime * (not graph.resident[o]),
            temp_bytes=sizes(int(graph.temp_bytes[o])),
            outputs=[sizes(int(graph.tensor_bytes[t])) for t in made],
            keep=[int(graph.tensor_port[t]) for t in made if graph.tensor_keep[t]],
            inputs=[(int(place[graph.tensor_op[t]]), int(graph.tensor_port[t])) for t in tensors[o]],
            control_inputs=[int(place[u]) for u in controls[o]],
            resident=bool(graph.resident[o]),
        )
    return builder.build()


def stacked(block: ComputationGraph, count: int) -> ComputationGraph:
    """Copies of a block in a row: sources read what the copy before makes and does not read itself."""
    builder = GraphBuilder("stacked")
    tensors = np.split(block.inputs[1], block.inputs[0][1:-1])
    unread = np.flatnonzero(np.diff(block.consumer_offset) == 0)
    last: list[tuple[int, int]] = []
    for i in range(count):
        ops: list[int] = []
        for o in range(block.num_ops):
            inputs = [(ops[block.tensor_op[t]], int(block.tensor_port[t])) for t in tensors[o]]
            made = range(block.output_offset[o], block.output_offset[o + 1])
            ops.append(
                builder.add_op(
                    f"{i}-{o}",
                    kind=f"{block.op_kinds[o]}{o}",
                    runtime=float(block.runtime[o]),
                    outputs=[int(block.tensor_bytes[t]) for t in made],
                    inputs=inputs if len(tensors[o]) else [*inputs, *last],
                )
            )
        last = [(ops[block.tensor_op[t]], int(block.tensor_port[t])) for t in unread]
    return builder.build()
