"""What programs take of the process: mapped regions, of which Linux allows 65530, and memory."""

import ctypes
import functools
import pathlib
from collections.abc import Callable
from typing import Any, Final

__all__ = ["mapped_regions", "region_limit", "return_memory"]

_MAPS: Final = pathlib.Path("/proc/self/maps")
_LIMIT: Final = pathlib.Path("/proc/sys/vm/max_map_count")


def mapped_regions() -> int:
    """How many the process has; 0 where the system does not tell. Takes a millisecond a few thousand."""
    try:
        return _MAPS.read_bytes().count(b"\n")
    except OSError:
        return 0


@functools.cache
def region_limit() -> int | None:
    """How many a process may have; ``None`` where the system does not tell."""
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return None


def return_memory() -> None:
    """Gives the system back what the C library keeps of memory that was freed.

    Compilation allocates and frees hundreds of megabytes in small pieces, of which the GNU C library gives
    back little by itself. Does nothing where there is another library. Takes some tens of milliseconds.
    """
    trim = _malloc_trim()
    if trim is not None:
        trim(0)


@functools.cache
def _malloc_trim() -> Callable[[int], Any] | None:
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):
        return None
    trim.argtypes, trim.restype = [ctypes.c_size_t], ctypes.c_int
    return trim
