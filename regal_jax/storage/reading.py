"""Reading of files that others wrote: only regular files, and no more than a limit."""

import os
import stat
from typing import Final

from regal_jax.errors import FormatError

__all__ = ["MAX_FILE_BYTES", "check_regular", "read_limited"]

MAX_FILE_BYTES: Final = 2**29
"""Largest file that is read where a caller names no other limit."""


def check_regular(path: str | os.PathLike[str]) -> None:
    """Refuses pipes, devices and sockets, whose content may have no end or never come.

    Raises:
      FormatError: The path leads to one of them, or no file can have this name. The error names the file.
      OSError: There is no such file.
    """
    try:
        _check_regular(path)
    except FormatError as error:
        raise FormatError(f"{os.fspath(path)}: {error}") from None


def _check_regular(path: str | os.PathLike[str]) -> None:
    """`check_regular`, with errors that do not name the file."""
    try:
        mode = os.stat(path).st_mode
    except ValueError as error:  # A null character in the path.
        raise FormatError(f"cannot be read: {error}; check the path") from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # `open` reports that a folder is no file.
        raise FormatError("a pipe or a device, not a regular file; save its content, and name that file")


def read_limited(path: str | os.PathLike[str], limit: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file. Errors do not name the file.

    Args:
      path: The file.
      limit: Largest content in bytes.

    Raises:
      FormatError: As `check_regular`, or the file is larger than ``limit``.
      OSError: The file cannot be read.
    """
    _check_regular(path)
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size <= limit:
            data = file.read(limit + 1)  # The file may grow meanwhile.
            if len(data) <= limit:
                return data
    raise FormatError(f"more than {limit // 2**20} MiB; check that this is the right file")
