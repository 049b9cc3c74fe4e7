"""Searches that end at a lower bound, memory that no plan can fit, and how both are reported."""

import dataclasses
import itertools
import math
import re
import warnings

import pytest
from brute_force import brute_force
from hypothesis import HealthCheck, given, settings
from strategies import instances

from regal_jax import Cluster, GraphBuilder, optimize, optimize_many
from regal_jax.api import many
from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.errors import InfeasiblePlanWarning, PlanError
from regal_jax.importers import save_graph
from regal_jax.plan import Plan, why_impossible
from regal_jax.runtime.deadline import Deadline
from regal_jax.solvers.guide import OrderGuide
from regal_jax.solvers.loop import call

ONE = Cluster.uniform(1, transfer="blocking:latency=0,bandwidth=inf")


def tenths(ops=1000):
    """A chain whose float32 sum is off by some 1e-5."""
    b = GraphBuilder("tenths")
    for i in range(ops):
        b.add_op(f"o{i}", runtime=0.1, inputs=[f"o{i - 1}"] if i else [], outputs=[4])
    return b.build()


def few_bytes_beside_many():
    """A graph in whose peaks a few bytes are less than float32 can tell; the lowest is 20 000 001."""
    b = GraphBuilder("q")
    large = 10**7
    b.add_op("a", runtime=1, outputs=[large])
    b.add_op("b", runtime=1, outputs=[7])
    b.add_op("c", runtime=1, outputs=[large])
    b.add_op("d", runtime=1, outputs=[5])
    b.add_op("e", runtime=1, outputs=[5], inputs=["d"])
    b.add_op("f", runtime=1, outputs=[1], inputs=["a", "c"])
    b.add_op("g", runtime=1, outputs=[large], inputs=["b", "d", "f"])
    return b.build()


@pytest.mark.parametrize("method", ["brkga", "annealing"])
@pytest.mark.parametrize("warm_start", [True, False])
def test_compiled_searches_end_where_they_cannot_tell_a_peak_from_the_bound(method, warm_start):
    graph, options = few_bytes_beside_many(), {"objective": "peak-memory", "evaluations": 2000}
    plan = optimize(graph, ONE, method=method, warm_start=warm_start, **options)
    (peak,) = plan.peak_memory.tolist()
    assert peak < plan.lower_bound * (1 + 2**-21)
    assert plan.optimal == (peak == plan.lower_bound == 20_000_001)
    assert plan.provenance["stopped"] == ("optimal" if plan.optimal else "target")
    assert plan.provenance["evaluations"] <= 200


@pytest.mark.parametrize("method", ["auto", "order-search", "depth-first-dp"])
@pytest.mark.parametrize("warm_start", [True, False])
def test_peaks_are_optimal_to_the_byte(method, warm_start):
    graph, options = few_bytes_beside_many(), {"objective": "peak-memory", "evaluations": 2000}
    if method != "depth-first-dp":
        options["warm_start"] = warm_start
    plan = optimize(graph, ONE, method=method, **options)
    assert plan.peak_memory.tolist() == [20_000_001]
    assert plan.optimal
    assert plan.gap == 0
    worse = optimize(graph, ONE, method="bfs", objective="peak-memory")
    assert worse.peak_memory[0] > 20_000_001
    assert not worse.optimal
    assert worse.gap < 1e-5
    assert re.search(r"objective    peak-memory: [0-9.e-]+ % above the lower bound", str(worse))
    assert "0.0000 %" not in str(worse)


@pytest.mark.parametrize("unit", [1, 10, 100, 1000])
def test_bounds_and_targets_for_peaks_end_compiled_searches(unit):
    """The device compares in float32, which cannot tell the largest of these peaks from one byte less."""
    b = GraphBuilder("pair")
    b.add_op("a", runtime=1, outputs=[unit * 40_000])
    b.add_op("b", runtime=1, outputs=[unit * 40_001])
    b.add_op("c", runtime=1, outputs=[1], inputs=["a"])
    b.add_op("d", runtime=1, outputs=[1], inputs=["b"])
    graph = b.build()
    low = unit * 40_001 + 1
    for target in (low, low - 1):
        plan = optimize(
            graph,
            ONE,
            method="brkga",
            objective="peak-memory",
            evaluations=500,
            warm_start=False,
            target=target,
        )
        assert plan.peak_memory.tolist() == [low]
        assert plan.provenance["stopped"] == "optimal"
        assert plan.provenance["evaluations"] <= 200


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize("method", ["brkga", "annealing", "auto"])
def test_on_one_device_a_makespan_is_optimal_at_once(method, warm_start):
    plan = optimize(tenths(), ONE, method=method, evaluations=10**7, warm_start=warm_start)
    assert plan.optimal
    assert plan.provenance["stopped"] == "optimal"
    assert plan.provenance["evaluations"] <= (0 if warm_start else 200)


@pytest.mark.parametrize("warm_start", [True, False])
@pytest.mark.parametrize(
    ("method", "objective"),
    [
        ("brkga", "makespan"),
        ("brkga", "peak-memory"),
        ("annealing", "makespan"),
        ("list-search", "makespan"),
        ("peak-search", "peak-memory"),
        ("auto", "peak-memory"),
    ],
)
def test_several_devices_end_at_the_bound_too(method, objective, warm_start):
    """Independent ops of equal cost: even shares meet both bounds, and many placements have even shares."""
    b = GraphBuilder("even")
    for i in range(6):
        b.add_op(f"o{i}", runtime=0.1, outputs=[7], keep=[0])
    graph = b.build()
    options = {"objective": objective, "method": method, "warm_start": warm_start}
    plan = optimize(graph, Cluster.uniform(3), evaluations=10**7, time_limit=200, **options)
    assert plan.provenance["stopped"] == "optimal"
    assert plan.provenance["evaluations"] < 10**6
    assert math.isclose(plan.objective_value, 0.2 if objective == "makespan" else 14)


def test_graphs_of_a_batch_that_are_solved_leave_the_others_their_search():
    graphs = [tenths(60), generate("erdos-renyi", 40, seed=0), tenths(61)]
    cluster = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")
    plans = optimize_many(graphs, cluster, evaluations=300, progress=False)
    assert [plan.provenance["stopped"] for plan in plans] == ["optimal", "budget", "optimal"]
    assert plans[1].provenance["evaluations"] > 200
    alone = optimize(graphs[1], cluster, evaluations=300)
    assert alone.timeline.op.tolist() == plans[1].timeline.op.tolist()


def test_a_plan_just_above_the_bound_is_not_optimal():
    b = GraphBuilder("almost")
    for name, runtime in (("a", 1.0), ("b", 1.0 + 1e-5), ("c", 1.0 - 1e-5)):
        b.add_op(name, runtime=runtime)
    b.add_op("d", runtime=1.0 + 1e-5)
    cluster = Cluster.uniform(2)
    plan = optimize(b.build(), cluster, evaluations=300)
    assert plan.objective_value > plan.lower_bound * (1 + 1e-6)
    assert not plan.optimal
    assert plan.provenance["stopped"] == "budget"


@given(instances())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_what_is_said_to_be_impossible_is(instance):
    """Compared with all plans of tiny graphs, for capacities from 0 to more than enough."""
    graph, cluster = instance
    if graph.num_ops > 4 or cluster.num_devices > 2:
        return
    everything = int(graph.tensor_bytes.sum() + graph.temp_bytes.sum())
    for share in (0.0, 0.3, 0.6, 1.0):
        few = dataclasses.replace(cluster, memory=(everything * share,) * cluster.num_devices)
        best = brute_force(graph, few, "peak-memory")
        if why_impossible(graph, few):
            assert not best.feasible
        assert bool(best.impossible) == (not best.feasible and bool(why_impossible(graph, few)))


def two_ops(size=60):
    """Two ops that need ``size`` bytes each; one after another they hold twice that on one device."""
    b = GraphBuilder("two")
    for name in "ab":
        b.add_op(name, runtime=1.0, outputs=[size], keep=[0])
    return b.build()


def test_impossible_and_not_found_are_told_apart(tmp_path):
    graph = two_ops()
    for memory, reason in (
        ((59, 59), "some device must hold 60 B at a time, and none has more than 59 B"),
        ((80, 10), "120 B are kept to the end, and all devices together have 90 B"),
        ((100, 20), ""),
        ((110,), "some device must hold 120 B"),
    ):
        with pytest.warns(InfeasiblePlanWarning, match="can fit" if reason else "no plan found") as caught:
            plan = optimize(graph, Cluster(memory), evaluations=50)
        assert len(caught) == 1
        assert reason in str(caught[0].message)
        assert caught[0].filename == __file__
        assert not plan.feasible
        assert plan.impossible.startswith(reason)
        assert bool(plan.impossible) == bool(reason)
        assert ("no plan fits the memory" in str(plan)) == bool(reason)
        plan.save(tmp_path / "plan.json")
        back = Plan.load(tmp_path / "plan.json")
        back.verify(graph)
        assert back.impossible == plan.impossible
    lied = dataclasses.replace(plan, cluster=Cluster((1000,)))
    with pytest.raises(PlanError, match="no plan fits the memory, which is not proven"):
        lied.verify(graph)


def test_an_op_too_large_for_the_devices_that_it_may_use():
    b = GraphBuilder("pinned")
    b.add_op("a", outputs=[60], allowed_devices=[1])
    assert why_impossible(b.build(), Cluster((100, 59))).startswith("op 'a' needs 60 B")
    assert why_impossible(b.build(), Cluster((100, 60))) == ""


def test_one_warning_for_many_and_none_where_all_is_well():
    said = "2 of 3 plans do not fit the memory; no plan for 'two' can"
    with pytest.warns(InfeasiblePlanWarning, match=said) as w:
        optimize_many(
            [two_ops(), two_ops(10), two_ops(70)], Cluster.uniform(1, 50), evaluations=50, progress=False
        )
    assert len(w) == 1
    with pytest.warns(InfeasiblePlanWarning):
        optimize(two_ops(), Cluster.uniform(1, 50), method="bfs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        optimize(two_ops(), Cluster.uniform(1, 500), evaluations=50)


def test_the_command_says_which_of_both_it_is_and_exits_3(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_graph(two_ops(), "g.json")
    for memory, said in (("59B", "no plan can fit the memory: some device must hold 60 B"),
                         ("100B,20B", "no plan found fits the memory; the best overflows")):  # fmt: skip
        assert main(["optimize", "g.json", "--memory", memory, "--method", "bfs", "--quiet"]) == 3
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert said in err


# Improvements -------------------------------------------------------------------------------------

TWO = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")


@pytest.mark.parametrize("contract", [False, True])
@pytest.mark.parametrize("method", ["brkga", "auto"])
def test_improvements_are_told_as_they_are_found(method, contract):
    graph, seen = generate("regal-watts-strogatz", 80, seed=3), []
    options = {"evaluations": 3000, "method": method, "contract": contract}
    plan = optimize(graph, TWO, **options, on_improvement=seen.append)
    assert len(seen) > 2
    for one in seen:
        one.plan.verify(graph)
        assert one.objective_value == one.plan.makespan
    for a, b in itertools.pairwise(seen):
        assert b.plan.sort_key < a.plan.sort_key
        assert b.evaluations >= a.evaluations
        assert b.seconds >= a.seconds
    assert seen[0].evaluations == 0
    # The search compares in float32 and may keep any of several plans that are equal there.
    assert math.isclose(seen[-1].objective_value, plan.makespan, rel_tol=1e-6)
    assert seen[-1].evaluations <= 3000
    quiet = optimize(graph, TWO, **options)
    assert quiet.timeline.op.tolist() == plan.timeline.op.tolist()


def test_improvements_of_many_come_with_their_place():
    graphs, last = [generate("erdos-renyi", n, seed=n) for n in (20, 30, 40)], {}
    plans = optimize_many(
        graphs, TWO, evaluations=500, progress=False, on_improvement=lambda i, found: last.update({i: found})
    )
    assert sorted(last) == [0, 1, 2]
    for i, found in last.items():
        found.plan.verify(graphs[i])
        assert math.isclose(found.objective_value, plans[i].makespan, rel_tol=1e-6)


@pytest.mark.parametrize("after", [0, 300])
def test_what_the_callback_raises_ends_the_call(after):
    class Enough(Exception):
        pass

    def stop(found):
        if found.evaluations >= after:
            raise Enough

    graph = generate("erdos-renyi", 60, seed=1)
    with pytest.raises(Enough):
        optimize(graph, TWO, evaluations=20000, on_improvement=stop, warm_start=not after)
    assert optimize(graph, TWO, evaluations=100).feasible


def test_the_network_of_a_guide_is_part_of_the_time_limit(monkeypatch):
    gone, given = [0.0], []

    class Enough(Exception):
        pass

    class Clock(Deadline):
        @property
        def left(self):
            return 100 - gone[0]

    def propose(*_):
        gone[0] = 30.0

    def solve(problem, keys, stopping, *_, **options):
        given.append(stopping.seconds)
        raise Enough

    monkeypatch.setattr(many, "Deadline", Clock)
    monkeypatch.setattr(call, "solve_in_parts", solve)
    monkeypatch.setattr(OrderGuide, "propose", propose)
    options = {"objective": "peak-memory", "method": "brkga", "policy": "topoformer", "warm_start": False}
    with pytest.raises(Enough):
        optimize(generate("ordering-layered", 8, 0), ONE, time_limit=100, **options)
    assert given == [70.0]
