"""The data card: its numbers against an independent count of the files, and updates of its file."""

import gzip
import importlib.metadata
import json
import pathlib
import re
import shutil
from collections import Counter

import numpy as np
import pytest

from regal_jax.cli import main
from regal_jax.corpus import SOURCES, Source, build_corpus, card_facts, format_card, write_card
from regal_jax.corpus.card import BEGINS, ENDS, LICENCES
from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.json_lines import JsonLines
from regal_jax.viz import plot_sizes

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("card") / "corpus"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SOURCES, "fake", Source("fake", "corpus_fake_source", ("numpy",)))
        build_corpus(folder, sources=["fake"], jobs=2, only="fake/[!dehg]*")
    return folder


@pytest.fixture(scope="module")
def documents(corpus):
    """Path -> ops in the file, for distinct graphs by an independent rule: each topology hash once."""
    text = (corpus / "index.jsonl").read_text()
    lines = sorted(map(json.loads, text.splitlines()), key=lambda record: record["path"])
    first = {record["topology_hash"]: record["path"] for record in reversed(lines)}
    return {p: json.loads(gzip.decompress((corpus / p).read_bytes()))["ops"] for p in first.values()}


def rows(card, *starts):
    """The cells of the row of a table that begins with ``starts``."""
    for line in card.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("|") and tuple(cells[: len(starts)]) == starts:
            return cells[len(starts) :]
    raise AssertionError(f"no row {starts}")


def test_counts_are_those_of_the_files(corpus, documents):
    card = format_card(card_facts(corpus))
    index = JsonLines(corpus / "index.jsonl").read()
    failures = Counter(f["failure"] for f in JsonLines(corpus / "failures.jsonl").read())
    assert failures == {"error": 1, "size": 1}
    gradient = sum(r["form"] == "gradient" for r in index)
    sizes = {path: len(ops) for path, ops in documents.items()}
    forward = len(index) - gradient
    # chain60.forward stands for its gradient form.
    assert rows(card, "fake", "gradient") == ["1", "0", "0", "0", "0"]
    assert gradient == 1
    total = f"{sum(sizes.values()):,}"
    assert rows(card, "fake", "forward") == [str(forward), str(len(sizes)), total, "1", "1"]
    assert rows(card, "**all**", "") == [str(len(index)), str(len(sizes)), total, "1", "1"]
    document = json.loads((corpus / "corpus.json").read_text())
    family = {r["path"]: r["family"] for r in index}
    for split in ("train", "validation", "test"):
        here = [p for p in sizes if document["families"][family[p]] == split]
        expected = [len({family[p] for p in here}), len(here), sum(sizes[p] for p in here)]
        assert rows(card, split) == [f"{number:,}" for number in expected]
    for name in {family[p] for p in sizes}:
        assert rows(card, name)[2] == str(sum(family[p] == name for p in sizes))
    ops = sorted(sizes.values())
    assert [rows(card, "ops")[i] for i in (0, 3, 6)] == [
        f"{x:,.0f}" for x in (ops[0], np.median(ops), ops[-1])
    ]
    assert rows(card, "fake")[1:] != []
    assert f"numpy {importlib.metadata.version('numpy')}" in card


def test_degrees_and_kinds_are_those_of_the_files(corpus, documents):
    facts = card_facts(corpus)
    read, readers, kinds = Counter(), Counter(), Counter()
    for ops in documents.values():
        of_outputs = Counter(tensor.rpartition(":")[0] for op in ops for tensor in op.get("inputs", []))
        read.update(len(op.get("inputs", [])) for op in ops)
        readers.update(of_outputs[op["name"]] for op in ops)
        kinds.update(op.get("kind", "") for op in ops)
    for name, expected in (("tensors read", read), ("reads of its outputs", readers)):
        assert dict(enumerate(facts.degrees[name])) == {d: expected[d] for d in range(max(expected) + 1)}
    assert facts.kinds == kinds
    assert facts.kind_graphs == Counter(
        k for ops in documents.values() for k in {op.get("kind", "") for op in ops}
    )


def test_the_command_writes_a_card_with_a_figure(corpus, tmp_path, capsys):
    (tmp_path / "images").mkdir()
    card, figure = tmp_path / "card.md", tmp_path / "images" / "corpus.png"
    command = ["corpus", "card", str(corpus), "--out", str(card), "--figure", str(figure)]
    assert main(command) == 0
    assert re.search(r"the card of \d+ distinct graphs", capsys.readouterr().out)
    assert figure.read_bytes().startswith(PNG)
    assert "](images/corpus.png)" in card.read_text()
    first = card.read_text()
    card.write_text(f"before\n{first}after\n".replace("| **all**", "| an old number"))
    assert main([*command, "--quiet"]) == 0
    assert card.read_text() == f"before\n{first}after\n"


def test_only_what_is_between_the_markers_is_replaced(tmp_path):
    file = tmp_path / "doc.md"
    write_card("one", file)
    assert file.read_text().split(BEGINS)[1].split(ENDS)[0].strip() == "one"
    file.write_text(f"# Mine\n{BEGINS}\nold\n{ENDS}\nmine too\n")
    write_card("new", file)
    write_card("newer", file)
    assert file.read_text() == f"# Mine\n{BEGINS}\n\nnewer\n{ENDS}\nmine too\n"
    file.write_bytes(f"# Mine\r\n{BEGINS}\nold\n{ENDS}\r\nmine too\r\n".encode())
    write_card("new", file)
    assert file.read_bytes() == f"# Mine\r\n{BEGINS}\n\nnew\n{ENDS}\r\nmine too\r\n".encode()
    for text in ("# Mine\n", f"{BEGINS}\n", f"{ENDS}\n{BEGINS}\n", f"{BEGINS}\n{BEGINS}\n{ENDS}\n"):
        file.write_text(text)
        with pytest.raises(ConfigError, match="lacks the lines") as error:
            write_card("new", file)
        assert "\n" not in str(error.value)
        assert file.read_text() == text


def test_bad_input_is_one_line(corpus, tmp_path, capsys):
    out = str(tmp_path / "card.md")
    for arguments, message in (
        ([str(tmp_path / "nothing"), "--out", out], "no corpus there"),
        ([str(corpus), "--out", out, "--figure", str(tmp_path / "a.doc")], "cannot draw"),
        ([str(corpus), "--out", str(tmp_path / "no" / "card.md")], "make it first"),
    ):
        assert main(["corpus", "card", *arguments]) == 2
        err = capsys.readouterr().err
        assert message in err
        assert err.count("\n") == 1
    assert not (tmp_path / "card.md").exists()
    with pytest.raises(FormatError, match="no corpus there"):
        card_facts(tmp_path)
    with pytest.raises(ConfigError, match="at least one"):
        plot_sizes({"none": []})


def without(name):
    return lambda document: document.pop(name)


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("corpus.json", without("families"), r"corpus\.json: document: 'families' is missing"),
        ("corpus.json", lambda d: d["settings"].clear(), r"corpus\.json: settings: 'min_ops' is missing"),
        ("corpus.json", lambda d: d["packages"].update(fake=3), "packages.fake: expected an object, got 3"),
        ("index.jsonl", without("depth"), r"index\.jsonl: graphs/fake/.*: document: 'depth' is missing"),
        (
            "index.jsonl",
            lambda record: record.update(family="new"),
            r"corpus\.json: lacks the family 'new'; run 'regal-jax corpus show .*copy'",
        ),
    ],
)
def test_a_damaged_corpus_is_one_line(file, change, message, corpus, tmp_path):
    copy = shutil.copytree(corpus, tmp_path / "copy")
    documents = (
        JsonLines(copy / file).read() if file == "index.jsonl" else [json.loads((copy / file).read_text())]
    )
    change(documents[0])
    (copy / file).write_text("".join(json.dumps(document) + "\n" for document in documents))
    with pytest.raises(FormatError, match=message):
        card_facts(copy)


def test_a_figure_may_have_any_name(corpus):
    card = format_card(card_facts(corpus), "../my figure (1).png")
    assert "degrees](../my%20figure%20%281%29.png)\n" in card


@pytest.mark.parametrize("package", LICENCES)
def test_licences_are_those_that_the_packages_state(package):
    try:
        metadata = importlib.metadata.metadata(package)
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")
    stated = " ".join(
        [*metadata.get_all("License-Expression", []), *metadata.get_all("License", [])]
        + [c for c in metadata.get_all("Classifier", []) if c.startswith("License")]
    )
    # "Apache 2.0 License", "Apache License 2.0", "Apache Software License"; torch lists what it bundles too.
    assert LICENCES[package].split("-")[0] in stated


def test_the_card_in_the_documents_has_the_sentences_of_the_generator(corpus):
    """The documented card has the same form; its tables are of another corpus."""
    document = (pathlib.Path(__file__).parents[1] / "docs" / "datasets.md").read_text("utf-8")
    shown = document.partition(BEGINS)[2].partition(ENDS)[0]

    def sentences(text):
        text = re.sub(r"!\[.*|\d[\d,]*|^\|.*$", "", text, flags=re.MULTILINE)
        return [line.strip() for line in re.split(r"[.;:]\s", text) if line.strip()]

    made = format_card(card_facts(corpus), "images/corpus.png")
    apart = set(sentences(made)) ^ set(sentences(shown))
    # Sentences differ only where they name sizes, profiles, packages or families of one corpus.
    assert {line for line in apart if "`" not in line} == {
        line
        for line in apart
        if line.startswith(("jax (", "The  largest", "the other", "graphs", "Licences of the other"))
    }


def test_the_document_takes_a_card(tmp_path):
    document = pathlib.Path(__file__).parents[1] / "docs" / "datasets.md"
    copy = tmp_path / "datasets.md"
    copy.write_bytes(document.read_bytes())
    write_card("a new card", copy)
    before, _, rest = document.read_text("utf-8").partition(BEGINS)
    assert copy.read_text("utf-8") == f"{before}{BEGINS}\n\na new card\n{ENDS}{rest.partition(ENDS)[2]}"
