"""The table of families and their splits, which is the same for every corpus.

If splits were balanced over the graphs of each build, they would differ from build to build, and weights
trained on one build would have seen test graphs of another. So the split of a family is chosen once, from a
whole build (``regal-jax corpus splits``), and stored in ``family_splits.json``::

    format, version   "regal_jax.family_splits", 1
    packages          source -> package -> version, of the build that it was last made from
    distinct          how many distinct graphs that build had
    families          family -> "train", "validation" or "test", sorted
"""

import json
import os
import pathlib
from typing import Any, Final

from regal_jax.corpus.splits import partition
from regal_jax.datasets.candidates import SPLITS
from regal_jax.datasets.corpus_files import corpus_document
from regal_jax.datasets.corpus_reader import corpus_records
from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.documents import check_format, parse_json
from regal_jax.storage.paths import folder_path, path_text
from regal_jax.storage.reading import read_limited

__all__ = ["FAMILY_SPLITS", "read_family_splits", "write_family_splits"]

FAMILY_SPLITS: Final = pathlib.Path(__file__).with_name("family_splits.json")
"""The table that comes with the package."""

_FORMAT: Final = "regal_jax.family_splits"
_VERSION: Final = 1


def read_family_splits(path: str | os.PathLike[str] = FAMILY_SPLITS) -> dict[str, str]:
    """Family -> split, read from a table.

    Args:
      path: Path of a table; by default the one that comes with the package.

    Raises:
      FormatError: The file is missing or is not such a table.
    """
    path = path_text(path)
    remedy = "make one with 'regal-jax corpus splits'"
    try:
        document = parse_json(read_limited(path))
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror}; {remedy}") from None
    except ValueError:
        raise FormatError(f"{path}: no JSON; {remedy}") from None
    check_format(path, document, _FORMAT, _VERSION, remedy)
    families = document.get("families")
    if not isinstance(families, dict):
        raise FormatError(f"{path}: families is {families!r}, not an object; {remedy}")
    for family, split in families.items():
        if split not in SPLITS:
            raise FormatError(
                f"{path}: family {family!r}: there is no split {split!r}; use one of {', '.join(SPLITS)}"
            )
    return families


def write_family_splits(folder: str | os.PathLike[str], out: str | os.PathLike[str]) -> dict[str, Any]:
    """Makes a table from a corpus, or adds the families of a corpus to a table.

    Entries in the table stay, since weights may have been trained with them. The same corpus and table give
    the same bytes.

    Args:
      folder: Folder of a whole corpus that `build_corpus` made; its splits then hold for all others.
      out: Path of the table; may be missing.

    Returns:
      The document.

    Raises:
      ConfigError: The file is not a table, or cannot be written.
      FormatError: There is no corpus, or it is damaged or empty.
    """
    root, file = folder_path(folder), pathlib.Path(path_text(out))
    records = corpus_records(root)
    if not records:
        raise FormatError(f"{root}: the corpus has no graphs yet; run 'regal-jax corpus build --out {root}'")
    known: dict[str, str] = {}
    if file.is_file():
        try:
            known = read_family_splits(file)
        except FormatError:
            raise ConfigError(
                f"{file}: holds something other than a table of splits; choose another name"
            ) from None
    found = partition(records, known)
    document = {
        "format": _FORMAT,
        "version": _VERSION,
        "packages": corpus_document(root)["packages"],
        "distinct": len(found.topologies),
        "families": dict(sorted((known | found.families).items())),
    }
    try:
        write_atomically(file, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}; choose another name") from None
    return document
