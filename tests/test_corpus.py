"""The corpus: a build that survives failing models and kills, splits without leaks, a real model."""

import collections
import errno
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from regal_jax import Cluster, optimize, optimize_many
from regal_jax.cli import main
from regal_jax.corpus import SOURCES, Source, build_corpus, finish
from regal_jax.corpus import build as build_module
from regal_jax.corpus import engine as engine_module
from regal_jax.corpus.build import choose
from regal_jax.corpus.families import family_of
from regal_jax.corpus.pool import Worker
from regal_jax.corpus.splits import SHARES
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets import load_corpus
from regal_jax.datasets.statistics import depth_and_width
from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.graph import GraphBuilder
from regal_jax.runtime.deadline import Deadline
from regal_jax.storage.json_lines import JsonLines

FAKE = Source("fake", "corpus_fake_source", ("numpy",))
GOOD = "fake/[!rdehgt]*"
"""Chains, forks and layered graphs: eleven of them, none of which fails."""


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setitem(SOURCES, "fake", FAKE)


@pytest.fixture
def build(fake, tmp_path):
    def build(folder="corpus", **options):
        # One process, which imports the library once; two make the same corpus, as `good`.
        return build_corpus(tmp_path / folder, **{"sources": ["fake"], "jobs": 1, **options})

    return build


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The corpus of ``GOOD``, built without any trouble; nothing may change it."""
    folder = tmp_path_factory.mktemp("good") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "fake", FAKE)
        build_corpus(folder, sources=["fake"], jobs=2, only=GOOD)
    return folder


@pytest.fixture
def copied(good, tmp_path):
    """A copy of it, where `build` builds."""
    return pathlib.Path(shutil.copytree(good, tmp_path / "corpus"))


def content(folder):
    """The content of a corpus, without the order in which it was made."""
    files = {p.relative_to(folder): p.read_bytes() for p in folder.glob("graphs/**/*") if p.is_file()}
    index = sorted((folder / "index.jsonl").read_text().splitlines())
    return files, index, (folder / "corpus.json").read_bytes()


# The engine --------------------------------------------------------------------------------------


def time_is_up_for(model, monkeypatch):
    """Lets a worker time out as soon as it receives ``model``, without waiting."""
    own = Worker.ask

    def ask(worker, task, request, seconds):
        own(worker, task, request, seconds)
        assert worker.deadline.seconds == seconds
        if request.get("spec", {}).get("model") == model:
            worker.deadline = Deadline(0)

    monkeypatch.setattr(Worker, "ask", ask)


def test_a_build_survives_every_way_to_fail(build, tmp_path, monkeypatch):
    monkeypatch.setattr(engine_module, "available_memory", lambda: 2 * 2**30 / 0.8)
    time_is_up_for("hangs", monkeypatch)
    document = build(timeout=600.0, jobs=2)
    failures = {f["model"]: f for f in JsonLines(tmp_path / "corpus" / "failures.jsonl").read()}
    assert {name: f["failure"] for name, f in failures.items()} == {
        "raises": "error", "exits": "error", "dies": "died", "hangs": "timeout", "greedy": "memory",
        "tiny": "size",
    }  # fmt: skip
    assert failures["raises"]["reason"] == "RuntimeError: two lines"
    assert failures["dies"]["reason"] == "the process died with exit code 7"
    assert failures["hangs"]["reason"] == "took longer than 600 seconds"
    assert failures["greedy"]["reason"] == "needed more than 1.0 GiB of memory"
    assert failures["tiny"]["reason"].endswith("ops; the corpus keeps 57 to 60000")
    counts = document["counts"]
    assert document["complete"]
    assert document["skipped"] == []
    assert counts["graphs"] == 18
    # chain60, its gradient form and twin have one topology.
    assert counts["distinct"] == 16
    assert document["graphs"]["graphs/fake/twin.forward.json.gz"] == {
        "split": document["families"]["chain"],
        "distinct": False,
        "represented_by": "graphs/fake/chain60.forward.json.gz",
    }
    assert document["families"]["twin"] == document["families"]["chain"]


def test_what_is_finished_is_not_repeated_and_failures_only_when_asked(build, tmp_path):
    build(only="fake/r*")
    root = tmp_path / "corpus"
    before = content(root)
    failures = (root / "failures.jsonl").read_bytes()
    stamps = {p: p.stat().st_mtime_ns for p in root.glob("graphs/**/*.gz")}
    build(only="fake/r*")
    assert content(root) == before
    assert (root / "failures.jsonl").read_bytes() == failures
    assert {p: p.stat().st_mtime_ns for p in root.glob("graphs/**/*.gz")} == stamps
    # After a retry, a failure is either gone from the list or in it once.
    build(only="fake/r*", retry_failures=True)
    assert (root / "failures.jsonl").read_bytes() == failures
    victim = next(root.glob("graphs/**/random3*"))
    whole = victim.read_bytes()
    for damaged in (None, b"", b"nonsense", whole[:-9], whole[:60] + b"!" + whole[61:]):
        if damaged is None:
            victim.unlink()
        else:
            victim.write_bytes(damaged)
        build(only="fake/r*")
        assert content(root) == before


def test_a_corpus_grows(build, good, tmp_path):
    build(only="fake/chain*")
    assert build(only=GOOD)["counts"]["graphs"] == 11
    assert content(tmp_path / "corpus") == content(good)


def test_limit_counts_for_each_form_and_families_take_turns(build):
    document = build(only="fake/chain*", limit=2, forms=["forward", "gradient"])
    forms = [p.split(".")[1] for p in document["graphs"]]
    assert sorted(forms) == ["forward", "forward", "gradient"]
    sizes = {"a": 7, "b": 1, "c": 3}
    specs = [
        TraceSpec("fake", f"{family}{i}", family, form, "")
        for family, size in sizes.items() for i in range(size) for form in ("forward", "gradient")
    ]  # fmt: skip
    chosen = choose(specs, ["forward"], None, None)
    assert sorted(spec.key for spec in chosen) == sorted(s.key for s in specs if s.form == "forward")
    assert choose(specs[::-1], ["forward"], None, None) == chosen
    for limit in range(len(chosen) + 2):
        first = choose(specs, ["forward"], None, limit)
        assert first == chosen[:limit]
        counts = collections.Counter(spec.family for spec in first)
        most = max(counts.values(), default=0)
        assert all(counts[family] >= min(size, most - 1) for family, size in sizes.items())


def test_sources_take_turns(monkeypatch):
    monkeypatch.setattr(build_module, "_ROUND", 2)
    monkeypatch.setattr(build_module, "SOURCES", {"a": "A", "b": "B", "c": "C"})
    spec = {
        (s, f, i): TraceSpec(s, str(i), s, f, "")
        for s in "ab"
        for f in ("forward", "gradient")
        for i in range(5)
    }
    pending = {"a": [v for k, v in spec.items() if k[0] == "a"], "b": [spec["b", "forward", 0]], "c": []}
    rounds = build_module._rounds(pending)
    assert [(s, [f"{x.form[0]}{x.model}" for x in specs]) for s, specs in rounds] == [
        ("A", ["f0", "f1"]), ("B", ["f0"]), ("A", ["f2", "f3"]), ("A", ["f4"]),
        ("A", ["g0", "g1"]), ("A", ["g2", "g3"]), ("A", ["g4"]),
    ]  # fmt: skip


def test_a_source_that_does_not_start_is_given_up_once(tmp_path):
    source = Source("broken", "no_such_module", ("numpy",))
    rounds = [(source, [TraceSpec("broken", model, "family", "forward", "")]) for model in "abc"]
    settings = {"profile": "h200", "min_ops": 1, "max_ops": 100}
    engine = engine_module.Engine(tmp_path, settings, 1, 60.0, lambda: False, None)
    with pytest.warns(UserWarning, match="'broken' is given up: ModuleNotFoundError") as caught:
        engine.run(rounds, {})
    assert len(caught) == 1
    assert engine.failures.read() == engine.index.read() == []
    assert engine.skipped == {"broken"}


_SCRIPT = """
import sys
from regal_jax.corpus import SOURCES, Source, build_corpus
if __name__ == "__main__":
    SOURCES["fake"] = Source("fake", "corpus_fake_source", ("numpy",))
    build_corpus(sys.argv[1], sources=["fake"], jobs=2, only=sys.argv[2])
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_killed_build_ends_like_one_that_was_not(build, good, tmp_path, number):
    script, root = tmp_path / "build.py", tmp_path / "killed"
    script.write_text(_SCRIPT)
    environment = {
        **os.environ, "FAKE_SOURCE_SECONDS": "0.2", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }  # fmt: skip
    process = subprocess.Popen([sys.executable, str(script), str(root), GOOD], env=environment)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and len(JsonLines(root / "index.jsonl").read()) < 3:
        time.sleep(0.02)
    process.send_signal(number)
    process.wait(timeout=30)
    done = len(JsonLines(root / "index.jsonl").read())
    assert 3 <= done < 11
    if number == signal.SIGINT:
        assert process.returncode == 0
        assert json.loads((root / "corpus.json").read_text())["counts"]["graphs"] == done
    build("killed", only=GOOD, jobs=1)
    assert content(root) == content(good)


def test_half_a_line_is_no_line_and_other_damage_is_said(build, copied):
    root = copied
    before = content(root)
    index = root / "index.jsonl"
    whole = index.read_bytes()
    for cut in (1, len(whole.splitlines()[-1]) // 2):
        index.write_bytes(whole[:-cut])
        assert len(JsonLines(index).read()) == 10
        build(only=GOOD, jobs=1)
        assert content(root) == before
    index.write_bytes(b"nonsense\n" + whole)
    with pytest.raises(FormatError, match="line 1 is damaged"):
        build(only=GOOD)


@pytest.mark.parametrize("option", [{"profile": "a100"}, {"min_ops": 50}, {"max_ops": 500}])
def test_other_settings_are_refused(build, copied, option):
    (name, value), *_ = option.items()
    with pytest.raises(ConfigError, match=rf"built with {name} .*, not {value!r}; .*another folder"):
        build(only="fake/chain60*", **option)


def test_a_refused_build_records_no_settings(build, tmp_path):
    with pytest.raises(ConfigError, match="matches none of"):
        build(only="fak/*", min_ops=30)
    assert not (tmp_path / "corpus" / "corpus.json").exists()
    # NumPy's numbers are numbers, and what is iterated over once is a list.
    document = build(sources=iter(["fake"]), forms=iter(["forward"]), only="fake/f*", min_ops=np.int64(50))
    assert document["settings"]["min_ops"] == 50
    assert document["counts"]["graphs"] == 2


def test_new_families_are_those_without_a_split_and_all_are_test_graphs(build, monkeypatch, tmp_path):
    monkeypatch.setattr(build_module, "read_family_splits", lambda: {"chain": "train", "random": "test"})
    document = build("new", only=GOOD, new_families=True)
    assert set(document["families"].items()) == {(f, "test") for f in ("layered", "fork")}
    assert {role["split"] for role in document["graphs"].values()} == {"test"}
    assert {record["family"] for record, _ in load_corpus(tmp_path / "new", split="test")} == {
        "layered", "fork",
    }  # fmt: skip
    assert finish(tmp_path / "new") == {k: v for k, v in document.items() if k not in ("complete", "skipped")}
    with pytest.raises(ConfigError, match="built with new_families True, not None"):
        build("new", only=GOOD)
    build("all", only="fake/chain60*")
    with pytest.raises(ConfigError, match="built with new_families None, not True"):
        build("all", only="fake/chain60*", new_families=True)


def test_a_split_selects_the_families_that_have_it_in_the_table(build, monkeypatch, tmp_path):
    table = {"chain": "train", "layered": "test", "twin": "validation"}
    monkeypatch.setattr(build_module, "read_family_splits", lambda: table)
    document = build(split="test")  # a family without a split has none of these
    assert set(document["families"]) == {"layered"}
    assert document["counts"]["graphs"] == 4
    assert not (tmp_path / "corpus" / "failures.jsonl").exists()
    # It is no setting of the corpus, which another run extends.
    assert set(build(split="validation")["families"]) == {"layered", "twin"}
    with pytest.raises(ConfigError, match="split: there is no 'tests'; use one of train, validation, test"):
        build(split="tests")
    with pytest.raises(ConfigError, match=r"split, new_families: .*give one of the two"):
        build(split="test", new_families=True)


def test_other_versions_are_refused(build, copied, monkeypatch):
    monkeypatch.setattr(Source, "versions", lambda self: {"numpy": "0.0"})
    with pytest.raises(ConfigError, match=r"was built with numpy .*, not 0.0"):
        build(only="fake/chain60*")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"sources": "fake"}, "sources: is 'fake'; give a list of some of"),
        ({"sources": [[]]}, r"sources: there is no \[\]"),
        ({"forms": 3}, "forms: is 3; give a list of some of forward, gradient, training-step"),
        ({"jobs": "x"}, "jobs: must be a whole number of at least 1, got 'x'"),
        ({"max_ops": 1.5}, "max_ops: must be a whole number of at least 1, got 1.5"),
        ({"timeout": "long"}, "timeout: must be a number of seconds of more than 0, got 'long'"),
        ({"only": 3}, "only: give a str, got int"),
        (
            {"only": "chain60*"},
            r"only: 'chain60\*' matches none of \d+ graphs; write SOURCE/MODEL.FORM, such as 'fake/",
        ),
        ({"sources": ["nonsense"]}, "sources: there is no 'nonsense'; use one of keras-applications, "),
        ({"forms": ["backward"]}, "forms: there is no 'backward'; use one of forward, gradient"),
        ({"forms": []}, "forms: none; name at least one of forward, gradient, training-step"),
        ({"sources": iter(())}, "sources: none; name at least one of keras-applications, "),
        ({"progress": 5}, "progress: 5 is no function"),
        ({"limit": 0}, "limit: must be .*, got 0"),
        ({"jobs": 0}, "jobs: must be .*, got 0"),
        ({"timeout": 0.0}, "timeout: must be .*, got 0.0"),
        ({"min_ops": 10, "max_ops": 9}, "max_ops: 9"),
        ({"profile": "nonsense"}, "profile: unknown device"),
    ],
)
def test_impossible_options_are_one_line(build, option, message):
    with pytest.raises(ConfigError, match=message) as error:
        build(**option)
    assert "\n" not in str(error.value)


def test_an_absent_package_skips_its_source_or_is_refused(monkeypatch, fake, tmp_path):
    monkeypatch.setitem(SOURCES, "absent", Source("absent", "no_such_module", ("no-such-package",)))
    for name in [name for name in SOURCES if name not in ("fake", "absent")]:
        monkeypatch.delitem(SOURCES, name)
    with pytest.raises(MissingExtraError, match=r"no-such-package.*regal-jax\[corpus\]"):
        build_corpus(tmp_path, sources=["absent"])
    with pytest.warns(UserWarning, match=r"'absent' is skipped: .*regal-jax\[corpus\]"):
        assert build_corpus(tmp_path, only="fake/chain60*", jobs=1)["counts"]["graphs"] == 2


def test_a_source_that_does_not_start_is_skipped(monkeypatch, tmp_path):
    monkeypatch.setitem(SOURCES, "broken", Source("broken", "no_such_module", ("numpy",)))
    with pytest.warns(UserWarning, match="'broken' is skipped: ModuleNotFoundError"):
        document = build_corpus(tmp_path, sources=["broken"], jobs=1)
    assert (document["complete"], document["skipped"], document["counts"]["graphs"]) == (False, ["broken"], 0)


def test_a_full_disk_is_one_line(build, good, tmp_path, monkeypatch):
    root = tmp_path / "corpus"
    (root / "graphs").mkdir(parents=True)
    (root / "graphs" / "fake").write_text("in the way")  # A file where the worker needs a folder.
    with pytest.raises(ConfigError, match=r"cannot write .*; make room"):
        build(only=GOOD)
    (root / "graphs" / "fake").unlink()
    append = JsonLines.append

    def full(self, record):
        if len(self.read()) == 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        append(self, record)

    monkeypatch.setattr(JsonLines, "append", full)
    with pytest.raises(ConfigError, match="No space left on device; make room") as error:
        build(only=GOOD)
    assert "\n" not in str(error.value)
    monkeypatch.setattr(JsonLines, "append", append)
    build(only=GOOD)
    assert content(root) == content(good)


def test_two_builds_in_one_folder_are_refused(build, tmp_path):
    from regal_jax.storage.locks import locked

    (tmp_path / "corpus").mkdir()
    with locked(tmp_path / "corpus"), pytest.raises(ConfigError, match="another process is writing there"):
        build()


# What is built -----------------------------------------------------------------------------------


def test_every_graph_loads_optimises_and_replays(good):
    loaded = list(load_corpus(good, duplicates=True))
    assert len(loaded) == 11
    for record, graph in loaded:
        assert graph.content_hash == record["content_hash"]
        assert (graph.num_ops, graph.num_tensors) == (record["ops"], record["tensors"])
    graphs = [graph for _, graph in loaded]
    # This search compiles nothing; compiled searches do not depend on the origin of graphs.
    plans = optimize_many(
        graphs, Cluster.uniform(2, transfer="blocking"), method="list-search", evaluations=200
    )
    for graph, plan in zip(graphs, plans, strict=True):
        assert plan.provenance["evaluations"] == 200 or plan.optimal
        plan.verify(graph)


def test_the_reader_chooses_and_refuses(good, tmp_path):
    root, document = good, json.loads((good / "corpus.json").read_text())
    with pytest.raises(FormatError, match="no corpus there"):
        load_corpus(tmp_path / "corpus")
    by_split = {s: [r["path"] for r, _ in load_corpus(root, s)] for s in SHARES}
    assert {s: len(paths) for s, paths in by_split.items()} == document["counts"]["splits"]
    # The gradient form of chain60 has the topology of its forward form.
    assert list(load_corpus(root, form="gradient")) == []
    assert [r["model"] for r, _ in load_corpus(root, form="gradient", duplicates=True)] == ["chain60"]
    for option in ({"split": "dev"}, {"form": "backward"}, {"source": "timm"}):
        with pytest.raises(ConfigError, match="there is no"):
            load_corpus(root, **option)


def test_depth_and_width_of_a_diamond():
    builder = GraphBuilder("diamond")
    builder.add_op("a", outputs=[1])
    for name in "bcd":
        builder.add_op(name, inputs=["a:0"], outputs=[1])
    builder.add_op("e", inputs=["b:0", "c:0"], control_inputs=["d"])
    assert depth_and_width(builder.build()) == (3, 3)


# Families -----------------------------------------------------------------------------


def test_families_mean_the_same_everywhere():
    same = [
        ("resnet", "ResNet50V2", "ResNet152", "resnet", "resnetv2", "senet", "bit"),
        ("vit", "vision_transformer", "ViT", "vit_mae", "deit", "DINOV2", "dinov2_with_registers", "beit"),
        ("bert", "Bert", "RobertaBackbone", "xlm-roberta", "DistilBert", "distilbert"),
        ("efficientnet", "EfficientNetV2B0", "tf_efficientnet_b0", "MobileNetV3Small", "mobilenet_v2"),
        ("convnext", "ConvNeXtTiny", "convnext", "convnextv2"),
        ("swin", "SwinTransformer", "swin_transformer_v2_cr", "swinv2", "donut-swin"),
        ("densenet", "DenseNet121", "densenet"),
        ("vgg", "VGG16", "vgg"),
        ("nasnet", "NASNetLarge", "nasnet", "pnasnet"),
        ("inception", "InceptionResNetV2", "inception_v3", "inception_resnet_v2"),
        ("xception", "Xception", "xception_aligned"),
    ]
    for family, *names in same:
        assert {name: family_of(name) for name in names} == dict.fromkeys(names, family)
    assert all(family_of(name) for name in ("", "7", "__", "x", "日本"))


# The command, and a real model -------------------------------------------------------------------


def test_the_command_builds_and_shows(fake, tmp_path, capsys):
    root = str(tmp_path / "corpus")
    common = ["corpus", "build", "--out", root, "--sources", "fake", "--jobs", "2", "--only", GOOD]
    assert main(common) == 0
    out, err = capsys.readouterr()
    assert "10 distinct topologies, 11 graphs" in out
    assert err == ""
    assert main(["corpus", "show", root]) == 0
    assert capsys.readouterr().out == out
    assert main([*common, "--profile", "a100"]) == 2
    assert capsys.readouterr().err.startswith("regal-jax corpus: error: ")
    assert main(["corpus", "show", str(tmp_path / "nothing")]) == 2
    assert "no corpus there" in capsys.readouterr().err


def test_the_command_says_that_a_source_did_not_start(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(SOURCES, "broken", Source("broken", "no_such_module", ("numpy",)))
    assert main(["corpus", "build", "--out", str(tmp_path / "corpus"), "--sources", "broken"]) == 1
    err = capsys.readouterr().err
    assert "'broken' is skipped: ModuleNotFoundError" in err
    assert "not complete: broken did not start; mend what the warning says and run the same command" in err


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs keras")
def test_a_keras_model_in_every_form(tmp_path):
    document = build_corpus(tmp_path, sources=["keras-applications"], only="*/MobileNet.*", jobs=1)
    assert not (tmp_path / "failures.jsonl").exists()
    assert document["counts"]["distinct"] == 3
    ops = {record["form"]: record["ops"] for record, _ in load_corpus(tmp_path)}
    assert ops["forward"] < ops["gradient"] < ops["training-step"]
    for record, graph in load_corpus(tmp_path, form="forward"):
        assert record["constructor"] == "keras.applications.MobileNet(weights=None)"
        # 27 convolutions, and one 1 x 1 convolution in place of a dense layer at the end.
        assert graph.op_kinds.count("conv_general_dilated") == 28
        optimize(graph, Cluster.uniform(2, transfer="blocking"), method="bfs").verify(graph)


@pytest.mark.slow
@pytest.mark.parametrize("source", [name for name in SOURCES if name != "keras-applications"])
def test_every_source_gives_graphs(source, tmp_path):
    if None in SOURCES[source].versions().values():
        pytest.skip("needs the extra corpus")
    document = build_corpus(tmp_path, sources=[source], limit=3, jobs=2)
    assert document["counts"]["graphs"] >= 3
    for _, graph in load_corpus(tmp_path):
        optimize(graph, Cluster.uniform(2, transfer="blocking"), evaluations=200, seed=0).verify(graph)


def test_finishing_twice_changes_nothing(copied):
    path = copied / "corpus.json"
    before = path.read_bytes()
    finish(str(copied))
    assert path.read_bytes() == before
    # A graph with two records is one graph.
    index = copied / "index.jsonl"
    index.write_bytes(index.read_bytes() * 2)
    finish(copied)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "line", "message"),
    [
        ("failures.jsonl", {}, r"failures\.jsonl: line 1: document: 'source' is missing"),
        (
            "failures.jsonl",
            {"source": "s", "model": "m", "family": "f", "form": "forward", "failure": []},
            r"failures\.jsonl: line 1: failure: expected a text, got a list",
        ),
        (
            "index.jsonl",
            {
                "path": "p",
                "source": "s",
                "model": "m",
                "family": "f",
                "form": "forward",
                "topology_hash": "t",
            },
            r"index\.jsonl: line 1: document: 'content_hash' is missing",
        ),
    ],
)
def test_lists_with_other_fields_are_damaged(copied, name, line, message):
    (copied / name).write_text(json.dumps(line) + "\n")
    with pytest.raises(FormatError, match=message):
        finish(copied)
