"""`Incoming`: the files of a folder that grows, each once and only when it is complete."""

import os
import pathlib
import time
from collections.abc import Callable

from regal_jax.errors import ConfigError
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["Incoming", "pause"]

_SLICE = 0.1
"""Seconds until a pause notes Ctrl-C."""
_Stamp = tuple[int, int, int]


class Incoming:
    """Files of a folder that are new or have changed since they were taken.

    A file is complete if nothing about it has changed between two calls of `take`. Files whose names begin
    with a dot are passed over, so a writer can use such a name until the file is complete.

    Args:
      folder: The folder; folders in it are not searched.
      wanted: Whether a file of this name is taken.

    Raises:
      ConfigError: There is no such folder.
    """

    def __init__(self, folder: str | os.PathLike[str], wanted: Callable[[str], bool]) -> None:
        self._folder, self._wanted = pathlib.Path(folder), wanted
        self._seen: dict[str, _Stamp] = {}
        self._taken: dict[str, _Stamp] = {}
        self._stamps()

    def take(self) -> list[str]:
        """Paths of the complete files that have not been taken as they are now, by name."""
        stamps = self._stamps()
        ready = [
            name
            for name, stamp in sorted(stamps.items())
            if self._seen.get(name) == stamp and self._taken.get(name) != stamp
        ]
        self._seen = stamps
        self._taken.update((name, stamps[name]) for name in ready)
        return [os.path.join(self._folder, name) for name in ready]

    def _stamps(self) -> dict[str, _Stamp]:
        found = {}
        try:
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    if not entry.name.startswith(".") and self._wanted(entry.name):
                        try:
                            if entry.is_file():
                                status = entry.stat()
                                found[entry.name] = (status.st_ino, status.st_size, status.st_mtime_ns)
                        except OSError:
                            continue  # It has just gone.
        except OSError as error:
            raise ConfigError(
                f"--watch: cannot read the folder {str(self._folder)!r}: {error.strerror}; name another"
            ) from None
        return found


def pause(seconds: float) -> None:
    """Sleeps, until Ctrl-C at most.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed.
    """
    time_left = Deadline(seconds)
    while not time_left.over:
        time.sleep(min(time_left.left or 0.0, _SLICE))
        check_interrupt()
