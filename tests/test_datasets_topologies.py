"""The random graphs of REGAL and the GFlowNet paper against closed forms.

Seeds are fixed; where a number is random, the tolerance is 4 standard deviations of it: right code would fail
for one seed in 16,000.
"""

import numpy as np
import pytest

from regal_jax.datasets import SPLITS, Recipe, draw_candidate, generate, topologies
from regal_jax.datasets.regal import regal_graph
from regal_jax.datasets.topologies import (
    TOPOLOGIES,
    barabasi_albert,
    erdos_renyi,
    orient,
    stochastic_block,
    watts_strogatz,
)
from regal_jax.errors import ConfigError

GRAPHS = 1000


def many(topology, n, graphs=GRAPHS, **parameters):
    rng = np.random.default_rng(11)
    return [topology(rng, n, **parameters) for _ in range(graphs)]


def degrees(edges, n):
    return np.bincount(edges.ravel(), minlength=n)


def within(value, mean, variance):
    assert abs(value - mean) <= 4 * np.sqrt(variance), (value, mean, np.sqrt(variance))


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 9])
def test_edges_are_pairs_of_different_nodes_each_once(name, n):
    for seed in range(20):
        edges = TOPOLOGIES[name](np.random.default_rng(seed), n)
        assert edges.shape == (len(edges), 2)
        assert ((edges >= 0) & (edges < n)).all()
        assert (edges[:, 0] != edges[:, 1]).all()
        assert len(np.unique(np.sort(edges, axis=1), axis=0)) == len(edges)


def test_erdos_renyi_edges_are_binomial():
    n, p = 60, 0.05
    counts = np.array([len(edges) for edges in many(erdos_renyi, n)])
    pairs = n * (n - 1) / 2
    variance = pairs * p * (1 - p)
    within(counts.mean(), pairs * p, variance / GRAPHS)
    # The sample variance of something near normal has a variance of 2 sigma^4 / N.
    within(counts.var(), variance, 2 * variance**2 / GRAPHS)
    assert len(erdos_renyi(np.random.default_rng(0), 10, probability=1)) == 45
    assert len(erdos_renyi(np.random.default_rng(0), 10, probability=0)) == 0


def test_erdos_renyi_degrees_are_binomial():
    n, p = 60, 0.05
    found = np.concatenate([degrees(edges, n) for edges in many(erdos_renyi, n)])
    alone = (1 - p) ** (n - 1)
    within((found == 0).mean(), alone, 2 * alone * (1 - alone) / len(found))


@pytest.mark.slow
def test_watts_strogatz_rewires_three_in_ten():
    n, k, p = 100, 4, 0.3
    graphs = many(watts_strogatz, n)
    assert {len(edges) for edges in graphs} == {n * k // 2}
    found = np.stack([degrees(edges, n) for edges in graphs])
    # A node keeps the k/2 edges that it brought; the others are binomial (kept) and Poisson (gained):
    # Barrat and Weigt 2000, "On the properties of small-world network models", eq. 9, for n to infinity.
    assert found.min() >= k // 2
    assert found.var() == pytest.approx(k / 2 * p * (1 - p) + k / 2 * p, rel=0.05)
    ring = [(np.abs(edges[:, 0] - edges[:, 1]) % (n - 2) <= 2).mean() for edges in graphs]
    # At most one rewired edge in n / (k p) joins a pair of the ring again that was separated.
    assert np.mean(ring) >= 1 - p - 4 * np.sqrt(p * (1 - p) / (GRAPHS * n * k / 2))
    assert np.mean(ring) <= 1 - p + p * k * p / (n - 1 - k) + 4 * np.sqrt(p * (1 - p) / (GRAPHS * n * k / 2))


def test_watts_strogatz_without_rewiring_is_the_ring():
    edges = watts_strogatz(np.random.default_rng(0), 7, neighbours=4, rewiring=0)
    assert (degrees(edges, 7) == 4).all()
    assert set(map(tuple, edges.tolist())) == {
        tuple(sorted((u, (u + step) % 7))) for u in range(7) for step in (1, 2)
    }


def test_watts_strogatz_of_more_neighbours_than_nodes_joins_all():
    made = [
        watts_strogatz(np.random.default_rng(0), 6, neighbours=count, rewiring=0) for count in (6, 10**30)
    ]
    assert [len(edges) for edges in made] == [15, 15]


def test_barabasi_albert_grows_by_preference():
    n, m = 80, 2
    graphs = many(barabasi_albert, n, graphs=300)
    assert {len(edges) for edges in graphs} == {m * (n - m)}
    for edges in graphs:  # Each new node has m edges to older ones.
        assert (np.bincount(edges.max(axis=1), minlength=n)[m:] == m).all()
    # For n to infinity the share of degree k is 2 m (m + 1) / (k (k + 1) (k + 2)): Bollobas et al. 2001.
    found = np.concatenate([degrees(edges, 400) for edges in many(barabasi_albert, 400, graphs=40)])
    for k in (2, 3, 4):
        assert (found == k).mean() == pytest.approx(2 * m * (m + 1) / (k * (k + 1) * (k + 2)), abs=0.02)


# By default, the degrees are tested above.
@pytest.mark.slow
def test_barabasi_albert_of_one_link_follows_the_exact_recursion():
    n = 60
    first = np.array([degrees(edges, n)[0] for edges in many(barabasi_albert, n, links=1)])
    # The degrees of v joined nodes add up to 2 (v - 1), and a new node draws in proportion to them.
    expected = np.prod([1 + 1 / (2 * (v - 1)) for v in range(2, n)])
    within(first.mean(), expected, first.var() / GRAPHS)


def test_stochastic_blocks_are_dense_inside_and_hardly_joined():
    n = 62
    sizes = np.bincount(np.arange(n) * 4 // n)
    assert sizes.min() >= 15
    assert sizes.max() <= 16
    block = np.repeat(np.arange(4), sizes)
    inside_pairs = sum(s * (s - 1) // 2 for s in sizes.tolist())
    across_pairs = n * (n - 1) // 2 - inside_pairs
    graphs = many(stochastic_block, n)
    inside = sum((block[e[:, 0]] == block[e[:, 1]]).sum() for e in graphs)
    across = sum(map(len, graphs)) - inside
    within(inside, GRAPHS * inside_pairs * 0.3, GRAPHS * inside_pairs * 0.3 * 0.7)
    within(across, GRAPHS * across_pairs * 0.001, GRAPHS * across_pairs * 0.001 * 0.999)


def test_more_blocks_than_nodes_are_as_many():
    joined = [stochastic_block(np.random.default_rng(0), 50, blocks=b, p_out=0.5) for b in (50, 10**18)]
    np.testing.assert_array_equal(*joined)


@pytest.mark.parametrize("name", ["erdos-renyi", "watts-strogatz", "stochastic-block"])
def test_pairs_that_do_not_fit_into_memory_are_refused(name, monkeypatch):
    with pytest.raises(
        ConfigError, match=r"n: all pairs of 9,999,998 ops need about \d+\.\d GiB of .*; give fewer"
    ):
        generate(f"regal-{name}", 10_000_000 - 2, 0)
    monkeypatch.setattr(topologies, "machine_memory", lambda: 6 * 10 * 9 // 2)
    with pytest.raises(ConfigError, match="n: all pairs of 11 ops"):
        TOPOLOGIES[name](np.random.default_rng(0), 11)
    if name == "watts-strogatz":
        assert len(TOPOLOGIES[name](np.random.default_rng(0), 10)) == 20


def test_orient_points_forward_and_keeps_the_degrees():
    rng = np.random.default_rng(3)
    edges = erdos_renyi(rng, 50)
    source, target = orient(rng, 50, edges)
    assert (source < target).all()
    again = np.stack([source, target], axis=1)
    assert sorted(degrees(again, 50)) == sorted(degrees(edges, 50))
    # The order is uniform: with three nodes, an edge is at (0, 1), (0, 2) and (1, 2) equally often.
    one = np.array([[2, 0]])
    found = np.concatenate([orient(rng, 3, one)[0] * 3 + orient(rng, 3, one)[1] for _ in range(3000)])
    assert (found >= 1).all()
    sources = np.array([orient(rng, 3, one)[0][0] for _ in range(3000)])
    within((sources == 0).mean(), 2 / 3, 2 / 9 / 3000)


@pytest.mark.parametrize("name", TOPOLOGIES)
@pytest.mark.parametrize("n", [1, 2, 7, 120])
def test_regal_graphs_have_one_source_and_one_sink(name, n):
    graph = regal_graph(np.random.default_rng(n), name, n)
    assert len(graph.topological_order) == graph.num_ops == n + 2
    before = np.concatenate([graph.edge_producer, graph.control_source])
    after = np.concatenate([graph.edge_op, graph.control_target])
    assert (before < after).all()
    assert set(range(n + 2)) - set(after.tolist()) == {0}
    assert set(range(n + 2)) - set(before.tolist()) == {n + 1}
    assert (graph.op_names[0], graph.op_names[-1]) == ("_SOURCE", "_SINK")
    assert graph.runtime[[0, -1]].tolist() == [0, 0]
    assert (graph.runtime[1:-1] >= 1).all()


# By default, test_datasets.py has the costs, and tests here the shapes.
@pytest.mark.slow
def test_candidates_follow_the_recipe():
    drawn = [draw_candidate(Recipe(), 5, "test", i, 0) for i in range(GRAPHS)]
    ops = np.array([c.graph.num_ops - 2 for c in drawn])
    assert ops.min() >= 50
    assert ops.max() <= 200
    within(ops.mean(), 125, (151**2 - 1) / 12 / GRAPHS)
    for name in TOPOLOGIES:
        within(sum(c.topology == name for c in drawn), GRAPHS / 4, GRAPHS * 3 / 16)
    # One in ten of the edges is a control edge; the source's edges do not count.
    control = sum((c.graph.control_source > 0).sum() for c in drawn)
    edges = control + sum(len(c.graph.edge_op) for c in drawn)
    within(control, 0.1 * edges, 0.09 * edges)
    for costs in ("runtime", "tensor_bytes"):
        values = np.concatenate([getattr(c.graph, costs) for c in drawn])
        values = values[values > 0]
        variance = 100 + 1 / 12  # The normal distribution's variance plus that of rounding.
        within(values.mean(), 50, variance / len(values))
        within(values.var(), variance, 2 * variance**2 / len(values))


def test_a_candidate_is_a_function_of_its_four_numbers():
    def content(*numbers):
        return draw_candidate(Recipe(), *numbers).graph.content_hash

    assert content(1, "train", 2, 3) == content(1, "train", 2, 3)
    every = {content(s, split, i, a) for s in (0, 1) for split in SPLITS for i in (0, 1) for a in (0, 1)}
    assert len(every) == 24


def test_gflownet_runtimes_are_uniform():
    for family in ("gflownet-erdos-renyi", "gflownet-layered"):
        graph = generate(family, 5000 if "layered" in family else 1500, 1)
        n = graph.num_ops
        assert graph.runtime.min() >= 0
        assert graph.runtime.max() < 1
        within(graph.runtime.mean(), 1 / 2, 1 / 12 / n)
        within((graph.runtime < 0.25).mean(), 1 / 4, 3 / 16 / n)
        assert len(graph.control_source) == 0
