"""Room for improvement: the filter against two separate searches, and on graphs whose answer is known."""

import warnings

import numpy as np
import pytest

from regal_jax import optimize_many
from regal_jax.datasets import Recipe, RoomForImprovement, build_set, draw_candidate, generate
from regal_jax.errors import ConfigError, InfeasiblePlanWarning
from regal_jax.graph import Cluster

SMALL = Recipe(("barabasi-albert",), least_ops=26, most_ops=30)


@pytest.fixture(scope="module")
def graphs():
    # One bucket, so that few programs are compiled.
    return [draw_candidate(SMALL, 0, "train", i, 0).graph for i in (0, 1, 3, 4)]


def searched(graphs, room):
    """Plans with the low limit and with the high one, from two runs each, replayed exactly."""
    options = {"method": "brkga", "warm_start": False, "seed": room.seed, "progress": False}
    with warnings.catch_warnings():
        # Some tests need plans that exceed the memory.
        warnings.simplefilter("ignore", InfeasiblePlanWarning)
        low, high = (
            optimize_many(graphs, room.cluster, evaluations=n, **options) for n in (room.low, room.high)
        )
    return list(zip(low, high, strict=True))


def test_it_says_what_two_searches_say(graphs):
    room = RoomForImprovement(200, 1500, improvement=0.11)
    answers = room(graphs)
    assert answers == [1 - high.makespan / low.makespan >= 0.11 for low, high in searched(graphs, room)]
    assert len(set(answers)) == 2  # Otherwise the test could not fail.


def test_company_and_order_change_no_answer(graphs):
    room = RoomForImprovement(200, 1500, improvement=0.11)
    answers = room(graphs)
    assert room(graphs[::-1]) == answers[::-1]
    assert room(graphs[1:3]) == answers[1:3]
    assert room([]) == []


def test_no_room_in_a_chain_and_plenty_in_a_wide_graph():
    # A chain takes the sum of its runtimes wherever its ops are: transfers cost nothing.
    easy = generate("chain", 25, 0)
    wide = generate("regal-barabasi-albert", 30, 0)
    room = RoomForImprovement(100, 3000, improvement=0.1)
    assert room([easy, wide]) == [False, True]


def test_memory_that_only_the_longer_search_meets_is_room(graphs):
    graph = graphs[0]
    # The plans minimise only the makespan. Capacities are between what a single device needs and the sum
    # of all bytes.
    total = graph.tensor_bytes.sum()
    found = set()
    for share in np.linspace(0.15, 0.6, 16):
        room = RoomForImprovement(
            100, 1500, improvement=0.99, cluster=Cluster.uniform(2, int(share * total), transfer="blocking")
        )
        (kept,) = room([graph])
        ((low, high),) = searched([graph], room)
        assert kept == (high.feasible and not low.feasible)
        found.add(kept)
        if kept:
            break
    assert found == {False, True}


def test_limits_that_cannot_be_are_refused():
    for arguments, message in (
        ({"low": 99}, "low: must be a whole number of evaluations, from 100 to 2147483647: 99"),
        (
            {"low": 500, "high": 500},
            "high: must be a whole number of evaluations, from 501 to .*: 500",
        ),
        ({"high": 10**30}, "high: must be a whole number of evaluations"),
        ({"seed": 10**30}, "seed: must be a whole number of at most 4294967295"),
        ({"seed": "a"}, "seed: must be a whole number"),
        ({"cluster": 2}, "cluster: give a Cluster, got int"),
        ({"improvement": 0}, "improvement: must be a share between 0 and 1, got 0"),
        ({"improvement": float("nan")}, "improvement: must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            RoomForImprovement(**arguments)


@pytest.mark.slow
def test_a_filtered_set_is_the_same_from_one_process_and_from_two(tmp_path):
    room = RoomForImprovement(100, 1000, improvement=0.05)
    trees = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        build_set(folder, sizes={"train": 70, "test": 5}, keep=room, jobs=jobs)
        trees.append({p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file()})
    assert trees[0] == trees[1]
    assert len(trees[0]) == 76


def test_its_seed_decides_and_is_recorded(graphs):
    kept = [RoomForImprovement(200, 1500, improvement=0.11, seed=seed)(graphs) for seed in (0, 2, 0)]
    assert kept[0] == kept[2]
    assert kept[0] != kept[1]
    assert RoomForImprovement(seed=7).as_document()["seed"] == 7


@pytest.mark.slow
def test_the_defaults_keep_about_what_the_documents_say():
    room = RoomForImprovement()
    for topology, share in (("erdos-renyi", 0.53), ("watts-strogatz", 0.78)):
        recipe = Recipe((topology,))
        kept = room([draw_candidate(recipe, 0, "train", i, 0).graph for i in range(100)])
        assert np.mean(kept) == pytest.approx(share, abs=0.05)
