"""Devices, files that are too large, and pipes other than those of graphs, are refused in one line."""

import contextlib
import os
import signal
import threading

import pytest

import regal_jax
from regal_jax.cli import main
from regal_jax.datasets import read_set
from regal_jax.errors import ConfigError, FormatError
from regal_jax.experiments import TunedConfig
from regal_jax.heuristics import load_insertion_policy
from regal_jax.importers import load_graph, save_graph
from regal_jax.importers.files import read_bytes
from regal_jax.plan import Plan
from regal_jax.policies import load_policy
from regal_jax.storage import reading
from regal_jax.storage.documents import read_toml

READERS = (Plan.load, load_policy, TunedConfig.load, load_insertion_policy, read_toml)
_NO_PIPES = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no pipes with names")


@_NO_PIPES
@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__qualname__)
@pytest.mark.filterwarnings("ignore:.*skipped:UserWarning")
def test_a_pipe_is_refused_and_never_waited_for(read, tmp_path):
    path = tmp_path / "file.json"
    os.mkfifo(path)
    with pytest.raises(
        (FormatError, ConfigError), match=r"file\.json: .*pipe or a device, not a regular file"
    ):
        read(path)


@_NO_PIPES
@pytest.mark.parametrize("name", ["set.tar", "graph.json"])
def test_a_pipe_in_a_folder_is_refused(name, tmp_path):
    os.mkfifo(tmp_path / name)
    with (
        pytest.warns(UserWarning, match="pipe or a device"),
        pytest.raises(FormatError, match="pipe or a device"),
    ):
        read_set(tmp_path)


@_NO_PIPES
@pytest.mark.parametrize(
    "arguments",
    [
        ["verify", "pipe.json", "graph.stg"],
        ["optimize", "--policy", "pipe.json"],
        ["evaluate", "--config", "pipe.json", "--out", "out"],
        ["train", "pipe.json", "--out", "out"],
    ],
)
def test_commands_refuse_pipes_in_one_line(arguments, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.json")
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pipe.json" in err


@_NO_PIPES
def test_a_graph_is_read_from_a_pipe(tmp_path):
    graph, path = regal_jax.load_example("mlp"), tmp_path / "graph.json"
    save_graph(graph, tmp_path / "saved.json")
    os.mkfifo(path)
    content = (tmp_path / "saved.json").read_bytes()
    writer = threading.Thread(target=lambda: path.write_bytes(content))
    writer.start()
    assert load_graph(path).content_hash == load_graph(tmp_path / "saved.json").content_hash
    writer.join()


@_NO_PIPES
def test_a_pipe_with_more_than_the_limit_is_refused(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)

    def write():
        with contextlib.suppress(BrokenPipeError):
            path.write_bytes(bytes(2**22))

    writer = threading.Thread(target=write)
    writer.start()
    with pytest.raises(FormatError, match="more than 1 MiB"):
        read_bytes(path, 2**20)
    writer.join()


@_NO_PIPES
def test_an_interrupt_ends_the_wait_for_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "graph.json")
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        load_graph(tmp_path / "graph.json")
    timer.join()


@pytest.mark.parametrize("read", [Plan.load, load_graph], ids=lambda read: read.__qualname__)
def test_a_huge_file_is_refused_before_it_is_read(read, tmp_path):
    path = tmp_path / "huge.json"
    with open(path, "wb") as file:
        file.truncate(2**33)
    with pytest.raises(
        FormatError, match=r"huge\.json: more than \d+ MiB; check that this is the right file"
    ):
        read(path)


def test_a_huge_file_of_settings_is_refused(tmp_path):
    path = tmp_path / "huge.toml"
    path.write_bytes(bytes(2**24 + 1))
    with pytest.raises(ConfigError, match="more than 16 MiB"):
        read_toml(path)


def test_a_file_may_be_as_large_as_the_limit(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    assert reading.read_limited(path, 3) == b"abc"
    with pytest.raises(FormatError, match="more than 0 MiB"):
        reading.read_limited(path, 2)
    with pytest.raises(IsADirectoryError):
        reading.read_limited(tmp_path)
