"""Searches of one large graph, each in a process of its own: seconds, peak memory, and the plan."""

import argparse
import json
import sys
from typing import Any

from benchmarks.child import peak_bytes
from benchmarks.environment import python
from regal_jax import Cluster, optimize
from regal_jax.cli.arguments import count
from regal_jax.datasets import generate
from regal_jax.heuristics import best_heuristic
from regal_jax.plan import verify
from regal_jax.runtime.deadline import Deadline
from regal_jax.storage.atomic import write_atomically

__all__ = ["add_arguments", "measure", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("--family", default="layered", help="of random graphs (default layered)")
    parser.add_argument("--ops", type=count, default=200_000, help="(default 200000)")
    parser.add_argument(
        "--devices", type=count, nargs="+", default=[2, 8], metavar="N", help="of the cluster (default 2 8)"
    )
    parser.add_argument("--memory", help="of every device, such as 5GiB (default: no limit)")
    parser.add_argument(
        "--methods", nargs="+", default=["auto", "brkga"], metavar="NAME", help="(default auto brkga)"
    )
    parser.add_argument("--evaluations", type=count, default=5000, help="(default 5000)")
    parser.add_argument("--seconds", type=float, help="time limit of each search")
    parser.add_argument("--out", metavar="FILE", help="write the rows as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs ``python -m benchmarks large``."""
    rows = []
    for devices in args.devices:
        for method in args.methods:
            task = {name: vars(args)[name] for name in ("family", "ops", "evaluations", "seconds", "memory")}
            rows.append(measure({**task, "devices": devices, "method": method}))
            row = rows[-1]
            print(
                f"{row['ops']} ops, {devices} devices, {method}: {row['seconds']:.1f} s, "
                f"{row['bytes'] / 2**30:.2f} GiB, {row['evaluations']} evaluations, makespan "
                f"{row['makespan']:.6g} (best heuristic {row['heuristic']:.6g}, bound {row['bound']:.6g}), "
                f"stopped by {row['stopped']}",
                flush=True,
            )
    if args.out:
        write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """One search in a new process.

    Args:
      task: ``family``, ``ops``, ``devices``, ``memory`` (of a device, or ``None``), ``method``,
        ``evaluations``, and ``seconds``, the time limit or ``None``.

    Returns:
      The task; ``seconds`` and ``bytes``, the peak resident size, of the search; and figures of the plan,
      which has been replayed and verified.
    """
    return {**task, **json.loads(python("-m", "benchmarks.large", json.dumps(task)))}


def _child(task: dict[str, Any]) -> dict[str, Any]:
    graph = generate(task["family"], task["ops"], seed=0)
    cluster = Cluster.uniform(task["devices"], **({"memory": task["memory"]} if task["memory"] else {}))
    clock = Deadline()
    plan = optimize(
        graph,
        cluster,
        method=task["method"],
        evaluations=task["evaluations"],
        time_limit=task["seconds"],
    )
    seconds, size = clock.spent, peak_bytes()
    verify(plan, graph)
    return {
        "seconds": seconds,
        "bytes": size,
        "evaluations": plan.provenance.get("evaluations", 0),
        "stopped": plan.provenance.get("stopped"),
        "makespan": plan.makespan,
        "bound": plan.lower_bound,
        "feasible": plan.feasible,
        "heuristic": best_heuristic(graph, cluster)[0].makespan,
    }


if __name__ == "__main__":
    print(json.dumps(_child(json.loads(sys.argv[1]))))
