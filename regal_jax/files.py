"""Files that are there whole or not at all."""

import os
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Writes all of ``data`` or nothing: whoever reads ``path`` meanwhile sees the old file or the new one.

    Raises:
      OSError: It cannot be written.
    """
    # Asked before the links are resolved: /dev/stdout leads to a pipe, which has no path of its own.
    if Path(path).exists() and not Path(path).is_file():
        Path(path).write_bytes(data)
        return
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
