"""Tests of the features of a policy."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import BUCKET, chain, renumbered, scaled, two_chains, without_edges
from strategies import instances, random_graph

from regal_jax.errors import ClusterError, ConfigError, GraphError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.heuristics.levels import levels
from regal_jax.policies import Balance, Cut, FeatureConfig, FeatureSet, make_features
from regal_jax.problem import Bucket

seeds = st.integers(0, 2**32 - 1)
TWO = Cluster.uniform(2, transfer="blocking")


def features_of(graph, cluster, features="structural", bucket=None, balance="work"):
    bucket = Bucket.exact(graph) if bucket is None else bucket
    return make_features([graph], cluster, bucket, FeatureConfig(cluster.num_devices, features, balance))


def column(graph, name, cluster=TWO, features="structural", balance="work"):
    names = FeatureConfig(cluster.num_devices, features).node_names
    return features_of(graph, cluster, features, balance=balance).nodes[0, :, names.index(name)]


def by_field(features):
    return {f.name: getattr(features, f.name) for f in dataclasses.fields(features)}


# What the features are ------------------------------------------------------------------------------


@pytest.mark.parametrize("features", FeatureSet)
@given(instance=instances())
def test_shapes_masks_and_padding(features, instance):
    graph, cluster = instance
    config = FeatureConfig(cluster.num_devices, features)
    x = make_features([graph], cluster, BUCKET, config)
    n, edges = graph.num_ops, len(graph.edge_op) + len(graph.control_source)
    assert x.nodes.shape == (1, 12, len(config.node_names))
    assert x.edges.shape == (1, 146, len(config.edge_names))
    assert (x.nodes.dtype, x.edges.dtype) == (np.float32, np.float32)
    assert len(set(config.node_names)) == len(config.node_names)
    np.testing.assert_array_equal(x.node_mask[0], np.arange(12) < n)
    np.testing.assert_array_equal(x.edge_mask[0], np.arange(146) < edges)
    assert np.isfinite(x.nodes).all()
    assert np.isfinite(x.edges).all()
    assert np.abs(x.nodes).max() < 20
    assert not x.nodes[0, n:].any()
    assert not x.edges[0, edges:].any()
    pairs = sorted(zip(x.senders[0, :edges].tolist(), x.receivers[0, :edges].tolist(), strict=True))
    data = zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True)
    control = zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True)
    assert pairs == sorted([*data, *control])
    assert x.edges[0, :, config.edge_names.index("control")].sum() == len(graph.control_source)


def test_a_chain_by_hand():
    graph = chain(3, [1.0, 2.0, 3.0])
    np.testing.assert_allclose(column(graph, "log runtime"), np.log1p([0.5, 1, 1.5]), rtol=1e-6)
    np.testing.assert_allclose(column(graph, "standard runtime"), np.array([-1, 0, 1]) * 1.5**0.5, atol=1e-6)
    np.testing.assert_allclose(column(graph, "top level"), np.array([0, 1, 3]) / 6, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "bottom level"), np.array([6, 5, 3]) / 6, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "slack"), [0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(column(graph, "depth"), [0, 0.5, 1])
    np.testing.assert_allclose(column(graph, "height"), [1, 0.5, 0])
    np.testing.assert_allclose(column(graph, "top rank"), np.array([1, 3, 5]) / 6, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "bottom rank"), np.array([5, 3, 1]) / 6, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "top share"), np.array([0.5, 2, 4.5]) / 6, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "parallelism"), [0, 0, 0], atol=1e-7)
    np.testing.assert_allclose(column(graph, "inputs"), np.log1p([0, 1, 1]), rtol=1e-6)
    np.testing.assert_allclose(column(graph, "readers"), np.log1p([1, 1, 0]), rtol=1e-6)
    np.testing.assert_allclose(column(graph, "edges per op"), [math.log1p(2 / 3)] * 3, rtol=1e-6)
    tight = Cluster((20, math.inf), "blocking")
    np.testing.assert_allclose(column(graph, "pressure 0", tight), [30 / 40] * 3)
    np.testing.assert_allclose(column(graph, "pressure 1", tight), [0] * 3)
    np.testing.assert_allclose(column(graph, "pressure 0", Cluster((0, 1), "blocking")), [4] * 3)


def test_coordinates_of_a_chain_run_along_it():
    """tests/test_policies_spectral.py tests coordinates in general."""
    graph = chain(9)
    found = column(graph, "along 0")
    assert (np.diff(found) > 0).all()
    np.testing.assert_allclose(found, -found[::-1], atol=1e-6)
    np.testing.assert_allclose(column(graph, "along 0 rank"), (np.arange(9) + 0.5) / 9, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "along 0 share"), (np.arange(9) + 0.5) / 9, rtol=1e-6)
    for name in ("along 0", "along 1", "along 1 rank"):
        assert np.isfinite(column(chain(1), name)).all()
        assert np.isfinite(column(without_edges(graph), name)).all()


def test_shares_of_bytes_count_outputs_and_scratch_memory():
    builder = GraphBuilder("bytes")
    builder.add_op("a", runtime=1.0, outputs=[10, 20])
    builder.add_op("b", runtime=5.0, inputs=[(0, 0)], outputs=[30], temp_bytes=30)
    builder.add_op("c", runtime=9.0, inputs=[(1, 0)], outputs=[10])
    graph = builder.build()
    shares = np.array([15, 60, 95]) / 100
    np.testing.assert_allclose(column(graph, "top share", balance="bytes"), shares, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "along 0 share", balance="bytes"), shares, rtol=1e-6)
    np.testing.assert_allclose(column(graph, "top share"), np.array([0.5, 3.5, 10.5]) / 15, rtol=1e-6)
    # Without bytes, all ops have equal weight.
    empty = dataclasses.replace(graph, tensor_bytes=graph.tensor_bytes * 0, temp_bytes=graph.temp_bytes * 0)
    np.testing.assert_allclose(
        column(empty, "top share", balance="bytes"), np.array([1, 3, 5]) / 6, rtol=1e-6
    )


def test_balance_changes_shares_and_cuts_across_only():
    graph = random_graph(np.random.default_rng(5), 30, 40)
    names = np.array(FeatureConfig(2).node_names)
    work, size = (features_of(graph, TWO, balance=balance).nodes[0] for balance in ("work", "bytes"))
    changed = set(names[(work != size).any(axis=0)])
    assert changed == {name for name in names if name.endswith("share") or name.startswith("across")}


def test_coordinates_across_tell_apart_what_runs_side_by_side():
    graph = two_chains(12)
    sides = np.array([name[0] == "a" for name in graph.op_names])
    sign = np.sign(column(graph, "across 0"))
    assert (sign[sides] == sign[sides][0]).all()
    assert (sign[~sides] == -sign[sides][0]).all()
    # A chain has no parallel parts, so the coordinate has no preferred sign but must be finite.
    for size in (1, 2, 9):
        assert np.isfinite(column(chain(size), "across 0")).all()


def test_fine_coordinates_know_more_slices_of_long_graphs():
    for length, same in ((12, True), (200, False)):
        graph = two_chains(length)
        config = FeatureConfig(2, cuts=(Cut.FINE,))
        nodes = make_features([graph], TWO, None, config).nodes[0, : graph.num_ops]
        across, fine = (nodes[:, config.node_names.index(f"{way} 0")] for way in ("across", "fine"))
        assert np.array_equal(across, fine) == same
        sides = np.array([name[0] == "a" for name in graph.op_names])
        assert (np.sign(fine[sides]) == np.sign(fine[sides][0])).mean() > 0.9
        assert (np.sign(fine[~sides]) == -np.sign(fine[sides][0])).mean() > 0.9


def test_flags_and_devices():
    builder = GraphBuilder("flags")
    builder.add_op("a", runtime=[1, 3], outputs=[1, 2], keep=[1], colocation_group="g", allowed_devices=[1])
    builder.add_op("b", runtime=[2, 2], outputs=[1], colocation_group="g")
    builder.add_op("c", runtime=[0, 0], colocation_group="alone")
    graph = builder.build()
    expected = {
        "keep": [1, 0, 0],
        "pinned": [1, 1, 0],
        "colocated": [1, 1, 0],
        "allowed 0": [0, 0, 1],
        "allowed 1": [1, 1, 1],
        "relative runtime 0": [-0.5, 0, 0],
        "relative runtime 1": [0.5, 0, 0],
        "outputs": np.log1p([2, 1, 0]),
    }
    for name, values in expected.items():
        np.testing.assert_allclose(column(graph, name), values, rtol=1e-6, err_msg=name)


@given(instances(max_ops=10))
def test_levels_are_longest_paths(instance):
    graph, _ = instance
    runtime = graph.runtime.reshape(graph.num_ops, -1).mean(axis=1)
    sender = np.concatenate([graph.edge_producer, graph.control_source])
    receiver = np.concatenate([graph.edge_op, graph.control_target])

    def longest(op, ends, others, cost):
        return max((cost(o) + longest(o, ends, others, cost) for o in others[ends == op].tolist()), default=0)

    got = levels(sender, receiver, graph.topological_order, runtime)
    for o in range(graph.num_ops):
        assert got.top[o] == pytest.approx(longest(o, receiver, sender, lambda v: runtime[v]))
        tail = runtime[o] + longest(o, sender, receiver, lambda v: runtime[v])
        assert got.bottom[o] == pytest.approx(tail)
        assert got.depth[o] == longest(o, receiver, sender, lambda v: 1)
        assert got.height[o] == longest(o, sender, receiver, lambda v: 1)


@given(instances())
def test_order_is_topological_and_padding_comes_last(instance):
    graph, cluster = instance
    x = features_of(graph, cluster, bucket=BUCKET)
    n = graph.num_ops
    assert sorted(x.order[0, :n].tolist()) == list(range(n))
    np.testing.assert_array_equal(x.order[0, n:], np.arange(n, 12))
    place = np.argsort(x.order[0])
    real = x.edge_mask[0]
    assert (place[x.senders[0, real]] < place[x.receivers[0, real]]).all()


# What they do not depend on -------------------------------------------------------------------------


@pytest.mark.parametrize("balance", Balance)
@given(instances(), st.sampled_from([1e-6, 0.3, 7.0, 1e9]), st.sampled_from([3, 1000]))
def test_units_change_nothing(balance, instance, time, size):
    graph, cluster = instance
    before = by_field(features_of(graph, cluster, balance=balance))
    after = by_field(features_of(*scaled(graph, cluster, time, size), balance=balance))
    for name, array in before.items():
        np.testing.assert_allclose(after[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("balance", Balance)
@given(instances(), seeds)
def test_numbers_change_nothing(balance, instance, seed):
    graph, cluster = instance
    place = np.random.default_rng(seed).permutation(graph.num_ops)
    before, after = (features_of(g, cluster, balance=balance) for g in (graph, renumbered(graph, place)))
    np.testing.assert_allclose(after.nodes[0, place], before.nodes[0], rtol=1e-5, atol=1e-5)

    def rows(x, numbers):
        ends = np.stack([numbers[x.senders[0]], numbers[x.receivers[0]]], axis=1)
        table = np.concatenate([ends, np.round(x.edges[0], 4)], axis=1)[x.edge_mask[0]]
        return table[np.lexsort(table.T)]

    np.testing.assert_allclose(rows(after, np.arange(graph.num_ops)), rows(before, place), atol=2e-4)


def test_equal_ops_have_equal_features():
    builder = GraphBuilder("twins")
    builder.add_op("root", runtime=1.0, outputs=[5])
    for name in "abc":
        builder.add_op(name, runtime=2.0 / 3, outputs=[7], inputs=[(0, 0)])
    builder.add_op("join", runtime=1.0, inputs=[(1, 0), (2, 0), (3, 0)])
    nodes = features_of(builder.build(), TWO).nodes[0]
    np.testing.assert_array_equal(nodes[1], nodes[2])
    np.testing.assert_array_equal(nodes[1], nodes[3])
    assert (nodes[0] != nodes[1]).any()


@given(instances(devices=[2]), instances(devices=[2]))
def test_padding_and_company_change_no_bit(one, other):
    (graph, cluster), (second, second_cluster) = one, other
    config = FeatureConfig(2)
    alone = make_features([graph], cluster, Bucket.exact(graph), config)
    both = make_features([second, graph], [second_cluster, cluster], BUCKET, config)
    n, e = alone.nodes.shape[1], int(alone.edge_mask.sum())
    np.testing.assert_array_equal(both.nodes[1, :n], alone.nodes[0])
    for name in ("edges", "senders", "receivers"):
        np.testing.assert_array_equal(getattr(both, name)[1, :e], getattr(alone, name)[0, :e])


@given(instances())
def test_own_features_know_no_edge(instance):
    graph, cluster = instance
    one, other = (features_of(g, cluster, "own").nodes for g in (graph, without_edges(graph)))
    np.testing.assert_array_equal(one, other)


def test_the_sets_grow():
    names = {features: set(FeatureConfig(3, features).node_names) for features in FeatureSet}
    assert all(less < more for less, more in itertools.pairwise(names.values()))


# Extremes and refusals ------------------------------------------------------------------------------


@pytest.mark.parametrize("balance", Balance)
@pytest.mark.parametrize("features", FeatureSet)
@pytest.mark.parametrize("runtime", [0.0, 5e-324, 1e300])
@pytest.mark.parametrize("size", [0, 2**55])
def test_extreme_graphs_are_finite(balance, features, runtime, size):
    builder = GraphBuilder("extreme")
    builder.add_op("lonely", runtime=runtime)
    one = builder.build()
    builder.add_op("a", runtime=runtime, outputs=[size], temp_bytes=size)
    builder.add_op("b", runtime=0.0, inputs=[(1, 0)], control_inputs=[0])
    for graph in (one, builder.build()):
        x = features_of(graph, TWO, features, balance=balance)
        assert np.isfinite(x.nodes).all()
        assert np.isfinite(x.edges).all()


def test_features_that_are_not_finite_are_refused_by_name():
    graph = chain(3)
    runtime = np.array([1.0, np.nan, 1.0])
    object.__setattr__(graph, "runtime", runtime)
    with pytest.raises(GraphError, match="graph 'chain': op 'op1': feature 'runtime' is not finite"):
        features_of(graph, TWO)
    slow = Cluster.uniform(2, transfer="blocking:latency=1e300")
    with pytest.raises(GraphError, match="graph 'chain': edge 0: feature 'transfer' is not finite"):
        features_of(chain(2, [1e-300, 1e-300]), slow)


def test_bad_input():
    config = FeatureConfig(2)
    with pytest.raises(ConfigError, match="no graphs"):
        make_features([], TWO, None, config)
    with pytest.raises(ConfigError, match="1 graph but 2 clusters"):
        make_features([chain(2)], [TWO, TWO], None, config)
    with pytest.raises(ConfigError, match="a cluster of 3 devices, but the features are for 2"):
        make_features([chain(2)], Cluster.uniform(3, transfer="blocking"), None, config)
    with pytest.raises(ConfigError, match="bucket"):
        make_features([chain(4)], TWO, Bucket.exact(chain(3)), config)
    with pytest.raises(ConfigError, match="'some'; use one of raw, own, plain, structural"):
        FeatureConfig(2, "some")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="'ops'; use one of work, bytes"):
        FeatureConfig(2, balance="ops")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="'up'; use one of along, across, fine"):
        FeatureConfig(2, cuts=("up",))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match=r"cuts is .*; give a list that names each once"):
        FeatureConfig(2, cuts=(Cut.FINE, Cut.FINE))
    pinned = random_graph(np.random.default_rng(3), 30, 4)
    with pytest.raises(ClusterError, match="devices"):
        make_features([pinned], Cluster.uniform(1), None, FeatureConfig(1))


def test_default_bucket_is_the_common_one():
    x = make_features([chain(3), chain(5)], TWO, None, FeatureConfig(2))
    bucket = Bucket.common([Bucket.of(chain(3)), Bucket.of(chain(5))])
    assert x.nodes.shape[:2] == (2, bucket.ops)
