"""Classes of ops: those of a plain definition, whatever the labels, and what repeated layers need."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import in_order, random_graph, stacked

from regal_jax import Auto, Cluster, ListSearch, PeakSearch, optimize
from regal_jax.api.names import ObjectiveName
from regal_jax.datasets import generate
from regal_jax.graph import ComputationGraph, GraphBuilder, OpClasses, classes, op_classes
from regal_jax.solvers import Solver


def _partition(classes: OpClasses) -> set[frozenset[int]]:
    return {frozenset(classes.ops[a:b].tolist()) for a, b in itertools.pairwise(classes.bounds)}


def _surroundings(graph: ComputationGraph) -> list[object]:
    """For each op, nested tuples of all that is within three edges."""
    ops: list[object] = [
        (kind, temp) for kind, temp in zip(graph.op_kinds, graph.temp_bytes.tolist(), strict=True)
    ]
    tensors: list[object] = list(
        zip(
            graph.tensor_bytes.tolist(),
            graph.tensor_keep.tolist(),
            graph.tensor_resident.tolist(),
            strict=True,
        )
    )
    made, read = graph.tensor_op.tolist(), (graph.edge_tensor.tolist(), graph.edge_op.tolist())
    before = (graph.control_source.tolist(), graph.control_target.tolist())
    for _ in range(6):
        around: list[list[object]] = [[] for _ in ops]
        beside: list[list[object]] = [[] for _ in tensors]
        for t, o in enumerate(made):
            around[o].append(("makes", tensors[t]))
            beside[t].append(("maker", ops[o]))
        for t, o in zip(*read, strict=True):
            around[o].append(("reads", tensors[t]))
            beside[t].append(("reader", ops[o]))
        for u, v in zip(*before, strict=True):
            around[v].append(("after", ops[u]))
            around[u].append(("before", ops[v]))
        # Numbers in place of tuples that would grow.
        names: dict[object, int] = {}
        ops, tensors = (
            [names.setdefault((which, own, tuple(sorted(each, key=str))), len(names)) for own, each in pairs]
            for which, pairs in (
                ("op", list(zip(ops, around, strict=True))),
                ("tensor", list(zip(tensors, beside, strict=True))),
            )
        )
    return ops


def _plain(graph: ComputationGraph) -> set[frozenset[int]]:
    found: dict[object, set[int]] = {}
    for o, name in enumerate(_surroundings(graph)):
        found.setdefault(name, set()).add(o)
    return {frozenset(each) for each in found.values()}


@settings(max_examples=60)
@given(n=st.integers(1, 30), seed=st.integers(0, 2**32 - 1), inputs=st.sampled_from([0.0, 0.7, 2.0]))
def test_they_are_those_of_equal_surroundings(n: int, seed: int, inputs: float) -> None:
    rng = np.random.default_rng(seed)
    graph = random_graph(rng, n, inputs_per_op=inputs, controls_per_op=0.3, size_scale=1)
    # With few sizes there are classes of several ops.
    graph = in_order(graph, np.arange(n), sizes=lambda size: size % 2)
    found = op_classes(graph)
    assert _partition(found) == _plain(graph)
    sizes = np.diff(found.bounds)
    assert (sizes > 0).all()
    assert found.repeated == sizes[sizes > 1].sum() / n
    for c, (a, b) in enumerate(itertools.pairwise(found.bounds)):
        assert (found.of[found.ops[a:b]] == c).all()
        assert (np.diff(found.ops[a:b]) > 0).all()


@settings(max_examples=30)
@given(n=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_the_order_of_ops_names_and_runtimes_change_nothing(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph = in_order(random_graph(rng, n), np.arange(n), sizes=lambda size: size % 2)
    place = rng.permutation(n)
    other = in_order(graph, place, sizes=lambda size: size, runtime=3.0)
    moved = {frozenset(place[list(each)].tolist()) for each in _partition(op_classes(graph))}
    assert _partition(op_classes(other)) == moved


def test_ops_at_the_same_place_of_layers_are_alike() -> None:
    of = op_classes(stacked(generate("erdos-renyi", 12, 0), 10)).of.reshape(10, 12)
    # Up to three edges away the first and the last layers look different.
    middle = of[3:-3]
    assert (middle == middle[0]).all()
    assert len(set(middle[0].tolist())) == 12
    assert of[0, 0] not in middle[0]
    assert of[-1, -1] not in middle[0]


@pytest.mark.parametrize("outputs", [[], [4]])
def test_one_op_and_no_edges(outputs: list[int]) -> None:
    for n in (1, 3):
        builder = GraphBuilder("none")
        for o in range(n):
            builder.add_op(f"o{o}", kind="b" if o == 2 else "a", runtime=o, outputs=outputs)
        found = op_classes(builder.build())
        assert _partition(found) == ({frozenset({0})} if n == 1 else {frozenset({0, 1}), frozenset({2})})
        assert found.repeated == (0 if n == 1 else 2 / 3)


@pytest.mark.filterwarnings("ignore::regal_jax.errors.InfeasiblePlanWarning")
@pytest.mark.parametrize(
    ("solver", "objective"),
    [(ListSearch(), "makespan"), (Auto(), "makespan"), (PeakSearch(), "peak-memory")],
)
def test_a_graph_has_them_once(
    solver: Solver, objective: ObjectiveName, monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[ComputationGraph] = []
    refine = classes.refine

    def counted(graph: ComputationGraph, *colours: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        rounds.append(graph)
        return refine(graph, *colours)

    monkeypatch.setattr(classes, "refine", counted)
    graph = stacked(generate("erdos-renyi", 12, 0), 10)
    for devices in (2, 3):
        # No schedule fits, so that a rule joins list search.
        cluster = Cluster.uniform(devices, memory=1, transfer="nvlink4")
        optimize(graph, cluster, objective=objective, method=solver, evaluations=600)
    assert any(each is graph for each in rounds)
    for graph in rounds:
        assert sum(each is graph for each in rounds) <= 6
    with pytest.raises(ValueError, match="read-only"):
        op_classes(graph).of[0] = 1
