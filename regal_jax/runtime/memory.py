"""The memory that this process may use."""

import contextlib
import os
import pathlib
from typing import Final

from regal_jax.errors import ConfigError

__all__ = ["check_memory", "machine_memory"]

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


def check_memory(what: str, size: int, limit: int | None, remedy: str) -> None:
    """Refuses arrays that do not fit. Without this, the system would end the process.

    Args:
      what: What needs the memory, in the plural.
      size: Bytes that it needs, about.
      limit: Bytes that there are; ``None`` if this is not known.
      remedy: How to need fewer.

    Raises:
      ConfigError: The size is above the limit.
    """
    if limit is not None and size > limit:
        raise ConfigError(f"{what} need about {size / 2**30:.1f} GiB of {limit / 2**30:.1f}; {remedy}")
