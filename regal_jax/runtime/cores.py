"""`available_cores`: how many CPU cores this process may keep busy."""

import math
import os
import pathlib
import sys
from typing import Final

__all__ = ["available_cores"]

_QUOTA: Final = pathlib.Path("/sys/fs/cgroup/cpu.max")
"""What a container may use (Linux, cgroups 2): microseconds of work, or ``max``, in so many microseconds."""


def available_cores() -> int:
    """CPU cores by the process's affinity and by its container's quota, rounded up; at least 1."""
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota())))


def _quota() -> float:
    """Cores that the container may use on average; infinite if nothing says so."""
    try:
        work, period = _QUOTA.read_text().split()
        return math.inf if work == "max" else int(work) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
