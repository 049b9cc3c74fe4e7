"""Resident memory of a process that runs an ONNX model. Linux only."""

import os
import pathlib
import re
import subprocess
import sys
from typing import Any, Final

from benchmarks.table import aligned
from regal_jax.errors import ConfigError

__all__ = ["process_bytes", "process_table"]

_SETTINGS: Final = {
    "as it is": (False, {}),
    "order of the file, session_options()": (False, {"planned": True}),
    "order of the plan, session_options()": (True, {"planned": True}),
    "order of the file, no arena": (False, {"planned": True, "arena": False}),
    "order of the plan, no arena": (True, {"planned": True, "arena": False}),
}
"""Name -> whether the model is in the order of the plan, and the arguments of `process_bytes`."""


def process_bytes(path: pathlib.Path, *, planned: bool = False, arena: bool = True, runs: int = 3) -> int:
    """Largest growth of a process's resident memory while it runs a loaded model.

    Args:
      path: The model.
      planned: Whether to use `regal_jax.execution.session_options`; otherwise only optimisations are off.
      arena: Whether to use ONNX Runtime's arena. Without it the C library returns large blocks at once.
      runs: Number of runs.

    Raises:
      ConfigError: The process fails.
    """
    environment = dict(os.environ)
    if not arena:
        environment["MALLOC_MMAP_THRESHOLD_"] = "131072"
    command = [sys.executable, "-m", __name__, os.fspath(path), str(int(planned)), str(int(arena)), str(runs)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"{path}: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}")
    return int(done.stdout)


def process_table(model: pathlib.Path, made: pathlib.Path) -> str:
    """`process_bytes` of a model and of the same model in the order of a plan, one line per setting."""
    rows: list[tuple[str, ...]] = [("", "", "MiB of the process")]
    for name, (applied, settings) in _SETTINGS.items():
        size = process_bytes(made if applied else model, **settings)
        rows.append((name, "", f"{size / 2**20:.0f}"))
    return aligned(rows)


def _child(path: str, planned: bool, arena: bool, runs: int) -> int:
    import numpy as np
    import onnxruntime

    from regal_jax.execution import session_options

    options: Any = session_options() if planned else onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_cpu_mem_arena = arena
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {each.name: rng.standard_normal(each.shape, dtype=np.float32) for each in session.get_inputs()}
    before = _status("VmRSS")
    for _ in range(runs):
        session.run(None, inputs)
    return _status("VmHWM") - before


def _status(field: str) -> int:
    text = pathlib.Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(rf"{field}:\s+(\d+) kB", text)
    if found is None:
        raise ConfigError(f"/proc/self/status has no {field}; this needs Linux")
    return int(found[1]) * 1024


if __name__ == "__main__":
    print(_child(sys.argv[1], sys.argv[2] == "1", sys.argv[3] == "1", int(sys.argv[4])))
