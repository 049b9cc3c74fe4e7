"""Ctrl-C at critical moments, with real signals: no result that was found is lost."""

import contextlib
import dataclasses
import importlib
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest
from remote_engine import Inline

from regal_jax import Cluster, ListSearch, compare, contract, optimize, optimize_many, save_graph
from regal_jax.cli import main
from regal_jax.datasets import RoomForImprovement, generate
from regal_jax.experiments import tune
from regal_jax.heuristics import (
    HEURISTICS,
    ListSearchRun,
    OrderSearchRun,
    approximate_dp,
    best_heuristic,
    depth_first_dp,
    heuristic_plans,
    least_random_order,
    run_heuristic,
)
from regal_jax.heuristics.exact import cp_sat
from regal_jax.plan import Objective
from regal_jax.policies import FeatureConfig, make_features
from regal_jax.problem import Bucket
from regal_jax.runtime.interrupts import check_interrupt, first_interrupt_waits, interrupt, interruptible
from regal_jax.solve import fitness

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
    made = [generate("erdos-renyi", n, seed=seed) for n, seed in ((30, 1), (30, 2), (70, 2))]
    first, second, third = map(Bucket.of, made)
    assert first == second != third
    return made


def many(graphs, **options):
    options = {"method": "brkga", "evaluations": 200, "progress": False, "batch_size": 1, **options}
    return optimize_many(graphs, TWO, devices=jax.devices()[:1], **options)


def stops(plans):
    return [plan.provenance["stopped"] for plan in plans]


def check(graphs, plans):
    assert len(plans) == len(graphs)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)


class Finishing(ListSearch):
    """Finishes two plans at the same time, and waits until it is asked to end early if Ctrl-C is pressed."""

    both = threading.Barrier(2, timeout=60)
    presses = False

    def finish(self, graph, cluster, plan, evaluations, seconds):
        if self.both.wait() == 0 and self.presses:
            os.kill(os.getpid(), signal.SIGINT)
        with first_interrupt_waits() as interrupted:
            while self.presses and not interrupted():
                time.sleep(0.01)
        return dataclasses.replace(
            plan, provenance={**plan.provenance, "by": threading.current_thread().name}
        )


def pressing_at_first_population_of(graph, times, monkeypatch):
    """Ctrl-C while the program of its bucket is traced."""
    bucket = Bucket.of(graph)

    def pressing(problem, genes):
        if problem.bucket == bucket:
            press(times)
        return fitness(problem, genes, Objective.MAKESPAN)

    monkeypatch.setattr(solve, "_fitness", lambda *_: pressing)
    monkeypatch.setattr("regal_jax.solvers.loop.batches._SMALL", 0)  # Each size has a bucket of its own.


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


@pytest.mark.parametrize("presses", [True, False])
def test_plans_of_several_graphs_are_finished_at_the_same_time(graphs, presses, monkeypatch):
    monkeypatch.setattr("regal_jax.solvers.loop.call.available_cores", lambda: 2)
    monkeypatch.setattr(Finishing, "presses", presses)
    plans = many(graphs[:2], method=Finishing(), evaluations=100)
    check(graphs[:2], plans)
    assert stops(plans) == ["budget", "budget"]
    assert len({plan.provenance["by"] for plan in plans}) == 2


def test_a_plan_that_waits_to_be_finished_is_kept(graphs, monkeypatch):
    monkeypatch.setattr("regal_jax.solvers.loop.call.available_cores", lambda: 1)
    monkeypatch.setattr(Finishing, "presses", True)
    monkeypatch.setattr(Finishing, "both", threading.Barrier(1))
    plans = many(graphs[:2], method=Finishing(), evaluations=100)
    check(graphs[:2], plans)
    # The thread was at work on the other one when Ctrl-C was pressed.
    assert "budget" in stops(plans)
    assert sum("by" in plan.provenance for plan in plans) == 1


@pytest.mark.parametrize("warm_start", [True, False])
def test_between_replays_all_of_the_batch_is_kept(graphs, warm_start, monkeypatch):
    monkeypatch.setattr("regal_jax.solvers.loop.batches._ROWS", (2, 1))
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


def test_insisting_between_replays_keeps_all_that_is_searched(graphs, monkeypatch):
    monkeypatch.setattr("regal_jax.solvers.loop.batches._ROWS", (2, 1))
    plans = many(graphs, batch_size=None, on_plan=lambda member, _: None if member else press(2))
    check(graphs, plans)
    assert stops(plans) == ["budget", "budget", "interrupted"]


@pytest.mark.parametrize("presses", [1, 2, 3])
def test_searches_on_the_host_keep_what_they_have(graphs, presses, monkeypatch):
    """``timeout`` of GNU sends a signal twice within a moment: to the command, and to its group."""
    monkeypatch.setattr("regal_jax.solvers.loop.call.available_cores", lambda: 2)
    told = {}

    def on_improvement(member, improvement):
        before = len(told)
        if improvement.evaluations:
            told[member] = improvement.plan
        if before < len(told) == 2:
            press(presses)

    options = {"method": "list-search", "evaluations": 10**9, "on_improvement": on_improvement}
    plans = optimize_many(graphs[:2], Cluster.uniform(2, transfer="pcie4x16"), progress=False, **options)
    check(graphs[:2], plans)
    assert stops(plans) == ["interrupted"] * 2
    for member, plan in enumerate(plans):
        assert plan.provenance["evaluations"] > 0
        assert plan.makespan <= told[member].makespan * (1 + 1e-9)


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


@pytest.mark.parametrize("warm_start", [True, pytest.param(False, marks=pytest.mark.slow)])
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
    plan = optimize(graphs[0], TWO, method="brkga", evaluations=150)
    assert stops([plan]) == ["interrupted"]
    assert plan.sort_key == min(plan.sort_key for plan in heuristic_plans(graphs[0], TWO))


def test_before_there_is_anything_it_passes_through(graphs, monkeypatch):
    for call in (optimize, many):
        pressing_at_first_population_of(graphs[0], 2, monkeypatch)
        given = (graphs[0], TWO) if call is optimize else (graphs,)
        with pytest.raises(KeyboardInterrupt):
            call(*given, method="brkga", evaluations=150, warm_start=False)
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
            # An application may call this from its handler of SIGTERM, even where SIGINT is ignored.
            interrupt()
            assert interrupted()
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    assert pressed == [1]


# Calls that take no result of a search that ended early ------------------------------------------


def pressing_in_search(monkeypatch, module, name, call):
    """Ctrl-C at the first plan that the search of the call with this number finds."""
    own, calls = getattr(importlib.import_module(module), name), []

    def pressing(*args, **options):
        calls.append(False)

        def on_improvement(*_):
            if len(calls) == call and not calls[-1]:
                calls[-1] = True
                press()

        return own(*args, **options, on_improvement=on_improvement)

    monkeypatch.setattr(f"{module}.{name}", pressing)
    return calls


@pytest.mark.parametrize("engine", ["local", Inline()])
def test_a_point_of_tuning_that_was_cut_off_is_not_kept(graphs, engine, tmp_path, monkeypatch):
    grid = {"population": (20,), "elites": (2, 3), "mutants": (2,)}
    options = {"evaluations": 300, "grid": grid, "engine": engine}
    whole = tune(graphs, TWO, **options, results=tmp_path / "whole.jsonl")
    with monkeypatch.context() as patch:
        calls = pressing_in_search(patch, "regal_jax.experiments.tuning", "optimize_many", 2)
        with pytest.raises(KeyboardInterrupt):
            tune(graphs, TWO, **options, results=tmp_path / "points.jsonl")
        assert calls == [False, True]
    points = (tmp_path / "whole.jsonl").read_text()
    assert (tmp_path / "points.jsonl").read_text() == points.splitlines(keepends=True)[0]
    assert tune(graphs, TWO, **options, results=tmp_path / "points.jsonl") == whole
    assert (tmp_path / "points.jsonl").read_text() == points


def test_tune_that_was_interrupted_says_so(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    save_graph(generate("layered", 30, seed=0), "set/a.json")
    pressing_in_search(monkeypatch, "regal_jax.experiments.tuning", "optimize_many", 2)
    arguments = "--graphs set --evaluations 300 --grid population=50,100 --out tuned.json --quiet"
    assert main(["tune", *arguments.split()]) == 130
    assert capsys.readouterr().err == "regal-jax: interrupted\n"
    assert len((tmp_path / "tuned.json.points.jsonl").read_text().splitlines()) == 1
    assert not (tmp_path / "tuned.json").exists()


def test_a_comparison_has_no_method_that_was_cut_short(graphs, monkeypatch):
    calls = pressing_in_search(monkeypatch, "regal_jax.api.comparison", "optimize", 2)
    with pytest.raises(KeyboardInterrupt):
        compare(graphs[0], TWO, ["critical-path", "brkga", "annealing"], evaluations=2000)
    assert calls == [False, True]


# Where the library looks --------------------------------------------------------------------------


def test_nothing_is_raised_but_at_a_check_or_at_the_end():
    done = []

    @interruptible()
    def to_the_end():
        press(3)
        done.append("end")

    @interruptible()
    def to_a_check():
        press()
        done.append("before")
        check_interrupt()
        done.append("after")

    for call in (to_the_end, to_a_check):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert done == ["end", "before"]


def test_an_interrupt_that_was_acted_upon_is_forgotten():
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt), interruptible():
            press(2)
    with interruptible():
        check_interrupt()
    with first_interrupt_waits() as interrupted:
        press()
    assert interrupted()
    with interruptible(), first_interrupt_waits() as interrupted:
        check_interrupt()
    assert not interrupted()


def test_whoever_was_patient_is_asked_once_more_and_nobody_else():
    @first_interrupt_waits()
    def insisted_upon():
        press(5)
        with pytest.raises(KeyboardInterrupt):
            check_interrupt()
        check_interrupt()
        press()

    with interruptible():
        with pytest.raises(KeyboardInterrupt):
            insisted_upon()
        check_interrupt()


def test_one_that_came_before_the_wait_is_told_of():
    with interruptible():
        press()
        with first_interrupt_waits() as interrupted:
            check_interrupt()
        assert interrupted()


def test_an_error_after_an_interrupt_is_an_interrupt():
    @interruptible()
    def call(times):
        press(times)
        raise RuntimeError("callback failed")

    with pytest.raises(KeyboardInterrupt):
        call(1)
    with pytest.raises(RuntimeError, match="callback failed"):
        call(0)


def test_other_threads_are_left_alone():
    def work():
        with interruptible(), first_interrupt_waits() as interrupted:
            check_interrupt()
            return interrupted()

    @interruptible()
    def main():
        press()
        with ThreadPoolExecutor(1) as pool:
            told.append(pool.submit(work).result())

    told = []
    with pytest.raises(KeyboardInterrupt):
        main()
    assert told == [False]


def test_a_check_elsewhere_does_nothing():
    check_interrupt()
    with first_interrupt_waits():
        press()
    check_interrupt()


ELSEWHERE = generate("layered", 30, seed=0)
THREE = Cluster.uniform(3, "1GiB", "delay:latency=5us,bandwidth=25GB/s")
PLAN = run_heuristic("bfs", ELSEWHERE, TWO)
LONG = {
    **{f"{name} blocking": lambda name=name: run_heuristic(name, ELSEWHERE, TWO) for name in HEURISTICS},
    **{f"{name} delay": lambda name=name: run_heuristic(name, ELSEWHERE, THREE) for name in HEURISTICS},
    "peak": lambda: run_heuristic("peak-balance", ELSEWHERE, TWO, "peak-memory"),
    "best": lambda: best_heuristic(ELSEWHERE, TWO),
    "contract": lambda: contract(ELSEWHERE),
    "expand": lambda: contract(ELSEWHERE).expand(PLAN),
    "verify": lambda: PLAN.verify(ELSEWHERE),
    "features": lambda: make_features([ELSEWHERE], TWO, None, FeatureConfig()),
    "generate": lambda: generate("layered", 30, seed=0),
    "approximate dp": lambda: approximate_dp(ELSEWHERE, 2),
    "depth-first dp": lambda: depth_first_dp(ELSEWHERE),
    "random orders": lambda: least_random_order(ELSEWHERE, 2),
    "order search": lambda: OrderSearchRun(ELSEWHERE, Cluster.uniform(1), 0).run(10),
    "list search": lambda: ListSearchRun(ELSEWHERE, TWO, 0).run(10),
    "cp-sat": lambda: cp_sat(ELSEWHERE, TWO, time_limit=60),
}


@pytest.mark.parametrize("name", LONG)
def test_what_takes_long_looks(name):
    if name == "cp-sat":
        pytest.importorskip("ortools")

    @interruptible()
    def call():
        press()
        LONG[name]()
        reached.append(name)

    reached = []
    with pytest.raises(KeyboardInterrupt):
        call()
    assert not reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_cp_sat_returns_what_it_has(monkeypatch):
    pytest.importorskip("ortools")
    graph = generate("erdos-renyi", 60, seed=0)
    exact = importlib.import_module("regal_jax.heuristics.exact")
    timer = threading.Timer(0.5, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    own, stopped = exact._solve, []

    def solve(solver, model):
        stop = solver.stop_search
        solver.stop_search = lambda: stopped.append(True) or stop()
        timer.start()
        return own(solver, model)

    monkeypatch.setattr(exact, "_solve", solve)
    plan = cp_sat(graph, TWO, time_limit=60)
    assert stopped, "Ctrl-C ends the search, not the limit"
    plan.verify(graph)
    assert plan.provenance["status"] == "feasible"


def test_an_interrupted_filter_decides_nothing(graphs, monkeypatch):
    improvement = importlib.import_module("regal_jax.datasets.improvement")
    own = improvement.solve
    monkeypatch.setattr(improvement, "solve", lambda *a, **k: own(*a, **k, callback=lambda _: press()))
    with pytest.raises(KeyboardInterrupt):
        RoomForImprovement(low=200, high=400)(graphs)


@pytest.mark.parametrize(("module", "lost"), [("regal_jax.cli.parser", "()"), ("jax", "KeyboardInterrupt")])
def test_ctrl_c_while_the_command_loads_its_modules_ends_it_in_one_line(module, lost, tmp_path):
    # Some packages lose exceptions, or end the process, where their compiled modules call Python.
    code = f"""
import os, signal, sys

class Pressing:
    def find_spec(name, *_):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except {lost}:
                pass

sys.meta_path.insert(0, Pressing)
from regal_jax.cli import main
sys.exit(main(["optimize", "graph.json", "--quiet"]))
"""
    save_graph(generate("chain", 5, seed=0), tmp_path / "graph.json")
    (tmp_path / "press.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "press.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "regal-jax: interrupted\n")
