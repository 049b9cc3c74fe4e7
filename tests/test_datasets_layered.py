"""Layered graphs against appendix A of the topological-ordering paper."""

import math

import numpy as np
import pytest
from scipy import stats

from regal_jax.datasets import generate
from regal_jax.datasets.layered import (
    MIXTURE_MEANS,
    MIXTURE_STDS,
    MIXTURE_WEIGHTS,
    layered_graph,
    layered_topology,
    memory_costs,
)

SIZES = [1, 2, 3, 5, 25, 50, 100, pytest.param(500, marks=pytest.mark.slow)]


def many(n, graphs=60, **parameters):
    rng = np.random.default_rng(n)
    return [layered_topology(rng, n, **parameters) for _ in range(graphs)]


@pytest.mark.parametrize("n", SIZES)
def test_the_number_of_nodes_is_kept_and_layers_have_their_sizes(n):
    for made in many(n):
        sizes = np.bincount(made.layer)
        assert sizes.sum() == n
        assert sizes.min() >= 1
        # Eq. 11 with W from 0.25 to 0.5.
        assert math.ceil(math.sqrt(n)) <= made.target_layers <= math.ceil(math.sqrt(3 * n))
        average = n / made.target_layers  # Eq. 12; the last layer gets the remaining nodes.
        high = max(1, math.floor(average * 1.75))
        assert (sizes <= high).all()
        assert (sizes[:-1] >= math.ceil(average * 0.25)).all()


@pytest.mark.slow
def test_the_number_of_layers_is_about_its_target():
    graphs = many(500, 300)
    ratio = [len(np.bincount(made.layer)) / made.target_layers for made in graphs]
    # Sizes are uniform on whole numbers around n / L, so their number is L but for the rounding of the ends.
    assert np.mean(ratio) == pytest.approx(1, abs=0.03)
    # sqrt(1 / W - 1) has the mean 1.31 for W uniform on (0.25, 0.5).
    w = np.linspace(0.25, 0.5, 100_001)
    expected = np.sqrt(500 * (1 / w - 1)).mean() + 0.5
    targets = [made.target_layers for made in graphs]
    assert np.mean(targets) == pytest.approx(expected, abs=4 * np.std(targets) / math.sqrt(300))


@pytest.mark.parametrize("n", SIZES)
def test_adjacent_layers_have_the_edges_of_eq_13_and_leave_nobody_alone(n):
    for made in many(n):
        sizes = np.bincount(made.layer)
        from_layer, to_layer = made.layer[made.adjacent].T
        assert (to_layer == from_layer + 1).all()
        found = np.bincount(from_layer, minlength=len(sizes))
        for i in range(len(sizes) - 1):
            a, b = int(sizes[i]), int(sizes[i + 1])
            assert found[i] == math.floor(a * b * 0.2 + 0.8 * max(a, b) + 0.5)
        # "each node to have at least one ingoing and one outgoing connection", first and last layer excepted
        assert set(np.flatnonzero(made.layer > 0)) == set(made.adjacent[:, 1].tolist())
        assert set(np.flatnonzero(made.layer < len(sizes) - 1)) == set(made.adjacent[:, 0].tolist())


def test_edges_are_shared_out_evenly_in_the_larger_layer():
    for made in many(100):
        sizes = np.bincount(made.layer)
        for i in range(len(sizes) - 1):
            here = made.adjacent[made.layer[made.adjacent[:, 0]] == i]
            larger = here[:, 0] if sizes[i] >= sizes[i + 1] else here[:, 1]
            count = np.unique(larger, return_counts=True)[1]
            assert count.max() - count.min() <= 1
            # Neighbours of a node are a range: "more or less equally spaced in a cone below it".
            for node in np.unique(larger):
                others = here[larger == node].sum(axis=1) - node
                assert np.ptp(others) == len(others) - 1


def test_densities_of_0_and_1_are_the_extremes():
    for made in many(60, edge_density=1):
        sizes = np.bincount(made.layer)
        assert len(made.adjacent) == (sizes[1:] * sizes[:-1]).sum()
    for made in many(60, edge_density=0):
        sizes = np.bincount(made.layer)
        assert len(made.adjacent) == np.maximum(sizes[1:], sizes[:-1]).sum()
    assert len(many(60, graphs=1, skip_density=0)[0].skip) == 0
    assert {int(m.layer.max()) for m in many(60, width_low=1, width_high=1, layer_spread=0)} == {0}


@pytest.mark.parametrize("n", SIZES)
def test_skip_connections_skip_a_layer_and_are_as_many_as_eq_14_says(n):
    for made in many(n):
        layers = made.layer.max() + 1
        expected = math.ceil(len(made.adjacent) * 0.14 / 0.86) if layers >= 3 else 0
        assert made.skips_drawn == expected
        assert len(made.skip) <= expected
        from_layer, to_layer = made.layer[made.skip].T
        assert (to_layer >= from_layer + 2).all()
        # The target is "more or less directly below": from 0 to 0.2 of the width to the right.
        first = np.searchsorted(made.layer, np.arange(layers))
        width = np.bincount(made.layer)
        low = (made.skip[:, 0] - first[from_layer]) / width[from_layer]
        high = (made.skip[:, 1] - first[to_layer] + 1) / width[to_layer]
        assert (high >= low - 1e-9).all()
        assert (high - 1 / width[to_layer] <= low + 1 / width[from_layer] + 0.2).all()


def test_skips_are_about_the_asked_share():
    made = many(500)
    share = sum(len(m.skip) for m in made) / sum(len(m.skip) + len(m.adjacent) for m in made)
    assert 0.125 < share <= 0.145  # A few edges are drawn twice and counted once.


def test_costs_follow_the_truncated_mixture():
    draws = memory_costs(np.random.default_rng(0), 200_000)
    assert draws.min() > 0
    parts = [
        (w, stats.truncnorm(-m / s, np.inf, loc=m, scale=s), stats.norm.sf(-m / s))
        for w, m, s in zip(MIXTURE_WEIGHTS, MIXTURE_MEANS, MIXTURE_STDS, strict=True)
    ]
    mass = sum(w * positive for w, _, positive in parts)
    assert 1 - mass == pytest.approx(0.0956, abs=1e-4)  # The docstring rounds this to a tenth.
    moments = [sum(w * positive * part.moment(k) for w, part, positive in parts) / mass for k in (1, 2, 4)]
    assert abs(draws.mean() - moments[0]) <= 4 * math.sqrt((moments[1] - moments[0] ** 2) / 200_000)
    assert abs((draws**2).mean() - moments[1]) <= 4 * math.sqrt((moments[2] - moments[1] ** 2) / 200_000)
    below = sum(w * positive * part.cdf(1) for w, part, positive in parts) / mass
    assert abs((draws < 1).mean() - below) <= 4 * math.sqrt(below * (1 - below) / 200_000)


def test_a_layer_shares_its_output_and_parameter_memory():
    graph = generate("ordering-layered", 200, 5)
    layer = layered_topology(np.random.default_rng(5), 200).layer
    assert graph.num_ops == graph.num_tensors == 200
    for values in (graph.tensor_bytes, graph.temp_bytes):
        first = values[np.searchsorted(layer, layer)]
        assert (values == first).all()
        assert len(np.unique(values)) == layer.max() + 1
        assert values.min() >= 1
    assert (graph.tensor_bytes != graph.temp_bytes).any()
    assert len(graph.topological_order) == 200


def test_the_unit_scales_sizes_alone():
    small, large = (layered_graph(np.random.default_rng(1), 40, unit_bytes=u) for u in (10**3, 10**6))
    assert np.abs(large.tensor_bytes / 10**6 - small.tensor_bytes / 10**3).max() <= 1e-3
    assert (small.edge_op == large.edge_op).all()
