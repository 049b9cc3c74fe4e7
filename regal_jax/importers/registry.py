"""The file formats, and reading or writing a file in the right one."""

import dataclasses
import os
import stat
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from regal_jax.checks import check_kind
from regal_jax.errors import FormatError
from regal_jax.graph import ComputationGraph
from regal_jax.importers.cost_graph import format_cost_graph, parse_cost_graph
from regal_jax.importers.files import PathLike, at_path, graph_name, read_bytes, read_text, write_text
from regal_jax.importers.hlo_program import parse_hlo
from regal_jax.importers.native import FORMAT, format_native, graph_from_document
from regal_jax.importers.onnx_model import MAX_MODEL_BYTES, parse_onnx
from regal_jax.importers.stg import format_stg, parse_stg
from regal_jax.importers.wfformat import workflow_from_document
from regal_jax.runtime.interrupts import interruptible
from regal_jax.storage.documents import parse_json
from regal_jax.storage.paths import path_text

__all__ = ["FORMATS", "FileFormat", "find_format", "load_graph", "save_graph"]


@dataclasses.dataclass(frozen=True)
class FileFormat:
    """One row of `FORMATS`.

    Attributes:
      suffixes: Endings of the names of such files, the usual one first.
      description: A description of a few words.
      read: Path and keyword options -> graph.
      format: Graph and keyword options -> text; ``None`` for a format without a writer.
      estimated: Whether files have no runtimes, so that ``read`` takes a ``profile`` to estimate them.
      symbolic: Whether dimensions may be names, whose sizes ``read`` takes as ``dims``.
      in_place: Whether ``read`` takes ``in_place``, by which values share buffers.
      lossy: Whether ``format`` takes ``lossy``, by which what has no place in the format is left out.
    """

    suffixes: tuple[str, ...]
    description: str
    read: Callable[..., ComputationGraph]
    format: Callable[..., str] | None = None
    estimated: bool = False
    symbolic: bool = False
    in_place: bool = False
    lossy: bool = False


def _read_cost_graph(path: PathLike, **options: Any) -> ComputationGraph:
    return parse_cost_graph(read_text(path), **{"name": graph_name(path), **options})


def _read_stg(path: PathLike, **options: Any) -> ComputationGraph:
    return parse_stg(read_text(path), **{"name": graph_name(path), **options})


def _read_onnx(path: PathLike, **options: Any) -> ComputationGraph:
    return parse_onnx(read_bytes(path, MAX_MODEL_BYTES), **{"name": graph_name(path), **options})


def _read_hlo(path: PathLike, **options: Any) -> ComputationGraph:
    return parse_hlo(read_text(path), **{"name": graph_name(path), **options})


def _read_json(path: PathLike, **options: Any) -> ComputationGraph:
    """Reads either of the two JSON formats, which have different top-level keys."""
    document = parse_json(read_text(path))
    keys = document.keys() if isinstance(document, dict) else ()
    if "schemaVersion" in keys:
        return workflow_from_document(document, **options)
    if "format" in keys:
        return graph_from_document(document, **options)
    raise FormatError(
        f"neither a {FORMAT} document (no key 'format') nor WfFormat (no key 'schemaVersion'); "
        "see docs/graph_format.md"
    )


FORMATS: Final[Mapping[str, FileFormat]] = MappingProxyType(
    {
        "json": FileFormat(
            (".json", ".json.gz"),
            "regal_jax graph, or WfCommons WfFormat 1.5 or 1.6",
            _read_json,
            format_native,
        ),
        "cost-graph": FileFormat(
            (".pbtxt", ".pbtxt.gz"),
            "TensorFlow CostGraphDef text",
            _read_cost_graph,
            format_cost_graph,
            lossy=True,
        ),
        "stg": FileFormat((".stg", ".stg.gz"), "Standard Task Graph", _read_stg, format_stg, lossy=True),
        "onnx": FileFormat(
            (".onnx", ".onnx.gz"),
            "ONNX model (extra 'onnx')",
            _read_onnx,
            estimated=True,
            symbolic=True,
            in_place=True,
        ),
        "hlo": FileFormat(
            (".hlo", ".hlo.txt", ".hlo.gz", ".hlo.txt.gz"),
            "compiled XLA program (scheduled HLO text)",
            _read_hlo,
            estimated=True,
        ),
    }
)
"""The formats by name."""


def find_format(path: PathLike, name: str | None = None, *, writing: bool = False) -> FileFormat:
    """The format called ``name``, or the one given by the file name of ``path``.

    If it is for ``writing``, the message of an error lists only formats that can be written.

    Raises:
      FormatError: There is no such format, or ``path`` is no path.
    """
    file = path_text(path)
    if isinstance(name, str) and name in FORMATS:
        return FORMATS[name]
    found = [f for f in FORMATS.values() if file.lower().endswith(f.suffixes)]
    if name is None and found:
        return found[0]
    fit = {key: f for key, f in FORMATS.items() if f.format is not None or not writing}
    known = ", ".join(f"{key} ({' '.join(f.suffixes)})" for key, f in fit.items())
    what = f"format {name!r} is unknown" if name is not None else "the file's name tells no format"
    raise FormatError(f"{file}: {what}; use one of {known}")


@interruptible()
def load_graph(path: PathLike, format: str | None = None, **options: Any) -> ComputationGraph:
    """The graph in a file.

    Args:
      path: The file; it is decompressed if it is gzip, whatever its name.
      format: A key of `FORMATS`; ``None`` tells it by the file's name.
      **options: Of the format's parser: `parse_cost_graph`, `parse_stg`, `parse_wfformat`,
        `parse_hlo`, `regal_jax.importers.onnx_model.parse_onnx` (``dims={"batch": 8}``, say).

    Raises:
      FormatError: The file cannot be read as its format; names the file, the place and the remedy.
      GraphError: The graph in it breaks a rule; names the file too.
      MissingExtraError: The format needs an extra that is not installed.

    Examples:
      >>> from regal_jax import load_graph, save_graph
      >>> from regal_jax.datasets import generate
      >>> save_graph(generate("chain", 3, seed=0), "chain.json.gz")
      >>> load_graph("chain.json.gz").num_ops
      3
    """
    file, found = path_text(path), None
    if format is not None:
        found = find_format(path, format)
    try:
        folder = stat.S_ISDIR(os.stat(file).st_mode)
    except OSError as error:
        raise FormatError(f"{file}: cannot be read: {error.strerror or error}; check the path") from None
    if folder:
        raise FormatError(f"{file}: is a directory; give the path of a file")
    found = found or find_format(path)
    with at_path(path):
        return found.read(path, **options)


@interruptible()
def save_graph(graph: ComputationGraph, path: PathLike, format: str | None = None, **options: Any) -> None:
    """Writes a graph to a file atomically.

    Args:
      graph: The graph.
      path: The file; a name that ends in ``.gz`` is gzipped.
      format: A key of `FORMATS`; ``None`` tells it by the file's name. JSON loses nothing.
      **options: Of the format's writer: `format_cost_graph`, `format_stg`.

    Raises:
      FormatError: The format cannot hold the graph, is only read, or the file cannot be written.

    Examples:
      >>> from regal_jax import load_graph, save_graph
      >>> from regal_jax.datasets import generate
      >>> graph = generate("chain", 3, seed=0)
      >>> save_graph(graph, "chain.json")
      >>> load_graph("chain.json").content_hash == graph.content_hash
      True
    """
    check_kind("graph", graph, ComputationGraph)
    found = find_format(path, format, writing=True)
    if found.format is None:
        raise FormatError(f"{os.fspath(path)}: {found.description} cannot be written; save as .json")
    write_text(path, found.format(graph, **options))
