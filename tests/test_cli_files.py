"""The files that commands read and write: inputs stay, old results are replaced, loss is asked for."""

import os
from pathlib import Path

import pytest

from regal_jax.cli import main
from regal_jax.importers import load_graph
from regal_jax.plan import Plan

STG = """\
2
0 0 0
1 3 1 0
2 5 1 0
3 0 2 1 2
"""


@pytest.fixture
def stg(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("graph.stg").write_text(STG)
    return "graph.stg"


def run(*args):
    return main([str(a) for a in args])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["import", "graph.stg", "--out", "link.stg"], "cannot write 'link.stg': it is an input"),
        (["import", "graph.stg", "--lossy", "--out", "g.json"], "--lossy is for .pbtxt and .stg"),
        (["show", "p.json", "--plot", "p.json"], "cannot write 'p.json': it is an input"),
        (["show", "p.json", "--plot", "x.json"], "cannot draw 'x.json': no picture is of kind '.json'"),
        (["show", "graph.stg", "--plot", "absent/p.png"], "no folder"),
        (["apply", "p.json", "graph.stg", "--out", "graph.stg"], "cannot write 'graph.stg': it is an input"),
        (["apply", "p.json", "graph.stg", "--out", "p.json"], "cannot write 'p.json': it is an input"),
        (["optimize", "--format", "stg"], "--format is for files; leave it out, or name a file"),
        (["show", "--format", "stg"], "--format is for files; leave it out, or name a file"),
        (["show", "--example", "mlp", "--format", "stg"], "--format is for files"),
        (["optimize", "graph.stg", "--every", "2"], "--every: goes with --watch; give both or neither"),
        (["optimize", "graph.stg", "--devices", "9" * 20], "--devices: must be at most "),
        (["propose", "graph.stg", "--devices", "9" * 20], "--devices: must be at most "),
        (["generate", "chain", "--ops", "9" * 11, "--out", "g.json"], "must be a whole number of at most"),
    ],
)
def test_other_commands_keep_their_inputs_and_refuse_what_has_no_meaning(stg, arguments, said, capsys):
    os.symlink("graph.stg", "link.stg")
    assert run("optimize", stg, "--method", "bfs", "--out", "p.json", "--quiet") == 0
    before = Path("p.json").read_bytes()
    assert run(*arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert said in err
    assert (Path("graph.stg").read_text(), Path("p.json").read_bytes()) == (STG, before)


def test_an_old_result_is_written_over(stg):
    for _ in range(2):
        assert (
            run("optimize", stg, "--method", "bfs", "--out", "p.json", "--trace", "/dev/null", "--quiet") == 0
        )
    assert (
        run("optimize", stg, "--warm-start", "p.json", "--evaluations", 50, "--out", "p.json", "--quiet") == 0
    )
    assert "warm_start" in Plan.load("p.json").provenance


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_what_was_found_is_shown_if_it_cannot_be_written(stg, capsys):
    for option in ("--out", "--trace"):
        assert run("optimize", stg, "--method", "bfs", option, "/dev/full") == 2
        said = capsys.readouterr()
        assert "plan for 'graph': 4 ops on 2 devices" in said.out
        assert "saved" not in said.out
        assert said.err.endswith(
            "/dev/full: cannot be written: No space left on device; check the directory\n"
        )
        assert said.err.count("\n") == 1


def test_a_folder_that_cannot_be_written_is_refused_in_one_line(stg, capsys):
    for command in (["evaluate", "--graphs", stg, "--methods", "bfs"], ["tune", "--graphs", stg],
                    ["propose", stg], ["dataset", "build", "--no-filter"], ["corpus", "build"]):  # fmt: skip
        option = "--out-dir" if command[0] == "propose" else "--out"
        assert run(*command, option, "/proc/plans" if command[0] == "tune" else "/proc") == 2
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert "/proc" in said.err
        assert "Errno" not in said.err


def test_a_folder_in_place_of_a_file_is_refused_in_one_line(stg, capsys):
    os.makedirs("results/table.csv")
    for command in (
        ["evaluate", "--graphs", stg, "--methods", "bfs", "--no-warm-up", "--out", "results"],
        ["evaluate", "--graphs", stg, "--config", "results", "--out", "others"],
    ):
        assert run(*command) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.endswith(": Is a directory; check the path")
        assert "results" in error
        assert "Errno" not in error


def test_loss_is_refused_or_accepted(stg, capsys):
    assert run("generate", "gflownet-layered", "--ops", 10, "--out", "g.json") == 0
    capsys.readouterr()
    for command in (["import", "g.json"], ["generate", "gflownet-layered", "--ops", 10]):
        assert run(*command, "--out", "g.pbtxt") == 2
        err = capsys.readouterr().err
        assert "pass lossy=True (--lossy) to round, or write JSON" in err
        assert "float64" not in err
        assert run(*command, "--lossy", "--out", "g.pbtxt") == 0
        assert load_graph("g.pbtxt").num_ops == load_graph("g.json").num_ops
