"""Weak scaling of training: the same number of graphs for each process, from one process to several.

The processes are on this machine, with one core and one CPU device each. More processes than cores take
turns, so a step takes longer whatever the exchange of data costs.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from benchmarks.cases import GraphCase
from benchmarks.environment import ONE_CORE, ROOT
from benchmarks.training import Steps
from regal_jax.cli.arguments import count
from regal_jax.errors import ConfigError
from regal_jax.learning import join_processes
from regal_jax.learning.mesh import AXIS, everywhere
from regal_jax.learning.processes import any_process
from regal_jax.programs import on_mesh
from regal_jax.storage.atomic import write_atomically

__all__ = ["add_arguments", "exchanged_bytes", "run"]

_WARM_UP: Final = 2
_REPEATS: Final = 20
_FIELDS: Final = (
    "processes", "step seconds", "efficiency", "bytes sent", "sum seconds", "deliver seconds", "agree seconds"
)  # fmt: skip


def exchanged_bytes(weights: int, row: int, batch: int, processes: int) -> int:
    """Bytes that a process sends in a step, as rings of processes do it.

    Args:
      weights: Number of weights, of which the gradients are summed.
      row: Bytes of a graph of the pool.
      batch: Graphs of a step, which come from the processes that hold them.
      processes: Number of processes.
    """
    others = (processes - 1) / processes
    return round(2 * others * (4 * weights + batch * row))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "--count", type=count, nargs="+", default=[1, 2, 4], metavar="N", help="processes (default 1 2 4)"
    )
    parser.add_argument("--graphs", type=count, default=8, help="for each process (default 8)")
    parser.add_argument("--ops", type=count, default=100, help="of each graph (default 100)")
    parser.add_argument("--evaluations", type=count, default=300, help="of a search (default 300)")
    parser.add_argument("--steps", type=count, default=10, help="measured (default 10)")
    parser.add_argument("--out", metavar="FILE", help="write the rows as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs ``python -m benchmarks processes``."""
    rows: list[dict[str, Any]] = []
    for number in args.count:
        row = _together(number, args)
        rows.append(row)
        row["efficiency"] = rows[0]["step seconds"] / row["step seconds"]
        print("  ".join(f"{name} {row[name]:.4g}" for name in _FIELDS), flush=True)
    if args.out:
        write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


def _together(count: int, args: argparse.Namespace) -> dict[str, Any]:
    """The figures of one number of processes."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    task = {name: vars(args)[name] for name in ("graphs", "ops", "evaluations", "steps")}
    command = [sys.executable, "-m", "benchmarks.processes", json.dumps(task), address, str(count)]
    environment = os.environ | ONE_CORE
    children = [
        subprocess.Popen([*command, str(i)], cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE)
        for i in range(count)
    ]
    texts = [child.communicate()[0] for child in children]
    if any(child.returncode for child in children):
        codes = ", ".join(str(child.returncode) for child in children)
        raise ConfigError(f"processes: they ended with {codes}; see what they wrote")
    return {"processes": count, **json.loads(texts[0].splitlines()[-1])}


def _child(task: dict[str, Any], address: str, count: int, index: int) -> dict[str, Any]:
    """Steps of one process with the others."""
    join_processes(address, count, index)
    case = GraphCase(
        "layered", task["ops"], graphs=task["graphs"] * count, devices=2, evaluations=task["evaluations"]
    )
    steps = Steps(case)
    weights = sum(leaf.size for leaf in jax.tree.leaves(steps.state.policy))
    row = sum(4 * leaf.size // leaf.shape[0] for leaf in jax.tree.leaves(steps.pool.pool))
    words = -(-case.graphs * row // 4 // count) * count
    return {
        "step seconds": _median(steps.step, task["steps"]),
        "sum seconds": _median(_exchange(steps.mesh, weights, lambda x: lax.psum(x, AXIS)), _REPEATS),
        "deliver seconds": _median(_exchange(steps.mesh, words, lambda x: lax.psum(x, AXIS)), _REPEATS),
        "agree seconds": _median(lambda: any_process(False), _REPEATS),
        "weights": weights,
        "row bytes": row,
        "bytes sent": exchanged_bytes(weights, row, case.graphs, count),
    }


def _exchange(mesh: Mesh, size: int, collective: Callable[[jax.Array], jax.Array]) -> Callable[[], jax.Array]:
    """A collective alone, on arrays of ``size`` numbers of 32 bits, rounded up to fit the devices."""
    values = everywhere(np.zeros(-(-size // mesh.size) * mesh.size, np.float32), mesh)
    spread, same = PartitionSpec(AXIS), PartitionSpec()
    call = on_mesh(lambda x: collective(x)[:1], mesh, same, spread)
    program = jax.jit(call)
    return lambda: program(values)


def _median(call: Callable[[], Any], repeats: int) -> float:
    """Seconds of a call, after those that compile."""
    seconds = []
    for _ in range(_WARM_UP + repeats):
        clock = time.perf_counter()
        jax.block_until_ready(call())
        seconds.append(time.perf_counter() - clock)
    return statistics.median(seconds[_WARM_UP:])


if __name__ == "__main__":
    print(json.dumps(_child(json.loads(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))))
