"""`machine_memory`: the memory that this process may use."""

import contextlib
import os
import pathlib
from typing import Final

__all__ = ["machine_memory"]

_LIMIT: Final = pathlib.Path("/sys/fs/cgroup/memory.max")
"""Memory of the container (Linux, cgroups 2): bytes or ``max``."""


def machine_memory() -> int | None:
    """Bytes of the machine, or of the process's container if that has fewer; ``None`` if unknown."""
    found = []
    with contextlib.suppress(OSError, ValueError):  # No container, or no limit.
        found.append(int(_LIMIT.read_text()))
    with contextlib.suppress(AttributeError, OSError, ValueError):  # Windows.
        found.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    return min((size for size in found if size > 0), default=None)
