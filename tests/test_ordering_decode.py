"""Orders from priorities against enumeration, plain Python and the replay."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ordering_cases import (
    BUCKET,
    CLUSTER,
    ORDERS,
    all_orders,
    before,
    chain,
    diamond,
    graph_of,
    isolated,
    keys_of,
    many,
    padded,
    probability,
    problem_of,
    replayed,
)

from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.ordering import greedy, host, host_loops, log_prob, peaks, sample
from regal_jax.ordering.decode import sample_orders
from regal_jax.ordering.precedence import open_uniform
from regal_jax.ordering.race import Clocks, race
from regal_jax.problem import Bucket, make_problem
from regal_jax.runtime.compiling import usable

seeds = st.integers(0, 2**32 - 1)
needs_numba = pytest.mark.skipif(not usable(), reason="no Numba")
sizes = st.integers(1, 5)
SPECIAL = {"one": chain(1), "chain": chain(5), "isolated": isolated(5)}
BOTH = pytest.mark.parametrize("implementation", [pytest.param("host", marks=needs_numba), "xla"])


def priorities_of(seed, scale=2.0, graphs=1, size=BUCKET.ops):
    return (scale * np.random.default_rng(seed).standard_normal((graphs, size))).astype(np.float32)


def test_draws_are_never_0_or_1():
    # With 24 bits the largest draw would be rounded up to 1, whose clock is infinite.
    words = jnp.array([0, 1, 2**31, 2**32 - 1], jnp.uint32)
    drawn = np.asarray(open_uniform(words), np.float64)
    np.testing.assert_array_equal(drawn, ((np.asarray(words) >> 9) + 0.5) / 2**23)
    assert 0 < drawn.min() <= drawn.max() < 1


def check_probabilities(graph, priority, implementation):
    orders = all_orders(graph)
    logs = log_prob(problem_of(graph), priority, many(orders), implementation=implementation)
    logs = np.asarray(logs)[0, : len(orders)]
    expected = [probability(graph, priority[0].astype(float), order) for order in orders]
    np.testing.assert_allclose(np.exp(logs), expected, rtol=2e-5)
    np.testing.assert_allclose(np.exp(logs).sum(), 1, rtol=1e-5)


@BOTH
@given(seeds, sizes, seeds)
def test_probabilities_of_all_orders(implementation, seed, num_ops, draw):
    check_probabilities(graph_of(seed, num_ops), priorities_of(draw), implementation)


@BOTH
@pytest.mark.parametrize("name", SPECIAL)
def test_probabilities_of_special_graphs(name, implementation):
    check_probabilities(SPECIAL[name], priorities_of(1), implementation)


@needs_numba
def test_probabilities_of_ops_far_below_the_largest_priority():
    # exp(-900) underflows in float64, and so do these weights relative to the largest.
    priority = np.full((1, BUCKET.ops), 900, np.float32)
    priority[0, :4] = [1, 0, -1, 2]
    builder = GraphBuilder("low")
    for name, inputs in (("a", []), ("b", []), ("c", []), ("d", []), ("high", [0, 1, 2, 3])):
        builder.add_op(name, outputs=[1], inputs=[(i, 0) for i in inputs])
    graph, orders = builder.build(), np.array([[0, 1, 2, 3, 4], [2, 1, 0, 3, 4]], np.int32)
    logs = np.asarray(log_prob(problem_of(graph), priority, padded(orders)[None], implementation="host"))[0]
    expected = [math.log(probability(graph, [1, 0, -1, 2, 0], order)) for order in orders.tolist()]
    np.testing.assert_allclose(logs, expected, rtol=1e-6)


@BOTH
@given(seeds, sizes)
def test_what_is_no_topological_order_is_impossible(implementation, seed, num_ops):
    graph = graph_of(seed, num_ops)
    orders = all_orders(isolated(num_ops))
    found = log_prob(problem_of(graph), priorities_of(seed), many(orders), implementation=implementation)
    found = np.asarray(found)[0, : len(orders)]
    possible = {tuple(order) for order in all_orders(graph).tolist()}
    np.testing.assert_array_equal(np.isfinite(found), [tuple(order) in possible for order in orders.tolist()])
    assert (found[~np.isfinite(found)] == -np.inf).all()


@jax.jit
def gradient(problem, priorities, orders, weights):
    return jax.grad(lambda y: jnp.where(weights == 0, 0, weights * log_prob(problem, y, orders)).sum())(
        priorities
    )


@settings(max_examples=20)
@given(seeds, sizes)
def test_gradient(seed, num_ops):
    graph, priority = graph_of(seed, num_ops), priorities_of(seed)
    orders, waits = all_orders(graph), before(graph)
    weights = np.zeros((1, ORDERS), np.float32)
    weights[0, : len(orders)] = np.random.default_rng(seed).standard_normal(len(orders))
    expected, y = np.zeros(BUCKET.ops), priority[0].astype(float)
    for weight, order in zip(weights[0], orders.tolist(), strict=False):
        for step, op in enumerate(order):
            ready = [o for o in range(num_ops) if o not in order[:step] and waits[o] <= set(order[:step])]
            share = np.exp(y[ready]) / np.exp(y[ready]).sum()
            expected[ready] -= weight * share
            expected[op] += weight
    found = np.asarray(gradient(problem_of(graph), priority, many(orders), weights))[0]
    np.testing.assert_allclose(found, expected, atol=2e-5 * max(1, np.abs(weights).sum()))


def test_an_impossible_order_has_no_gradient():
    orders = many(np.array([[1, 0]], np.int32))
    found = jax.jit(jax.grad(lambda y: jnp.exp(log_prob(problem_of(chain(2)), y, orders)).sum()))
    np.testing.assert_array_equal(found(priorities_of(0)), 0)


def expected_greedy(graph, priority):
    waits, order = before(graph), []
    for _ in range(graph.num_ops):
        ready = [o for o in range(graph.num_ops) if o not in order and waits[o] <= set(order)]
        order.append(max(ready, key=lambda o: (priority[o], -o)))
    return padded(np.array(order, np.int32))


@given(seeds, st.integers(1, 8), st.sampled_from([0.0, 0.5, 30.0]))
def test_greedy(seed, num_ops, scale):
    graph = graph_of(seed, num_ops)
    priority = np.round(priorities_of(seed, scale))  # Ties happen, and both zeros.
    order = np.asarray(greedy(problem_of(graph), priority))
    np.testing.assert_array_equal(order[0], expected_greedy(graph, priority[0]))
    assert order.dtype == np.int32


@BOTH
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_samples_follow_equation_8(scale, implementation):
    graph, priority = diamond(), priorities_of(7, scale)
    count = 8192
    orders = sample_orders(problem_of(graph), priority, keys_of(3), count, implementation=implementation)
    found, counts = np.unique(np.asarray(orders)[0, :, :5], axis=0, return_counts=True)
    order_of = {tuple(order): number for order, number in zip(found.tolist(), counts, strict=True)}
    expected = [probability(graph, priority[0].astype(float), o) * count for o in all_orders(graph)]
    observed = [order_of.pop(tuple(o), 0) for o in all_orders(graph).tolist()]
    assert not order_of
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    freedom = len(expected) - 1
    assert statistic < freedom + 5 * math.sqrt(2 * freedom)


@BOTH
@pytest.mark.parametrize("scale", [15.0, 100.0, 3000.0])
def test_fast_ops_behind_a_slow_one(scale, implementation):
    # Ops 0 and 1 have low priorities. Ops 2 and 3, which follow 0, have high ones, and 3 should come before 2
    # in three of four orders.
    builder = GraphBuilder("slow")
    for name, inputs in (("slow", []), ("other", []), ("fast", [0]), ("faster", [0])):
        builder.add_op(name, outputs=[1], inputs=[(i, 0) for i in inputs])
    priority = np.zeros((1, BUCKET.ops), np.float32)
    priority[0, :4] = [-scale, -scale, scale, scale + math.log(3)]
    count = 8192
    problem = problem_of(builder.build())
    orders, logs = sample(problem, priority, keys_of(5), count, implementation=implementation)
    place = np.argsort(np.asarray(orders)[0, :, :4], axis=1)
    spread = 5 * math.sqrt(count * 0.25)
    assert abs((place[:, 3] < place[:, 2]).sum() - 0.75 * count) < spread
    first = place[:, 0] < place[:, 1]
    assert abs(first.sum() - 0.5 * count) < spread
    # Where `other` is after `slow`, it is after both fast ops, too.
    assert (place[first, 1] == 3).all()
    assert np.isfinite(logs).all()
    assert (np.asarray(logs) > -3).all()


@BOTH
@given(seeds, st.integers(1, 8))
def test_samples_are_orders_with_their_probabilities(implementation, seed, num_ops):
    graph, priority = graph_of(seed, num_ops), priorities_of(seed)
    orders, logs = sample(problem_of(graph), priority, keys_of(seed), 4, implementation=implementation)
    for order, log in zip(np.asarray(orders)[0], np.asarray(logs)[0], strict=True):
        np.testing.assert_array_equal(order[num_ops:], np.arange(num_ops, BUCKET.ops))
        expected = probability(graph, priority[0].astype(float), order[:num_ops].tolist())
        assert log == pytest.approx(math.log(expected), rel=1e-4, abs=1e-5)
    again = log_prob(problem_of(graph), priority, orders, implementation=implementation)
    np.testing.assert_array_equal(logs, again)


@needs_numba
@pytest.mark.parametrize("scale", [0.0, 5.0, 300.0])
def test_host_and_xla_draw_the_same_orders(scale):
    graphs = [generate("ordering-layered", 120, seed=1), chain(3), isolated(50), chain(1)]
    problem = make_problem(graphs, CLUSTER)
    priority = priorities_of(2, scale, len(graphs), problem.bucket.ops)
    given = problem, priority, keys_of(1, 2, 3, 4), 64
    one, other = (np.asarray(sample_orders(*given, implementation=name)) for name in ("host", "xla"))
    np.testing.assert_array_equal(one, other)
    logs = [log_prob(problem, priority, one, implementation=name) for name in ("host", "xla")]
    np.testing.assert_allclose(*logs, rtol=1e-5, atol=1e-4)


@needs_numba
@given(seeds, st.integers(1, 8))
def test_ties_go_to_the_lowest_op_on_the_host_and_in_xla(seed, num_ops):
    """All clocks are alike, so that the ops that became ready together are tied."""
    problem = problem_of(graph_of(seed, num_ops), isolated(8))
    ones = np.ones((2, BUCKET.ops), np.float32)
    clocks = Clocks(np.ones((2, 2, BUCKET.ops), np.float32), ones, ones, np.zeros(ones.shape, np.int32))
    one, other = np.asarray(host.race(problem, clocks)), np.asarray(race(problem, clocks))
    np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(one[1, 0], np.arange(8))


@needs_numba
def test_python_and_compiled_loops_agree(monkeypatch):
    problem, priority = problem_of(graph_of(3, 8)), priorities_of(3)
    found = sample(problem, priority, keys_of(3), 4, implementation="host")
    monkeypatch.setattr(host, "loops", lambda function: function)
    for name, function in {"_find": host_loops._first, "_normalise": host_loops._normaliser}.items():
        monkeypatch.setattr(host_loops, name, function)
    plain = sample(problem, priority, keys_of(3), 4, implementation="host")
    np.testing.assert_array_equal(found[0], plain[0])
    np.testing.assert_allclose(found[1], plain[1], rtol=1e-6)


def test_who_decodes(monkeypatch):
    problem, priority = problem_of(chain(3)), priorities_of(0)
    assert host.chosen(None, problem, priority) == usable()
    assert not host.chosen("xla", problem, priority)
    with pytest.raises(ConfigError, match="implementation: unknown 'gpu'; use one of xla, host"):
        sample(problem, priority, keys_of(0), 1, implementation="gpu")
    drawn = functools.partial(sample_orders, samples=1, implementation="host")
    if usable():
        with pytest.raises(ConfigError, match="implementation: 'host' cannot be traced"):
            jax.eval_shape(drawn, problem, priority, keys_of(0))
    monkeypatch.setattr(host, "usable", lambda: False)
    assert not host.chosen(None, problem, priority)
    with pytest.raises(ConfigError, match="implementation: 'host' needs Numba"):
        drawn(problem, priority, keys_of(0))


def test_number_of_samples_padding_company_and_jit_change_nothing():
    graphs = [graph_of(seed, size) for seed, size in ((1, 8), (2, 5), (3, 7))]
    wide = Bucket(12, 30, 60, 40)
    priority = priorities_of(4, graphs=3)
    more = np.pad(priority, ((0, 0), (0, 4)), constant_values=9)
    alone = sample(problem_of(*graphs), priority, keys_of(1, 2, 3), 4)
    fewer = jax.jit(functools.partial(sample, samples=2))(problem_of(*graphs), priority, keys_of(1, 2, 3))
    np.testing.assert_array_equal(alone[0][:, :2], fewer[0])
    other = sample(problem_of(*graphs[::-1], bucket=wide), more[::-1], keys_of(3, 2, 1), 4)
    np.testing.assert_array_equal(alone[0], other[0][::-1, :, :8])
    np.testing.assert_allclose(alone[1], other[1][::-1], rtol=1e-5)
    some = sample(problem_of(graphs[1]), priority[1:2], keys_of(2), 4)
    np.testing.assert_array_equal(alone[0][1:2], some[0])
    first = greedy(problem_of(*graphs), priority)
    np.testing.assert_array_equal(first, jax.jit(greedy)(problem_of(*graphs), priority))
    np.testing.assert_array_equal(first, greedy(problem_of(*graphs[::-1], bucket=wide), more[::-1])[::-1, :8])


@given(seeds, st.integers(1, 8))
def test_peaks_equal_the_replay(seed, num_ops):
    graph = graph_of(seed, num_ops)
    orders, _ = sample(problem_of(graph), priorities_of(seed), keys_of(seed), 4)
    found = np.asarray(peaks(problem_of(graph), orders))
    assert found.tolist() == [[replayed(graph, order) for order in np.asarray(orders)[0]]]


def test_refusals():
    problem, priority = problem_of(chain(3)), priorities_of(0)
    two = make_problem([chain(3)], Cluster.uniform(2), BUCKET)
    with pytest.raises(ConfigError, match="2 devices, but orders are for one"):
        greedy(two, priority)
    with pytest.raises(ConfigError, match=r"must be float32 \[1, 8\]"):
        greedy(problem, priority[:, :3])
    with pytest.raises(ConfigError, match="priorities: must be float32"):
        sample(problem, priority.astype(np.int32), keys_of(0), 1)
    with pytest.raises(ConfigError, match="samples"):
        sample(problem, priority, keys_of(0), 0)
    with pytest.raises(ConfigError, match="keys: must be typed keys"):
        sample(problem, priority, keys_of(0, 1), 1)
    with pytest.raises(ConfigError, match=r"orders: must be int32 \[1, S, 8\]"):
        peaks(problem, np.zeros((1, 1, 7), np.int32))
    with pytest.raises(ConfigError, match="orders: must be int32"):
        log_prob(problem, priority, np.zeros((1, 8), np.int32))
