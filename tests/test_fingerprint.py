"""The topology hash: equal under relabelling, and as strong as documented."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph

from regal_jax.graph import ComputationGraph, GraphBuilder, topology_hash


def _relabelled(graph: ComputationGraph, rng: np.random.Generator) -> ComputationGraph:
    """The same topology with other names, numbers, costs, and orders of ops, outputs and inputs."""
    place = rng.permutation(graph.num_ops)
    builder = GraphBuilder("another", "us")
    port = np.zeros(graph.num_tensors, dtype=int)
    outputs = np.diff(graph.output_offset)
    for o in range(graph.num_ops):
        first = graph.output_offset[o]
        port[first : first + outputs[o]] = rng.permutation(outputs[o])
    tensors = np.split(graph.inputs[1], graph.inputs[0][1:-1])
    controls = np.split(graph.control_predecessors[1], graph.control_predecessors[0][1:-1])
    for o in np.argsort(place).tolist():
        reads = [(int(place[graph.tensor_op[t]]), int(port[t])) for t in rng.permutation(tensors[o])]
        builder.add_op(
            f"renamed{o}",
            kind="other",
            runtime=float(rng.random()),
            outputs=[int(rng.integers(100)) for _ in range(outputs[o])],
            inputs=reads,
            control_inputs=[int(place[u]) for u in controls[o]],
        )
    return builder.build()


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_relabelling_changes_nothing(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n, constraints=False)
    assert topology_hash(_relabelled(graph, rng)) == topology_hash(graph)


def _dag(n: int, edges: set[tuple[int, int]], *, control: bool = False) -> ComputationGraph:
    builder = GraphBuilder("dag")
    for v in range(n):
        above = [u for u in range(v) if (u, v) in edges]
        inputs = {"control_inputs": above} if control else {"inputs": [(u, 0) for u in above]}
        builder.add_op(f"op{v}", runtime=1.0, outputs=[1], **inputs)
    return builder.build()


@pytest.mark.parametrize("control", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_all_small_dags_are_told_apart(control: bool) -> None:
    # The number of unlabelled DAGs with n nodes, OEIS A003087: every class has its own hash.
    for n, expected in ((1, 1), (2, 2), (3, 6), (4, 31), (5, 302)):
        pairs = list(itertools.combinations(range(n), 2))
        hashes = {
            topology_hash(_dag(n, set(edges), control=control))
            for k in range(len(pairs) + 1)
            for edges in itertools.combinations(pairs, k)
        }
        assert len(hashes) == expected


def _outputs(*readers: list[int]) -> ComputationGraph:
    """A graph of an op with one output for each list, read by those of three ops that the list names."""
    builder = GraphBuilder("ports")
    builder.add_op("root", runtime=1.0, outputs=[1] * len(readers))
    for v in range(3):
        ports = [(0, port) for port, read in enumerate(readers) if v in read]
        builder.add_op(f"reader{v}", runtime=1.0, outputs=[], inputs=ports)
    return builder.build()


def test_which_tensor_is_read_counts() -> None:
    graphs = [
        _outputs([0, 1, 2]),
        _outputs([0], [1], [2]),
        _outputs([0, 1], [2]),
        _outputs([0, 1, 2], []),
        _outputs([0, 1], [1, 2]),
        _dag(4, {(0, 1), (0, 2), (0, 3)}),
        _dag(4, {(0, 1), (0, 2), (0, 3)}, control=True),
    ]
    assert len({topology_hash(g) for g in graphs}) == len(graphs)


def test_its_stated_limit() -> None:
    # One ring of six and two rings of three: all neighbourhoods are equal, so the hashes cannot differ.
    def rings(*sizes: int) -> ComputationGraph:
        builder = GraphBuilder("rings")
        for i in range(sum(sizes)):
            builder.add_op(f"producer{i}", runtime=1.0, outputs=[1])
        start = 0
        for size in sizes:
            for i in range(size):
                reads = [(start + i, 0), (start + (i + 1) % size, 0)]
                builder.add_op(f"consumer{start + i}", runtime=1.0, outputs=[], inputs=reads)
            start += size
        return builder.build()

    assert topology_hash(rings(6)) == topology_hash(rings(3, 3))
    assert topology_hash(rings(6)) != topology_hash(rings(5))
