"""The command where nobody reads its output, where streams are closed, and where JAX does not start."""

import contextlib
import os
import pathlib
import subprocess
import sys

import pytest

from regal_jax import GraphBuilder
from regal_jax.cli import main
from regal_jax.datasets import generate
from regal_jax.importers import save_graph
from regal_jax.plan import Plan


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c"):
        save_graph(generate("layered", 10, seed=ord(name)), f"{name}.json")


@contextlib.contextmanager
def unread(write_through):
    """Standard output is a pipe whose reader has gone."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stream, contextlib.redirect_stdout(stream):
        stream.reconfigure(write_through=write_through)
        yield stream


@pytest.mark.parametrize("write_through", [True, False])
@pytest.mark.parametrize(
    ("arguments", "files"),
    [
        (["optimize", "a.json", "--out", "p.json", "--plot", "p.png"], ["p.json", "p.png"]),
        (["optimize", "a.json", "b.json", "c.json", "--out-dir", "."], ["a.plan.json", "c.plan.json"]),
        (["generate", "chain", "--out", "g.json"], ["g.json"]),
        (["show"], []),
    ],
    ids=lambda value: value[0] if value else "",
)
def test_without_a_reader_the_work_goes_on(arguments, files, write_through, capsys):
    method = ["--method", "bfs"] if arguments[0] == "optimize" else []
    with unread(write_through) as stream:
        assert main([*arguments, *method]) == 0
        assert sys.stdout is stream
    assert all(os.path.getsize(file) for file in files)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_letters_that_the_encoding_lacks_are_escaped(encoding):
    builder = GraphBuilder("é \N{SNOWMAN}")
    builder.add_op("ä", runtime=1)
    save_graph(builder.build(), "é.json")
    for arguments in (
        ["optimize", "é.json", "--method", "bfs", "--out", "p.json"],
        ["optimize", "é.json", "a.json", "--method", "bfs", "--out-dir", "plans"],
        ["show", "é.json"],
    ):
        with open("said", "w", encoding=encoding) as stream, contextlib.redirect_stdout(stream):
            assert main(arguments) == 0
        name = "é".encode(encoding, "backslashreplace").decode(encoding)
        said = pathlib.Path("said").read_text(encoding)
        assert name in said
        assert "plans" in arguments or f"{name} \\u2603" in said
    assert sorted(os.listdir("plans")) == ["a.plan.json", "é.plan.json"]


def process(shell, **environment):
    """A shell command in which ``$@`` is the start of ours."""
    fixed = {"PYTHONPATH": os.pathsep.join(sys.path), "XDG_CACHE_HOME": os.getcwd()}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}", "bash", sys.executable, "-m", "regal_jax.cli"],
        env={**os.environ, **fixed, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_without_a_reader_ends_in_silence():
    done = process('"$@" optimize a.json --method bfs --out p.json | true')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert Plan.load("p.json").provenance["method"] == "bfs"


@pytest.mark.parametrize("closed", [pytest.param(">&-", marks=pytest.mark.slow), "2>&-"])
def test_closed_streams_take_nothing(closed):
    done = process(f'"$@" optimize a.json b.json --method bfs --out-dir plans {closed}')
    assert (done.returncode, done.stderr) == (0, "")
    assert bool(done.stdout) == (closed == "2>&-")
    assert sorted(os.listdir("plans")) == ["a.plan.json", "b.plan.json"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="the system has no /dev/full")
def test_a_full_disk_is_named_and_ends_no_command_where_it_takes_only_messages():
    done = process('"$@" optimize a.json --method bfs > /dev/full')
    said = "standard output: cannot be written: No space left on device; write it elsewhere\n"
    assert (done.returncode, done.stderr) == (2, f"regal-jax optimize: error: {said}")
    done = process('"$@" optimize a.json --method bfs --out p.json 2> /dev/full')
    assert (done.returncode, done.stderr) == (0, "")
    assert Plan.load("p.json").provenance["method"] == "bfs"


@pytest.mark.parametrize("platform", ["cuda", pytest.param("neither", marks=pytest.mark.slow)])
def test_a_device_on_which_jax_cannot_start_is_one_line(platform):
    done = process(
        '"$@" optimize a.json --method brkga --quiet', JAX_PLATFORMS=platform, CUDA_VISIBLE_DEVICES=""
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert f"regal-jax optimize: error: JAX cannot start on JAX_PLATFORMS={platform}: " in done.stderr
    assert "unset JAX_PLATFORMS" in done.stderr


@pytest.mark.parametrize("error", [AssertionError("a defect"), RuntimeError("a defect")])
def test_other_errors_keep_their_tracebacks(error, monkeypatch):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("regal_jax.api.optimize", fail)
    with pytest.raises(type(error), match="a defect"):
        main(["optimize", "a.json", "--quiet"])
