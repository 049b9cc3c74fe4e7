"""The program that `benchmarks.fresh` runs: one search in a new process, with one line of JSON as output."""

import json
import pathlib
import resource
import sys
from typing import Any

import jax

from benchmarks.cases import GraphCase
from benchmarks.throughput import solver

__all__ = ["peak_bytes", "run"]


def peak_bytes() -> int:
    """Largest resident size of this process so far."""
    try:
        status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
        return 1024 * next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmHWM"))
    except (OSError, StopIteration):
        # A fallback: on Linux it starts from the size of the parent process.
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def run(task: dict[str, Any]) -> dict[str, Any]:
    """Searches once.

    Args:
      task: ``case``, the fields of a `GraphCase`; ``implementation``; ``cache``, a folder or ``None``.

    Returns:
      ``seconds`` of the first call, including compilation, and ``bytes``.
    """
    jax.config.update("jax_enable_compilation_cache", task["cache"] is not None)
    if task["cache"] is not None:
        jax.config.update("jax_compilation_cache_dir", task["cache"])
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    device = jax.devices()[0]
    found = {"process before": peak_bytes()}
    contender = solver(GraphCase(**task["case"]), task["implementation"])
    found["process with the problem"] = peak_bytes()
    outcome = contender.run()
    found["process peak"] = peak_bytes()
    statistics = device.memory_stats() or {}
    if "peak_bytes_in_use" in statistics:
        found["accelerator peak"] = statistics["peak_bytes_in_use"]
    return {"seconds": outcome.seconds, "bytes": found}


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
