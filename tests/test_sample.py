"""The sample that comes with the package, and the command that makes one."""

import itertools
import json
import pathlib
import shutil

import pytest

from regal_jax import Cluster, contract, optimize_many
from regal_jax.cli import main
from regal_jax.corpus import SOURCES, Source, build_corpus, read_family_splits, write_sample
from regal_jax.corpus import sample as sample_module
from regal_jax.datasets import FORMS, SAMPLE, generate, graph_record, load_corpus, load_sample, sample_records
from regal_jax.errors import ConfigError, FormatError

CLUSTER = Cluster.uniform(2, transfer="blocking:latency=5us,bandwidth=300GB/s")


@pytest.fixture(scope="module")
def sample():
    return load_sample()


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sample") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
        build_corpus(folder, sources=["fake"], jobs=2, only="fake/[!rdehgt]*")
    return folder


def size(folder):
    return sum(path.stat().st_size for path in pathlib.Path(folder).rglob("*") if path.is_file())


# The one that comes with the package -------------------------------------------------------------


def test_every_graph_is_what_its_record_says(sample):
    for record, graph in sample:
        assert {name: record[name] for name in graph_record(graph)} == graph_record(graph)
        assert graph.num_ops <= record["original_ops"]
        assert record["profile"] == "h200"


def test_it_is_small_varied_and_without_repeats(sample):
    records = [record for record, _ in sample]
    assert size(SAMPLE) <= 2_000_000
    assert {p.relative_to(SAMPLE).as_posix() for p in SAMPLE.rglob("*") if p.is_file()} == {
        "index.jsonl", *(record["path"] for record in records),
    }  # fmt: skip
    assert len({record["topology_hash"] for record in records}) == len(records)
    assert {record["source"] for record in records} == set(SOURCES)
    assert {record["form"] for record in records} == set(FORMS)
    assert {record["split"] for record in records} == {"train", "validation", "test"}
    assert len({record["family"] for record in records}) > len(records) / 4
    assert max(r["ops"] for r in records) > 10 * min(r["ops"] for r in records)
    # Families are in the splits of the table, and none is in two.
    table = read_family_splits()
    assert all(table.get(r["family"], r["split"]) == r["split"] for r in records)
    pairs = {(record["family"], record["split"]) for record in records}
    assert len(pairs) == len({family for family, _ in pairs})


def test_splits_are_parts_of_it(sample):
    parts = {split: load_sample(split) for split in ("train", "validation", "test")}
    assert sum(map(len, parts.values())) == len(sample)
    assert all(record["split"] == split for split, part in parts.items() for record, _ in part)
    with pytest.raises(ConfigError, match="there is no 'dev'"):
        load_sample("dev")


def test_two_small_ones_are_searched_together(sample):
    small = sorted((graph for _, graph in sample), key=lambda graph: graph.num_ops)[:10]
    # Two of about one size share one compiled program.
    graphs = min(itertools.pairwise(small), key=lambda pair: pair[1].num_ops / pair[0].num_ops)
    plans = optimize_many(graphs, CLUSTER, evaluations=200, seed=0, progress=False)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)


@pytest.mark.slow
def test_all_are_searched_together(sample):
    graphs = [graph for _, graph in sample]
    plans = optimize_many(graphs, CLUSTER, evaluations=200, seed=0, progress=False)
    for graph, plan in zip(graphs, plans, strict=True):
        plan.verify(graph)


def test_commands_read_its_files(sample, capsys):
    record, graph = min(sample, key=lambda pair: pair[1].num_ops)
    file = str(SAMPLE / record["path"])
    assert main(["show", file]) == 0
    assert f"{graph.num_ops:,}" in capsys.readouterr().out
    assert main(["optimize", file, "--method", "critical-path"]) == 0


# The command -------------------------------------------------------------------------------------


def test_the_command_makes_a_sample(corpus, tmp_path, capsys):
    out = tmp_path / "sample"
    command = ["corpus", "sample", str(corpus), "--out", str(out)]
    assert main(command) == 0
    assert "graphs of 3 families" in capsys.readouterr().out
    originals = {record["path"]: (record, graph) for record, graph in load_corpus(corpus)}
    made = load_sample(folder=out)
    hashes = set()
    for record, graph in made:
        before, original = originals[f"graphs/{record['path']}"]
        assert record["original_content_hash"] == original.content_hash == before["content_hash"]
        assert record["original_topology_hash"] == before["topology_hash"]
        assert record["original_ops"] == original.num_ops
        assert record["split"] == before["split"]
        assert graph.content_hash == record["content_hash"] == contract(original).graph.content_hash
        hashes.add(record["topology_hash"])
    # A graph is left out only if its contraction equals that of another one.
    assert {graph_record(contract(g).graph)["topology_hash"] for _, g in originals.values()} == hashes
    first = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    assert main([*command, "--quiet"]) == 0
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == first


def test_families_take_turns_and_limits_hold(corpus, tmp_path):
    assert len({r["family"] for r in write_sample(corpus, tmp_path / "a", graphs=3)}) == 3
    whole = write_sample(corpus, tmp_path / "b")
    limit = size(tmp_path / "b") // 2
    part = write_sample(corpus, tmp_path / "b", max_bytes=limit)
    assert 0 < len(part) < len(whole)
    assert size(tmp_path / "b") <= limit
    assert load_sample(folder=tmp_path / "b")[0][0] == part[0]
    few = sorted(record["ops"] for record in whole)[1]
    assert all(r["ops"] <= few for r in write_sample(corpus, tmp_path / "c", max_ops=few))


@pytest.mark.parametrize("writes", [0, 1, 2])
def test_what_an_interrupted_command_leaves_is_replaced(writes, corpus, tmp_path, monkeypatch):
    expected = write_sample(corpus, tmp_path / "whole")
    write_sample(corpus, tmp_path / "sample", graphs=2)
    write, left = sample_module.write_atomically, iter(range(writes))

    def interrupted(path, data):
        if next(left, None) is None:
            path.with_name(f".{path.name}.1.1.tmp").write_bytes(data[:1])
            raise KeyboardInterrupt
        write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(sample_module, "write_atomically", interrupted)
        for folder in ("sample", "new"):
            with pytest.raises(KeyboardInterrupt):
                write_sample(corpus, tmp_path / folder)
    for folder in ("sample", "new"):
        assert write_sample(corpus, tmp_path / folder) == expected
        assert not list((tmp_path / folder).rglob(".*"))


def test_bad_input_is_one_line_and_nothing_is_lost(corpus, tmp_path, capsys):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for arguments, message in (
        ([str(tmp_path / "nothing"), "--out", str(tmp_path / "a")], "no corpus there"),
        ([str(corpus), "--out", str(mine)], "something other than a sample"),
        ([str(corpus), "--out", str(mine / "thesis.txt")], "is not a folder"),
        ([str(corpus), "--out", str(tmp_path / "a"), "--max-bytes", "10"], "no graph fits"),
        ([str(corpus), "--out", str(tmp_path / "a"), "--max-bytes", "much"], "cannot read 'much'"),
    ):
        assert main(["corpus", "sample", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert [p.name for p in mine.iterdir()] == ["thesis.txt"]
    for option in ({"graphs": "3"}, {"max_ops": 2.5}, {"max_bytes": 0}):
        with pytest.raises(ConfigError, match="must be a whole number of at least 1"):
            write_sample(corpus, tmp_path / "a", **option)
    (tmp_path / "old").mkdir()
    document = json.loads((corpus / "corpus.json").read_text())
    (tmp_path / "old" / "corpus.json").write_text(json.dumps({**document, "settings": {}}))
    shutil.copy(corpus / "index.jsonl", tmp_path / "old")
    with pytest.raises(FormatError, match=r"corpus\.json: settings: 'profile' is missing"):
        write_sample(tmp_path / "old", tmp_path / "a")
    with pytest.raises(FormatError, match="no sample there"):
        sample_records(mine)
    (mine / "index.jsonl").write_text(json.dumps(graph_record(generate("chain", 5, 0))) + "\n")
    with pytest.raises(FormatError, match="line 1 is not of a sample"):
        sample_records(mine)
