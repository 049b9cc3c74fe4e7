"""Room for improvement: the filter against two separate searches, and on graphs whose answer is known."""

import numpy as np
import pytest

from regal_jax import optimize_many
from regal_jax.api import RoomForImprovement
from regal_jax.datasets import Recipe, draw_candidate, generate
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster

SMALL = Recipe(("barabasi-albert",), least_ops=26, most_ops=30)


@pytest.fixture(scope="module")
def graphs():
    return [draw_candidate(SMALL, 0, "train", i, 0).graph for i in range(6)]


def searched(graphs, room):
    """Plans with the low limit and with the high one, from two runs each, replayed exactly."""
    options = {"warm_start": False, "key": room.seed, "progress": False}
    low, high = (optimize_many(graphs, room.cluster, evaluations=n, **options) for n in (room.low, room.high))
    return list(zip(low, high, strict=True))


def test_it_says_what_two_searches_say(graphs):
    room = RoomForImprovement(200, 1500, improvement=0.07)
    answers = room(graphs)
    assert answers == [1 - high.makespan / low.makespan >= 0.07 for low, high in searched(graphs, room)]
    assert len(set(answers)) == 2  # Else the test tells nothing.


def test_company_and_order_change_no_answer(graphs):
    room = RoomForImprovement(200, 1500, improvement=0.07)
    answers = room(graphs)
    assert room(graphs[::-1]) == answers[::-1]
    assert room(graphs[2:5]) == answers[2:5]
    assert room([]) == []


def test_no_room_in_a_chain_and_plenty_in_a_wide_graph():
    # A chain takes the sum of its runtimes wherever its ops are: transfers cost nothing.
    easy = generate("chain", 25, 0)
    wide = generate("regal-barabasi-albert", 30, 0)
    room = RoomForImprovement(100, 3000, improvement=0.1)
    assert room([easy, wide]) == [False, True]
    ((low, high),) = searched([wide], room)
    assert high.makespan <= 0.9 * low.makespan


def test_memory_that_only_the_longer_search_meets_is_room(graphs):
    graph = graphs[0]
    # Plans for the makespan alone; capacities between what single devices need and all bytes.
    total = graph.tensor_bytes.sum()
    found = set()
    for share in np.linspace(0.15, 0.6, 16):
        room = RoomForImprovement(100, 1500, improvement=0.99, cluster=Cluster.uniform(2, int(share * total)))
        (kept,) = room([graph])
        ((low, high),) = searched([graph], room)
        assert kept == (high.feasible and not low.feasible)
        found.add(kept)
        if kept:
            break
    assert found == {False, True}


def test_limits_that_cannot_be_are_refused():
    for arguments, message in (
        ({"low": 99}, "low: must be a whole number of evaluations, at least 100: 99"),
        ({"low": 500, "high": 500}, "high: must be a whole number of evaluations, at least 501: 500"),
        ({"improvement": 0}, "improvement: must be a share between 0 and 1, got 0"),
        ({"improvement": float("nan")}, "improvement: must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            RoomForImprovement(**arguments)
