"""Reading a corpus: its graphs by split, form and source, each loaded on demand."""

import os
import pathlib
from collections.abc import Iterator
from typing import Any

from regal_jax.checks import check_whole
from regal_jax.datasets.candidates import SPLITS
from regal_jax.datasets.corpus_files import CORPUS, FORMS, INDEX, corpus_document, read_index
from regal_jax.errors import ConfigError, FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.importers import load_graph
from regal_jax.importers.files import at_path
from regal_jax.importers.strict_json import Field
from regal_jax.storage.paths import folder_path

__all__ = ["corpus_records", "load_corpus"]


def corpus_records(folder: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a corpus, by path, each with ``distinct``, ``represented_by`` and ``split``.

    Args:
      folder: Folder of a corpus that `regal_jax.corpus.build_corpus` made.

    Raises:
      FormatError: There is no corpus, or it is damaged.
    """
    root = folder_path(folder)
    document = corpus_document(root)
    with at_path(root / CORPUS):
        roles = _roles(Field(document))
    records = {record["path"]: record for record in read_index(root)}
    missing = sorted(set(roles) - set(records))
    if missing:
        raise FormatError(f"{root / INDEX}: lacks {missing[0]!r}; run 'regal-jax corpus build' again")
    # Graphs that an unfinished build has added since are left out until it is finished.
    return [{**records[path], **roles[path]} for path in sorted(roles)]


def _roles(document: Field) -> dict[str, dict[str, Any]]:
    """The role of each graph, as `regal_jax.corpus.finish` writes it."""
    graphs = document.get("graphs")
    for path in graphs.mapping():
        role = graphs.get(path)
        role.get("distinct").flag()
        split = role.get("split").text()
        if split not in SPLITS:
            raise role.error(f"there is no split {split!r}; use one of {', '.join(SPLITS)}")
    return graphs.value


def load_corpus(
    folder: str | os.PathLike[str],
    split: str | None = None,
    *,
    form: str | None = None,
    source: str | None = None,
    duplicates: bool = False,
    max_ops: int = 0,
) -> Iterator[tuple[dict[str, Any], ComputationGraph]]:
    """Iterates over the graphs of a corpus, each read on demand.

    Args:
      folder: Folder of a corpus that `regal_jax.corpus.build_corpus` made.
      split: ``"train"``, ``"validation"`` or ``"test"``; all by default.
      form: One of `FORMS`; all by default.
      source: Name of a source; all by default.
      duplicates: Include graphs whose topology another graph represents.
      max_ops: Leave out larger graphs without reading them; 0 for no limit.

    Returns:
      An iterator over ``(record, graph)``, in the order of their paths.

    Raises:
      ConfigError: There is no such split, form or source, or ``max_ops`` is no whole number of at least 0.
      FormatError: There is no corpus, or it is damaged.
    """
    max_ops = check_whole("max_ops", max_ops, 0)
    records = corpus_records(folder)
    for what, value, known in (
        ("split", split, SPLITS),
        ("form", form, FORMS),
        ("source", source, sorted({record["source"] for record in records})),
    ):
        if value is not None and value not in known:
            raise ConfigError(f"{what}: there is no {value!r}; use one of {', '.join(known)}")
    chosen = [
        record
        for record in records
        if (duplicates or record["distinct"])
        and split in (None, record["split"])
        and form in (None, record["form"])
        and source in (None, record["source"])
        and (not max_ops or record["ops"] <= max_ops)
    ]
    return ((record, load_graph(pathlib.Path(folder) / record["path"])) for record in chosen)
