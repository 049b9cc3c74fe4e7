"""Memory of networks in ONNX Runtime: in the order of a plan, and in its own orders."""

import argparse
import dataclasses
import json
import math
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime

from benchmarks.bounds import least_bytes
from benchmarks.onnx_networks import NETWORKS, export
from benchmarks.onnx_process import process_table
from benchmarks.table import aligned
from regal_jax.api import order
from regal_jax.cli.arguments import count
from regal_jax.errors import ConfigError
from regal_jax.execution import OnnxComparison, apply_to_onnx, compare_onnx
from regal_jax.importers import from_onnx
from regal_jax.plan import Objective, Plan
from regal_jax.storage.atomic import write_atomically

__all__ = ["LIGHT", "add_arguments", "compare", "optimised", "run"]

LIGHT: Final = pathlib.Path(onnx.__file__).parent / "backend/test/data/light"
"""Models in the package `onnx`, whose weights are made by ``ConstantOfShape``."""
_IR_VERSION: Final = 8
"""Version of the files written here: from 4 on, initializers need not be inputs."""
_FATAL: Final = 4
_PEAK: Final = Objective.PEAK_MEMORY


def optimised(source: pathlib.Path, path: pathlib.Path) -> None:
    """Writes ``source`` to ``path`` after ONNX Runtime's basic optimisations, which fold constants."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = os.fspath(path)
    options.log_severity_level = _FATAL
    onnxruntime.InferenceSession(os.fspath(source), options, providers=["CPUExecutionProvider"])
    model = onnx.load(path)
    model.ir_version = max(model.ir_version, _IR_VERSION)
    onnx.save(model, path)


def compare(path: pathlib.Path, made: pathlib.Path, *, method: str, runs: int) -> tuple[OnnxComparison, int]:
    """Orders the model in ``path``, writes it in that order to ``made``, and runs both.

    Returns:
      The runs, and the bytes of the model's graph that every order needs.
    """
    graph = from_onnx(path, in_place=True)
    plan = order(graph, method=method)  # pyright: ignore[reportArgumentType]
    onnx.save(apply_to_onnx(plan, path), made)
    free = dataclasses.replace(graph, tensor_bytes=np.where(graph.tensor_resident, 0, graph.tensor_bytes))
    same = Plan.from_events(free, plan.cluster, plan.placement, plan.event_ids(graph), objective=_PEAK)
    return compare_onnx(path, made, runs=runs, threads=1), least_bytes(free, same)


def _sources(
    names: list[str], folder: pathlib.Path, *, light: bool, batch: int
) -> Iterator[tuple[str, bool, pathlib.Path]]:
    """Name, whether it has branches, and file of each network."""
    known = [*NETWORKS, *(path.stem for path in sorted(LIGHT.glob("*.onnx")))]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ConfigError(f"no network is called {unknown[0]!r}; there are {', '.join(known)}")
    for name in names or known[: None if light else len(NETWORKS)]:
        if name in NETWORKS:
            path = folder / "exported.onnx"
            export(name, path, batch=batch)
            yield name, NETWORKS[name][2], path
        else:
            yield name, False, LIGHT / f"{name}.onnx"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "names", nargs="*", metavar="NETWORK", help="names of networks (default: those that PyTorch exports)"
    )
    parser.add_argument("--light", action="store_true", help="also measure the models in the package onnx")
    parser.add_argument("--method", default="order-search", help="of the orders (default order-search)")
    parser.add_argument("--batch", type=count, default=1, help="batch size of exported networks (default 1)")
    parser.add_argument("--process", action="store_true", help="also measure memory of processes (Linux)")
    parser.add_argument("--runs", type=count, default=3, help="runs of each order (default 3)")
    parser.add_argument("--out", metavar="FILE", help="save the rows as JSON, after every network")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks onnx``."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model, made = folder / "model.onnx", folder / "made.onnx"
        for name, branches, source in _sources(args.names, folder, light=args.light, batch=args.batch):
            optimised(source, model)
            found, bound = compare(model, made, method=args.method, runs=args.runs)
            rows.append(
                {
                    "name": name,
                    "nodes": len(found.after.order),
                    "branches": branches,
                    "bound_bytes": bound,
                    **_figures(found),
                }
            )
            print(f"{name}: {len(rows)} done", flush=True)
            if args.process:
                print(process_table(model, made), flush=True)
            if args.out:
                write_atomically(args.out, json.dumps(rows, indent=1).encode())
    print(_table(rows))
    return int(any(row["equal"] is False for row in rows))


def _figures(found: OnnxComparison) -> dict[str, Any]:
    runs = {"shipped": found.shipped, "default": found.default, "file": found.before, "plan": found.after}
    return {
        **{f"{key}_bytes": each.peak_bytes for key, each in runs.items()},
        "file_predicted": found.predicted_before,
        "plan_predicted": found.predicted_after,
        **{f"{key}_seconds": each.seconds for key, each in runs.items()},
        "equal": found.equal,
    }


def _table(rows: list[dict[str, Any]]) -> str:
    """Measured peaks in MiB, each followed by its prediction if there is one, and what every order needs."""
    head = ["MiB", "nodes", "reused", "default", "file", "(pred)", "plan", "(pred)", "bound"]
    table: list[tuple[str, ...]] = [(*head, "saved", "of best", "time")]
    for row in rows:
        size = {
            key: f"{value / 2**20:.2f}" for key, value in row.items() if key.endswith(("bytes", "predicted"))
        }
        best = min(row["shipped_bytes"], row["default_bytes"], row["file_bytes"])
        table.append(
            (
                row["name"] + (" *" if row["branches"] else ""),
                str(row["nodes"]),
                size["shipped_bytes"],
                size["default_bytes"],
                size["file_bytes"],
                f"({size['file_predicted']})",
                size["plan_bytes"],
                f"({size['plan_predicted']})",
                size["bound_bytes"],
                f"{1 - row['plan_bytes'] / row['shipped_bytes']:.1%}",
                f"{1 - row['plan_bytes'] / best:.1%}",
                f"{row['plan_seconds'] / row['shipped_seconds']:.2f} x",
            )
        )
    for title, chosen in (("all", rows), ("* with branches", [row for row in rows if row["branches"]])):
        if chosen:
            table.append((title, *[""] * 8, _saved(chosen, "shipped_bytes"), "", ""))
    return aligned(table)


def _saved(rows: list[dict[str, Any]], key: str) -> str:
    """Geometric mean of the shares of memory that the plans save."""
    mean = math.exp(sum(math.log(row["plan_bytes"] / row[key]) for row in rows) / len(rows))
    return f"{1 - mean:.1%}"
