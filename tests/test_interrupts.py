"""Ctrl-C at the worst moments: real signals, and nothing that was found is lost."""

import contextlib
import importlib
import signal

import jax
import pytest

from regal_jax import Cluster, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.heuristics import HEURISTICS, heuristic_plans
from regal_jax.interrupts import first_interrupt_waits, interrupt
from regal_jax.objective import fitness
from regal_jax.plan import Objective
from regal_jax.problem import Bucket

solve = importlib.import_module("regal_jax.solve.solve")
TWO = Cluster.uniform(2, transfer="blocking")


def press(times=1):
    for _ in range(times):
        signal.raise_signal(signal.SIGINT)


@pytest.fixture(autouse=True)
def _signals_are_left_as_they_were():
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.fixture(scope="module")
def graphs():
    """Three batches, two of them of one bucket."""
    made = [generate("layered", n, seed=seed) for n, seed in ((10, 0), (10, 1), (20, 2))]
    first, second, third = map(Bucket.of, made)
    assert first == second != third
    return made


def many(graphs, **options):
    options = {"evaluations": 200, "key": 0, "progress": False, "batch_size": 1, **options}
    return optimize_many(graphs, TWO, devices=jax.devices()[:1], **options)


def stops(plans):
    return [plan.provenance["stopped"] for plan in plans]


def check(graphs, plans):
    assert len(plans) == len(graphs)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)


def pressing_at_first_population_of(graph, times, monkeypatch):
    """Ctrl-C while the program of its bucket is traced."""
    bucket = Bucket.of(graph)

    def pressing(problem, genes):
        if problem.bucket == bucket:
            press(times)
        return fitness(problem, genes, Objective.MAKESPAN)

    monkeypatch.setattr(solve, "_fitness", lambda *_: pressing)


def pressing_in_heuristic(monkeypatch, name, graph):
    own = HEURISTICS[name]

    def pressing(asked, *args, **kwargs):
        if asked is graph:
            press()
        return own(asked, *args, **kwargs)

    monkeypatch.setitem(HEURISTICS, name, pressing)


def best_before(name, graph):
    ran = list(HEURISTICS)[: list(HEURISTICS).index(name)]
    return min(HEURISTICS[other](graph, TWO).sort_key for other in ran)


@pytest.mark.parametrize("warm_start", [True, False])
def test_between_replays_all_of_the_batch_is_kept(graphs, warm_start):
    seen = []

    def on_plan(member, plan):
        seen.append(member)
        if len(seen) == 1:
            press()

    plans = many(graphs, batch_size=None, warm_start=warm_start, on_plan=on_plan)
    check(graphs, plans)
    assert stops(plans) == ["budget", "budget", "interrupted"]
    assert seen == [0, 1, 2]
    assert plans[2].provenance["evaluations"] == 0
    best = min(plan.sort_key for plan in heuristic_plans(graphs[2], TWO))
    assert (plans[2].sort_key == best) == warm_start
    assert warm_start or plans[2].provenance["method"] == "single-device"


def test_insisting_between_replays_keeps_what_is_replayed(graphs):
    seen = []

    def on_plan(member, plan):
        seen.append(member)
        if len(seen) == 1:
            press(2)

    plans = many(graphs, batch_size=None, on_plan=on_plan)
    check(graphs, plans)
    assert stops(plans) == ["budget", "interrupted", "interrupted"]
    assert seen == [0, 1, 2]


def test_during_the_heuristics_the_known_ones_are_kept(graphs, monkeypatch):
    pressing_in_heuristic(monkeypatch, "bfs", graphs[1])
    seen = []
    plans = many(graphs, on_plan=lambda member, _: seen.append(member))
    check(graphs, plans)
    assert stops(plans) == ["interrupted"] * 3
    assert [plan.provenance["evaluations"] for plan in plans] == [0] * 3
    assert plans[0].sort_key == min(plan.sort_key for plan in heuristic_plans(graphs[0], TWO))
    assert plans[1].sort_key == best_before("bfs", graphs[1])
    assert plans[2].provenance["method"] == "single-device"
    assert seen == [0, 1, 2]


def test_again_while_the_rest_gets_its_fallback(graphs, monkeypatch):
    pressing_in_heuristic(monkeypatch, "bfs", graphs[1])
    plans = many(graphs, on_plan=lambda member, _: press() if member == 1 else None)
    check(graphs, plans)
    assert stops(plans) == ["interrupted"] * 3


@pytest.mark.parametrize("warm_start", [True, False])
def test_insisting_during_the_first_population_of_a_later_batch(graphs, monkeypatch, warm_start):
    pressing_at_first_population_of(graphs[2], 2, monkeypatch)
    plans = many(graphs, warm_start=warm_start)
    check(graphs, plans)
    assert stops(plans) == ["budget", "budget", "interrupted"]
    assert plans[0].provenance["evaluations"] > 100
    assert plans[2].provenance["evaluations"] == 0


def test_once_during_the_first_population_of_a_later_batch_waits_for_it(graphs, monkeypatch):
    pressing_at_first_population_of(graphs[2], 1, monkeypatch)
    plans = many([graphs[2], graphs[0]], warm_start=False)
    assert stops(plans) == ["interrupted"] * 2
    assert [plan.provenance["evaluations"] for plan in plans] == [100, 0]


def test_a_heuristic_for_many_keeps_what_is_made(graphs, monkeypatch):
    pressing_in_heuristic(monkeypatch, "bfs", graphs[1])
    plans = many(graphs, method="bfs")
    check(graphs, plans)
    assert [plan.provenance["method"] for plan in plans] == ["bfs", "single-device", "single-device"]
    assert stops(plans[1:]) == ["interrupted"] * 2


def test_one_graph_gets_the_best_of_the_heuristics_that_ran(graphs, monkeypatch):
    pressing_in_heuristic(monkeypatch, "bfs", graphs[0])
    plan = optimize(graphs[0], TWO, evaluations=150)
    assert stops([plan]) == ["interrupted"]
    assert plan.sort_key == best_before("bfs", graphs[0])


def test_one_graph_gets_a_heuristics_plan_if_the_search_has_none(graphs, monkeypatch):
    pressing_at_first_population_of(graphs[0], 2, monkeypatch)
    plan = optimize(graphs[0], TWO, evaluations=150)
    assert stops([plan]) == ["interrupted"]
    assert plan.sort_key == min(plan.sort_key for plan in heuristic_plans(graphs[0], TWO))


def test_before_there_is_anything_it_passes_through(graphs, monkeypatch):
    for call in (optimize, many):
        pressing_at_first_population_of(graphs[0], 2, monkeypatch)
        given = (graphs[0], TWO) if call is optimize else (graphs,)
        with pytest.raises(KeyboardInterrupt):
            call(*given, evaluations=150, warm_start=False)
    pressing_in_heuristic(monkeypatch, next(iter(HEURISTICS)), graphs[0])
    with pytest.raises(KeyboardInterrupt):
        optimize(graphs[0], TWO, evaluations=150)


def test_an_error_that_a_program_made_of_the_second_one_is_an_interrupt():
    def program(times):
        with contextlib.suppress(KeyboardInterrupt):
            press(times)
        raise RuntimeError("callback failed")

    with pytest.raises(KeyboardInterrupt), first_interrupt_waits():
        program(2)
    with pytest.raises(RuntimeError, match="callback failed"), first_interrupt_waits():
        program(1)


def test_the_outermost_waits_for_all():
    with first_interrupt_waits() as outer:
        with first_interrupt_waits() as inner:
            press()
            assert inner()
        assert outer()
        with pytest.raises(KeyboardInterrupt), first_interrupt_waits():
            press()
    assert outer()
    with pytest.raises(KeyboardInterrupt):
        interrupt()


def test_a_handler_of_the_users_own_stays():
    pressed = []
    signal.signal(signal.SIGINT, lambda *_: pressed.append(1))
    try:
        with first_interrupt_waits() as interrupted:
            press()
            assert not interrupted()
            interrupt()  # What an application may do with a SIGTERM, even where SIGINT is ignored.
            assert interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert pressed == [1]
