"""Repeated calls of ``regal-jax optimize --out-dir``, and ``--warm-start``."""

import dataclasses
import functools
import json
import os
import pathlib

import pytest

from regal_jax import api
from regal_jax.cli import main, resume
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.importers import load_graph, save_graph
from regal_jax.plan import Plan
from regal_jax.solvers import HostSolver, ListSearch, registry

FILE = pathlib.Path("plans/a.plan.json")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, seed in (("a", 3), ("b", 4)):
        save_graph(generate("erdos-renyi", 40, seed=seed), f"{name}.json")


def run(*args):
    transfer = () if "--transfer" in args else ("--transfer", "blocking:latency=1,bandwidth=10")
    return main(["optimize", *map(str, args), *transfer])


def test_a_better_plan_is_never_replaced(capsys):
    good, quick = ("--evaluations", 5000, "--method", "auto"), ("--method", "bfs")
    assert run("a.json", "--out-dir", "plans", *good) == 0
    before = FILE.read_bytes()
    plan = Plan.load(FILE)
    capsys.readouterr()
    for options in (quick, ("--evaluations", 20), ("--evaluations", 20, "--no-warm-start")):
        assert run("a.json", "--out-dir", "plans", *options) == 0
        out = capsys.readouterr().out
        assert "kept the plan in plans/a.plan.json: nothing better was found" in out
        assert str(plan) in out
        assert FILE.read_bytes() == before
    assert run("a.json", "b.json", "--out-dir", "plans", *quick) == 0
    lines = dict(line.split(": ", 1) for line in capsys.readouterr().out.splitlines())
    assert lines["a.json"].endswith("; kept the plan in plans/a.plan.json: nothing better was found")
    assert lines["b.json"].endswith("; plan saved to plans/b.plan.json")
    assert FILE.read_bytes() == before
    assert sorted(os.listdir("plans")) == ["a.plan.json", "b.plan.json"]


def search(real, *given, **options):
    options.pop("on_plan", None)
    real(*given, **options)
    raise KilledError


class KilledError(Exception):
    """Ends a command before it saves anything itself."""


@pytest.fixture
def killed(monkeypatch):
    """Runs the command, whose searches end as if it were killed after them."""

    def call(*args):
        with monkeypatch.context() as patched:
            patched.setattr(resume, "_SHARE", float("inf"))  # However long saving takes.
            for name, real in (("optimize", api.optimize), ("optimize_many", api.optimize_many)):
                patched.setattr(api, name, functools.partial(search, real))
            with pytest.raises(KilledError):
                run(*args)

    return call


@pytest.mark.parametrize("files", [("a.json",), ("a.json", "b.json")], ids=len)
def test_a_killed_search_leaves_its_best_plan_so_far_in_the_folder(files, killed, capsys):
    killed(*files, "--out-dir", "plans", "--evaluations", 600)
    plan = Plan.load(FILE)
    plan.verify(load_graph("a.json"))
    assert run(*files, "--out-dir", "plans", "--method", "bfs") == 0
    assert "kept the plan in plans/a.plan.json" in capsys.readouterr().out
    killed(*files, "--out-dir", "plans", "--method", "random-topological")
    assert Plan.load(FILE).sort_key == plan.sort_key
    good = plan.sort_key
    FILE.unlink()
    killed(*files, "--out-dir", "plans", "--method", "random-topological")
    worse = Plan.load(FILE)
    assert good < worse.sort_key
    killed(*files, "--out-dir", "plans", "--evaluations", 600)
    assert Plan.load(FILE).sort_key <= good


def test_a_killed_search_leaves_its_plan_in_a_new_file_alone(killed):
    killed("a.json", "--out", "new.json", "--method", "bfs")
    plan = Plan.load("new.json")
    assert plan.graph_hash == load_graph("a.json").content_hash
    before = pathlib.Path("new.json").read_bytes()
    killed("a.json", "--out", "new.json", "--evaluations", 600)
    assert pathlib.Path("new.json").read_bytes() == before
    pathlib.Path("other").write_text("mine")
    killed("a.json", "--out", "other", "--evaluations", 600)
    assert pathlib.Path("other").read_text() == "mine"


@dataclasses.dataclass(frozen=True)
class Refusing(HostSolver):
    """Refuses its settings where a search begins, after the heuristics, for graphs of one name."""

    name = "refusing"
    graph: str = "erdos-renyi-40-4"

    def begin(self, instance):
        if instance.graph.name == self.graph:
            raise ConfigError("refusing: graph is never right; give another")
        return ListSearch().begin(instance)


def test_a_refusal_after_the_heuristics_leaves_no_plan_of_them(monkeypatch, capsys):
    monkeypatch.setitem(registry._registry, "refusing", registry.Entry("refusing", "R", "none", Refusing))
    refused = ("--method", "refusing", "--evaluations", 60)
    assert run("b.json", "--out", "new.json", *refused) == 2
    assert "error: refusing: graph is never right; give another" in capsys.readouterr().err
    assert not pathlib.Path("new.json").exists()
    # What an earlier run has left, and plans of other graphs that are finished, stay.
    assert run("a.json", "--out-dir", "plans", "--method", "random-topological") == 0
    assert run("a.json", "b.json", "--out-dir", "plans", *refused) == 2
    assert os.listdir("plans") == ["a.plan.json"]
    FILE.unlink()
    assert run("a.json", "b.json", "--out-dir", "plans", *refused) == 2
    for path in pathlib.Path("plans").iterdir():
        assert path == FILE
        assert Plan.load(path).provenance["stopped"] == "budget"


def test_a_search_goes_on_from_the_folder_and_a_better_plan_is_saved(capsys):
    assert run("a.json", "--out-dir", "plans", "--method", "random-topological") == 0
    worse = Plan.load(FILE)
    assert run("a.json", "--out-dir", "plans", "--evaluations", 300) == 0
    better = Plan.load(FILE)
    assert better.sort_key < worse.sort_key
    assert worse.objective_value in [
        value for name, value in better.provenance["warm_start"].items() if name.startswith("earlier plan")
    ]
    assert "plan saved to plans/a.plan.json" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--devices", 3), "a plan for another cluster"),
        (("--memory", "1GiB"), "a plan for another cluster"),
        (("--transfer", "free"), "a plan for another cluster"),
        (("--objective", "peak-memory"), "a plan for another objective"),
        (("--pin", "*=0"), "a plan for another choice of pins"),
        (("--colocate", "*"), "a plan for another choice of pins"),
        ("graph", "a plan for another graph"),
        ("text", "no plan that can be read"),
        ("order", "a plan that is not valid for its graph"),
    ],
)
def test_a_file_that_answers_another_question_is_refused_and_kept(change, said, capsys):
    assert run("a.json", "--out-dir", "plans", "--method", "bfs") == 0
    if change == "graph":
        save_graph(generate("erdos-renyi", 40, seed=9), "a.json")
    elif change == "text":
        FILE.write_text("{}")
    elif change == "order":
        document = json.loads(FILE.read_text())
        document["events"].reverse()
        FILE.write_text(json.dumps(document))
    before = FILE.read_bytes()
    capsys.readouterr()
    options = change if isinstance(change, tuple) else ()
    assert run("a.json", "b.json", "--out-dir", "plans", "--method", "bfs", *options) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert f"'plans/a.plan.json' holds {said}, and is left as it is" in err
    assert FILE.read_bytes() == before
    assert os.listdir("plans") == ["a.plan.json"]


def test_stale_figures_are_written_anew():
    assert run("a.json", "--out-dir", "plans", "--method", "critical-path") == 0
    right = Plan.load(FILE)
    document = json.loads(FILE.read_text())
    document["makespan"] /= 2
    FILE.write_text(json.dumps(document))
    assert run("a.json", "--out-dir", "plans", "--method", "bfs") == 0
    again = Plan.load(FILE)
    again.verify(load_graph("a.json"))
    assert again.makespan == right.makespan


def test_a_folder_of_pinned_plans_goes_on_with_the_same_pins(capsys):
    pins = ("--pin", "*1=1,0", "--pin", "*2=0", "--colocate", "*[34]")
    same = ("--colocate", "*[34]", "--pin", "*2=0", "--pin", "*1=0,1")
    assert run("a.json", "--out-dir", "plans", "--method", "critical-path", *pins) == 0
    right, before = Plan.load(FILE), FILE.read_bytes()
    assert run("a.json", "--out-dir", "plans", "--method", "bfs", *same) == 0
    assert FILE.read_bytes() == before
    assert run("a.json", "--out-dir", "plans", "--method", "bfs") == 2
    assert "holds a plan for another choice of pins" in capsys.readouterr().err
    document = json.loads(before)
    document["makespan"] /= 2
    FILE.write_text(json.dumps(document))
    assert run("a.json", "--out-dir", "plans", "--method", "bfs", *same) == 0
    again = Plan.load(FILE)
    again.verify(load_graph("a.json"))
    assert again.makespan == right.makespan
    assert again.lower_bound == right.lower_bound
    assert again.pin == {"*2": (0,), "*1": (0, 1)}


def test_warm_start_names_plans(capsys):
    assert run("a.json", "--evaluations", 5000, "--method", "auto", "--out", "good.json") == 0
    good = Plan.load("good.json")
    assert run("a.json", "--method", "bfs", "--out", "bad.json") == 0
    starts = ("--warm-start", "bad.json", "--warm-start", "good.json")
    assert run("a.json", "--evaluations", 20, *starts, "--out", "p.json") == 0
    assert Plan.load("p.json").sort_key <= good.sort_key
    capsys.readouterr()
    for arguments, said in (
        (["b.json", "--warm-start", "good.json"], "warm_start: the plan is for graph"),
        (["a.json", "--warm-start", "absent.json"], "error: absent.json: cannot be read: No such file"),
        (["a.json", "--warm-start", "good.json", "--no-warm-start"], "not both"),
        (["a.json", "--warm-start", "good.json", "--method", "bfs"], "bfs does not use earlier plans"),
    ):
        assert run(*arguments) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1
        assert said in err


def test_a_search_without_a_file_to_write_is_not_watched(tmp_path):
    there = tmp_path / "there.json"
    there.write_text("mine")
    assert resume.SoFar([(None, None), (str(there), None)]).callback is None
    assert resume.SoFar([(None, None), (str(tmp_path / "new.json"), None)]).callback is not None
