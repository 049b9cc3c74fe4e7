"""Splits of a corpus: no leaks within a build nor between builds; the table that fixes them."""

import json
from collections import Counter

import hypothesis
import hypothesis.strategies as st
import pytest

from regal_jax.cli import main
from regal_jax.corpus import (
    FAMILY_SPLITS,
    SOURCES,
    Source,
    build_corpus,
    card_facts,
    describe,
    finish,
    format_card,
    read_family_splits,
)
from regal_jax.corpus.splits import SHARES, partition, representatives, roles
from regal_jax.datasets import load_corpus
from regal_jax.errors import FormatError


def records_of(pairs):
    """A record for every (family, topology)."""
    return [
        {"path": f"p{i:04}", "family": family, "topology_hash": topology}
        for i, (family, topology) in enumerate(pairs)
    ]


def _records(families, topologies):
    family, topology = (st.integers(0, n - 1).map("{:02}".format) for n in (families, topologies))
    return st.lists(st.tuples(family, topology), max_size=150).map(records_of)


_RECORDS = _records(25, 120)
_ENTANGLED = _records(5, 8)
"""Records in which most topologies are in several families."""
_TABLES = st.dictionaries(st.integers(0, 5).map("{:02}".format), st.sampled_from(list(SHARES)))


def split_by_path(records, table):
    found = roles(records, partition(records, table).topologies)
    return {path: role["split"] for path, role in found.items()}


# Within a build ----------------------------------------------------------------------------------


@hypothesis.given(_RECORDS, st.randoms(use_true_random=False))
def test_no_family_and_no_topology_is_in_two_splits(records, random):
    split_of, topologies = partition(records, {})
    assert set(split_of) == {r["family"] for r in records}
    splits: dict[str, set[str]] = {}
    for r in records:
        splits.setdefault(r["topology_hash"], set()).add(split_of[r["family"]])
    assert {t: {split} for t, split in topologies.items()} == splits
    first = representatives(records)
    assert {first[r["path"]] for r in records} == {first[p] for p in first.values()}
    assert len(set(first.values())) == len(splits)
    random.shuffle(records)
    assert partition(records, {}) == (split_of, topologies)
    assert representatives(records) == first


@hypothesis.given(st.lists(st.integers(1, 30), min_size=1, max_size=60))
def test_shares_are_as_near_as_families_allow(sizes):
    records = [
        {"path": f"{f}.{i}", "family": f"f{f}", "topology_hash": f"{f}.{i}"}
        for f, size in enumerate(sizes)
        for i in range(size)
    ]
    split_of = partition(records, {}).families
    counts = Counter(split_of[r["family"]] for r in records)
    for split, share in SHARES.items():
        assert abs(counts[split] - share * len(records)) <= 2 * max(sizes)


@hypothesis.given(_ENTANGLED, _TABLES, st.randoms(use_true_random=False))
def test_the_table_is_kept_and_no_topology_is_in_two_splits(records, table, random):
    families, topologies = found = partition(records, table)
    assert set(families) == {r["family"] for r in records}
    assert all(families[name] == split for name, split in table.items() if name in families)
    splits: dict[str, set[str]] = {}
    paths = split_by_path(records, table)
    for r in records:
        splits.setdefault(r["topology_hash"], set()).add(paths[r["path"]])
    assert splits == {t: {split} for t, split in topologies.items()}
    # The split of a topology is that of one of its families; families in the table come first.
    for topology, split in topologies.items():
        here = {r["family"] for r in records if r["topology_hash"] == topology}
        assert split in {families[name] for name in here & table.keys() or here}
    random.shuffle(records)
    assert partition(records, table) == found
    assert split_by_path(records, table) == paths


def test_a_new_family_joins_its_kin():
    table = {"a": "validation", "b": "test", "c": "train", "absent": "test"}
    records = records_of(
        [
            ("a", "1"), ("b", "2"), ("c", "3"),
            # `joins` shares a topology with a, `joins later` with `joins`, `between` with a and c.
            ("joins", "1"), ("joins", "4"), ("joins later", "4"), ("joins later", "5"),
            ("between", "1"), ("between", "3"), ("between", "6"),
        ]
    )  # fmt: skip
    # All of them share the topology 1: one group, of which c is in train and a further from training.
    families, topologies = partition(records, table)
    new = dict.fromkeys(["joins", "joins later", "between"], "validation")
    assert families == {"a": "validation", "b": "test", "c": "train", **new}
    assert topologies["3"] == "train"
    assert {topologies[t] for t in "1456"} == {"validation"}


def test_families_of_the_table_that_meet_keep_their_splits_and_their_graph_is_held_out():
    table = {"a": "train", "b": "test", "c": "validation"}
    records = records_of([("a", "1"), ("b", "1"), ("a", "2"), ("b", "3"), ("c", "2"), ("new", "2")])
    families, topologies = partition(records, table)
    assert families == {**table, "new": "validation"}
    assert topologies == {"1": "test", "2": "validation", "3": "test"}


def test_what_the_table_has_given_counts_for_the_balance():
    # The splits of 10 graphs should have 6, 2 and 2, and the table has already given 6 to train.
    known = [("a", f"a{i}") for i in range(6)]
    new = [("three", f"b{i}") for i in range(3)] + [("one", "c")]
    families, _ = partition(records_of(known + new), {"a": "train"})
    assert families == {"a": "train", "three": "validation", "one": "test"}
    # Without the table, the family of three graphs goes to train.
    assert partition(records_of(new), {}).families == {"three": "train", "one": "validation"}


def test_sizes_nought_and_one():
    assert partition([], {}) == partition([], {"f": "test"}) == ({}, {})
    assert roles([], {}) == {}
    one = records_of([("f", "t")])
    assert partition(one, {}) == ({"f": "train"}, {"t": "train"})
    assert partition(one, {"f": "test"}) == ({"f": "test"}, {"t": "test"})
    assert roles(one, {"t": "test"}) == {"p0000": {"split": "test", "distinct": True}}


# Between builds ----------------------------------------------------------------------------------


@hypothesis.given(_RECORDS, st.data())
def test_a_part_of_the_build_that_made_the_table_has_its_splits(records, data):
    table, topologies = partition(records, {})
    keep = data.draw(st.lists(st.booleans(), min_size=len(records), max_size=len(records)))
    part = [record for record, kept in zip(records, keep, strict=True) if kept]
    assert partition(part, table) == (
        {name: split for name, split in table.items() if any(r["family"] == name for r in part)},
        {t: split for t, split in topologies.items() if any(r["topology_hash"] == t for r in part)},
    )


@hypothesis.given(_ENTANGLED, _ENTANGLED, _TABLES)
def test_what_a_smaller_build_tests_no_larger_one_trains_on(records, more, table):
    records = [record for record in records if record["family"] in table]
    small = partition(records, table).topologies
    large = partition(records + more, table).topologies
    order = list(SHARES)
    assert all(order.index(large[t]) >= order.index(split) for t, split in small.items())


@hypothesis.given(_ENTANGLED, _TABLES)
def test_new_families_change_nothing_for_known_ones(records, table):
    known = [record for record in records if record["family"] in table]
    alone, among = partition(known, table), partition(records, table)
    assert alone.families.items() <= among.families.items()
    assert alone.topologies.items() <= among.topologies.items()


# Corpora and tables on disk ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("splits") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
        build_corpus(folder, sources=["fake"], jobs=2, only="fake/[clft]*")
    return folder


@pytest.fixture
def corpus(built):
    """Chains, of which ``twin`` repeats one, forks and layered graphs, with the splits of no table."""
    finish(built, {})
    return built


def test_the_command_makes_a_table_that_keeps_the_splits(corpus, tmp_path, capsys):
    out = tmp_path / "table.json"
    command = ["corpus", "splits", str(corpus), "--out", str(out)]
    before = (corpus / "corpus.json").read_bytes()
    assert main(command) == 0
    document = json.loads(before)
    distinct = document["counts"]["distinct"]
    assert f"4 families of {distinct} distinct graphs" in capsys.readouterr().out
    made = json.loads(out.read_bytes())
    assert made["distinct"] == distinct
    assert made["packages"] == document["packages"]
    assert made["families"] == read_family_splits(out) == document["families"]
    assert list(made["families"]) == ["chain", "fork", "layered", "twin"]
    # With this table the corpus has the same splits, and no family is new.
    assert document["counts"]["families_not_in_table"] == 4
    again = finish(corpus, read_family_splits(out))
    assert again["graphs"] == document["graphs"]
    assert again["counts"] == {**document["counts"], "families_not_in_table": 0}
    # The same bytes are written, whatever table the corpus was finished with.
    first = out.read_bytes()
    finish(corpus, dict.fromkeys(made["families"], "test"))
    assert main([*command, "--quiet"]) == 0
    assert out.read_bytes() == first
    assert capsys.readouterr().out == ""


def test_a_table_that_is_there_grows_and_keeps_what_it_has(corpus, tmp_path):
    out = tmp_path / "table.json"
    known = {"fork": "test", "long gone": "validation"}
    document = {"format": "regal_jax.family_splits", "version": 1, "packages": {}, "distinct": 0}
    out.write_text(json.dumps({**document, "families": known}))
    assert main(["corpus", "splits", str(corpus), "--out", str(out), "--quiet"]) == 0
    found = read_family_splits(out)
    assert list(found) == ["chain", "fork", "layered", "long gone", "twin"]
    assert known.items() <= found.items()
    # Families that are not in the table are balanced with those in it.
    assert found.items() >= finish(corpus, known)["families"].items()


def test_graphs_move_with_their_topology_and_are_counted(corpus):
    document = finish(corpus, {"chain": "train", "twin": "test", "fork": "validation"})
    assert document["families"]["chain"] == "train"
    moved = {path for path, role in document["graphs"].items() if "chain60." in path}
    assert len(moved) == document["counts"]["moved"] == 2
    assert all(document["graphs"][path]["split"] == "test" for path in moved)
    assert "moved           2 graphs" in describe(document)
    assert "1 not in the table of splits" in describe(document)
    assert {r["family"] for r, _ in load_corpus(corpus, "test", duplicates=True)} >= {"chain", "twin"}
    card = format_card(card_facts(corpus))
    assert "2 graphs are in the split of their topology, not in that of their family" in card
    assert "| chain | train |" in card
    # The text omits these sentences for a corpus without moved graphs.
    whole = finish(corpus, dict.fromkeys(document["families"], "train"))
    assert "moved " not in describe(whole)
    assert "not in the table" not in describe(whole)
    assert "not in the split" not in format_card(card_facts(corpus))


def test_bad_input_is_one_line_and_nothing_is_lost(corpus, tmp_path, capsys):
    mine = tmp_path / "thesis.json"
    mine.write_text('{"years": "of work"}')
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "corpus.json").write_text(
        '{"format": "regal_jax.corpus", "version": 1, "settings": {}, "packages": {}, "graphs": {}}'
    )
    for arguments, message in (
        ([str(tmp_path / "nothing"), "--out", str(tmp_path / "a")], "no corpus there"),
        ([str(empty), "--out", str(tmp_path / "a")], "has no graphs yet"),
        ([str(corpus), "--out", str(mine)], "something other than a table of splits"),
        ([str(corpus), "--out", str(tmp_path / "no" / "a.json")], "make it first"),
    ):
        assert main(["corpus", "splits", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert mine.read_text() == '{"years": "of work"}'
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "regal_jax.corpus"}, "not a regal_jax.family_splits document"),
        ({"version": 2}, "version 2 is not known; update regal-jax"),
        ({"families": ["resnet"]}, "families is .*, not an object"),
        ({"families": {"resnet": "dev"}}, "family 'resnet': there is no split 'dev'; use one of train, "),
        ({"families": {"resnet": ["test"]}}, "family 'resnet': there is no split"),
    ],
)
def test_a_damaged_table_is_one_line(change, message, tmp_path):
    file = tmp_path / "table.json"
    file.write_text(json.dumps({**json.loads(FAMILY_SPLITS.read_bytes()), **change}))
    with pytest.raises(FormatError, match=message) as error:
        read_family_splits(file)
    assert "\n" not in str(error.value)
    file.write_text("nonsense")
    with pytest.raises(FormatError, match="no JSON"):
        read_family_splits(file)
    with pytest.raises(FormatError, match="cannot be read"):
        read_family_splits(tmp_path / "nothing")


def test_the_table_of_the_package_is_what_the_command_would_write():
    document = json.loads(FAMILY_SPLITS.read_bytes())
    assert read_family_splits() == document["families"]
    assert list(document["families"]) == sorted(document["families"])
    assert FAMILY_SPLITS.read_text("utf-8") == json.dumps(document, indent=1, ensure_ascii=False) + "\n"
