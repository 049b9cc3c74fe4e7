"""Evaluations on small graphs: what is run and kept, and the effects of kills and other settings."""

import dataclasses
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from flax import nnx
from policy_cases import four_bins

from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.experiments import EvaluationConfig, make_method, report, run_evaluation
from regal_jax.experiments import run as run_module
from regal_jax.experiments.graphs import evaluation_graphs
from regal_jax.experiments.jobs import make_jobs, thousands
from regal_jax.experiments.method import Method
from regal_jax.experiments.records import code_word
from regal_jax.heuristics import named_insertion_policy, save_insertion_policy
from regal_jax.importers import save_graph
from regal_jax.policies import Policy, save_policy

SEARCH = {"population": 20, "elites": 4, "mutants": 3}
OPTIONS = {"brkga": {"settings": SEARCH}}
TWO = {"graphs": "set", "evaluations": 80, "limits": (), "other_seed": -1, "warm_up": False}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three graphs of one bucket, and weights for 2 and for 3 devices."""
    root = tmp_path_factory.mktemp("evaluation")
    (root / "set").mkdir()
    for i in range(3):
        save_graph(generate("erdos-renyi", 10 + i, seed=i), root / "set" / f"graph{i}.json")
    for devices in (2, 3):
        policy = Policy(four_bins(num_devices=devices, rounds=1, width=4), rngs=nnx.Rngs(0))
        save_policy(root / f"policy{devices}.safetensors", policy, {"validation_improvement": "0.03"})
    return root


@pytest.fixture(autouse=True)
def _here(folder, monkeypatch):
    monkeypatch.chdir(folder)


def lines(out):
    return [json.loads(line) for line in (pathlib.Path(out) / "results.jsonl").read_text().splitlines()]


def values(out):
    return {(line["key"], line["graph"]): line["value"] for line in lines(out)}


def test_every_result_is_kept_once_and_is_the_methods(folder, tmp_path):
    config = EvaluationConfig(
        **{**TWO, "limits": (40, 80, 160), "other_seed": 9}, methods=("brkga", "critical-path"),
        policies={"regal-primed": "policy2.safetensors", "mine": "policy2.safetensors",
                  "gas": "policy3.safetensors", "idrs": "none.safetensors"},
        options={name: {"settings": SEARCH} for name in ("brkga", "mine", "regal-primed")}, seeds=(0, 1),
    )  # fmt: skip
    outcome = run_evaluation(config, tmp_path / "out")
    assert outcome.finished
    # Tables: 2 of BRKGA, regal and mine each, 1 heuristic; another seed; 3 curves; each of 3 graphs.
    assert (outcome.made, outcome.found) == (3 * (2 + 2 + 2 + 1 + 1 + 3), 0)
    assert set(outcome.left_out) == {"gas", "idrs"}
    assert "for 3 devices, not for 2" in outcome.left_out["gas"]
    assert "no file 'none.safetensors'" in outcome.left_out["idrs"]
    records = lines(tmp_path / "out")
    assert len(values(tmp_path / "out")) == len(records) == outcome.made
    # Guided searches make one list schedule; heuristics make several.
    made = {r["method"]: r["schedules"] for r in records}
    assert (made["brkga"], made["critical-path"] > 3) == (0, True)
    graphs = {graph.content_hash: graph for graph in evaluation_graphs(config)}
    method = make_method("brkga", settings=dataclasses.asdict(make_jobs(config).jobs[0].method.solver.config))
    exact = {
        seed: method(list(graphs.values()), config.cluster, evaluations=80, seed=seed) for seed in (0, 9)
    }
    for seed, results in exact.items():
        found = {
            r["graph"]: r for r in records if (r["method"], r["seed"], r["limit"]) == ("brkga", seed, 80)
        }
        assert [found[h]["value"] for h in graphs] == results.value.tolist()
        assert [found[h]["evaluations"] for h in graphs] == results.evaluations.tolist()
    check_curve(records, exact[0], list(graphs))
    for record in records:
        assert ("action_entropy" in record) == (record["method"] in ("regal-primed", "mine"))
        assert 0 <= record.get("action_entropy", 0) <= np.log(16) + 1e-6
        assert record["seconds"] > 0
    # The same policy under two names is the same method.
    pairs = [
        {(r["seed"], r["limit"], r["graph"]): r["value"] for r in records if r["method"] == m}
        for m in ("regal-primed", "mine")
    ]
    assert pairs[0] == pairs[1]
    found = report(tmp_path / "out")
    assert [row.title for row in found.comparison.rows] == [
        "BRKGA 80", "Critical path", "regal-primed", "mine", "BRKGA 80, other seed",
    ]  # fmt: skip
    assert list(found.comparison.curves) == ["BRKGA", "regal-primed", "mine"]
    assert {"limits.png", "entropy.png", "improvements.png", "quality.png", "seconds.png"} <= set(found.files)


def test_pictures_of_an_earlier_report_go_unless_their_trainings_cannot_be_read(folder, tmp_path):
    out = tmp_path / "out"
    for limits in ((40, 80), ()):
        settings = {**TWO, "limits": limits, "rounds": {"0": ("nowhere",)} if limits else {}}
        run_evaluation(EvaluationConfig(**settings, methods=("brkga", "critical-path"), options=OPTIONS), out)
        out.joinpath("rounds.png").write_bytes(b"")
        files = report(out).files
        assert ("limits.png" in files, (out / "limits.png").exists()) == (bool(limits), bool(limits))
        assert ("rounds.png" in files, (out / "rounds.png").exists()) == (False, bool(limits))
        assert all((out / name).exists() for name in files)


def test_other_budgets_are_further_searches_of_every_search(folder, tmp_path):
    config = EvaluationConfig(
        **TWO, methods=("brkga", "critical-path", "local-search"), budgets=(40, 80, 160), seeds=(0, 1),
        options=OPTIONS,
    )  # fmt: skip
    jobs = make_jobs(config).jobs
    found = [(job.name, job.evaluations) for job in jobs if job.role == "budget"]
    assert found == [("brkga", 40), ("brkga", 160), ("local-search", 40), ("local-search", 160)]
    run_evaluation(config, tmp_path / "out")
    records = lines(tmp_path / "out")
    for method in ("brkga", "local-search"):
        at = {
            b: {r["graph"]: r for r in records if (r["method"], r["limit"], r["seed"]) == (method, b, 0)}
            for b in (40, 80, 160)
        }
        assert {len(rows) for rows in at.values()} == {3}
        assert all(row["evaluations"] <= b for b, rows in at.items() for row in rows.values())
    made = report(tmp_path / "out").comparison
    assert [list(points) for points in made.times.values()] == [[40, 80, 160], [80], [40, 80, 160]]
    assert len(made.rows) == 3


def check_curve(records, exact, hashes):
    """A search with a smaller budget is the beginning of one with a larger budget."""
    curve = {r["graph"]: r for r in records if (r["method"], r["limit"]) == ("brkga", 160)}
    for i, graph in enumerate(hashes):
        history = curve[graph]["history"]
        at = np.searchsorted(history["evaluations"], 80, side="right") - 1
        np.testing.assert_allclose(history["best"][at], exact.value[i], rtol=1e-6)
        np.testing.assert_allclose(history["best"][-1], curve[graph]["value"], rtol=1e-6)


@pytest.fixture
def ran(monkeypatch):
    """Records the methods that would have been run; a heuristic replaces each of them."""
    calls, heuristic = [], make_method("critical-path")

    def timed(self, job, tasks):
        graphs = [task.graph for task in tasks]
        calls.append((job, graphs))
        return heuristic(graphs, self._config.cluster)

    monkeypatch.setattr(run_module._Run, "_timed", timed)
    return calls


def test_nothing_is_run_twice_and_settings_add_what_is_missing(tmp_path, ran):
    def calls():
        return [(job.name, job.seed, len(graphs)) for job, graphs in ran]

    config = {**TWO, "methods": ("brkga",), "options": OPTIONS}
    first = run_evaluation(EvaluationConfig(**config, limit=2), tmp_path / "out")
    assert (first.made, first.found, calls()) == (2, 0, [("brkga", 0, 2)])
    assert run_evaluation(EvaluationConfig(**config, limit=2), tmp_path / "out").made == 0
    assert len(ran) == 1
    more = EvaluationConfig(**{**config, "methods": ("critical-path", "brkga"), "seeds": (0, 1)})
    outcome = run_evaluation(more, tmp_path / "out")
    assert (outcome.made, outcome.found) == (1 + 3 + 3, 2)
    assert calls()[1:] == [("brkga", 0, 1), ("brkga", 1, 3), *[("critical-path", 0, 1)] * 3]
    # A run with another budget reuses no result and keeps the old ones.
    other = run_evaluation(EvaluationConfig(**{**config, "evaluations": 60}), tmp_path / "out")
    assert (other.made, other.found) == (3, 0)
    assert len(lines(tmp_path / "out")) == 9 + 3
    assert [row.title for row in report(tmp_path / "out").comparison.rows] == ["BRKGA 60"]


def test_methods_take_turns_and_the_curves_come_last(tmp_path, ran):
    """Methods take turns because the speed of a machine drifts."""
    config = EvaluationConfig(
        **{**TWO, "limits": (80,), "other_seed": 9}, methods=("brkga", "critical-path"), seeds=(0, 1), chunk=2
    )
    assert run_evaluation(config, tmp_path / "out").finished
    names = [graph.name for graph in evaluation_graphs(config)]
    first, second = names[:2], names[2:]
    alone = [("table", "critical-path", 0, [name]) for name in first]
    assert [(job.role, job.name, job.seed, [graph.name for graph in graphs]) for job, graphs in ran] == [
        ("table", "brkga", 0, first), ("table", "brkga", 1, first), *alone, ("other-seed", "brkga", 9, first),
        ("table", "brkga", 1, second), ("table", "critical-path", 0, second),
        ("other-seed", "brkga", 9, second), ("table", "brkga", 0, second),
        ("curve", "brkga", 0, first), ("curve", "brkga", 0, second),
    ]  # fmt: skip


# By default, test_evaluation_statistics.py has half a line, and test_topological_order.py a run that goes on.
@pytest.mark.slow
def test_a_killed_run_goes_on(folder, tmp_path):
    arguments = ["evaluate", "--graphs", "set", "--evaluations", "200", "--limits", "none", "--seeds"]
    arguments += [
        "0,1,2",
        "--methods",
        "brkga,critical-path",
        "--chunk",
        "1",
        "--quiet",
        "--no-warm-up",
        "--out",
    ]
    out = tmp_path / "killed"
    environment = {
        **os.environ,
        "PYTHONPATH": str(pathlib.Path(__file__).parents[1]),
        "XDG_CACHE_HOME": str(tmp_path),
    }
    child = subprocess.Popen([sys.executable, "-m", "regal_jax.cli", *arguments, str(out)], env=environment)
    try:
        results = out / "results.jsonl"
        deadline = time.monotonic() + 120
        while not (results.exists() and results.read_bytes().count(b"\n") >= 2):
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        child.send_signal(signal.SIGKILL)
        child.wait()
    done = results.read_bytes().count(b"\n")
    with results.open("ab") as file:  # The state after a kill in the middle of a write.
        file.write(b'{"key": "12ab", "gra')
    assert main([*arguments, str(out)]) == 0
    records = lines(out)
    assert 2 <= done < len(records) == len(values(out)) == 3 * 3 + 3 + 3
    assert main([*arguments, str(tmp_path / "whole")]) == 0
    assert values(out) == values(tmp_path / "whole")
    tables = [(path / "table.csv").read_text().splitlines()[0] for path in (out, tmp_path / "whole")]
    assert tables[0] == tables[1]


def test_ctrl_c_gives_up_the_chunk(tmp_path, monkeypatch):
    config = EvaluationConfig(**TWO, methods=("critical-path",), options=OPTIONS)
    timed = run_module._Run._timed

    def interrupted(self, job, graphs):
        results = timed(self, job, graphs)
        if job.name == "critical-path" and self.made == 4:
            signal.raise_signal(signal.SIGINT)
        return results

    monkeypatch.setattr(run_module._Run, "_timed", interrupted)
    outcome = run_evaluation(config, tmp_path / "out")
    assert (outcome.finished, outcome.made) == (False, 4)
    monkeypatch.setattr(run_module._Run, "_timed", timed)
    outcome = run_evaluation(config, tmp_path / "out")
    assert (outcome.finished, outcome.made, outcome.found) == (True, 2, 4)


def test_a_graph_that_a_method_refuses(tmp_path, monkeypatch):
    """Only the failing graph of a chunk is omitted, and the reason is recorded."""
    timed = run_module._Run._timed
    config = EvaluationConfig(**TWO, methods=("brkga",), options=OPTIONS)
    victim = evaluation_graphs(config)[1]

    def refuse(self, job, tasks):
        if victim.content_hash in [task.graph.content_hash for task in tasks]:
            raise ConfigError("too large\nby far")
        return timed(self, job, tasks)

    monkeypatch.setattr(run_module._Run, "_timed", refuse)
    assert run_evaluation(config, tmp_path / "out").made == 3
    assert [line.get("error") for line in lines(tmp_path / "out")].count("too large\\nby far") == 1
    assert run_evaluation(config, tmp_path / "out").made == 0
    (row,) = report(tmp_path / "out").comparison.rows
    assert (row.graphs, row.refused) == (2, {victim.content_hash: "too large\\nby far"})


def test_an_absent_extra_leaves_the_solver_out(tmp_path, monkeypatch):
    config = EvaluationConfig(**TWO, methods=("cp-sat", "tuned-brkga"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    jobs = make_jobs(config)
    assert {job.name for job in jobs.jobs} == {"brkga"}
    assert "pip install 'regal-jax[exact]'" in jobs.left_out["cp-sat"]
    assert "regal-jax tune" in jobs.left_out["tuned-brkga"]


def test_keys_hold_all_that_decides(tmp_path, monkeypatch):
    def keys(**settings):
        return [job.key for job in make_jobs(EvaluationConfig(**{**TWO, "methods": (), **settings})).jobs]

    base = keys()
    for change in (
        {"objective": "peak-memory"}, {"devices": 3}, {"memory": "1GiB"}, {"transfer": "free"},
        {"seeds": (5,)}, {"evaluations": 81}, {"options": OPTIONS}, {"capacity": 1.5},
    ):  # fmt: skip
        assert keys(**change) != base, change
    assert keys(chunk=7, warm_up=True, limit=1, cp_sat_seconds=3.0, split="train") == base
    assert keys(policies={"regal": "policy2.safetensors"})[0] == base[0]
    monkeypatch.setattr("regal_jax.experiments.jobs.code_word", lambda: "another version")
    assert keys() != base
    assert thousands(5000) == "5K"


def test_the_word_for_the_code_holds_the_weights_that_ship(tmp_path, monkeypatch):
    monkeypatch.setattr("regal_jax.experiments.records.__file__", str(tmp_path / "room" / "records.py"))
    file = tmp_path / "room" / "trained" / "kind" / "weights"
    file.parent.mkdir(parents=True)
    words = []
    for text in ("one", "other", "one"):
        file.write_text(text)
        words.append(code_word.__wrapped__())
    assert words[0] == words[2] != words[1]
    file.unlink()
    assert code_word.__wrapped__() != words[0]


@pytest.mark.parametrize("method", ["list-search", "auto"])
def test_keys_hold_the_weights_of_insertion_moves(method, tmp_path):
    file = tmp_path / "policy.toml"
    settings = {"insertion_policy": str(file)}
    options = {method: {"settings": {"list_search": settings} if method == "auto" else settings}}
    config = EvaluationConfig(**{**TWO, "methods": (method,), "options": options})

    def key(policy):
        save_insertion_policy(file, policy)
        return make_jobs(config).jobs[1].key

    policies = [named_insertion_policy(name) for name in ("default", "untrained", "default")]
    first, second, third = map(key, policies)
    assert first == third != second
    assert thousands(300) == "300"


def test_graphs_come_from_sets_their_parts_and_the_sample(tmp_path):
    (tmp_path / "test").mkdir()
    for i, name in enumerate(("one", "two")):
        save_graph(generate("chain", 3 + i, seed=i), tmp_path / "test" / f"{name}.json")
    (tmp_path / "train").mkdir()
    save_graph(generate("chain", 9, seed=0), tmp_path / "train" / "three.json")
    (tmp_path / "test" / "copy.json").write_bytes((tmp_path / "test" / "one.json").read_bytes())

    def sizes(**settings):
        return [
            g.num_ops for g in evaluation_graphs(EvaluationConfig(**{"graphs": str(tmp_path), **settings}))
        ]

    assert sorted(sizes()) == sorted({g.num_ops for g in evaluation_graphs(EvaluationConfig(str(tmp_path)))})
    assert len(sizes()) == 2
    assert len(sizes(split="train")) == 1
    assert len(sizes(limit=1)) == 1
    assert len(sizes(contract=True)) == 2
    with pytest.raises(ConfigError, match="max_ops is 1, but the smallest graph has"):
        sizes(max_ops=1)
    (small, large) = sorted(sizes())
    assert sizes(min_ops=large) == [large]
    assert sizes(min_ops=small, max_ops=small) == [small]
    with pytest.raises(ConfigError, match=f"min_ops: is {large + 1}, but the largest graph has {large} ops"):
        sizes(min_ops=large + 1)
    with pytest.raises(FormatError, match="nowhere"):
        sizes(graphs="nowhere")
    assert len(sizes(graphs="sample", limit=3, max_ops=500)) == 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"graphs": ""}, "graphs: give the path"),
        ({"suite": "other"}, "suite: there is no 'other'"),
        ({"split": "tset"}, "split: there is no 'tset'; use one of train, validation, test"),
        ({"objective": "speed"}, "objective: unknown 'speed'"),
        ({"evaluations": 0}, "evaluations: must be a whole number of at least 1"),
        ({"seeds": (1, 1)}, "seeds: a number occurs twice"),
        ({"seeds": ()}, "seeds: give at least one"),
        ({"limits": (200, 100)}, "limits: must ascend"),
        ({"budgets": (200, 100)}, "budgets: must ascend"),
        ({"methods": ("magic",)}, "methods: unknown 'magic'"),
        ({"policies": {"brkga": "x"}}, "policies: brkga takes no policy"),
        ({"policies": {"regal": ""}}, "policies.regal: give a file"),
        ({"options": {"brkga": 3}}, "options.brkga: must be a table"),
        ({"options": {"cp-sat": {"settings": "x"}}}, "options.cp-sat.settings: must be a table"),
        ({"transfer": None}, "transfer: give a str"),
        ({"cp_sat_seconds": 0}, "cp_sat_seconds: must be"),
        ({"rounds": {"x": ["a"]}}, "rounds: T must be a whole number"),
        ({"rounds": {"7" * 5000: ["a"]}}, "rounds: T must be a whole number up to 2147483647"),
        ({"methods": [10**5000]}, "methods: must be a list of names"),
        ({"rounds": {"1": "a"}}, "rounds.1: must be a list"),
        ({"contract": 1}, "contract: must be true or false"),
        ({"colour": 1}, "colour: there is no such setting"),
        ({"first": 3}, "first: is for the suite topological-order; leave it out"),
        ({"suite": "robust-scheduling", "same_time": False}, "same_time: is for the suite topological-order"),
        ({"suite": "realistic", "untrained": False}, "untrained: is for the suite topological-order"),
        ({"count": 10}, "count: is for the suite robust-scheduling; leave it out"),
        ({"suite": "topological-order", "keep": 10}, "keep: is for the suite robust-scheduling"),
        ({"draws": 1}, "draws: is for the suite robust-scheduling"),
        ({"suite": "realistic", "temperature": 0.1}, "temperature: is for the suite robust-scheduling"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ConfigError, match=message):
        EvaluationConfig.from_document({"graphs": "set", **settings})


@pytest.mark.parametrize(
    ("method", "options", "reason"),
    [
        ("auto", {"name": 5}, "name: give a str"),
        ("auto", {"evaluations": 0}, "evaluations: must be a whole number of at least 1"),
        ("auto", {"runs": 1.5}, "runs: must be a whole number of at least 1"),
        ("auto", {"twice": "no"}, "twice is 'no'"),
        ("auto", {"warm_start": 1}, "warm_start is 1"),
        ("bfs", {"evaluations": 7}, "BFS is no search, and has no evaluations"),
        ("bfs", {"runs": 2}, "BFS is no search, and has no runs"),
        ("bfs", {"warm_start": True}, "BFS is no search, and has no warm_start"),
        ("auto", {"name": "BRKGA 80"}, "has the title 'BRKGA 80' of another row"),
        ("partition-dfs", {"name": "GP + DFS"}, "has the title 'GP + DFS' of another row"),
    ],
)
def test_options_that_cannot_be_leave_a_method_out(method, options, reason):
    config = EvaluationConfig(**TWO, methods=("gp-dfs", method), options={method: options})
    jobs = make_jobs(config)
    assert reason in jobs.left_out[method]
    assert [job.title for job in jobs.jobs] == ["BRKGA 80", "GP + DFS"]


def test_memory_without_end_may_be_a_number(tmp_path):
    (tmp_path / "evaluation.toml").write_text('graphs = "set"\nmemory = inf\ncapacity = 1.5\n')
    config = EvaluationConfig.from_document(EvaluationConfig.read(tmp_path / "evaluation.toml"))
    assert (config.memory, config.capacity) == ("inf", 1.5)
    assert json.loads(json.dumps(config.as_document(), allow_nan=False))["memory"] == "inf"


def test_settings_survive_a_file(tmp_path):
    text = (
        'graphs = "set"\nseeds = [3, 4]\n[options.brkga.settings]\npopulation = 40\n[policies]\nmine = "p"\n'
    )
    (tmp_path / "evaluation.toml").write_text(text)
    config = EvaluationConfig.from_document(EvaluationConfig.read(tmp_path / "evaluation.toml"))
    assert (config.seeds, config.policies, config.evaluations) == ((3, 4), {"mine": "p"}, 5000)
    assert EvaluationConfig.from_document(json.loads(json.dumps(config.as_document()))) == config
    assert make_jobs(config).jobs[0].method.solver.config.population == 40
    with pytest.raises(ConfigError, match="cannot be read as TOML"):
        EvaluationConfig.read(tmp_path / "none.toml")
    with pytest.raises(ConfigError, match="brkga: there is no setting 'colour'"):
        make_jobs(EvaluationConfig("set", options={"brkga": {"settings": {"colour": 1}}}))


def test_further_rows_of_a_solver():
    alone = {"solver": "List-Search", "settings": {"class_share": 0.0}}
    settings = {"methods": ("list-search", "alone"), "limits": (), "other_seed": -1}
    jobs = make_jobs(EvaluationConfig("set", options={"alone": alone}, **settings)).jobs[1:]
    assert [(job.name, job.title) for job in jobs] == [("list-search", "List search"), ("alone", "alone")]
    assert [job.method.solver.class_share for job in jobs] == [0.5, 0.0]
    assert jobs[0].key != jobs[1].key
    assert (
        make_jobs(EvaluationConfig("set", options={"alone": {**alone, "name": "A"}}, **settings))
        .jobs[2]
        .title
        == "A"
    )
    for options, message in (
        ({"brkga": alone}, r"options\.brkga: is a method itself; choose another name"),
        (
            {"alone": {"solver": "nothing"}},
            r"options\.alone: solver is 'nothing'; use a method without a policy",
        ),
        ({"alone": {"solver": "gas"}}, r"options\.alone: solver is 'gas'; use a method without a policy"),
        ({"alone": {"settings": {}}}, r"methods: unknown 'alone'"),
    ):
        with pytest.raises(ConfigError, match=message):
            EvaluationConfig("set", options=options, **settings)
    with pytest.raises(ConfigError, match="this suite takes no further rows of a solver; drop solver"):
        EvaluationConfig(suite="topological-order", options={"alone": alone}, methods=("alone",))


def test_each_budget_below_a_population_is_warmed_up(folder, tmp_path, monkeypatch):
    calls, own = [], Method.__call__

    def counting(self, *args, evaluations, **options):
        calls.append(evaluations)
        return own(self, *args, evaluations=evaluations, **options)

    monkeypatch.setattr(Method, "__call__", counting)
    config = EvaluationConfig(
        **{**TWO, "warm_up": True}, methods=("brkga",), options=OPTIONS, budgets=(10, 15), seeds=(0,)
    )
    run_evaluation(config, tmp_path / "out")
    # All graphs share a program: one call compiles it for each budget, one is measured.
    assert sorted(calls) == [10, 10, 15, 15, 80, 80]
