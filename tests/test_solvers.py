"""Solvers: tests of all in the registry, portfolios, settings, and a custom solver."""

import dataclasses
import importlib
import json
import math
import os
import pathlib
import re
import sys
import types

import jax
import numpy as np
import pytest
from flax import nnx

from regal_jax import (
    Annealing,
    ApproximateDp,
    Auto,
    Brkga,
    BrkgaConfig,
    Cluster,
    CpSat,
    GraphBuilder,
    Heuristic,
    ListSearch,
    LocalSearch,
    OrderSearch,
    PeakSearch,
    Portfolio,
    RandomSearch,
    compare,
    optimize,
    optimize_many,
    save_graph,
)
from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, InfeasiblePlanWarning, PlanError, SolverError
from regal_jax.examples import load_example
from regal_jax.experiments import EvaluationConfig, report, run_evaluation
from regal_jax.heuristics import HEURISTICS, HostSearch, PeakSearchConfig, list_scheduling, run_heuristic
from regal_jax.plan import Objective, Plan, PlanStatus
from regal_jax.policies import Policy, PolicyConfig, save_policy
from regal_jax.problem import make_problem
from regal_jax.search import Status
from regal_jax.solve import graph_keys
from regal_jax.solvers import (
    Agenda,
    Constructive,
    DeviceSolver,
    Entry,
    Guide,
    HostSolver,
    HostStage,
    Instance,
    Solver,
    parse_settings,
    register,
    registry,
    solver,
    solvers,
    with_settings,
)
from regal_jax.solvers.loop.turns import Turn, next_turn

TWO = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")
SMALL = Brkga(population=20, elites=4, mutants=3)
HOST = HostStage(ListSearch())
ONE = Cluster.uniform(1)
OF_ORDERS = ("order-search", "approximate-dp", "depth-first-dp", "random-orders", "topoformer", "beam")
OBJECTIVES = dict.fromkeys(("peak-search", *OF_ORDERS), Objective.PEAK_MEMORY)
SEARCHES = [name for name, entry in solvers().items() if entry.searches]
QUICK = [name for name in solvers() if name != "cp-sat"]
SPECIAL = ("random-search", "local-search")
"""BRKGA without elites, and annealing without a temperature; by default only some tests have them."""


def but_special(names, *others):
    """The names as parameters of a test, of which the special cases and the others are slow."""
    slow = (*SPECIAL, *others)
    return [pytest.param(name, marks=pytest.mark.slow if name in slow else ()) for name in names]


def objective_of(name):
    return OBJECTIVES.get(name, Objective.MAKESPAN)


def cluster_of(name):
    return ONE if name in OF_ORDERS else TWO


@pytest.fixture(scope="module")
def graph():
    return generate("layered", 24, seed=2)


def same(a, b):
    assert a.objective_value == b.objective_value
    np.testing.assert_array_equal(a.placement, b.placement)
    np.testing.assert_array_equal(a.timeline.start, b.timeline.start)


# What every solver promises.


def test_the_registry_has_every_heuristic_and_every_solver_a_name():
    assert set(HEURISTICS) <= set(solvers())
    for name, entry in solvers().items():
        made = solver(name)
        assert made.name == entry.name == name
        assert made.searches == entry.searches
        assert entry.title
        assert entry.summary
        assert dataclasses.is_dataclass(made)
        assert made == solver(name)
        assert hash(made) == hash(solver(name))
        with pytest.raises(dataclasses.FrozenInstanceError):
            made.anything = 1


@pytest.mark.parametrize("name", QUICK)
def test_a_name_and_its_value_give_the_same_plan_again(name, graph):
    options = {"objective": objective_of(name), "evaluations": 150, "seed": 3}
    plan = optimize(graph, cluster_of(name), method=name, **options)
    plan.verify(graph)
    # "xla-best" names the best of its three heuristics.
    assert plan.provenance["method"] == name or name == "xla-best"
    assert plan.provenance.get("evaluations", 0) <= 150
    same(plan, optimize(graph, cluster_of(name), method=solver(name), **options))


@pytest.mark.parametrize("name", but_special(SEARCHES))
def test_never_worse_than_its_warm_starts(name, graph):
    objective, cluster = objective_of(name), cluster_of(name)
    given = optimize(graph, cluster, objective=objective, evaluations=600, seed=7)
    plan = optimize(
        graph, cluster_of(name), objective=objective, method=name, evaluations=60, warm_start=given
    )
    assert plan.sort_key <= given.sort_key
    best = min(run_heuristic(h, graph, cluster, objective).sort_key for h in HEURISTICS)
    assert optimize(graph, cluster, objective=objective, method=name, evaluations=60).sort_key <= best


# By default, company of annealing is tested in test_search_conformance.py, and that of the networks in
# test_gflownet_networks.py, in test_ordering_beam.py and, below, by
# `test_graphs_are_planned_together_as_they_are_alone`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=pytest.mark.slow
            if name in ("annealing", "gflownet", "topoformer", "beam", *SPECIAL)
            else (),
        )
        for name in QUICK
    ],
)
def test_company_changes_nothing(name, graph):
    others = [generate("chain", 5, seed=0), generate("erdos-renyi", 40, seed=1)]
    options = {"objective": objective_of(name), "method": name, "evaluations": 150, "progress": False}
    alone = optimize_many([graph], cluster_of(name), **options)[0]
    same(alone, optimize_many([others[0], graph, others[1]], cluster_of(name), **options)[1])


@pytest.mark.parametrize("name", but_special(SEARCHES))
def test_a_target_a_stall_and_a_time_limit_end_it(name, graph):
    options = {"objective": objective_of(name), "method": name, "warm_start": False}
    free = optimize(graph, cluster_of(name), evaluations=150, **options)
    loose = optimize(graph, cluster_of(name), evaluations=100_000, target=2 * free.objective_value, **options)
    assert loose.provenance["stopped"] == "target"
    assert loose.provenance["evaluations"] < 50_000
    stalled = optimize(graph, cluster_of(name), evaluations=200_000, stall=300, **options)
    assert stalled.provenance["evaluations"] < 200_000
    timed = optimize(graph, cluster_of(name), evaluations=10**8, time_limit=0.15, **options)
    assert timed.provenance["evaluations"] < 10**8


@pytest.mark.parametrize("name", but_special(QUICK, "annealing"))
def test_memory_that_never_suffices(name, graph):
    cluster = Cluster.uniform(cluster_of(name).num_devices, 1)
    with pytest.warns(InfeasiblePlanWarning):
        plan = optimize(graph, cluster, objective=objective_of(name), method=name, evaluations=150)
    plan.verify(graph)
    assert not plan.feasible


@pytest.mark.parametrize("name", but_special(QUICK))
def test_one_op_and_no_edge(name):
    for count in (1, 3):
        builder = GraphBuilder("alone")
        for i in range(count):
            builder.add_op(f"op{i}", runtime=1.0, outputs=[8])
        graph = builder.build()
        for devices in range(1, cluster_of(name).num_devices + 1):
            plan = optimize(
                graph, Cluster.uniform(devices), objective=objective_of(name), method=name, evaluations=150
            )
            plan.verify(graph)


@pytest.mark.parametrize("name", but_special(SEARCHES))
def test_improvements_are_told(name, graph):
    seen = []
    options = {"objective": objective_of(name), "method": name, "evaluations": 150, "warm_start": False}
    plan = optimize(graph, cluster_of(name), on_improvement=seen.append, **options)
    values = [one.plan.sort_key for one in seen]
    assert values == sorted(values, reverse=True)
    assert len(set(values)) == len(values)
    assert seen[-1].plan.sort_key == plan.sort_key


@pytest.mark.parametrize("name", but_special(QUICK))
def test_an_interrupt_leaves_a_plan_or_ends_the_call(name, graph):
    def stop(_):
        raise KeyboardInterrupt

    options = {"objective": objective_of(name), "method": name, "evaluations": 150}
    try:
        plan = optimize(graph, cluster_of(name), on_improvement=stop, **options)
    except KeyboardInterrupt:
        return
    plan.verify(graph)
    assert plan.provenance.get("stopped") == "interrupted" or name not in SEARCHES


@pytest.mark.parametrize("name", OF_ORDERS)
def test_for_one_device_and_peak_memory_alone(name, graph):
    with pytest.raises(ConfigError, match=f"method: {name} is for 1 device, not for 2; use auto"):
        optimize(graph, TWO, objective="peak-memory", method=name)
    if name != "order-search":
        with pytest.raises(ConfigError, match=f"method: {name} is for peak-memory, not for makespan"):
            optimize(graph, ONE, method=name)


def test_approximate_dp_on_the_device_is_that_of_the_host(graph, monkeypatch):
    graphs = [graph, generate("chain", 1, seed=0)]
    for each in graphs:
        plans = [
            optimize(each, ONE, objective="peak-memory", method=ApproximateDp(30, implementation=name))
            for name in ("host", "device")
        ]
        assert plans[0].objective_value == plans[1].objective_value
        for said in ("method", "status", "states"):
            assert plans[0].provenance[said] == plans[1].provenance[said]
    made = []
    monkeypatch.setattr(ApproximateDp, "_construct_on_device", lambda self, _: made.append(self) or plans[1])
    for backend, solver_, device in (
        ("cpu", ApproximateDp(), False),
        ("gpu", ApproximateDp(), True),
        ("gpu", ApproximateDp(held=True), False),
        ("gpu", ApproximateDp(implementation="host"), False),
    ):
        monkeypatch.setattr(jax, "default_backend", lambda backend=backend: backend)
        solver_.construct(Instance(graphs[1], ONE, Objective.PEAK_MEMORY))
        assert bool(made) == device
        made.clear()


def test_units_of_several_bytes_prove_nothing_in_bytes():
    builder = GraphBuilder("large")
    builder.add_op("a", outputs=[2**30 + 1])
    method = ApproximateDp(30, implementation="device")
    plan = optimize(builder.build(), ONE, objective="peak-memory", method=method)
    assert plan.provenance["status"] == "feasible"


def test_the_exact_solver_is_a_method():
    pytest.importorskip("ortools")
    graph = generate("chain", 6, seed=0)
    plan = optimize(graph, Cluster.uniform(2, transfer="free"), method=CpSat(time_limit=20, workers=1))
    assert plan.provenance["status"] == "optimal"
    assert plan.provenance["method"] == "cp-sat"
    assert plan.optimal


# Values and settings.


def test_settings_are_checked_and_named_after_the_solver():
    for make, said in (
        (lambda: Brkga(population=0), "Brkga: population is 0"),
        (lambda: RandomSearch(population=0), "BrkgaConfig: population is 0"),
        (lambda: Annealing(chains=0), "Annealing: chains is 0"),
        (lambda: LocalSearch(chains=0), "AnnealingConfig: chains is 0"),
        (lambda: ListSearch(ranks=0), "ListSearch: ranks is 0"),
        (lambda: PeakSearch(tries=0), "PeakSearch: tries is 0"),
        (lambda: OrderSearch(width=0), "OrderSearch: width is 0"),
        (lambda: ApproximateDp(implementation="gpu"), "ApproximateDp: implementation is 'gpu'"),
        (lambda: ApproximateDp(held=True, implementation="device"), "ApproximateDp: .* has no 'held'"),
        (lambda: Heuristic("magic"), "Heuristic: unknown heuristic 'magic'"),
        (lambda: Auto(BrkgaConfig), "Auto: brkga is"),
        (lambda: Auto(Brkga()), "Auto: brkga is"),
        (lambda: Auto(prove="never"), "Auto: prove is 'never'"),
        (lambda: Auto(list_search=PeakSearchConfig()), "Auto: list_search is .* give a ListSearchConfig"),
        (lambda: Auto(peak_search=PeakSearch()), "Auto: peak_search is .* give a PeakSearchConfig"),
        (lambda: Portfolio(), "Portfolio: no solvers"),
        (lambda: Portfolio(ListSearch(), Heuristic("heft")), "Portfolio: .* cannot be a stage"),
        (lambda: Portfolio(ListSearch(), SMALL, shares=(1,)), "Portfolio: 1 shares for 2 solvers"),
        (lambda: Portfolio(ListSearch(), SMALL, shares=(0, 1)), "Portfolio: a share is 0"),
        (lambda: solver("magic"), "method: unknown 'magic'; use one of auto, brkga"),
        (lambda: solver(3), "method: give a name or a solver"),
        (lambda: register(Entry("brkga", "", "", Brkga)), "register: there is a solver 'brkga' already"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()


def test_settings_decide_what_is_searched(graph):
    plan = optimize(graph, TWO, method=SMALL, evaluations=100, warm_start=False)
    assert plan.provenance["config"] == dataclasses.asdict(SMALL.config)
    assert plan.provenance["evaluations"] == 20 + 5 * 16
    same(
        optimize(graph, TWO, method="random-search", evaluations=200, warm_start=False, seed=1),
        optimize(graph, TWO, method=Brkga(elites=0, mutants=100), evaluations=200, warm_start=False, seed=1),
    )


def test_settings_by_name():
    assert with_settings(Brkga(), {"population": 50}) == Brkga(population=50)
    for settings in ({"brkga.population": 50}, {"brkga": {"population": 50}}):
        assert with_settings(Auto(), settings) == Auto(BrkgaConfig(population=50))
    with pytest.raises(ConfigError, match="brkga: there is no setting 'size'; use one of population"):
        with_settings(Brkga(), {"size": 3})
    for settings in (
        {"brkga.elites": 3, "brkga": {"population": 50}},
        {"brkga": {"population": 50}, "brkga.elites": 3},
    ):
        assert with_settings(Auto(), settings) == Auto(BrkgaConfig(population=50, elites=3))
    for settings in (
        {"brkga": 5, "brkga.elites": 3},
        {"brkga.elites": 3, "brkga": 5},
        {"brkga": {"elites": 4}, "brkga.elites": 3},
    ):
        with pytest.raises(ConfigError, match=r"settings: brkga.* is given twice; give it once"):
            with_settings(Auto(), settings)
    with pytest.raises(ConfigError, match="heft: there is no setting 'heuristic'; it has none"):
        with_settings(solver("heft"), {"heuristic": "bfs"})
    with pytest.raises(ConfigError, match="brkga: population is a single value without a setting x"):
        with_settings(Brkga(), {"population.x": 3})
    with pytest.raises(ConfigError, match="Brkga: population is 'many'"):
        with_settings(Brkga(), {"population": "many"})
    assert parse_settings([("a", "3"), ("b", "x.safetensors"), ("c", "(1, 2)")]) == {
        "a": 3,
        "b": "x.safetensors",
        "c": (1, 2),
    }
    with pytest.raises(ConfigError, match="--set a: given twice"):
        parse_settings([("a", "3"), ("a", "4")])


def test_the_command_takes_settings(graph, tmp_path, capsys):
    file, out = str(tmp_path / "graph.json"), tmp_path / "plan.json"
    save_graph(graph, file)
    common = ["optimize", file, "--evaluations", "100", "--out", str(out), "--quiet"]
    assert main([*common, "--method", "brkga", "--set", "population=40", "--set", "elites=4"]) == 0
    assert Plan.load(out).provenance["config"]["population"] == 40
    assert main([*common, "--set", "brkga.population=50"]) == 0
    provenance = Plan.load(out).provenance
    assert (provenance["method"], provenance["config"]["brkga"]["population"]) == ("auto", 50)
    for wrong, said in (("size=3", "no setting 'size'"), ("population=-1", "population is -1")):
        assert main([*common, "--method", "brkga", "--set", wrong]) == 2
        assert said in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([*common, "--set", "population"])
    assert "NAME=VALUE" in capsys.readouterr().err


def test_values_of_one_kind_are_compared_under_names_of_their_own(graph):
    table = {"few": SMALL, "many": Brkga(population=40, elites=8, mutants=6)}
    found = compare(graph, TWO, table, evaluations=200, warm_start=False, time_limit=100)
    assert list(found.plans) == ["few", "many"]
    assert [plan.provenance["config"]["population"] for plan in found.plans.values()] == [20, 40]
    with pytest.raises(ConfigError, match="methods: 'brkga' occurs twice"):
        compare(graph, TWO, list(table.values()))


# What was spent.


def test_work_beside_the_budget_is_told(graph, monkeypatch):
    """The work of heuristics, starts and features; evaluations are not counted twice."""
    made = []
    finished = list_scheduling.placement_and_events
    monkeypatch.setattr(
        list_scheduling, "placement_and_events", lambda state: made.append(0) or finished(state)
    )

    def work(**options):
        made.clear()
        plan = optimize(graph, TWO, evaluations=150, **options)
        assert plan.provenance["seconds"] > 0
        return plan.provenance["work"]

    none = {"schedules": 0, "placements": 0}
    assert work(method=SMALL, warm_start=False) == none
    assert work(method="list-search", warm_start=False)["placements"] == 0
    assert work(method="heft") == {"schedules": 1, "placements": 0}
    for method in ("critical-path", SMALL):
        told = work(method=method)
        # HEFT makes one schedule more.
        assert told["schedules"] == len(made) + (method == SMALL) > 3
    balance = {"objective": "peak-memory", "warm_start": False}
    begun = work(method="peak-search", **balance)
    assert begun["placements"] > 20
    # The starts are made once, whatever the budget.
    plan = optimize(graph, TWO, method="peak-search", evaluations=600, **balance)
    assert plan.provenance["work"] == begun
    guided = work(method="brkga", policy="default", **balance)
    assert guided["placements"] > 100


def test_the_history_has_the_plans_that_a_search_begins_with(graph):
    """Schedule generation makes other schedules of given plans, and three draws are no better than these."""
    plan = optimize(graph, TWO, method=RandomSearch(population=3, encoding="schedule"), evaluations=3)
    assert plan.provenance["history"] == {"evaluations": [3], "best": [plan.objective_value]}


def test_a_comparison_has_the_work(graph):
    rows = compare(graph, TWO, ["single-device", "heft"]).rows
    assert [(row["schedules"], row["placements"]) for row in rows] == [(0, 0), (1, 0)]


# Portfolios.


def shares_of(plan):
    return [
        (next(k for k in part if k not in ("share", "contracted")), part["share"])
        for part in plan.provenance["parts"]
    ]


def test_a_portfolio_with_shares_gives_each_solver_its_share(graph):
    both = Portfolio(ListSearch(), SMALL, Annealing(), shares=(0.5, 0.5, 1))
    plan = optimize(graph, TWO, method=both, evaluations=400, warm_start=False)
    plan.verify(graph)
    assert [name for name, _ in shares_of(plan)] == ["ListSearchConfig", "BrkgaConfig", "AnnealingConfig"]
    assert [share for _, share in shares_of(plan)] == [0.5, 0.25, 0.25]
    assert plan.provenance["evaluations"] <= 400
    assert plan.provenance["method"] == "portfolio"
    assert plan.provenance["config"]["shares"] == [0.5, 0.5, 1]
    assert list(plan.provenance["config"]["solvers"][1]) == ["brkga"]


def test_a_portfolio_leaves_out_what_is_not_for_the_problem(graph):
    both = Portfolio(ListSearch(), PeakSearch(), SMALL)
    for objective, kind in (("makespan", "ListSearchConfig"), ("peak-memory", "PeakSearchConfig")):
        plan = optimize(graph, TWO, method=both, objective=objective, evaluations=300)
        names = {name for name, _ in shares_of(plan)}
        assert kind in names
        assert len(names) <= 2
    # On one device, searches of placements have no stage.
    plan = optimize(graph, Cluster.uniform(1), method=both, objective="peak-memory", evaluations=100)
    assert "parts" not in plan.provenance
    with pytest.raises(ConfigError, match="this portfolio is for peak-memory on any number of devices"):
        optimize(graph, TWO, method=Portfolio(ListSearch()), objective="peak-memory")


def test_a_portfolio_is_saved_in_the_plan(graph, tmp_path):
    plan = optimize(graph, TWO, method=Portfolio(SMALL, LocalSearch()), evaluations=100)
    plan.save(tmp_path / "plan.json")
    Plan.load(tmp_path / "plan.json").verify(graph)
    assert "brkga" in json.loads((tmp_path / "plan.json").read_text())["provenance"]["config"]["solvers"][0]


def turn(stage, budget, *, gained=False, evaluations=None):
    spent = budget if evaluations is None else evaluations
    history = {"evaluations": [0], "best": [1.0]}
    return Turn(stage, budget, spent, (), gained, history, Status.BUDGET, 0.0)


@dataclasses.dataclass(frozen=True)
class Written(ListSearch):
    """A solver with a setting that no file has."""

    where: object = None

    @property
    def config(self):
        return self


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (pathlib.PurePosixPath("/log"), "PurePosixPath('/log')"),
        (np.float32(0.5), 0.5),
        (math.inf, None),
        (np.arange(2), [0, 1]),
        ({"a": (1, {2})}, {"a": [1, "{2}"]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plan_can_be_saved_whatever_the_settings_of_its_solver(where, said, graph, tmp_path):
    plan = optimize(graph, TWO, method=Written(where=where), evaluations=20)
    plan.save(tmp_path / "plan.json")
    saved = Plan.load(tmp_path / "plan.json").provenance
    assert saved["config"]["where"] == said
    assert dict(plan.provenance) == saved


@pytest.mark.parametrize("method", ["auto", "peak-search"])
def test_the_provenance_of_a_plan_is_that_of_its_file(method, graph):
    plan = optimize(graph, TWO, method=method, objective="peak-memory", evaluations=20)
    assert Plan.from_json(plan.to_json()).provenance == dict(plan.provenance)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: Agenda((ListSearch(),)), r"Agenda: ListSearch\(.* is no stage; give a tuple of them"),
        (lambda: Agenda(3), "Agenda: 3 is no stage"),
        (lambda: Agenda((HOST, HOST), shares=(0.5,)), "Agenda: 1 shares for 2 stages; give one each"),
        (lambda: Agenda((HOST, HOST), shares=(math.nan, 1)), "Agenda: a share is nan; give numbers above 0"),
        (lambda: Agenda((HOST, HOST), shares=(-1, 1)), "Agenda: a share is -1"),
        (lambda: Agenda((HOST, HOST), shares=(2, 1)), "Agenda: a share is 2"),
        (lambda: Agenda((HOST,), shares=1), "Agenda: shares: give an Iterable, got int"),
        (lambda: HostStage("list-search"), "HostStage: solver: give a HostSolver, got str"),
        (lambda: HostStage(ListSearch(), contracts=1), "HostStage: contracts is 1; give true or false"),
    ],
)
def test_stages_and_shares_are_checked(wrong, message):
    with pytest.raises(ConfigError, match=message) as caught:
        wrong()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["alone", "stage"])
def test_what_is_no_agenda_is_refused(method, graph):
    class Wrong(Searches):
        def agenda(self, objective, num_devices):
            return None

    made = Wrong() if method == "alone" else Portfolio(Wrong(), ListSearch())
    with pytest.raises(ConfigError, match="searches: agenda returned a NoneType; return an Agenda"):
        optimize(graph, TWO, method=made, evaluations=20)


def test_stages_take_turns_by_what_pays():
    three = Portfolio(ListSearch(), SMALL, Annealing()).agenda(Objective.MAKESPAN, 2)
    first = turn(0, 300)
    assert next_turn([], 1000, three) == (0, 1000)
    assert next_turn([first], 1000, three) == (1, 100)
    assert next_turn([first, turn(1, 100, gained=True)], 1000, three) == (1, 600)
    assert next_turn([first, turn(1, 100, gained=True), turn(1, 600)], 1000, three) is None
    assert next_turn([first, turn(1, 100)], 1000, three) == (2, 100)
    assert next_turn([first, turn(1, 100), turn(2, 100, gained=True)], 1000, three) == (2, 500)
    # No other stage gained, so the first gets the rest, with what another stage could not spend.
    assert next_turn([first, turn(1, 100), turn(2, 100, evaluations=90)], 1000, three) == (0, 510)
    assert next_turn([first, turn(1, 100), turn(2, 100), turn(0, 500)], 1000, three) is None


def test_shares_are_of_what_is_left():
    agenda = Portfolio(ListSearch(), SMALL, shares=(0.3, 1)).agenda(Objective.MAKESPAN, 2)
    assert next_turn([], 1000, agenda) == (0, 300)
    assert next_turn([turn(0, 300)], 1000, agenda) == (1, 700)
    assert next_turn([turn(0, 300), turn(1, 700)], 1000, agenda) is None
    assert next_turn([], 2, agenda) == (1, 2)


# A solver of a user's own: the code of docs/add_a_solver.md.


@pytest.fixture
def registered():
    text = (pathlib.Path(__file__).parents[1] / "docs" / "add_a_solver.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert len(code.splitlines()) < 60
    names = {"__name__": "example"}
    # `dataclasses` looks up the module in which a class is defined.
    module = types.ModuleType("example")
    sys.modules["example"] = module
    exec(compile(code, "add_a_solver.md", "exec"), names)
    module.__dict__.update(names)
    yield names["RandomWalk"]
    del registry._registry["random-walk"], sys.modules["example"]


def test_a_solver_of_ones_own_is_usable_everywhere(graph, tmp_path, registered, capsys):
    plan = optimize(graph, TWO, method="random-walk", evaluations=100, seed=1)
    plan.verify(graph)
    assert plan.provenance["method"] == "random-walk"
    assert plan.provenance["evaluations"] == 100
    assert plan.provenance["config"] == {"step": 1}
    assert isinstance(solver("random-walk"), Solver)
    best = min(run_heuristic(h, graph, TWO).sort_key for h in HEURISTICS)
    assert plan.sort_key <= best
    many = optimize_many([graph, graph], TWO, method=registered(step=2), evaluations=40, progress=False)
    same(*many)
    joined = optimize(graph, TWO, method=Portfolio(registered(), SMALL), evaluations=100)
    assert shares_of(joined)[0][0] == "RandomWalk"
    builder = GraphBuilder("restricted")
    for name, group, devices in (("a", "g", None), ("b", "g", (1,)), ("c", None, (0,)), ("d", None, None)):
        builder.add_op(name, runtime=1.0, colocation_group=group, allowed_devices=devices)
    walked = optimize(builder.build(), TWO, method="random-walk", evaluations=50, warm_start=False)
    assert walked.placement[:3].tolist() == [1, 1, 0]
    assert walked.makespan == 2

    save_graph(graph, tmp_path / "graph.json")
    command = ["optimize", str(tmp_path / "graph.json"), "--method", "random-walk", "--set", "step=2"]
    assert main([*command, "--evaluations", "30", "--out", str(tmp_path / "plan.json")]) == 0
    assert Plan.load(tmp_path / "plan.json").provenance["config"] == {"step": 2}
    with pytest.raises(SystemExit):
        main(["optimize", "--help"])
    assert "random-walk: moves one op" in " ".join(capsys.readouterr().out.split())

    config = EvaluationConfig(
        graphs=str(tmp_path / "graph.json"),
        methods=("random-walk",),
        options={"random-walk": {"settings": {"step": 3}}},
        evaluations=30,
        other_seed=-1,
        limits=(),
        warm_up=False,
    )
    run_evaluation(config, tmp_path / "out")
    assert "Random walk" in [row.title for row in report(tmp_path / "out").comparison.rows]


# What a plan is known to be.


def test_the_status_and_the_gap_of_a_plan(graph):
    chain = generate("chain", 5, seed=0)
    best = optimize(chain, Cluster.uniform(2))
    assert (best.status, best.gap) == (PlanStatus.OPTIMAL, pytest.approx(0, abs=1e-6))
    plan = optimize(graph, TWO, method="single-device")
    assert plan.status == "feasible"
    assert plan.gap == pytest.approx(plan.makespan / plan.lower_bound - 1)
    assert plan.gap > 0.1
    with pytest.warns(InfeasiblePlanWarning):
        none = optimize(graph, Cluster.uniform(2, 1), method="heft")
    assert none.status is PlanStatus.IMPOSSIBLE
    alone = optimize(graph, Cluster.uniform(1), method="heft")
    tight = Cluster.uniform(2, float(alone.peak_memory.max()) - 1)
    with pytest.warns(InfeasiblePlanWarning):
        over = optimize(graph, tight, method="single-device")
    assert over.status is PlanStatus.INFEASIBLE
    builder = GraphBuilder("nothing")
    builder.add_op("op", runtime=0.0)
    assert optimize(builder.build(), TWO).gap is None


# Who guides.


def test_a_policy_by_what_it_is_called(tmp_path):
    assert Guide.of(None) is None
    assert Guide.of("none") is None
    assert Guide.of("none", optional=True) is None
    shipped = Guide.of(None, optional=True)
    assert (shipped.name, shipped.policy) == (None, None)
    assert shipped.guides(Objective.MAKESPAN, 2)
    assert not shipped.guides(Objective.MAKESPAN, 5)
    assert not shipped.lacks(Objective.MAKESPAN, 5)
    assert Guide.of("default", optional=True).lacks(Objective.MAKESPAN, 5)
    with pytest.raises(ConfigError, match="policy: none"):
        Guide.of("default").guides(Objective.MAKESPAN, 5)
    with pytest.raises(ConfigError, match=r"policy: no file 'none.safetensors'"):
        optimize(generate("chain", 3, seed=0), TWO, method=Brkga(policy="none.safetensors"))
    with pytest.raises(ConfigError, match="policy: give None, 'none', 'default'"):
        optimize(generate("chain", 3, seed=0), TWO, method=Brkga(policy=3))


def test_guides_propose_by_themselves():
    graphs, keys = (
        [generate("chain", 3, seed=0)],
        graph_keys(jax.random.key(0), [generate("chain", 3, seed=0)]),
    )
    orders = Guide.of("topoformer")
    peak = Objective.PEAK_MEMORY
    found = orders.propose(graphs, [ONE], make_problem(graphs, ONE), keys, peak)
    # The priority of the first op is the highest.
    assert (np.diff(np.asarray(found.offset)[0, :3]) < 0).all()
    assert orders.guides(peak, 1)
    with pytest.raises(ConfigError, match="policy: 'topoformer' is for 1 device, not for 2"):
        orders.propose(graphs, [TWO], make_problem(graphs, TWO), keys, peak)
    assert Guide.of("topoformer", optional=True).propose(graphs, [TWO], None, keys, peak) is None
    five = Cluster.uniform(5)
    assert Guide.of(None, optional=True).propose(graphs, [five], None, keys, peak) is None


def test_a_changed_file_is_another_policy(tmp_path):
    file = tmp_path / "policy.safetensors"
    makers = [Policy(PolicyConfig(rounds=0, width=4), rngs=nnx.Rngs(seed)) for seed in range(2)]
    save_policy(file, makers[0])
    first = Guide.of(file)
    assert Guide.of(str(file)).policy is first.policy
    save_policy(file, makers[1])
    os.utime(file, (1, 1))
    assert Guide.of(file).policy is not first.policy
    assert Guide.of(file).name == str(file)
    assert Guide.of(makers[0]).name == "given"


# By default, test_local.py has annealing on several accelerators.
@pytest.mark.parametrize("name", ["auto", "brkga", pytest.param("annealing", marks=pytest.mark.slow)])
def test_the_number_of_accelerators_changes_nothing(name, graph):
    graphs = [graph, generate("erdos-renyi", 24, seed=3)]
    options = {"method": name, "evaluations": 150, "warm_start": False, "progress": False}
    one, two = (optimize_many(graphs, TWO, devices=jax.devices()[:n], **options) for n in (1, 2))
    for a, b in zip(one, two, strict=True):
        same(a, b)


# By default, test_auto.py names the policy of a stage.
@pytest.mark.slow
def test_each_stage_names_its_own_policy(graph, tmp_path):
    file = tmp_path / "policy.safetensors"
    save_policy(file, Policy(PolicyConfig(rounds=0, width=4), rngs=nnx.Rngs(0)))
    guided = dataclasses.replace(SMALL, policy=str(file))
    plan = optimize(graph, TWO, method=Portfolio(SMALL, guided, shares=(0.5, 1)), evaluations=100)
    assert plan.provenance["policy"] == str(file)


# By default, the network proposes orders in `test_guides_propose_by_themselves`.
@pytest.mark.slow
def test_brkga_draws_around_the_order_of_a_network():
    graph = generate("ordering-layered", 40, seed=1)
    options = {"objective": Objective.PEAK_MEMORY, "method": "brkga", "evaluations": 200, "warm_start": False}
    around = optimize(graph, ONE, policy="topoformer", **options)
    assert around.provenance["policy"] == "topoformer"
    with pytest.raises(ConfigError, match="'topoformer' is for 1 device, not for 2"):
        optimize(graph, Cluster.uniform(2, transfer="free"), policy="topoformer", **options)


def test_graphs_are_planned_together_as_they_are_alone():
    graphs = [generate("ordering-layered", n, seed=n) for n in (5, 30, 31)]
    options = {"objective": Objective.PEAK_MEMORY, "method": "topoformer", "progress": False}
    together = optimize_many(graphs, ONE, **options)
    for graph, plan in zip(graphs, together, strict=True):
        (alone,) = optimize_many([graph], ONE, **options)
        np.testing.assert_array_equal(plan.timeline.op, alone.timeline.op)


GRAPH, TWO = generate("layered", 15, seed=0), Cluster.uniform(2)


def wrong_plans():
    """Plans that no solver may return for `GRAPH` on `TWO`, and what is said of them."""
    good = run_heuristic("partition-dfs", GRAPH, TWO)
    short = dataclasses.replace(good, timeline=dataclasses.replace(good.timeline, makespan=1.0))
    slim = dataclasses.replace(
        good, timeline=dataclasses.replace(good.timeline, peak_memory=np.zeros(2, int))
    )
    other = run_heuristic("partition-dfs", generate("layered", 16, seed=0), TWO)
    return {
        "nothing": (None, "returned a NoneType; return a Plan"),
        "short": (short, "states a makespan of 1 .* its replay gives"),
        "slim": (slim, "its replay gives"),
        "other graph": (other, "the plan is for graph"),
        "other cluster": (run_heuristic("partition-dfs", GRAPH, Cluster.uniform(3)), "for another cluster"),
        "other objective": (
            run_heuristic("partition-dfs", GRAPH, TWO, "peak-memory"),
            "the plan is for peak-memory, the instance for makespan; give its objective",
        ),
        "bound": (
            dataclasses.replace(good, lower_bound=good.makespan),
            "returned a plan that is not valid: the lower_bound is .*, the plan says",
        ),
        "impossible": (dataclasses.replace(good, impossible=True), "which is not proven"),
        "no provenance": (
            dataclasses.replace(good, provenance=None),  # pyright: ignore[reportArgumentType]
            "its provenance is a NoneType; give a dict, or none",
        ),
        "set in provenance": (
            dataclasses.replace(good, provenance={"ops": {1}}),
            "returned a plan that is not valid: provenance.ops is of type set; use texts, numbers",
        ),
    }


WRONG = wrong_plans()


@dataclasses.dataclass(frozen=True)
class Made(Constructive):
    """Returns given plans."""

    name = "made"
    plans: tuple = ()
    together = 4

    def construct(self, instance):
        return self.plans[0]

    def construct_all(self, instances):
        return list(self.plans)


class Stands(HostSearch):
    """A search with a given plan."""

    found = None

    def run(self, evaluations, ends=None, goal=-np.inf):
        self.evaluations += evaluations

    def plan(self):
        return self.found


@dataclasses.dataclass(frozen=True)
class Searches(HostSolver):
    """Begins `Stands`, or what is given in its place."""

    name = "searches"
    found: object = None
    begun: object = Stands

    def begin(self, instance):
        if self.begun is not Stands:
            return self.begun
        search = Stands(instance.graph, instance.cluster, instance.seed)
        search.found = self.found
        return search


@dataclasses.dataclass(frozen=True)
class Small(DeviceSolver):
    """A search in compiled programs."""

    name = "small"

    @property
    def config(self):
        return SMALL.config


@pytest.mark.parametrize("made", [Made(), Searches(), Small()], ids=lambda made: made.name)
def test_a_solver_is_refused_for_problems_that_it_does_not_support(made, monkeypatch):
    monkeypatch.setattr(type(made), "objective", Objective.MAKESPAN)
    monkeypatch.setattr(type(made), "most_devices", 2)
    with pytest.raises(ConfigError, match=f"method: {made.name} is for makespan, not for peak-memory"):
        optimize(GRAPH, TWO, method=made, objective="peak-memory")
    with pytest.raises(ConfigError, match=f"method: {made.name} is for at most 2 devices, not for 3"):
        optimize(GRAPH, Cluster.uniform(3), method=made)


@pytest.mark.parametrize("name", WRONG)
def test_a_plan_of_a_solver_is_replayed(name):
    plan, message = WRONG[name]
    with pytest.raises(PlanError, match=f"made: .*{message}") as caught:
        optimize(GRAPH, TWO, method=Made((plan,)))
    assert "\n" not in str(caught.value)
    if plan is not None:
        with pytest.raises(PlanError, match=f"searches: .*{message}"):
            optimize(GRAPH, TWO, method=Searches(plan), evaluations=10)


@pytest.mark.parametrize(
    ("said", "method"),
    [({}, None), ({"method": [1]}, None), ({"method": "mine", "x": math.nan, "ops": np.int64(3)}, "mine")],
)
def test_the_provenance_of_a_plan_of_a_solver_can_be_saved(said, method):
    plan = dataclasses.replace(run_heuristic("partition-dfs", GRAPH, TWO), provenance=said)
    made = optimize(GRAPH, TWO, method=Made((plan,)))
    assert made.provenance["method"] == (method or "made")
    assert Plan.from_json(made.to_json()).provenance == dict(made.provenance)
    found = optimize(GRAPH, TWO, method=Searches(plan), evaluations=10, warm_start=False)
    assert found.provenance.get("found_by") == method
    assert Plan.from_json(found.to_json()).provenance == dict(found.provenance)


def states(evaluations=None, history=None, best=None, more=0):
    """A `HostSolver` whose search states these numbers, and makes ``more`` evaluations than it is given."""

    class States(Stands):
        def run(self, evaluations_, ends=None, goal=-np.inf):
            self.evaluations += evaluations_ + more
            if evaluations is not None:
                self.evaluations = evaluations
            if history is not None:
                self.history = history

        @property
        def best(self):
            return super().best if best is None else best

    class Begins(Searches):
        def begin(self, instance):
            return States(instance.graph, instance.cluster, instance.seed)

    return Begins()


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"evaluations": "many"}, "states 'many' evaluations after 0; give a whole number"),
        ({"evaluations": 2.5}, "states 2.5 evaluations after 0"),
        ({"evaluations": -1}, "states -1 evaluations after 0"),
        ({"more": 1}, "a run of its search made 11 evaluations; make at most the 10 that it is given"),
        ({"history": None, "evaluations": True}, "states True evaluations"),
        ({"history": 3}, "the history of its search is 3; leave it to improves"),
        ({"history": [(11, 1.0)]}, r"has \(11, 1.0\) at 10 evaluations; leave it to improves"),
        ({"history": [(3, 1.0), (2, 0.5)]}, r"has \(2, 0.5\) at 10 evaluations"),
        ({"history": [(3, "short")]}, r"has \(3, 'short'\)"),
        ({"history": [3]}, "has 3 at 10 evaluations"),
        ({"history": [(3, 1e-9)]}, "states an objective of 1e-09, the best plan has"),
        ({"best": 1e-9}, "states an objective of 1e-09, the best plan has"),
        ({"best": 0.0}, "states an objective of 0.0, the best plan has"),
        ({"best": "low"}, "states an objective of 'low', the best plan has"),
        ({"best": math.nan}, "states an objective of nan, the best plan has"),
    ],
)
@pytest.mark.parametrize("warm_start", [True, False])
def test_what_a_search_states_is_checked(said, message, warm_start):
    with pytest.raises(PlanError, match=f"searches: .*{message}") as caught:
        optimize(GRAPH, TWO, method=states(**said), evaluations=10, warm_start=warm_start)
    assert "\n" not in str(caught.value)


def test_counts_of_a_search_become_those_of_a_file():
    value = run_heuristic("heft", GRAPH, TWO).objective_value
    history = ((np.int64(3), None), (np.int32(7), np.float64(value)))
    made = optimize(GRAPH, TWO, method=states(np.int64(10), history), evaluations=10)
    assert Plan.from_json(made.to_json()).provenance["evaluations"] == 10
    # What it states beside a plan that does not fit the memory is an objective of no plan.
    tight = Cluster.uniform(2, memory=1)
    with pytest.raises(PlanError, match="the best plan has inf"):
        optimize(GRAPH, tight, method=states(best=value), evaluations=10)


def test_a_plan_of_the_contracted_graph_is_replayed(monkeypatch):
    graph, cluster = load_example("mlp"), Cluster.uniform(2, transfer="nvlink4")
    other = Cluster.uniform(2, transfer="blocking")
    of_small = {
        "is for another cluster than that": lambda small: run_heuristic("heft", small, other),
        "returned a str; return a Plan": lambda small: "plan",
    }

    class Contracts(Searches):
        def agenda(self, objective, num_devices):
            return Agenda((HostStage(self, contracts=True),))

    for message, plan_of in of_small.items():

        def plan(search, plan_of=plan_of):
            return plan_of(search.graph) if search.graph.num_ops < graph.num_ops else None

        monkeypatch.setattr(Stands, "plan", plan)
        with pytest.raises(PlanError, match=f"searches: .*{message}"):
            optimize(graph, cluster, method=Contracts(), evaluations=20, warm_start=False)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (3, "give an Entry, got 3"),
        (Entry("", "R", "x", Made), "name is ''; give one without spaces"),
        (Entry("foo bar", "R", "x", Made), "name is 'foo bar'"),
        (Entry("a,b", "R", "x", Made), "name is 'a,b'"),
        (Entry("foo", "R", "x", 3), "make of 'foo' is 3; give a function"),
        (Entry("foo", "R", "x", Made), "name is 'foo', but its class has the name 'made'; give the same"),
    ],
)
def test_what_is_no_entry_is_not_registered(entry, message):
    with pytest.raises(ConfigError, match=f"register: {re.escape(message)}"):
        register(entry)
    assert "foo" not in solvers()


def test_a_name_that_makes_no_solver_is_refused(monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    register(Entry("empty", "E", "x", lambda: None))  # pyright: ignore[reportArgumentType]
    with pytest.raises(ConfigError, match="method: 'empty' makes a NoneType; its entry must make a solver"):
        optimize(GRAPH, TWO, method="empty")


@dataclasses.dataclass(frozen=True)
class Breaks(Constructive):
    """Raises an error for graphs of 15 ops."""

    name = "breaks"
    error: type = KeyError

    def construct(self, instance):
        if instance.graph.num_ops == 15:
            raise self.error("one\ntwo")
        return run_heuristic("bfs", instance.graph, instance.cluster, instance.objective)


def test_errors_of_a_solver_name_it_and_the_graph():
    class Begins(HostSolver):
        name = "begins"

        def begin(self, instance):
            raise ZeroDivisionError("begun")

    message = r"breaks: failed for 'layered-15-0': KeyError: 'one\\+ntwo'; mend the solver"
    other = generate("layered", 16, seed=0)
    for graphs in ([GRAPH], [other, GRAPH]):
        with pytest.raises(SolverError, match=message) as caught:
            optimize_many(graphs, TWO, method=Breaks(), progress=False)
        assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(SolverError, match="begins: failed for 'layered-15-0': ZeroDivisionError: begun"):
        optimize(GRAPH, TWO, method=Begins(), evaluations=10)
    with pytest.raises(ConfigError, match="one"):
        optimize(GRAPH, TWO, method=Breaks(ConfigError))


def test_an_evaluation_goes_on_after_an_error_of_a_solver(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registry", dict(registry._registry))
    register(Entry("breaks", "Breaks", "x", Breaks))
    (tmp_path / "graphs").mkdir()
    for ops in (15, 16):
        save_graph(generate("layered", ops, seed=0), tmp_path / f"graphs/g{ops}.json")
    config = EvaluationConfig(
        graphs=str(tmp_path / "graphs"), methods=("breaks", "bfs"), other_seed=-1, limits=(), warm_up=False
    )
    run_evaluation(config, tmp_path / "out")
    rows = {row.title: row for row in report(tmp_path / "out").comparison.rows}
    (refusal,) = rows["Breaks"].refused.values()
    assert "breaks: failed for 'layered-15-0': KeyError" in refusal
    assert rows["Breaks"].graphs == 1
    assert [row.graphs for title, row in rows.items() if title != "Breaks"] == [2, 2]


def test_sources_outside_of_the_package_are_digested(tmp_path, monkeypatch):
    from regal_jax.solvers.sources import outside_sources

    monkeypatch.syspath_prepend(str(tmp_path))
    code = (
        "import dataclasses\nfrom regal_jax.heuristics import run_heuristic\n"
        "from regal_jax.solvers import Constructive\n\n\n@dataclasses.dataclass(frozen=True)\n"
        "class Mine(Constructive):\n    name = 'mine'\n\n    def construct(self, instance):\n"
        "        return run_heuristic({name!r}, instance.graph, instance.cluster, instance.objective)\n"
    )
    assert outside_sources(Auto()) == {}
    assert outside_sources(Made()).keys() == {f"{__name__}:Made"}
    nested = dataclasses.make_dataclass("Nested", ["inner"], frozen=True)(Made())
    assert outside_sources(nested).keys() == {f"{__name__}:Made"}
    found = []
    for name in ("bfs", "critical-path"):
        (tmp_path / "my_outside_solver.py").write_text(code.format(name=name))
        monkeypatch.delitem(sys.modules, "my_outside_solver", raising=False)
        importlib.invalidate_caches()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "dont_write_bytecode", True)
            module = importlib.import_module("my_outside_solver")
        (plan,) = optimize_many([GRAPH], TWO, method=module.Mine(), store=tmp_path / "kept", progress=False)
        wanted = run_heuristic(name, GRAPH, TWO)
        assert plan.makespan == wanted.makespan
        found.append((outside_sources(module.Mine())["my_outside_solver:Mine"], plan.makespan))
    assert found[0][0] != found[1][0]
    assert found[0][1] != found[1][1]


def test_sources_of_a_notebook_are_those_of_methods(monkeypatch):
    import linecache

    from regal_jax.solvers.sources import outside_sources

    digests = []
    notebook = types.ModuleType("notebook_cells")
    monkeypatch.setitem(sys.modules, "notebook_cells", notebook)
    for name in ("bfs", "critical-path", "bfs"):
        code = f"class Mine:\n    def construct(self, instance):\n        return {name!r}\n"
        # As IPython registers the text of a cell.
        linecache.cache["<cell>"] = (len(code), None, code.splitlines(keepends=True), "<cell>")
        exec(compile(code, "<cell>", "exec"), vars(notebook))
        digests += outside_sources(dataclasses.dataclass(notebook.Mine)()).values()
    assert digests[0] == digests[2] != digests[1]
    linecache.cache.pop("<cell>")


def test_errors_of_the_system_pass_through_a_solver():
    for error in (OSError, ModuleNotFoundError, MemoryError):
        with pytest.raises(error, match="one"):
            optimize(GRAPH, TWO, method=Breaks(error))


def test_what_a_solver_finishes_is_replayed():
    @dataclasses.dataclass(frozen=True)
    class Finishes(Searches):
        name = "finishes"
        finishes = True
        fault: str = ""

        def finish(self, graph, cluster, plan, evaluations, seconds):
            if self.fault:
                raise KeyError(self.fault)
            return dataclasses.replace(plan, lower_bound=plan.makespan)

    plan = run_heuristic("partition-dfs", GRAPH, TWO)
    with pytest.raises(PlanError, match="finishes: returned a plan that is not valid: the lower_bound is"):
        optimize(GRAPH, TWO, method=Finishes(plan), evaluations=10)
    with pytest.raises(SolverError, match="finishes: failed for 'layered-15-0': KeyError: 'x'"):
        optimize(GRAPH, TWO, method=Finishes(plan, fault="x"), evaluations=10)


def test_a_solver_returns_one_plan_for_each_graph():
    plan = run_heuristic("partition-dfs", GRAPH, TWO)
    assert optimize(GRAPH, TWO, method=Made((plan,))).makespan == plan.makespan
    with pytest.raises(PlanError, match="made: construct_all returned 1 plans for 2 graphs; return one each"):
        optimize_many([GRAPH, GRAPH], TWO, method=Made((plan,)))
    with pytest.raises(ConfigError, match="searches: begin returned a int; return a HostSearch"):
        optimize(GRAPH, TWO, method=Searches(begun=3), evaluations=10)
