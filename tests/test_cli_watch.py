"""``regal-jax optimize --watch``: a folder of graphs that grows."""

import os
import pathlib
import signal

import pytest

from regal_jax import api
from regal_jax.cli import main
from regal_jax.cli import optimize as command
from regal_jax.cli import watch as watching
from regal_jax.cli.watch import Incoming
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError
from regal_jax.importers import save_graph
from regal_jax.plan import Plan
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.solvers.loop.call import Call


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    os.mkdir("graphs")


def put(name, ops=20, seed=0):
    graph = generate("erdos-renyi", ops, seed=seed)
    save_graph(graph, f"graphs/{name}")
    return graph


def after(monkeypatch, *events):
    """Runs one of ``events`` whenever the command would sleep, and interrupts it after the last."""
    left = list(events)

    def pause(_):
        if left:
            left.pop(0)()
        else:
            signal.raise_signal(signal.SIGINT)
            check_interrupt()

    monkeypatch.setattr(command, "pause", pause)
    return left


def watch(*more):
    options = ("--watch", "graphs", "--out-dir", "plans", "--evaluations", "100", "--method", "brkga")
    return main(["optimize", *options, *more])


def nothing():
    pass


def test_a_file_is_taken_once_and_when_it_is_complete(tmp_path):
    incoming = Incoming(tmp_path, lambda name: name.endswith(".json"))
    path = tmp_path / "a.json"
    path.write_text("{")
    (tmp_path / ".b.json").write_text("{}")
    (tmp_path / "c.txt").write_text("{}")
    (tmp_path / "d.json").mkdir()
    assert incoming.take() == []
    path.write_text("{}")
    assert incoming.take() == []
    assert incoming.take() == [str(path)]
    assert incoming.take() == []
    path.write_text("{ }")
    assert incoming.take() == []
    assert incoming.take() == [str(path)]
    path.unlink()
    assert incoming.take() == incoming.take() == []
    path.write_text("{ }")
    incoming.take()
    assert incoming.take() == [str(path)]


def test_no_folder(tmp_path):
    with pytest.raises(
        ConfigError, match=r"--watch: cannot read the folder .*: No such file or directory; name"
    ):
        Incoming(tmp_path / "none", bool)


def test_graphs_that_are_there_and_that_appear(monkeypatch, capsys):
    first = put("first.json")
    after(
        monkeypatch,
        nothing,
        lambda: put("second.json.gz", seed=1),
        nothing,
        lambda: put("third.json", seed=2),
    )
    assert watch() == 0
    assert sorted(os.listdir("plans")) == ["first.plan.json", "second.plan.json"]
    Plan.load("plans/first.plan.json").verify(first)
    out, err = capsys.readouterr()
    assert err == ""
    lines = out.splitlines()
    assert lines[0] == "watching graphs; Ctrl-C ends it"
    assert [line.split(":")[0] for line in lines[1:]] == ["graphs/first.json", "graphs/second.json.gz"]
    # The next process plans only what has no plan.
    before = pathlib.Path("plans/first.plan.json").stat().st_mtime_ns
    after(monkeypatch, nothing)
    assert watch() == 0
    assert sorted(os.listdir("plans")) == ["first.plan.json", "second.plan.json", "third.plan.json"]
    assert pathlib.Path("plans/first.plan.json").stat().st_mtime_ns == before
    assert "graphs/first.json: has a plan in plans/first.plan.json" in capsys.readouterr().out


def test_plans_beside_their_graphs_are_no_graphs(monkeypatch, capsys):
    graph = put("a.json")
    after(monkeypatch, nothing, nothing, nothing)
    assert main(["optimize", "--watch", "graphs", "--out-dir", "./graphs", "--method", "bfs"]) == 0
    assert capsys.readouterr().err == ""
    Plan.load("graphs/a.plan.json").verify(graph)
    assert sorted(os.listdir("graphs")) == ["a.json", "a.plan.json"]


def test_what_cannot_be_planned_costs_only_itself(monkeypatch, capsys):
    put("good.json")
    put("good.json.gz")
    pathlib.Path("graphs/broken.json").write_text("{")
    # It can be read, and has no plan: its times overflow.
    pathlib.Path("graphs/endless.json").write_text(
        '{"format": "regal_jax.graph", "version": 1, "time_unit": "s", "name": "e", "ops": ['
        + ", ".join(f'{{"name": "o{i}", "runtime": 1e40}}' for i in range(71))
        + "]}"
    )
    after(monkeypatch, nothing, lambda: put("broken.json", seed=3), nothing)
    assert watch("--quiet") == 2
    assert sorted(os.listdir("plans")) == ["broken.plan.json", "good.plan.json"]
    out, err = capsys.readouterr()
    assert out == ""
    said = {line.split(":")[1].strip(): line for line in err.splitlines()}
    assert said.keys() == {"graphs/broken.json", "graphs/endless.json", "graphs/good.json.gz"}
    assert "rename one" in said["graphs/good.json.gz"]
    assert said["graphs/broken.json"].startswith("regal-jax optimize: graphs/broken.json: not JSON: ")


def test_a_graph_that_changes_does_not_replace_the_plan_of_another(monkeypatch, capsys):
    put("a.json")
    after(monkeypatch, nothing, lambda: put("a.json", seed=5), nothing)
    assert watch("--quiet") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "holds a plan for another graph" in err
    Plan.load("plans/a.plan.json").verify(generate("erdos-renyi", 20, seed=0))


def test_a_plan_that_does_not_fit_is_the_exit_code(monkeypatch, capsys):
    put("a.json")
    after(monkeypatch, nothing)
    assert watch("--memory", "10", "--quiet") == 3
    assert "graphs/a.json" in capsys.readouterr().err


def test_sigterm_ends_it(monkeypatch, capsys):
    put("a.json")
    monkeypatch.setattr(watching.time, "sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    assert watch() == 143
    capsys.readouterr()


def test_ctrl_c_in_a_search_saves_and_ends_and_the_next_process_goes_on(monkeypatch, capsys):
    here = os.getcwd()
    put("a.json", ops=60)
    after(monkeypatch, nothing)
    search = command._search_many

    def pressed(*args):
        options = args[-1]
        options["evaluations"] = 10**9
        return search(*args)

    monkeypatch.setattr(command, "_search_many", pressed)
    took = Call._follow

    def follow(self, *args):
        tell = took(self, *args)

        def pressing(progress):
            tell(progress)
            if progress.generation:
                signal.raise_signal(signal.SIGINT)

        return pressing

    monkeypatch.setattr(Call, "_follow", follow)
    assert watch("--no-warm-start") == 0
    found = Plan.load("plans/a.plan.json")
    assert found.provenance["stopped"] == "interrupted"
    assert "plan saved" in capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.chdir(here)
    after(monkeypatch, nothing)
    assert watch() == 0
    better = Plan.load("plans/a.plan.json")
    assert better.provenance["stopped"] == "budget"
    assert better.sort_key <= found.sort_key


class KilledError(Exception):
    """Ends a command before it saves anything itself."""


def test_a_search_that_was_killed_is_made_by_the_next_process(monkeypatch, capsys):
    graph = put("a.json")
    search = api.optimize

    def killed(*given, **options):
        search(*given, **options)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(api, "optimize", killed)
        with pytest.raises(KilledError):
            main(["optimize", "graphs/a.json", "--out-dir", "plans", "--evaluations", "100"])
    found = Plan.load("plans/a.plan.json")
    found.verify(graph)
    assert found.provenance["stopped"] == "interrupted"
    for said in ("plan saved to", "has a plan in"):
        after(monkeypatch, nothing)
        assert watch() == 0
        assert f"{said} plans/a.plan.json" in capsys.readouterr().out
        plan = Plan.load("plans/a.plan.json")
        assert plan.provenance["stopped"] in ("budget", "optimal")
        assert plan.sort_key <= found.sort_key


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--watch", "graphs"], "--out-dir"),
        (["--watch", "none", "--out-dir", "plans"], "'none'"),
        (["--watch", "graphs", "--out-dir", "plans", "a.json"], "leave out a file"),
        (["--watch", "graphs", "--out-dir", "plans", "--plot", "p.png"], "leave out --plot"),
        (["--watch", "graphs", "--out-dir", "plans", "--example", "mlp"], "leave out --example"),
        (["--watch", "graphs", "--out-dir", "plans", "--every", "0"], "--every"),
    ],
)
def test_refusals(arguments, said, capsys):
    put("a.json")
    try:
        code = main(["optimize", *arguments])
    except SystemExit as exit_:  # Raised by the parser.
        code = exit_.code
    assert code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def test_orders_are_made_of_what_appears(monkeypatch, capsys):
    graph = put("a.json")
    after(monkeypatch, nothing)
    pathlib.Path("graphs/broken.json").write_text("{")
    assert main(["order", "--watch", "graphs", "--out-dir", "plans", "--evaluations", "50", "--quiet"]) == 2
    plan = Plan.load("plans/a.plan.json")
    plan.verify(graph)
    assert plan.cluster.num_devices == 1
    assert capsys.readouterr().err.startswith("regal-jax order: graphs/broken.json: not JSON: ")
