"""`regal-jax dataset` as scripts use it."""

import json
import pathlib
import tarfile

import pytest

from regal_jax.cli import main
from regal_jax.cli.progress import progress_bars
from regal_jax.datasets import generate
from regal_jax.importers import save_graph


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*args):
    return main([str(a) for a in args])


def build(*args):
    given = {"--train": 3, "--validation": 1, "--test": 1, "--out": "set"}
    options = [part for option in given.items() if option[0] not in args for part in option]
    return run("dataset", "build", *options, *args)


def test_build_and_show(capsys):
    assert build("--no-filter", "--seed", 4) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith("3 train, 1 validation, 1 test\n")
    assert "saved to set" in out
    assert build("--no-filter", "--seed", 4, "--quiet") == 0
    assert capsys.readouterr() == ("", "")
    assert run("dataset", "show", "set") == 0
    out = capsys.readouterr().out
    assert "set: 5 graphs, 0 broken files" in out
    assert "train: 3 graphs, 3 topologies" in out
    (path,) = pathlib.Path("set/test").iterdir()
    assert run("dataset", "show", path) == 0
    assert "graphs: 1 graph, 1 topology" in capsys.readouterr().out
    path.write_text("node {")
    assert run("dataset", "show", "set") == 0
    out, err = capsys.readouterr()
    assert "set: 4 graphs, 1 broken file" in out
    assert err.count("\n") == 1
    assert path.name in err


def test_bars_are_for_those_who_watch(capsys, monkeypatch):
    assert progress_bars() is None
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert progress_bars(quiet=True) is None
    assert build("--no-filter") == 0
    err = capsys.readouterr().err
    assert "choosing" in err
    assert "writing" in err
    assert build("--no-filter", "--quiet") == 0
    assert capsys.readouterr().err == ""


def test_the_filter_is_used_and_its_limits_are_recorded(capsys):
    assert build("--low-limit", 100, "--high-limit", 500, "--improvement", 0.02, "--archive") == 0
    with open("set/manifest.json") as file:
        manifest = json.load(file)
    recorded = manifest["settings"]["filter"]
    assert (recorded["low"], recorded["high"], recorded["improvement"]) == (100, 500, 0.02)
    assert sum(row["kept"] for row in manifest["candidates"].values()) == 5
    assert run("dataset", "show", "set/train.tar.gz") == 0
    assert "train: 3 graphs" in capsys.readouterr().out
    assert build("--low-limit", 100, "--high-limit", 600, "--improvement", 0.02, "--archive") == 2
    assert "a set was begun there with filter" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--no-filter", "--low-limit", 200], "leave out the limits"),
        (["--low-limit", 10], "low: must be"),
        (["--high-limit", 1000], "high: must be"),
        (["--train", -1], "must be at least 0"),
        (["--seed", -1], "must be from 0"),
        (["--jobs", 0], "must be at least 1"),
        (["--out", "occupied"], "not empty"),
        (["--out", "absent/\0"], "no file can have such a name"),
    ],
)
def test_bad_input_exits_2_with_one_line(arguments, said, tmp_path, capsys):
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "thesis.txt").write_text("mine")
    try:
        code = build(*arguments)
    except SystemExit as stop:
        code = stop.code
    err = capsys.readouterr().err
    assert code == 2
    assert err.count("\n") == 1, err
    assert said in err


@pytest.mark.parametrize("document", ["corpus.json", "manifest.json"])
def test_the_summary_of_a_corpus_or_of_a_set_is_no_graph(document, capsys):
    folder = pathlib.Path("corpus")
    (folder / "graphs" / "keras").mkdir(parents=True)
    (folder / document).write_text('{"format": "regal_jax.other"}')
    save_graph(generate("layered", 8, seed=0), folder / "graphs" / "keras" / "one.json.gz")
    save_graph(generate("layered", 8, seed=0), folder / "two.json")
    assert run("dataset", "show", folder) == 0
    out, err = capsys.readouterr()
    assert "corpus: 2 graphs, 0 broken files\n" in out
    with tarfile.open("corpus.tar.gz", "w:gz") as archive:
        archive.add(folder)
    assert run("dataset", "show", "corpus.tar.gz") == 0
    out, also = capsys.readouterr()
    assert "corpus.tar.gz: 2 graphs, 0 broken files\n" in out
    assert err == also == ""


def test_show_of_nothing(capsys):
    for path in ("absent", "."):
        assert run("dataset", "show", path) == 2
        assert capsys.readouterr().err.count("\n") == 1
