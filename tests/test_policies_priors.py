"""Tests of priors: the results of each maker, and invariances."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import BUCKET, chain, four_bins, renumbered, scaled
from strategies import instances, random_graph

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.heuristics.list_scheduling import quick_schedule
from regal_jax.heuristics.peaks import PeakBalance
from regal_jax.heuristics.placements import single_device_placement
from regal_jax.policies import (
    MAKERS,
    Ablation,
    Placement,
    Policy,
    PolicyConfig,
    Transfers,
    make_features,
    make_inputs,
    make_prior,
    most_likely,
)
from regal_jax.policies.priors import Made, Maker
from regal_jax.problem import Bucket

seeds = st.integers(0, 2**32 - 1)
TWO = Cluster.uniform(2, transfer="blocking")
FIELDS = ("order", "placements", "transfers")


def config_of(name, devices=2, placements=None, **settings):
    return PolicyConfig(
        num_devices=devices, prior=name, ablation=Ablation(placements=placements), width=4, **settings
    )


def prior_of(graph, cluster, name, placements=None, bucket=None):
    config = config_of(name, cluster.num_devices, placements)
    return make_prior([graph], cluster, Bucket.exact(graph) if bucket is None else bucket, config)


def leaves(prior):
    return {name: getattr(prior, name) for name in FIELDS if getattr(prior, name) is not None}


# Shapes, padding and company ------------------------------------------------------------------------


@pytest.mark.parametrize("name", MAKERS)
@given(instance=instances())
def test_shapes_and_padding(name, instance):
    graph, cluster = instance
    n, d = graph.num_ops, cluster.num_devices
    config = config_of(name, d)
    prior = make_prior([graph], cluster, BUCKET, config)
    found = leaves(prior)
    maker = MAKERS[name]
    assert set(found) == {
        *(["order"] if maker.has_order else []),
        *(["placements"] if maker.placements and d > 1 else []),
        *(["transfers"] if maker.has_transfers else []),
    }
    for field, last in (("order", ()), ("placements", (len(maker.placements),)), ("transfers", (d,))):
        if field in found:
            assert found[field].shape == (1, 12, *last)
            assert found[field].dtype == np.float32
            assert (found[field] >= 0).all()
            assert (found[field] <= 1).all()
            assert not found[field][0, n:].any()
    exact = leaves(make_prior([graph], cluster, Bucket.exact(graph), config))
    for field, array in found.items():
        np.testing.assert_array_equal(array[:, :n], exact[field])


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("memory", "schedule") else pytest.mark.slow) for n in MAKERS]
)
@given(one=instances(devices=[2]), other=instances(devices=[2]))
def test_company_changes_nothing_and_features_come_with_the_same_prior(name, one, other):
    config = config_of(name)
    graphs, clusters = [one[0], other[0]], [one[1], other[1]]
    features, both = make_inputs(graphs, clusters, BUCKET, config)
    alone = leaves(make_prior(graphs[1:], clusters[1:], BUCKET, config))
    for field, array in leaves(both).items():
        np.testing.assert_array_equal(array[1], alone[field][0])
    plain = make_features(graphs, clusters, BUCKET, config.feature_config)
    np.testing.assert_array_equal(features.nodes, plain.nodes)
    np.testing.assert_array_equal(features.edges, plain.edges)


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("devices", [1, 3])
def test_the_smallest_graphs(name, devices):
    """Graphs of one op, without edges, or without any bytes."""
    builder = GraphBuilder("alone")
    builder.add_op("a", runtime=0.0)
    one = builder.build()
    builder.add_op("b", runtime=0.0)
    cluster = Cluster.uniform(devices, transfer="blocking")
    for graph in (one, builder.build(), chain(2)):
        prior = prior_of(graph, cluster, name)
        for array in leaves(prior).values():
            assert np.isfinite(array).all()
        if name in ("schedule", "memory"):
            n = graph.num_ops
            np.testing.assert_allclose(np.sort(prior.order[0]), (np.arange(n) + 0.5) / n)


@pytest.mark.parametrize("name", MAKERS)
def test_no_graphs_and_other_devices(name):
    with pytest.raises(ConfigError, match="no graphs; give at least one"):
        make_prior([], TWO, None, config_of(name))
    with pytest.raises(ConfigError, match="a cluster of 2 devices, but the features are for 3"):
        make_prior([chain(2)], TWO, None, config_of(name, 3))


# What a policy has of it ----------------------------------------------------------------------------


def test_none_is_a_policy_without_priors():
    config = PolicyConfig(prior="none", width=4)
    assert (config.placements, config.num_placements, config.reach) == ((), 1, 0)
    assert config.transfers is Transfers.READER
    assert config.input_names == config.feature_config.node_names
    features, prior = make_inputs([chain(3)], TWO, None, config)
    assert leaves(prior) == {}
    policy = nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0)))
    assert policy.spectral is None
    assert policy.ordered is None
    logits = nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0))(features, prior))
    assert logits.means.shape[2:] == (3, 33)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("none", ()),
        ("levels", ()),
        (
            "schedule",
            ("prior order", "prior transfers 0", "prior transfers 1", "prior placement schedule"),
        ),
        (
            "memory",
            (
                "prior order", "prior placement peaks-order", "prior placement peaks-along",
                "prior placement peaks-blocks",
            ),
        ),
    ],
)  # fmt: skip
def test_what_the_network_reads_of_a_prior(name, told):
    config = config_of(name)
    names = config.input_names
    assert names == (*config.feature_config.node_names, *told)
    policy = nnx.eval_shape(lambda: Policy(config, rngs=nnx.Rngs(0)))
    assert policy.network.node.hidden.kernel.shape == (len(names), 4)


def test_the_network_reads_placements_in_one_order():
    """The order is that of the names, so the meaning of weights does not depend on the order of a list."""
    graph = random_graph(np.random.default_rng(0), 9, 2)
    for order in (("peaks-one", "along", "peaks-order"), ("peaks-order", "peaks-one", "along")):
        config = config_of("memory", placements=order)
        assert config.input_names[-2:] == ("prior placement peaks-order", "prior placement peaks-one")
        features, prior = make_inputs([graph], TWO, BUCKET, config)
        names = config.feature_config.node_names
        along = np.asarray(prior.placements)[:, :, order.index("along")]
        np.testing.assert_array_equal(along, features.nodes[:, :, names.index("along 0 share")])


def test_a_policy_reads_its_prior():
    """The gradient of the outputs reaches every field, through the network and through logit scales."""
    config = four_bins(
        prior="schedule", width=4, rounds=0, order_scale=1.0, reach=0, means=(0.1, 0.5, 0.9), transfers=None
    )
    graphdef, state = nnx.split(Policy(config, rngs=nnx.Rngs(0)))
    features, prior = make_inputs([random_graph(np.random.default_rng(0), 9, 2)], TWO, BUCKET, config)

    def total(prior):
        return (nnx.merge(graphdef, state)(features, prior).means ** 2).sum()

    gradient = nnx.jit(nnx.grad(total))(prior)
    for field, array in leaves(gradient).items():
        assert (np.abs(np.asarray(array)[0, :9]) > 0).any(), field
        assert array.dtype == jnp.float32


def test_a_maker_of_one_s_own(monkeypatch):
    """A custom maker needs only a line of the registry."""

    def backwards(measured):
        n = measured.graph.num_ops
        return Made((np.arange(n) + 0.5) / n, {Placement.SCHEDULE: lambda: np.arange(n) % 2})

    monkeypatch.setitem(MAKERS, "backwards", Maker(backwards, (Placement.SCHEDULE,), Transfers.READER))
    config = config_of("backwards", reach=4, rounds=0)
    graph = chain(4)
    features, prior = make_inputs([graph], TWO, Bucket.exact(graph), config)
    assert prior.order[0].tolist() == [0.125, 0.375, 0.625, 0.875]
    assert prior.placements[0, :, 0].tolist() == [0.25, 0.75, 0.25, 0.75]
    assert prior.transfers is None
    scales = Ablation(placement_scale=50.0)
    strong = PolicyConfig(prior="backwards", ablation=scales, width=4, rounds=0)
    logits = Policy(strong, rngs=nnx.Rngs(0))(features, prior)
    liked = np.array(config.means)[np.asarray(most_likely(logits))[0] // 2]
    np.testing.assert_array_equal(liked[:, 0] > liked[:, 1], [True, False, True, False])


# Levels ---------------------------------------------------------------------------------------------


@given(instances())
def test_levels_weigh_what_is_below_and_what_is_before_alike(instance):
    graph, cluster = instance
    config = config_of("levels", cluster.num_devices)
    features, prior = make_inputs([graph], cluster, BUCKET, config)
    names, n = config.feature_config.node_names, graph.num_ops
    top, bottom = (features.nodes[0, :n, names.index(f"{end} share")] for end in ("top", "bottom"))
    np.testing.assert_allclose(prior.order[0, :n], (bottom + 1 - top) / 2, atol=1e-6)
    for k, placement in enumerate(config.placements):
        share = features.nodes[0, :, names.index(f"{placement} 0 share")]
        np.testing.assert_array_equal(prior.placements[0, :, k], share)


# Memory ---------------------------------------------------------------------------------------------


def test_the_memory_order_adds_least_to_what_is_held():
    builder = GraphBuilder("memory")
    builder.add_op("base", outputs=[10], temp_bytes=90)
    builder.add_op("big", inputs=["base"], outputs=[40], keep=[0])
    builder.add_op("small", inputs=["base"], outputs=[20], keep=[0])
    builder.add_op("end", inputs=["big", "small"])
    graph = builder.build()
    for place in ([0, 1, 2, 3], [2, 3, 0, 1]):
        order = prior_of(renumbered(graph, np.array(place)), TWO, "memory").order[0]
        np.testing.assert_allclose(order[place], [7 / 8, 3 / 8, 5 / 8, 1 / 8])
    assert prior_of(chain(1), TWO, "memory").order[0].tolist() == [0.5]


@given(instances(), seeds)
def test_numbers_decide_the_memory_order_of_twins_only(instance, seed):
    graph, cluster = instance
    # All sizes are distinct, so the only twins are ops without tensors, which are first or last.
    sizes = np.random.default_rng(seed).permutation(len(graph.tensor_bytes)) + 1
    resident = graph.resident & (np.diff(graph.output_offset) > 0)
    temp = np.where(resident, 0, 2**20 * (1 + np.arange(graph.num_ops)))
    graph = dataclasses.replace(graph, tensor_bytes=sizes, temp_bytes=temp, resident=resident)
    place = np.random.default_rng(seed).permutation(graph.num_ops)
    before, after = (prior_of(g, cluster, "memory", ()).order[0] for g in (graph, renumbered(graph, place)))
    np.testing.assert_array_equal(after[place], before)


PEAKS = tuple(placement for placement in Placement if placement.startswith("peaks"))


@given(instances(devices=[2, 3]))
def test_places_by_peaks_are_of_the_balanced_order(instance):
    graph, cluster = instance
    d = cluster.num_devices
    config = config_of("memory", d, PEAKS)
    features, prior = make_inputs([graph], cluster, Bucket.exact(graph), config)
    place = dict(zip(PEAKS, np.moveaxis(prior.placements[0], 1, 0), strict=True))
    order = np.argsort(-prior.order[0], kind="stable")
    balance = PeakBalance(graph, cluster, order)
    one = balance.refine(single_device_placement(graph, cluster), 80)
    np.testing.assert_allclose(place[Placement.PEAKS_ONE], (one + 0.5) / d)
    blocks = balance.blocks(48)
    np.testing.assert_allclose(place[Placement.PEAKS_BLOCKS], (blocks + 0.5) / d)
    names = config.feature_config.node_names
    for kind, along in (
        (Placement.PEAKS_ORDER, np.argsort(order)),
        (Placement.PEAKS_ALONG, features.nodes[0, :, names.index("along 0 share")]),
    ):
        placement = place[kind] * d - 0.5
        np.testing.assert_allclose(placement, np.round(placement), atol=1e-4)
        most = balance.peaks(balance.cut(along)).max()
        assert balance.peaks(np.round(placement).astype(int)).max() <= most
    # The order is the same without them, and sizes in other units change nothing.
    np.testing.assert_array_equal(prior_of(graph, cluster, "memory", ()).order, prior.order)
    again = prior_of(*scaled(graph, cluster, 1.0, 3), "memory", PEAKS)
    np.testing.assert_array_equal(again.placements, prior.placements)
    np.testing.assert_array_equal(again.order, prior.order)


# Schedule -------------------------------------------------------------------------------------------


@given(instances())
def test_the_schedule_is_a_list_schedule_whatever_the_units(instance):
    graph, cluster = instance
    d, n = cluster.num_devices, graph.num_ops
    config = config_of("schedule", d, ("schedule",))
    features, prior = make_inputs([graph], cluster, BUCKET, config)
    schedule = quick_schedule(graph, cluster, np.argsort(features.order[0, :n]))
    order, sent = prior.order[0, :n], prior.transfers[0, :n]
    assert np.argsort(-order).tolist() == schedule.order.tolist()
    np.testing.assert_allclose(order[schedule.order], 1 - (np.arange(n) + 0.5) / n, rtol=1e-6)
    if d > 1:  # On a single device, placements have no preference.
        np.testing.assert_allclose(prior.placements[0, :n, 0], (schedule.placement + 0.5) / d)
    for o in range(n):
        tensors = range(graph.output_offset[o], graph.output_offset[o + 1])
        readers = [v for u, v in zip(graph.edge_producer, graph.edge_op, strict=True) if u == o]
        midway = (order[o] + max(order[readers], default=order[o])) / 2
        for k in range(d):
            first = [1 - schedule.sent[t, k] / n for t in tensors if schedule.sent[t, k] >= 0]
            assert sent[o, k] == pytest.approx(max(first, default=midway), abs=1e-6)
    again = prior_of(*scaled(graph, cluster, 4.0, 3), "schedule", ("schedule",), BUCKET)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(again, field), getattr(prior, field))
