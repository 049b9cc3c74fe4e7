"""The same search on the CPU of a machine with an accelerator: a process without the accelerator.

``python -m benchmarks.on_cpu CASE`` searches once for every line of its input and prints a line of JSON.
"""

import dataclasses
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.cases import GraphCase
from benchmarks.environment import ROOT
from benchmarks.timing import Contender, Outcome
from regal_jax.errors import ConfigError

__all__ = ["on_cpu"]


def on_cpu(case: GraphCase, label: str = "cpu") -> Contender:
    """A whole BRKGA run on the CPU by its default simulator, timed in a process that serves all rounds."""
    started: list[subprocess.Popen[str]] = []

    def process() -> subprocess.Popen[str]:
        if not started:
            command = [sys.executable, "-m", "benchmarks.on_cpu", json.dumps(dataclasses.asdict(case))]
            variables = os.environ | {"JAX_PLATFORMS": "cpu"}
            pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
            started.append(subprocess.Popen(command, cwd=ROOT, env=variables, text=True, **pipes))
        return started[0]

    def run() -> Outcome:
        child = process()
        if child.stdin is None or child.stdout is None:
            raise AssertionError
        child.stdin.write("run\n")
        child.stdin.flush()
        line = child.stdout.readline()
        if not line:
            raise ConfigError(f"the process on the CPU ended with {child.wait()}; see what it printed")
        return Outcome(**json.loads(line))

    def close() -> None:
        for child in started:
            child.communicate()
        started.clear()

    return Contender(label, run, close=close)


def _serve(case: GraphCase) -> None:
    import jax

    from benchmarks.throughput import solver

    jax.config.update("jax_enable_compilation_cache", False)
    contender = solver(case)
    for _ in sys.stdin:
        print(json.dumps(dataclasses.asdict(contender.run())), flush=True)


if __name__ == "__main__":
    _serve(GraphCase(**json.loads(sys.argv[1])))
