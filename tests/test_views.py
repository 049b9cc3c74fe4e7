"""Text, HTML and other representations of graphs, clusters, plans and comparisons."""

import builtins
import dataclasses
import importlib
import types
import typing

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import instances

import regal_jax
from regal_jax import Cluster, ComputationGraph, GraphBuilder, Plan, compare, optimize, optimize_many
from regal_jax.api import names
from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, GraphError, MissingExtraError, PlanError
from regal_jax.experiments import jobs, make_method
from regal_jax.heuristics import HEURISTICS, run_heuristic
from regal_jax.importers import PROFILES, save_graph
from regal_jax.importers.roofline import find_profile
from regal_jax.plan import Objective
from regal_jax.solvers import solvers

TWO = Cluster.uniform(2, "16GiB", "blocking:latency=1,bandwidth=10")


@pytest.fixture(scope="module")
def graph():
    return generate("erdos-renyi", 300, seed=3)


@pytest.fixture(scope="module")
def plan(graph):
    return run_heuristic("critical-path", graph, TWO)


def test_reprs_are_short_and_name_what_matters(graph, plan):
    many = Cluster(tuple(range(1, 1025)))
    for thing in (graph, plan, TWO, many, [plan, plan]):
        assert len(repr(thing)) < 700
        assert "\n" not in repr(thing)
    assert repr(graph).startswith("<ComputationGraph 'erdos-renyi-300-3': ops 300, ")
    assert repr(plan).startswith("<Plan for 'erdos-renyi-300-3': 300 ops on 2 devices; makespan ")
    assert repr(TWO).startswith("<Cluster: 2 device")
    assert "16.00 GiB" in repr(TWO)


def test_html_is_a_table_and_escaped(graph, plan):
    odd = dataclasses.replace(graph, name="<b>&")
    for thing in (odd, dataclasses.replace(plan, graph_name="<b>&")):
        assert "<table>" in thing._repr_html_()
        assert "&lt;b&gt;&amp;" in thing._repr_html_()
        assert "<b>&" not in thing._repr_html_().replace("&lt;b&gt;&amp;", "")
    assert "16.00 GiB" in TWO._repr_html_()
    # The HTML contains every value of the summary.
    for line in str(plan).splitlines()[1:]:
        assert line.split("  ")[-1].strip() in plan._repr_html_()


def test_placement_of(plan):
    for op, device in zip(plan.op_names, plan.placement, strict=True):
        assert plan.placement_of(op) == device
    with pytest.raises(PlanError, match=r"no op 'op17x'; did you mean 'op17'\?"):
        plan.placement_of("op17x")


def test_dataframe(plan):
    frame = plan.to_dataframe()
    line = plan.timeline
    assert len(frame) == line.num_events
    assert frame["finish"].max() == plan.makespan
    assert (frame["event"] == "transfer").sum() == plan.num_transfers
    computes = frame[frame["event"] == "compute"].set_index("op")["device"]
    assert computes.to_dict() == dict(zip(plan.op_names, plan.placement.tolist(), strict=True))
    moves = frame[frame["event"] == "transfer"]
    assert moves["tensor"].str.match(r"op\d+:\d+").all()
    assert (moves["source"] != moves["device"]).all()
    assert frame["source"].isna().sum() == plan.timeline.num_events - plan.num_transfers


@pytest.mark.parametrize(
    ("package", "use"), [("pandas", Plan.to_dataframe), ("networkx", ComputationGraph.to_networkx)]
)
def test_without_the_extra_it_is_one_line(package, use, plan, graph, monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **options):
        if name.partition(".")[0] == package:
            raise ImportError(name)
        return real(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(MissingExtraError, match=r"pip install 'regal-jax\[interop\]'") as raised:
        use(plan if package == "pandas" else graph)
    assert "\n" not in str(raised.value)


def test_two_plans_side_by_side(graph, plan):
    other = run_heuristic("partition-dfs", graph, TWO)
    found = plan.compare(other)
    differs = plan.placement != other.placement
    assert found.moved.keys() == {op for op, d in zip(plan.op_names, differs, strict=True) if d}
    assert all(found.moved[op] == (plan.placement_of(op), other.placement_of(op)) for op in found.moved)
    assert found.speed_up == plan.makespan / other.makespan
    text = repr(found)
    assert f"{differs.sum()} of 300 ops" in text
    assert f"{100 * (other.makespan / plan.makespan - 1):+.1f} %" in text
    assert len(text.splitlines()) == 6
    assert "<table>" in found._repr_html_()
    same = plan.compare(plan)
    assert same.moved == {}
    assert same.speed_up == 1
    with pytest.raises(PlanError, match="place different ops"):
        plan.compare(run_heuristic("bfs", generate("erdos-renyi", 20, seed=0), TWO))


def test_methods_side_by_side():
    graph = generate("erdos-renyi", 40, seed=3)
    # Searches on the host compile nothing.
    found = compare(graph, TWO, ["bfs", "list-search", "auto"], evaluations=200, seed=2)
    assert list(found.plans) == ["bfs", "list-search", "auto"]
    alone = optimize(graph, TWO, method="list-search", evaluations=200, seed=2)
    assert found.plans["list-search"].timeline.op.tolist() == alone.timeline.op.tolist()
    for row, (method, plan) in zip(found.rows, found.plans.items(), strict=True):
        plan.verify(graph)
        assert (row["method"], row["makespan"], row["transfers"]) == (
            method,
            plan.makespan,
            plan.num_transfers,
        )
        assert row["above_bound"] == plan.makespan / plan.lower_bound - 1
        assert row["evaluations"] <= (0 if method == "bfs" else 200)
    best = found.plans[found.best].sort_key
    assert best == min(plan.sort_key for plan in found.plans.values())
    assert f"{found.best} (best)" in repr(found)
    assert len(repr(found).splitlines()) == 5
    assert "<table>" in found._repr_html_()
    tight = compare(graph, Cluster.uniform(2, 1), ["bfs"])
    assert "OVERFLOW" in repr(tight)
    for methods, said in (([], "at least one"), ("bfs", "give a list"), (["bfs", "bfs"], "occurs twice")):
        with pytest.raises(ConfigError, match=said):
            compare(graph, TWO, methods)


def test_a_plan_is_not_better_than_its_bound():
    builder = GraphBuilder("tenths")
    for i in range(10):
        builder.add_op(f"o{i}", runtime=0.1)
    found = compare(builder.build(), Cluster.uniform(1), ["bfs"])
    plan = found.plans["bfs"]
    # Both are sums of tenths, which are rounded differently.
    assert plan.makespan < plan.lower_bound
    assert (plan.gap, plan.optimal) == (0.0, True)
    assert "-0.0 %" not in repr(found)


@given(instances())
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
def test_networkx_and_back_is_the_same_graph(instance):
    graph, _ = instance
    there = graph.to_networkx()
    back = ComputationGraph.from_networkx(there)
    assert back.content_hash == graph.content_hash
    assert back.name == graph.name
    data = [d for *_, d in there.edges(data=True) if not d.get("control")]
    assert len(data) == len(graph.edge_op)


def test_networkx_keeps_odd_names_one_device_and_unread_outputs():
    b = GraphBuilder("odd", time_unit="ms")
    b.add_op("a", runtime=[2.0], outputs=[2**60, 0], keep=[1])
    b.add_op("a:0", runtime=[1.0], inputs=["a"], outputs=[3], allowed_devices=[0], colocation_group="g")
    b.add_op("a:0:0", runtime=[1.0], inputs=[(1, 0)], control_inputs=["a"], temp_bytes=5)
    graph = dataclasses.replace(b.build(), runtime=np.array([[2.0], [1.0], [1.0]]))
    assert ComputationGraph.from_networkx(graph.to_networkx()).content_hash == graph.content_hash


@pytest.mark.parametrize("one", [[2.0], (2.0,), np.array([2.0])])
def test_a_networkx_list_of_one_runtime_is_for_one_device_beside_numbers(one):
    networkx = importlib.import_module("networkx")
    own = networkx.DiGraph()
    own.add_node("a", runtime=one)
    own.add_node("b", runtime=3.0)
    own.add_edge("a", "b", bytes=4)
    assert ComputationGraph.from_networkx(own).runtime.tolist() == [[2.0], [3.0]]
    own.nodes["b"]["runtime"] = [3.0, 4.0]
    with pytest.raises(GraphError, match=r"graph 'networkx': ops give runtimes for \[1, 2\] devices"):
        ComputationGraph.from_networkx(own)


def test_a_networkx_graph_of_ones_own():
    networkx = importlib.import_module("networkx")
    own = networkx.DiGraph()
    own.add_node(1, runtime=2.0)
    own.add_edge(1, 2, bytes="1KiB")
    own.add_edge(1, 3)
    graph = ComputationGraph.from_networkx(own)
    assert graph.op_names == ("1", "2", "3")
    assert graph.runtime.tolist() == [2, 0, 0]
    assert graph.tensor_bytes.tolist() == [1024, 0]
    own.add_edge(3, 1)
    for bad, said in (
        (own, "cycle"),
        (networkx.Graph(), "give a DiGraph"),
        (7, "give a DiGraph or MultiDiGraph, got int"),
    ):
        with pytest.raises(GraphError, match=said):
            ComputationGraph.from_networkx(bad)
    own.remove_edge(3, 1)
    for outputs in (5, np.array([1, 2])):
        own.nodes[2]["outputs"] = outputs
        with pytest.raises(GraphError, match="node 2 cannot be read"):
            ComputationGraph.from_networkx(own)


@pytest.mark.parametrize("ops", [1, pytest.param(40, marks=pytest.mark.slow), 300])
def test_plots_of_graphs(ops, tmp_path, capsys):
    graph = generate("erdos-renyi", ops, seed=0) if ops > 1 else generate("chain", 1, seed=0)
    figure = graph.plot(tmp_path / "graph.png")
    assert (tmp_path / "graph.png").stat().st_size > 1000
    texts = [text.get_text() for ax in figure.axes for text in ax.texts]
    assert (set(graph.op_names) <= set(texts)) == (ops <= 60)
    save_graph(graph, tmp_path / "graph.json")
    assert main(["show", str(tmp_path / "graph.json"), "--plot", str(tmp_path / "shown.svg")]) == 0
    assert (tmp_path / "shown.svg").exists()


# Names ------------------------------------------------------------------------------------------


def literals(alias):
    return {value for arg in typing.get_args(alias) for value in (typing.get_args(arg) or (arg,))}


def test_literals_are_what_the_registries_hold():
    assert literals(names.SearchName) == {name for name, entry in solvers().items() if entry.searches}
    assert literals(names.HeuristicName) == set(HEURISTICS)
    assert literals(names.MethodName) == set(solvers())
    assert literals(names.ObjectiveName) == set(Objective)


def test_seed_is_the_word_and_key_still_means_it():
    graph = generate("erdos-renyi", 30, seed=0)
    options = {"evaluations": 100, "warm_start": False}
    a, b = optimize(graph, TWO, seed=5, **options), optimize(graph, TWO, key=5, **options)
    assert a.timeline.op.tolist() == b.timeline.op.tolist()
    assert a.provenance["seed"] == b.provenance["seed"] == 5
    many = optimize_many([graph], TWO, seed=5, progress=False, **options)[0]
    assert many.timeline.op.tolist() == a.timeline.op.tolist()
    with pytest.raises(ConfigError, match="seed: key is another name of it; give one"):
        optimize(graph, TWO, seed=5, key=5)
    with pytest.raises(ConfigError, match="seed: must be from 0"):
        optimize(graph, TWO, seed=-1)


def test_the_package_says_its_version_and_that_it_is_typed():
    resources = importlib.import_module("importlib.resources")
    metadata = importlib.import_module("importlib.metadata")
    assert (resources.files("regal_jax") / "py.typed").is_file()
    assert regal_jax.__version__ == metadata.version("regal-jax")
    assert dir(regal_jax) == sorted(regal_jax.__all__)
    assert "importlib" not in dir(regal_jax)
    for name in ("ConfigError", "PlanError", "ListSearchConfig", "PeakSearchConfig", "AnnealingConfig"):
        assert name in dir(regal_jax)


# Numbers without units, and names that nearly are -------------------------------------------------


def megabytes():
    b = GraphBuilder("large")
    b.add_op("a", runtime="1ms", outputs=["64MiB"])
    b.add_op("b", runtime="1ms", inputs=["a"])
    return b.build()


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        (Cluster.uniform(2, 16), "memory: the devices have at most 16 B, .* '16GiB'"),
        (Cluster((1e12, 1e12), bandwidth=300), "bandwidth: 300.0 is bytes a s, .* '300GB/s'"),
        (Cluster.uniform(2, "1GiB", "delay:bandwidth=300"), "bandwidth: 300 is bytes a s"),
        (Cluster.uniform(2, "1GiB", "blocking:latency=5"), "latency: 5 is in s, and all the work .* '5us'"),
        (Cluster.uniform(2, "1GiB", "blocking:latency=5us"), ""),
        (Cluster.uniform(2, "1GiB", "delay:bandwidth=300GB/s"), ""),
        (Cluster.uniform(2, "1MiB", "delay:bandwidth=300GB/s"), ""),
        (Cluster.uniform(1, "1GiB"), ""),
        (Cluster((1e12, 1e12), "delay", [[0, "20s"], ["7s", 0]]), ""),
        (Cluster((1e12, 1e12), "delay", [[0, "20s"], [7, 0]]), "latency: 7.0 is in s, and all the work"),
    ],
)
def test_numbers_without_units_are_warned_of(cluster, said, recwarn):
    optimize(megabytes(), cluster, method="bfs")
    found = [str(w.message) for w in recwarn if w.category is UserWarning]
    assert len(found) == bool(said)
    if said:
        with pytest.warns(UserWarning, match=said):
            optimize(megabytes(), cluster, method="bfs")
        assert recwarn[0].filename == __file__


def test_auto_goes_on_without_a_policy_that_is_not_there():
    graph = generate("erdos-renyi", 20, seed=0)
    three = Cluster.uniform(3, transfer="blocking:latency=1,bandwidth=10")
    with pytest.warns(UserWarning, match="policy: none is shipped for makespan on 3 devices") as caught:
        plan = optimize(graph, three, method="auto", policy="default", evaluations=100)
    assert len(caught) == 1
    plan.verify(graph)
    with pytest.raises(ConfigError, match="policy: none is shipped"):
        optimize(graph, three, method="brkga", policy="default", evaluations=100)


def test_profiles_in_any_case():
    for name, profile in PROFILES.items():
        assert find_profile(name.upper()) is profile
    assert find_profile("H100") is PROFILES["h100"]
    with pytest.raises(ConfigError, match="unknown device 'H1'"):
        find_profile("H1")


def test_heft_is_a_method():
    graph = generate("layered", 30, seed=2)
    for transfer in ("blocking:latency=1,bandwidth=10", "delay:latency=1,bandwidth=10", "free"):
        plan = optimize(graph, Cluster.uniform(3, transfer=transfer), method="heft")
        plan.verify(graph)
        assert plan.provenance["method"] == "heft"
    assert make_method("heft").name == "HEFT"


@pytest.mark.parametrize(
    ("name", "devices", "default"),
    [("idrs", 2, True), ("idrs", 4, False), ("gas", 2, False), ("regal-faithful", 4, False)],
)
def test_evaluate_offers_the_weights_that_ship(name, devices, default):
    config = types.SimpleNamespace(objective="makespan", devices=devices, policies={})
    with pytest.raises(ConfigError, match=rf"needs a policy: give .*--policy {name}=FILE") as raised:
        jobs._guided(name, {}, {}, config)
    assert (f"--policy {name}=regal-faithful for weights of the package" in str(raised.value)) == default
