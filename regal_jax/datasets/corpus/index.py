"""The files of a corpus: append-only lists that survive a kill, and the document that sums them up.

A corpus is a folder::

    corpus.json       settings, versions, counts, families, and what each graph is for
    index.jsonl       one finished graph a line, in the order in which they were finished
    failures.jsonl    one spec that gave no graph a line, with the reason
    graphs/SOURCE/MODEL.FORM.json.gz
"""

import json
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

from regal_jax.documents import parse_json
from regal_jax.errors import FormatError
from regal_jax.files import write_atomically
from regal_jax.importers.files import at_path
from regal_jax.importers.strict_json import Field

__all__ = [
    "CORPUS", "FAILURES", "FORMAT", "GRAPHS", "INDEX", "JsonLines", "read_corpus", "read_index",
    "write_corpus",
]  # fmt: skip

FORMAT: Final = "regal_jax.corpus"
VERSION: Final = 1
CORPUS, INDEX, FAILURES, GRAPHS = "corpus.json", "index.jsonl", "failures.jsonl", "graphs"


def _parse(data: bytes) -> Any:
    """The JSON value in ``data``; raises `ValueError` for what is none, or cannot be written again."""
    value = parse_json(data)
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()  # Half a character is no text.
    return value


class JsonLines:
    """An append-only list of JSON objects, one a line.

    A process killed while it writes leaves half a line at the end: that line is not there. Anything else
    that is no JSON object is damage.

    Args:
      path: The file; it need not exist.
    """

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path

    def read(self) -> list[dict[str, Any]]:
        """The objects.

        Raises:
          FormatError: A line before the last is damaged, or the file cannot be read.
        """
        whole, _ = self._split()
        records = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                record = _parse(line)
            except ValueError:
                record = None
            if not isinstance(record, dict):
                raise FormatError(f"{self.path}: line {number} is damaged; delete it and build again")
            records.append(record)
        return records

    def _split(self) -> tuple[bytes, bytes]:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return b"", b""
        except OSError as error:
            raise FormatError(f"{self.path}: cannot be read: {error.strerror}; check the path") from None
        end = data.rfind(b"\n") + 1
        return data[:end], data[end:]

    def mend(self) -> None:
        """Cuts off half a line at the end, so that the next one starts a line of its own."""
        whole, torn = self._split()
        if torn:
            os.truncate(self.path, len(whole))

    def append(self, record: Mapping[str, Any]) -> None:
        """Adds one object.

        Raises:
          OSError: It cannot be written.
        """
        # One write of one line: nothing of it is left in a buffer when the process is killed.
        with open(self.path, "ab", buffering=0) as file:
            file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def replace(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Writes the whole list anew, all of it or nothing."""
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        write_atomically(self.path, "".join(lines).encode())


def read_index(folder: pathlib.Path) -> list[dict[str, Any]]:
    """The records of a corpus, in the order in which they were made; what is needed of each is there.

    Raises:
      FormatError: Damage.
    """
    lines = JsonLines(folder / INDEX)
    records = lines.read()
    for number, record in enumerate(records, 1):
        with at_path(f"{lines.path}: line {number}"):
            field = Field(record)
            for name in ("path", "source", "model", "family", "form", "topology_hash"):
                field.get(name).text()
            field.get("ops").count()
    return records


def read_corpus(folder: pathlib.Path) -> dict[str, Any] | None:
    """The document ``corpus.json``; ``None`` if there is none.

    Raises:
      FormatError: It is something else.
    """
    path = folder / CORPUS
    try:
        document = _parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: not a corpus document ({error}); build into another folder") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise FormatError(f"{path}: not a {FORMAT} document; build into another folder")
    if document.get("version") != VERSION:
        raise FormatError(f"{path}: version {document.get('version')!r} is not known; update regal-jax")
    with at_path(path):
        for name in ("settings", "packages"):
            Field(document).get(name).mapping()
    return document


def write_corpus(folder: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Writes ``corpus.json``, one graph a line.

    Raises:
      OSError: It cannot be written.
    """
    whole = {"format": FORMAT, "version": VERSION, **document}
    graphs = whole.pop("graphs", {})
    text = json.dumps(whole, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(f"  {json.dumps(path)}: {json.dumps(value)}" for path, value in graphs.items())
    write_atomically(folder / CORPUS, f'{text},\n "graphs": {{\n{lines}\n }}\n}}\n'.encode())
