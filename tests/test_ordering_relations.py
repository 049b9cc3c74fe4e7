"""Tests of the inputs of Topoformer: relations, features and eigenvectors."""

import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import chain, without_edges
from strategies import instances, random_graph

from regal_jax.datasets.layered import layered_graph
from regal_jax.errors import ConfigError
from regal_jax.graph import GraphBuilder
from regal_jax.ordering import (
    FEATURES,
    Relation,
    TopoformerConfig,
    make_order_inputs,
    relation_matrix,
    transitive_closure,
    transitive_reduction,
)
from regal_jax.ordering import eigenvectors as eigenvectors_module
from regal_jax.ordering import relations as relations_module
from regal_jax.ordering.eigenvectors import laplacian_eigenvectors
from regal_jax.ordering.inputs import _hops
from regal_jax.ordering.relations import distinct_edges
from regal_jax.runtime.compiling import compiled

seeds = st.integers(0, 2**32 - 1)
SMALL = TopoformerConfig(eigenvectors=3)


def simple(graph):
    """Its ops and edges for networkx, each pair once."""
    made = nx.DiGraph()
    made.add_nodes_from(range(graph.num_ops))
    made.add_edges_from(zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True))
    made.add_edges_from(zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True))
    return made


def slow_relations(graph):
    """Relations by networkx, pair by pair."""
    given_, n = simple(graph), graph.num_ops
    reduced, before = nx.transitive_reduction(given_), [nx.ancestors(given_, o) for o in range(n)]

    def of(j, i):
        if reduced.has_edge(j, i):
            return 1
        return 2 if given_.has_edge(j, i) else 3 if j in before[i] else 0

    def code(i, j):
        if i == j:
            return 0
        back = of(i, j)
        return of(j, i) or (back + 3 if back else 7)

    return np.array([[code(i, j) for j in range(n)] for i in range(n)])


def diamond():
    """0 -> 1, 2 -> 3, a short cut 0 -> 3 of two tensors and a control edge, and 4 aside."""
    builder = GraphBuilder("diamond")
    builder.add_op("a", runtime=1, outputs=[3, 5])
    builder.add_op("b", runtime=1, outputs=[4], inputs=[(0, 0)], temp_bytes=6)
    builder.add_op("c", runtime=1, outputs=[2], control_inputs=[0])
    builder.add_op(
        "d", runtime=1, inputs=[(0, 0), (0, 1), (1, 0), (2, 0)], control_inputs=[0, 1], temp_bytes=3
    )
    builder.add_op("e", runtime=1, outputs=[1])
    return builder.build()


# Relations ------------------------------------------------------------------------------------------


@given(instances(max_ops=14, devices=(1,)))
def test_relations_are_those_of_networkx(instance):
    graph, _ = instance
    expected, found = slow_relations(graph), relation_matrix(graph)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(transitive_closure(graph), (expected > 0) & (expected <= 3))
    reduced = nx.transitive_reduction(simple(graph)).edges
    source, target = transitive_reduction(graph)
    assert sorted(zip(source.tolist(), target.tolist(), strict=True)) == sorted(reduced)


@pytest.mark.parametrize("numba", [True, False], ids=["numba", "numpy"])
@pytest.mark.parametrize("n", [63, 64, 65, 130])
def test_relations_of_more_ops_than_a_word_has_bits(n, numba, monkeypatch):
    if numba:
        pytest.importorskip("numba")
    monkeypatch.setattr(relations_module, "usable", lambda: numba)
    monkeypatch.setattr(relations_module, "SMALL", 1)
    graph = random_graph(np.random.default_rng(n), n)
    np.testing.assert_array_equal(relation_matrix(graph), slow_relations(graph))
    source, target = transitive_reduction(graph)
    expected = nx.transitive_reduction(simple(graph)).edges
    assert sorted(zip(source.tolist(), target.tolist(), strict=True)) == sorted(expected)


@given(instances(devices=(1,)))
def test_relations_are_complete_and_come_in_pairs(instance):
    codes = relation_matrix(instance[0])
    assert (codes.diagonal() == Relation.NONE).all()
    others = codes[~np.eye(len(codes), dtype=bool)]
    assert ((others >= 1) & (others <= 7)).all()
    back = np.array([0, 4, 5, 6, 1, 2, 3, 7])
    np.testing.assert_array_equal(codes.T, back[codes])


def test_relations_by_hand():
    assert relation_matrix(diamond()).tolist() == [
        [0, 4, 4, 5, 7],
        [1, 0, 7, 4, 7],
        [1, 7, 0, 4, 7],
        [2, 1, 1, 0, 7],
        [7, 7, 7, 7, 0],
    ]


def test_relations_of_the_smallest_graphs():
    assert relation_matrix(chain(1)).tolist() == [[0]]
    assert relation_matrix(chain(2)).tolist() == [[0, 4], [1, 0]]
    lone = without_edges(chain(3))
    assert relation_matrix(lone).tolist() == [[0, 7, 7], [7, 0, 7], [7, 7, 0]]
    assert not transitive_closure(lone).any()
    assert transitive_reduction(lone)[0].shape == (0,)


def test_relations_load_no_jax():
    code = (
        "import sys; from regal_jax.ordering import Relation, TopoformerConfig, relation_matrix; "
        "print('jax' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# Features -------------------------------------------------------------------------------------------


def slow_features(graph):
    """Features before normalisation, by networkx."""
    edges, n = simple(graph), graph.num_ops

    def hops(graph_, o):
        """Fewest and most to ``o`` from a node without predecessors."""
        before = list(graph_.predecessors(o))
        ways = [hops(graph_, u) for u in before] or [(-1, -1)]
        return min(few for few, _ in ways) + 1, max(many for _, many in ways) + 1

    found, back = [], edges.reverse()
    for o in range(n):
        output = int(graph.tensor_bytes[graph.tensor_op == o].sum())
        degrees = edges.in_degree(o), edges.out_degree(o)
        found.append([output, int(graph.temp_bytes[o]), *degrees, *hops(edges, o), *hops(back, o)])
    return np.array(found, float)


@given(instances(devices=(1,)))
def test_features_are_those_of_a_slow_version(instance):
    graph, _ = instance
    raw = slow_features(graph)
    largest = raw.max(axis=0)
    expected = np.divide(raw, largest, out=np.zeros_like(raw), where=largest > 0)
    found = make_order_inputs([graph], SMALL).features[0]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert found.dtype == np.float32


def test_features_by_hand():
    raw = np.array([
        # Bytes, temp, in, out, from sources, to targets.
        [8, 0, 0, 3, 0, 0, 1, 2],
        [4, 6, 1, 1, 1, 1, 1, 1],
        [2, 0, 1, 1, 1, 1, 1, 1],
        [0, 3, 3, 0, 1, 2, 0, 0],
        [1, 0, 0, 0, 0, 0, 0, 0],
    ])  # fmt: skip
    found = make_order_inputs([diamond()], SMALL).features[0]
    np.testing.assert_allclose(found, raw / [8, 6, 3, 3, 1, 2, 1, 2], rtol=1e-6)
    assert found.shape[1] == len(FEATURES)


def slow_hops(graph):
    """Hops by networkx, from all sources and to all targets at once."""
    columns = []
    for edges in (simple(graph), simple(graph).reverse()):
        edges.add_edges_from([(-1, o) for o in list(edges) if not edges.in_degree(o)])
        few = nx.single_source_shortest_path_length(edges, -1)
        many = dict.fromkeys(edges, 0)
        for u in nx.topological_sort(edges):
            for v in edges.successors(u):
                many[v] = max(many[v], many[u] + 1)
        columns += [[d[o] - 1 for o in range(graph.num_ops)] for d in (few, many)]
    return np.array(columns).T


def test_hops_of_many_ops_also_in_compiled_loops():
    pytest.importorskip("numba")
    graph = layered_graph(np.random.default_rng(0), 300)
    raw = slow_hops(graph)
    found = make_order_inputs([graph], SMALL).features[0, :, 4:]
    np.testing.assert_allclose(found, raw / raw.max(axis=0), rtol=1e-6)
    links, zeros = distinct_edges(graph), np.zeros((2, 300), np.int64)
    loops = compiled(_hops)(*zeros, graph.topological_order, links.offset, links.source)
    np.testing.assert_array_equal(loops, raw[:, :2].T)


# Eigenvectors ---------------------------------------------------------------------------------------


def laplacian(graph):
    """The dense Laplacian by its definition, and its first eigenvector."""
    n = graph.num_ops
    adjacency = np.zeros((n, n))
    for u, v in simple(graph).edges:
        adjacency[u, v] = adjacency[v, u] = 1
    degree = adjacency.sum(axis=1)
    root = np.where(degree > 0, 1 / np.sqrt(np.maximum(degree, 1)), 0)
    matrix = np.diag((degree > 0).astype(float)) - adjacency * np.outer(root, root)
    first = np.sqrt(degree) if degree.any() else np.ones(n)
    return matrix, first / np.linalg.norm(first)


def check_eigenvectors(graph, count, tolerance):
    matrix, first = laplacian(graph)
    found = laplacian_eigenvectors(distinct_edges(graph), count)
    known = min(count, graph.num_ops - 1)
    assert found.shape == (graph.num_ops, count)
    assert not found[:, known:].any()
    vectors = found[:, :known]
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(known), atol=1e-9)
    np.testing.assert_allclose(first @ vectors, 0, atol=1e-9)
    values = (vectors * (matrix @ vectors)).sum(axis=0)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=tolerance)
    np.testing.assert_allclose(values, np.linalg.eigvalsh(matrix)[1 : known + 1], atol=tolerance)
    largest = np.abs(vectors).max(axis=0, initial=0)
    np.testing.assert_allclose(vectors.max(axis=0, initial=0), largest, rtol=2e-5)


@given(instances(max_ops=14, devices=(1,)), st.integers(0, 16))
def test_eigenvectors_of_few_ops(instance, count):
    check_eigenvectors(instance[0], count, 1e-9)


def parts(sizes):
    """Chains side by side."""
    builder = GraphBuilder("parts")
    for part, length in enumerate(sizes):
        for o in range(length):
            inputs = [f"{part}-{o - 1}"] if o else []
            builder.add_op(f"{part}-{o}", runtime=1, outputs=[1], inputs=inputs)
    return builder.build()


@pytest.mark.parametrize("numba", [True, False])
@pytest.mark.parametrize(
    "graph",
    [
        layered_graph(np.random.default_rng(0), 200),
        random_graph(np.random.default_rng(1), 250),
        chain(160),
        parts([40, 40, 50, 1, 1, 3]),
        parts([1] * 120),
    ],
    ids=["layered", "random", "chain", "parts", "no edge"],
)
def test_eigenvectors_of_many_ops(graph, numba, monkeypatch):
    if numba:
        pytest.importorskip("numba")
    monkeypatch.setattr(eigenvectors_module, "usable", lambda: numba)
    check_eigenvectors(graph, 20, 2e-6)


def test_both_ways_find_the_same_eigenvectors(monkeypatch):
    links = distinct_edges(layered_graph(np.random.default_rng(3), 150))
    large = laplacian_eigenvectors(links, 8)
    monkeypatch.setattr(eigenvectors_module, "_DENSE", 1000)
    dense = laplacian_eigenvectors(links, 8)
    matrix, _ = laplacian(layered_graph(np.random.default_rng(3), 150))
    gaps = np.diff(np.linalg.eigvalsh(matrix)[:10]).min()
    assert gaps > 1e-3  # With a smaller gap, eigenvectors could mix.
    np.testing.assert_allclose(large, dense, atol=1e-4)


def test_the_first_eigenvector_of_a_chain_by_hand():
    found = laplacian_eigenvectors(distinct_edges(chain(3)), 4)
    # Of 1, 2, 1 edges: eigenvalues 0, 1 and 2.
    half = np.sqrt(0.5)
    np.testing.assert_allclose(found[:, 0], [half, 0, -half], atol=1e-12)
    np.testing.assert_allclose(found[:, 1], [-0.5, half, -0.5], atol=1e-12)
    assert not found[:, 2:].any()
    assert not laplacian_eigenvectors(distinct_edges(chain(1)), 4).any()


# Inputs ---------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(instances(devices=(1,)), instances(devices=(1,)))
def test_padding_is_zeros_and_company_changes_nothing(one, other):
    graphs = [one[0], other[0]]
    both = make_order_inputs(graphs, SMALL, ops=15)
    for row, graph in enumerate(graphs):
        n, alone = graph.num_ops, make_order_inputs([graph], SMALL)
        assert alone.features.shape[1] == n
        np.testing.assert_array_equal(both.mask[row], np.arange(15) < n)
        for name in ("features", "spectral"):
            array = getattr(both, name)[row]
            np.testing.assert_array_equal(array[:n], getattr(alone, name)[0])
            assert not array[n:].any()
        np.testing.assert_array_equal(both.relations[row, :n, :n], alone.relations[0])
        assert not both.relations[row, n:].any()
        assert not both.relations[row, :, n:].any()


@pytest.mark.parametrize(
    ("graphs", "ops", "message"),
    [
        ([], None, "no graphs; give at least one"),
        ([chain(3), chain(5)], 4, "graph 'chain' has 5 ops, more than 4; give more ops"),
        ([chain(3)], 3.5, "ops: must be a whole number of at least 1, got 3.5"),
    ],
)
def test_inputs_that_cannot_be(graphs, ops, message):
    with pytest.raises(ConfigError, match=message):
        make_order_inputs(graphs, SMALL, ops)
