"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["replacing", "write_atomically"]


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file to write, which takes the place of ``path`` when the block ends.

    Whoever reads ``path`` meanwhile sees the old file or the new one. If the block raises, the old one stays.

    Raises:
      OSError: The new file cannot be put in place.
    """
    # Asked before the links are resolved: /dev/stdout leads to a pipe, which has no path of its own.
    if Path(path).exists() and not Path(path).is_file():
        yield Path(path)
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes all of ``data`` or nothing: whoever reads ``path`` meanwhile sees the old file or the new one.

    Raises:
      OSError: It cannot be written.
    """
    with replacing(path) as file:
        file.write_bytes(data)
