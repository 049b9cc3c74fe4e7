"""Synthetic graphs."""

import numpy as np
import pytest

from regal_jax.datasets import FAMILIES, generate
from regal_jax.datasets.plain import PLAIN_SHAPES, plain_graph
from regal_jax.errors import ConfigError
from regal_jax.importers import format_cost_graph, parse_cost_graph


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("n", [1, 2, 3, 17, 100])
def test_a_seed_makes_one_graph(family, n):
    graph = generate(family, n, 7)
    assert graph.num_tensors == n
    assert graph.num_ops == (n + 2 if family.startswith("regal-") else n)
    assert graph.name == f"{family}-{n}-7"
    assert graph.content_hash == generate(family, n, 7).content_hash
    assert graph.content_hash != generate(family, n, 8).content_hash
    assert (graph.edge_producer < graph.edge_op).all()


# All of these families have their costs from one function.
@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=() if family == "erdos-renyi" else pytest.mark.slow)
        for family in PLAIN_SHAPES
    ],
)
def test_costs_are_whole_and_follow_the_recipe(family):
    graph = generate(family, 5000, 1)
    for costs in (graph.runtime, graph.tensor_bytes):
        assert (costs == np.rint(costs)).all()
        assert costs.min() >= 1
        assert costs.mean() == pytest.approx(50, abs=1)
        assert costs.std() == pytest.approx(10, abs=1)
    assert abs(np.corrcoef(graph.runtime, graph.tensor_bytes)[0, 1]) < 0.1
    assert parse_cost_graph(format_cost_graph(graph)).content_hash == graph.content_hash


def _predecessors(graph):
    rows = [[] for _ in range(graph.num_ops)]
    for u, v in zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True):
        rows[v].append(u)
    return rows


@pytest.mark.parametrize(("shape", "degree"), [(None, 2), (0, 0), (5, 5)])
def test_erdos_renyi_has_its_degree_and_no_order_within(shape, degree):
    graph = generate("erdos-renyi", 4000, 0, shape=shape)
    assert len(graph.edge_op) / 4000 == pytest.approx(degree, rel=0.05)
    if degree:  # pairs are uniform: the later of two uniform ops is at 2/3 on average
        assert graph.edge_op.mean() / 4000 == pytest.approx(2 / 3, abs=0.02)
        assert graph.edge_producer.mean() / 4000 == pytest.approx(1 / 3, abs=0.02)


def test_erdos_renyi_of_a_large_degree_is_complete():
    assert len(generate("erdos-renyi", 10, 0, shape=100).edge_op) == 45


def test_layers_read_two_or_three_of_the_two_layers_above():
    rows = _predecessors(generate("layered", 50, 3, shape=8))
    for v, row in enumerate(rows):
        layer = v // 8
        assert len(row) in ((0,) if layer == 0 else (2, 3))
        assert all(layer - 2 <= u // 8 < layer for u in row)
    assert len(_predecessors(generate("layered", 3, 0, shape=1))[1]) == 1


def test_chain_and_fork_join():
    assert _predecessors(generate("chain", 4, 0)) == [[], [0], [1], [2]]
    assert _predecessors(generate("fork-join", 6, 0, shape=2)) == [[], [0], [0], [1, 2], [3], [4]]
    assert _predecessors(generate("fork-join", 7, 0, shape=2)) == [[], [0], [0], [1, 2], [3], [3], [4, 5]]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ring", 3, 0), "family: unknown 'ring'; use one of erdos-renyi"),
        (("layerd", 3, 0), "family: unknown 'layerd'; use one of .*layered, .*regal-erdos-renyi.*gflownet-"),
        (("chain", 0, 0), "n: must be a whole number of at least 1, got 0"),
        (("chain", 2.0, 0), "n: must be a whole number"),
        (("chain", True, 0), "n: must be a whole number"),
        (("chain", 3, -1), "seed: must be a whole number of at least 0, got -1"),
    ],
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ConfigError, match=message):
        generate(*arguments)


@pytest.mark.parametrize("family", ["layered", "fork-join"])
@pytest.mark.parametrize("shape", [0, -1, 1.9, float("nan"), float("inf"), "8", True])
def test_bad_shapes_are_refused(family, shape):
    with pytest.raises(ConfigError, match=f"shape: must be a whole number of at least 1 for '{family}', got"):
        generate(family, 3, 0, shape=shape)
    assert generate(family, 9, 0, shape=4.0).content_hash == generate(family, 9, 0, shape=4).content_hash


@pytest.mark.parametrize("shape", [-1, float("nan"), "8"])
def test_bad_degrees_are_refused(shape):
    with pytest.raises(ConfigError, match="shape: must be a number of at least 0 for 'erdos-renyi', got"):
        generate("erdos-renyi", 3, 0, shape=shape)


def test_a_chain_has_no_shape():
    with pytest.raises(ConfigError, match="chain: no parameter 'shape'; it has none"):
        generate("chain", 3, 0, shape=2)
    with pytest.raises(ConfigError, match="shape: 'chain' has none; leave it out"):
        plain_graph(np.random.default_rng(0), "chain", 3, shape=2)


@pytest.mark.parametrize(
    ("family", "parameters", "message"),
    [
        ("chain", {"width": 2}, "chain: no parameter 'width'; it has none"),
        ("regal-erdos-renyi", {"probability": 1.5}, "probability: must be a number from 0 to 1, got 1.5"),
        ("regal-erdos-renyi", {"control": -0.1}, "control: must be a number from 0 to 1"),
        ("regal-watts-strogatz", {"neighbours": 3}, "neighbours: half of them are on either side, got 3"),
        ("gflownet-barabasi-albert", {"links": 0}, "links: must be a whole number of at least 1"),
        ("gflownet-stochastic-block", {"blocks": True}, "blocks: must be a whole number of at least 1"),
        ("ordering-layered", {"edge_density": "x"}, "edge_density: must be a number from 0 to 1, got 'x'"),
        ("ordering-layered", {"width_low": 0.6}, "width_low 0.6, width_high 0.5.*: widths must rise"),
        ("ordering-layered", {"unit_bytes": 0}, "unit_bytes: must be a whole number of at least 1"),
        ("ordering-layered", {"unit_bytes": 2**62}, "unit_bytes: must be a whole number of at most"),
    ],
)
def test_bad_parameters_are_refused(family, parameters, message):
    with pytest.raises(ConfigError, match=message):
        generate(family, 10, 0, **parameters)


def test_defaults_are_what_the_table_says():
    for family, row in FAMILIES.items():
        spelled = generate(family, 20, 3, **row.parameters)
        assert spelled.content_hash == generate(family, 20, 3).content_hash
