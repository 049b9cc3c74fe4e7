"""Sets of graphs on disk: a folder, an archive, or a single file; read the same way."""

import dataclasses
import gzip
import os
import pathlib
import tarfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any, Final

from regal_jax.checks import check_callback
from regal_jax.datasets.corpus_files import CORPUS
from regal_jax.datasets.manifest import MANIFEST
from regal_jax.errors import FormatError, GraphError
from regal_jax.graph import ComputationGraph
from regal_jax.importers import FORMATS, load_graph, parse_cost_graph, parse_native, parse_stg
from regal_jax.importers.files import MAX_FILE_BYTES, graph_name
from regal_jax.storage.atomic import replacing
from regal_jax.storage.compression import unpacked
from regal_jax.storage.paths import folder_path
from regal_jax.storage.reading import check_regular

__all__ = ["Entry", "GraphSet", "iterate_set", "pack", "read_set"]

_ARCHIVES: Final = (".tar", ".tar.gz", ".tgz")
_FILES: Final = tuple(suffix for row in FORMATS.values() for suffix in row.suffixes)
_TEXTS: Final[Mapping[str, Callable[..., ComputationGraph]]] = {
    ".pbtxt": parse_cost_graph,
    ".stg": parse_stg,
    ".json": lambda text, name: parse_native(text),  # noqa: ARG005 - the document has its own name
}
"""Suffixes of the files that are read inside an archive, and their parsers."""

_SUMMARIES: Final = (CORPUS, MANIFEST)
"""Files of a set that are no graphs."""
_WARNINGS: Final = 20


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A graph of a set, or the error in its file.

    Attributes:
      name: The file's path within the set, e.g. ``train/graph_1f.pbtxt``; archives count as folders.
      graph: The graph; ``None`` if the file is broken.
      error: The error in one line that names the file; empty if there is none.
    """

    name: str
    graph: ComputationGraph | None = None
    error: str | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class GraphSet:
    """Result of `read_set`.

    Attributes:
      names: ``[B]`` paths within the set, ascending within a folder, in the order of the archive within one.
      graphs: ``[B]`` graphs.
      broken: One line for each file that was skipped.
    """

    names: Sequence[str]
    graphs: Sequence[ComputationGraph]
    broken: Sequence[str]

    @property
    def splits(self) -> list[str]:
        """``[B]`` folder of each graph, such as ``train``; empty for a single file."""
        return [pathlib.PurePosixPath(name).parent.name for name in self.names]


def read_set(path: str | os.PathLike[str], *, progress: Callable[..., Any] | None = None) -> GraphSet:
    """Reads all graphs of a folder (with the folders and archives in it), an archive, or a single file.

    Files that cannot be read are skipped, with a warning for each of the first 20 and one for the rest.

    Args:
      path: A folder, a ``.tar``, ``.tar.gz`` or ``.tgz``, or a graph's file. In archives ``.pbtxt``, ``.stg``
        and our own ``.json`` are read, and the same with ``.gz``.
      progress: Makes a progress bar, with the arguments of `tqdm.tqdm`; none by default.

    Raises:
      FormatError: The path does not exist, or no graph can be read from it.
    """
    folder_path(path)
    check_callback("progress", progress)
    names, graphs, broken = [], [], []
    entries = iterate_set(path)
    for entry in entries if progress is None else progress(entries, unit="file", desc="reading"):
        if entry.graph is None:
            broken.append(entry.error or entry.name)
            if len(broken) <= _WARNINGS:
                warnings.warn(f"{broken[-1]}; skipped", UserWarning, stacklevel=2)
        else:
            names.append(entry.name)
            graphs.append(entry.graph)
    if len(broken) > _WARNINGS:
        warnings.warn(
            f"{os.fspath(path)}: {len(broken)} broken files skipped in all", UserWarning, stacklevel=2
        )
    if not graphs and broken:
        raise FormatError(
            f"{os.fspath(path)}: none of its {len(broken)} files is a graph; the first error: {broken[0]}"
        )
    if not graphs:
        raise FormatError(f"{os.fspath(path)}: no graphs in it; files must end in {', '.join(_FILES)}")
    return GraphSet(tuple(names), tuple(graphs), tuple(broken))


def iterate_set(path: str | os.PathLike[str]) -> Iterator[Entry]:
    """Reads the graphs of `read_set` one after another; broken files give entries with an `error`.

    Raises:
      FormatError: The path does not exist.
    """
    root = folder_path(path)
    try:
        root.stat()
    except FileNotFoundError:
        raise FormatError(f"{root}: no such file or folder; check the path") from None
    except OSError as error:
        raise FormatError(_unreadable(root, error)) from None
    if root.is_dir():
        yield from _folder(root, "", frozenset())
    else:
        yield from _file(root, "")


def _unreadable(path: pathlib.Path, error: OSError) -> str:
    return f"{path}: cannot be read: {error.strerror or error}; check the path"


def _folder(folder: pathlib.Path, prefix: str, above: frozenset[str]) -> Iterator[Entry]:
    """The graphs of a folder that is in those ``above``; links to one of these are left out."""
    place = os.path.realpath(folder)
    if place in above:
        return
    try:
        paths = sorted(folder.iterdir())
    except OSError as error:
        yield Entry(prefix.rstrip("/") or folder.name, error=_unreadable(folder, error))
        return
    for path in paths:
        if path.name.startswith(".") or path.name in _SUMMARIES:
            continue
        if os.path.isdir(path):
            yield from _folder(path, f"{prefix}{path.name}/", above | {place})
        elif path.name.lower().endswith((*_ARCHIVES, *_FILES)):
            try:
                check_regular(path)  # A pipe is read only where it is named itself.
            except FormatError as error:
                yield Entry(prefix + path.name, error=str(error))
            except OSError as error:
                yield Entry(prefix + path.name, error=_unreadable(path, error))
            else:
                yield from _file(path, prefix)


def _file(path: pathlib.Path, prefix: str) -> Iterator[Entry]:
    name = prefix + path.name
    if path.name.lower().endswith(_ARCHIVES):
        yield from _archive(path, prefix)
        return
    try:
        yield Entry(name, load_graph(path))
    except (FormatError, GraphError) as error:
        yield Entry(name, error=str(error))


def _archive(path: pathlib.Path, prefix: str) -> Iterator[Entry]:
    """Members in the order of the archive, decompressed in one pass and never unpacked to disk."""
    try:
        check_regular(path)
        with tarfile.open(path, "r|*") as archive:
            for member in archive:
                name = pathlib.PurePosixPath(member.name)
                hidden = name.name.startswith(".") or name.name in _SUMMARIES
                if member.isfile() and not hidden and _suffix(name.name) in _TEXTS:
                    yield _member(path, archive.extractfile(member), member, prefix)
    except FormatError as error:
        yield Entry(prefix + path.name, error=str(error))
    except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
        yield Entry(
            prefix + path.name,
            error=f"{path}: damaged archive ({error}); fetch it again for the files that follow",
        )


def _suffix(name: str) -> str:
    return pathlib.PurePosixPath(name.lower().removesuffix(".gz")).suffix


def _member(path: pathlib.Path, file: IO[bytes] | None, member: tarfile.TarInfo, prefix: str) -> Entry:
    name = str(pathlib.PurePosixPath(member.name))
    where = f"{path}: {name}"
    if file is None or member.size > MAX_FILE_BYTES:
        return Entry(
            prefix + name, error=f"{where}: larger than {MAX_FILE_BYTES // 2**20} MiB, or not a file"
        )
    parse = _TEXTS[_suffix(name)]
    try:
        data = unpacked(file.read(), MAX_FILE_BYTES)
        return Entry(prefix + name, parse(data.decode("utf-8-sig"), name=graph_name(name)))
    except UnicodeDecodeError as error:
        return Entry(prefix + name, error=f"{where}: byte {error.start} is not UTF-8 text")
    except (FormatError, GraphError) as error:
        return Entry(prefix + name, error=f"{where}: {error}")


def pack(folder: pathlib.Path, names: Sequence[str], target: pathlib.Path, *, prefix: str) -> None:
    """Writes files of ``folder`` to ``target``, a ``.tar.gz``: the same files always give the same bytes.

    Args:
      folder: Folder of the files.
      names: Names of the files, in the order of the archive.
      target: Path of the archive, which is written atomically.
      prefix: Folder of the files within the archive.

    Raises:
      OSError: A file cannot be read, or the archive cannot be written.
    """
    with (
        replacing(target) as temporary,
        open(temporary, "wb") as raw,
        # The gzip header has no time and no name, since both would change the bytes.
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as squeezed,
        tarfile.open(fileobj=squeezed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name in names:
            with open(folder / name, "rb") as file:
                member = tarfile.TarInfo(f"{prefix}/{name}")
                member.size, member.mode = os.fstat(file.fileno()).st_size, 0o644
                archive.addfile(member, file)
