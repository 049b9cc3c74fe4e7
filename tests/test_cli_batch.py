"""``regal-jax optimize`` on several graphs, on all cores, and its behaviour at signals."""

import json
import os
import pty
import signal
import subprocess
import sys
import termios
import time

import pytest

from regal_jax.cli import main, sources
from regal_jax.cli import optimize as command
from regal_jax.datasets import generate
from regal_jax.importers import load_graph, save_graph
from regal_jax.plan import Plan
from regal_jax.plan.summary import headline
from regal_jax.runtime.interrupts import check_interrupt


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, ops, seed in (("a", 30, 1), ("b", 30, 2), ("c", 70, 2)):  # Two graphs share a bucket.
        # No heuristic meets the lower bound, so that there is something to search.
        save_graph(generate("erdos-renyi", ops, seed=seed), f"{name}.json")


def run(*args):
    return main(["optimize", *map(str, args)])


def plans(folder="plans"):
    return {name: Plan.load(os.path.join(folder, name)) for name in sorted(os.listdir(folder))}


def same(a, b):
    assert a.timeline.op.tolist() == b.timeline.op.tolist()
    assert a.placement.tolist() == b.placement.tolist()
    return True


def test_each_graph_gets_its_plan_and_a_line(capsys):
    os.rename("c.json", "c.v2.json")
    save_graph(load_graph("b.json"), "b.json.gz")
    assert run("a.json", "b.json.gz", "c.v2.json", "--evaluations", 200, "--out-dir", "new/plans") == 0
    out, err = capsys.readouterr()
    assert err == ""
    lines = sorted(out.splitlines())
    assert [line.split(":")[0] for line in lines] == ["a.json", "b.json.gz", "c.v2.json"]
    found = plans("new/plans")
    assert list(found) == ["a.plan.json", "b.plan.json", "c.v2.plan.json"]
    for file, line, (name, plan) in zip(("a.json", "b.json", "c.v2.json"), lines, found.items(), strict=True):
        plan.verify(load_graph(file))
        assert headline(plan) in line
        assert f"new/plans/{name}" in line
    assert run("b.json", "--evaluations", 200, "--out", "alone.json", "--quiet") == 0
    assert same(Plan.load("alone.json"), found["b.plan.json"])
    assert capsys.readouterr().out == ""


def test_one_graph_may_have_a_folder_too(capsys):
    options = ("--method", "bfs", "--out-dir", "plans")
    assert run("a.json", *options) == 0
    assert "plan saved to plans/a.plan.json" in capsys.readouterr().out
    assert run("a.json", "b.json", *options, "--quiet") == 0
    assert [plan.provenance["method"] for plan in plans().values()] == ["bfs", "bfs"]


def test_what_is_found_is_saved_before_the_next_search(monkeypatch):
    monkeypatch.setattr("regal_jax.solvers.loop.call._TOGETHER", 0)
    # The graphs have buckets of their own, and are not searched side by side as on one device.
    monkeypatch.setattr("regal_jax.solvers.loop.batches._SMALL", 0)
    monkeypatch.setattr("regal_jax.solvers.loop.call.is_alone", lambda share: False)
    monkeypatch.setattr("regal_jax.cli.resume._SHARE", float("inf"))
    with open("endless.json", "w") as file:
        ops = [{"name": f"o{i}", "runtime": 1e40} for i in range(71)]
        json.dump(
            {"format": "regal_jax.graph", "version": 1, "time_unit": "s", "name": "e", "ops": ops}, file
        )
    options = "--method", "brkga", "--evaluations", 100, "--out-dir", "plans", "--quiet"
    assert run("a.json", "endless.json", *options) == 2
    # The search of the other was refused, so that it has no plan, not even that of a heuristic.
    assert sorted(plans()) == ["a.plan.json"]


def test_graphs_that_do_not_fit_are_named(capsys):
    for name, ops in (("a", 10), ("c", 20)):
        save_graph(generate("layered", ops, seed=ord(name)), f"{name}.json")
    options = ("--method", "bfs", "--quiet", "--memory")
    sizes = [Plan.load(p).peak_memory.max() for p in _heuristic_plans("a.json", "c.json")]
    assert run("a.json", "c.json", *options, min(sizes)) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "c.json" in err


def _heuristic_plans(*files):
    for file in files:
        run(file, "--method", "bfs", "--out", f"{file}.plan", "--quiet")
        yield f"{file}.plan"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.json", "b.json", "--out", "p.json"], "--out-dir"),
        (["a.json", "b.json", "--plot", "p.png"], "regal-jax show"),
        (["a.json", "b.json", "--trace", "t.json"], "one graph"),
        (["a.json", "--out", "p.json", "--out-dir", "plans"], "not both"),
        (["a.json", "b.json", "--example", "mlp"], "not both"),
        (["a.json", "b.json", "--example", "mlp", "--out-dir", "plans"], "not both"),
        (["a.json", "./a.json", "--out-dir", "plans"], "'a'"),
        (["a.json", "--out-dir", "b.json"], "'b.json'"),
        (["a.json", "absent.json", "--out-dir", "plans"], "absent.json"),
    ],
)
def test_what_makes_no_sense_is_refused_before_the_search(arguments, said, capsys, monkeypatch):
    for name in ("optimize", "optimize_many"):
        monkeypatch.setattr(f"regal_jax.api.{name}", lambda *_, **__: pytest.fail("searched"))
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err


def process(arguments, script=None, **environment):
    """The command line and the environment of a new process, without settings of devices."""
    start = ["-m", "regal_jax.cli"] if script is None else ["-c", script]
    inherited = {k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"}
    flags = [flag for flag in inherited.pop("XLA_FLAGS", "").split() if "device_count" not in flag]
    environment["XLA_FLAGS"] = " ".join([*flags, environment.get("XLA_FLAGS", "")])
    fixed = {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": os.getcwd(), "JAX_PLATFORMS": "cpu"}
    return [sys.executable, *start, *map(str, arguments)], {**inherited, **fixed, **environment}


# Prints on how many devices each batch was searched, and how many there are.
_DEVICES = """
import os, sys
cores = int(sys.argv.pop(1))
if cores:
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:cores])
import regal_jax.solvers.loop.call as call
from regal_jax.cli import main
from regal_jax.cli import optimize as command
from regal_jax.cli import sources
solve, sizes = call.solve_in_parts, []
def noting(*args, mesh, **options):
    sizes.append(1 if mesh is None else mesh.size)
    return solve(*args, mesh=mesh, **options)
call.solve_in_parts = noting
code = main(sys.argv[1:])
import jax
print(sizes, jax.device_count(), len(os.sched_getaffinity(0)))
sys.exit(code)
"""


def devices(folder, *options, cores=0, **environment):
    arguments = [cores, "optimize", "a.json", "b.json", "--out-dir", folder, "--quiet", *options]
    command, env = process(arguments, _DEVICES, **environment)
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    sizes, rest = done.stdout.rsplit("]", 1)
    return (json.loads(sizes + "]"), *map(int, rest.split()))


def test_a_batch_is_spread_over_the_cores_and_the_plans_are_the_same():
    searched = ("--evaluations", 200, "--method", "brkga")
    sizes, count, cores = devices("all", *searched)
    assert count == cores
    assert sizes == [min(2, cores)]
    assert devices("one", *searched, cores=1) == ([1, 1], 1, 1)  # On one core, each graph is searched alone.
    one = plans("one")
    assert len(one) == 2
    assert all(same(plan, one[name]) for name, plan in plans("all").items())


@pytest.mark.slow
def test_a_number_of_devices_that_the_user_has_set_is_not_changed():
    chosen = ("--method", "bfs")
    assert devices("bfs", *chosen, JAX_NUM_CPU_DEVICES="5")[1] == 5
    assert devices("bfs", *chosen, XLA_FLAGS="--xla_force_host_platform_device_count=5")[1] == 5


def end_while_searching(arguments, number, before=()):
    """Runs the command at a terminal and signals it once its progress bar shows that it searches."""
    command, env = process(["optimize", *arguments, "--evaluations", 10**9])
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 100))
    running = subprocess.Popen([*before, *command], env=env, stdout=subprocess.PIPE, stderr=end, text=True)
    os.close(end)
    said, deadline = b"", time.monotonic() + 300
    try:
        while b"searching" not in said:
            assert time.monotonic() < deadline, said
            said += os.read(terminal, 4096)
        running.send_signal(number)
        out, _ = running.communicate(timeout=120)
    finally:
        running.kill()
        os.close(terminal)
    return running.returncode, out


def test_ctrl_c_saves_what_there_is():
    code, out = end_while_searching(["a.json", "--method", "brkga", "--out", "p.json"], signal.SIGINT)
    assert code == 0
    assert "plan saved" in out
    plan = Plan.load("p.json")
    plan.verify(load_graph("a.json"))
    assert plan.provenance["stopped"] == "interrupted"
    assert plan.provenance["evaluations"] >= 100


@pytest.mark.parametrize("background", [pytest.param(False, marks=pytest.mark.slow), True])
def test_sigterm_saves_what_there_is_and_exits_143(background):
    # Shells start background jobs with SIGINT ignored.
    before = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh"] if background else []
    # So large that it shares no program with the other.
    save_graph(generate("erdos-renyi", 600, seed=2), "c.json")
    arguments = ["a.json", "c.json", "--method", "brkga", "--out-dir", "plans"]
    code, out = end_while_searching(arguments, signal.SIGTERM, before)
    assert code == 143
    assert out.count("stopped after") == 2
    first, second = plans().values()
    first.verify(load_graph("a.json"))
    second.verify(load_graph("c.json"))
    assert [p.provenance["stopped"] for p in (first, second)] == ["interrupted"] * 2
    assert first.provenance["evaluations"] >= 100
    assert second.provenance["evaluations"] == 0


def test_sigterm_before_there_is_a_plan(monkeypatch, capsys):
    def ended(*_, **__):
        signal.raise_signal(signal.SIGTERM)
        check_interrupt()

    monkeypatch.setattr("regal_jax.api.optimize", ended)
    assert run("a.json", "--out", "p.json", "--quiet") == 143
    assert capsys.readouterr().err == "regal-jax: terminated\n"
    assert not os.path.exists("p.json")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("number", "code", "said"), [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_signal_at_the_very_end_is_the_exit_code(monkeypatch, capsys, number, code, said):
    searched = command._searched

    def pressing(*args):
        searched(*args)
        signal.raise_signal(number)

    monkeypatch.setattr(command, "_searched", pressing)
    assert run("a.json", "--method", "bfs", "--out", "p.json", "--quiet") == code
    assert capsys.readouterr().err == f"regal-jax: {said}\n"
    assert Plan.load("p.json").provenance["method"] == "bfs"


@pytest.mark.parametrize(
    "arguments",
    [
        ["generate", "chain", "--out", "g.json"],
        ["tune", "--graphs", "a.json", "--out", "t.json"],
        ["propose", "a.json", "--out-dir", "plans"],
        ["compile", "--out", "s.json"],
    ],
)
def test_sigterm_acts_like_ctrl_c_in_every_command(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sources, "try_to_write", lambda _: signal.raise_signal(signal.SIGTERM))
    assert main(arguments) == 143
    assert capsys.readouterr().err == "regal-jax: terminated\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 0)])
def test_a_signal_while_the_plan_is_saved_lets_it_be_saved(monkeypatch, number, code):
    verify = Plan.verify

    def signalled(plan, graph):
        signal.raise_signal(number)
        verify(plan, graph)

    monkeypatch.setattr(Plan, "verify", signalled)
    assert run("a.json", "--method", "bfs", "--out", "p.json", "--quiet") == code
    assert Plan.load("p.json").provenance["method"] == "bfs"
