"""What a stage of schedule generation changes in `auto` where memory counts, at equal evaluations.

The cases are the realistic development cases (`regal_jax.experiments.realistic`).
"""

import argparse
import json
import pathlib
from typing import Any, Final

import numpy as np

from regal_jax.api import optimize
from regal_jax.cli.arguments import count
from regal_jax.experiments import bootstrap
from regal_jax.experiments.realistic import EXAMPLE_MODELS, SAMPLE_MODELS, Case, load_models, one_device_peak
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan
from regal_jax.solvers import Brkga
from regal_jax.storage.atomic import write_atomically

__all__ = ["AIMS", "add_arguments", "run", "summary"]

AIMS: Final = {
    "time": ("unlimited", Objective.MAKESPAN),
    "60-percent": ("60 %", Objective.MAKESPAN),
    "even-split": ("even split", Objective.MAKESPAN),
    "peak-memory": ("unlimited", Objective.PEAK_MEMORY),
}
"""By name: limit of memory and objective."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "--aims",
        nargs="+",
        choices=AIMS,
        default=["even-split", "peak-memory"],
        help="(default the last two)",
    )
    parser.add_argument("--devices", type=count, nargs="+", default=[2, 4], metavar="D", help="(default 2 4)")
    parser.add_argument("--link", choices=("nvlink", "pcie", "ethernet"), default="nvlink")
    parser.add_argument("--most-ops", type=count, default=1400, metavar="N", help="(default 1400)")
    parser.add_argument("--evaluations", type=count, default=5000, metavar="E", help="(default 5000)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="results as JSON")


def run(args: argparse.Namespace) -> int:
    """Makes the table; returns the exit code."""
    rows = []
    for name, graph in sorted(load_models({*EXAMPLE_MODELS, *SAMPLE_MODELS}).items()):
        if graph.num_ops > args.most_ops:
            continue
        peak = one_device_peak(graph)
        for aim in args.aims:
            memory, objective = AIMS[aim]
            for devices in args.devices:
                case = Case(name, devices, args.link, memory, objective)
                row = _pair(graph, case.cluster(graph, peak), objective, args)
                rows.append({"model": name, "aim": aim, "devices": devices, **row})
                print(*rows[-1].values(), flush=True)
        if args.out:
            write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    for aim in args.aims:
        print(summary([row for row in rows if row["aim"] == aim], aim))
    return 0


def _pair(
    graph: ComputationGraph, cluster: Cluster, objective: Objective, args: argparse.Namespace
) -> dict[str, Any]:
    """The plans of `auto`, and of `auto` with half of the budget and the stage with the other half."""

    def plan(evaluations: int, method: Any = "auto", warm_start: Any = True) -> Plan:
        return optimize(
            graph,
            cluster,
            objective=objective,
            method=method,
            evaluations=evaluations,
            seed=args.seed,
            warm_start=warm_start,
            progress=False,
        )

    control = plan(args.evaluations)
    half = plan(args.evaluations // 2)
    staged = min(
        half, plan(args.evaluations - args.evaluations // 2, Brkga(encoding="schedule"), half),
        key=lambda each: each.sort_key,
    )  # fmt: skip
    values = {"control": control, "half": half, "staged": staged}
    return {
        "ops": graph.num_ops,
        **{title: each.objective_value for title, each in values.items()},
        **{f"{title}_overflow": int(each.overflow.sum()) for title, each in values.items()},
    }


def summary(rows: list[dict[str, Any]], title: str) -> str:
    """The geometric mean of the ratios of the cases in which both plans fit, with an interval over models."""
    both = [row for row in rows if not row["control_overflow"] and not row["staged_overflow"]]
    fits = [sum(not row[f"{name}_overflow"] for row in rows) for name in ("control", "staged")]
    said = f"{title}: {len(rows)} cases, {fits[0]} fit without the stage, {fits[1]} with it"
    if not both:
        return said
    models = sorted({row["model"] for row in both})
    logs = [
        np.mean([np.log(row["staged"] / row["control"]) for row in both if row["model"] == model])
        for model in models
    ]
    mean, low, high = np.exp(bootstrap(np.array(logs)))
    return f"{said}; with over without: {mean:.4f} [{low:.4f}, {high:.4f}], {len(models)} models"
