"""The suite of orders on one device: its cases, runs, resumption and report."""

import collections
import dataclasses
import json
import pathlib
import re
import tomllib
from typing import Any

import numpy as np
import pytest
from flax import nnx

from regal_jax import optimize
from regal_jax.cli import main
from regal_jax.datasets.layered import layered_graph
from regal_jax.errors import ConfigError
from regal_jax.experiments import EvaluationConfig, report, run_evaluation
from regal_jax.experiments import method as method_module
from regal_jax.experiments.graphs import evaluation_tasks
from regal_jax.experiments.jobs import make_jobs
from regal_jax.experiments.ordering_paper import REPORTED, reported_orders
from regal_jax.experiments.topological_order import ApproximateDpWithin, layered_cases, real_cases
from regal_jax.graph import Cluster
from regal_jax.heuristics import approximate_dp
from regal_jax.importers import save_graph
from regal_jax.ordering import ENCODERS, Decoder, Topoformer, TopoformerConfig, save_topoformer
from regal_jax.plan import Objective, Plan, lower_bound
from regal_jax.problem import Bucket
from regal_jax.solvers.protocol import Instance

ROOT = pathlib.Path(__file__).parents[1]
NETWORK = TopoformerConfig(layers=1, width=8, head_width=4, heads=(1, 0, 0, 1, 0, 0, 1), eigenvectors=2)
METHODS = ("depth-first-dp", "random-orders", "partition-dfs", "bfs", "xla-best", "lpmf", "order-search")
OPTIONS = {
    "approximate-dp": {"settings": {"width": 30}},
    "depth-first-dp": {"settings": {"time_limit": 0.05}},
}
SMALL = {
    "suite": "topological-order", "sizes": (16, 12), "cases": 2, "methods": METHODS, "options": OPTIONS
}  # fmt: skip


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "network.safetensors"
    # The seed differs from that of the controls.
    save_topoformer(path, Topoformer(NETWORK, rngs=nnx.Rngs(7)))
    return str(path)


def results(folder):
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert not [line for line in lines if "error" in line]
    return lines


@pytest.fixture(scope="module")
def made(weights, tmp_path_factory):
    """An evaluation of four graphs: its folder and settings."""
    out = tmp_path_factory.mktemp("orders")
    config = EvaluationConfig(**SMALL, weights={"topoformer": weights}, warm_up=False)
    outcome = run_evaluation(config, out)
    assert outcome.finished
    assert not outcome.left_out
    return out, config


def test_layered_graphs_are_those_of_their_seeds_and_none_of_training():
    cases = list(layered_cases([12, 16], 2))
    assert [name for name, _ in cases] == ["layered 12"] * 2 + ["layered 16"] * 2
    assert [graph.num_ops for _, graph in cases] == [12, 12, 16, 16]
    for (_, graph), seed in zip(cases, ([0, 2, 12, 0], [0, 2, 12, 1], [0, 2, 16, 0]), strict=False):
        assert graph.content_hash == layered_graph(np.random.default_rng(seed), graph.num_ops).content_hash
    # A longer list begins with the same graphs, and a later one with others.
    assert next(layered_cases([12], 5))[1].content_hash == cases[0][1].content_hash
    assert next(layered_cases([12], 1, 1))[1].content_hash == cases[1][1].content_hash


def test_real_graphs_are_forward_graphs_in_the_classes_of_the_paper(tmp_path):
    found = [(name, graph.num_ops) for name, graph in real_cases("sample", "test", 0)]
    assert len(found) == 8
    for name, ops in found:
        low, high = map(int, re.findall(r"\d+", name))
        assert low <= ops < high
    first = [(name, graph.num_ops) for name, graph in real_cases("sample", "test", 3)]
    assert first == found[:3]
    for ops in (199, 200, 500, 700, 1000, 1001):
        save_graph(
            layered_graph(np.random.default_rng(0), ops, name=f"g{ops:04}"), tmp_path / f"g{ops:04}.json"
        )
    classes = {graph.num_ops: name for name, graph in real_cases(str(tmp_path), "test", 0)}
    assert classes == {
        200: "real 200-500", 500: "real 500-700", 700: "real 700-1000", 1000: "real 700-1000"
    }  # fmt: skip


def test_every_method_has_every_graph_and_every_value_is_replayed(made):
    out, config = made
    tasks = {task.key: task for task in evaluation_tasks(config)}
    assert len(tasks) == 4
    lines = results(out)
    jobs = {job.key: job for job in make_jobs(config).jobs}
    assert len({(line["key"], line["graph"]) for line in lines}) == len(lines) == 4 * len(jobs)
    roles = [job.role for job in jobs.values()]
    # The network has six rows. The two DPs and the controls have no row "in the same time".
    assert (roles.count("table"), roles.count("same-time")) == (1 + len(METHODS) + 6, len(METHODS) - 1 + 3)
    for line in lines:
        graph = tasks[line["graph"]].graph
        if line["method"] == "approximate-dp":
            order = approximate_dp(graph, 30).order
            plan = Plan.from_events(
                graph, Cluster.uniform(1), np.zeros(graph.num_ops, np.int64), order, objective="peak-memory"
            )
            assert line["value"] == plan.objective_value
        assert (jobs[line["key"]].role == "same-time") == ("width" in line)
        assert line["seconds"] > 0


def test_it_goes_on_and_shares_what_is_there(made):
    out, config = made
    before = (out / "results.jsonl").read_text()
    outcome = run_evaluation(config, out)
    assert (outcome.made, outcome.found) == (0, len(before.splitlines()))
    # As after a kill, the last result is missing and is made again; its time limit depends on another result.
    lines = before.splitlines(keepends=True)
    (out / "results.jsonl").write_text("".join(lines[:-1]))
    assert run_evaluation(config, out).made == 1
    again = results(out)[-1]
    assert (again["key"], again["graph"]) == tuple(json.loads(lines[-1])[name] for name in ("key", "graph"))


def test_the_table_by_hand(made):
    out, config = made
    found = report(out)
    assert {"table.md", "table.csv", "summary.json"} <= set(found.files)
    table = json.loads((out / "summary.json").read_text())["table"]
    jobs = {job.key: job for job in make_jobs(config).jobs}
    cells = {}
    for line in results(out):
        cells[jobs[line["key"]].role, line["method"], line["graph"]] = line
    assert list(dict.fromkeys(row["set"] for row in table)) == ["layered 12", "layered 16"]
    for row in table:
        graphs = [t.key for t in evaluation_tasks(config) if t.labels["set"] == row["set"]]
        whole = [cells["table", "approximate-dp", g] for g in graphs]
        if row["name"] == "lower-bound":
            continue
        own = [cells["table", row["name"], g] for g in graphs]
        xla = [cells["table", "xla-best", g] for g in graphs]
        above = sum(a["value"] > b["value"] * (1 + 1e-9) for a, b in zip(own, xla, strict=True))
        assert row["above_xla"] == (None if row["name"] == "xla-best" else above)
        gaps = [a["value"] / b["value"] - 1 for a, b in zip(own, whole, strict=True)]
        assert row["gap"] == pytest.approx(np.mean(gaps))
        assert row["gap_low"] <= row["gap"] <= row["gap_high"]
        shares = [a["seconds"] / b["seconds"] for a, b in zip(own, whole, strict=True)]
        assert row["of_reference"] == pytest.approx(np.median(shares))
        assert row["seconds"] == pytest.approx(np.median([each["seconds"] for each in own]))
        took = [each["processor_seconds"] for each in own]
        assert row["processor_seconds"] == pytest.approx(np.median(took))
        shares = [a / b["processor_seconds"] for a, b in zip(took, whole, strict=True)]
        assert row["of_processor"] == pytest.approx(np.median(shares))
        same = [cells[k] for g in graphs if (k := ("same-time", row["name"], g)) in cells]
        if not same:
            assert row["same_time"] is None
            continue
        gaps = [a["value"] / b["value"] - 1 for a, b in zip(own, same, strict=True)]
        assert row["same_time"] == pytest.approx(np.mean(gaps))
    assert found.comparison.rows[0].name == "approximate-dp"
    assert_the_bound_holds(table, config, cells)
    assert "## Layered 12" in found.table
    assert "| topoformer, untrained: beam of 16 |" in found.table


def assert_the_bound_holds(table, config, cells):
    bounds = {row["set"]: row for row in table if row["name"] == "lower-bound"}
    assert list(bounds) == ["layered 12", "layered 16"]
    for name, row in bounds.items():
        gaps = []
        for task in evaluation_tasks(config):
            if task.labels["set"] == name:
                least = lower_bound(task.graph, Cluster.uniform(1), Objective.PEAK_MEMORY)
                values = [line["value"] for (_, _, graph), line in cells.items() if graph == task.key]
                assert least <= min(values)
                gaps.append(least / cells["table", "approximate-dp", task.key]["value"] - 1)
        assert row["gap"] == pytest.approx(np.mean(gaps))


def test_controls_are_other_networks_and_rows_other_jobs(weights):
    config = EvaluationConfig(**{**SMALL, "methods": ()}, weights={"a": weights, "b": "nowhere"})
    jobs = make_jobs(config)
    assert set(jobs.left_out) == {
        f"b{u}-{d}" for u in ("", "-untrained") for d in ("greedy", "sample", "beam")
    }
    solvers: dict[str, Any] = {job.name: job.method.solver for job in jobs.jobs if job.role == "table"}
    trained, control = solvers["a-sample"].weights, solvers["a-untrained-sample"].weights
    assert trained.config == control.config == NETWORK
    assert not np.array_equal(trained.node.kernel[...], control.node.kernel[...])
    assert (solvers["a-greedy"].samples, solvers["a-sample"].samples, solvers["a-beam"].width) == (0, 16, 16)
    without = make_jobs(EvaluationConfig(**{**SMALL, "methods": ()}, weights={"a": weights}, untrained=False))
    assert [job.name for job in without.jobs if job.role == "table"] == [
        "approximate-dp", "a-greedy", "a-sample", "a-beam"
    ]  # fmt: skip
    keys = [job.key for job in jobs.jobs]
    assert len(set(keys)) == len(keys)


def test_networks_of_one_shape_have_one_control(weights, tmp_path):
    other = str(tmp_path / "other.safetensors")
    save_topoformer(other, Topoformer(NETWORK, rngs=nnx.Rngs(5)))
    jobs = make_jobs(EvaluationConfig(**{**SMALL, "methods": ()}, weights={"a": weights, "b": other}))
    assert jobs.left_out == {
        f"b-untrained-{d}": f"it is the network of the row 'a-untrained-{d}'"
        for d in ("greedy", "sample", "beam")
    }


def test_networks_with_the_autoregressive_decoder_are_rows_like_others(tmp_path):
    path = tmp_path / "ar.safetensors"
    config = dataclasses.replace(NETWORK, decoder=Decoder.AUTOREGRESSIVE)
    save_topoformer(path, Topoformer(config, rngs=nnx.Rngs(0)))
    jobs = make_jobs(EvaluationConfig(**{**SMALL, "methods": ()}, weights={"topoformer-ar": str(path)}))
    assert not jobs.left_out
    solvers = {job.name: job.method.solver for job in jobs.jobs if job.role == "table"}
    graph = layered_graph(np.random.default_rng(0), 12)
    for decoding in ("greedy", "sample", "beam"):
        solver = solvers[f"topoformer-ar-{decoding}"]
        plan = optimize(graph, Cluster.uniform(1), objective="peak-memory", method=solver)
        assert plan.objective_value <= graph.tensor_bytes.sum() + graph.temp_bytes.max()


def test_another_width_later_graphs_and_no_rows_in_the_same_time(tmp_path):
    names = ("approximate-dp-1k", "lpmf")
    config = EvaluationConfig(
        **{**SMALL, "methods": names, "sizes": (16,), "cases": 1}, first=3, same_time=False, warm_up=False
    )
    graph = layered_graph(np.random.default_rng([0, 2, 16, 3]), 16)
    assert [task.key for task in evaluation_tasks(config)] == [graph.content_hash]
    jobs = {job.name: job for job in make_jobs(config).jobs}
    assert list(jobs) == ["approximate-dp", *names]
    solvers: dict[str, Any] = {name: job.method.solver for name, job in jobs.items()}
    assert [solvers[name].width for name in list(jobs)[:2]] == [30, 1000]
    run_evaluation(config, tmp_path)
    found = {line["method"]: line["value"] for line in results(tmp_path)}
    assert found["approximate-dp-1k"] == approximate_dp(graph, 1000).peak
    # With rows in the same time, approximate DP of another width has none.
    same = make_jobs(dataclasses.replace(config, same_time=True)).jobs
    assert [job.name for job in same if job.role == "same-time"] == ["lpmf"]


@pytest.fixture
def calls(monkeypatch):
    """Solver, ops and time limit of every call of `optimize_many`."""
    seen = []
    real = method_module.optimize_many

    def noted(graphs, clusters, **options):
        (graph,) = graphs
        seen.append((options["method"].name, graph.num_ops, graph.content_hash, options["time_limit"]))
        return real(graphs, clusters, **options)

    monkeypatch.setattr(method_module, "optimize_many", noted)
    return seen


def test_searches_have_a_tenth_of_the_time_of_the_same_graph(calls, tmp_path):
    config = EvaluationConfig(**{**SMALL, "methods": ("order-search",)}, warm_up=False)
    run_evaluation(config, tmp_path)
    # Of the processor's seconds: other work of the machine lengthens the others.
    whole = [line for line in results(tmp_path) if line["method"] == "approximate-dp"]
    first = {line["graph"]: line["processor_seconds"] for line in whole}
    limits = [(graph, limit) for name, _, graph, limit in calls if name == "order-search"]
    assert len(limits) == 4
    for graph, limit in limits:
        assert limit == pytest.approx(0.1 * first[graph])


def test_nothing_that_counts_compiles(calls, weights, tmp_path):
    """Loops are warmed up once, on a graph of 40 ops, and a network once for every padded size."""
    config = EvaluationConfig(**{**SMALL, "methods": ("lpmf",)}, weights={"a": weights}, untrained=False)
    tasks = evaluation_tasks(config)
    run_evaluation(config, tmp_path)
    count = collections.Counter((name, ops == 40) for name, ops, _, _ in calls)
    sizes = len({Bucket.of(task.graph) for task in tasks})
    assert count["lpmf", True] == count["approximate-dp", True] == 1
    assert count["lpmf", False] == 4
    # Greedy and samples are one solver.
    assert (count["topoformer", True], count["topoformer", False]) == (0, 2 * (4 + sizes))
    assert (count["beam", True], count["beam", False]) == (0, 4 + sizes)
    # The warm-up before the first graph of a size runs on that graph.
    own = [graph for name, _, graph, _ in calls if name == "beam"]
    assert own[0] == own[1]


@pytest.mark.parametrize(
    ("costs", "widths", "best"),
    [
        # 9 s are within the limit, 16 s are not. The next width is 4 * 10 / 9, which is 4 again.
        ({1: 3, 2: 4, 4: 9, 8: 16}, [1, 2, 4, 8, 8], 4),
        # Here the next width is 6.
        ({1: 1, 2: 3, 4: 6, 8: 11, 6: 9}, [1, 2, 4, 8, 8, 6], 6),
        ({1: 1, 2: 3, 4: 6, 8: 11, 6: 10.5}, [1, 2, 4, 8, 8, 6], 4),
        # The machine was busy the first time.
        ({1: (50, 1), 2: 3, 4: (12, 8), 8: 11, 5: 12}, [1, 1, 2, 4, 4, 8, 8, 5], 4),
        ({1: 50}, [1, 1], 1),
    ],
)
def test_the_widest_that_ends_in_time(monkeypatch, costs, widths, best):
    """With a simulated clock and wider beams that find better orders."""
    seen = []

    def timed(instance, width):
        seen.append(width)
        took = costs[width][seen.count(width) - 1] if isinstance(costs[width], tuple) else costs[width]
        return _FakePlan(1000 - width, {"status": "feasible", "width": width}), float(took)

    monkeypatch.setattr(ApproximateDpWithin, "_timed", staticmethod(timed))
    assert ApproximateDpWithin(10.0).construct(_instance()).provenance["width"] == best
    assert seen == widths


class _FakePlan:
    def __init__(self, value, provenance):
        self.objective_value, self.provenance = value, provenance


def _instance(ops=12):
    graph = layered_graph(np.random.default_rng(0), ops)
    return Instance(graph, Cluster.uniform(1), Objective.PEAK_MEMORY)


def test_with_time_enough_it_is_optimal_and_with_none_it_is_width_1():
    instance = _instance()
    best = approximate_dp(instance.graph, 10**6)
    assert best.optimal
    plan = ApproximateDpWithin(1e6).construct(instance)
    assert plan.objective_value == best.peak
    late = ApproximateDpWithin(0.0).construct(instance)
    assert late.provenance["width"] == 1
    assert late.objective_value == approximate_dp(instance.graph, 1).peak


@pytest.mark.parametrize(("own", "seconds"), [({}, 0.5), ({"time_limit": 2.0}, 2.0)])
def test_cp_sat_has_the_time_limit_of_the_settings(own, seconds):
    settings = {"methods": ("cp-sat",), "cp_sat_seconds": 0.5, "options": {"cp-sat": {"settings": own}}}
    jobs = make_jobs(EvaluationConfig(**{**SMALL, **settings})).jobs
    solvers = [job.method.solver for job in jobs if job.name == "cp-sat" and job.role == "table"]
    assert [solver.time_limit for solver in solvers] == [seconds]


def test_options_that_there_are_not_leave_a_network_out():
    settings = {"weights": {"mine": "default"}, "options": {"mine-beam": {"colour": 1}}}
    left_out = make_jobs(EvaluationConfig(**{**SMALL, **settings})).left_out
    assert "method mine-beam: got an unexpected keyword argument 'colour'" in left_out["mine-beam"]


def test_sizes_0_and_1_and_graphs_without_edges(tmp_path):
    config = EvaluationConfig(**{**SMALL, "sizes": (1, 2), "cases": 1})
    assert run_evaluation(config, tmp_path).finished
    table = report(tmp_path).table
    assert "## Layered 1\n" in table
    with pytest.raises(ConfigError, match="sizes: must be"):
        EvaluationConfig(**{**SMALL, "sizes": (0,)})
    with pytest.raises(ConfigError, match="no graph of 200 to 1000 ops"):
        evaluation_tasks(EvaluationConfig(suite="topological-order", sizes=()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"weights": {"a": ""}}, "weights.a: give a file"),
        ({"weights": ["a"]}, "weights: must be a table"),
        ({"weights": {"a": "x", "a-untrained": "y"}}, "there is a row 'a-untrained-greedy' already"),
        ({"policies": {"a-beam": "p"}, "weights": {"a": "x"}}, "'a-beam' is the name of another method"),
        ({"untrained": 1}, "untrained: must be true or false"),
        ({"same_time": 0}, "same_time: must be true or false"),
        ({"first": -1}, "first: must be"),
        ({"methods": ["c-greedy"], "weights": {"a": "x"}}, "unknown 'c-greedy'"),
    ],
)
def test_settings_that_cannot_be(wrong, message):
    with pytest.raises(ConfigError, match=message):
        EvaluationConfig(**{"suite": "topological-order", **wrong})


def test_the_paper_beside_it():
    # Table 3, GAT forward and backward, 1000 nodes; Table 1, breadth-first, 2000.
    (one,) = reported_orders("gat-sample", "layered 1000")
    assert (one.table, one.gap, one.half_width, one.seconds) == (
        3,
        pytest.approx(0.0023),
        pytest.approx(0.0036),
        1.67,
    )
    (one,) = reported_orders("bfs", "layered 2000")
    assert (one.table, one.gap, one.seconds) == (1, pytest.approx(0.0642), 51.52)
    assert [one.table for one in reported_orders("topoformer-beam", "layered 500")] == [1, 3, 4]
    assert [one.gap for one in reported_orders("topoformer-beam", "real 700-1000")] == [
        pytest.approx(-0.7345)
    ]
    names = {one.method.rpartition("-")[0] for one in REPORTED if one.table == 3}
    assert names <= ENCODERS.keys()
    config = EvaluationConfig(suite="topological-order", weights=dict.fromkeys(names, "x"))
    jobs = {one.method for one in REPORTED if one.table < 4}
    rows = {f"{name}-{how}" for name in names for how in ("greedy", "sample", "beam")}
    assert jobs <= rows | set(config.methods)


@pytest.mark.parametrize("name", ["topological_order", "topological_order_small", "topological_order_wide"])
def test_the_settings_that_ship(name):
    document = tomllib.loads((ROOT / "benchmarks" / f"{name}.toml").read_text())
    config = EvaluationConfig.from_document(document)
    assert config.suite == "topological-order"
    again = EvaluationConfig.from_document(json.loads(json.dumps(config.as_document())))
    assert again == config
    jobs = make_jobs(config)
    # Both networks have one shape, and so one control.
    assert set(jobs.left_out) == (
        {f"standardised-untrained-{d}" for d in ("greedy", "sample", "beam")}
        if name.endswith("wide")
        else set()
    )
    settings = {job.name: job.method.solver for job in jobs.jobs if job.role == "table"}
    for method, given in config.options.items():
        for field, value in given["settings"].items():
            assert getattr(settings[method], field) == value


# By default, test_evaluation_cli.py has the command, and tests here the suite.
@pytest.mark.slow
def test_the_command(weights, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("e.toml").write_text("untrained = false\n[options.approximate-dp.settings]\nwidth = 20\n")
    words = [
        "evaluate",
        "--config",
        "e.toml",
        "--suite",
        "topological-order",
        "--sizes",
        "12",
        "--cases",
        "1",
    ]
    words += ["--methods", "lpmf", "--weights", f"mlp={weights}", "--no-warm-up", "--out", "out"]
    assert main(words) == 0
    out = capsys.readouterr().out
    # Approximate DP, LPMF, three rows of the network, and DP in the time of these four.
    assert "9 results added to out" in out
    assert "| mlp: greedy | 1 |" in out
    assert "Settings: approximate DP of width 20," in out
    assert main(["evaluate", "--out", "out", "--report-only"]) == 0
    assert "## Layered 12" in capsys.readouterr().out
