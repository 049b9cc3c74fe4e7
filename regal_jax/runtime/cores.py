"""`available_cores`: the number of CPU cores that this process may use."""

import math
import os
import pathlib
import sys
from typing import Final

__all__ = ["available_cores"]

_QUOTA: Final = pathlib.Path("/sys/fs/cgroup/cpu.max")
"""CPU quota (Linux, cgroups 2): microseconds of work, or ``max``, and the period in microseconds."""


def available_cores() -> int:
    """Number of CPU cores by the process's affinity and its container's quota, rounded up; at least 1."""
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota())))


def _quota() -> float:
    """Mean number of cores that the container may use; infinite without a quota."""
    try:
        work, period = _QUOTA.read_text().split()
        return math.inf if work == "max" else int(work) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
