"""Methods other than plain BRKGA and heuristics: annealing, local search, and portfolios."""

import dataclasses
import functools
import importlib
import signal
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from policy_cases import four_bins

from regal_jax import (
    Annealing,
    AnnealingConfig,
    Auto,
    Brkga,
    BrkgaConfig,
    Cluster,
    GraphBuilder,
    optimize,
    optimize_many,
)
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.heuristics import (
    ListSearchConfig,
    ListSearchRun,
    PeakSearchConfig,
    PeakSearchRun,
    heuristic_plans,
)
from regal_jax.plan import Objective
from regal_jax.policies import Policy, save_policy
from regal_jax.problem import make_problem
from regal_jax.search import Status, Stopping
from regal_jax.solve import Part, fitness, solve_in_parts
from regal_jax.solvers.loop.turns import Turn, improves, is_settled, next_turn

solve = importlib.import_module("regal_jax.solve.solve")
TWO = Cluster.uniform(2, transfer="blocking")
METHODS = ["auto", "annealing", "local-search", "list-search"]
"""Methods for the makespan; `tests/test_peak_search.py` has those for peak memory."""
every_method = pytest.mark.parametrize("method", METHODS)
ONE_SEARCH = ("annealing", "local-search")
"""By default, test_solvers.py has their company and their plans of heuristics' warm starts."""
most_methods = pytest.mark.parametrize(
    "method", [pytest.param(m, marks=pytest.mark.slow if m in ONE_SEARCH else ()) for m in METHODS]
)


@pytest.fixture(scope="module")
def graphs():
    return [generate("erdos-renyi", n, seed=seed) for n, seed in ((30, 1), (40, 1), (30, 2))]


def same(a, b):
    np.testing.assert_array_equal(a.placement, b.placement)
    np.testing.assert_array_equal(a.timeline.op, b.timeline.op)
    assert a.provenance["evaluations"] == b.provenance["evaluations"]
    assert a.provenance["history"] == b.provenance["history"]


@pytest.mark.parametrize("objective", list(Objective))
@most_methods
def test_no_worse_than_any_heuristic(graphs, method, objective):
    if method == "list-search" and objective is Objective.PEAK_MEMORY:
        with pytest.raises(ConfigError, match="list-search is for makespan, not for peak-memory"):
            optimize(graphs[0], TWO, method=method, objective=objective)
        return
    for plan, graph in zip(
        optimize_many(graphs, TWO, method=method, objective=objective, evaluations=150, progress=False),
        graphs,
        strict=True,
    ):
        plan.verify(graph)
        assert plan.sort_key <= min(p.sort_key for p in heuristic_plans(graph, TWO, objective))
        assert plan.provenance["method"] == method


@most_methods
def test_company_changes_nothing_and_the_same_key_gives_the_same_plan(graphs, method):
    options = {"method": method, "evaluations": 150, "seed": 5, "progress": False}
    together = optimize_many(graphs, TWO, **options)
    for plan, graph in zip(together, graphs, strict=True):
        same(plan, optimize(graph, TWO, **options))
    # A guided search may find the same plan.
    options |= {"warm_start": False, "policy": "none"}
    other, mine = (optimize(graphs[1], TWO, **{**options, "seed": key}) for key in (6, 5))
    assert other.timeline.op.tolist() != mine.timeline.op.tolist()


COUNTED = []


@functools.cache
def counting(objective):
    """The fitness, which counts its calls; one function for all budgets, so that they share programs."""

    def function(problem, genes):
        jax.debug.callback(lambda x: COUNTED.append(x.shape[1]), genes["priority"])
        return fitness(problem, genes, objective)

    return function


@pytest.mark.parametrize("objective", list(Objective))
@pytest.mark.parametrize(
    # Each of the smaller budgets is a population of its own, whose programs are compiled.
    "evaluations",
    [1, 1234, *(pytest.param(n, marks=pytest.mark.slow) for n in (2, 9, 10, 99, 101, 130))],
)
def test_all_parts_together_keep_the_budget(graphs, evaluations, objective, monkeypatch):
    COUNTED.clear()
    monkeypatch.setattr(solve, "_fitness", lambda *_: counting(objective))
    advance, run = ListSearchRun._advance, PeakSearchRun.run

    def made(*args, **kwargs):
        COUNTED.append(advance(*args, **kwargs))
        return COUNTED[-1]

    monkeypatch.setattr(ListSearchRun, "_advance", made)

    def counted(search, *args):
        before = search.evaluations
        run(search, *args)
        COUNTED.append(search.evaluations - before)

    monkeypatch.setattr(PeakSearchRun, "run", counted)
    # A plan of peak search for the first graph meets its bound.
    plan = optimize(graphs[1], TWO, method="auto", objective=objective, evaluations=evaluations)
    jax.effects_barrier()
    assert sum(COUNTED) == plan.provenance["evaluations"] <= evaluations
    # One chain spends the whole budget, except a rest too small for another perturbation.
    left = evaluations - plan.provenance["evaluations"]
    assert 0 <= left <= (0 if objective is Objective.MAKESPAN else 105)
    history = plan.provenance["history"]
    assert history["evaluations"] == sorted(history["evaluations"])
    assert history["evaluations"][-1] == plan.provenance["evaluations"]
    assert history["best"] == sorted(history["best"], reverse=True)


@every_method
def test_one_op_on_one_device(method):
    builder = GraphBuilder("one")
    builder.add_op("only", runtime=2.0)
    assert optimize(builder.build(), Cluster.uniform(1), method=method, evaluations=120).makespan == 2.0


@most_methods
def test_search_improves_on_a_random_start(method):
    graph = generate("erdos-renyi", 40, seed=0)
    few = optimize(graph, TWO, method=method, evaluations=20, warm_start=False)
    many = optimize(graph, TWO, method=method, evaluations=2000, warm_start=False)
    assert many.makespan < few.makespan


def test_a_target_stops_all_parts(graphs):
    reach = optimize(graphs[1], TWO, evaluations=150).makespan
    plan = optimize(graphs[1], TWO, method="auto", evaluations=10**6, target=reach)
    assert plan.provenance["stopped"] == "target"
    assert plan.provenance["evaluations"] < 10**6


def test_a_time_limit_is_for_all_parts(graphs):
    # The bound is far, so that the search does not end early.
    graph, cluster = generate("erdos-renyi", 60, 0), Cluster.uniform(2, transfer="blocking:latency=100us")
    plan = optimize(graph, cluster, method="auto", evaluations=10**8, time_limit=0.4)
    assert plan.provenance["stopped"] == "time"
    assert plan.provenance["seconds"] > 0.36
    plan.verify(graph)


def parts_of(graphs, stopping, parts, **options):
    problem = make_problem(graphs, TWO)
    return solve_in_parts(
        problem, jax.random.split(jax.random.key(0), len(graphs)), stopping, parts, **options
    )


PARTS = (Part(0.5, BrkgaConfig(20, 4, 3)), Part(1.0, AnnealingConfig()))


# By default, graphs of test_search_conformance.py finish at other times.
@pytest.mark.slow
def test_what_has_finished_stays_as_it_is(graphs):
    alone = parts_of(graphs, Stopping(400), PARTS)
    # The first meets its target in the first part, the last one never.
    early = alone.history_fitness[3]
    target = np.array([early[0], -1, -1], np.float32)
    result = parts_of(graphs, Stopping(400, target=target), PARTS)
    assert result.status == (Status.TARGET, Status.BUDGET, Status.BUDGET)
    assert result.evaluations[0] <= 20 + 3 * 16
    assert result.fitness[0] <= early[0]
    np.testing.assert_array_equal(result.fitness[1:], alone.fitness[1:])
    np.testing.assert_array_equal(result.evaluations[1:], alone.evaluations[1:])
    assert (result.history_fitness[-1] == result.fitness).all()
    assert (result.history_evaluations[-1] == result.evaluations).all()


def test_progress_goes_on_from_part_to_part(graphs):
    told = []
    result = parts_of(graphs, Stopping(400), PARTS, callback=told.append)
    assert all((np.diff([p.evaluations[b] for p in told]) >= 0).all() for b in range(3))
    assert [p.generation for p in told] == sorted({p.generation for p in told})
    assert told[-1].generation == told[-1].generations
    assert sum(p.generation == p.generations for p in told) == 1
    np.testing.assert_array_equal(told[-1].fitness, result.fitness)
    np.testing.assert_array_equal(told[-1].evaluations, result.evaluations)


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.slow)])
@pytest.mark.parametrize("when", ["first part", "second part"])
def test_ctrl_c_keeps_the_best_so_far(graphs, when, times, monkeypatch):
    calls = []
    # `auto` has BRKGA and annealing only where it has no search on the host.
    monkeypatch.setattr("regal_jax.solvers.portfolio.usable", lambda: False)
    cluster, objective = TWO, Objective.MAKESPAN
    if when == "second part":
        cluster, objective = Cluster.uniform(1), Objective.PEAK_MEMORY

    def pressing(problem, genes):
        calls.append(genes["priority"].shape[1])
        if calls[-1] == (100 if when == "first part" else 1):
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return fitness(problem, genes, objective)

    monkeypatch.setattr(solve, "_fitness", lambda *_: pressing)
    plan = optimize(graphs[1], cluster, objective=objective, method="auto", evaluations=2000)
    plan.verify(graphs[1])
    assert plan.provenance["stopped"] == "interrupted"
    assert plan.provenance["evaluations"] < 2000
    if when == "second part":
        assert plan.provenance["evaluations"] >= 180
    assert plan.sort_key <= min(p.sort_key for p in heuristic_plans(graphs[1], cluster, objective))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def told_parts(plan):
    parts = plan.provenance["parts"]
    assert sum(part["share"] for part in parts) <= 1 + 1e-5
    return [name for part in parts for name in part if name != "share"]


@pytest.mark.parametrize("objective", list(Objective))
def test_all_settings_are_told_in_the_provenance(graphs, objective):
    method = Auto(list_search=ListSearchConfig(ranks=3), peak_search=PeakSearchConfig(tries=5), prove=False)
    told = optimize(graphs[0], TWO, method=method, objective=objective, evaluations=50).provenance["config"]
    assert told["list_search"] == dataclasses.asdict(ListSearchConfig(ranks=3))
    assert told["peak_search"] == {**dataclasses.asdict(PeakSearchConfig(tries=5)), "blocks": [4, 16, 64]}
    assert (told["brkga"], told["prove"]) == (dataclasses.asdict(BrkgaConfig()), False)


def test_parts_are_told_in_the_provenance(graphs, monkeypatch):
    on_accelerator = ["BrkgaConfig", "AnnealingConfig"]
    plan = optimize(graphs[0], TWO, method="auto", evaluations=150)
    assert set(told_parts(plan)) == {"ListSearchConfig"}
    # A policy that was asked for guides BRKGA.
    plan = optimize(graphs[0], TWO, method="auto", evaluations=150, policy="default")
    assert told_parts(plan)[:2] == ["ListSearchConfig", "BrkgaConfig"]
    assert plan.provenance["policy"] == "default"
    # So does BRKGA with settings of its own.
    own = Auto(BrkgaConfig(population=20, elites=4, mutants=4))
    for objective, devices in (
        (Objective.MAKESPAN, 2),
        (Objective.PEAK_MEMORY, 2),
        (Objective.PEAK_MEMORY, 1),
    ):
        for policy in (None, "none"):
            both = dataclasses.replace(own, policy=policy)
            assert len(both.agenda(objective, devices).device_stages) == 1
            assert Auto(policy=policy).agenda(objective, devices).device_stages == ()
    plan = optimize(graphs[1], TWO, method=own, objective="peak-memory", evaluations=150)
    assert told_parts(plan)[:2] == ["PeakSearchConfig", "BrkgaConfig"]
    # Only a policy that is named guides it.
    assert "policy" not in plan.provenance
    for named in ("none", "default"):
        both = dataclasses.replace(own, policy=named)
        guides = [stage.guide for stage in both.agenda(Objective.PEAK_MEMORY, 2).device_stages]
        assert [guide is not None for guide in guides] == [named == "default"]
    plan = optimize(graphs[0], Cluster.uniform(1), method="auto", objective="peak-memory", evaluations=150)
    assert told_parts(plan) == ["OrderSearchConfig"]
    # Without compiled loops the host searches nothing.
    monkeypatch.setattr("regal_jax.solvers.portfolio.usable", lambda: False)
    plan = optimize(graphs[0], Cluster.uniform(1), method="auto", objective="peak-memory", evaluations=150)
    assert told_parts(plan) == on_accelerator
    assert "parts" not in optimize(graphs[0], TWO, method="brkga", evaluations=50).provenance


def turn_of_host(spent, **options):
    history = {"evaluations": [0], "best": [1.0]}
    return Turn(0, spent, spent, (), False, history, Status.BUDGET, 0.0, **options)


def test_where_nothing_can_be_gained_the_host_has_the_rest(graphs, monkeypatch):
    both = Auto(policy="default").agenda(Objective.MAKESPAN, 2)
    stalled = [turn_of_host(400)]
    assert next_turn(stalled, 1000, both, settled=False) == (1, 100)
    assert next_turn(stalled, 1000, both, settled=True) == (0, 600)
    assert next_turn([*stalled, turn_of_host(600)], 1000, both, settled=True) is None
    # The budget is too small for the first step of the search on the host.
    assert next_turn([turn_of_host(0)], 3, both, settled=True) == (1, 3)

    asked = []
    monkeypatch.setattr("regal_jax.solvers.loop.members.is_settled", lambda plan: asked.append(plan) or True)
    with pytest.warns(UserWarning, match="the policy guided no search"):
        plan = optimize(graphs[0], TWO, method="auto", evaluations=150, policy="default")
    assert set(told_parts(plan)) == {"ListSearchConfig"}
    assert asked[-1].sort_key == plan.sort_key


def test_what_is_within_a_gain_of_its_bound_is_settled():
    def plan(value, bound, overflow=0.0) -> Any:
        return SimpleNamespace(
            objective_value=value, lower_bound=bound, feasible=not overflow, sort_key=(overflow, value)
        )

    assert not is_settled(None)
    for bound in (0.0, 0.5, 0.9985, 0.9995, 1.0):
        known = plan(1.0, bound)
        assert is_settled(known) == (not improves(known, plan(bound, bound)))  # No plan is better.
    assert is_settled(plan(1.0, 0.9995))
    assert not is_settled(plan(1.0, 1.0, overflow=2.0))


def test_without_compiled_loops_the_host_has_no_part(graphs, monkeypatch):
    monkeypatch.setattr("regal_jax.solvers.portfolio.usable", lambda: False)
    plan = optimize(graphs[0], TWO, method="auto", evaluations=150)
    assert told_parts(plan) == ["BrkgaConfig", "AnnealingConfig"]
    assert plan.provenance["evaluations"] == 150
    plan = optimize(graphs[0], TWO, method="list-search", evaluations=10)
    assert plan.provenance["evaluations"] == 10


def test_settings_of_a_solver_are_told(graphs):
    solver = Annealing(chains=3)
    plan = optimize(graphs[0], TWO, method=solver, evaluations=50)
    assert plan.provenance["config"] == dataclasses.asdict(AnnealingConfig(chains=3))
    assert plan.provenance["evaluations"] == 48


def test_impossible_parts():
    with pytest.raises(ConfigError, match="share is 0"):
        Part(0, BrkgaConfig())
    with pytest.raises(ConfigError, match="parts: got none"):
        parts_of([generate("chain", 3, 0)], Stopping(5), ())


def test_the_last_part_gets_all_that_is_left():
    for devices in (1, 2):
        stages = Auto(policy="default").agenda(Objective.PEAK_MEMORY, devices).device_stages
        assert stages[-1].parts[-1].share == 1


def test_what_is_given_says_which_search_it_is_for(graphs, tmp_path):
    from flax import nnx

    policy = Policy(four_bins(rounds=1, width=4), rngs=nnx.Rngs(0))
    save_policy(tmp_path / "mine.safetensors", policy)
    for mine, name in (
        (policy, "given"),
        (tmp_path / "mine.safetensors", str(tmp_path / "mine.safetensors")),
    ):
        plan = optimize_many([graphs[0]], TWO, policy=mine, evaluations=150, progress=False)[0]
        assert (plan.provenance["method"], plan.provenance["policy"]) == ("brkga", name)
    for options in (
        {},
        {"policy": "none"},
        {"method": Auto(BrkgaConfig(population=20, elites=4, mutants=4))},
    ):
        assert optimize(graphs[0], TWO, evaluations=150, **options).provenance["method"] == "auto"
    with pytest.raises(ConfigError, match=r"made for makespan, but the objective is peak-memory; take one"):
        optimize(graphs[0], TWO, policy=policy, objective="peak-memory")
    with pytest.raises(ConfigError, match="policy: guides auto and brkga, not annealing"):
        optimize(graphs[0], TWO, method="annealing", policy=policy)
    with pytest.raises(ConfigError, match="policy: brkga has one of its own"):
        optimize(graphs[0], TWO, method=Brkga(policy=policy), policy="default")


def test_a_policy_that_was_named_and_not_used_is_warned_of():
    # On the first graph, the search on the host improves until the budget is spent.
    gains, stalls = generate("erdos-renyi", 100, seed=1), generate("erdos-renyi", 30, seed=1)
    said = "policy: the policy guided no search, since the search on the host took .*; use method='brkga'"
    with pytest.warns(UserWarning, match=said) as caught:
        plan = optimize(gains, TWO, policy="default", evaluations=150)
    assert "policy" not in plan.provenance
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="guided no search for 1 of 2 graphs"):
        optimize_many([gains, stalls], TWO, policy="default", evaluations=150, progress=False)
    # No policy was named, or it was used, so there is no warning (a warning would be an error).
    assert optimize(gains, TWO, evaluations=150).provenance["method"] == "auto"
    assert optimize(stalls, TWO, policy="default", evaluations=150).provenance["policy"] == "default"
