"""Stamps of named files, which show whether a file has changed since it was read."""

import os
import stat

from regal_jax.errors import ConfigError

__all__ = ["file_stamp"]


def file_stamp(path: str | os.PathLike[str], argument: str, instead: str) -> tuple[int, int]:
    """Time of the last change (ns) and size (bytes) of a file, for use in keys of caches.

    Args:
      path: The file.
      argument: Name of the argument or setting that holds the path, for the message.
      instead: What to give instead, for the message.

    Raises:
      ConfigError: There is no such file, or it is no regular file.
    """
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # `ValueError` is raised for a null character.
        status = None
    if status is None or not stat.S_ISREG(status.st_mode):
        raise ConfigError(f"{argument}: no file {os.fspath(path)!r}; {instead}")
    return status.st_mtime_ns, status.st_size
