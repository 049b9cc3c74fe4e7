"""Evaluations, tuning and corpora on engines: the same results as in this process."""

import json
import pathlib

import pytest
from remote_engine import Inline, content, graphs_of, records

from regal_jax import Cluster
from regal_jax.cli import main
from regal_jax.corpus import SOURCES, Source, build_corpus
from regal_jax.engines import Message
from regal_jax.errors import ConfigError
from regal_jax.experiments import EvaluationConfig, run_evaluation, tune
from regal_jax.importers import save_graph
from regal_jax.storage.json_lines import JsonLines


def test_an_evaluation_has_the_same_results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pathlib.Path("set").mkdir()
    for i, graph in enumerate(graphs_of(5)):
        save_graph(graph, f"set/{i}.json")
    config = EvaluationConfig(
        "set", evaluations=40, limits=(), other_seed=-1, seeds=(0, 1), chunk=4,
        methods=("brkga", "critical-path", "list-search"),
        options={"brkga": {"settings": {"population": 20, "elites": 4, "mutants": 3}}},
    )  # fmt: skip
    assert run_evaluation(config, "here").made == 5 * 5
    engine = Inline()
    assert run_evaluation(config, "there", engine=engine).made == 5 * 5
    assert records("there") == records("here")
    # Two chunks of 4 and 1 graphs, 2 at a time, for five jobs; heuristics get whole chunks as well.
    assert engine.calls == 5 * 3
    again = run_evaluation(config, "there", engine=engine)
    assert (again.made, engine.calls) == (0, 15)
    # A graph that is given up is a refusal, and costs no other.
    lossy = Inline(lose=[0])
    assert run_evaluation(config, "lossy", engine=lossy).finished
    errors = [json.loads(line) for line in records("lossy") if "error" in line]
    assert errors
    assert all("gave up" in record["error"] for record in errors)


def test_suites_of_single_graphs_run_here(tmp_path):
    config = EvaluationConfig(suite="topological-order", cases=1, sizes=(20,), methods=("bfs",))
    with pytest.raises(ConfigError, match=r"^engine: the suite 'topological-order' runs in this process"):
        run_evaluation(config, tmp_path, engine="ray")


def test_tuning_has_the_same_result(tmp_path):
    graphs = graphs_of(3)
    options = {"evaluations": 60, "grid": {"population": (20,), "elites": (0.1, 0.2), "mutants": (0.1,)}}
    cluster = Cluster.uniform(2)
    engine = Inline(size=3)
    there = tune(graphs, cluster, **options, engine=engine, results=tmp_path / "points.jsonl")
    assert there == tune(graphs, cluster, **options)
    assert engine.calls == 3
    assert tune(graphs, cluster, **options, engine=engine, results=tmp_path / "points.jsonl") == there
    assert engine.calls == 3


def test_a_corpus_is_the_same(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
    options = {"sources": ["fake"], "only": "fake/[cftrd]*", "jobs": 2}
    build_corpus(tmp_path / "here", **options)
    engine = Inline(size=20)
    document = build_corpus(tmp_path / "there", **options, engine=engine)
    assert document["complete"]
    assert content(tmp_path / "there") == content(tmp_path / "here")
    failed = JsonLines(tmp_path / "there" / "failures.jsonl").read()
    assert {record["failure"] for record in failed} == {"error", "died", "size"}
    # What is there is not traced again; what an engine gives up has failed.
    calls = engine.calls
    build_corpus(tmp_path / "there", **options, engine=engine)
    assert engine.calls == calls
    build_corpus(tmp_path / "lost", sources=["fake"], only="fake/fork*", engine=Inline(lose=[0]))
    (failure,) = JsonLines(tmp_path / "lost" / "failures.jsonl").read()
    assert (failure["failure"], failure["reason"]) == ("died", "its worker died")


def test_a_corpus_lacks_graphs_of_a_source_that_does_not_start_there(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))

    def without_library(common, messages, tell):
        for position in range(len(messages)):
            tell(position, Message(), True)

    monkeypatch.setattr("regal_jax.corpus.remote.trace_models", without_library)
    with pytest.warns(UserWarning, match="'fake' is given up: it does not start on a worker") as caught:
        document = build_corpus(tmp_path, sources=["fake"], only="fake/fork*", engine=Inline())
    assert len(caught) == 1
    assert (document["complete"], document["skipped"], document["counts"]["graphs"]) == (False, ["fake"], 0)


def test_a_corpus_lacks_graphs_of_a_source_of_another_version_there(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))

    class Elsewhere(Inline):
        def run(self, *args, **options):
            with monkeypatch.context() as there:
                there.setattr(Source, "versions", lambda _: {"numpy": "0.1"})
                return super().run(*args, **options)

    said = r"^source 'fake' is given up: a worker of the engine has numpy 0\.1, not [\d.]+; install its"
    with pytest.warns(UserWarning, match=said) as caught:
        document = build_corpus(tmp_path, sources=["fake"], only="fake/fork*", engine=Elsewhere())
    assert len(caught) == 1
    assert (document["complete"], document["skipped"], document["counts"]["graphs"]) == (False, ["fake"], 0)


@pytest.mark.parametrize(
    "command",
    [
        ["optimize", "g.json", "--out-dir", "plans"],
        ["order", "g.json", "--out-dir", "plans"],
        ["evaluate", "--graphs", "sample", "--out", "out", "--methods", "brkga", "--limit", "1"],
        ["tune", "--graphs", "sample", "--limit", "1", "--out", "tuned.json"],
        ["corpus", "build", "--out", "corpus", "--sources", "fake"],
    ],
)
def test_every_command_names_the_engines_that_there_are(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
    save_graph(graphs_of(1)[0], "g.json")
    assert main([*command, "--engine", "slurm"]) == 2
    assert "engine: there is no 'slurm'; use local, ray or ray:ADDRESS" in capsys.readouterr().err
