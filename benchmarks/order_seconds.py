"""Seconds of a network's orders of layered graphs, one by one and together, beside approximate DP."""

import argparse
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import jax
import numpy as np

from benchmarks.table import aligned
from regal_jax.cli.arguments import count, seed
from regal_jax.experiments.topological_order import SETTINGS, layered_cases
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.ordering.inputs import make_order_inputs
from regal_jax.plan import Objective
from regal_jax.solvers import ApproximateDp, TopoformerSamples
from regal_jax.solvers.protocol import Instance
from regal_jax.solvers.topoformer import topoformer_of

__all__ = ["add_arguments", "run"]

_CLUSTER: Final = Cluster.uniform(1, transfer="free")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("--ops", nargs="+", type=count, default=[500, 1000, 2000], help="ops of the graphs")
    parser.add_argument("--graphs", type=count, default=4, help="graphs of each size (default 4)")
    parser.add_argument(
        "--first",
        type=seed,
        default=200,
        metavar="K",
        help="number of the first graph (default 200)",
    )
    parser.add_argument(
        "--references",
        type=seed,
        default=1,
        metavar="R",
        help="graphs of each size, from the first, on which approximate DP runs (default 1; a minute each)",
    )
    parser.add_argument("--samples", type=count, default=16, help="orders that are drawn (default 16)")
    parser.add_argument(
        "--weights",
        nargs="*",
        default=["default"],
        help="networks by name or file (default: default)",
    )


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks order-seconds``: medians over the graphs of each size.

    *Times faster* is the processor seconds of approximate DP, which uses one core, over the seconds of the
    network.
    """
    rows: list[tuple[str, ...]] = [
        ("ops", "method", "s", "processor s", "features s", "together s", "gap", "times faster")
    ]
    for ops in args.ops:
        graphs = [graph for _, graph in layered_cases([ops], args.graphs, args.first)]
        clocks, peaks = _references(graphs[: args.references])
        wall, cpu = np.median(clocks, axis=0) if peaks else (0.0, 0.0)
        if peaks:
            rows.append((str(ops), "approximate DP", f"{wall:.2f}", f"{cpu:.2f}", "", "", "0", "1"))
        for weights in args.weights:
            cells = _network(weights, graphs, peaks, args.samples)
            ratio = f"{cpu / cells['s']:.3g}" if peaks else ""
            gap = f"{cells['gap']:+.2%}" if peaks else ""
            figures = (f"{cells[name]:.4f}" for name in ("s", "processor s", "features s", "together s"))
            rows.append((str(ops), weights, *figures, gap, ratio))
    print(f"{jax.devices()[0].device_kind}; {args.graphs} graphs of each size, {args.samples} orders")
    print(aligned(rows))
    return 0


def _instances(graphs: Sequence[ComputationGraph]) -> list[Instance]:
    return [Instance(graph, _CLUSTER, Objective.PEAK_MEMORY) for graph in graphs]


def _references(graphs: Sequence[ComputationGraph]) -> tuple[list[tuple[float, float]], list[float]]:
    """Seconds and processor seconds of approximate DP of the paper's width, and its peaks."""
    solver = ApproximateDp(**SETTINGS["approximate-dp"], implementation="host")
    found = [_timed(functools.partial(solver.construct, instance)) for instance in _instances(graphs)]
    return [(wall, cpu) for wall, cpu, _ in found], [plan.objective_value for _, _, plan in found]


def _network(
    weights: str, graphs: Sequence[ComputationGraph], peaks: Sequence[float], samples: int
) -> dict[str, float]:
    """Medians over graphs: of the best of the samples, of the inputs alone, and of a graph in one batch."""
    model, instances = topoformer_of(weights), _instances(graphs)
    solver = TopoformerSamples(samples, model)
    for part in (instances, instances[:1]):  # These calls compile.
        solver.construct_all(part)
    found = [_timed(functools.partial(solver.construct, instance)) for instance in instances]
    inputs = [_timed(functools.partial(make_order_inputs, [graph], model.config))[0] for graph in graphs]
    together = min(_timed(functools.partial(solver.construct_all, instances))[0] for _ in range(3))
    gaps = [plan.objective_value / peak - 1 for (_, _, plan), peak in zip(found, peaks, strict=False)]
    return {
        "s": float(np.median([each[0] for each in found])),
        "processor s": float(np.median([each[1] for each in found])),
        "features s": float(np.median(inputs)),
        "together s": together / len(graphs),
        "gap": float(np.mean(gaps)) if gaps else 0.0,
    }


def _timed(call: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, processor seconds, and the result."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = call()
    return time.perf_counter() - wall, time.process_time() - cpu, result
