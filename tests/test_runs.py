"""Independent runs of the search of a graph."""

import dataclasses
import itertools
import signal

import jax
import numpy as np
import pytest
from remote_engine import Inline

from regal_jax import (
    Brkga,
    Cluster,
    ComputationGraph,
    ConfigError,
    GraphBuilder,
    Plan,
    optimize,
    optimize_many,
    order,
    save_graph,
)
from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.experiments import make_method
from regal_jax.solve import graph_keys
from regal_jax.solvers.loop.runs import MOST_RUNS, best_of_runs, repeated

THREE = Cluster.uniform(3, transfer="pcie4x16")
SMALL = Brkga(population=20, elites=4, mutants=3)
METHODS = ("list-search", SMALL)


@pytest.fixture(scope="module")
def graphs() -> list[ComputationGraph]:
    return [generate("layered", 30, seed) for seed in range(3)]


def planned(graphs, method, **options):
    options = {"evaluations": 200, "progress": False, **options}
    return optimize_many(graphs, THREE, method=method, **options)


@pytest.mark.parametrize("method", METHODS, ids=["list-search", "brkga"])
def test_the_best_run_counts_and_the_first_is_the_search_without_runs(graphs, method):
    once, best = planned(graphs, method), planned(graphs, method, runs=3)
    for graph, one, plan in zip(graphs, once, best, strict=True):
        plan.verify(graph)
        said = plan.provenance
        assert said["runs"][0] == one.makespan
        assert plan.makespan == min(said["runs"]) == said["runs"][said["run"]]
        assert said["evaluations"] == 3 * one.provenance["evaluations"]
        assert said["history"]["best"][-1] == pytest.approx(plan.makespan, rel=1e-6)
        assert "runs" not in one.provenance
        assert f"{said['evaluations']:,} evaluations, the best of 3 runs, seed 0" in str(plan)
        assert "runs" not in str(one)
    # The runs differ, or there would be no reason for them.
    assert any(len(set(plan.provenance["runs"])) > 1 for plan in best)


@pytest.mark.parametrize("method", METHODS, ids=["list-search", "brkga"])
def test_batch_company_and_devices_change_no_run(graphs, method):
    together = [plan.provenance["runs"] for plan in planned(graphs, method, runs=3)]
    alone = [optimize(g, THREE, method=method, evaluations=200, runs=3).provenance["runs"] for g in graphs]
    few = planned(graphs, method, runs=3, batch_size=2, devices=jax.devices()[:2])
    assert together == alone == [plan.provenance["runs"] for plan in few]


def test_a_longer_call_has_the_runs_of_a_shorter_one(graphs):
    two, four = (planned(graphs, "list-search", runs=runs) for runs in (2, 4))
    for less, more in zip(two, four, strict=True):
        assert more.provenance["runs"][:2] == less.provenance["runs"]
        assert more.makespan <= less.makespan


def test_an_engine_makes_the_same_plans(graphs):
    here, there = (planned(graphs, "list-search", runs=3, **on) for on in ({}, {"engine": Inline()}))
    for one, other in zip(here, there, strict=True):
        assert one.provenance["runs"] == other.provenance["runs"]
        np.testing.assert_array_equal(one.placement, other.placement)


def test_callbacks_hear_of_graphs_and_not_of_runs(graphs):
    done, better = [], []
    plans = planned(
        graphs,
        "list-search",
        runs=3,
        on_plan=lambda i, plan: done.append((i, plan.makespan)),
        on_improvement=lambda i, improvement: better.append((i, improvement.plan.makespan)),
    )
    assert sorted(done) == [(i, plan.makespan) for i, plan in enumerate(plans)]
    for i, plan in enumerate(plans):
        told = [makespan for graph, makespan in better if graph == i]
        assert told[-1] == plan.makespan
        assert all(later < before for before, later in itertools.pairwise(told))


def test_heuristics_run_once(graphs):
    once, runs = (planned(graphs, "list-search", runs=runs, evaluations=1) for runs in (1, 5))
    for one, plan in zip(once, runs, strict=True):
        made = one.provenance["work"]
        # What a search makes in addition to its evaluations is made in every run.
        assert made["schedules"] <= plan.provenance["work"]["schedules"] < 5 * made["schedules"]


@pytest.mark.parametrize("contract", [True, None])
def test_runs_of_contracted_graphs(graphs, contract):
    once, best = (planned(graphs, "auto", contract=contract, runs=runs) for runs in (1, 3))
    for graph, one, plan in zip(graphs, once, best, strict=True):
        plan.verify(graph)
        assert plan.provenance["runs"][0] == one.makespan
        assert plan.makespan <= one.makespan


def test_a_store_keeps_the_best(graphs, tmp_path):
    plans = planned(graphs, "list-search", runs=3, store=tmp_path)
    again = planned(graphs, "list-search", runs=3, store=tmp_path)
    assert [plan.provenance["runs"] for plan in again] == [plan.provenance["runs"] for plan in plans]
    other = planned(graphs, "list-search", store=tmp_path)
    assert all("runs" not in plan.provenance for plan in other)


def test_ctrl_c_returns_the_best_so_far(graphs):
    def press(*_):
        signal.raise_signal(signal.SIGINT)

    plan = optimize(graphs[0], THREE, method="list-search", evaluations=10**6, runs=3, on_improvement=press)
    plan.verify(graphs[0])
    assert plan.provenance["stopped"] == "interrupted"
    assert len(plan.provenance["runs"]) == 3


def test_small_graphs_and_none():
    builder = GraphBuilder("one")
    builder.add_op("a", runtime=1.0)
    plan = optimize(builder.build(), THREE, runs=3)
    assert (plan.makespan, plan.optimal, plan.provenance["evaluations"]) == (1.0, True, 0)
    assert planned([], "list-search", runs=3) == []


def test_plans_that_do_not_fit_have_no_value(graphs):
    with pytest.warns(UserWarning, match="fit the memory"):
        plan = optimize(graphs[0], Cluster.uniform(2, 1.0), method="list-search", evaluations=50, runs=2)
    assert plan.provenance["runs"] == [None, None]


def test_orders_and_tables_have_runs(graphs):
    plan = order(graphs[0], evaluations=300, runs=2)
    assert plan.peak_memory == min(plan.provenance["runs"])
    method = make_method("list-search", runs=3)
    found = method(graphs, THREE, evaluations=100)
    assert found.evaluations.tolist() == [300] * 3
    there = method(graphs, THREE, evaluations=100, engine=Inline())
    np.testing.assert_array_equal(found.value, there.value)


def test_the_command(tmp_path, capsys):
    out = tmp_path / "plan.json"
    file = tmp_path / "graph.json"
    save_graph(generate("layered", 20, 0), file)
    options = ["--devices", "2", "--runs", "2"]
    assert main(["optimize", str(file), *options, "--evaluations", "100", "--out", str(out)]) == 0
    assert len(Plan.load(out).provenance["runs"]) == 2
    assert main(["optimize", str(file), *options, "--method", "heft"]) == 2
    said = capsys.readouterr().err
    assert "runs: heft is no search, and runs once; leave it out, or use a search: " in said


@pytest.mark.parametrize("runs", [0, -1, 1.5, "2", True, MOST_RUNS + 1])
def test_numbers_of_runs_are_checked(graphs, runs):
    with pytest.raises(ConfigError, match=r"^runs: "):
        optimize(graphs[0], THREE, runs=runs)


def test_keys_of_the_first_runs_are_those_without_runs(graphs):
    key = jax.random.key(5)
    plain, runs = graph_keys(key, graphs), graph_keys(key, graphs, [0, 1, 2])
    same = (jax.random.key_data(plain) == jax.random.key_data(runs)).all(axis=1)
    assert same.tolist() == [True, False, False]
    assert (jax.random.key_data(graph_keys(key, graphs, [0, 0, 0])) == jax.random.key_data(plain)).all()


def test_of_equal_plans_the_first_counts(graphs):
    plan = planned(graphs[:1], "list-search")[0]
    plans = [dataclasses.replace(plan, provenance={**plan.provenance, "mark": i}) for i in range(3)]
    best = best_of_runs(plans)
    assert (best.provenance["mark"], best.provenance["run"]) == (0, 0)
    assert best_of_runs(plans[:1]) is plans[0]
    assert repeated("ab", 2) == ["a", "a", "b", "b"]
