"""The value of a network's priorities for searches among orders, with controls."""

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from benchmarks.table import aligned
from regal_jax.api import optimize
from regal_jax.cli.arguments import count
from regal_jax.datasets.layered import layered_graph
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import OrderSearchRun
from regal_jax.ordering import graph_priorities, shipped_topoformer
from regal_jax.plan import Objective

__all__ = ["add_arguments", "guide", "proposal", "run"]

_ONE: Final = Cluster.uniform(1, transfer="free")
_SEED: Final = 3
"""Part of the seeds of the graphs; training and evaluation use other values."""
_Row = tuple[str, np.ndarray, float]
"""Name, ``[G, K]`` peaks of graphs after each budget, and seconds per graph."""


def guide(graphs: Sequence[ComputationGraph], budgets: Sequence[int]) -> list[_Row]:
    """Order search without a guide, with random priorities, and with those of each network of the package."""
    makers: dict[str, Callable[[ComputationGraph], np.ndarray] | None] = {"no guide": None}
    makers["random priorities"] = lambda graph: np.random.default_rng(0).standard_normal(graph.num_ops)
    for name in ("default", "standardised"):
        model = shipped_topoformer(name)
        makers[f"network {name!r}"] = lambda graph, model=model: graph_priorities(model, graph)
    return [_searched(name, make, graphs, budgets) for name, make in makers.items()]


def _searched(
    name: str,
    make: Callable[[ComputationGraph], np.ndarray] | None,
    graphs: Sequence[ComputationGraph],
    budgets: Sequence[int],
) -> _Row:
    peaks, seconds = np.zeros((len(graphs), len(budgets))), 0.0
    for g, graph in enumerate(graphs):
        priorities = None if make is None else make(graph)
        began = time.perf_counter()
        search, done = OrderSearchRun(graph, _ONE, 0, priorities=priorities), 0
        for b, budget in enumerate(budgets):
            search.run(budget - done)
            peaks[g, b], done = search.best, budget
        seconds += time.perf_counter() - began
    return name, peaks, seconds / len(graphs)


def proposal(graphs: Sequence[ComputationGraph], budgets: Sequence[int]) -> list[_Row]:
    """BRKGA without warm starts: uniform draws, and draws around the network's greedy order."""
    rows = []
    for name, policy in (("uniform draws", None), ("around the network's order", "topoformer")):
        peaks, seconds = np.zeros((len(graphs), len(budgets))), 0.0
        for b, budget in enumerate(budgets):
            for g, graph in enumerate(graphs):
                began = time.perf_counter()
                plan = optimize(
                    graph,
                    _ONE,
                    objective=Objective.PEAK_MEMORY,
                    method="brkga",
                    policy=policy,
                    evaluations=budget,
                    warm_start=False,
                )
                seconds += time.perf_counter() - began
                peaks[g, b] = plan.objective_value
        rows.append((name, peaks, seconds / len(graphs)))
    return rows


_QUESTIONS: Final = {"guide": guide, "proposal": proposal}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "question",
        choices=("guide", "proposal"),
        help="use of the priorities: guide of order search, or proposal of BRKGA",
    )
    parser.add_argument(
        "--ops", nargs="+", type=count, default=[500], metavar="N", help="ops of the graphs (default 500)"
    )
    parser.add_argument("--graphs", type=count, default=10, help="layered graphs of each size (default 10)")
    parser.add_argument(
        "--budgets",
        nargs="+",
        type=count,
        default=[500, 5000],
        metavar="E",
        help="evaluations (default 500 5000)",
    )


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks orders``."""
    for size in args.ops:
        graphs = [layered_graph(np.random.default_rng([0, _SEED, size, i]), size) for i in range(args.graphs)]
        rows = _QUESTIONS[args.question](graphs, args.budgets)
        head = (f"{size} ops", *(f"{budget} evaluations" for budget in args.budgets), "s per graph")
        print(aligned([head, *(_line(rows[0][1], row) for row in rows)]))
    return 0


def _line(reference: np.ndarray, row: _Row) -> tuple[str, ...]:
    """Mean peaks relative to those of the first row, with half the width of a 95 % interval."""
    name, peaks, seconds = row
    change = 100 * (peaks / reference - 1)
    half = (
        196 * (peaks / reference).std(axis=0, ddof=1) / len(peaks) ** 0.5 if len(peaks) > 1 else change[0] * 0
    )
    cells = (f"{mean:+.2f} % ± {each:.2f}" for mean, each in zip(change.mean(axis=0), half, strict=True))
    return name, *cells, f"{seconds:.2f}"
