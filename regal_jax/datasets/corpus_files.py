"""The files of a corpus: the lists that `regal_jax.corpus` writes, and their summary.

A corpus is a folder::

    corpus.json       settings, versions, counts, families, and the role of each graph
    index.jsonl       one finished graph per line, in the order of completion
    failures.jsonl    one spec without a graph per line, with the reason
    graphs/SOURCE/MODEL.FORM.json.gz
"""

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from regal_jax.errors import FormatError
from regal_jax.importers.files import at_path
from regal_jax.importers.strict_json import Field
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import check_format, parse_writable_json
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.reading import read_limited

__all__ = [
    "CORPUS", "FAILURES", "FORMAT", "FORMS", "GRAPHS", "INDEX", "corpus_document", "read_corpus",
    "read_failures", "read_index", "write_corpus",
]  # fmt: skip

FORMS: Final = ("forward", "gradient", "training-step")
"""Traced forms of a model: inference; the gradient of a loss; the gradient and an Adam update."""

FORMAT: Final = "regal_jax.corpus"
VERSION: Final = 1
CORPUS, INDEX, FAILURES, GRAPHS = "corpus.json", "index.jsonl", "failures.jsonl", "graphs"


def read_index(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a corpus in the order of completion, with all required fields.

    If a path has several records, the last one counts, which describes the file.

    Raises:
      FormatError: The index is damaged.
    """
    names = ("path", "source", "model", "family", "form", "topology_hash", "content_hash")
    records = _records(folder / INDEX, names, ("ops",))
    return list({record["path"]: record for record in records}.values())


def read_failures(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The specs without a graph, with all required fields.

    Raises:
      FormatError: The list is damaged.
    """
    return _records(folder / FAILURES, ("source", "model", "family", "form", "failure"))


def _records(path: pathlib.Path, texts: Sequence[str], counts: Sequence[str] = ()) -> list[dict[str, Any]]:
    records = JsonLines(path).read()
    for number, record in enumerate(records, 1):
        with at_path(f"{path}: line {number}"):
            field = Field(record)
            for name in texts:
                field.get(name).text()
            for name in counts:
                field.get(name).count()
    return records


def read_corpus(folder: pathlib.Path) -> dict[str, Any] | None:
    """The document ``corpus.json``; ``None`` if there is none.

    Raises:
      FormatError: The file is not such a document.
    """
    path = folder / CORPUS
    try:
        document = parse_writable_json(read_limited(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not a corpus document ({error}); build into another folder") from None
    check_format(path, document, FORMAT, VERSION, "build into another folder")
    with at_path(path):
        for name in ("settings", "packages"):
            Field(document).get(name).mapping()
    return document


def corpus_document(folder: pathlib.Path) -> dict[str, Any]:
    """The document ``corpus.json``, which must be there.

    Raises:
      FormatError: There is no such file, or it is not such a document.
    """
    document = read_corpus(folder)
    if document is None:
        raise FormatError(f"{folder}: no corpus there; make one with 'regal-jax corpus build --out {folder}'")
    return document


def write_corpus(folder: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Writes ``corpus.json``, one graph per line.

    Raises:
      OSError: The file cannot be written.
    """
    whole = {"format": FORMAT, "version": VERSION, **document}
    graphs = whole.pop("graphs", {})
    text = json.dumps(whole, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(value)}" for path, value in graphs.items())
    write_atomically(folder / CORPUS, f'{text},\n "graphs": {{\n{lines}\n }}\n}}\n'.encode())
