"""Time until plans in new processes: ``python -m benchmarks first-plan``.

For each kind of links one process begins with empty caches, and a second one with those of the first. Both
call `regal_jax.optimize_many` for the same random graphs; the second calls it once more.
"""

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from typing import Any, Final

import numpy as np

from benchmarks.environment import python
from regal_jax.cli.arguments import count
from regal_jax.storage.atomic import write_atomically

__all__ = ["LINKS", "add_arguments", "child", "run"]

LINKS: Final = ("pcie4x16", "free")
_OBJECTIVES: Final = ("makespan", "peak-memory")
_SETTINGS: Final = ("graphs", "least", "most", "method", "objective", "evaluations")
_FAMILIES: Final = ("erdos-renyi", "layered")
_CALLS: Final = ("first call, empty caches", "first call, second process", "again in the same process")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "--links", nargs="+", default=["pcie4x16", "free"], metavar="NAME", help="(default both)"
    )
    parser.add_argument("--graphs", type=count, default=50, help="number of graphs (default 50)")
    parser.add_argument("--least", type=count, default=60, metavar="N", help="ops (default 60)")
    parser.add_argument("--most", type=count, default=400, metavar="N", help="ops (default 400)")
    parser.add_argument("--method", default="auto", help="(default auto)")
    parser.add_argument("--objective", default="makespan", choices=_OBJECTIVES, help="(default makespan)")
    parser.add_argument("--evaluations", type=count, default=5000, help="of each graph (default 5000)")
    parser.add_argument("--out", metavar="FILE", help="save the rows as JSON")


def run(args: argparse.Namespace) -> int:
    """Makes the table; returns the exit code."""
    rows = []
    for links in args.links:
        task = {key: getattr(args, key) for key in _SETTINGS}
        with tempfile.TemporaryDirectory() as folder:
            results = [_process({**task, "links": links, "calls": calls}, folder) for calls in (1, 2)]
        calls = [result["calls"] for result in results]
        for name, call in zip(_CALLS, [*calls[0], *calls[1]], strict=True):
            rows.append({"links": links, "call": name, **call})
            print(
                f"{links:10} {name:27} {call['seconds']:6.1f} s, {call['processor']:6.1f} processor seconds"
            )
        imports = ", ".join(f"{result['imports']:.1f}" for result in results)
        plans = {call["plans"] for call in [*calls[0], *calls[1]]}
        equal = "equal" if len(plans) == 1 else "DIFFERENT"
        print(f"{links:10} imports before the first call {imports} s; plans {equal} ({', '.join(plans)})")
    if args.out:
        write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


def _process(task: dict[str, Any], folder: str) -> dict[str, Any]:
    """The results of `child` in a new process whose caches are in ``folder``."""
    caches = {name: os.path.join(folder, name) for name in ("REGAL_JAX_CACHE", "NUMBA_CACHE_DIR")}
    return json.loads(python("-m", "benchmarks.first_plan", json.dumps(task), **caches))


def child(task: dict[str, Any]) -> dict[str, Any]:
    """Calls `regal_jax.optimize_many`.

    Args:
      task: ``graphs``, their number; ``least`` and ``most`` ops; ``links``; ``method``; ``objective``;
        ``evaluations`` of each graph; ``calls``, how often.

    Returns:
      ``imports`` in seconds, and for each of the ``calls`` its ``seconds``, ``processor`` seconds of all
      threads and a hash of the ``plans``.
    """
    began = time.perf_counter()
    from regal_jax import Cluster, optimize_many
    from regal_jax.datasets import generate

    sizes = np.random.default_rng(0).integers(task["least"], task["most"], task["graphs"], endpoint=True)
    graphs = [generate(_FAMILIES[i % len(_FAMILIES)], n, i) for i, n in enumerate(sizes.tolist())]
    cluster = Cluster.uniform(2, transfer=task["links"])
    imports, calls = time.perf_counter() - began, []
    for _ in range(task["calls"]):
        began, processor = time.perf_counter(), time.process_time()
        plans = optimize_many(
            graphs,
            cluster,
            method=task["method"],
            objective=task["objective"],
            evaluations=task["evaluations"],
            progress=False,
        )
        seconds, processor = time.perf_counter() - began, time.process_time() - processor
        shown = repr([(plan.placement.tolist(), plan.timeline.op.tolist()) for plan in plans])
        digest = hashlib.sha256(shown.encode()).hexdigest()[:12]
        calls.append({"seconds": seconds, "processor": processor, "plans": digest})
    return {"imports": imports, "calls": calls}


if __name__ == "__main__":
    print(json.dumps(child(json.loads(sys.argv[1]))))
