"""``python -m benchmarks ray``: batches on a Ray cluster of this machine, and in processes without Ray.

The processes do what ``regal-jax optimize FILES --out-dir DIR`` does after its start: they parse their
graphs, plan them, and format the plans.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.environment import ONE_CORE
from regal_jax import Cluster, ComputationGraph, optimize_many
from regal_jax.cli.arguments import count
from regal_jax.datasets import generate
from regal_jax.engines import Item, Message, RayEngine
from regal_jax.importers.native import format_native, parse_native
from regal_jax.plan import Plan
from regal_jax.runtime.cores import available_cores
from regal_jax.runtime.deadline import Deadline

__all__ = ["add_arguments", "nothing", "run"]

_NOTHING: Final = "benchmarks.ray_workers:nothing"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("--graphs", type=count, default=200, metavar="N", help="(default 200)")
    parser.add_argument("--ops", type=count, default=100, metavar="N", help="of each graph (default 100)")
    parser.add_argument("--evaluations", type=count, default=2000, metavar="E", help="(default 2000)")
    parser.add_argument("--method", default="auto", help="(default auto)")
    parser.add_argument("--rounds", type=count, default=5, help="(default 5)")
    parser.add_argument("--out", metavar="FILE", help="save the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Measures both in turns and prints the figures."""
    args.workers = available_cores()
    graphs = _graphs(args)
    rows: dict[str, list[float]] = {"processes": [], "ray": [], "messages": []}
    with _processes(args) as processes:
        clock = Deadline()
        with RayEngine() as engine:
            _on_ray(engine, graphs, args, seed=0)
            print(f"first call on Ray, with its start and compilation: {clock.spent:.1f} s")
            _in_processes(processes, 0)
            for number in range(1, args.rounds + 1):
                # Ray's workers and the processes wait while the others work.
                rows["processes"].append(_in_processes(processes, number))
                rows["ray"].append(_on_ray(engine, graphs, args, seed=number))
                rows["messages"].append(_messages(engine, graphs))
                print(", ".join(f"{name} {values[-1]:.2f} s" for name, values in rows.items()), flush=True)
    ratios = [ours / theirs for theirs, ours in zip(rows["ray"], rows["processes"], strict=True)]
    result = {
        "graphs": args.graphs, "ops": args.ops, "evaluations": args.evaluations, "method": args.method,
        "workers": args.workers, "seconds": rows, "throughput": ratios,
        "overhead_ms": [
            1000 * (ray - alone) * args.workers / args.graphs
            for alone, ray in zip(rows["processes"], rows["ray"], strict=True)
        ],
        "message_ms": [1000 * seconds / args.graphs for seconds in rows["messages"]],
    }  # fmt: skip
    _report(result)
    if args.out is not None:
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
    return 0


def _report(result: dict[str, Any]) -> None:
    print(f"{result['graphs']} graphs of {result['ops']} ops, {result['workers']} workers of one core")
    for name, text in (
        ("throughput", "throughput on Ray, as a multiple of that of processes"),
        ("overhead_ms", "a worker's milliseconds per graph beyond those of a process"),
        ("message_ms", "milliseconds per graph for messages alone, all workers"),
    ):
        values = result[name]
        print(f"{text}: {statistics.median(values):.3g} ({min(values):.3g} to {max(values):.3g})")


def _graphs(args: argparse.Namespace) -> list[ComputationGraph]:
    return [generate("layered", args.ops + i % 4, seed=i) for i in range(args.graphs)]


def _plan(
    graphs: Sequence[ComputationGraph], args: argparse.Namespace, seed: int, **options: Any
) -> list[Plan]:
    return optimize_many(
        graphs,
        Cluster.uniform(2),
        evaluations=args.evaluations,
        method=args.method,
        seed=seed,
        progress=False,
        **options,
    )


def _on_ray(
    engine: RayEngine, graphs: Sequence[ComputationGraph], args: argparse.Namespace, *, seed: int
) -> float:
    clock = Deadline()
    _plan(graphs, args, seed, engine=engine)
    return clock.spent


def nothing(common: Message, messages: Sequence[Message], tell: Any) -> None:
    """A work function that answers with what it gets."""
    del common
    for position, message in enumerate(messages):
        tell(position, message, True)


def _messages(engine: RayEngine, graphs: Sequence[ComputationGraph]) -> float:
    messages = [Message({}, [format_native(graph).encode()]) for graph in graphs]
    items = [Item("", lambda message=message: message) for message in messages]
    engine.run(_NOTHING, Message(), items[:1], lambda *_: None)
    clock = Deadline()
    engine.run(_NOTHING, Message(), items, lambda *_: None)
    return clock.spent


@contextlib.contextmanager
def _processes(args: argparse.Namespace) -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes with a core each, which plan their part of the graphs for every line that they read."""
    settings = {name: getattr(args, name) for name in ("graphs", "ops", "evaluations", "method", "workers")}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.ray_workers", json.dumps(settings), str(number)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **ONE_CORE},
        )
        for number in range(args.workers)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.communicate()


def _in_processes(processes: Sequence["subprocess.Popen[str]"], seed: int) -> float:
    clock = Deadline()
    for process in processes:
        if process.stdin is not None:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
    for process in processes:
        if process.stdout is not None:
            process.stdout.readline()
    return clock.spent


def _child(settings: str, number: int) -> None:
    args = argparse.Namespace(**json.loads(settings))
    texts = [format_native(graph) for graph in _graphs(args)[number :: args.workers]]
    for line in sys.stdin:
        plans = _plan([parse_native(text) for text in texts], args, int(line))
        print(sum(len(plan.to_json()) for plan in plans), flush=True)


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
