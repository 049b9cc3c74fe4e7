"""Noise: other costs, the same graph."""

import numpy as np
import pytest
from strategies import random_graph

from regal_jax.datasets import generate, with_noise
from regal_jax.errors import ConfigError
from regal_jax.graph import GraphBuilder, topology_hash
from regal_jax.importers import format_cost_graph, parse_cost_graph


def test_factors_are_log_normal_of_mean_1():
    n, scale = 20_000, 0.3
    graph = generate("chain", n, 0)
    noisy = with_noise(graph, 1, scale=scale)
    factor = noisy.runtime / graph.runtime
    assert abs(factor.mean() - 1) <= 4 * scale / np.sqrt(n)
    assert factor.std() == pytest.approx(scale, rel=0.05)
    log = np.log(factor)
    variance = np.log(1 + scale**2)
    assert abs(log.mean() + variance / 2) <= 4 * np.sqrt(variance / n)
    assert abs(((log - log.mean()) ** 3).mean()) <= 4 * variance**1.5 * np.sqrt(15 / n)  # symmetric
    sizes = noisy.tensor_bytes / graph.tensor_bytes
    assert sizes.std() == pytest.approx(scale, rel=0.05)
    assert abs(np.corrcoef(sizes, factor)[0, 1]) <= 4 / np.sqrt(n)


@pytest.mark.parametrize("devices", [1, 3])
def test_nothing_but_costs_changes(devices):
    for seed in range(5):
        graph = random_graph(np.random.default_rng(seed), 40, devices)
        noisy = with_noise(graph, seed)
        assert noisy.name == f"random-40-noise-{seed}"
        assert topology_hash(noisy) == topology_hash(graph)
        for field in ("op_names", "op_kinds", "allowed_devices", "colocation_group", "time_unit"):
            assert getattr(noisy, field) == getattr(graph, field)
        for field in (
            "edge_tensor",
            "edge_op",
            "control_source",
            "control_target",
            "tensor_keep",
            "resident",
        ):
            assert (getattr(noisy, field) == getattr(graph, field)).all()
        for field in ("runtime", "temp_bytes", "tensor_bytes"):
            old, new = getattr(graph, field), getattr(noisy, field)
            assert old.shape == new.shape
            assert ((old == 0) == (new == 0)).all()
        if graph.runtime.ndim == 2:  # an op keeps the ratios of its devices
            takes = (graph.runtime > 0).any(axis=1)
            factor = (noisy.runtime / np.where(graph.runtime > 0, graph.runtime, np.nan))[takes]
            assert np.nanmax(np.nanmax(factor, axis=1) - np.nanmin(factor, axis=1)) < 1e-12


def test_a_seed_makes_one_variant():
    graph = generate("regal-erdos-renyi", 60, 0)
    assert with_noise(graph, 1).content_hash == with_noise(graph, 1).content_hash
    assert len({with_noise(graph, seed).content_hash for seed in range(5)}) == 5
    assert with_noise(graph, 1, scale=0).content_hash == graph.content_hash


def test_whole_runtimes_go_into_a_cost_graph():
    noisy = with_noise(generate("regal-barabasi-albert", 30, 0), 3, scale=2, whole_runtimes=True)
    assert noisy.runtime[1:-1].min() >= 1
    assert noisy.runtime[0] == 0
    assert parse_cost_graph(format_cost_graph(noisy)).content_hash == noisy.content_hash


def test_one_byte_stays_one_byte_at_least():
    builder = GraphBuilder()
    builder.add_op("a", outputs=[1] * 50)
    assert with_noise(builder.build(), 0, scale=5).tensor_bytes.min() == 1


@pytest.mark.parametrize(
    ("seed", "scale", "message"),
    [
        (-1, 0.1, "seed: must be a whole number of at least 0, got -1"),
        (0, -0.1, "scale: must be a number from 0 to 10, got -0.1"),
        (0, float("nan"), "scale: must be"),
        (0, "0.1", "scale: must be"),
    ],
)
def test_bad_arguments_are_refused(seed, scale, message):
    with pytest.raises(ConfigError, match=message):
        with_noise(generate("chain", 3, 0), seed, scale=scale)
