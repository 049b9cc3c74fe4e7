"""Scenarios: their distribution, their times against the exact replay, the source, and the choice."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph

from regal_jax import Cluster, GraphBuilder, Plan, propose, select
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.plan import insert_transfers
from regal_jax.problem import make_problem
from regal_jax.robust import (
    BrkgaRuns,
    Candidates,
    RandomSchedules,
    ScenarioRuns,
    Scenarios,
    bandwidth_limited,
    chain_successors,
    cover,
    graph_edit_distances,
    latency_limited,
)
from regal_jax.search import BrkgaConfig

GRAPH = generate("gflownet-layered", 16, seed=0)
FREE = Cluster.uniform(3, transfer="free")
TWO = Cluster.uniform(2, transfer="free")
KEY = jax.random.key(3)
SMALL = BrkgaConfig(population=10, elites=2, mutants=2)


def candidates(graph=GRAPH, cluster=FREE, count=40, key=KEY):
    found = Candidates.of(graph, cluster, *RandomSchedules().propose(graph, cluster, count, key))
    return found.take(found.distinct())


def test_their_distribution():
    drawn = Scenarios(delays=(0.5, 2.0), exact=0.4, noise=0.3).draw(GRAPH, 2000, KEY)
    assert len(drawn) == 2000
    mean, unit = GRAPH.tensor_bytes[np.unique(GRAPH.edge_tensor)].mean(), GRAPH.runtime.mean()
    delay = (drawn.latency + drawn.per_byte * mean) / unit
    same = delay == 0
    assert 0.37 < same.mean() < 0.43
    np.testing.assert_array_equal(drawn.runtime[same], 1)
    assert (drawn.runtime[~same] != 1).all()
    assert (delay[~same].min(), delay[~same].max()) == pytest.approx((0.5, 2.0), rel=0.01)
    assert np.log(delay[~same]).mean() == pytest.approx(0, abs=0.05)
    share = (drawn.per_byte * mean / unit / np.where(same, 1, delay))[~same]
    assert np.quantile(share, [0.1, 0.5, 0.9]) == pytest.approx([0.1, 0.5, 0.9], abs=0.04)
    spread = np.log(drawn.runtime[~same]).std(axis=1)
    assert 0.1 < spread.mean() < 0.2
    # The first ones are the same, however many there are.
    few = Scenarios(delays=(0.5, 2.0), exact=0.4, noise=0.3).draw(GRAPH, 7, KEY)
    for name, rows in vars(few).items():
        np.testing.assert_array_equal(getattr(drawn, name)[:7], rows)


def test_nothing_that_moves_and_nothing_that_takes_time():
    builder = GraphBuilder("apart")
    for i in range(3):
        builder.add_op(f"op{i}")
    graph = builder.build()
    drawn = Scenarios(exact=0).draw(graph, 4, KEY)
    assert not drawn.latency.any()
    assert not drawn.per_byte.any()
    found = candidates(graph, count=4)
    assert not drawn.makespans(graph, FREE, found.sequence, found.devices).any()
    assert len(cover(found, 9, Scenarios(), KEY)) == len(found)
    assert len(cover(found.take([]), 9, Scenarios(), KEY)) == 0


def test_what_are_no_scenarios_and_no_key_is_refused():
    found = candidates(GRAPH, count=4)
    assert rows(cover(found, 3, Scenarios(), 0)) == rows(cover(found, 3, Scenarios(), jax.random.key(0)))
    for scenarios, key, said in (
        ("scenarios", KEY, "scenarios: give a Scenarios, got str"),
        (Scenarios(), "0", "key: give a whole number or jax.random.key"),
        (Scenarios(), np.zeros(2, np.uint32), "key: give a whole number or jax.random.key"),
        (Scenarios(), -1, "key: must be from 0"),
    ):
        for keep in (1, 3):
            with pytest.raises(ConfigError, match=f"^{said}"):
                cover(found, keep, scenarios, key)


@settings(max_examples=20)
@given(st.integers(0, 2**32 - 1), st.booleans())
def test_makespans_are_those_of_the_replay(seed, costly):
    graph = random_graph(np.random.default_rng(seed), 9, 2)
    latency, slowness = (0.5, 0.25) if costly else (0.0, 0.0)
    cluster = Cluster([np.inf] * 2, "delay", latency=latency, bandwidth=4.0) if costly else TWO
    drawn = Scenarios(exact=0.3).draw(graph, 3, jax.random.key(seed))
    sequence, devices = RandomSchedules().propose(graph, cluster, 4, jax.random.key(seed))
    found = drawn.makespans(graph, cluster, sequence, devices)
    for s, c in itertools.product(range(3), range(4)):
        slower = slowness + float(drawn.per_byte[s])
        there = Cluster(
            [np.inf] * 2,
            "delay",
            latency=latency + float(drawn.latency[s]),
            bandwidth=1 / slower if slower else np.inf,
        )
        other = dataclasses.replace(graph, runtime=(graph.runtime.T * drawn.runtime[s]).T)
        events = insert_transfers(other, there, devices[c], sequence[c])
        assert found[c, s] == pytest.approx(Plan.from_events(other, there, devices[c], events).makespan)


def test_the_problem_has_the_costs_of_each_scenario():
    drawn = Scenarios(exact=0.3).draw(GRAPH, 5, KEY)
    alone = make_problem([GRAPH], FREE)
    several = drawn.take(np.array([4, 0])).problem(GRAPH, alone)
    assert several.num_graphs == 2
    n, t = GRAPH.num_ops, GRAPH.num_tensors
    for row, s in enumerate((4, 0)):
        wanted = GRAPH.runtime.reshape(n, 1) * drawn.runtime[s][:, None]
        np.testing.assert_allclose(several.runtime[row, :n], np.tile(wanted, 3), rtol=1e-6)
        moves = drawn.latency[s] + drawn.per_byte[s] * GRAPH.tensor_bytes
        np.testing.assert_allclose(several.transfer_time[row, :t, 0], moves, rtol=1e-6)
        # One after another, on one device after another, they take no longer than the bound.
        assert several.upper_bound[row] >= wanted.sum() + 2 * moves.sum()


# By default, such runs are chosen from below.
@pytest.mark.slow
def test_each_run_searches_in_its_own_scenario():
    one = ScenarioRuns(30, SMALL)
    six = one.propose(GRAPH, FREE, 6, KEY)
    for rows, wanted in zip(one.propose(GRAPH, FREE, 2, KEY), six, strict=True):
        np.testing.assert_array_equal(rows, wanted[:2])
    assert [len(rows) for rows in one.propose(GRAPH, FREE, 0, KEY)] == [0, 0]
    # Where every scenario is the proxy, these are plain runs.
    plain = BrkgaRuns(30, SMALL).propose(GRAPH, FREE, 6, jax.random.split(KEY)[1])
    same = ScenarioRuns(30, SMALL, scenarios=Scenarios(exact=1)).propose(GRAPH, FREE, 6, KEY)
    for rows, wanted in zip(same, plain, strict=True):
        np.testing.assert_array_equal(rows, wanted)


@pytest.mark.slow
def test_slow_transfers_are_rare_where_scenarios_have_them():
    graph = generate("gflownet-layered", 20, seed=1)

    def moved(source):
        _, devices = source.propose(graph, FREE, 5, KEY)
        return (devices[:, graph.edge_producer] != devices[:, graph.edge_op]).sum(axis=1)

    slow = ScenarioRuns(50, SMALL, scenarios=Scenarios(delays=(20.0, 20.0), exact=0, noise=0))
    assert moved(slow).max() < moved(BrkgaRuns(50, SMALL)).min()


def plain_cover(value, proxy, after, keep, slack):
    """The choice in plain loops."""
    value = value / value.min(axis=0)
    chosen = [int(np.argmin(proxy))]
    distance = graph_edit_distances(after)
    while len(chosen) < keep:
        others = [i for i in range(len(value)) if i not in chosen]
        best = value[chosen].min(axis=0)
        gains = [np.maximum(best - value[i], 0).mean() for i in others]
        if max(gains) >= 1e-4:
            chosen.append(others[int(np.argmax(gains))])
            continue
        good = [i for i in others if value[i].min() <= slack] or others
        chosen.append(max(good, key=lambda i: min(distance[i, j] for j in chosen)))
    return chosen


def rows(found):
    return [a.tobytes() + b.tobytes() for a, b in zip(found.sequence, found.devices, strict=True)]


@pytest.mark.parametrize("slack", [1.0, 1.05, 3.0])
def test_the_choice_is_the_greedy_one(slack):
    found, scenarios = candidates(), Scenarios(count=6, slack=slack, moves=0)
    drawn = scenarios.draw(GRAPH, 6, jax.random.split(KEY)[0])
    value = drawn.makespans(GRAPH, FREE, found.sequence, found.devices)
    after = chain_successors(found.sequence, found.devices)
    chosen = cover(found, 25, scenarios, KEY)
    assert rows(chosen) == rows(found.take(plain_cover(value, found.makespan, after, 25, slack)))
    # A smaller choice is its beginning.
    assert rows(cover(found, 4, scenarios, KEY)) == rows(chosen)[:4]
    assert sorted(rows(cover(found, 10**6, scenarios, KEY))) == sorted(rows(found))
    assert rows(cover(found, 1, scenarios, KEY)) == rows(found.best(1))


def test_moves_make_the_rest_of_the_choice_differ_more():
    found = Candidates.of(GRAPH, FREE, *ScenarioRuns(30, SMALL).propose(GRAPH, FREE, 60, KEY))
    found = found.take(found.distinct())
    plain, varied = (cover(found, 25, Scenarios(count=6, moves=moves), KEY) for moves in (0, 20))
    same = np.array([a == b for a, b in zip(rows(plain), rows(varied), strict=True)])
    gaining = int(np.argmin(same))
    assert 0 < gaining < 20
    assert not same[gaining:].all()
    assert varied.diversity.ged > plain.diversity.ged + 3
    assert len(varied.distinct()) == 25
    # They are as good as those from which they come are required to be.
    drawn = Scenarios().draw(GRAPH, 6, jax.random.split(KEY)[0])
    value, before, after = (
        drawn.makespans(GRAPH, FREE, each.sequence, each.devices) for each in (found, plain, varied)
    )
    least = value.min(axis=0)
    own = (before / least).argmin(axis=1)
    each = np.arange(25)
    limit = np.maximum(before[each, own], 1.05 * least[own])
    assert (after[each, own] <= limit * (1 + 1e-12)).all()


def test_what_is_chosen_is_tried_in_that_order():
    found = propose(GRAPH, FREE, count=60, keep=10, seed=2)
    assert found.source == "scenario-runs"
    assert found[0].makespan == found.makespans.min()
    for make in (bandwidth_limited, latency_limited):
        target = make(GRAPH, FREE)
        chosen = select(found, target, k=4)
        assert [plan.makespan for plan in chosen.tried] == found.makespans[:4].tolist()
        proxy = propose(GRAPH, FREE, count=60, keep=10, seed=2, choose="proxy")
        assert chosen.best <= select(proxy, target, k=4).best
    assert len(propose(GRAPH, FREE, count=20, keep=3, choose=Scenarios(count=2))) == 3


def test_a_choice_among_plans_that_fit():
    builder = GraphBuilder("memory")
    for i in range(4):
        builder.add_op(f"op{i}", runtime=1.0, outputs=[10], keep=[0])
    found = propose(builder.build(), Cluster([40, 10], "free"), count=200, keep=100, source="random")
    assert [plan.feasible for plan in found] == sorted((plan.feasible for plan in found), reverse=True)
    assert len({plan.placement.tobytes() + plan.timeline.op.tobytes() for plan in found}) == len(found)
    still = propose(
        builder.build(),
        Cluster([40, 10], "free"),
        count=200,
        keep=100,
        source="random",
        choose=Scenarios(moves=0),
    )
    assert sum(plan.feasible for plan in found) == sum(plan.feasible for plan in still) > 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("delays", (2.0, 1.0)),
        ("delays", (0.0, 1.0)),
        ("delays", 3.0),
        ("exact", 1.5),
        ("noise", -1),
        ("count", 0),
        ("slack", 0.5),
        ("moves", -1),
    ],
)
def test_impossible_settings(field, value):
    with pytest.raises(ConfigError, match=f"Scenarios: {field}"):
        Scenarios(**{field: value})
