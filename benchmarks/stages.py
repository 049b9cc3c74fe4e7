"""What a stage of schedule generation changes in `auto` where memory counts, at equal evaluations.

The graphs are those of the sample's training and validation splits; never of the test split.
"""

import argparse
import json
import math
import pathlib
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from regal_jax.api import optimize_many
from regal_jax.cli.arguments import count
from regal_jax.datasets import load_sample
from regal_jax.experiments import bootstrap
from regal_jax.experiments.realistic import LINKS
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.even_split import one_device_peak, possible_capacity
from regal_jax.plan import Objective, Plan
from regal_jax.solvers import Brkga
from regal_jax.storage.atomic import write_atomically

__all__ = ["AIMS", "add_arguments", "run", "summary"]

AIMS: Final = {
    "time": (math.inf, Objective.MAKESPAN),
    "even-split": (1.1, Objective.MAKESPAN),
    "peak-memory": (math.inf, Objective.PEAK_MEMORY),
}
"""By name: capacity of a device over an even split of the one-device peak, and the objective."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    aims = tuple(AIMS)
    parser.add_argument("--aims", nargs="+", choices=aims, default=aims[1:], help="(default: the last two)")
    parser.add_argument("--graphs", type=count, metavar="N", help="at most so many (default: all)")
    parser.add_argument("--devices", type=count, nargs="+", default=[2, 4], metavar="D", help="(default 2 4)")
    parser.add_argument("--link", choices=tuple(LINKS), default="nvlink", help="(default nvlink)")
    parser.add_argument("--most-ops", type=count, default=330, metavar="N", help="(default 330)")
    parser.add_argument("--evaluations", type=count, default=5000, metavar="E", help="(default 5000)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="results as JSON")


def run(args: argparse.Namespace) -> int:
    """Makes the table; returns the exit code."""
    records = [pair for split in ("train", "validation") for pair in load_sample(split)]
    graphs = [graph for _, graph in records if graph.num_ops <= args.most_ops][: args.graphs]
    peaks = [one_device_peak(graph) for graph in graphs]
    rows: list[dict[str, Any]] = []
    for aim in args.aims:
        found = []
        for devices in args.devices:
            share, objective = AIMS[aim]
            clusters = [
                _cluster(graph, devices, share * peak / devices, args.link)
                for graph, peak in zip(graphs, peaks, strict=True)
            ]
            found += [
                {"aim": aim, "devices": devices, **row} for row in _rows(graphs, clusters, objective, args)
            ]
            print(summary([row for row in found if row["devices"] == devices], f"{aim}, {devices} devices"))
        print(summary(found, aim), flush=True)
        rows += found
    if args.out:
        write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


def _cluster(graph: ComputationGraph, devices: int, capacity: float, link: str) -> Cluster:
    memory = capacity if math.isinf(capacity) else possible_capacity(graph, devices, capacity)
    return Cluster.uniform(devices, memory, f"blocking:{LINKS[link]}")


def _rows(
    graphs: Sequence[ComputationGraph], clusters: Sequence[Cluster], objective: Objective, args: Any
) -> list[dict[str, Any]]:
    """`auto`; half of the budget for it, then the stage; and the stage alone, from the heuristics' plans."""

    def plans(evaluations: int, method: Any = "auto", warm_start: Any = True) -> tuple[list[Plan], float]:
        began = time.perf_counter()
        made = optimize_many(
            graphs,
            clusters,
            objective=objective,
            method=method,
            evaluations=evaluations,
            seed=args.seed,
            warm_start=warm_start,
            progress=False,
        )
        return made, time.perf_counter() - began

    first, stage = args.evaluations // 2, Brkga(encoding="schedule")
    half, began = plans(first)
    after, took = plans(args.evaluations - first, stage, half)
    staged = [min(pair, key=lambda plan: plan.sort_key) for pair in zip(half, after, strict=True)]
    each = {
        "control": plans(args.evaluations),
        "staged": (staged, began + took),
        "alone": plans(args.evaluations, stage),
    }
    return [
        {
            "graph": graph.name,
            "ops": graph.num_ops,
            **{title: made[i].objective_value for title, (made, _) in each.items()},
            **{f"{title}_overflow": int(made[i].overflow.sum()) for title, (made, _) in each.items()},
            **{f"{title}_seconds": seconds / len(graphs) for title, (_, seconds) in each.items()},
        }
        for i, graph in enumerate(graphs)
    ]


def summary(rows: Sequence[dict[str, Any]], title: str) -> str:
    """Geometric means of the ratios to the control where both plans fit, with intervals over graphs."""
    fits = sum(not row["control_overflow"] for row in rows)
    said = [f"{title}: {len(rows)} cases; auto fits {fits}, {_mean(rows, 'control_seconds'):.2f} s a case"]
    for name in ("staged", "alone"):
        both = [row for row in rows if not row["control_overflow"] and not row[f"{name}_overflow"]]
        fits = sum(not row[f"{name}_overflow"] for row in rows)
        text = f"  {name}: fits {fits}, {_mean(rows, f'{name}_seconds'):.2f} s a case"
        if both:
            logs = {graph: [] for graph in sorted({row["graph"] for row in both})}
            for row in both:
                logs[row["graph"]].append(np.log(row[name] / row["control"]) if row["control"] else 0.0)
            mean, low, high = np.exp(bootstrap(np.array([np.mean(each) for each in logs.values()])))
            text += f"; over auto {mean:.4f} [{low:.4f}, {high:.4f}] on {len(logs)} graphs"
        said.append(text)
    return "\n".join(said)


def _mean(rows: Sequence[dict[str, Any]], field: str) -> float:
    return float(np.mean([row[field] for row in rows]))
