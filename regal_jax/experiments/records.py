"""The files of an evaluation, a folder::

    evaluation.json   settings, graphs, jobs and left-out methods of the last run
    results.jsonl     one result per line: a job (method, seed, budget) and a graph

A result is stored under its graph and its ``key``, the digest of all settings that determine it. Settings may
change between two runs in the same folder: shared results are not computed again, and the report covers the
last run.
"""

import dataclasses
import functools
import hashlib
import json
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import numpy as np

from regal_jax.errors import FormatError
from regal_jax.programs.words import source_word
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import check_format, parse_json
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.reading import read_limited

__all__ = ["EVALUATION", "RESULTS", "Outcome", "Records", "code_word", "read_evaluation", "write_evaluation"]

EVALUATION: Final = "evaluation.json"
RESULTS: Final = "results.jsonl"
FORMAT: Final = "regal_jax.evaluation"
VERSION: Final = 1

_NEEDED: Final = {"key", "graph"}
_FIELDS: Final = {"value", "overflow", "evaluations", "seconds"}
_PARTS: Final = {"config": dict, "graphs": list, "jobs": list, "left_out": dict}
"""Parts of ``evaluation.json``."""


@functools.cache
def code_word() -> str:
    """A word for our source, the weights that ship with it, and the versions of its libraries."""
    digest, root = hashlib.sha256(source_word().encode()), pathlib.Path(__file__).resolve().parents[1]
    for path in sorted(path for path in root.rglob("trained/**/*") if path.is_file()):
        digest.update(f"{path.relative_to(root)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of a run.

    Attributes:
      made: Number of results that the run added.
      found: Number of results that existed before.
      left_out: Method -> reason why it did not run.
      finished: Whether the run ended without an interruption.
    """

    made: int
    found: int
    left_out: dict[str, str]
    finished: bool


class Records:
    """The content of ``results.jsonl``.

    Args:
      folder: Folder of the evaluation.

    Raises:
      FormatError: A line is damaged.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._lines = JsonLines(folder / RESULTS, "run again")
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        for number, record in enumerate(self._lines.read(), 1):
            if not _is_result(record):
                raise FormatError(
                    f"{self._lines.path}: line {number} is not a result; delete it and run again"
                )
            self._found[record["key"], record["graph"]] = record

    def mend(self) -> None:
        """Removes an incomplete last line, which a killed run leaves."""
        self._lines.mend()

    @property
    def made(self) -> int:
        """Number of results and refusals."""
        return len(self._found)

    def __contains__(self, item: tuple[str, str]) -> bool:
        """Whether there is a result for ``(key, graph)``, or a refusal."""
        return item in self._found

    def add(self, record: Mapping[str, Any]) -> None:
        """Adds a result; it is on disk when this returns."""
        self._lines.append(record)
        self._found[record["key"], record["graph"]] = dict(record)

    def refusals(self, key: str, graphs: Iterable[str]) -> dict[str, str]:
        """Graph -> reason why the job refused it."""
        found = ((graph, self._found.get((key, graph), {})) for graph in graphs)
        return {graph: record["error"] for graph, record in found if "error" in record}

    def get(self, key: str, graph: str) -> dict[str, Any] | None:
        """The result of a job for a graph; ``None`` if there is none."""
        record = self._found.get((key, graph))
        return None if record is None or "error" in record else record

    def column(self, key: str, graphs: Iterable[str], field: str) -> np.ndarray:
        """``[B]`` float64: a field of the results of a job; NaN where there is no result."""
        found = (self.get(key, graph) for graph in graphs)
        values = [None if record is None else record.get(field) for record in found]
        try:
            return np.array([np.nan if value is None else value for value in values], np.float64)
        except (TypeError, ValueError):
            raise FormatError(
                f"{self._lines.path}: a {field} is no number; delete its line and run again"
            ) from None


def _is_result(record: Mapping[str, Any]) -> bool:
    if not all(isinstance(record.get(name), str) for name in _NEEDED):
        return False
    if "error" in record:
        return isinstance(record["error"], str)
    return all(isinstance(record.get(name), (int, float)) for name in _FIELDS)


def write_evaluation(folder: pathlib.Path, document: Mapping[str, Any]) -> None:
    """Writes ``evaluation.json``.

    Raises:
      OSError: It cannot be written.
    """
    whole = {"format": FORMAT, "version": VERSION, **document}
    write_atomically(folder / EVALUATION, (json.dumps(whole, indent=1, ensure_ascii=False) + "\n").encode())


def read_evaluation(folder: pathlib.Path) -> dict[str, Any]:
    """The document ``evaluation.json``.

    Raises:
      FormatError: The file is missing or is not such a document.
    """
    path = folder / EVALUATION
    try:
        document = parse_json(read_limited(path))
    except (OSError, ValueError) as error:
        raise FormatError(f"{path}: no evaluation there ({error}); run 'regal-jax evaluate' first") from None
    check_format(path, document, FORMAT, VERSION, "run 'regal-jax evaluate' into another folder")
    for name, kind in _PARTS.items():
        if not isinstance(document.get(name), kind):
            raise FormatError(f"{path}: damaged evaluation ({name} is no {kind.__name__}); run it again")
    return document
