"""`ListSearchRace`: list search with and without given plans, of which the better one continues."""

import math

import numpy as np
import pytest

from regal_jax import Cluster, optimize
from regal_jax.datasets import generate
from regal_jax.graph import GraphBuilder
from regal_jax.heuristics import (
    ListSearchConfig,
    ListSearchRace,
    ListSearchRun,
    best_heuristic,
    run_heuristic,
)

TWO = Cluster.uniform(2, transfer="pcie4x16")
GRAPH = generate("layered", 60, 4)


def test_without_plans_it_is_a_list_search():
    race, alone = ListSearchRace(GRAPH, TWO, 5, None, ()), ListSearchRun(GRAPH, TWO, 5)
    for search in (race, alone):
        search.run(700)
    assert race.history == alone.history
    assert race.evaluations == alone.evaluations == 700
    assert race.plan().timeline.op.tolist() == alone.plan().timeline.op.tolist()


@pytest.mark.parametrize("piece", [1, 33, 1000])
def test_both_run_equally_long_and_the_better_one_continues(piece):
    starts = best_heuristic(GRAPH, TWO)[:4]
    race = ListSearchRace(GRAPH, TWO, 5, None, starts)
    runs = [ListSearchRun(GRAPH, TWO, 5, None, plans) for plans in ((), starts)]
    for _ in range(-(-1000 // piece)):
        race.run(min(piece, 1000 - race.evaluations))
    for run in runs:
        run.run(250)
    assert runs[0].best != runs[1].best
    better = min(runs, key=lambda run: run.best)
    better.run(race._runs[0].evaluations - better.evaluations)
    assert race.evaluations == 1000
    assert race.best == better.best == pytest.approx(race.plan().makespan)
    assert race.plan().timeline.op.tolist() == better.plan().timeline.op.tolist()
    # The history is one of improvements, and its evaluations are those of both searches.
    done, values = zip(*race.history, strict=True)
    assert list(values) == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    assert list(done) == sorted(done)
    assert done[0] >= 1
    assert done[-1] <= 1000


def test_it_keeps_the_best_plan_of_both_and_ends_when_told():
    starts = best_heuristic(GRAPH, TWO)[:4]
    race = ListSearchRace(GRAPH, TWO, 0, None, starts)
    assert race.plan() is None
    assert race.best == math.inf
    race.run(120)
    # 50, 50 and 20 schedules: the plans that it was given have been tried.
    assert race.plan().makespan <= min(plan.makespan for plan in starts) * (1 + 1e-9)
    calls = []
    race.run(10_000, lambda: len(calls) > 3 or calls.append(0) is not None)
    assert race.evaluations < 10_000
    before = race.evaluations
    race.run(500, goal=race.best)
    assert race.evaluations == before


def test_a_plan_that_fits_wins_against_one_that_does_not():
    graph = generate("layered", 40, 1)
    free = run_heuristic("critical-path", graph, Cluster.uniform(2), "peak-memory")
    tight = Cluster.uniform(2, memory=int(free.peak_memory.max()), transfer="pcie4x16")
    start = run_heuristic("critical-path", graph, tight, "peak-memory")
    assert start.feasible
    race = ListSearchRace(graph, tight, 0, None, [start])
    race.run(600)
    assert race.plan().feasible
    assert race.best <= start.makespan * (1 + 1e-9)
    assert race.least == (0.0, race.best)


def test_a_graph_of_one_op():
    builder = GraphBuilder("one")
    builder.add_op("a", runtime=3.0)
    graph = builder.build()
    race = ListSearchRace(graph, TWO, 0, None, best_heuristic(graph, TWO)[:1])
    race.run(600)
    assert race.best == 3.0
    assert race.plan().makespan == 3.0


def test_list_search_is_no_worse_than_the_plan_that_it_is_given():
    plan = optimize(GRAPH, TWO, method="list-search", seed=1, evaluations=2000)
    again = optimize(GRAPH, TWO, method="list-search", seed=2, evaluations=100, warm_start=plan)
    assert again.makespan <= plan.makespan
    np.testing.assert_array_less(0, plan.makespan)


def test_insertion_moves_begin_with_a_known_plan_that_is_shorter():
    earlier = ListSearchRun(GRAPH, TWO, 1)
    earlier.run(900)
    known = earlier.plan()
    runs = [ListSearchRun(GRAPH, TWO, 2, known=plan) for plan in (known, None)]
    for run in runs:
        run.run(500)
        assert run.best > known.makespan
        run.run(1)
    assert runs[0].best == known.makespan < runs[1].best
    runs[0].run(2000)
    better = runs[0].plan()
    better.verify(GRAPH)
    assert better.makespan < known.makespan
    # The race, which gives it to both of its searches, is no worse at once.
    race = ListSearchRace(GRAPH, TWO, 2, None, [known])
    race.run(1000)
    assert race.best <= known.makespan


def test_insertion_moves_begin_with_a_known_plan_where_no_list_schedule_fits():
    graph = generate("layered", 40, 1)
    free = run_heuristic("peak-balance", graph, Cluster.uniform(2), "peak-memory")
    tight = Cluster.uniform(2, memory=int(free.peak_memory.max()), transfer="pcie4x16")
    known = run_heuristic("peak-balance", graph, tight)
    assert known.feasible
    config = ListSearchConfig(insert_after=50, turn=20)
    runs = [ListSearchRun(graph, tight, 0, config, known=plan) for plan in (known, None)]
    for run in runs:
        run.run(50)
        assert run.best == math.inf
        run.run(400)
    assert runs[0].best < known.makespan
    assert runs[0].plan().provenance["transfers"] == "moved"
    # After fruitless moves and list schedules, moves begin again, and not with what does not fit.
    runs[0].run(20_000)
    runs[0].plan().verify(graph)
    assert runs[0].plan().feasible
    assert runs[1].best == math.inf
