"""Tests of the networks: dependences, invariances, and equality with the paper."""

import dataclasses
import functools
import itertools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import (
    BUCKET,
    chain,
    distinct_runtimes,
    four_bins,
    randomised,
    renumbered,
    two_chains,
    without_edges,
)
from strategies import instances, random_graph

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import Objective
from regal_jax.policies import (
    Ablation,
    Network,
    Placement,
    Policy,
    PolicyConfig,
    Prior,
    Value,
    default_policy,
    entropy,
    make_inputs,
)
from regal_jax.problem import Bucket

seeds = st.integers(0, 2**32 - 1)
TWO = Cluster.uniform(2, transfer="blocking")
WIDE = Bucket(16, 40, 100, 70)
"""Pairs of graphs are padded to it, so that tests share programs."""
CLOSE = {"rtol": 2e-4, "atol": 2e-4}
"""For programs of other shapes: a compiler may add in another order."""


@functools.cache
def compiled(config, kind=Policy):
    """A function of features and prior for a network whose every weight matters."""
    graphdef, state = nnx.split(randomised(shapes_of(config, kind)))
    return jax.jit(lambda inputs: nnx.merge(graphdef, state)(*inputs))


def shapes_of(config, kind=Policy):
    """The network with shapes in place of its weights, which needs no compilation."""
    return nnx.eval_shape(lambda: kind(config, rngs=nnx.Rngs(0)))


def untrained(config, inputs, kind=Policy):
    """The outputs of a new network."""
    graphdef, state = nnx.split(kind(config, rngs=nnx.Rngs(0)))
    return jax.jit(lambda state, x: nnx.merge(graphdef, state)(*x))(state, inputs)


def inputs_of(graph, cluster, config, bucket=BUCKET):
    return make_inputs([graph], cluster, bucket, config)


CONFIGS = [
    four_bins(width=16, rounds=2, placements=("across", "fine", "along"), order_scale=1),
    four_bins(width=16, network=Network.SEQUENCE),
    PolicyConfig(width=16, rounds=1),
]
most_configs = pytest.mark.parametrize(
    "config", [*CONFIGS[:2], pytest.param(CONFIGS[2], marks=pytest.mark.slow)]
)


# Shapes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("network", Network)
@pytest.mark.parametrize(
    ("devices", "rounds"),
    [(3, 1), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 0), (1, 1), (3, 0)))],
)
def test_shapes_and_the_smallest_graphs(network, devices, rounds):
    config = four_bins(
        num_devices=devices, network=network, means=(0.2, 0.5, 0.9), variances=(0.05,), rounds=rounds, width=4
    )
    builder = GraphBuilder("one")
    builder.add_op("a", runtime=0.0)
    graphs, clusters = [builder.build(), chain(3)], Cluster.uniform(devices, transfer="blocking")
    for batch in (graphs, graphs[:1]):
        x = make_inputs(batch, clusters, None, config)
        n = x[0].nodes.shape[1]
        logits = compiled(config)(x)
        assert logits.means.shape == (len(batch), n, devices + 1, 3)
        assert logits.variances.shape == (len(batch), n, devices + 1, 1)
        value = compiled(config, Value)(x)
        assert value.shape == (len(batch),)
        for array in (*logits, value):
            assert array.dtype == jnp.float32
            assert np.isfinite(array).all()


def test_features_of_another_policy_are_refused():
    x = inputs_of(chain(3), TWO, four_bins(features="plain"))
    for kind in (Policy, Value):
        with pytest.raises(ConfigError, match="make them with the policy's config"):
            shapes_of(four_bins(), kind)(*x)


def test_the_prior_of_another_policy_is_refused():
    features, prior = inputs_of(chain(3), TWO, four_bins())
    _, longer = inputs_of(chain(3), TWO, four_bins(), WIDE)
    _, other = inputs_of(chain(3), TWO, four_bins(placements=("across", "fine")))
    for kind in (Policy, Value):
        for wrong in (Prior(), dataclasses.replace(prior, transfers=prior.placements), longer, other):
            with pytest.raises(ConfigError, match=r"a prior of .* is needed \(prior 'levels', 2 devices\)"):
                shapes_of(four_bins(), kind)(features, wrong)


# What they do not depend on -------------------------------------------------------------------------


@given(instances(devices=[2]), seeds)
def test_policy_is_equivariant_and_value_invariant(instance, seed):
    graph, cluster = instance
    place = np.random.default_rng(seed).permutation(graph.num_ops)
    one = inputs_of(graph, cluster, CONFIGS[0])
    other = inputs_of(renumbered(graph, place), cluster, CONFIGS[0])
    for before, after in zip(compiled(CONFIGS[0])(one), compiled(CONFIGS[0])(other), strict=True):
        before, after = np.asarray(before), np.asarray(after)
        np.testing.assert_allclose(after[0][place], before[0][: graph.num_ops], **CLOSE)
    before, after = (compiled(CONFIGS[0], Value)(x) for x in (one, other))
    np.testing.assert_allclose(after, before, **CLOSE)


@given(instances(devices=[2]), seeds)
def test_sequence_is_equivariant_when_no_two_ops_are_alike(instance, seed):
    rng = np.random.default_rng(seed)
    graph, cluster = distinct_runtimes(instance[0], rng), instance[1]
    place = rng.permutation(graph.num_ops)
    logits = [
        np.asarray(compiled(CONFIGS[1])(inputs_of(g, cluster, CONFIGS[1])).means)[0]
        for g in (graph, renumbered(graph, place))
    ]
    np.testing.assert_allclose(logits[1][place], logits[0][: graph.num_ops], **CLOSE)


@most_configs
def test_logits_differ_between_ops_and_graphs(config):
    # Networks with constant outputs would pass the tests above.
    rng = np.random.default_rng(0)
    pairs = [make_inputs([random_graph(rng, 12, 2) for _ in range(2)], TWO, WIDE, config) for _ in range(2)]
    first = np.concatenate([compiled(config)(x).means for x in pairs])[:, :12]
    assert first.std(axis=1).min() > 0.02
    assert np.std([compiled(config, Value)(x) for x in pairs]) > 1e-3  # Rounding is below 1e-6.


@most_configs
@given(one=instances(devices=[2]), other=instances(devices=[2]))
def test_padding_and_company_change_nothing(config, one, other):
    (graph, cluster), (second, second_cluster) = one, other
    alone = make_inputs([graph], cluster, BUCKET, config)
    both = make_inputs([second, graph], [second_cluster, cluster], WIDE, config)
    n = graph.num_ops
    for kind in (Policy, Value):
        a, b = (map(np.asarray, jax.tree.leaves(compiled(config, kind)(x))) for x in (alone, both))
        for x, y in zip(a, b, strict=True):
            np.testing.assert_allclose(
                y[1][:n] if y.ndim > 1 else y[1], x[0][:n] if x.ndim > 1 else x[0], **CLOSE
            )


# The third has the network of the first with a round fewer; the test above has it, too.
@most_configs
@given(one=instances(devices=[2]), other=instances(devices=[2]))
def test_company_in_one_program_changes_no_bit(config, one, other):
    (graph, cluster), (second, second_cluster) = one, other
    n = graph.num_ops
    outputs = []
    for company, place in ((second, second_cluster), (graph, cluster)):
        x = make_inputs([graph, company], [cluster, place], WIDE, config)
        first, value = (np.asarray(a) for a in (compiled(config)(x).means, compiled(config, Value)(x)))
        outputs.append([first[0, :n], value[0]])
    chex.assert_trees_all_equal(*outputs)


@most_configs
def test_what_padding_holds_does_not_matter(config):
    x, prior = inputs_of(chain(5), TWO, config)
    rng = np.random.default_rng(0)
    garbage = {
        "nodes": np.where(x.node_mask[..., None], x.nodes, 1e3),
        "edges": np.where(x.edge_mask[..., None], x.edges, 1e3),
        "senders": np.where(x.edge_mask, x.senders, rng.integers(0, 12, x.senders.shape)),
        "receivers": np.where(x.edge_mask, x.receivers, rng.integers(0, 12, x.senders.shape)),
    }
    garbage = {k: v.astype(getattr(x, k).dtype) for k, v in garbage.items()}
    other = dataclasses.replace(x, **garbage)

    def spoiled(leaf):
        real = x.node_mask.reshape(*x.node_mask.shape, *[1] * (leaf.ndim - 2))
        return np.where(real, leaf, np.float32(7))

    pairs = (x, prior), (other, jax.tree.map(spoiled, prior))
    for kind in (Policy, Value):
        a, b = (map(np.asarray, jax.tree.leaves(compiled(config, kind)(y))) for y in pairs)
        for one, two in zip(a, b, strict=True):
            np.testing.assert_allclose(
                one[:, :5] if one.ndim > 1 else one, two[:, :5] if two.ndim > 1 else two
            )


# What they depend on --------------------------------------------------------------------------------


@given(instances(devices=[2]))
def test_no_rounds_and_own_features_see_no_edge(instance):
    graph, cluster = instance
    config = four_bins(prior="none", width=16, rounds=0, features="own")
    one, other = (compiled(config)(inputs_of(g, cluster, config)) for g in (graph, without_edges(graph)))
    chex.assert_trees_all_equal(one, other)


@pytest.mark.parametrize("shared", [pytest.param(False, marks=pytest.mark.slow), True])
def test_messages_go_both_ways_and_a_step_a_round(shared):
    length, width = 7, 8
    for rounds in (0, 1, 3):
        config = four_bins(prior="none", width=width, rounds=rounds, features="own", share_rounds=shared)
        x, prior = inputs_of(chain(length), TWO, config, Bucket.exact(chain(length)))
        function = compiled(config)

        def middle(nodes, x=x, prior=prior, function=function):
            return function((dataclasses.replace(x, nodes=nodes), prior)).means[0, 3].sum()

        reached = np.abs(jax.jit(jax.grad(middle))(x.nodes)[0]).sum(axis=1) > 0
        np.testing.assert_array_equal(reached, np.abs(np.arange(length) - 3) <= rounds)


def test_sequence_reads_both_ways():
    x, prior = inputs_of(chain(6), TWO, CONFIGS[1])

    def middle(nodes):
        return compiled(CONFIGS[1])((dataclasses.replace(x, nodes=nodes), prior)).means[0, 3].sum()

    gradient = np.asarray(jax.jit(jax.grad(middle))(x.nodes))
    np.testing.assert_array_equal(np.abs(gradient[0]).sum(axis=1) > 0, np.arange(12) < 6)


def test_the_graph_network_is_the_paper_s_equation():
    """Compared with NumPy, edge by edge, with the output layer applied to each message."""
    config = four_bins(width=8, rounds=2)
    policy = randomised(shapes_of(config))
    graph = random_graph(np.random.default_rng(5), 9, 2)
    x, _ = inputs_of(graph, TWO, config)
    weights = jax.tree.map(lambda a: np.asarray(a, np.float64), nnx.to_pure_dict(nnx.state(policy.network)))

    def relu(a):
        return np.maximum(a, 0)

    def linear(p, a):
        return a @ p["kernel"] + p.get("bias", 0)

    def mlp(p, a):
        return linear(p["output"], relu(linear(p["hidden"], a)))

    h = mlp(weights["node"], x.nodes[0])
    edges = mlp(weights["edge"], x.edges[0])
    for t in range(2):
        p, w = weights["rounds"][t], config.width
        sums = np.zeros_like(h)
        for e in np.flatnonzero(x.edge_mask[0]):
            s, r = x.senders[0, e], x.receivers[0, e]
            kernel = p["from_op"]["kernel"]
            edge = linear(p["from_edge"], edges[e])
            for way, at in ((0, r), (1, s)):
                part = slice(way * w, (way + 1) * w)
                stacked = np.concatenate([kernel[:, : 2 * w][:, part], kernel[:, 2 * w :][:, part]])
                hidden = relu(np.concatenate([h[s], h[r]]) @ stacked + edge[part])
                sums[at] += hidden @ p["message"]["kernel"][part]
        h = h + mlp(p["update"], np.concatenate([h, sums], axis=1))
        h = (h - h.mean(axis=1, keepdims=True)) / np.sqrt(h.var(axis=1, keepdims=True) + 1e-6)
        h = h * p["norm"]["scale"] + p["norm"]["bias"]
    graphdef, state = nnx.split(policy.network)
    found = np.asarray(jax.jit(lambda state, x: nnx.merge(graphdef, state)(x.nodes, x))(state, x))
    np.testing.assert_allclose(found[0, :9], h[:9], rtol=1e-3, atol=1e-4)


# Beginning and training -----------------------------------------------------------------------------


@pytest.mark.parametrize("network", [Network.GNN, pytest.param(Network.SEQUENCE, marks=pytest.mark.slow)])
def test_untrained_policy_leaves_priorities_open_and_places_ops(network):
    graph = random_graph(np.random.default_rng(0), 12, 2)
    config = four_bins(network=network, priority_bias=3, affinity_bias=-3, placement_scale=0)
    x = inputs_of(graph, TWO, config)
    first, second = (scipy.special.softmax(leaf, axis=-1) for leaf in untrained(config, x))
    np.testing.assert_allclose(first, 0.25, atol=0.2)
    assert (second[:, :12, 2, 0] > 0.7).all()
    assert (second[:, :12, :2, 0] < 0.1).all()


def test_untrained_policy_of_alphas_and_betas_does_so_too():
    config = four_bins(
        rounds=1, alphas=(9, 1), betas=(1, 2, 5, 20), priority_bias=4, affinity_bias=-4, placement_scale=0
    )
    x = inputs_of(random_graph(np.random.default_rng(0), 12, 2), TWO, config)
    first, second = (scipy.special.softmax(leaf, axis=-1) for leaf in untrained(config, x))
    assert (first[:, :12, 2, 1] > 0.9).all()
    assert (second[:, :12, 2, 0] > 0.8).all()
    assert (first[:, :12, :2, 1] < 0.1).all()
    np.testing.assert_allclose(untrained(config, x, Value), -1, atol=0.1)


@pytest.mark.parametrize("objective", Objective)
def test_entropy_of_an_untrained_policy_is_what_the_guide_says(objective):
    config = PolicyConfig(objective=objective)
    x = inputs_of(random_graph(np.random.default_rng(0), 12, 2), TWO, config)
    assert float(entropy(untrained(config, x), x[0].node_mask)[0]) == pytest.approx(2.0, abs=0.03)
    most = np.mean([np.log(len(bins)) for bins in config.bins])
    guide = (pathlib.Path(__file__).parents[1] / "docs" / "training.md").read_text()
    assert f"With the default bins it starts near 2.0 of at most {most:.2f}" in guide


def placed(graph, heads=None, **fields):
    """The bins, and ``[N, D]``, or as many heads, those that an untrained policy likes best."""
    config = four_bins(width=4, placement_scale=20, **fields)
    devices = config.num_devices
    x = make_inputs([graph], Cluster.uniform(devices, transfer="blocking"), None, config)
    logits = np.asarray(untrained(config, x).means)[0, : graph.num_ops, : heads or devices]
    bins = np.array(config.bins[0])
    return bins, bins[np.argmax(logits, axis=-1)]


@pytest.mark.parametrize("devices", [pytest.param(2, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "settings", [{}, {"alphas": (1, 2, 5, 20), "betas": (1, 2, 5, 20)}], ids=["mean-variance", "alpha-beta"]
)
def test_the_cut_along_a_graph_makes_bands_of_equal_work(devices, settings):
    # Along a chain the coordinate rises from one end to the other.
    bins, liked = placed(chain(30), num_devices=devices, placements=["along"], **settings)
    band = liked == bins.max()
    # Each op prefers one device except at borders. Devices follow the chain and have about equally many ops.
    assert (band.sum(axis=1) <= 1).all()
    assert (band.sum(axis=0) >= 30 // devices - 4).all()
    order = [np.flatnonzero(band[:, k]) for k in range(devices)]
    assert all((a < b.min()).all() or (a > b.max()).all() for a, b in itertools.pairwise(order))
    assert (liked[band[:, 0], 1] < np.median(bins)).all()


def test_the_cut_across_a_graph_separates_what_runs_side_by_side():
    graph = two_chains(20)
    bins, liked = placed(graph)
    first, second = (liked[:, k] == bins.max() for k in range(2))
    sides = np.array([name[0] == "a" for name in graph.op_names])
    if first[sides].sum() < second[sides].sum():
        first, second = second, first
    # Only the slower chain is left at the end, where both devices are equally good.
    assert np.where(sides, second, first).sum() <= 1
    assert np.where(sides, first, second).mean() > 0.6


def test_every_placement_has_its_own_cut():
    graph = two_chains(20)
    _, both = placed(graph, placements=["along", "across"], heads=4)
    for k, cut in enumerate(("along", "across")):
        bins, alone = placed(graph, placements=[cut])
        np.testing.assert_array_equal(both[:, 2 * k : 2 * k + 2] > np.median(bins), alone > np.median(bins))
    assert (both[:, :2] != both[:, 2:]).any()


# By default, each kind of bins and each order once.
@pytest.mark.parametrize(
    ("bins", "prior"),
    [
        pytest.param(bins, prior, marks=() if i == j == 2 else pytest.mark.slow)
        for i, bins in enumerate([(0.2, 0.4, 0.6, 0.8), (0.9, 0.5, 0.1), (0.3,)])
        for j, prior in enumerate(["memory", "levels", "schedule"])
    ],
)
def test_priorities_may_begin_in_an_order(bins, prior):
    config = four_bins(width=4, prior=prior, order_scale=50, means=bins, placement_scale=0, reach=0)
    graph = random_graph(np.random.default_rng(3), 12, 2)
    x = inputs_of(graph, TWO, config)
    logits = np.asarray(untrained(config, x).means)[0, : graph.num_ops]
    place = np.asarray(x[1].order)[0, : graph.num_ops]
    target = min(bins) + (max(bins) - min(bins)) * place
    nearest = np.abs(np.array(bins) - target[:, None]).argmin(axis=1)
    np.testing.assert_array_equal(logits[:, 2].argmax(axis=1), nearest)
    assert np.abs(logits[:, :2]).max() < 5
    assert shapes_of(four_bins(prior=prior)).ordered is None


def test_a_policy_that_knows_no_coordinates_has_no_gain():
    for config in (
        four_bins(placement_scale=0),
        four_bins(placements=()),
        four_bins(prior="none"),
        four_bins(num_devices=1),
    ):
        assert shapes_of(config).spectral is None
    bias = jax.jit(lambda: Policy(four_bins(), rngs=nnx.Rngs(0)).spectral.bias[...])()  # Only the bias.
    assert bias.tolist() == [3]


@pytest.mark.parametrize("network", Network)
@pytest.mark.parametrize("kind", [Policy, Value])
def test_every_weight_has_a_finite_gradient(network, kind):
    config = four_bins(width=8, rounds=2, network=network)
    x = inputs_of(random_graph(np.random.default_rng(1), 12, 2), TWO, config)
    graphdef, state = nnx.split(randomised(shapes_of(config, kind)))

    def loss(state):
        return sum((a**2).mean() for a in jax.tree.leaves(nnx.merge(graphdef, state)(*x)))

    for path, leaf in jax.tree.leaves_with_path(jax.jit(jax.grad(loss))(state)):
        assert np.isfinite(leaf).all(), path
        assert np.abs(leaf).max() > 0, path


@most_configs
def test_one_trace_a_bucket(config):
    chex.clear_trace_counter()
    graphdef, state = nnx.split(randomised(shapes_of(config)))
    traced = jax.jit(chex.assert_max_traces(lambda state, x: nnx.merge(graphdef, state)(*x), n=1))
    rng = np.random.default_rng(0)
    for n in (1, 5, 12):
        traced(state, inputs_of(random_graph(rng, n, 2), TWO, config))


# Configs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_devices": 0}, "num_devices is 0; give a whole number from 1"),
        ({"rounds": 1.5}, "rounds is 1.5; give a whole number"),
        ({"width": True}, "width is True; give a whole number"),
        ({"network": "cnn"}, "network is 'cnn'; use one of gnn, sequence"),
        ({"objective": "speed"}, "objective is 'speed'; use one of makespan, peak-memory"),
        ({"prior": "spectral"}, "prior is 'spectral'; use one of none, levels, schedule, memory"),
        ({"prior": 3}, "prior is 3; use one of none, levels"),
        ({"prior": ["none"]}, r"prior is \['none'\]; use one of none, levels"),
        ({"ablation": {"uniform": True}}, "ablation is {'uniform': True}; give an Ablation"),
        ({"means": (0.5, 1.0)}, "means has a bin 1.0; give numbers between 0 and 1"),
        ({"means": ()}, "means has no bin; give at least one"),
        ({"variances": (0.1, -0.1)}, "variances has a bin -0.1; give positive numbers"),
        ({"means": (0.5, 0.5)}, "means has a bin twice"),
        ({"means": "0.5"}, "means is '0.5'; give numbers"),
        ({"variances": (float("nan"),)}, "variances is .*; give finite numbers"),
        ({"reach": 3, "prior": "none"}, "reach is 3, which needs an order; take a prior with one"),
        ({"reach": 1.5}, "reach is 1.5; give a whole number from 0"),
        ({"means": tuple(np.linspace(0.1, 0.9, 129))}, "129 x 2 bins are more than 256"),
    ],
)
def test_impossible_configs(settings, message):
    with pytest.raises(ConfigError, match=message):
        PolicyConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "more", "message"),
    [
        ({"features": "all"}, {}, "use one of raw, own, plain, structural"),
        ({"uniform": 1}, {}, "uniform is 1; give true or false"),
        ({"share_rounds": None}, {}, "share_rounds is None; give true or false"),
        ({"priority_bias": None}, {}, "priority_bias is .*; give numbers"),
        ({"affinity_bias": "1"}, {}, "affinity_bias is .*; give numbers"),
        ({"placement_scale": "2"}, {}, "placement_scale is .*; give numbers"),
        ({"order_scale": float("inf")}, {}, "order_scale is .*; give finite numbers"),
        ({"order_scale": 0}, {"reach": 3}, "reach is 3, which needs an order; take a prior with one and a"),
        ({"placements": "across"}, {}, "placements is 'across'; give a list that names each once"),
        ({"placements": 3}, {}, "placements is 3; give a list that names each once"),
        ({"placements": [["along"]]}, {}, r"placements is \['along'\]; use one of along, across, fine"),
        ({"placements": ["along", "along"]}, {}, "placements is .*; give a list that names each once"),
        ({"placements": ["up"]}, {}, "placements is 'up'; use one of along, across, fine, peaks-order"),
        (
            {"placements": ["schedule"]},
            {"prior": "memory"},
            "placements names 'schedule', which the prior 'memory' does not make; it makes peaks-order, ",
        ),
        ({"placements": ["across"]}, {"prior": "none"}, "'none' does not make; it makes none"),
        ({"transfers": "late"}, {}, "transfers is 'late'; use one of uniform, reader"),
        (
            {"transfers": "schedule"},
            {"prior": "levels"},
            "'schedule', which needs the prior 'schedule' and",
        ),
        (
            {"transfers": "schedule"},
            {"reach": 0},
            "'schedule', which needs the prior 'schedule' and",
        ),
        ({"alphas": (1, 2)}, {}, "give both alphas and betas, or neither"),
        ({"alphas": (1, 0), "betas": (1,), "order_scale": 0}, {}, "alphas has a bin 0.0; give positive"),
        ({"alphas": (1, 2), "betas": (0, 0.1), "order_scale": 0}, {}, "betas has a bin 0.0; give positive"),
        (
            {"alphas": (1, 2), "betas": (1, 2)},
            {},
            "the order of the prior 'schedule' needs means",
        ),
        (
            {"alphas": (1, 2), "betas": (1, 2), "order_scale": 0, "transfers": "midway"},
            {},
            "'midway', which needs means and variances; use 'reader'",
        ),
        (
            {"alphas": tuple(range(1, 18)), "betas": tuple(range(1, 18)), "order_scale": 0},
            {},
            "17 x 17 bins are more than 256",
        ),
    ],
)
def test_impossible_ablations(settings, more, message):
    with pytest.raises(ConfigError, match=message):
        PolicyConfig(**more, ablation=Ablation(**settings))


def test_configs_are_hashable_and_normal():
    few = [0.2, 0.4, 0.6, 0.8]
    assert four_bins(means=few) == four_bins()
    assert hash(PolicyConfig(network="gnn")) == hash(PolicyConfig())  # pyright: ignore[reportArgumentType]
    assert four_bins().num_actions == 16
    listed = PolicyConfig(ablation=Ablation(placements=["across"]))  # pyright: ignore[reportArgumentType]
    assert hash(listed) == hash(PolicyConfig(ablation=Ablation(placements=(Placement.ACROSS,))))


@pytest.mark.parametrize("objective", Objective)
def test_defaults_are_what_ships(objective):
    assert PolicyConfig(objective=objective) == default_policy(objective, 2).config
