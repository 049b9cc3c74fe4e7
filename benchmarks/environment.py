"""The environment of a measurement: commit, versions, hardware, and new processes."""

import datetime
import os
import pathlib
import platform
import subprocess
import sys
from typing import Any, Final

from regal_jax.errors import ConfigError
from regal_jax.runtime.cores import CORES, available_cores
from regal_jax.runtime.versions import version_of

__all__ = ["ONE_CORE", "ROOT", "environment", "python"]

ROOT: Final = pathlib.Path(__file__).resolve().parents[1]
"""Folder of the checkout."""
ONE_CORE: Final = dict.fromkeys(
    (CORES, "NPROC", "OMP_NUM_THREADS", "NUMBA_NUM_THREADS", "JAX_NUM_CPU_DEVICES"), "1"
)
"""Environment variables of a process that uses one core, as workers of Ray do."""


def _git(*args: str) -> str | None:
    try:
        done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _cpu() -> str:
    try:
        text = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    models = [line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """Commit, versions, hardware, date and load, for the results."""
    import jax

    device, changes = jax.devices()[0], _git("status", "--porcelain", "--untracked-files=no")
    packages = ("jax", "jaxlib", "numpy", "numba", "pymoo", "brkga-mp-ipr")
    return {
        "commit": _git("rev-parse", "HEAD"),
        "dirty": None if changes is None else bool(changes),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version()} | {name: version_of(name) for name in packages},
        "hardware": {
            "cpu": _cpu(),
            "cores": available_cores(),
            "platform": device.platform,
            "accelerator": None if device.platform == "cpu" else device.device_kind,
            "devices": jax.device_count(),
        },
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def python(*args: str, **variables: str) -> str:
    """The last line that a new Python process prints.

    Args:
      args: Its arguments.
      variables: Changed environment variables.

    Raises:
      ConfigError: The process fails.
    """
    done = subprocess.run(
        [sys.executable, *args],
        cwd=ROOT,
        # The parent process may hold most of an accelerator's memory.
        env=os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing on stderr"])[-1]
        raise ConfigError(f"a new process ended with {done.returncode}: {last}")
    return done.stdout.strip().splitlines()[-1]
