"""Resources that programs take: mapped regions, of which Linux allows a process 65530, and memory."""

import ctypes
import functools
import pathlib
from collections.abc import Callable
from typing import Any, Final

__all__ = ["mapped_regions", "region_limit", "return_memory"]

_MAPS: Final = pathlib.Path("/proc/self/maps")
_LIMIT: Final = pathlib.Path("/proc/sys/vm/max_map_count")


def mapped_regions() -> int:
    """Number of mapped regions of the process; 0 if unknown. Takes a millisecond per few thousand regions."""
    try:
        return _MAPS.read_bytes().count(b"\n")
    except OSError:
        return 0


@functools.cache
def region_limit() -> int | None:
    """Largest number of mapped regions of a process; ``None`` if unknown."""
    try:
        return int(_LIMIT.read_text())
    except (OSError, ValueError):
        return None


def return_memory() -> None:
    """Returns freed memory from the C library to the system.

    Compilation allocates and frees hundreds of megabytes in small pieces, of which the GNU C library returns
    little by itself. This function does nothing with another C library. It takes some tens of milliseconds.
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
