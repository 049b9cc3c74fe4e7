"""The last step of a build: distinct graphs, splits and counts."""

import os
import pathlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from regal_jax.corpus.family_splits import read_family_splits
from regal_jax.corpus.splits import partition, roles
from regal_jax.datasets.candidates import SPLITS
from regal_jax.datasets.corpus_files import corpus_document, read_failures, read_index, write_corpus
from regal_jax.storage.locks import locked
from regal_jax.storage.paths import folder_path

__all__ = ["NEW_FAMILIES", "brought_up_to_date", "describe", "finish"]

NEW_FAMILIES: Final = "new_families"
"""Setting of a corpus whose families are not in the table of splits; all of its graphs are test graphs."""


def finish(folder: str | os.PathLike[str], table: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Brings ``corpus.json`` up to date with the index. The order of the index does not matter.

    Args:
      folder: Folder of the corpus.
      table: Family -> split; by default the one that comes with the package (`read_family_splits`).

    Returns:
      The document.

    Raises:
      ConfigError: Another process writes the corpus.
      FormatError: There is no corpus, it is damaged, or its folder cannot be written.
      OSError: The document cannot be written.
    """
    root = folder_path(folder)
    corpus_document(root)  # The lock would make the folder.
    with locked(root):
        return brought_up_to_date(root, table)


def brought_up_to_date(root: pathlib.Path, table: Mapping[str, str] | None = None) -> dict[str, Any]:
    """`finish` where the folder is locked."""
    document = corpus_document(root)
    records = sorted(read_index(root), key=lambda record: record["path"])
    failures = read_failures(root)
    table = read_family_splits() if table is None else table
    listed: Mapping[str, str] = table
    if document["settings"].get(NEW_FAMILIES):
        listed = {**dict.fromkeys((record["family"] for record in records), SPLITS[-1]), **table}
    families, topologies = partition(records, listed)
    graphs = roles(records, topologies)
    counts = _counts(records, failures, graphs)
    # Both are empty for the build from which the table was made, and for a part of it.
    counts["families_not_in_table"] = len(families.keys() - table.keys())
    counts["moved"] = sum(graphs[record["path"]]["split"] != families[record["family"]] for record in records)
    kept = {name: document[name] for name in ("settings", "packages")}
    document = {**kept, "counts": counts, "families": families, "graphs": graphs}
    write_corpus(root, document)
    return document


def _counts(
    records: Sequence[Mapping[str, Any]],
    failures: Sequence[Mapping[str, Any]],
    graphs: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    distinct = [record for record in records if graphs[record["path"]]["distinct"]]

    def by(what: str) -> dict[str, int]:
        return dict(sorted(Counter(record[what] for record in distinct).items()))

    splits = Counter(graphs[record["path"]]["split"] for record in distinct)
    return {
        "graphs": len(records),
        "distinct": len(distinct),
        "failures": dict(sorted(Counter(failure["failure"] for failure in failures).items())),
        "sources": by("source"),
        "forms": by("form"),
        "splits": {split: splits[split] for split in SPLITS},
        "ops": sum(record["ops"] for record in distinct),
    }


def describe(document: Mapping[str, Any]) -> str:
    """A summary of a corpus in a few lines."""
    counts = document["counts"]

    def listed(numbers: Mapping[str, int]) -> str:
        return ", ".join(f"{name} {number}" for name, number in numbers.items()) or "none"

    families = Counter(document["families"].values())
    unknown, moved = counts["families_not_in_table"], counts["moved"]
    return "\n".join(
        [
            f"corpus: {counts['distinct']} distinct topologies, {counts['graphs']} graphs, "
            f"{counts['ops']} ops in distinct ones",
            f"  sources         {listed(counts['sources'])}",
            f"  forms           {listed(counts['forms'])}",
            f"  splits          {listed(counts['splits'])}",
            f"  families        {len(document['families'])}: "
            f"{listed({split: families[split] for split in SPLITS})}"
            + (f"; {unknown} not in the table of splits" if unknown else ""),
            *([f"  moved           {moved} graphs to the split of their topology"] if moved else []),
            f"  gave no graph   {listed(counts['failures'])}",
        ]
    )
