"""Costs of a new process: imports, the first call without and with a persistent cache, and memory."""

import dataclasses
import json
import tempfile
import time
from typing import Any

from benchmarks.cases import GraphCase
from benchmarks.environment import python
from benchmarks.timing import Series

__all__ = ["peak_memory", "start_times"]

_IMPORTS = {"import jax": "import jax", "import regal_jax": "from regal_jax import optimize"}


def _import_seconds(statement: str) -> float:
    clock = "time.perf_counter()"
    return float(python("-c", f"import time; began = {clock}; {statement}; print({clock} - began)"))


def _child(case: GraphCase, implementation: str | None, cache: str | None) -> dict[str, Any]:
    task = {"case": dataclasses.asdict(case), "implementation": implementation, "cache": cache}
    return json.loads(python("-m", "benchmarks.child", json.dumps(task)))


def start_times(case: GraphCase, implementation: str | None, repeats: int) -> dict[str, Series]:
    """Seconds of imports, of the first call and of a whole process with it; every repeat is a new process.

    Args:
      case: Case of the first call.
      implementation: Implementation of the simulator.
      repeats: Number of repeats, at most three for calls that compile.
    """
    values: dict[str, list[float]] = {name: [] for name in _IMPORTS}
    for _ in range(repeats):
        for name, statement in _IMPORTS.items():
            values[name].append(_import_seconds(statement))
    rounds = range(min(repeats, 3))
    names = ("first call, empty cache", "first call, filled cache", "process, filled cache")
    values |= {name: [] for name in names}
    for _ in rounds:
        with tempfile.TemporaryDirectory() as cache:
            values[names[0]].append(_child(case, implementation, cache)["seconds"])
            began = time.perf_counter()
            values[names[1]].append(_child(case, implementation, cache)["seconds"])
            values[names[2]].append(time.perf_counter() - began)
    return {name: Series(tuple(each)) for name, each in values.items()}


def peak_memory(case: GraphCase, implementation: str | None) -> dict[str, Series]:
    """Peak bytes of a new process: before there is a problem, and after the search.

    On an accelerator, also the peak of the search there.
    """
    found = _child(case, implementation, None)
    return {name: Series((float(each),), "bytes") for name, each in found["bytes"].items()}
