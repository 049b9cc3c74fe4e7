"""Tests of the meaning of genes, of warm starts, and of the proposal."""

import sys
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from strategies import instances, random_graph, random_keys

from regal_jax import encoding
from regal_jax.encoding import Proposal, encode, genes_to_keys, quantile_table
from regal_jax.errors import ConfigError, PlanError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.plan import decode_order, decode_placement, insert_transfers
from regal_jax.problem import Bucket, make_problem

BUCKET = Bucket(12, 36, 80, 66)
seeds = st.integers(0, 2**32 - 1)
decode, quantiles = jax.jit(encoding.decode), jax.jit(encoding.quantiles)


def host_decode(graph, cluster, genes):
    keys = genes_to_keys(genes)
    placement = decode_placement(graph, cluster, keys["affinity"][: graph.num_ops])
    order = decode_order(
        graph,
        cluster,
        placement,
        keys["priority"][: graph.num_ops],
        keys["transfer_priority"][: graph.num_tensors],
    )
    return placement, order


def test_gene_shapes():
    graph = random_graph(np.random.default_rng(0), 5, 3)
    problem = make_problem([graph], Cluster.uniform(3, transfer="blocking"), BUCKET)
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in encoding.gene_shapes(problem).items()} == {
        "affinity": ((12, 3), np.uint16),
        "priority": ((12,), np.uint16),
        "transfer_priority": ((36, 3), np.uint16),
    }
    problem = make_problem([graph], Cluster.uniform(3, transfer="free"), BUCKET)
    assert encoding.gene_shapes(problem)["transfer_priority"].shape == (0, 3)


@given(instances(), seeds, st.booleans())
def test_placement_is_the_host_s(instance, seed, coarse):
    graph, cluster = instance
    problem = make_problem([graph], cluster, BUCKET)
    rng = np.random.default_rng(seed)
    genes = {
        k: random_keys(rng, (1, 5, *leaf.shape), coarse) for k, leaf in encoding.gene_shapes(problem).items()
    }
    placement = np.asarray(decode(problem, genes).placement)
    for p in range(5):
        keys = genes_to_keys(genes)["affinity"][0, p, : graph.num_ops]
        np.testing.assert_array_equal(
            placement[0, p, : graph.num_ops], decode_placement(graph, cluster, keys)
        )


def test_keys_span_the_unit_interval():
    keys = genes_to_keys({"x": np.array([0, 1, 65535], np.uint16)})["x"]
    assert keys.dtype == np.float64
    np.testing.assert_array_equal(keys, [0.0, 1 / 65535, 1.0])


# Warm starts ----------------------------------------------------------------------------------------


def random_events(graph, cluster, rng):
    placement = decode_placement(graph, cluster, rng.random((graph.num_ops, cluster.num_devices)))
    transfers = rng.random((graph.num_tensors, cluster.num_devices))
    order = decode_order(graph, cluster, placement, rng.random(graph.num_ops), transfers)
    if rng.random() < 0.5:
        ops = order[order < graph.num_ops]
        order = insert_transfers(graph, cluster, placement, ops, eager=rng.random() < 0.5)
    return placement, order


@given(instances(), seeds)
def test_encode_round_trip(instance, seed):
    graph, cluster = instance
    placement, events = random_events(graph, cluster, np.random.default_rng(seed))
    genes = encode(graph, cluster, placement, events, BUCKET)
    shapes = encoding.gene_shapes(make_problem([graph], cluster, BUCKET))
    assert {name: (leaf.shape, leaf.dtype) for name, leaf in genes.items()} == {
        name: (leaf.shape, leaf.dtype) for name, leaf in shapes.items()
    }
    again, order = host_decode(graph, cluster, genes)
    np.testing.assert_array_equal(again, placement)
    np.testing.assert_array_equal(order, events)


@given(instances(), seeds)
def test_encode_shares_levels_without_changing_the_order(instance, seed):
    graph, cluster = instance
    placement, events = random_events(graph, cluster, np.random.default_rng(seed))
    with mock.patch.object(sys.modules["regal_jax.encoding.encode"], "MAX_DISTINCT", 0):
        genes = encode(graph, cluster, placement, events)
    again, order = host_decode(graph, cluster, genes)
    np.testing.assert_array_equal(again, placement)
    np.testing.assert_array_equal(order, events)


# By default, the test above.
@pytest.mark.slow
def test_encode_more_events_than_levels():
    rng = np.random.default_rng(0)
    builder = GraphBuilder("large")
    for o in range(50_000):
        inputs = [(int(u), 0) for u in rng.integers(max(0, o - 1000), o, size=min(o, 2))]
        builder.add_op(f"o{o}", runtime=1.0, outputs=[1], inputs=inputs)
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="blocking")
    placement = rng.integers(0, 2, graph.num_ops)
    events = insert_transfers(graph, cluster, placement, graph.topological_order)
    assert len(events) > 65536
    _, order = host_decode(graph, cluster, encode(graph, cluster, placement, events))
    np.testing.assert_array_equal(order, events)


def test_encode_refuses_broken_events():
    graph = random_graph(np.random.default_rng(1), 4)
    cluster, placement = Cluster.uniform(1), np.zeros(4, int)
    for events in ([], [0, 1, 2, 99], [-1, 0, 1, 2], [0, 1, 2]):
        with pytest.raises(PlanError, match="events"):
            encode(graph, cluster, placement, np.array(events, int))


# The proposal ---------------------------------------------------------------------------------------

PAIRS = [(1, 1), (0.5, 0.5), (2, 2), (5, 1), (1, 4), (30, 30), (100, 3), (0.3, 2)]


def test_quantiles_are_scipy_s():
    alphas, betas = zip(*PAIRS, strict=True)
    table = np.asarray(quantile_table(alphas, betas)).astype(np.int64)
    assert table.shape[0] == len(PAIRS)
    u = np.arange(table.shape[1]) / table.shape[1]
    for row, (a, b) in zip(table, PAIRS, strict=True):
        exact = scipy.stats.beta.ppf(u, a, b)
        np.testing.assert_allclose((row >> 16) / 65536, exact, atol=3e-5)
        right = ((row >> 16) + (row & 0xFFFF)) / 65536
        np.testing.assert_allclose(right, np.append(exact[1:], 1.0), atol=3e-5)


def test_what_is_narrower_than_a_key_is_a_point():
    table = np.asarray(quantile_table([0.3e12, 5e11, 1], [0.7e12, 5e11, 1]))
    assert (table[:2] & 0xFFFF).any() == 0
    assert np.unique(table[0] >> 16).tolist() == [int(0.3 * 65536)]
    assert np.unique(table[1] >> 16).tolist() == [32768]
    np.testing.assert_array_equal(table[2] >> 16, np.arange(256) * 256)


def uniform_genes(proposal: Proposal, seed: int = 7):
    keys = jax.random.split(jax.random.key(seed), 3)
    shapes = proposal.shapes
    return {
        name: jax.random.bits(key, shape.shape, jnp.uint16)
        for key, (name, shape) in zip(keys, shapes.items(), strict=True)
    }


def draw(row: int, count: int = 20_000, transfers: int = 0):
    alphas, betas = zip(*PAIRS, strict=True)
    index = np.full((count, 3), row, np.uint8)
    proposal = Proposal(quantile_table(alphas, betas), index, transfers)
    return quantiles(proposal, uniform_genes(proposal))


@pytest.mark.parametrize("row", range(len(PAIRS)))
def test_draws_are_beta(row):
    genes = draw(row)
    a, b = PAIRS[row]
    # A gene stands for an interval of width 2**-16: compare distribution functions between intervals.
    exact = scipy.stats.beta.cdf(np.arange(1, 65537) / 65536, a, b)
    for column in np.c_[genes["affinity"], genes["priority"]].T:
        drawn = np.cumsum(np.bincount(column, minlength=65536)) / len(column)
        assert np.abs(drawn - exact).max() < 0.015


def test_uniform_is_the_random_bits_themselves():
    problem = make_problem(
        [random_graph(np.random.default_rng(0), 5, 2)], Cluster.uniform(2, transfer="blocking"), BUCKET
    )
    batch = encoding.uniform_proposal(problem)
    proposal = jax.tree.map(lambda leaf: leaf[0], batch)
    bits = uniform_genes(proposal)
    drawn = quantiles(proposal, bits)
    shapes = encoding.gene_shapes(problem)
    assert proposal.shapes == shapes
    for name, leaf in drawn.items():
        assert (leaf.shape, leaf.dtype) == (shapes[name].shape, shapes[name].dtype)
        np.testing.assert_array_equal(leaf, bits[name])


def test_keys_of_a_row_take_their_own_distribution():
    table = quantile_table([1000, 1], [1, 1000])
    index = jnp.array([[0, 1, 0], [1, 0, 1]], jnp.uint8)
    proposal = Proposal(table, index, 0)
    genes = quantiles(proposal, uniform_genes(proposal, 0))
    assert (np.asarray(genes["affinity"]) > 32768).tolist() == [[True, False], [False, True]]
    assert (np.asarray(genes["priority"]) > 32768).tolist() == [True, False]


@pytest.mark.parametrize("sent", [pytest.param(None, marks=pytest.mark.slow), jnp.zeros((2, 2), jnp.uint8)])
def test_a_share_of_the_individuals_is_uniform_in_all_keys(sent):
    table, index = quantile_table([1000], [1]), jnp.zeros((3, 3), jnp.uint8)
    whole = Proposal(table, index, 2, transfer_index=sent)
    for share in (0.25, 0.5, 1 - 2**-16):
        proposal = Proposal(table, index, 2, share, sent)
        bits = {
            name: jax.random.bits(jax.random.key(i), (65536, *shape.shape), jnp.uint16)
            for i, (name, shape) in enumerate(proposal.shapes.items())
        }
        # Each of the 65536 values occurs once, so the share is exact.
        bits[next(name for name in bits if name not in whole.shapes)] = jnp.arange(65536, dtype=jnp.uint16)[
            :, None
        ]
        genes = jax.tree.map(np.asarray, jax.vmap(lambda u, p=proposal: quantiles(p, u))(bits))
        assert genes.keys() == whole.shapes.keys()
        guided = round(share * 65536)
        drawn = jax.vmap(lambda u: quantiles(whole, u))({name: bits[name][:guided] for name in genes})
        for name, leaf in genes.items():
            np.testing.assert_array_equal(leaf[:guided], drawn[name])
            np.testing.assert_array_equal(leaf[guided:], bits[name][guided:])


@pytest.mark.parametrize("rows", [[[0], [1], [2]], [[0, 1], [1, 0], [2, 2]]])
def test_transfers_take_the_distributions_of_their_tensors_and_devices(rows):
    table, index = quantile_table([1000, 1, 1], [1, 1000, 1]), jnp.full((4, 3), 2, jnp.uint8)
    proposal = Proposal(table, index, 3, transfer_index=jnp.array(rows, jnp.uint8))
    bits = uniform_genes(proposal)
    genes = quantiles(proposal, bits)
    sent = np.asarray(genes["transfer_priority"])
    high = np.broadcast_to(rows, (3, 2))[:2] == 0
    np.testing.assert_array_equal(sent[:2] > 64000, high)
    np.testing.assert_array_equal(sent[:2] < 1500, ~high)
    np.testing.assert_array_equal(sent[2], bits["transfer_priority"][2])
    for name in ("affinity", "priority"):
        np.testing.assert_array_equal(genes[name], bits[name])


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize("scale", [None, 1.0, 0.125])
def test_draws_are_scaled_and_moved(share, scale):
    """Only the drawn priorities and transfers."""
    table, index = quantile_table([1, 5], [1, 5]), jnp.array([[0, 1, 0], [1, 0, 1], [0, 0, 1]], jnp.uint8)
    sent = jnp.array([[0], [1]], jnp.uint8)
    offset, late = jnp.array([0, 70_000, -70_000]), jnp.array([[-100], [200]])
    plain = Proposal(table, index, 2, share, sent)
    moved = Proposal(
        table, index, 2, share, sent, 1, None if scale is None else jnp.float32(scale), offset, late
    )
    assert moved.shapes == plain.shapes
    bits = {
        name: jax.random.bits(jax.random.key(i), (4096, *shape.shape), jnp.uint16)
        for i, (name, shape) in enumerate(moved.shapes.items())
    }
    before, after = (
        jax.tree.map(np.asarray, jax.vmap(lambda u, p=p: quantiles(p, u))(bits)) for p in (plain, moved)
    )
    guided = np.full(4096, True) if share == 1 else np.asarray(bits["which"])[:, 0] < 32768
    np.testing.assert_array_equal(after["affinity"], before["affinity"])
    for name, by in (("priority", offset), ("transfer_priority", late)):
        np.testing.assert_array_equal(after[name][~guided], before[name][~guided])
        scaled = np.floor(before[name][guided] * (scale or 1.0)).astype(int) + np.asarray(by)
        np.testing.assert_array_equal(after[name][guided], np.clip(scaled, 0, 65535))


@pytest.mark.parametrize("share", [0.3, 1.0])
def test_an_individual_takes_one_of_several_placements(share):
    table, places = quantile_table([1000, 1, 1], [1, 1000, 1]), 3
    # Keys of the two devices in each placement: both high; high and low; both low. Priorities are uniform.
    index = jnp.tile(jnp.array([0, 0, 0, 1, 1, 1, 2], jnp.uint8), (4, 1))
    proposal = Proposal(table, index, 2, share, index[:2, :-1], places)
    bits = {
        name: jax.random.bits(jax.random.key(i), (65536, *shape.shape), jnp.uint16)
        for i, (name, shape) in enumerate(proposal.shapes.items())
    }
    # Avoid both ends of the distribution, where the table of quantiles is linear.
    for name in ("affinity", "transfer_priority"):
        bits[name] = jnp.clip(bits[name], 256, 65279)
    coin = next(name for name in bits if bits[name].shape == (65536, 1))
    bits[coin] = jnp.arange(65536, dtype=jnp.uint16)[:, None]
    genes = jax.tree.map(np.asarray, jax.vmap(lambda u: quantiles(proposal, u))(bits))
    guided = round(share * 65536)
    high = genes["affinity"][:guided] > 32768
    assert (high == high[:, :1]).all()  # All ops of an individual are treated alike.
    kinds = high[:, 0].tolist()
    expected = [[True, True], [True, False], [False, False]]
    assert kinds == sorted(kinds, reverse=True)
    counts = [kinds.count(kind) for kind in expected]
    assert sum(counts) == guided
    assert max(counts) - min(counts) <= 1
    # Transfers use the same placement as the ops of the individual.
    assert ((genes["transfer_priority"][:guided] > 32768) == high[:, :1]).all()
    for name in ("affinity", "transfer_priority"):
        np.testing.assert_array_equal(genes[name][guided:], bits[name][guided:])
    np.testing.assert_array_equal(genes["priority"], bits["priority"])


@pytest.mark.parametrize(
    ("alphas", "betas"), [([1], [0]), ([-1], [1]), ([np.inf], [1]), ([np.nan], [1]), ([1, 2], [1]), ([], [])]
)
def test_quantiles_refuse_impossible_parameters(alphas, betas):
    with pytest.raises(ConfigError, match="quantile_table"):
        quantile_table(alphas, betas)
