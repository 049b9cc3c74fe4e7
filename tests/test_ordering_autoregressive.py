"""The autoregressive decoder against the formulas of the attention model, in float64."""

import functools
import math

import jax
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_cases import (
    BUCKET,
    all_orders,
    before,
    chain,
    diamond,
    graph_of,
    keys_of,
    many,
    problem_of,
    replayed,
)

from regal_jax.errors import ConfigError
from regal_jax.ordering import AutoregressiveDecoder
from regal_jax.problem import Bucket

seeds = st.integers(0, 2**32 - 1)
sizes = st.integers(1, 5)
WIDTH = 8


@functools.cache
def decoder():
    return AutoregressiveDecoder(WIDTH, 2, rngs=nnx.Rngs(0))


def embeddings_of(seed, graphs=1, size=BUCKET.ops):
    return np.random.default_rng(seed).standard_normal((graphs, size, WIDTH)).astype(np.float32) * 3


def attended(graph, embeddings, order):
    """Probability of an order by the attention model, in float64, and the likeliest op at each step."""
    w = {
        name: np.asarray(getattr(decoder(), name).kernel[...], float)
        for name in ("mean", "last", "out", "nodes")
    }
    h = embeddings[: graph.num_ops].astype(float)
    key, value, logit = np.split(h @ w["nodes"], 3, axis=1)
    waits, total, likeliest = before(graph), 1.0, []
    last, size = np.asarray(decoder().first[...], float), WIDTH // 2
    for step, op in enumerate(order):
        ready = [o for o in range(graph.num_ops) if o not in order[:step] and waits[o] <= set(order[:step])]
        query, glimpse = h.mean(axis=0) @ w["mean"] + last @ w["last"], []
        for part in (slice(0, size), slice(size, WIDTH)):
            match = np.exp(key[ready, part] @ query[part] / math.sqrt(size))
            glimpse.append(match / match.sum() @ value[ready, part])
        scores = 10 * np.tanh(logit[ready] @ (np.concatenate(glimpse) @ w["out"]) / math.sqrt(WIDTH))
        share = np.exp(scores) / np.exp(scores).sum()
        total, last = total * share[ready.index(op)], h[op]
        likeliest.append(ready[int(share.argmax())])
    return total, likeliest


@settings(max_examples=25)
@given(seeds, sizes)
def test_probabilities(seed, num_ops):
    graph, embeddings = graph_of(seed, num_ops), embeddings_of(seed)
    orders = all_orders(graph)
    logs = np.asarray(decoder().log_prob(problem_of(graph), embeddings, many(orders)))[0, : len(orders)]
    expected = [attended(graph, embeddings[0], order.tolist())[0] for order in orders]
    np.testing.assert_allclose(np.exp(logs), expected, rtol=1e-3, atol=1e-7)
    order = np.asarray(decoder().greedy(problem_of(graph), embeddings))[0]
    assert attended(graph, embeddings[0], order[:num_ops].tolist())[1] == order[:num_ops].tolist()
    np.testing.assert_array_equal(order[num_ops:], np.arange(num_ops, BUCKET.ops))
    found = decoder().beam_search(problem_of(graph), embeddings, 1)
    np.testing.assert_array_equal(found.orders[0], order)
    assert found.peak[0] == replayed(graph, order)


def test_samples_follow_their_probabilities():
    graph, embeddings, count = diamond(), embeddings_of(2) / 6, 4096
    orders, logs = decoder().sample(problem_of(graph), embeddings, keys_of(1), count)
    np.testing.assert_array_equal(logs, decoder().log_prob(problem_of(graph), embeddings, orders))
    found, counts = np.unique(np.asarray(orders)[0, :, :5], axis=0, return_counts=True)
    order_of = {tuple(order): number for order, number in zip(found.tolist(), counts, strict=True)}
    expected = [attended(graph, embeddings[0], o)[0] * count for o in all_orders(graph).tolist()]
    observed = [order_of.pop(tuple(o), 0) for o in all_orders(graph).tolist()]
    assert not order_of
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    assert statistic < len(expected) - 1 + 5 * math.sqrt(2 * (len(expected) - 1))


# By default, graphs are padded in `test_probabilities`.
@pytest.mark.slow
def test_padding_and_company_change_nothing():
    graphs = [graph_of(seed, size) for seed, size in ((1, 8), (2, 5))]
    embeddings = embeddings_of(1, graphs=2)
    more = np.pad(embeddings, ((0, 0), (0, 4), (0, 0)), constant_values=np.nan)
    wide = problem_of(*graphs[::-1], bucket=Bucket(12, 30, 60, 40))
    orders, logs = decoder().sample(problem_of(*graphs), embeddings, keys_of(1, 2), 3)
    other = decoder().sample(wide, more[::-1], keys_of(2, 1), 3)
    np.testing.assert_array_equal(orders, other[0][::-1, :, :8])
    np.testing.assert_allclose(logs, other[1][::-1], rtol=1e-4)
    found = decoder().beam_search(problem_of(*graphs), embeddings, 3)
    again = decoder().beam_search(wide, more[::-1], 3)
    np.testing.assert_array_equal(found.orders, again.orders[::-1, :8])
    several = decoder().log_prob(problem_of(*graphs), embeddings, found.orders[:, None])
    np.testing.assert_allclose(found.log_prob, several[:, 0], rtol=1e-4, atol=1e-5)


def test_gradient():
    graph, embeddings = graph_of(5, 6), embeddings_of(5) / 3
    orders = many(all_orders(graph))[:, :2]

    def total(decoder, embeddings):
        return decoder.log_prob(problem_of(graph), embeddings, orders).sum()

    weights, nodes = jax.jit(jax.grad(total, argnums=(0, 1)))(decoder(), embeddings)
    direction = np.random.default_rng(0).standard_normal(embeddings.shape).astype(np.float32)
    step = 1e-2
    sides = [total(decoder(), embeddings + sign * step * direction) for sign in (1, -1)]
    assert float(sides[0] - sides[1]) / (2 * step) == pytest.approx(
        float((nodes * direction).sum()), rel=2e-2
    )
    for leaf in jax.tree.leaves(weights):
        assert np.isfinite(leaf).all()
        assert np.abs(leaf).max() > 0
    np.testing.assert_array_equal(nodes[:, graph.num_ops :], 0)


def test_refusals():
    with pytest.raises(ConfigError, match="heads: 3 do not divide the width, 8"):
        AutoregressiveDecoder(8, 3, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigError, match=r"embeddings: must be float32 \[1, 8, 8\]"):
        decoder().greedy(problem_of(chain(3)), embeddings_of(0)[..., :4])
