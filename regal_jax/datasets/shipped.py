"""The sample: a few dozen contracted real graphs that come with the package.

``regal-jax corpus sample`` makes it from a corpus. A sample is a folder::

    index.jsonl                  one graph per line: its origin, split, sizes and hashes
    SOURCE/MODEL.FORM.json.gz    the graph
    .begun                       while it is being written
"""

import os
import pathlib
from typing import Any, Final

from regal_jax.datasets.candidates import check_split
from regal_jax.datasets.corpus_files import CORPUS, GRAPHS, INDEX
from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.importers import load_graph
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.paths import folder_path

__all__ = ["BEGUN", "SAMPLE", "load_sample", "sample_records"]

SAMPLE: Final = pathlib.Path(__file__).with_name("sample")
"""Folder of the sample that comes with the package."""
BEGUN: Final = ".begun"
"""File in the folder of a sample that is being written."""


def sample_records(folder: str | os.PathLike[str] = SAMPLE) -> list[dict[str, Any]]:
    """The records of a sample, by path, without reading a graph.

    Args:
      folder: Folder of a sample; by default the one that comes with the package.

    Returns:
      Records of the contracted graphs, as from `corpus_records`. Each also has ``split``, ``profile`` and,
      for the graph before contraction, ``original_ops``, ``original_topology_hash`` and
      ``original_content_hash``. In the sample of the package, ``original_content_hash`` is that of the graph
      without marks of residents, ``dataclasses.replace(graph, resident=())``.

    Raises:
      FormatError: There is no sample, or it is damaged.
    """
    root = folder_path(folder)
    records = JsonLines(root / INDEX).read()
    if not records and (root / BEGUN).exists():
        raise FormatError(
            f"{root}: only the beginning of a sample is there; make it again with 'regal-jax corpus sample "
            f"CORPUS --out {root}'"
        )
    if not records:
        raise FormatError(
            f"{root}: no sample there; make one with 'regal-jax corpus sample CORPUS --out {root}'"
        )
    for number, record in enumerate(records, 1):
        if {"path", "split", "original_ops"} <= record.keys():
            continue
        if str(record.get("path")).startswith(f"{GRAPHS}/"):
            raise FormatError(
                f"{root}: a corpus that has lost its {CORPUS}; bring it back, or run 'regal-jax corpus build "
                f"--out {root}' again"
            )
        raise FormatError(f"{root / INDEX}: line {number} is not of a sample; make the sample again")
    return sorted(records, key=lambda record: record["path"])


def load_sample(
    split: str | None = None, *, folder: str | os.PathLike[str] = SAMPLE
) -> list[tuple[dict[str, Any], ComputationGraph]]:
    """A few dozen real graphs, contracted (`regal_jax.contract`), from all sources of the corpus.

    Args:
      split: Split of the original corpus, ``"train"``, ``"validation"`` or ``"test"``; all by default.
      folder: Folder of a sample; by default the one that comes with the package.

    Returns:
      ``(record, graph)`` by path; `sample_records` describes the records.

    Raises:
      ConfigError: There is no such split.
      FormatError: There is no sample, or it is damaged.

    Examples:
      >>> from regal_jax.datasets import load_sample
      >>> record, graph = load_sample("test")[0]
      >>> record["source"], record["form"], record["ops"] == graph.num_ops
      ('flax', 'training-step', True)
    """
    if split is not None:
        check_split(split)
    records = [record for record in sample_records(folder) if split in (None, record["split"])]
    return [(record, load_graph(pathlib.Path(folder) / record["path"])) for record in records]
