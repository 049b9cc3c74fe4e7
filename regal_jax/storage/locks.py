"""Locks, so that one process at a time writes a folder or a file."""

import contextlib
import os
import pathlib
from collections.abc import Iterator
from typing import Any

from regal_jax.errors import ConfigError
from regal_jax.storage.atomic import writing

__all__ = ["locked", "locked_file"]


@contextlib.contextmanager
def locked(folder: pathlib.Path) -> Iterator[None]:
    """Locks ``folder``, created if missing, against other processes, if the system supports locks.

    The lock is that of `flock` on a file ``.lock``; it ends with the process, however that ends.

    Raises:
      ConfigError: Another process holds it, or the folder is a file.
      FormatError: The folder cannot be made or written.
    """
    with writing(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise ConfigError(f"{folder}: is a file; name a new folder") from None
    refusal = f"{folder}: another process is writing there; wait for it, or name another folder"
    with _held(folder / ".lock", folder, refusal):
        yield


@contextlib.contextmanager
def locked_file(path: pathlib.Path) -> Iterator[None]:
    """Locks the file ``path`` against other processes, as `locked` does for a folder.

    Raises:
      ConfigError: Another process holds it.
      FormatError: The folder does not exist or cannot be written.
    """
    refusal = f"{path}: another process is writing it; wait for it, or name another file"
    with _held(path.with_name(f".{path.name}.lock"), path, refusal):
        yield


@contextlib.contextmanager
def _held(path: pathlib.Path, locks: pathlib.Path, refusal: str) -> Iterator[None]:
    """Holds the lock on the file ``path``, which exists meanwhile; errors name what it ``locks``."""
    with contextlib.ExitStack() as files:
        while True:
            with writing(locks):
                file = files.enter_context(open(path, "wb"))
            if _lock(file, path, refusal):
                break
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def _lock(file: Any, path: pathlib.Path, refusal: str) -> bool:
    """Takes the lock; ``False`` if its previous holder has removed the file."""
    try:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(refusal) from None
    except (ImportError, OSError):  # Windows, or a file system without locks.
        return True
    return path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat())
