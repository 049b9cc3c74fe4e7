"""`write_sample`: a small, varied part of a corpus, contracted, for tests, notebooks and first runs."""

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from regal_jax.checks import check_callback, check_whole
from regal_jax.datasets.corpus_files import CORPUS, GRAPHS, INDEX, read_corpus
from regal_jax.datasets.corpus_reader import corpus_records
from regal_jax.datasets.shipped import BEGUN
from regal_jax.datasets.statistics import graph_record
from regal_jax.errors import ConfigError
from regal_jax.importers import load_graph
from regal_jax.importers.files import at_path
from regal_jax.importers.native import format_native
from regal_jax.importers.strict_json import Field
from regal_jax.plan import contract
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.json_lines import JsonLines
from regal_jax.storage.locks import locked
from regal_jax.storage.paths import folder_path

__all__ = ["write_sample"]

_CONTRACTS_BY: Final = 8
"""Largest ratio of ops before contraction to the limit; contraction seldom saves more than this factor."""


def write_sample(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    graphs: int = 60,
    max_bytes: int = 2_000_000,
    max_ops: int = 800,
    progress: Callable[..., Any] | None = None,
) -> list[dict[str, Any]]:
    """Writes contracted graphs of a corpus, spread over its families, sources, forms and sizes.

    The same corpus and options give the same bytes. Graphs whose contractions have the same topology occur
    once.

    Args:
      folder: Folder of a corpus that `build_corpus` made.
      out: Folder of the sample; created if missing, replaced if it holds a sample or the beginning of one.
      graphs: Most graphs.
      max_bytes: Most bytes on disk, including the index.
      max_ops: Most ops of a contracted graph.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.

    Returns:
      The records of the sample, by path, as `regal_jax.datasets.sample_records` reads them.

    Raises:
      ConfigError: An option is invalid, no graph fits, or the folder has something else in it.
      FormatError: There is no corpus, or it is damaged.
    """
    for what, number in (("graphs", graphs), ("max_bytes", max_bytes), ("max_ops", max_ops)):
        check_whole(what, number, 1)
    check_callback("progress", progress)
    source, target = folder_path(folder), folder_path(out)
    records = corpus_records(source)
    with at_path(source / CORPUS):
        profile = Field(read_corpus(source)).get("settings").get("profile").text()
    _refuse_others(target)
    spread = _Spread([r for r in records if r["distinct"] and r["ops"] <= _CONTRACTS_BY * max_ops])
    sample = _Sample(graphs, max_bytes, max_ops)
    bar = progress(total=graphs, unit="graph") if progress else None
    with contextlib.closing(bar) if bar is not None else contextlib.nullcontext():
        while len(sample.records) < graphs and (record := spread.pop()) is not None:
            if sample.add(*_contracted(source, record, profile)):
                spread.took(record)
                if bar is not None:
                    bar.update()
    if not sample.records:
        raise ConfigError(
            f"{source}: no graph fits {max_ops} ops and {max_bytes} bytes; raise max_ops or max_bytes"
        )
    return sample.write(target)


class _Spread:
    """Selects records one by one, each as different as possible from those selected before.

    The family selected least often comes first. Ties are broken by the source and form and by the size (in
    powers of two) selected least often, then by the largest family, then by a hash.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]]) -> None:
        self.left = {record["path"]: record for record in records}
        self.family_size = Counter(record["family"] for record in records)
        self.taken: Counter[Any] = Counter()

    def pop(self) -> Mapping[str, Any] | None:
        """Removes and returns the next candidate; ``None`` if none is left."""
        if not self.left:
            return None
        return self.left.pop(min(self.left, key=lambda path: self._rank(self.left[path])))

    def took(self, record: Mapping[str, Any]) -> None:
        """Records that ``record`` was selected."""
        self.taken.update(self._traits(record))

    def _rank(self, record: Mapping[str, Any]) -> tuple[Any, ...]:
        family, form, size = self._traits(record)
        chance = hashlib.sha256(record["path"].encode()).hexdigest()
        known = self.taken[form] + self.taken[size]
        return self.taken[family], known, -self.family_size[record["family"]], chance

    @staticmethod
    def _traits(record: Mapping[str, Any]) -> tuple[Any, ...]:
        size = int(record["ops"]).bit_length()
        return ("family", record["family"]), ("form", record["source"], record["form"]), ("size", size)


class _Sample:
    """The content of a sample, within its limits."""

    def __init__(self, graphs: int, max_bytes: int, max_ops: int) -> None:
        self.max_bytes, self.max_ops = max_bytes, max_ops
        # The largest share of the bytes that one graph may take.
        self.most = max_bytes / min(graphs, 4)
        self.records: dict[str, dict[str, Any]] = {}
        self.files: dict[str, bytes] = {}
        self.hashes: set[str] = set()
        self.used = 0

    def add(self, record: dict[str, Any], data: bytes) -> bool:
        """Adds a graph if there is room and its topology is new; returns whether it was added."""
        size = len(data) + len(_line(record))
        fits = record["ops"] <= self.max_ops and size <= self.most and self.used + size <= self.max_bytes
        if not fits or record["topology_hash"] in self.hashes:
            return False
        self.records[record["path"]], self.files[record["path"]] = record, data
        self.hashes.add(record["topology_hash"])
        self.used += size
        return True

    def write(self, target: pathlib.Path) -> list[dict[str, Any]]:
        """Replaces the sample in ``target``. Only a complete sample has an index."""
        records = [self.records[path] for path in sorted(self.records)]
        try:
            with locked(target):
                write_atomically(target / BEGUN, b"")
                (target / INDEX).unlink(missing_ok=True)
                for pattern in ("*/*.json.gz", "*/.*.tmp", ".*.tmp"):
                    for old in target.glob(pattern):
                        old.unlink()
                for path, data in self.files.items():
                    (target / path).parent.mkdir(parents=True, exist_ok=True)
                    write_atomically(target / path, data)
                for empty in [p for p in target.iterdir() if p.is_dir() and not any(p.iterdir())]:
                    empty.rmdir()
                write_atomically(target / INDEX, b"".join(map(_line, records)))
                (target / BEGUN).unlink()
        except OSError as error:
            raise ConfigError(
                f"{target}: cannot be written: {error.strerror}; choose another folder"
            ) from None
        return records


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, ensure_ascii=False).encode() + b"\n"


def _contracted(root: pathlib.Path, record: Mapping[str, Any], profile: str) -> tuple[dict[str, Any], bytes]:
    """The record and the file of a contracted graph of the corpus."""
    graph = contract(load_graph(root / record["path"])).graph
    left_out = ("distinct", "represented_by")
    kept = {name: value for name, value in record.items() if name not in left_out}
    original = {f"original_{name}": record[name] for name in ("ops", "topology_hash", "content_hash")}
    path = record["path"].removeprefix(f"{GRAPHS}/")
    made = {**kept, "path": path, "profile": profile, **original, **graph_record(graph)}
    return made, gzip.compress(format_native(graph).encode(), compresslevel=9, mtime=0)


def _refuse_others(target: pathlib.Path) -> None:
    """Raises an error if ``target`` holds anything other than a sample."""
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is not a folder; choose another name")
    if not target.is_dir() or (target / BEGUN).exists():
        return
    # A name that begins with a dot is left by a writer that was killed before it began.
    if any(not entry.name.startswith(".") for entry in target.iterdir()):
        records = JsonLines(target / INDEX).read()
        if not records or "original_ops" not in records[0]:
            raise ConfigError(f"{target}: holds something other than a sample; choose another folder")
