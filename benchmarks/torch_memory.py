"""Memory of modules by PyTorch's profiler: in the order of a plan, and in PyTorch's own orders."""

import argparse
import copy
import json
import math
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.bounds import least_bytes
from benchmarks.table import aligned
from benchmarks.torch_networks import MODULES, build
from regal_jax.api import order
from regal_jax.cli.arguments import count
from regal_jax.errors import ConfigError
from regal_jax.execution import apply_to_torch, inductor_options, measure_torch
from regal_jax.graph import Cluster
from regal_jax.importers import from_torch
from regal_jax.plan import Plan
from regal_jax.storage.atomic import write_atomically

__all__ = ["add_arguments", "run"]

_FORMS: Final = ("gradient", "training-step")
_OWN_ORDER: Final = {"reorder_for_peak_memory": True, "_post_fusion_custom_pass": None}
"""Options with which Inductor chooses its own order."""
_TITLES: Final = {
    "plain": "autograd",
    "program": "traced",
    "plan": "plan",
    "compiled": "Inductor",
    "compiled_plan": "Inductor, plan",
    "compiled_search": "Inductor, searched",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("names", nargs="*", metavar="MODULE", help="names of modules (default: all)")
    parser.add_argument(
        "--method", default="order-search", help="method of the orders (default order-search)"
    )
    parser.add_argument("--inductor", action="store_true", help="also compile each with Inductor (minutes)")
    parser.add_argument("--runs", type=count, default=3, help="runs of each order (default 3)")
    parser.add_argument("--threads", type=count, default=1, help="threads of PyTorch (default 1)")
    parser.add_argument("--out", metavar="FILE", help="save the rows as JSON, after every module")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks torch``."""
    unknown = [name for name in args.names if name not in MODULES]
    if unknown:
        raise ConfigError(f"no module is called {unknown[0]!r}; there are {', '.join(MODULES)}")
    torch.set_num_threads(args.threads)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        # Compiled kernels of earlier runs are not used: the seconds of a first compilation count.
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        for name in args.names or MODULES:
            for form in _FORMS:
                row = {"name": name, "form": form, **_row(name, form, args)}
                rows.append(row)
                print(f"{name}, {form}: {len(rows)} done", flush=True)
                if args.out:
                    write_atomically(args.out, json.dumps(rows, indent=1).encode())
    print(_table(rows))
    return int(not all(row["equal"] for row in rows))


def _row(name: str, form: str, args: argparse.Namespace) -> dict[str, Any]:
    module, x = build(name)
    graph = from_torch(module, x, form=form, in_place=True, name=name)
    first = Plan.from_events(
        graph, Cluster.uniform(1), np.zeros(graph.num_ops, np.int64), np.arange(graph.num_ops)
    )
    plans = {"program": first, "plan": order(graph, method=args.method)}
    there = int(graph.tensor_bytes[graph.tensor_resident].sum())
    row: dict[str, Any] = {"ops": graph.num_ops, "bound": least_bytes(graph, plans["plan"]) - there}
    plain = copy.deepcopy(module)
    measured = measure_torch(_plain(plain, form), x, runs=args.runs)
    row |= {"plain_bytes": measured.peak_bytes, "plain_seconds": measured.seconds}
    results = {}
    for key, plan in plans.items():
        planned = apply_to_torch(plan, copy.deepcopy(module), x, form=form)
        measured = measure_torch(planned, x, runs=args.runs)
        row |= {
            f"{key}_bytes": measured.peak_bytes,
            f"{key}_predicted": planned.predicted_bytes[0],
            f"{key}_seconds": measured.seconds,
        }
        results[key] = (measured.result, planned.state_dict())
    row["equal"] = _equal(results["program"], results["plan"])
    if args.inductor:
        for key, plan, options in (
            ("compiled", first, _OWN_ORDER),
            ("compiled_plan", plans["plan"], {}),
            ("compiled_search", first, inductor_options(args.method)),
        ):
            planned = apply_to_torch(plan, copy.deepcopy(module), x, form=form)
            planned.compile(options)
            measured = measure_torch(planned, x, runs=args.runs)
            row |= {f"{key}_bytes": measured.peak_bytes, f"{key}_seconds": measured.seconds}
    return row


def _plain(module: nn.Module, form: str) -> Callable[[torch.Tensor], Any]:
    """The same step with autograd and, for a training step, `torch.optim.Adam`."""
    parameters = list(module.parameters())

    def loss(x: torch.Tensor) -> torch.Tensor:
        return sum((leaf.mean() for leaf in pytree.tree_leaves(module(x))), start=torch.zeros(()))

    def gradient(x: torch.Tensor) -> Any:
        value = loss(x)
        return value.detach(), torch.autograd.grad(value, parameters, allow_unused=True)

    if form == "gradient":
        return gradient
    adam = torch.optim.Adam(parameters, foreach=False)

    def step(x: torch.Tensor) -> torch.Tensor:
        value = loss(x)
        value.backward()
        adam.step()
        adam.zero_grad()
        return value.detach()

    return step


def _equal(one: Any, other: Any) -> bool:
    leaves = [pytree.tree_leaves(tree) for tree in (one, other)]
    return all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(*leaves, strict=True)
    )


def _table(rows: Sequence[dict[str, Any]]) -> str:
    """Measured growth in MiB, the deviation of the prediction for the plan, and what every order needs."""
    keys = [key for key in _TITLES if f"{key}_bytes" in rows[0]]
    title = ["MiB", "", "ops", *(_TITLES[key] for key in keys), "(predicted)", "bound"]
    title += ["above bound", "of traced", "of best", "time"]
    table: list[tuple[str, ...]] = [tuple(title)]
    for row in rows:
        table.append(
            (
                row["name"],
                row["form"],
                str(row["ops"]),
                *(f"{row[f'{key}_bytes'] / 2**20:.2f}" for key in keys),
                f"{row['plan_predicted'] / row['plan_bytes'] - 1:+.2%}",
                f"{row['bound'] / 2**20:.2f}",
                f"{row['plan_predicted'] / row['bound'] - 1:.2%}",
                f"{1 - row['plan_bytes'] / row['program_bytes']:.1%}",
                f"{1 - row['plan_bytes'] / _best(row):.1%}",
                f"{row['plan_seconds'] / row['plain_seconds']:.2f} x",
            )
        )
    for form in _FORMS:
        chosen = [row for row in rows if row["form"] == form]
        if chosen:
            means = [
                1 - _mean([row["plan_bytes"] / row["program_bytes"] for row in chosen]),
                1 - _mean([row["plan_bytes"] / _best(row) for row in chosen]),
            ]
            seconds = _mean([row["plan_seconds"] / row["plain_seconds"] for row in chosen])
            above = _mean([row["plan_predicted"] / row["bound"] for row in chosen]) - 1
            empty = [""] * (len(keys) + 3)
            table.append(
                ("mean", form, *empty, f"{above:.2%}", *(f"{mean:.1%}" for mean in means), f"{seconds:.2f} x")
            )
    return aligned(table)


def _best(row: dict[str, Any]) -> float:
    """The smallest memory that PyTorch needs without a plan."""
    return min(row[key] for key in ("plain_bytes", "program_bytes", "compiled_bytes") if key in row)


def _mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))
