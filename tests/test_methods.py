"""The methods of REGAL's Table 1 behind one interface, and the tuning of BRKGA."""

import dataclasses
import json
import math
import warnings

import numpy as np
import pytest
from flax import nnx
from policy_cases import four_bins

from regal_jax import (
    Brkga,
    BrkgaConfig,
    Cluster,
    GraphBuilder,
    ListSearch,
    compare,
    optimize,
    optimize_many,
    order,
)
from regal_jax.datasets import generate
from regal_jax.encoding import quantile_table, uniform_proposal
from regal_jax.errors import ConfigError, FormatError, InfeasiblePlanWarning, MissingExtraError
from regal_jax.experiments import (
    GUIDED,
    EvaluationConfig,
    Method,
    Results,
    TunedConfig,
    make_method,
    method_names,
    tune,
)
from regal_jax.experiments import tuning as tuning_module
from regal_jax.experiments.registry import method_name
from regal_jax.heuristics import heuristic_plans, run_heuristic
from regal_jax.plan import Objective
from regal_jax.policies import Policy
from regal_jax.robust.sources import make_source
from regal_jax.solvers import Heuristic, register, solver, solvers

TWO = Cluster.uniform(2, transfer="blocking")
POLICIES = ("guided", *GUIDED)
METHODS = method_names()
OF_ORDERS = ("order-search", "approximate-dp", "depth-first-dp", "random-orders", "topoformer", "beam")
OBJECTIVES = dict.fromkeys(("peak-search", *OF_ORDERS), Objective.PEAK_MEMORY)
ONE = Cluster.uniform(1)
SETTINGS = BrkgaConfig(population=20, elites=4, mutants=3)
TABLE = dataclasses.asdict(SETTINGS)


@pytest.fixture(scope="module")
def policy():
    return Policy(four_bins(rounds=0, width=4), rngs=nnx.Rngs(0))


def one_op():
    builder = GraphBuilder("one")
    builder.add_op("only", runtime=2.0, outputs=[8])
    return builder.build()


@pytest.fixture(scope="module")
def graphs():
    """Two of them share a bucket: each bucket is compiled for every search."""
    return [one_op(), generate("erdos-renyi", 10, seed=1), generate("erdos-renyi", 12, seed=1)]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    path = tmp_path_factory.mktemp("tuned") / "tuned.json"
    TunedConfig(SETTINGS, 0.99, 60, "makespan", 3, 1).save(path)
    return path


def options_of(name, tuned, policy):
    if name == "tuned-brkga":
        return {"file": tuned}
    if name in POLICIES:
        return {"policy": policy}
    return {"settings": {"time_limit": 2.0, "workers": 1}} if name == "cp-sat" else {}


OF_SOLVERS = {"gflownet", "topoformer", "beam", "annealing", "cp-sat"}
"""By default, plans of these are verified in test_solvers.py."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in OF_SOLVERS else ()) for name in METHODS]
)
def test_every_method_gives_verified_plans_within_the_budget(name, graphs, tuned, policy):
    method = make_method(name, **options_of(name, tuned, policy))
    options = {"evaluations": 130, "seed": 3, "objective": OBJECTIVES.get(name, Objective.MAKESPAN)}
    cluster = ONE if name in OF_ORDERS else TWO
    results = method(graphs, cluster, **options)
    assert method.name
    assert len(results.plans) == len(graphs)
    for i, (plan, graph) in enumerate(zip(results.plans, graphs, strict=True)):
        plan.verify(graph)
        assert results.value[i] == plan.objective_value
    assert results.feasible.all()
    assert (results.seconds > 0).all()
    assert (results.evaluations <= 130).all()
    searched = name.endswith("search") or "brkga" in name or name in (*POLICIES, "annealing", "auto")
    # From a plan that meets its bound there is nothing to search.
    met = np.array([plan.optimal for plan in results.plans])
    assert (((results.evaluations > 0) == searched) | (met & (results.evaluations == 0))).all()
    again = method(graphs[::-1], cluster, **options)
    if name != "cp-sat":
        np.testing.assert_array_equal(again.value[::-1], results.value)


@pytest.mark.parametrize("name", [name for name in METHODS if name != "cp-sat"])
def test_no_graphs(name, tuned, policy):
    objective = OBJECTIVES.get(name, Objective.MAKESPAN)
    cluster = ONE if name in OF_ORDERS else TWO
    results = make_method(name, **options_of(name, tuned, policy))([], cluster, objective=objective)
    assert results.value.shape == results.seconds.shape == results.feasible.shape == (0,)


def test_only_auto_begins_from_heuristics(graphs):
    for name in ("brkga", "random-search", "local-search", "annealing"):
        (plan,) = make_method(name)(graphs[2:], TWO, evaluations=20).plans
        assert "warm_start" not in plan.provenance
    (plan,) = make_method("auto")(graphs[2:], TWO, evaluations=20).plans
    assert plan.sort_key <= min(p.sort_key for p in heuristic_plans(graphs[2], TWO))


def same_plans(results, plans):
    for a, b in zip(results.plans, plans, strict=True):
        np.testing.assert_array_equal(a.placement, b.placement)
        np.testing.assert_array_equal(a.timeline.op, b.timeline.op)
        assert a.provenance["evaluations"] == b.provenance["evaluations"]
        assert a.provenance["history"] == b.provenance["history"]


def test_a_guided_method_is_the_search_that_users_have(graphs, policy):
    graphs = graphs[1:]
    guided = make_method("guided", policy=policy, settings=TABLE)(graphs, TWO, evaluations=200, seed=4)
    options = {"method": Brkga(**TABLE, policy=policy), "warm_start": False, "progress": False}
    plans = optimize_many(graphs, TWO, **options, evaluations=200, seed=4)
    same_plans(guided, plans)
    assert [p.provenance["action_entropy"] for p in guided.plans] == [
        p.provenance["action_entropy"] for p in plans
    ]


def test_a_policy_that_knows_nothing_is_plain_brkga(graphs, policy, monkeypatch):
    def uniform(policy, graphs, clusters, problem, keys):
        assert problem.num_graphs == len(graphs) == len(clusters) == len(keys)
        return uniform_proposal(problem)

    monkeypatch.setattr("regal_jax.solve.propose.propose", uniform)
    graphs = graphs[1:]
    guided = make_method("guided", policy=policy, settings=TABLE)(graphs, TWO, evaluations=200, seed=4)
    same_plans(guided, make_method("brkga", settings=TABLE)(graphs, TWO, evaluations=200, seed=4).plans)
    assert [plan.provenance["action_entropy"] for plan in guided.plans] == [0] * 2


def test_idrs_draws_every_candidate_as_random_search_does(policy):
    idrs, random = make_method("idrs", policy=policy), make_method("random-search")
    config = idrs.solver.config
    assert config == random.solver.config
    assert (config.elites, config.mutants) == (0, config.population)


def test_a_policy_is_asked_and_followed(graphs, policy, monkeypatch):
    def one_device(policy, graphs, clusters, problem, keys):
        proposal = uniform_proposal(problem)
        table = quantile_table([1.0, 1000.0, 1.0], [1.0, 1.0, 1000.0])
        index = proposal.index.at[..., 0].set(1).at[..., 1].set(2)
        return dataclasses.replace(
            proposal, table=np.broadcast_to(table, (problem.num_graphs, *table.shape)), index=index
        )

    monkeypatch.setattr("regal_jax.solve.propose.propose", one_device)
    results = make_method("gas", policy=policy)(graphs, TWO, evaluations=10)
    for plan in results.plans:
        assert (plan.placement == 0).all()
        # Half of the affinities have one distribution and half the other.
        assert plan.provenance["action_entropy"] == pytest.approx(np.log(2), abs=1e-6)


def test_a_policy_guides_no_walk(graphs, policy):
    with pytest.raises(ConfigError, match="policy: guides auto and brkga, not annealing"):
        optimize_many(graphs, TWO, policy=policy, method="annealing", evaluations=10, progress=False)


def test_a_budget_of_its_own(graphs):
    method = make_method("brkga-1k", settings=TABLE)
    assert method.name == "BRKGA 1K"
    results = method(graphs[2:], TWO, evaluations=30)
    assert 980 < results.evaluations[0] <= 1000


def test_twice_changes_no_result(graphs):
    once, twice = (
        Method("x", solver("annealing"), twice=t)(graphs, TWO, evaluations=50) for t in (False, True)
    )
    np.testing.assert_array_equal(once.value, twice.value)


def test_infeasible_graphs_come_last(graphs):
    tight = Cluster.uniform(2, 1, transfer="blocking")
    results = make_method("brkga", settings=TABLE)(
        [graphs[2], graphs[2], graphs[0]], [tight, TWO, TWO], evaluations=60
    )
    assert results.feasible.tolist() == [False, True, True]
    assert results.order.tolist() == [2, 1, 0]
    assert results.overflow[0] > 0
    assert Results.of([], []).order.tolist() == []


def test_a_comparison_gives_its_options_to_every_method():
    graph, cluster = generate("chain", 3, seed=0), Cluster.uniform(2)
    with pytest.raises(TypeError, match="evalutions"):
        compare(graph, cluster, ["critical-path"], evalutions=5)
    with pytest.raises(ConfigError, match="time_limit: must be"):
        compare(graph, cluster, ["critical-path"], time_limit=-1)
    plans = compare(graph, cluster, ["random-topological", "brkga"], evaluations=100, key=5, warm_start=False)
    assert plans.plans["random-topological"].provenance["seed"] == 5


def test_every_method_of_a_comparison_begins_with_the_plans_of_an_iterator():
    graph, cluster = generate("layered", 60, seed=1), Cluster.uniform(2)
    good = optimize(graph, cluster, method="list-search", evaluations=2000, progress=False)
    methods = {"first": ListSearch(), "second": ListSearch()}
    found = compare(graph, cluster, methods, evaluations=20, warm_start=iter([good]), progress=False)
    assert all(plan.makespan <= good.makespan for plan in found.plans.values())


def test_warnings_name_the_line_of_the_caller():
    graph, cluster = generate("ordering-layered", 20, seed=0), Cluster.uniform(1, "8MiB")
    for call in (
        lambda: optimize(graph, cluster, method="bfs"),
        lambda: order(graph, memory="8MiB", method="bfs"),
        lambda: optimize_many([graph], cluster, method="bfs", progress=False),
    ):
        with pytest.warns(InfeasiblePlanWarning) as found:
            call()
        assert {warning.filename for warning in found} == {__file__}


def test_names_may_be_in_capitals():
    """In the library, in the command, and in settings of evaluations; results have the names as usual."""
    for name in method_names():
        assert method_name(name.upper()) == method_name(name.title()) == name
    assert make_method("CRITICAL-PATH") == make_method("critical-path")
    assert make_method("BRKGA-20K") == make_method("brkga-20k")
    assert solver("Critical-Path") == Heuristic("CRITICAL-PATH") == Heuristic("critical-path")
    graph = generate("chain", 3, seed=0)
    plan = run_heuristic("HEFT", graph, Cluster.uniform(2))
    assert (
        optimize(graph, Cluster.uniform(2), method="HEFT").timeline.op.tolist() == plan.timeline.op.tolist()
    )
    assert list(compare(graph, Cluster.uniform(2), ["BFS", "Single-Device"]).plans) == [
        "bfs",
        "single-device",
    ]
    config = EvaluationConfig("set", methods=("BRKGA", "Brkga-5K"), options={"HEFT": {}}, limits=())
    assert (config.methods, list(config.options)) == (("brkga", "brkga-5k"), ["heft"])
    with pytest.raises(ConfigError, match="methods: must be a list of names, each once"):
        EvaluationConfig("set", methods=("BRKGA", "brkga"), limits=())
    robust = EvaluationConfig(suite="robust-scheduling", methods=("List-Scheduling",), limits=())
    assert robust.methods == ("list-scheduling",)
    assert make_source("List-Scheduling")[0] == "list-scheduling"
    with pytest.raises(ConfigError, match="there is a solver 'BRKGA' already"):
        register(dataclasses.replace(solvers()["brkga"], name="BRKGA"))


def test_unknown_names_and_options():
    for name in ("magic", "brkga-0k", "brkga-k", "BRKGAS"):
        with pytest.raises(ConfigError, match=f"method: unknown '{name}'; use one of auto, brkga"):
            make_method(name)
    for name in POLICIES:
        with pytest.raises(ConfigError, match=rf"method {name}: .*policy"):
            make_method(name)
    with pytest.raises(ConfigError, match=r"method tuned-brkga: .*file"):
        make_method("tuned-brkga")
    with pytest.raises(ConfigError, match=r"method gp-dfs: .*time_limit"):
        make_method("gp-dfs", time_limit=3)
    with pytest.raises(ConfigError, match="brkga: there is no setting 'time_limit'; use one of population"):
        make_method("brkga", settings={"time_limit": 3})


def test_bad_problems_are_refused(graphs, policy):
    for name in ("gp-dfs", "brkga", "guided"):
        method = make_method(name, **options_of(name, None, policy))
        with pytest.raises(ConfigError, match="clusters: 1 for 3 graphs"):
            method(graphs, [TWO])
        with pytest.raises(ConfigError, match="give a ComputationGraph"):
            method(["graph.json"], TWO)


def test_the_exact_solver_needs_its_extra(graphs, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "ortools.sat.python.cp_model", None)
    with pytest.raises(MissingExtraError, match="ortools"):
        make_method("cp-sat")(graphs, TWO)


GRID = {"population": (10, 20), "elites": (0.2,), "mutants": (0.1, 0.9), "elite_bias": (0.6, 0.7)}


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        ({}, "one possible point"),
        ({"population": ()}, "one possible point"),
        ({"population": (10,), "elites": (11,)}, "one possible point"),
        ({"population": 50}, "tune: population is 50; give a list of values"),
        ({"population": "50"}, "tune: population is '50'; give a list of values"),
        ({3: (1,)}, "BrkgaConfig has no 3"),
        *(
            ({name: (value, 0.2)}, f"tune: {name} is .*; give whole numbers, or shares below 1")
            for name in ("elites", "mutants")
            for value in (math.nan, math.inf, -1, 1.5, 150.5, "a", None, [1], True)
        ),
    ],
)
def test_a_grid_that_cannot_be_is_refused(graphs, grid, message):
    with pytest.raises(ConfigError, match=message):
        tune(graphs, TWO, evaluations=60, grid=grid)


def test_small_shares_are_one_individual_and_impossible_points_are_skipped():
    def sizes(**grid):
        return [(c.population, c.elites, c.mutants) for c in tuning_module._points(grid)]

    assert sizes(elites=(0.001, 0.2), mutants=(0.001,)) == [(100, 1, 1), (100, 20, 1)]
    # The default elites are more than 10.
    assert sizes(population=(10, 100)) == [(100, 20, 15)]
    assert sizes(elites=(100, 20), mutants=(0,)) == [(100, 20, 0)]


def test_the_best_point_of_the_grid_wins(graphs, monkeypatch):
    seen = []
    many = tuning_module.optimize_many

    def watched(*args, method, **options):
        seen.append(method.config)
        # A search that is better the larger its population is.
        return many(*args, method=method, **{**options, "evaluations": method.population})

    monkeypatch.setattr(tuning_module, "optimize_many", watched)
    graph = generate("erdos-renyi", 30, seed=0)
    best = tune([graph], TWO, evaluations=200, grid=GRID, progress=lambda points, **_: points)
    assert seen[0] == BrkgaConfig()
    # 0.2 and 0.9 are more than all.
    assert {(c.population, c.elites, c.mutants, c.elite_bias) for c in seen[1:]} == {
        (p, p // 5, p // 10, rho) for p in (10, 20) for rho in (0.6, 0.7)
    }
    assert best.config.population == 20
    assert best.ratio > 1
    assert best.points == 4


def test_tuning_goes_on_where_it_was_killed(graphs, tmp_path, monkeypatch):
    calls = []

    def planned(graphs, clusters, *, method, objective, **_):
        """A fast replacement of the search whose result differs for each point."""
        calls.append(method)
        seed = method.population + round(100 * method.elite_bias)
        return [run_heuristic("random-topological", graph, TWO, objective, seed=seed) for graph in graphs]

    monkeypatch.setattr(tuning_module, "optimize_many", planned)
    options = {"evaluations": 60, "grid": GRID, "seed": 1}
    whole = tune(graphs, TWO, results=tmp_path / "whole.jsonl", **options)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    assert len(lines) == 5
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(b"".join(lines[:3]) + lines[3][:20])
    calls.clear()
    assert tune(graphs, TWO, results=torn, **options) == whole
    assert len(calls) == 2
    assert torn.read_bytes() == b"".join(lines)
    # There is no result for another seed.
    tune(graphs[:1], TWO, results=torn, **{**options, "seed": 2})
    assert len(calls) == 7


@pytest.mark.parametrize("logs", [[-1.0], [-1.0, -2.0], [-1.0, -2.0, "nan"], "abc", None])
def test_a_damaged_point_is_refused(logs, graphs, tmp_path, monkeypatch):
    def planned(graphs, clusters, *, objective, **_):
        return [run_heuristic("random-topological", graph, TWO, objective) for graph in graphs]

    monkeypatch.setattr(tuning_module, "optimize_many", planned)
    options = {"grid": {"elite_bias": (0.6,)}, "results": tmp_path / "points.jsonl"}
    tune(graphs[:3], TWO, **options)
    first, *lines = options["results"].read_text().splitlines()
    options["results"].write_text("\n".join([json.dumps({**json.loads(first), "logs": logs}), *lines, ""]))
    with pytest.raises(
        FormatError, match=r"points\.jsonl: a point is damaged; delete its line and tune again"
    ):
        tune(graphs[:3], TWO, **options)


def test_plans_of_the_best_point_that_do_not_fit_are_told(tmp_path):
    graphs = [generate("chain", 3, 0), generate("layered", 30, 0, shape=5)]
    cluster = Cluster.uniform(1, int(graphs[0].tensor_bytes.sum()))
    options = {"grid": {"elite_bias": (0.6,)}, "evaluations": 100, "results": tmp_path / "points.jsonl"}
    for _ in range(2):  # The second time from the file.
        with pytest.warns(InfeasiblePlanWarning) as found:
            tune(graphs, cluster, **options)
        assert [str(each.message) for each in found] == [
            "tune: with the best settings, plans of 1 of 2 graphs do not fit the memory, such as that of "
            f"{graphs[1].name!r}; give more memory or evaluations"
        ]
        assert found[0].filename == __file__
    with warnings.catch_warnings(action="error"):
        tune(graphs[:1], cluster, **{**options, "results": None})


def test_seed_is_the_word_and_key_still_means_it(graphs):
    for name in ("random-search", "critical-path"):
        method = make_method(name)
        one, other = (method(graphs, TWO, evaluations=60, **given) for given in ({"seed": 5}, {"key": 5}))
        np.testing.assert_array_equal(one.value, other.value)
        with pytest.raises(ConfigError, match="seed: key is another name of it; give one"):
            method(graphs, TWO, seed=5, key=5)
    options = {"evaluations": 60, "grid": {"population": (50, 60)}}
    assert tune(graphs, TWO, seed=5, **options) == tune(graphs, TWO, key=5, **options)
    with pytest.raises(ConfigError, match="seed: key is another name of it; give one"):
        tune(graphs, TWO, seed=5, key=5)


def test_tuned_settings_are_saved_and_used(graphs, tmp_path, tuned):
    assert TunedConfig.load(tuned).config == SETTINGS
    method = make_method("tuned-brkga", file=tuned)
    assert method.name == "Tuned BRKGA"
    plain = make_method("brkga", settings=TABLE)
    np.testing.assert_array_equal(
        method(graphs, TWO, evaluations=60).value, plain(graphs, TWO, evaluations=60).value
    )
    bad = tmp_path / "bad.json"
    for text in ("", "[]", "{}", json.dumps({**json.loads(tuned.read_text()), "version": 2})):
        bad.write_text(text)
        with pytest.raises(FormatError, match="no tuned settings"):
            TunedConfig.load(bad)
    bad.write_text(json.dumps({**json.loads(tuned.read_text()), "config": {"beauty": 1}}))
    with pytest.raises(FormatError, match="damaged settings"):
        TunedConfig.load(bad)
    absent = r"absent\.json: no tuned settings there \(No such file or directory\); make .* 'regal-jax tune'$"
    with pytest.raises(FormatError, match=absent):
        TunedConfig.load(tmp_path / "absent.json")
    with pytest.raises(FormatError, match=r"absent/tuned\.json: cannot be written: No such"):
        TunedConfig.load(tuned).save(tmp_path / "absent" / "tuned.json")


def test_tune_refuses_what_cannot_be(graphs):
    for bad in (
        {},
        {"beauty": (1,)},
        {"elites": ()},
        {"population": (10,), "elites": (0.6,), "mutants": (0.9,)},
    ):
        with pytest.raises(ConfigError, match="tune: "):
            tune(graphs if bad else [], TWO, grid=bad)
