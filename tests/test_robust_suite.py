"""The suite of robust scheduling: its cases, runs, resumption and report."""

import csv
import json
import pathlib

import jax
import numpy as np
import pytest
from test_robust_sources import Stub

from regal_jax import GraphBuilder, save_graph
from regal_jax.cli.main import main
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.experiments import EvaluationConfig, report, robust_table, run_evaluation
from regal_jax.experiments.records import code_word
from regal_jax.experiments.robust_jobs import TEMPERATURES, Proposing, proposing
from regal_jax.experiments.robust_paper import PAPER_TABLES
from regal_jax.experiments.robust_scheduling import (
    CLUSTER,
    FIRST_SEED,
    VALIDATION_SEED,
    RobustCase,
    measure,
    robust_cases,
)
from regal_jax.experiments.statistics import bootstrap
from regal_jax.robust import (
    LOADERS,
    BrkgaRuns,
    Candidates,
    ListSchedules,
    RandomSchedules,
    ScenarioRuns,
    Scenarios,
    latency_limited,
    noisy,
    speedup,
)
from regal_jax.search import BrkgaConfig
from regal_jax.solve import graph_keys

SUITE = {"suite": "robust-scheduling", "sizes": (10,), "cases": 1, "count": 12, "keep": 6, "draws": 2}
METHODS = ("list-scheduling", "random")


def parallel(name, ops, residents=0):
    builder = GraphBuilder(name)
    for i in range(residents):
        builder.add_op(f"w{i}", outputs=[8], resident=True)
    for i in range(ops):
        builder.add_op(f"op{i}", runtime=1.0, outputs=[8], inputs=[f"w{i}:0"] if i < residents else [])
    return builder.build()


def test_the_graphs_are_the_paper_s_five_distributions_and_one_real_graph():
    cases = robust_cases(EvaluationConfig(**{**SUITE, "cases": 2}))
    assert [case.set for case in cases] == ["one", *10 * ["synthetic"], "temperature"]
    assert (cases[0].graph.name, cases[0].graph.num_ops) == ("mlp", 59)
    names = {case.graph.name.rpartition("-")[0] for case in cases[1:11]}
    assert len(names) == 5
    figure = generate("gflownet-erdos-renyi", 25, FIRST_SEED)
    assert cases[11].graph.content_hash == figure.content_hash
    assert cases[1].graph.content_hash == generate("gflownet-erdos-renyi", 10, FIRST_SEED).content_hash
    assert EvaluationConfig(suite="robust-scheduling").sizes == (50,)


def test_real_graphs_are_those_that_can_be_scheduled(tmp_path):
    graphs = {
        "a": parallel("a", 20, residents=15),
        "b": generate("chain", 20, 0),  # No parallelism.
        "c": parallel("c", 5),  # Too small.
        "d": parallel("d", 40),  # Too large.
        "e": parallel("e", 13),
        "f": parallel("f", 14),
    }
    for name, graph in graphs.items():
        save_graph(graph, tmp_path / f"{name}.json")
    config = {**SUITE, "graphs": str(tmp_path), "max_ops": 30, "limit": 2}
    found = [case.graph for case in robust_cases(EvaluationConfig(**config)) if case.set == "real"]
    assert [graph.name for graph in found] == ["a", "e"]
    assert (found[0].num_ops, found[0].resident.any()) == (20, False)
    with pytest.raises(ConfigError, match=r"no graph of 12 to 12 ops .* raise max_ops"):
        robust_cases(EvaluationConfig(**{**config, "max_ops": 12}))


def test_a_result_is_what_it_says():
    case = RobustCase("one", generate("gflownet-layered", 15, seed=0))
    source = RandomSchedules()
    job = Proposing(name="random", title="Random", sources={"one": source}, seed=3, count=12, key="key")
    fields = measure(job, case, keep=6, draws=2)
    key, _ = jax.random.split(graph_keys(jax.random.key(np.uint32(3)), [case.graph])[0])
    every = Candidates.of(case.graph, CLUSTER, *source.propose(case.graph, CLUSTER, 12, key))
    best = every.take(np.argsort(every.makespan, kind="stable")[:6])
    speedups = case.graph.runtime.sum() / best.makespan
    assert fields["value"] == every.makespan.min()
    assert (fields["proxy"], fields["proxy_mean"]) == pytest.approx((speedups.max(), speedups.mean()))
    noise = [noisy(case.graph, CLUSTER, seed=seed).speedups(best).max() for seed in (0, 1)]
    assert fields["noisy"] == pytest.approx(np.mean(noise))
    latency = latency_limited(case.graph, CLUSTER)
    moved = max(case.graph.runtime.sum() / latency(best.plan(i)) for i in range(6))
    assert fields["latency"] == pytest.approx(moved)
    assert fields["ged"] == best.diversity.ged
    assert (fields["proposed"], fields["kept"]) == (12, 6)
    np.testing.assert_allclose(fields["points"]["proxy"], speedup(case.graph, every.makespan), atol=1e-5)
    with pytest.raises(ConfigError, match="no weights for the set 'real'"):
        measure(job, RobustCase("real", case.graph), 6, 1)


def table(folder):
    rows = list(csv.DictReader((folder / "table.csv").read_text().splitlines()))
    return {(row["set"], row["name"]): row for row in rows}


def test_it_runs_goes_on_and_reports(tmp_path, monkeypatch):
    stub = Stub()
    monkeypatch.setitem(LOADERS, "gflownet", lambda path, temperature: stub)
    weights = tmp_path / "one.weights"
    weights.write_text("weights")
    settings = {**SUITE, "methods": (*METHODS, "gflownet", "ppo"), "weights": {"gflownet:one": str(weights)}}
    out = tmp_path / "out"
    made = run_evaluation(EvaluationConfig(**settings, seeds=(0,)), out)
    assert (made.made, made.found, made.finished) == (13, 0, True)
    assert "needs weights" in made.left_out["ppo"]
    # Another seed: the one list schedule is not made again.
    config = EvaluationConfig(**settings, seeds=(0, 1))
    again = run_evaluation(config, out)
    assert (again.made, again.found) == (7, 13)
    assert run_evaluation(config, out).made == 0
    found = report(out)
    assert set(found.files) == {"table.csv", "table.md", "contrasts.csv", "summary.json", "targets.png"}
    assert found.comparison is None
    rows = table(out)
    # The policy has weights for only one set.
    assert set(rows) == {
        *((set_, name) for set_ in ("one", "synthetic") for name in METHODS), ("one", "gflownet")
    }  # fmt: skip
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    means = [
        np.mean(
            [r["ged"] for r in lines if (r["set"], r["method"], r["seed"]) == ("synthetic", "random", seed)]
        )
        for seed in (0, 1)
    ]
    row = rows["synthetic", "random"]
    assert float(row["ged"]) == pytest.approx(np.mean(means))
    assert float(row["ged_std"]) == pytest.approx(abs(means[0] - means[1]) / 2**0.5)
    assert (row["graphs"], row["seeds"]) == ("5", "2")
    listed = rows["one", "list-scheduling"]
    assert (listed["seeds"], listed["ged"], listed["ged_std"]) == ("1", "0.0", "")
    assert float(listed["paper_bandwidth"]) == 1.02
    assert float(listed["proposed"]) == 1
    text = (out / "table.md").read_text()
    assert "## One real graph (Table 1)" in text
    assert "*List scheduling, paper*" in text
    # No schedule is faster than its bounds.
    graphs = json.loads((out / "evaluation.json").read_text())["graphs"]
    bounds = {graph["hash"]: graph["bounds"] for graph in graphs}
    for line in lines:
        if "proxy" in line:
            for name, bound in bounds[line["graph"]].items():
                assert line[name] <= bound * (1 + 1e-12)
    assert all(1 < bound <= 4 for each in bounds.values() for bound in each.values())
    bound = np.mean([graph["bounds"]["noisy"] for graph in graphs if graph["set"] == "synthetic"])
    row = text.partition("## Synthetic")[2].partition("| Upper bound |")[2].splitlines()[0]
    assert [cell for cell in row.split(" | ") if cell.strip(" |")][-1] == f"{bound:.2f}"
    assert "- ppo: needs weights" in text
    assert json.loads((out / "summary.json").read_text())["table"][0]["set"] == "one"


class Tempered:
    """Random schedules, of which a lower temperature and a later training keep better ones."""

    def __init__(self, path, temperature):
        self.path, self.temperature = path, temperature

    def propose(self, graph, cluster, count, key):
        many = int(4 / self.temperature)
        sequence, devices = RandomSchedules().propose(graph, cluster, many * count, key)
        found = Candidates.of(graph, cluster, sequence, devices).makespan.reshape(count, many)
        best = found.argmin(axis=1) + many * np.arange(count)
        return sequence[best], devices[best]


def test_rows_of_several_networks_and_trainings(tmp_path, monkeypatch):
    monkeypatch.setitem(LOADERS, "gflownet", Tempered)
    files = [tmp_path / f"{i}.weights" for i in range(3)]
    for i, file in enumerate(files):
        file.write_text(str(i))
    a, b, c = map(str, files)
    settings = {**SUITE, "methods": ("gflownet",), "temperature": 0.5, "seeds": (0, 1)}
    weights = {
        "gflownet": [a, b],
        "gflownet:one": c,
        "gflownet-lookahead": c,
        "gflownet-untrained": "untrained",
    }
    config = EvaluationConfig(**settings, weights=weights)
    assert EvaluationConfig.from_document(json.loads(json.dumps(config.as_document()))) == config
    jobs, left_out = proposing(config)
    assert not left_out
    rows = [(job.name, job.title, job.training, job.paper) for job in jobs[::2]]
    assert rows == [
        ("gflownet", "GFlowNet", 0, True),
        ("gflownet", "GFlowNet", 1, True),
        ("gflownet-lookahead", "GFlowNet, lookahead", 0, False),
        ("gflownet-untrained", "GFlowNet, untrained", 0, False),
    ]
    assert len({job.key for job in jobs}) == len(jobs) == 8
    assert [set(job.sources) for job in jobs[:4:2]] == [{"one", "synthetic", "real"}, {"synthetic", "real"}]
    assert jobs[0].sources["one"].path == c
    # Figure 3 is of the first training and seed.
    assert [i for i, job in enumerate(jobs) if job.temperatures] == [0, 4, 6]

    out = tmp_path / "out"
    weights.pop("gflownet-untrained")
    run_evaluation(EvaluationConfig(**settings, weights=weights), out)
    found = report(out)
    assert {"temperatures.png", "temperatures.csv"} <= set(found.files)
    rows = table(out)
    row, one, other = (
        rows[key]
        for key in (("synthetic", "gflownet"), ("one", "gflownet"), ("synthetic", "gflownet-lookahead"))
    )
    assert [(r["trainings"], r["seeds"]) for r in (row, one, other)] == [("2", "2"), ("1", "2"), ("1", "2")]
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    means = [
        np.mean([r["proxy"] for r in lines if r["set"] == "synthetic" and r["key"] in keys])
        for keys in ({jobs[0].key, jobs[1].key}, {jobs[2].key, jobs[3].key})
    ]
    assert float(row["proxy"]) == pytest.approx(np.mean(means))
    # Both trainings draw the same here.
    assert float(row["proxy_std"]) == pytest.approx(abs(means[0] - means[1]) / 2**0.5) == 0
    assert float(other["proxy_std"]) > 0
    # The paper's figures stand beside its own system only.
    assert (row["paper_ged"], other["paper_ged"]) == ("92.02", "")
    text = (out / "table.md").read_text()
    assert "GFlowNet (2 trainings)" in text
    assert text.count(", paper*") == 2
    assert "## Temperatures (Figure 3)" in text
    figure = list(csv.DictReader((out / "temperatures.csv").read_text().splitlines()))
    assert [(r["method"], float(r["temperature"])) for r in figure] == [
        (title, t) for title in ("GFlowNet", "GFlowNet, lookahead") for t in TEMPERATURES
    ]
    means = [float(r["mean"]) for r in figure[: len(TEMPERATURES)]]
    assert means == sorted(means)
    [record] = [r for r in lines if r["key"] == jobs[0].key and r["set"] == "temperature"]
    assert means == pytest.approx([np.mean(values) for values in record["temperatures"].values()])
    assert {r["schedules"] for r in figure} == {"12"}


def test_the_paper_s_figures_do_not_stand_beside_lookahead(tmp_path):
    jobs, _ = proposing(
        EvaluationConfig(**SUITE, methods=("gflownet",), weights={"gflownet": "gflownet-lookahead"})
    )
    assert [(job.title, job.paper) for job in jobs] == [("GFlowNet with lookahead", False)]
    jobs, _ = proposing(EvaluationConfig(**SUITE, methods=("gflownet",), weights={"gflownet": "gflownet"}))
    assert [(job.title, job.paper) for job in jobs] == [("GFlowNet", True)]


def trained(folder, speedups, validations):
    folder.mkdir()
    records = [{"step": i + 1, "kind": "train", "speedup": u} for i, u in enumerate(speedups)]
    records += [{"step": i, "kind": "validation", "speedup": u} for i, u in validations.items()]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(folder)


def test_figures_of_trainings(tmp_path):
    first = trained(tmp_path / "a", np.arange(100.0).tolist(), {0: 1.0, 50: 2.0})
    # Step 2 again, after a restart.
    second = trained(tmp_path / "b", [1.0, 2.0, 3.0], {0: 1.5})
    with (tmp_path / "b" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "kind": "train", "speedup": 5.0}\n')
    settings = {**SUITE, "sizes": (8,), "methods": ("list-scheduling",)}
    trainings = {"losses": {"variance": [first], "balance": [second]}, "regimes": {"range": [first, second]}}
    out = tmp_path / "out"
    run_evaluation(EvaluationConfig(**settings, **trainings), out)
    found = report(out)
    assert {"losses.png", "losses.csv", "regimes.png", "regimes.csv"} <= set(found.files)

    def curve(name, title):
        rows = csv.DictReader((out / name).read_text().splitlines())
        return [(r["training"], int(r["step"]), float(r["speedup"])) for r in rows if r["name"] == title]

    windows = curve("losses.csv", "variance")
    assert len(windows) == 40
    assert windows[0] == ("0", 3, 1.0)  # The mean of 0, 1 and 2.
    assert windows[-1] == ("0", 100, 98.5)
    assert curve("losses.csv", "balance") == [("0", 1, 1.0), ("0", 2, 5.0), ("0", 3, 3.0)]
    assert curve("regimes.csv", "range") == [("0", 0, 1.0), ("0", 50, 2.0), ("1", 0, 1.5)]
    trainings["losses"]["balance"] = [str(tmp_path / "nowhere")]
    run_evaluation(EvaluationConfig(**settings, **trainings), out)
    found = report(out)
    assert "regimes.png" in found.files
    assert "losses.png" not in found.files
    assert "losses.png is not drawn: " in found.problems[0]


ROWS = {
    "brkga-runs": {"evaluations": 40, "population": 10, "elites": 2, "mutants": 1},
    "many": {"source": "list-scheduling", "count": 30, "noise": 0.3},
    "few": {"source": "brkga-runs", "name": "Four runs", "evaluations": 7, "runs": 4},
    "long": {"source": "BRKGA", "evaluations": 90, "runs": 2},
}


def test_rows_of_sources_with_other_settings():
    config = EvaluationConfig(**SUITE, methods=("brkga", *ROWS), options=ROWS, seeds=(0, 1), evaluations=50)
    assert EvaluationConfig.from_document(json.loads(json.dumps(config.as_document()))) == config
    jobs, left_out = proposing(config)
    assert not left_out
    assert len({job.key for job in jobs}) == len(jobs) == 10
    rows = [(job.name, job.title, job.count, job.evaluations, job.paper) for job in jobs[::2]]
    assert rows == [
        ("brkga", "BRKGA", 12, 50, True),
        ("brkga-runs", "BRKGA, best of each run", 12, 480, True),
        ("many", "many", 30, 0, False),
        ("few", "Four runs", 12, 28, False),
        ("long", "long", 12, 180, False),
    ]
    sources = [job.sources["one"] for job in jobs[::2]]
    assert sources[1] == BrkgaRuns(40, BrkgaConfig(population=10, elites=2, mutants=1))
    assert sources[2:4] == [ListSchedules(0.3), BrkgaRuns(7, runs=4)]
    assert (sources[4].evaluations, sources[4].runs, sources[4].config.population) == (90, 2, 500)
    # The name of a row does not decide a result, what it asks for does.
    [other] = proposing(EvaluationConfig(**SUITE, methods=("b",), options={"b": ROWS["few"]}))[0]
    assert other.key == jobs[6].key


def test_rows_that_are_chosen_by_scenarios():
    options = {
        "scenario-runs": {"choose": "scenarios"},
        "mine": {
            "source": "scenario-runs", "choose": {"count": 3}, "scenarios": {"noise": 0.1}, "evaluations": 4
        },
        "brkga": {"choose": "proxy"},
    }  # fmt: skip
    config = EvaluationConfig(**SUITE, methods=(*options,), options=options, seeds=(0,), evaluations=50)
    assert EvaluationConfig.from_document(json.loads(json.dumps(config.as_document()))) == config
    jobs, left_out = proposing(config)
    assert not left_out
    assert [job.choose for job in jobs] == [Scenarios(), Scenarios(count=3), None]
    assert [job.paper for job in jobs] == [False, False, True]
    assert jobs[0].sources["one"] == ScenarioRuns()
    assert jobs[1].sources["one"] == ScenarioRuns(4, scenarios=Scenarios(noise=0.1))
    assert (jobs[0].evaluations, jobs[1].evaluations) == (120, 48)
    case = RobustCase("one", parallel("p", 8))
    fields = measure(jobs[1], case, 5, 1)
    assert (fields["kept"], fields["distinct"]) == (5, 5)
    for wrong in (
        {"choose": "best"},
        {"choose": {"size": 3}},
        {"scenarios": "proxy"},
        {"choose": {"noise": -1}},
    ):
        _, left_out = proposing(
            EvaluationConfig(**SUITE, methods=("scenario-runs",), options={"scenario-runs": wrong})
        )
        assert "cenarios" in left_out["scenario-runs"]


def test_settings_are_chosen_on_other_graphs_and_compared_with_the_first_row(tmp_path, monkeypatch):
    config = EvaluationConfig(
        **SUITE, split="validation", methods=("few", "list-scheduling"), options=ROWS, seeds=(0, 1)
    )
    cases = robust_cases(config)
    assert [case.set for case in cases] == 5 * ["synthetic"]
    chosen = generate("gflownet-erdos-renyi", 10, VALIDATION_SEED)
    assert cases[0].graph.content_hash == chosen.content_hash
    run_evaluation(config, tmp_path)
    made = []
    monkeypatch.setattr(robust_table, "bootstrap", lambda values: made.append(values) or bootstrap(values))
    report(tmp_path)
    assert len(made) == len(robust_table.COMPARED)  # Once for a pair.
    lines = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    document = json.loads((tmp_path / "evaluation.json").read_text())
    assert document["code"] == code_word()
    assert all(job["identity"] == {} for job in document["jobs"])
    runs = [np.mean([r["ged"] for r in lines if (r["graph"], r["method"]) == (c.key, "few")]) for c in cases]
    rows = json.loads((tmp_path / "summary.json").read_text())["contrasts"]
    pairs = [("List scheduling", "Four runs"), ("Four runs", "List scheduling")]
    assert [(row["method"], row["against"]) for row in rows] == pairs
    for row, sign in zip(rows, (-1, 1), strict=True):
        wanted = bootstrap(sign * np.array(runs))  # A single list schedule has no distance.
        assert (row["ged"], row["ged_low"], row["ged_high"]) == pytest.approx(wanted)
    with (tmp_path / "contrasts.csv").open() as file:
        assert [float(row["ged"]) for row in csv.DictReader(file)] == [row["ged"] for row in rows]
    text = (tmp_path / "table.md").read_text()
    assert "source, less Four runs" in text
    assert "| Four runs | 28 |" in text


def test_damaged_settings_are_named_in_one_line(tmp_path):
    run_evaluation(EvaluationConfig(**SUITE, methods=("list-scheduling",)), tmp_path)
    path = tmp_path / "evaluation.json"
    whole = json.loads(path.read_text())
    config, graphs = whole["config"], whole["graphs"]
    no_ops = [{name: value for name, value in graph.items() if name != "ops"} for graph in graphs]
    for damaged in (
        {"config": {name: value for name, value in config.items() if name != "keep"}},
        {"config": {name: value for name, value in config.items() if name != "draws"}},
        {"config": {**config, "losses": ["a"]}},
        {"config": {**config, "regimes": {"a": 3}}},
        {"graphs": no_ops},
    ):
        path.write_text(json.dumps({**whole, **damaged}))
        with pytest.raises(FormatError, match=r"damaged evaluation .* run 'regal-jax evaluate' again"):
            report(tmp_path)


def test_no_compilation_is_timed(monkeypatch):
    asked = []

    class Counted:
        def propose(self, graph, cluster, count, key):
            asked.append(count)
            return RandomSchedules().propose(graph, cluster, count, key)

    case = RobustCase("synthetic", generate("gflownet-layered", 9, seed=0))
    job = Proposing(name="a", title="A", sources={"synthetic": Counted()}, seed=3, count=5, key="key")
    first, again = (measure(job, case, keep=3, draws=1, warm=warm) for warm in (True, False))
    assert len(asked) == 3
    assert {**first, "seconds": 0} == {**again, "seconds": 0}


def test_what_is_not_finished_is_reported_over_common_graphs(tmp_path):
    settings = {**SUITE, "methods": ("random",), "seeds": (0, 1)}
    run_evaluation(EvaluationConfig(**settings), tmp_path)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:-1]) + "\n")
    report(tmp_path)
    row = table(tmp_path)["synthetic", "random"]
    kept = [json.loads(line) for line in lines[2:-2]]
    assert float(row["proxy"]) == pytest.approx(np.mean([record["proxy"] for record in kept]))
    path.write_text("")
    with pytest.raises(FormatError, match="no result in it yet"):
        report(tmp_path)


def test_all_that_decides_a_result_is_in_its_key(tmp_path, monkeypatch):
    weights = tmp_path / "weights"

    def keys(**changes):
        return [
            job.key
            for job in proposing(EvaluationConfig(**{**SUITE, "methods": ("random", "brkga"), **changes}))[0]
        ]

    first = keys()
    assert keys() == first
    assert keys(sizes=(12,)) == first
    assert len(keys(seeds=(0, 1))) == 4
    for change in ({"count": 13}, {"keep": 7}, {"draws": 3}, {"seeds": (5,)}):
        assert not set(keys(**change)) & set(first), change
    assert keys(evaluations=7)[0] == first[0]
    assert keys(evaluations=7)[1] != first[1]
    assert keys(options={"brkga": {"population": 50, "elites": 5, "mutants": 5}})[1] != first[1]
    monkeypatch.setitem(LOADERS, "ppo", lambda path, temperature: Stub())
    found = []
    for text in ("one", "two"):
        weights.write_text(text)
        found += keys(methods=("ppo",), weights={"ppo": str(weights)})
    found += keys(methods=("ppo",), weights={"ppo": str(weights)}, temperature=0.5)
    assert len(set(found)) == 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"methods": ("bfs",)}, "methods: unknown 'bfs'; use names of list-scheduling"),
        ({"options": {"bfs": {}}}, "options: unknown 'bfs'"),
        ({"options": {"brkga": 3}}, "options.brkga: must be a table"),
        ({"methods": ("a",), "options": {"a": {"source": "bfs"}}}, "methods: unknown 'bfs'"),
        ({"options": {"a": {"source": "ppo"}}}, "options.a: ppo has weights"),
        ({"options": {"random": {"source": "brkga"}}}, "options.random: is a source itself"),
        ({"options": {"a": {"source": ["brkga"]}}}, "options: unknown"),
        ({"weights": {"brkga": "x"}}, "weights: unknown 'brkga'; use gflownet or ppo"),
        ({"weights": {"ppo:two": "x"}}, "weights: unknown 'ppo:two'"),
        ({"weights": {"ppo": ""}}, "weights.ppo: must be a list of names"),
        ({"weights": {"ppo": ["a", "a"]}}, "weights.ppo: must be a list of names"),
        ({"weights": {"brkga-ppo": "a"}}, "weights: unknown 'brkga-ppo'"),
        ({"losses": ["a"]}, "losses: must be a table"),
        ({"regimes": {"range": "a"}}, "regimes.range: must be a list"),
        ({"temperature": 0}, "temperature"),
        ({"keep": 0}, "keep"),
    ],
)
def test_settings_that_cannot_be_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        EvaluationConfig(**{**SUITE, **wrong})


def test_a_setting_of_brkga_that_there_is_not_leaves_it_out():
    config = EvaluationConfig(**SUITE, methods=("brkga",), options={"brkga": {"nonsense": 1}})
    jobs, left_out = proposing(config)
    assert not jobs
    assert "nonsense" in left_out["brkga"]


def test_the_paper_s_figures_are_where_they_belong():
    assert PAPER_TABLES["one"]["gflownet"]["latency"] == (2.11, 0.03)
    assert PAPER_TABLES["synthetic"]["ppo"]["d_sen"] == (80.84, None)
    assert PAPER_TABLES["real"]["brkga"]["ged"] == (52.32, 21.59)
    assert PAPER_TABLES["real"]["gflownet"]["d_sen"] == (91.33, 0.15)


def test_the_command_runs_the_suite(tmp_path, capsys):
    out = str(tmp_path / "out")
    file = tmp_path / "suite.toml"
    file.write_text('suite = "robust-scheduling"\nsizes = [8]\ncount = 5\nkeep = 3\ndraws = 1\n')
    options = ["--config", str(file), "--cases", "1", "--methods", "list-scheduling", "--out", out]
    assert main(["evaluate", *options]) == 0
    assert "Synthetic graphs (Table 2)" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["robust_scheduling", "robust_scheduling_small"])
def test_the_settings_files_are_settings(name):
    path = pathlib.Path(__file__).parents[1] / "benchmarks" / f"{name}.toml"
    config = EvaluationConfig.from_document(EvaluationConfig.read(path))
    assert (config.suite, config.sizes, config.keep) == ("robust-scheduling", (50,), 100)
    searches = [name for name in ("brkga", "brkga-runs") for _ in config.seeds]
    assert [job.name for job in proposing(config)[0]] == ["list-scheduling", *searches]
