"""Diversity against plain loops over pairs, and invariances."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from regal_jax.graph import GraphBuilder
from regal_jax.robust import chain_successors, diversity, graph_edit_distances, start_distances, time_scale


def graph_of(runtimes):
    builder = GraphBuilder("ops")
    for i, runtime in enumerate(runtimes):
        builder.add_op(f"op{i}", runtime=float(runtime))
    return builder.build()


def adjacency(sequence, devices, count):
    """``[N, N]`` of one schedule, chain by chain."""
    matrix = np.zeros((len(sequence), len(sequence)), int)
    for k in range(count):
        chain = [o for o in sequence if devices[o] == k]
        for u, v in itertools.pairwise(chain):
            matrix[u, v] = 1
    return matrix


def by_hand(graph, sequence, devices, start, count):
    """The five figures, one pair after the other."""
    unit = 2 * np.mean([r for r in graph.runtime.tolist() if r > 0]) if graph.runtime.any() else 1.0
    ged, inv, sen = [], [], []
    for i, j in itertools.combinations(range(len(sequence)), 2):
        a, b = (adjacency(sequence[r], devices[r], count) for r in (i, j))
        edges = a.sum() + b.sum()
        ged.append(100 * abs(a - b).sum() / edges if edges else 0.0)
        one, two = (np.concatenate([start[r] / unit, np.eye(count)[devices[r]].ravel()]) for r in (i, j))
        n = len(sequence[i])
        inv.append(math.dist(one[:n], two[:n]))
        sen.append(math.dist(one, two))
    if not ged:
        return [0.0] * 5
    squares = [np.mean(np.square(inv)), np.mean(np.square(sen))]
    return [np.mean(ged), np.mean(inv), np.mean(sen), *squares]


def drawn(seed, count, ops, devices):
    rng = np.random.default_rng(seed)
    sequence = np.stack([rng.permutation(ops) for _ in range(count)]) if count else np.zeros((0, ops), int)
    runtime = rng.integers(0, 3, ops)
    return (
        graph_of(runtime), sequence, rng.integers(devices, size=(count, ops)), rng.random((count, ops)) * 9
    )  # fmt: skip


def figures(found):
    return [found.ged, found.d_inv, found.d_sen, found.d_inv_squared, found.d_sen_squared]


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1), count=st.integers(0, 5), ops=st.integers(1, 7), devices=st.integers(1, 4)
)
def test_figures_are_those_of_loops_over_pairs(seed, count, ops, devices):
    graph, sequence, placed, start = drawn(seed, count, ops, devices)
    found = figures(diversity(graph, sequence, placed, start))
    np.testing.assert_allclose(
        found, by_hand(graph, sequence, placed, start, devices), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("count", [0, 1, 4])
def test_equal_schedules_have_no_diversity(count):
    graph, sequence, placed, start = drawn(1, 1, 6, 3)
    found = diversity(*(graph, *(np.repeat(x, count, axis=0) for x in (sequence, placed, start))))
    assert figures(found) == [0.0] * 5


def test_numbering_of_ops_changes_nothing():
    graph, sequence, placed, start = drawn(2, 6, 9, 3)
    number = np.random.default_rng(5).permutation(9)  # Op o gets number[o].
    old = np.argsort(number)
    other = graph_of(graph.runtime[old])
    found = diversity(other, number[sequence], placed[:, old], start[:, old])
    assert figures(found) == pytest.approx(figures(diversity(graph, sequence, placed, start)))


def test_names_of_devices_change_nothing_but_what_knows_them():
    graph, sequence, placed, start = drawn(3, 2, 8, 3)
    renamed = np.stack([placed[0], (placed[0] + 1) % 3])
    both = np.repeat(sequence[:1], 2, axis=0), renamed, np.repeat(start[:1], 2, axis=0)
    found = diversity(graph, *both)
    assert (found.ged, found.d_inv) == (0, 0)
    assert found.d_sen_squared == 16


def test_units_of_time_change_nothing():
    graph, sequence, placed, start = drawn(4, 5, 8, 3)
    other = graph_of(graph.runtime * 1000)
    found = figures(diversity(other, sequence, placed, 1000 * start))
    assert found == pytest.approx(figures(diversity(graph, sequence, placed, start)))
    assert time_scale(graph_of([0.0, 0.0])) == 1
    assert time_scale(graph_of([0.0, 3.0, 1.0])) == 4


def test_distances_by_hand():
    # Chains 0-1-2 and 3 on the first, 0-1 and 3-2 on the second: edges 01, 12 and 01, 32.
    sequence, placed = np.array([[0, 1, 2, 3], [3, 0, 2, 1]]), np.array([[0, 0, 0, 1], [0, 0, 1, 1]])
    after = chain_successors(sequence, placed)
    assert after.dtype == np.int32
    assert after.tolist() == [[1, 2, -1, -1], [1, -1, -1, 2]]
    np.testing.assert_array_equal(graph_edit_distances(after), [[0, 50], [50, 0]])
    start = np.array([[0.0, 1, 2, 0], [0.0, 1, 1, 0]])
    np.testing.assert_array_equal(start_distances(start), [[0, 1], [1, 0]])
    np.testing.assert_array_equal(start_distances(start, placed), [[0, 3], [3, 0]])


def test_schedules_that_share_no_edge_are_all_different():
    after = chain_successors(np.array([[0, 1, 2], [2, 1, 0]]), np.zeros((2, 3), int))
    assert graph_edit_distances(after)[0, 1] == 100
