"""Mapped regions: every compiled program takes some, and Linux allows a process no more than 65530."""

import functools
import pathlib
from typing import Final

__all__ = ["mapped_regions", "region_limit"]

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
