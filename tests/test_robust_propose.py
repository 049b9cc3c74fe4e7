"""`propose`, `select` and the targets; the command."""

import json
import signal
import warnings

import jax
import numpy as np
import pytest
from test_robust_sources import Stub

import regal_jax
from regal_jax import Cluster, Plan, propose, select
from regal_jax.cli.main import main
from regal_jax.cli.propose import _CHOICES, _SOURCES, _TARGETS
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError, InfeasiblePlanWarning, PlanError
from regal_jax.graph import GraphBuilder
from regal_jax.plan import Objective, adapt_plan
from regal_jax.robust import (
    SOURCES,
    TARGETS,
    ListSchedules,
    SimulatedTarget,
    bandwidth_limited,
    latency_limited,
    make_target,
    noisy,
    speedup,
)

GRAPH = generate("gflownet-layered", 16, seed=0)
FREE = Cluster.uniform(3, transfer="free")


def listed(**options):
    return propose(GRAPH, FREE, **{"count": 30, "keep": 8, "source": "list-scheduling", **options})


def test_the_best_different_plans_are_kept():
    found = listed()
    assert len(found) == 8
    assert (found.proposed, found.source) == (30, "list-scheduling")
    assert len(found.candidates.distinct()) == 8
    assert found.distinct >= 8
    for plan, makespan in zip(found, found.makespans, strict=True):
        plan.verify(GRAPH)
        assert plan.makespan == makespan
    assert found[0].makespan == found.makespans.min()
    by_proxy = listed(choose="proxy").makespans
    assert (np.diff(by_proxy) >= 0).all()
    assert by_proxy[0] == found.makespans[0]
    assert by_proxy.sum() <= found.makespans.sum()
    np.testing.assert_allclose(found.speedups, GRAPH.runtime.sum() / found.makespans)
    assert found[0].makespan <= propose(GRAPH, FREE, count=1, source="list-scheduling")[0].makespan
    assert [plan.makespan for plan in listed()] == found.makespans.tolist()


@pytest.mark.parametrize("seed", range(4))
def test_the_first_plan_is_the_best_by_the_proxy_after_moves_too(seed):
    graph, cluster = generate("gflownet-layered", 20, seed=seed), Cluster.uniform(4, transfer="free")
    found = propose(graph, cluster, count=50, keep=20, source="random")
    assert found[0].makespan == found.makespans.min()
    assert len(found.candidates.distinct()) == len(found) == 20


@pytest.mark.parametrize(
    ("folder", "said"),
    [("/dev/null/x", "/x: cannot be written: Not a dir"), ("\0", "no file can have such a name"),
     (5, "give the name of a file, got int")],
)  # fmt: skip
def test_plans_that_cannot_be_saved(folder, said):
    with pytest.raises(FormatError, match=said):
        listed(count=2, keep=2).save(folder)


def test_it_shows_itself():
    found = listed()
    assert "8 plans of 'gflownet-layered-16-0' by list-scheduling" in repr(found)
    assert "graph-edit distance" in str(found)
    assert found._repr_html_().count("<tr>") == 6
    frame = found.to_dataframe()
    assert list(frame.columns) == ["makespan", "speedup", "transfers", "transfer_bytes", "largest_peak"]
    assert len(frame) == 8


def test_a_policy_of_ones_own_proposes():
    stub, key = Stub(), jax.random.key(7)
    found = propose(GRAPH, FREE, count=6, keep=4, source=stub, seed=key)
    assert (found.proposed, found.distinct, found.source) == (6, 1, "Stub")
    graph, cluster, count, given = stub.calls[0]
    assert (graph, cluster, count) == (GRAPH, FREE, 6)
    assert given == jax.random.split(key)[0]
    assert propose(GRAPH, FREE, count=2, source="ppo", weights=stub).source == "ppo"
    with pytest.raises(ConfigError, match="proposed no schedule"):
        propose(GRAPH, FREE, source=Stub(0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: propose("x", FREE), "graph: give a ComputationGraph .*got 'x'"),
        (lambda: propose([GRAPH], FREE), "graph: give a ComputationGraph"),
        (lambda: propose(GRAPH, 2), "cluster: give a Cluster, .* got 2"),
        (lambda: propose(GRAPH, None), "cluster: give a Cluster, .* got None"),
        (lambda: noisy(FREE, GRAPH), "graph: give a ComputationGraph"),
        (lambda: bandwidth_limited(FREE, GRAPH), "graph: give a ComputationGraph"),
        (lambda: latency_limited(GRAPH, 2), "cluster: give a Cluster"),
        (lambda: make_target("noisy", GRAPH, None), "cluster: give a Cluster"),
        (lambda: SimulatedTarget("n", FREE, GRAPH), "graph: give a ComputationGraph"),
    ],
)
def test_what_is_no_graph_and_no_cluster_is_refused(call, message):
    with pytest.raises(ConfigError, match=message) as error:
        call()
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("proposed", "kind", "message"),
    [
        (None, ConfigError, "source: Mine returned NoneType; return two arrays"),
        ((1,), ConfigError, "source: Mine returned 1 values; return two arrays"),
        ((1, 2, 3), ConfigError, "source: Mine returned 3 values; return two arrays"),
        (np.array(2), ConfigError, "source: Mine returned ndarray; return two arrays"),
        ({"a": 1, "b": 2}, ConfigError, "source: Mine returned dict; return two arrays"),
        ((None, None), PlanError, r"sequence has shape \(\)"),
        (([[0, 1], [0]], [[0, 0], [0, 0]]), PlanError, "sequence has rows of different lengths"),
    ],
)
def test_what_a_source_returns_is_checked(proposed, kind, message):
    class Mine:
        def propose(self, graph, cluster, count, key):
            return proposed

    with pytest.raises(kind, match=message) as error:
        propose(GRAPH, FREE, source=Mine())
    assert "\n" not in str(error.value)


def test_what_a_source_gets_wrong_is_said():
    class Wrong:
        def propose(self, graph, cluster, count, key):
            return np.zeros((1, graph.num_ops), int), np.zeros((1, graph.num_ops), int)

    with pytest.raises(PlanError, match="sequence 0 does not name every op once"):
        propose(GRAPH, FREE, source=Wrong())


def test_plans_that_fit_go_first():
    builder = GraphBuilder("memory")
    for i in range(4):
        builder.add_op(f"op{i}", runtime=1.0, outputs=[10], keep=[0])
    graph = builder.build()
    found = propose(graph, Cluster([40, 10], "free"), count=200, keep=100, source="random")
    fits = [plan.feasible for plan in found]
    assert any(fits)
    assert not all(fits)
    assert fits == sorted(fits, reverse=True)
    with pytest.warns(InfeasiblePlanWarning, match="no plan can fit"):
        propose(graph, Cluster([10, 10], "free"), count=5, source="random")


@pytest.mark.parametrize(
    "options",
    [
        {"count": 0},
        {"keep": 0},
        {"evaluations": 0},
        {"choose": "best"},
        {"choose": np.array([1, 2])},
        {"seed": -1},
        {"seed": 1.5},
    ],
)
def test_numbers_that_cannot_be_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        listed(**options)


@pytest.mark.parametrize("source", ["list-scheduling", "random", "gflownet", ListSchedules()])
def test_a_source_without_a_budget_takes_none(source):
    weights = {"weights": "default"} if source == "gflownet" else {}
    with pytest.raises(ConfigError, match=r"evaluations: .* (takes none|has its own); leave it out"):
        propose(GRAPH, FREE, source=source, evaluations=5, **weights)


@pytest.mark.parametrize("source", ["auto", "List-Scheduling", "random", "brkga", "ppo", ListSchedules()])
def test_a_source_without_a_temperature_takes_none(source):
    with pytest.raises(ConfigError, match=r"temperature: .* (takes none|has its own); leave it out"):
        propose(GRAPH, FREE, source=source, temperature=0.5)


def test_blocking_transfers_are_proposed_for_as_well():
    found = listed(count=5)
    plan = propose(GRAPH, Cluster.uniform(3, transfer="blocking:latency=1us"), count=5, source="random")[0]
    plan.verify(GRAPH)
    assert plan.num_transfers > 0
    assert found[0].cluster == FREE


# Targets.


@pytest.mark.parametrize("make", [noisy, bandwidth_limited, latency_limited])
def test_a_target_agrees_with_the_exact_replay(make):
    found, target = listed(), make(GRAPH, FREE)
    for plan, value in zip(found, target.measure(found.plans), strict=True):
        moved = Plan.from_events(target.graph, target.cluster, plan.placement, plan.timeline.op)
        assert value == moved.makespan == target(plan)
    np.testing.assert_allclose(
        target.speedups(found.candidates), target.graph.runtime.sum() / target.measure(found.plans)
    )


def test_delays_have_the_mean_that_they_say():
    moved = GRAPH.tensor_bytes[np.unique(GRAPH.edge_tensor)]
    mean, runtime = moved.mean(), GRAPH.runtime.mean()
    for make, of_bytes in ((bandwidth_limited, 0.9), (latency_limited, 0.1)):
        cluster = make(GRAPH, FREE, delay=3.0).cluster
        fixed, whole = (cluster.transfer_time(size, GRAPH.time_unit) for size in (0.0, mean))
        assert whole == pytest.approx(3 * runtime)
        assert (whole - fixed) / whole == pytest.approx(of_bytes)
    none = latency_limited(GRAPH, FREE, delay=0.0)
    found = listed()
    np.testing.assert_array_equal(none.measure(found.plans), found.makespans)


def test_a_graph_without_data_has_targets():
    builder = GraphBuilder("free")
    builder.add_op("a")
    graph = builder.build()
    plan = propose(graph, FREE, count=2, source="random")[0]
    for name in TARGETS:
        assert make_target(name, graph, FREE)(plan) == 0
    np.testing.assert_array_equal(speedup(graph, np.zeros(2)), [1, 1])


def test_noise_is_a_factor_of_mean_one_by_its_seed():
    graph = generate("gflownet-erdos-renyi", 400, seed=0)
    factor = noisy(graph, FREE, seed=1, scale=0.5).graph.runtime / graph.runtime
    assert factor.mean() == pytest.approx(1, abs=0.1)
    assert factor.std() == pytest.approx(0.5, abs=0.12)
    again, other = (noisy(graph, FREE, seed=seed).graph.runtime / graph.runtime for seed in (1, 2))
    np.testing.assert_array_equal(factor, again)
    assert (factor != other).all()
    target = noisy(graph, FREE, scale=0.0).graph
    np.testing.assert_allclose(target.runtime, graph.runtime)
    np.testing.assert_array_equal(noisy(graph, FREE).graph.tensor_bytes, graph.tensor_bytes)


def test_targets_refuse_plans_that_are_not_theirs():
    target, found = make_target("latency", GRAPH, FREE), listed()
    with pytest.raises(PlanError, match="other ops"):
        target(propose(generate("chain", 3, 0), FREE, count=1, source="random")[0])
    with pytest.raises(PlanError, match="has 3 devices, a plan 2"):
        target(adapt_plan(found[0], GRAPH, Cluster.uniform(2, transfer="free")))
    assert target.measure([]).shape == (0,)
    for name in ("other", np.array([1, 2]), None):
        with pytest.raises(ConfigError, match=r"target: unknown .*; use one of noisy"):
            make_target(name, GRAPH, FREE)
    with pytest.raises(ConfigError, match="delay"):
        latency_limited(GRAPH, FREE, delay=-1)


# The choice.


def test_the_best_on_the_target_is_chosen():
    found = listed()
    numbers = dict(zip(found, [5.0, 3.0, 9.0, 3.0, np.inf, 8.0, 4.0, 1.0], strict=True))
    chosen = select(found, lambda plan: numbers[plan])
    assert (chosen.index, chosen.best, chosen.gain) == (7, 1.0, 5.0)
    assert chosen.plan is found[7]
    three = select(found, lambda plan: numbers[plan], 3)
    assert (three.index, len(three.tried)) == (1, 3)
    np.testing.assert_array_equal(three.measured, [5, 3, 9])
    assert "Plan 1 of 3" in repr(three)
    assert three._repr_html_().count("<tr>") == 4
    # Plans of the caller, in any order.
    mine = select(list(found)[::-1], lambda plan: numbers[plan], k=2)
    assert set(mine.tried) <= set(found)
    assert mine.tried[0].objective_value == found.makespans[0]


def test_a_target_is_asked_at_once_or_by_name():
    found = listed()
    target = make_target("bandwidth", GRAPH, FREE)
    assert select(found, target).best == select(found, "bandwidth").best == target.measure(found.plans).min()
    noise = select(found, "noisy", 4)
    np.testing.assert_array_equal(noise.measured, noisy(GRAPH, FREE).measure(found.plans[:4]))


def test_gains_that_are_infinite():
    found = listed()

    def gain(*numbers):
        return select(found, lambda plan: numbers[found.plans.index(plan)], len(numbers)).gain

    assert gain(np.inf, 2.0) == gain(1.0, 0.0) == gain(np.inf, 0.0) == np.inf
    assert gain(0.0, 1.0) == gain(0.0, 0.0) == 1.0


def test_plans_that_cannot_be_run_are_not_chosen():
    with pytest.raises(ConfigError, match="can run none of the 8 plans that were tried"):
        select(listed(), lambda _: np.inf)


class Returns:
    """A target whose measurements are made by a function of the plans."""

    def __init__(self, function):
        self.measure = function


@pytest.mark.parametrize("make", [np.array, jax.numpy.asarray, tuple, iter])
def test_arrays_are_measurements(make):
    found = listed(keep=3)
    assert select(found, Returns(lambda _: make([3.0, 1.0, 2.0]))).index == 1
    numbers = iter([np.array(3.0), jax.numpy.float32(1), np.array(2)])
    assert select(found, lambda _: next(numbers)).index == 1


@pytest.mark.parametrize(
    "value", [None, 2.0, np.array(2.0), np.ones((3, 1)), {0: 1.0, 1: 2.0, 2: 3.0}, {1.0, 2.0, 3.0}, "123"]
)
def test_measurements_that_are_no_sequence_are_refused(value):
    with pytest.raises(ConfigError, match=r"measure returned .*; return a sequence of numbers") as error:
        select(listed(keep=3), Returns(lambda _: value))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("target", [3, None, SimulatedTarget, [1.0], Returns(3)])
def test_what_is_no_target_is_refused(target):
    with pytest.raises(ConfigError, match=r"target: (give a function of a plan|SimulatedTarget is a class)"):
        select(listed(), target)


def test_what_are_no_plans_is_refused():
    for plans in (None, 1, [1, 2], "plans", listed()[0]):
        with pytest.raises(ConfigError, match="plans: give ") as error:
            select(plans, lambda _: 1.0)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "value", [float("nan"), -1.0, "2", None, True, 10**400, np.ones(1), np.array(True), np.ones((9, 9))]
)
def test_measurements_that_are_no_time_are_refused(value):
    with pytest.raises(ConfigError, match="for plan 0; return seconds") as error:
        select(listed(), lambda _: value)
    assert "\n" not in str(error.value)


def test_select_refuses_what_cannot_be():
    found = listed()
    with pytest.raises(ConfigError, match="there are none"):
        select([], lambda _: 1.0)
    with pytest.raises(ConfigError, match="k:"):
        select(found, "latency", 0)
    with pytest.raises(ConfigError, match="unknown 'other'"):
        select(found, "other")
    with pytest.raises(ConfigError, match="needs the plans of propose"):
        select(list(found), "latency")

    class Half(SimulatedTarget):
        def measure(self, plans):
            return super().measure(plans)[1:]

    with pytest.raises(ConfigError, match="7 measurements of 8 plans"):
        select(found, Half("half", GRAPH, FREE))


# The command.


def run(*arguments):
    return main(["propose", *map(str, arguments)])


@pytest.fixture
def graph_file(tmp_path):
    path = tmp_path / "graph.json"
    regal_jax.save_graph(GRAPH, path)
    return path


def test_the_command_saves_all_plans_and_the_best_on_the_target(graph_file, tmp_path, capsys):
    out = tmp_path / "plans"
    options = ["--source", "list-scheduling", "--count", 20, "--keep", 5, "--target", "latency"]
    assert run(graph_file, *options, "--k", 4, "--out-dir", out) == 0
    said = capsys.readouterr().out
    assert "on the latency target" in said
    assert sorted(path.name for path in out.iterdir()) == [
        "best.json",
        *(f"plan-00{i}.json" for i in range(5)),
    ]
    plans = [Plan.load(out / f"plan-00{i}.json") for i in range(5)]
    cluster = Cluster.uniform(4, transfer="free")
    target = make_target("latency", GRAPH, cluster)
    best = Plan.load(out / "best.json")
    assert target(best) == min(target.measure(plans[:4]))
    assert json.loads((out / "plan-000.json").read_text())["objective"] == str(Objective.MAKESPAN)
    assert run(graph_file, *options, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_ctrl_c_when_the_plans_are_there_lets_them_be_saved(graph_file, tmp_path, monkeypatch):
    out = tmp_path / "plans"
    options = ["--source", "list-scheduling", "--count", 20, "--quiet", "--out-dir", out]
    assert run(graph_file, *options, "--keep", 3) == 0
    verify, calls = Plan.verify, []

    def pressing(plan, graph):
        calls.append(plan)
        if len(calls) == 5:  # The earlier run's plans come first.
            signal.raise_signal(signal.SIGINT)
        verify(plan, graph)

    monkeypatch.setattr(Plan, "verify", pressing)
    assert run(graph_file, *options, "--keep", 5, "--target", "latency") == 0
    assert len(list(out.iterdir())) == 6


def test_the_command_replaces_an_earlier_run_and_nothing_else(graph_file, tmp_path, capsys):
    out = tmp_path / "plans"
    options = ["--source", "list-scheduling", "--count", 20, "--quiet", "--out-dir", out]
    assert run(graph_file, *options, "--keep", 5, "--target", "latency") == 0
    (out / "plan-of-mine.txt").write_text("mine")
    first = (out / "plan-000.json").read_bytes()
    assert run(graph_file, *options, "--keep", 3, "--seed", 5) == 0
    names = ["plan-000.json", "plan-001.json", "plan-002.json", "plan-of-mine.txt"]
    assert sorted(path.name for path in out.iterdir()) == names
    (out / "plan-007.json").write_text("{}")
    for more, message in (
        (["--devices", 3], "plan-000.json' holds a plan for another cluster, and is left as it is"),
        ([], "plan-007.json' holds no plan that can be read"),
    ):
        assert run(graph_file, *options, "--keep", 1, *more) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
        assert sorted(path.name for path in out.iterdir()) == sorted([*names, "plan-007.json"])
    assert (out / "plan-000.json").read_bytes() == first


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", 3], "--k: goes with --target"),
        (["--source", "ppo", "--weights", "no-file"], "no-file"),
        (["--source", "random", "--weights", "x"], "random takes none"),
        (["--source", "gflownet", "--temperature", 0], "temperature"),
        (["--temperature", 1], "temperature: scenario-runs takes none; leave it out, or use gflownet"),
        (["--source", "ppo", "--temperature", 1], "temperature: ppo takes none"),
        (["--source", "random", "--evaluations", 1], "evaluations: random takes none; leave it out, or use"),
        (["--weights", "default", "--evaluations", 1], "evaluations: gflownet takes none"),
    ],
)
def test_the_command_says_what_is_wrong(graph_file, options, message, capsys):
    assert run(graph_file, *options) == 2
    assert message in capsys.readouterr().err


def test_an_empty_folder_name_is_refused(graph_file, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        run(graph_file, "--out-dir", "")
    err = capsys.readouterr().err
    assert "argument --out-dir: is empty; give a folder" in err
    assert err.count("\n") == 1


def test_the_command_says_that_nothing_fits(graph_file, capsys):
    options = ["--source", "random", "--count", 2, "--memory", "1"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert run(graph_file, *options) == 3
    err = capsys.readouterr().err
    assert err.startswith("regal-jax propose: no plan")
    assert "overflow" in err
    assert err.count("\n") == 1


def test_the_command_knows_every_name():
    assert set(_SOURCES) == {"auto", *SOURCES}
    assert _TARGETS == TARGETS
    for choice in _CHOICES:
        assert len(listed(choose=choice)) == 8
