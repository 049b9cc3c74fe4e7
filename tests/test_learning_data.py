"""Inputs and outputs of a run: graphs, references, records."""

import builtins
import dataclasses
import importlib
import json
import pathlib
import shutil
import sys

import jax
import numpy as np
import pytest
from learning_cases import GRAPHS, one_device, share_of, tiny_config

from regal_jax.corpus import SOURCES, Source, build_corpus
from regal_jax.datasets import SAMPLE, build_set, generate, load_graphs, load_sample
from regal_jax.errors import ConfigError, FormatError, MissingExtraError
from regal_jax.experiments import topological_order
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.importers import save_graph
from regal_jax.learning import DataConfig, TaskConfig, noisy_copies, reference, training_graphs
from regal_jax.learning.record import Record
from regal_jax.learning.reference import with_references
from regal_jax.plan import Objective, contract
from regal_jax.search import Stopping
from regal_jax.solve import keys_of, solve
from regal_jax.storage.json_lines import JsonLines

TWO = Cluster.uniform(2, transfer="blocking")


def hashes(graphs):
    return sorted(graph.content_hash for graph in graphs)


# Graphs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """Three graphs of 20 to 40 ops as files of TensorFlow."""
    graphs = [generate("layered", n, seed=n) for n in (20, 30, 40)]
    (tmp_path / "set").mkdir()
    for i, graph in enumerate(graphs):
        save_graph(graph, tmp_path / "set" / f"graph{i}.pbtxt")
    return tmp_path / "set"


def test_a_folder_of_files(folder):
    graphs = load_graphs(folder, "train")
    assert sorted(graph.num_ops for graph in graphs) == [20, 30, 40]
    assert [graph.num_ops for graph in load_graphs(folder, "train", max_ops=30)] == [20, 30]
    where = (TWO, Objective.MAKESPAN)
    contracted = load_graphs(folder, "train", contracted_for=where)
    assert hashes(contracted) == hashes(contract(graph).graph for graph in graphs)
    assert sum(graph.num_ops for graph in contracted) < 90
    # The limit applies to contracted graphs.
    most = min(graph.num_ops for graph in contracted)
    assert len(load_graphs(folder, "train", contracted_for=where, max_ops=most)) == 1


def test_the_sample_is_a_set():
    counts = {}
    for split in ("train", "validation", "test"):
        expected = hashes(graph for _, graph in load_sample(split))
        assert expected
        assert hashes(load_graphs("sample", split)) == expected
        counts[split] = len(expected)
    few = load_graphs("sample", "train", max_ops=100)
    assert 0 < len(few) < counts["train"]
    assert max(graph.num_ops for graph in few) <= 100


def test_a_folder_may_hold_a_sample(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # Its name is that of the graphs of the package; a path is the folder all the same.
    shutil.copytree(SAMPLE, "sample")
    records = JsonLines(pathlib.Path("sample/index.jsonl"))
    tests = {record["form"]: record for record in records.read() if record["split"] == "test"}
    kept = [tests["forward"], tests["gradient"]]
    records.replace(kept)
    expected = hashes(graph for _, graph in load_sample("test", folder="sample"))
    assert len(expected) == 2 < len(load_graphs("sample", "test"))
    for path in ("./sample", pathlib.Path("sample"), tmp_path / "sample"):
        assert hashes(load_graphs(path, "test")) == expected
        with pytest.raises(ConfigError, match="no graph in its split 'train'"):
            load_graphs(path, "train")
    (graph,) = topological_order._read("./sample", "test", 10**6)
    assert graph.content_hash in expected


@pytest.mark.parametrize("read", [load_graphs, lambda *a: list(topological_order._read(*a, 10**6))])
def test_what_is_left_of_a_sample_or_of_a_corpus_is_refused(tmp_path, read):
    sample = tmp_path / "sample"
    shutil.copytree(SAMPLE, sample)
    (sample / ".begun").touch()
    assert read(sample, "test")
    (sample / "index.jsonl").unlink()
    with pytest.raises(FormatError, match=r"sample: only the beginning of a sample is there; make it again"):
        read(sample, "test")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    JsonLines(corpus / "index.jsonl").append({"path": "graphs/fake/mlp.forward.json.gz", "ops": 9})
    with pytest.raises(FormatError, match=r"corpus: a corpus that has lost its corpus\.json; bring it back"):
        read(corpus, "test")


def test_what_is_no_set(folder, tmp_path):
    with pytest.raises(ConfigError, match="set: max_ops is 19, but the smallest graph has 20 ops; raise it"):
        load_graphs(folder, "train", max_ops=19)
    with pytest.raises(FormatError, match="no such file or folder"):
        load_graphs(tmp_path / "absent", "train")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="no graphs in it"):
        load_graphs(tmp_path / "empty", "train")


@pytest.mark.parametrize("archive", [False, True])
def test_of_a_set_with_splits_only_one_is_read(archive, tmp_path):
    path = tmp_path / "set"
    build_set(path, sizes={"train": 3, "validation": 2, "test": 1}, seed=0, keep=None, archive=archive)
    graphs = {split: load_graphs(path, split) for split in ("train", "validation", "test")}
    assert {split: len(found) for split, found in graphs.items()} == {"train": 3, "validation": 2, "test": 1}
    assert len({graph.content_hash for found in graphs.values() for graph in found}) == 6
    # The folder of one split is used for any split that is asked for.
    name = "test.tar.gz" if archive else "test"
    assert hashes(load_graphs(path / name, "train")) == hashes(graphs["test"])
    (path / ("validation.tar.gz" if archive else "validation")).rename(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"has no split 'validation'; name one of .*train"):
        load_graphs(path, "validation")


@pytest.mark.parametrize("path", ["set", "set/graph0.pbtxt", "one", "sample"])
def test_a_split_that_no_set_has_is_refused(path, folder, monkeypatch):
    monkeypatch.chdir(folder.parent)
    for split in ("tset", 3):
        message = f"split: there is no {split!r}; use one of train, validation, test"
        with pytest.raises(ConfigError, match=message):
            load_graphs(path, split)


def test_a_split_that_a_folder_has_twice_is_refused(folder, tmp_path):
    path = tmp_path / "set"
    shutil.copytree(folder, path / "test")
    shutil.copytree(folder, path / "train")
    (path / "test.tar.gz").touch()
    message = r"set: test and test\.tar\.gz both hold 'test'; drop one"
    with pytest.raises(ConfigError, match=message):
        load_graphs(path, "test")
    assert hashes(load_graphs(path, "train")) == hashes(load_graphs(folder, "train"))


def test_of_a_corpus_only_one_split_is_read(tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
    document = build_corpus(tmp_path / "corpus", sources=["fake"], jobs=2, only="fake/[!rdehgt]*")
    counts = {}
    for split in ("train", "validation", "test"):
        wanted = [g for g in document["graphs"].values() if g["split"] == split and g["distinct"]]
        if wanted:
            counts[split] = len(load_graphs(tmp_path / "corpus", split))
            assert counts[split] == len(wanted)
        else:
            with pytest.raises(ConfigError, match=f"no graph in its split '{split}'"):
                load_graphs(tmp_path / "corpus", split)
    assert counts


def test_noisy_copies_come_after_the_graphs():
    graphs = list(GRAPHS[:2])
    assert noisy_copies(graphs, 0, 0.1) == graphs
    assert noisy_copies([], 2, 0.1) == []
    found = noisy_copies(graphs, 2, 0.1)
    assert found[:2] == graphs
    assert [graph.num_ops for graph in found] == [5] * 6
    assert len(set(hashes(found))) == 6
    assert hashes(noisy_copies(graphs, 2, 0.1)) == hashes(found)


def test_both_sets_as_the_settings_say(folder):
    config = tiny_config()
    data = DataConfig(
        train=(str(folder),), validation=(str(folder),), train_limit=2, validation_limit=1, noisy_copies=1
    )
    graphs, held_out = training_graphs(dataclasses.replace(config, data=data))
    assert (len(graphs), len(held_out)) == (4, 1)
    data = dataclasses.replace(data, train_limit=0, validation_limit=0, noisy_copies=0, max_ops=30)
    graphs, held_out = training_graphs(dataclasses.replace(config, data=data))
    assert (len(graphs), len(held_out)) == (2, 2)
    for name in ("train", "validation"):
        with pytest.raises(ConfigError, match=rf"data\.{name}: give the path of a set of graphs"):
            training_graphs(dataclasses.replace(config, data=dataclasses.replace(data, **{name: ""})))
    with pytest.raises(ConfigError, match=r"data\.validation: give"):  # Before any graph is read.
        training_graphs(dataclasses.replace(config, data=DataConfig(train="absent")))


def test_contraction_spares_memory_where_it_counts(folder):
    config = dataclasses.replace(
        tiny_config(), data=DataConfig(str(folder), str(folder), contract="only", noisy_copies=0)
    )
    plain = load_graphs(folder, "train")
    for task, spare in (
        (TaskConfig(), False),
        (TaskConfig("peak-memory"), True),
        (TaskConfig(memory="100B"), True),
        (TaskConfig(memory="1GiB"), False),
    ):
        policy = dataclasses.replace(config.policy, objective=task.objective)
        changed = dataclasses.replace(config, task=task, policy=policy)
        graphs, _ = training_graphs(changed)
        small = hashes(contract(graph, spare_memory=spare).graph for graph in plain)
        assert hashes(graphs) == small
        both = dataclasses.replace(changed, data=dataclasses.replace(config.data, contract="both"))
        assert hashes(training_graphs(both)[0]) == sorted(hashes(plain) + small)


def test_contracted_graphs_do_where_all_are_too_large_as_they_are(tmp_path):
    builder = GraphBuilder()
    for o in range(9):
        builder.add_op(
            f"op{o}", runtime=9.0 if o in (1, 4, 7) else 0.01, inputs=[f"op{o - 1}"] if o else [], outputs=[4]
        )
    save_graph(builder.build(), tmp_path / "graph.pbtxt")
    (small,) = load_graphs(tmp_path, "train", contracted_for=(TWO, Objective.MAKESPAN))
    assert 1 < small.num_ops < 9
    data = DataConfig(str(tmp_path), str(tmp_path), contract="both", noisy_copies=0, max_ops=small.num_ops)
    config = dataclasses.replace(tiny_config(), data=data)
    assert [hashes(graphs) for graphs in training_graphs(config)] == [[small.content_hash]] * 2
    too_few = dataclasses.replace(config, data=dataclasses.replace(data, max_ops=small.num_ops - 1))
    with pytest.raises(ConfigError, match="but the smallest graph has 9 ops; raise it"):
        training_graphs(too_few)


def test_graphs_that_one_device_serves_best_may_be_left_out(tmp_path):
    for number, shared in enumerate((False, True)):
        builder, before = GraphBuilder(), "a"
        builder.add_op("a", runtime=1.0, outputs=[4])
        for name in "bcd":
            builder.add_op(name, runtime=3.0, inputs=[before], outputs=[4])
            before = "a" if shared else name
        save_graph(builder.build(), tmp_path / f"{number}.pbtxt")
    chain, fork = load_graphs(tmp_path, "train")
    config = tiny_config()
    data = DataConfig(str(tmp_path), str(tmp_path), noisy_copies=0)
    # 10 seconds of work: 10 along the longest path, or 4.
    for least, left in ((0, [chain, fork]), (1, [chain, fork]), (1.01, [fork]), (2.5, [fork])):
        settings = dataclasses.replace(config, data=dataclasses.replace(data, min_parallelism=least))
        graphs, held_out = training_graphs(settings)
        assert hashes(graphs) == hashes(left)
        assert hashes(held_out) == hashes([chain, fork])
    settings = dataclasses.replace(config, data=dataclasses.replace(data, min_parallelism=2.51))
    with pytest.raises(ConfigError, match=r"data\.min_parallelism: is 2\.51, and no graph has so much"):
        training_graphs(settings)


# References ------------------------------------------------------------------------------------------------


@pytest.fixture
def searched(monkeypatch):
    """How many graphs each search of a reference was for."""
    seen = []

    def counting(problem, *args, **options):
        seen.append(problem.num_graphs)
        return solve(problem, *args, **options)

    monkeypatch.setattr(reference, "solve", counting)
    return seen


def test_a_reference_is_the_mean_of_uniform_searches(tmp_path, searched):
    config = tiny_config()
    share = share_of(config)
    pool, devices, done = share.pool, jax.devices()[:1], []
    found = with_references(config, share, tmp_path / "r.jsonl", devices, progress=done.append).pool
    assert sum(done) == 3
    assert searched == [3, 3]
    key = jax.random.fold_in(jax.random.key(config.seed), 2**31)
    runs = [
        solve(
            pool.problem,
            keys_of(jax.random.fold_in(key, r), pool.identity),
            Stopping(config.task.evaluations),
            config=config.search,
        ).fitness
        for r in range(2)
    ]
    np.testing.assert_allclose(found.reference, np.mean(runs, axis=0), rtol=1e-6)
    assert len(np.unique(runs)) > 3
    np.testing.assert_array_equal(found.identity, pool.identity)


def test_references_do_not_depend_on_the_number_of_devices():
    config = tiny_config()
    share = share_of(config)
    one, *others = (referenced(config, share, None, jax.devices()[:count]) for count in (1, 2, 4))
    for again in others:
        np.testing.assert_array_equal(again, one)


def referenced(config, share, path, devices=None):
    """The references, on one device by default."""
    return with_references(config, share, path, devices or jax.devices()[:1]).pool.reference


def test_references_are_computed_once(tmp_path, searched):
    config, path = tiny_config(), tmp_path / "r.jsonl"
    pool = share_of(config)
    first = referenced(config, share_of(config, GRAPHS[:1]), path)
    both = referenced(config, pool, path)
    assert both[0] == first[0]
    assert len([line for line in path.read_text().splitlines() if line]) == 3
    count, text = len(searched), path.read_text()
    again = referenced(config, pool, path)
    assert (len(searched), path.read_text()) == (count, text)
    np.testing.assert_array_equal(again, both)
    # A kill has left half a line.
    path.write_text(text[:-30])
    np.testing.assert_array_equal(referenced(config, pool, path), both)
    assert len(searched) == count + 2
    np.testing.assert_array_equal(referenced(config, pool, path), both)
    assert len(searched) == count + 2


def test_other_settings_are_other_references(tmp_path, searched):
    config, path = tiny_config(), tmp_path / "r.jsonl"
    pool = share_of(config)
    referenced(config, pool, path)
    count = len(searched)
    for other in (
        dataclasses.replace(config, seed=1),
        dataclasses.replace(config, task=dataclasses.replace(config.task, evaluations=14)),
        tiny_config(reference_seeds=1),
    ):
        referenced(other, pool, path)
        assert len(searched) > count
        count = len(searched)
    # References do not depend on the optimizer.
    referenced(tiny_config(learning_rate=0.5, steps=3), pool, path)
    assert len(searched) == count


def test_more_graphs_than_a_chunk_holds(tmp_path, monkeypatch):
    config = tiny_config(reference_seeds=1)
    pool = share_of(config)
    whole = referenced(config, pool, None)
    for chunk in (1, 2):
        monkeypatch.setattr(reference, "_CHUNK", chunk)
        np.testing.assert_array_equal(referenced(config, pool, tmp_path / f"{chunk}.jsonl"), whole)


# Records ---------------------------------------------------------------------------------------------------


def steps(folder):
    return [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def write(folder, after, numbers, **options):
    with Record(folder, after, tensorboard=options.get("tensorboard", False)) as record:
        for step in numbers:
            record.add("train", step, {"improvement": step / 10})
            # Each line is on disk at once, so a kill loses none.
            assert steps(folder)[-1] == step


def test_no_step_is_there_twice_after_a_restart(tmp_path):
    write(tmp_path, -1, [0, 1, 2, 3])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "ki')
    write(tmp_path, 2, [3, 4])
    assert steps(tmp_path) == [0, 1, 2, 3, 4]
    write(tmp_path, -1, [0])
    assert steps(tmp_path) == [0]


def test_a_damaged_record_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 0}\n{"step"\n{"step": 2}\n')
    with pytest.raises(FormatError, match=r"metrics\.jsonl: line 2 is damaged; delete it and train on"):
        write(tmp_path, 2, [3])


def test_events_for_tensorboard(tmp_path):
    messages = importlib.import_module("tensorboardX.proto.event_pb2")
    write(tmp_path, -1, [0, 1, 2], tensorboard=True)
    # The names of these files have no more than seconds in them.
    (first,) = (path.rename(tmp_path / "first") for path in (tmp_path / "tensorboard").iterdir())
    write(tmp_path, 1, [2, 3], tensorboard=True)
    (second,) = (tmp_path / "tensorboard").iterdir()
    assert scalars(first, messages)[0] == [("train/improvement", s) for s in (0, 1, 2)]
    found, void = scalars(second, messages)
    assert found == [("train/improvement", s) for s in (2, 3)]
    # Only values of steps that were made again are marked as void in the first file.
    assert void == [2]


def scalars(path, messages):
    """Tags and steps in a file of events, and the steps from which on older ones are void."""
    data, found, void = path.read_bytes(), [], []
    while data:
        length = int.from_bytes(data[:8], "little")
        event = messages.Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]
        found += [(value.tag, event.step) for value in event.summary.value]
        if event.session_log.status == messages.SessionLog.START:
            void.append(event.step)
    return found, void


def test_without_tensorboardx(tmp_path, monkeypatch):
    own = builtins.__import__

    def without(name, *args, **options):
        if name.startswith("tensorboardX"):
            raise ImportError(name)
        return own(name, *args, **options)

    monkeypatch.delitem(sys.modules, "tensorboardX", raising=False)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"regal-jax\[train\]"):
        Record(tmp_path, -1, tensorboard=True)
    # Before anything is computed or written.
    with pytest.raises(MissingExtraError, match=r"regal-jax\[train\]"):
        one_device(tiny_config(), tmp_path / "run", tensorboard=True)
    assert not (tmp_path / "run").exists()
    write(tmp_path, -1, [1])
