"""Time to sample schedules from a GFlowNet, and their quality compared with list scheduling."""

import argparse
import time
from typing import Final

import jax
import numpy as np

from benchmarks.table import aligned
from regal_jax.cli.arguments import count
from regal_jax.datasets import generate
from regal_jax.gflownet import sample_schedules
from regal_jax.graph import Cluster
from regal_jax.heuristics import run_heuristic
from regal_jax.plan import Objective
from regal_jax.solvers.gflownet import gflownet_of

__all__ = ["add_arguments", "run"]

_TOP: Final = 100
"""Number of schedules per graph that the paper keeps."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    families = ("erdos-renyi", "layered", "stochastic-block", "watts-strogatz", "barabasi-albert")
    parser.add_argument(
        "--families",
        nargs="+",
        default=[f"gflownet-{name}" for name in families],
        metavar="NAME",
        help="families of regal_jax.datasets.generate (default: the paper's five)",
    )
    parser.add_argument("--ops", type=count, default=50, metavar="N", help="ops of a graph (default 50)")
    parser.add_argument("--graphs", type=count, default=2, help="graphs of each family (default 2)")
    parser.add_argument("--samples", type=count, default=1000, help="schedules of each graph (default 1000)")
    parser.add_argument(
        "--temperature", type=float, default=0.005, help="temperature of the network (default 0.005)"
    )
    parser.add_argument("--weights", default="default", help="file of weights (default: the shipped weights)")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks schedules``: means over the graphs of each family, by speed-up."""
    model = gflownet_of(args.weights)
    cluster = Cluster.uniform(model.config.devices, transfer="free")
    options = {"count": args.samples, "temperature": args.temperature}
    rows: list[tuple[str, ...]] = [("speed-up", "list", "best", f"best {_TOP}", "mean", "s", "processor s")]
    for family in args.families:
        cells = []
        for seed in range(args.graphs):
            graph = generate(family, args.ops, seed)
            reference = run_heuristic("critical-path", graph, cluster, Objective.MAKESPAN).makespan
            if not seed:  # This call compiles and is not timed.
                sample_schedules(model, graph, cluster, jax.random.key(0), **options, seconds=0.0)
            clocks = time.perf_counter(), time.process_time()
            found = sample_schedules(model, graph, cluster, jax.random.key(seed), **options)
            spent = time.perf_counter() - clocks[0], time.process_time() - clocks[1]
            u = np.sort(found.speedup)[::-1]
            listed = float(graph.runtime.sum()) / reference
            cells.append((listed, u[0], u[:_TOP].mean(), u.mean(), *spent))
        rows.append((family, *(f"{mean:.3f}" for mean in np.mean(cells, axis=0))))
    print(aligned(rows))
    return 0
