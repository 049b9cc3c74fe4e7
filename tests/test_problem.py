"""Tests of buckets and of the arrays that go to the device."""

import dataclasses

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances, random_graph

from regal_jax.errors import ClusterError, ConfigError, GraphError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.problem import Bucket, make_problem, memory_unit


def one_op(runtime: float = 1.0, outputs: tuple[int, ...] = (), **options):
    builder = GraphBuilder("one")
    builder.add_op("a", runtime=runtime, outputs=outputs, **options)
    return builder.build()


@given(instances(max_ops=40))
def test_own_bucket_holds_the_graph_and_wastes_little(instance):
    graph, _ = instance
    bucket = Bucket.of(graph)
    bucket.check_holds(graph)
    # Small graphs share buckets; what padding costs there is microseconds.
    assert bucket.ops <= max(64, 2 * graph.num_ops)
    assert bucket.tensors <= max(64, 2 * max(graph.num_tensors, bucket.ops))
    assert (bucket.controls == 0) == (len(graph.control_source) == 0)


@given(st.integers(65, 4000), st.integers(0, 4000))
def test_padding_of_genes_is_less_than_half_and_of_large_graphs_a_third(ops, tensors):
    builder = GraphBuilder("wide")
    builder.add_op("a", outputs=[1] * tensors)
    for o in range(1, ops):
        builder.add_op(f"op{o}")
    bucket = Bucket.of(builder.build())

    def fits(size, padded):
        return size <= padded < (1.5 if size > 1024 else 2) * size or padded == size

    assert fits(ops, bucket.ops)
    # A graph with fewer tensors than ops is padded to as many: genes of tensors are half of all at most.
    assert tensors <= bucket.tensors
    assert fits(max(tensors, bucket.ops), bucket.tensors)


def test_graphs_of_one_family_share_few_buckets():
    rng = np.random.default_rng(0)
    buckets = {Bucket.of(random_graph(rng, int(rng.integers(50, 201)))) for _ in range(100)}
    assert len(buckets) <= 8
    sizes = {Bucket.of(random_graph(rng, n)).ops for n in (1, 20, 64, 65, 200, 300, 512, 600, 1000)}
    assert sizes == {64, 128, 256, 512, 1024}


def test_common_bucket_holds_all():
    small, large = Bucket(1, 5, 2, 0), Bucket(3, 2, 2, 7)
    assert Bucket.common([small, large]) == Bucket(3, 5, 2, 7)


@pytest.mark.parametrize(
    "sizes", [(0, 1, 1, 0), (1, 0, 1, 0), (1, 1, 1.5, 0), (1, 1, 1, -1), (True, 1, 1, 0)]
)
def test_bucket_refuses_impossible_sizes(sizes):
    with pytest.raises(ConfigError, match="whole number"):
        Bucket(*sizes)


@pytest.mark.parametrize("field", ["ops", "tensors", "edges", "controls"])
def test_bucket_too_small(field):
    builder = GraphBuilder("pair")
    builder.add_op("a", outputs=[1, 1])
    builder.add_op("b", inputs=["a:0", "a:1"], control_inputs=["a"])
    builder.add_op("c", inputs=["a:0"], control_inputs=["a"])
    graph = builder.build()
    bucket = Bucket.exact(graph)
    make_problem([graph], Cluster.uniform(1), bucket)
    smaller = dataclasses.replace(bucket, **{field: getattr(bucket, field) - 1})
    with pytest.raises(ConfigError, match=f"'pair' has {getattr(bucket, field)} {field}"):
        make_problem([graph], Cluster.uniform(1), smaller)


def test_batches_that_cannot_be():
    graph = one_op()
    with pytest.raises(ConfigError, match="no graphs"):
        make_problem([], Cluster.uniform(1))
    with pytest.raises(ConfigError, match="2 graphs but 1 cluster;"):
        make_problem([graph, graph], [Cluster.uniform(1)])
    with pytest.raises(ConfigError, match="same number of devices"):
        make_problem([graph, graph], [Cluster.uniform(1), Cluster.uniform(2, transfer="blocking")])
    with pytest.raises(ConfigError, match="all blocking"):
        make_problem(
            [graph, graph], [Cluster.uniform(2, transfer="blocking"), Cluster.uniform(2, transfer="free")]
        )
    with pytest.raises(ClusterError, match="may run on none"):
        make_problem([one_op(allowed_devices=[3])], Cluster.uniform(2, transfer="blocking"))


def test_clusters_of_other_sizes_share_a_batch():
    for memory, unlimited in ((np.inf, True), (9.0, False)):
        clusters = [Cluster.uniform(2, memory), Cluster.uniform(3)]
        problem = make_problem([one_op(), one_op()], clusters, devices=4)
        assert problem.unlimited is unlimited
        assert np.asarray(problem.allowed[:, 0]).tolist() == [[True] * 2 + [False] * 2, [True] * 3 + [False]]


@pytest.mark.parametrize("runtime", [1e300, 1e31, 1e-31, 5e-324])
def test_times_beyond_float32(runtime):
    with pytest.raises(GraphError, match="choose another time unit"):
        make_problem([one_op(runtime)], Cluster.uniform(1))


@given(instances(size_scale=2**33 + 12345))
def test_memory_units_are_conservative_and_cannot_wrap(instance):
    graph, cluster = instance
    unit = memory_unit(graph)
    problem = jax.tree.map(np.asarray, make_problem([graph], cluster, Bucket.exact(graph)))
    size, temp = problem.size[0].astype(np.int64), problem.temp[0].astype(np.int64)
    assert (size * unit >= graph.tensor_bytes).all()
    assert ((size - 1) * unit < graph.tensor_bytes).all()
    assert (temp * unit >= graph.temp_bytes).all()
    assert size.sum() + temp.sum() <= 2**30 + len(size) + len(temp)
    finite = np.isfinite(cluster.memory)
    capacity = problem.capacity[0].astype(np.int64)
    assert (capacity[~finite] == 2**31 - 1).all()
    assert (capacity[finite] * unit <= np.array(cluster.memory)[finite]).all()
    assert problem.unlimited == (not finite.any())


@given(instances())
def test_rows_are_the_edges(instance):
    graph, cluster = instance
    problem = jax.tree.map(np.asarray, make_problem([graph], cluster))
    t = problem.bucket.tensors
    row = [
        [(int(problem.successor[0, i]), int(problem.via[0, i])) for i in range(*bounds)]
        for bounds in problem.op_row[0]
    ]
    for o in range(graph.num_ops):
        data = [
            (int(c), int(x))
            for x, c in zip(graph.edge_tensor, graph.edge_op, strict=True)
            if graph.tensor_op[x] == o
        ]
        control = [
            (int(c), t) for u, c in zip(graph.control_source, graph.control_target, strict=True) if u == o
        ]
        assert sorted(row[o]) == sorted(data + control)
    assert all(not r for r in row[graph.num_ops :])
    for x in range(graph.num_tensors):
        consumers = problem.successor[0, slice(*problem.tensor_row[0, x])]
        np.testing.assert_array_equal(consumers, graph.edge_op[graph.edge_tensor == x])
    reads = np.bincount(np.concatenate([graph.edge_op, graph.control_target]), minlength=graph.num_ops)
    np.testing.assert_array_equal(problem.indegree[0, : graph.num_ops], reads)
    assert (problem.indegree[0, graph.num_ops :] > 0).all()
