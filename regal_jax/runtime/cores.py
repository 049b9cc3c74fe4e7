"""`available_cores`: the number of CPU cores that this process may use."""

import math
import os
import pathlib
import sys
from typing import Final

__all__ = ["CORES", "available_cores"]

CORES: Final = "REGAL_JAX_CORES"
"""Environment variable: the most cores that a process uses, for several processes on one machine."""

_QUOTA: Final = pathlib.Path("/sys/fs/cgroup/cpu.max")
"""CPU quota (Linux, cgroups 2): microseconds of work, or ``max``, and the period in microseconds."""


def available_cores() -> int:
    """Number of CPU cores by the process's affinity and its container's quota, rounded up; at least 1.

    The environment variable ``REGAL_JAX_CORES`` limits it.
    """
    if sys.version_info >= (3, 13):
        count = os.process_cpu_count() or 1
    elif hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota(), _limit())))


def _limit() -> float:
    """The number in ``REGAL_JAX_CORES``; infinite without one, and where it has more than 18 digits."""
    text = os.environ.get(CORES, "")
    return int(text) if text.isdecimal() and len(text) < 19 and int(text) else math.inf


def _quota() -> float:
    """Mean number of cores that the container may use; infinite without a quota."""
    try:
        work, period = _QUOTA.read_text().split()
        return math.inf if work == "max" else int(work) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
