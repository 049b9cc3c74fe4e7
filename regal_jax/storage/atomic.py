"""Atomic writes of files."""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from regal_jax.errors import FormatError
from regal_jax.storage.paths import path_text

__all__ = ["naming", "replacing", "try_to_write", "write_atomically", "writing"]

_LONGEST: Final = 100
"""Bytes of a file's name in that of the temporary file: systems limit names to 255 bytes, or fewer."""


@contextlib.contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """A context in which an `OSError` becomes an error of one line that names ``path``.

    Raises:
      FormatError: The file cannot be written, or ``path`` is no path.
      BrokenPipeError: The path is a pipe whose reader has gone.
    """
    name = path_text(path)
    if not name:
        raise FormatError("path: '' names no file; give the name of one")
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise FormatError(
            f"{name}: cannot be written: {error.strerror or error}; check the directory"
        ) from None


@contextlib.contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """A context in which an `OSError` gets the name ``path``; that of a full disk has none of its own."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), os.fspath(path)) from None


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A context with a new file that replaces ``path`` at its end.

    Readers of ``path`` see the old file or the new one. If the context raises, the old file stays.

    Raises:
      OSError: The new file cannot be put in place.
    """
    # Checked before links are resolved: /dev/stdout leads to a pipe, which has no path of its own.
    if Path(path).exists() and not Path(path).is_file():
        yield Path(path)
        return
    target = Path(os.path.realpath(path))
    temporary = _beside(target)
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def try_to_write(path: Path) -> None:
    """Makes and removes a file beside ``path``: permissions do not tell what a file system allows.

    Raises:
      OSError: No such file can be made, or none can be called ``path``.
    """
    with contextlib.suppress(FileNotFoundError):
        path.lstat()
    temporary = _beside(path)
    try:
        temporary.touch()
    finally:
        temporary.unlink(missing_ok=True)


def _beside(target: Path) -> Path:
    """A name for a temporary file beside ``target``, which other processes and threads do not use."""
    name = target.name.encode(errors="surrogateescape")[:_LONGEST].decode(errors="ignore")
    return target.with_name(f".{name}.{os.getpid()}.{threading.get_ident()}.tmp")


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes ``data`` atomically: readers of ``path`` see the old file or the new one.

    Raises:
      OSError: The file cannot be written; the error names it.
    """
    with naming(path), replacing(path) as file:
        file.write_bytes(data)
