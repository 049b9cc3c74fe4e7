"""Two processes that write one folder: the second is refused, and a killed one blocks no other."""

import os
import pathlib
import subprocess
import sys
import textwrap
import time

import pytest
from learning_cases import GRAPHS, HELD_OUT, tiny_config

from regal_jax.corpus import build_corpus, finish, write_family_splits, write_sample
from regal_jax.datasets import build_set, generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.experiments import EvaluationConfig, report, run_evaluation, tune
from regal_jax.graph import Cluster
from regal_jax.importers import save_graph
from regal_jax.learning import train
from regal_jax.storage.locks import locked, locked_file

BUILD = (
    "dataset",
    "build",
    "--out",
    "set",
    "--train",
    "3",
    "--validation",
    "0",
    "--test",
    "0",
    "--no-filter",
)
BUILDING = """
    import pathlib, time
    from regal_jax.datasets import build_set

    def wait(**_):
        pathlib.Path("inside").touch()
        time.sleep(600)

    build_set("set", sizes={"train": 3}, progress=wait)
    """
HOLDING = """
    import pathlib, time
    from regal_jax.storage.locks import locked

    with locked(pathlib.Path("out")):
        pathlib.Path("inside").touch()
        time.sleep(600)
    """


def test_a_folder_without_a_name_is_not_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for write in (
        lambda: build_set("", sizes={"train": 1}),
        lambda: build_corpus(""),
        lambda: run_evaluation(EvaluationConfig(graphs="sample"), ""),
        lambda: report(""),
        lambda: write_sample("", "sample"),
        lambda: write_family_splits("", "splits.json"),
        lambda: finish(""),
    ):
        with pytest.raises(FormatError, match="'' names no folder; give the name of one"):
            write()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Starts a process that is killed in the end, and waits until it is inside."""
    monkeypatch.chdir(tmp_path)
    running = []

    def start(code):
        running.append(subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)]))
        until = time.monotonic() + 120
        while not pathlib.Path("inside").exists():
            assert running[-1].poll() is None
            assert time.monotonic() < until
            time.sleep(0.02)
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "regal_jax.cli", *arguments], capture_output=True, text=True)


def test_a_second_dataset_build_is_refused_and_a_killed_one_blocks_nobody(begin):
    first = begin(BUILDING)
    second = command(*BUILD)
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "set: another process is writing there" in second.stderr
    first.kill()
    first.wait()
    assert pathlib.Path("set/.lock").exists()
    third = command(*BUILD)
    assert third.returncode == 0, third.stderr
    assert sorted(os.listdir("set")) == ["manifest.json", "train"]
    assert len(os.listdir("set/train")) == 3


def test_so_are_all_others_that_write_a_folder(begin):
    begin(HOLDING)
    pathlib.Path("graphs").mkdir()
    save_graph(generate("layered", 12, seed=0), "graphs/one.json")
    config = EvaluationConfig("graphs", methods=("critical-path",), limits=(), evaluations=100)
    for call in (
        lambda: run_evaluation(config, "out"),
        lambda: build_corpus("out"),
        lambda: train(tiny_config(), GRAPHS, HELD_OUT, "out", progress=False),
    ):
        with pytest.raises(ConfigError, match="another process is writing there"):
            call()
    assert os.listdir("out") == [".lock"]


def test_a_corpus_is_not_brought_up_to_date_while_it_is_built(begin):
    begin(HOLDING)
    pathlib.Path("out/corpus.json").write_text(
        '{"format": "regal_jax.corpus", "version": 1, "settings": {}, "packages": {}}'
    )
    with pytest.raises(ConfigError, match="another process is writing there"):
        finish("out")


def test_a_second_optimize_into_one_folder_is_refused(begin):
    begin(HOLDING)
    save_graph(generate("layered", 12, seed=0), "one.json")
    one = ("optimize", "one.json", "--evaluations", "50", "--quiet")
    second = command(*one, "--out-dir", "out")
    assert second.returncode == 2
    assert second.stderr.count("\n") == 1
    assert "out: another process is writing there; wait for it, or name another folder" in second.stderr
    assert os.listdir("out") == [".lock"]
    third = command(*one, "--out-dir", "else")
    assert third.returncode == 0, third.stderr
    assert os.listdir("else") == ["one.plan.json"]


def test_two_tunings_do_not_share_a_file_of_results(tmp_path):
    graph, grid = generate("layered", 12, seed=0), {"population": (50,)}
    options = {"evaluations": 20, "grid": grid}
    cluster = Cluster.uniform(2)
    with locked_file(tmp_path / "one.jsonl"):
        with pytest.raises(ConfigError, match=r"one\.jsonl: another process is writing it; wait for it, or"):
            tune([graph], cluster, results=tmp_path / "one.jsonl", **options)
        tune([graph], cluster, results=tmp_path / "other.jsonl", **options)
    tune([graph], cluster, results=tmp_path / "one.jsonl", **options)
    assert sorted(os.listdir(tmp_path)) == ["one.jsonl", "other.jsonl"]


def test_a_lock_leaves_nothing_behind(tmp_path):
    for _ in range(2):
        with locked(tmp_path / "a" / "b"):
            with pytest.raises(ConfigError, match="another process"), locked(tmp_path / "a" / "b"):
                pass
            assert os.listdir(tmp_path / "a" / "b") == [".lock"]
        assert os.listdir(tmp_path / "a" / "b") == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is a file; name a new folder"), locked(tmp_path / "file"):
        pass


def test_a_lock_that_was_taken_away_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """The previous holder removes the file between its opening and its locking."""
    import fcntl

    flock, seen = fcntl.flock, []

    def late(file, how):
        if not seen:
            (tmp_path / ".lock").unlink()
        seen.append(file)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with locked(tmp_path):
        assert len(seen) == 2
        with pytest.raises(ConfigError, match="another process"), locked(tmp_path):
            pass
