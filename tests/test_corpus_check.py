"""`check_corpus` reports the faults of a corpus and nothing else."""

import dataclasses
import gzip
import json
import shutil
import signal

import pytest

import regal_jax.api
from regal_jax.cli import main
from regal_jax.corpus import SOURCES, Source, build_corpus, check_corpus, finish
from regal_jax.corpus.check import _differences
from regal_jax.datasets import corpus_records, generate, graph_record
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import GraphBuilder
from regal_jax.importers import save_graph


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("check") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
        build_corpus(folder, sources=["fake"], jobs=2, only="fake/layered*")
    return folder


def test_every_graph_is_read_searched_and_replayed(corpus, capsys):
    assert check_corpus(corpus) == {}
    assert main(["corpus", "check", str(corpus), "--quiet"]) == 0
    assert "4 graphs hold" in capsys.readouterr().out


def test_ctrl_c_ends_the_check(corpus, monkeypatch, capsys):
    own = regal_jax.api.optimize_many

    def interrupted(*args, **options):
        pressed = []

        def on_improvement(*_):
            if not pressed:
                pressed.append(True)
                signal.raise_signal(signal.SIGINT)

        return own(*args, **options, on_improvement=on_improvement)

    monkeypatch.setattr("regal_jax.api.optimize_many", interrupted)
    assert main(["corpus", "check", str(corpus), "--quiet"]) == 130
    assert capsys.readouterr().out == ""


def test_what_is_wrong_is_named(corpus, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(corpus, broken)
    graphs = broken / "graphs" / "fake"
    (graphs / "layered0.forward.json.gz").write_bytes(b"no graph")
    # The same topology with other costs: only the content differs.
    text = json.loads(gzip.decompress((graphs / "layered1.forward.json.gz").read_bytes()))
    text["ops"][3]["runtime"] += 1
    (graphs / "layered1.forward.json.gz").write_bytes(gzip.compress(json.dumps(text).encode()))
    save_graph(generate("layered", 61, 2), graphs / "layered2.forward.json.gz")
    failures = {path.rpartition("/")[2]: line for path, line in check_corpus(broken).items()}
    assert set(failures) == {f"layered{i}.forward.json.gz" for i in range(3)}
    assert failures["layered0.forward.json.gz"].startswith("not JSON")
    assert failures["layered1.forward.json.gz"].startswith("content_hash")
    assert failures["layered2.forward.json.gz"].startswith("ops 61, recorded 60")
    assert main(["corpus", "check", str(broken), "--quiet"]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_splits_of_another_table_are_named(corpus, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(corpus, other)
    was = {record["path"]: record["split"] for record in corpus_records(corpus)}
    (split,) = set(was.values())
    recorded = "train" if split == "test" else "test"
    finish(other, {"layered": recorded})
    line = f"split {split}, recorded {recorded}; run 'regal-jax corpus show {other}'"
    assert check_corpus(other) == dict.fromkeys(was, line)
    finish(other)
    assert corpus_records(other) == corpus_records(corpus)


def test_bad_input(corpus, tmp_path):
    for evaluations in (0, "5", 2**31):
        with pytest.raises(ConfigError, match="evaluations: must be a whole number of at"):
            check_corpus(corpus, evaluations=evaluations)
    with pytest.raises(FormatError, match="no corpus there"):
        check_corpus(tmp_path)


def test_hashes_from_before_residents_had_a_mark_hold():
    builder = GraphBuilder("traced")
    builder.add_op("w", kind="parameter", outputs=[8], keep=[0], resident=True)
    builder.add_op("use", runtime=1, inputs=["w"])
    graph = builder.build()
    before = graph_record(dataclasses.replace(graph, resident=()))
    assert _differences(graph, graph_record(graph)) == _differences(graph, before) == ""
    other = graph_record(dataclasses.replace(graph, tensor_bytes=[9], resident=()))
    assert _differences(graph, other).startswith("content_hash")
