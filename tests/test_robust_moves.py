"""Random moves of ops: what they keep, by the exact times, and the compiled loop against plain Python."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plain_loops import watched
from strategies import random_graph

from regal_jax import Cluster, GraphBuilder
from regal_jax.graph import runtime_matrix, transfer_times
from regal_jax.robust import Candidates, RandomSchedules
from regal_jax.robust import moves as module
from regal_jax.robust.moves import moved


def proposed(graph, cluster, count, seed):
    return RandomSchedules().propose(graph, cluster, count, jax.random.key(seed))


def after_moves(graph, cluster, sequence, devices, limit, count=200, seed=0):
    runtime = np.repeat(runtime_matrix(graph, cluster)[..., None], len(sequence), axis=2)
    times = np.repeat(transfer_times(graph, cluster)[..., None], len(sequence), axis=2)
    source = np.random.default_rng(seed)
    return moved(graph, cluster, sequence, devices, runtime, times, limit, count, source)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.sampled_from([1.0, 1.2, 5.0]))
def test_they_keep_order_devices_and_limit(seed, factor):
    graph = random_graph(np.random.default_rng(seed), 9, 2)
    cluster = Cluster([np.inf] * 2, "delay", latency=0.5, bandwidth=4.0)
    before = Candidates.of(graph, cluster, *proposed(graph, cluster, 3, seed % 1000))
    limit = factor * before.makespan
    # `Candidates.of` checks that orders are topological, and devices those that are allowed.
    after = Candidates.of(
        graph, cluster, *after_moves(graph, cluster, before.sequence, before.devices, limit)
    )
    assert (after.makespan <= limit * (1 + 1e-12) + 1e-12).all()


def test_all_schedules_can_be_reached():
    builder = GraphBuilder("apart")
    for i in range(3):
        builder.add_op(f"op{i}", runtime=1.0)
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="free")
    sequence, devices = np.array([[0, 1, 2]]), np.zeros((1, 3), np.int64)
    reached = {
        tuple(order) + tuple(where)
        for seed in range(600)
        for order, where in zip(
            *after_moves(graph, cluster, sequence, devices, np.array([3.0]), 40, seed), strict=True
        )
    }
    assert len(reached) == 6 * 8
    # With a limit, only those in which a device has two of them.
    devices = np.array([[0, 1, 0]])
    for seed in range(50):
        _, where = after_moves(graph, cluster, sequence, devices, np.array([2.0]), 40, seed)
        assert 1 <= where.sum() <= 2


def test_groups_stay_on_their_devices():
    builder = GraphBuilder("groups")
    for i in range(4):
        builder.add_op(f"op{i}", runtime=1.0, colocation_group="both" if i < 2 else None)
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="free")
    sequence, devices = np.array([[0, 1, 2, 3]]), np.array([[1, 1, 0, 0]])
    orders = set()
    for seed in range(30):
        order, where = after_moves(graph, cluster, sequence, devices, np.array([9.0]), 30, seed)
        assert where[0, :2].tolist() == [1, 1]
        orders.add(tuple(order[0]))
    assert len(orders) > 5


@pytest.mark.parametrize(("rows", "count"), [(0, 9), (2, 0), (2, 9)])
def test_one_op(rows, count):
    builder = GraphBuilder("one")
    builder.add_op("op", runtime=1.0)
    graph, cluster = builder.build(), Cluster.uniform(2, transfer="free")
    nothing = np.zeros((rows, 1), np.int64)
    order, where = after_moves(graph, cluster, nothing, nothing, np.ones(rows), count, 1)
    assert order.shape == where.shape == (rows, 1)
    assert not order.any()
    assert bool(where.any()) == (rows * count > 0)


def test_loops_do_the_same_in_python_without_negative_indices(monkeypatch):
    graph = random_graph(np.random.default_rng(5), 12, 2)
    cluster = Cluster([np.inf] * 2, "delay", latency=0.5, bandwidth=4.0)
    sequence, devices = proposed(graph, cluster, 4, 1)
    limit = 1.3 * Candidates.of(graph, cluster, sequence, devices).makespan
    found = after_moves(graph, cluster, sequence, devices, limit)

    monkeypatch.setattr(module, "loops", watched)
    monkeypatch.setattr(module, "_shifts", module._shift)
    monkeypatch.setattr(module, "_is_short", module._time)
    again = after_moves(graph, cluster, sequence, devices, limit)
    for a, b in zip(found, again, strict=True):
        np.testing.assert_array_equal(a, b)
    assert (found[0] != sequence).any()
