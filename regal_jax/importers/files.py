"""Reads and writes the bytes of a file: sizes are limited, gzip is decompressed, errors have one line."""

import contextlib
import os
import pathlib
import select
import stat
from collections.abc import Iterator

from regal_jax.errors import FormatError, GraphError
from regal_jax.runtime.interrupts import check_interrupt
from regal_jax.storage.atomic import write_atomically, writing
from regal_jax.storage.compression import packed, unpacked
from regal_jax.storage.reading import MAX_FILE_BYTES, read_limited

__all__ = ["MAX_FILE_BYTES", "PathLike", "at_path", "graph_name", "read_bytes", "read_text", "write_text"]

PathLike = str | os.PathLike[str]


@contextlib.contextmanager
def at_path(path: PathLike) -> Iterator[None]:
    """Prefixes errors in the content of a file with its name."""
    try:
        yield
    except (FormatError, GraphError) as error:
        raise type(error)(f"{os.fspath(path)}: {error}") from None


def graph_name(path: PathLike) -> str:
    """The file's name up to its first dot, as a name for the graph in it."""
    return pathlib.Path(path).name.split(".")[0] or "graph"


def read_bytes(path: PathLike, limit: int | None = None) -> bytes:
    """The content of ``path``, decompressed if its first bytes are those of gzip, whatever its name.

    Errors do not name the file: `at_path` does.

    Args:
      path: The file.
      limit: Largest content in bytes; `MAX_FILE_BYTES` by default. A graph of a million ops takes less.

    Raises:
      FormatError: The file cannot be read, is neither a regular file nor a pipe, is empty, is larger than
        ``limit``, or is damaged gzip.
    """
    limit = MAX_FILE_BYTES if limit is None else limit
    try:
        data = _piped(path, limit) if _is_pipe(path) else read_limited(path, limit)
    except OSError as error:
        raise FormatError(f"cannot be read: {error.strerror or error}; check the path") from None
    data = unpacked(data, limit)
    if not data:
        raise FormatError("the file is empty; write the graph again")
    return data


def _is_pipe(path: PathLike) -> bool:
    """Whether the path leads to a pipe, as ``/dev/stdin`` does in ``cat graph.json | ...``."""
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except ValueError:  # `read_limited` reports a name that no file can have.
        return False


def _piped(path: PathLike, limit: int) -> bytes:
    """What programs write to a pipe until the last one closes it. Waits for the first one.

    Raises:
      FormatError: More than ``limit`` bytes.
    """
    parts: list[bytes] = []
    left = limit
    # Opened without waiting: Ctrl-C would not end the wait for a program that writes.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as pipe:
        while left >= 0:
            check_interrupt()
            ready, _, _ = select.select([pipe], [], [], 0.1)
            part = pipe.read(2**20) if ready else None  # None: nothing has been written yet
            if part == b"":
                return b"".join(parts)
            if part is not None:
                parts.append(part)
                left -= len(part)
    raise FormatError(f"more than {limit // 2**20} MiB; check that this is the right file")


def read_text(path: PathLike) -> str:
    """`read_bytes` as UTF-8 text.

    Raises:
      FormatError: As `read_bytes`, or not UTF-8.
    """
    data = read_bytes(path)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FormatError(
            f"byte {error.start} is not UTF-8 text; check the file's format and encoding"
        ) from None


def write_text(path: PathLike, text: str) -> None:
    """Writes ``text`` as UTF-8, gzipped if ``path`` ends in ``.gz``; the file is written atomically.

    Raises:
      FormatError: The file cannot be written.
    """
    with writing(path):
        write_atomically(path, packed(path, text.encode()))
