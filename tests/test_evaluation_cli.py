"""`regal-jax evaluate` and `regal-jax tune` as scripts use them."""

import json
import pathlib

import pytest

from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.experiments import TunedConfig
from regal_jax.importers import save_graph


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "set").mkdir()
    for i in range(2):
        save_graph(generate("erdos-renyi", 10, seed=i), tmp_path / "set" / f"graph{i}.json")


def run(*args):
    return main([str(a) for a in args])


QUICK = ("--graphs", "set", "--methods", "brkga,critical-path", "--limits", "none", "--no-warm-up")


def test_evaluate_reports_and_goes_on(capsys):
    assert run("evaluate", *QUICK, "--evaluations", 60, "--out", "out", "--policy", "regal=none") == 0
    out, err = capsys.readouterr()
    assert "6 results added to out, 0 were there" in out
    assert "| Critical path |" in out
    assert "saved to out: table.csv, table.md, graphs.csv, contrasts.csv, summary.json" in out
    assert err.startswith("regal-jax evaluate: left out regal: policy: no file 'none'")
    assert err.count("\n") == 1
    table = pathlib.Path("out/table.md").read_text()
    assert run("evaluate", *QUICK, "--evaluations", 60, "--out", "out") == 0
    assert "0 results added to out, 6 were there" in capsys.readouterr().out
    pathlib.Path("out/table.md").unlink()
    assert run("evaluate", "--out", "out", "--report-only", "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    again = pathlib.Path("out/table.md").read_text()
    assert again.splitlines()[:5] == table.splitlines()[:5]


def test_a_report_alone_is_of_the_settings_of_the_last_run(capsys):
    last = (*QUICK, "--evaluations", 60, "--out", "out", "--quiet")
    assert run("evaluate", *last) == 0
    pathlib.Path("same.toml").write_text("evaluations = 60\nseeds = [0]\n")
    assert run("evaluate", *last, "--report-only") == 0
    assert run("evaluate", "--config", "same.toml", "--out", "out", "--quiet", "--report-only") == 0
    capsys.readouterr()
    pathlib.Path("other.toml").write_text("evaluations = 60\nseeds = [1]\n")
    for settings, named in (
        (("--methods", "heft"), "methods"),
        (("--config", "other.toml"), "seeds"),
        ((*QUICK, "--capacity", 1.5), "capacity"),
        (("--contract", "--policy", "mine=file"), "contract, policies"),
    ):
        assert run("evaluate", *settings, "--out", "out", "--report-only") == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert f"error: {named}: --report-only reports the last run in out" in err


def test_arguments_go_before_the_file(capsys):
    pathlib.Path("e.toml").write_text(
        'graphs = "nowhere"\nevaluations = 50\nother_seed = -1\nmemory = "1GiB"\n'
    )
    assert run("evaluate", *QUICK, "--config", "e.toml", "--out", "out", "--quiet", "--seeds", 3) == 0
    settings = json.loads(pathlib.Path("out/evaluation.json").read_text())["config"]
    assert (settings["graphs"], settings["evaluations"], settings["memory"]) == ("set", 50, "1GiB")
    assert (settings["seeds"], settings["limits"], settings["warm_up"]) == ([3], [], False)
    lines = pathlib.Path("out/results.jsonl").read_text().splitlines()
    assert [json.loads(line)["seed"] for line in lines] == [3] * 4


def test_the_capacity_is_that_of_a_file():
    pathlib.Path("e.toml").write_text("other_seed = -1\ncapacity = 1.5\n")
    quick = (*QUICK, "--evaluations", 60, "--quiet")
    assert run("evaluate", *quick, "--config", "e.toml", "--out", "file") == 0
    pathlib.Path("e.toml").write_text("other_seed = -1\n")
    assert run("evaluate", *quick, "--config", "e.toml", "--capacity", 1.5, "--out", "option") == 0
    assert run("evaluate", *quick, "--config", "e.toml", "--out", "option") == 0
    found = []
    for folder in ("file", "option"):
        lines = pathlib.Path(folder, "results.jsonl").read_text().splitlines()
        found.append([(r["method"], r["graph"], r["value"]) for r in map(json.loads, lines)])
    assert found[0] == found[1][: len(found[0])]
    assert len(found[1]) == 2 * len(found[0])
    assert json.loads(pathlib.Path("file/evaluation.json").read_text())["config"]["capacity"] == 1.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--graphs: give the path"),
        (("--graphs", "nowhere"), "nowhere"),
        (("--graphs", "set", "--methods", "magic"), "unknown 'magic'"),
        ((*QUICK, "--config", "none.toml"), "none.toml: cannot be read as TOML"),
        ((*QUICK, "--memory", "much"), "much"),
        (
            (*QUICK, "--cases", 3),
            "cases: is for the suite realistic or topological-order or robust-scheduling",
        ),
        ((*QUICK, "--sizes", 30), "sizes: is for the suite topological-order or robust-scheduling; leave it"),
        ((*QUICK, "--losses", "a=b"), "losses: is for the suite robust-scheduling; leave it out"),
        ((*QUICK, "--suite", "realistic", "--regimes", "a=b"), "regimes: is for the suite robust-scheduling"),
        (
            (*QUICK, "--capacity", "1.2", "--memory", "1GiB"),
            "memory, capacity: are '1GiB' and 1.2; leave one out",
        ),
        ((*QUICK, "--weights", "regal=nofile"), "weights: the suite 'regal' takes none; give a policy"),
        ((*QUICK, "--suite", "realistic", "--weights", "a=nofile"), "weights: the suite 'realistic' takes"),
        (("--report-only",), "no evaluation there"),
        (("--small", *QUICK), "--small: is for --suite cp-sat-minute"),
        ((*QUICK, "--policy", "a=x", "--policy", "a=y"), "--policy: a is given twice; give it once"),
    ],
)
def test_bad_input_is_one_line(arguments, message, capsys):
    assert run("evaluate", "--out", "out", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("regal-jax evaluate: error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "option",
    [
        "--policy=regal", "--limits=a", "--rounds=3", "--methods=,",
        "--capacity=much", "--capacity=0", "--capacity=-1", "--capacity=nan",
    ],
)  # fmt: skip
def test_bad_arguments(option, capsys):
    with pytest.raises(SystemExit) as ended:
        run("evaluate", "--out", "out", option)
    assert ended.value.code == 2
    assert option.partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize("out", [(), ("--out", "out")])
def test_an_unknown_suite_is_told_without_an_output_too(out, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        run("evaluate", "--suite", "other", *out)
    err = capsys.readouterr().err
    assert "argument --suite: there is no 'other'; use one of regal, realistic" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("grid", ["population", "population=", "=1", "population=many"])
def test_a_grid_is_a_name_and_numbers(grid, capsys):
    with pytest.raises(SystemExit) as ended:
        run("tune", "--graphs", "set", "--grid", grid, "--out", "tuned.json")
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert f"argument --grid: must be NAME=NUMBER,NUMBER,..., got {grid!r}" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("grid", "message"),
    [
        (("population=10.5",), "tune: population is 10.5; give whole numbers"),
        (("population=10", "population=20"), "--grid: population is given twice; give it once"),
    ],
)
def test_a_grid_that_would_not_be_tried_as_given_is_refused(grid, message, capsys):
    options = [part for values in grid for part in ("--grid", values)]
    assert run("tune", "--graphs", "set", *options, "--out", "tuned.json") == 2
    assert capsys.readouterr().err == f"regal-jax tune: error: {message}\n"
    assert not pathlib.Path("tuned.json").exists()


def test_an_empty_folder_name_is_refused(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        run("evaluate", *QUICK, "--out", "")
    err = capsys.readouterr().err
    assert "argument --out: is empty; give a folder" in err
    assert err.count("\n") == 1
    assert [path.name for path in pathlib.Path().iterdir()] == ["set"]


def test_an_interrupted_run_says_how_to_go_on(monkeypatch, capsys):
    from regal_jax.experiments import run as run_module

    def interrupted(self, job, graphs):
        raise KeyboardInterrupt

    monkeypatch.setattr(run_module._Run, "_timed", interrupted)
    assert run("evaluate", *QUICK, "--out", "out") == 130
    assert "interrupted; run the same command again to resume" in capsys.readouterr().err


@pytest.mark.parametrize(
    "more",
    [
        ("--methods", "brkga"),
        ("--methods", "mine", "--config", "own.toml"),
        ("--suite", "topological-order"),
        ("--suite", "table-1-real-makespan", "--methods", "brkga"),
    ],
)
def test_tuned_settings_that_no_method_takes_are_refused(capsys, more):
    pathlib.Path("own.toml").write_text('[options.mine]\nsolver = "tuned-brkga"\nfile = "own.json"\n')
    assert run("evaluate", "--graphs", "set", *more, "--tuned", "no.json", "--out", "out") == 2
    assert "--tuned: no method takes it; leave it out" in capsys.readouterr().err
    assert not pathlib.Path("out").exists()


def test_tuned_settings_of_a_file_that_none_of_its_methods_takes_are_refused(capsys):
    pathlib.Path("own.toml").write_text('methods = ["critical-path"]\ntuned = "no.json"\n')
    arguments = ("--graphs", "set", "--limits", "none", "--evaluations", 20, "--no-warm-up", "--out", "out")
    assert run("evaluate", *arguments, "--config", "own.toml") == 2
    assert "own.toml: tuned: no method takes it; leave it out" in capsys.readouterr().err
    assert not pathlib.Path("out").exists()
    # Those of the command line need not take what the file has for its own.
    pathlib.Path("other.toml").write_text('methods = ["tuned-brkga"]\ntuned = "no.json"\n')
    assert run("evaluate", *arguments, "--config", "other.toml", "--methods", "critical-path") == 0


def test_methods_without_the_tuned_one_need_no_file_of_a_table(capsys):
    arguments = ("--suite", "table-1-real-makespan", "--small", "--methods", "critical-path")
    small = ("--limits", "none", "--evaluations", 20, "--seeds", 0, "--no-warm-up", "--quiet")
    assert run("evaluate", *arguments, "--graphs", "set", *small, "--out", "out") == 0
    assert "tuned" not in capsys.readouterr().err


def test_tune_and_evaluate_what_was_tuned(capsys):
    grid = (
        "--grid",
        "population=20",
        "--grid",
        "elites=0.2",
        "--grid",
        "mutants=0.1",
        "--grid",
        "elite_bias=0.6",
    )
    assert run("tune", "--graphs", "set", "--evaluations", 60, *grid, "--out", "tuned.json") == 0
    out = capsys.readouterr().out
    assert "best of 1 on 2 graphs: population 20, elites 4, mutants 2, elite_bias 0.6" in out
    assert TunedConfig.load("tuned.json").config.population == 20
    points = pathlib.Path("tuned.json.points.jsonl").read_text()
    assert run("tune", "--graphs", "set", "--evaluations", 60, *grid, "--out", "tuned.json", "--quiet") == 0
    assert pathlib.Path("tuned.json.points.jsonl").read_text() == points
    assert capsys.readouterr() == ("", "")
    small = ("--memory", "10", "--evaluations", 60, *grid, "--out", "small.json")
    assert run("tune", "--graphs", "set", *small, "--quiet") == 0
    err = capsys.readouterr().err
    assert "regal-jax: warning: tune: with the best settings, plans of 2 of 2 graphs do not fit" in err
    assert err.count("\n") == 1
    arguments = ("--methods", "tuned-brkga", "--limits", "none", "--tuned", "tuned.json", "--evaluations", 60)
    assert run("evaluate", "--graphs", "set", *arguments, "--no-warm-up", "--out", "out") == 0
    assert "| Tuned BRKGA |" in capsys.readouterr().out
    assert run("tune", "--graphs", "set", "--grid", "colour=1", "--out", "tuned.json") == 2
    assert "no colour" in capsys.readouterr().err
