"""The gap of `auto` from proven optima: small graphs, on which CP-SAT finds the optimum.

Graphs are random ones, in which every tensor has a cost of its own, half a mean op on average, or those of a
folder, such as the Standard Task Graph Set. With ``--capacity`` memory is limited. Optima are those that
CP-SAT proves in the given time. Other graphs do not count, nor do those of which no plan fits the memory.
"""

import argparse
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from regal_jax.api import optimize
from regal_jax.cli.arguments import count
from regal_jax.datasets import generate, read_set
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph, TransferModel, runtime_matrix
from regal_jax.heuristics.even_split import even_split
from regal_jax.heuristics.exact import cp_sat
from regal_jax.plan import Objective, proof_of
from regal_jax.solvers import Auto
from regal_jax.storage.atomic import write_atomically

__all__ = ["add_arguments", "cases", "run"]

_FAMILIES: Final = ("erdos-renyi", "layered", "regal-stochastic-block")
_LEAST_OPS: Final = 10
_LEAST_DEVICES: Final = 2
_DATA_DEVICES: Final = (2, 4, 8, 16)
"""Numbers of devices for each graph of a folder; the Standard Task Graph Set publishes optima for these."""
_COST: Final = 0.5
"""Mean time of a transfer, in mean runtimes."""
_FIRST: Final = 40_000
"""Seed of the first graph; no set of the library has these."""
_METHODS: Final = {"auto": Auto(), "auto without proofs": Auto(prove=False)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    models = [str(model) for model in TransferModel]
    parser.add_argument("--graphs", type=count, default=60, metavar="N", help="(default 60)")
    parser.add_argument(
        "--data",
        type=pathlib.Path,
        metavar="PATH",
        help="the first N graphs of this set, each with 2, 4, 8 and 16 devices, instead of random ones",
    )
    objectives = [str(objective) for objective in Objective]
    parser.add_argument("--most-ops", type=count, default=30, metavar="N", help="of a graph (default 30)")
    parser.add_argument("--most-devices", type=count, default=16, metavar="D", help="(default 16)")
    parser.add_argument("--objective", choices=objectives, default="makespan", help="(default makespan)")
    parser.add_argument(
        "--capacity",
        type=float,
        metavar="RATIO",
        help="memory of a device, over an even split of the graph's",
    )
    parser.add_argument("--transfer", choices=models, default="delay", help="(default delay)")
    parser.add_argument("--evaluations", type=count, default=5000, metavar="E", help="(default 5000)")
    parser.add_argument("--seconds", type=float, default=20.0, metavar="S", help="of CP-SAT (default 20)")
    parser.add_argument("--seed", type=int, default=0, help="(default 0)")
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="results as JSON")


def cases(
    number: int,
    transfer: str,
    data: pathlib.Path | None,
    most_ops: int = 30,
    most_devices: int = 16,
    capacity: float | None = None,
) -> Iterator[tuple[ComputationGraph, Cluster]]:
    """Graphs and their clusters."""
    for graph, devices in _stored(number, data) if data else _random(number, most_ops, most_devices):
        costs = {}
        if transfer != TransferModel.FREE:
            if not (graph.tensor_bytes.any() and graph.runtime.any()):
                raise ConfigError(f"{graph.name}: its sizes or runtimes are all zero; use --transfer free")
            runtime = float(runtime_matrix(graph, Cluster.uniform(1)).mean())
            costs = {"bandwidth": float(graph.tensor_bytes.mean()) / (_COST * runtime)}
        memory = [np.inf] * devices
        if capacity is not None:
            memory = even_split(graph, devices, capacity, transfer).memory
        yield graph, Cluster(memory, transfer=transfer, **costs)


def _random(number: int, most_ops: int, most_devices: int) -> Iterator[tuple[ComputationGraph, int]]:
    for i in range(number):
        random = np.random.default_rng(_FIRST + i)
        ops = int(random.integers(_LEAST_OPS, most_ops, endpoint=True))
        devices = int(random.integers(_LEAST_DEVICES, most_devices, endpoint=True))
        yield generate(_FAMILIES[i % len(_FAMILIES)], ops, seed=_FIRST + i), devices


def _stored(number: int, data: pathlib.Path) -> Iterator[tuple[ComputationGraph, int]]:
    for graph in read_set(data).graphs[:number]:
        for devices in _DATA_DEVICES:
            yield graph, devices


def run(args: argparse.Namespace) -> int:
    """Makes the table; returns the exit code."""
    rows: list[dict[str, Any]] = []
    if args.most_ops < _LEAST_OPS or args.most_devices < _LEAST_DEVICES:
        raise ConfigError(f"give at least --most-ops {_LEAST_OPS} and --most-devices {_LEAST_DEVICES}")
    given = args.graphs, args.transfer, args.data, args.most_ops, args.most_devices, args.capacity
    for graph, cluster in cases(*given):
        best = cp_sat(graph, cluster, args.objective, time_limit=args.seconds)
        row = {
            "graph": graph.name,
            "ops": graph.num_ops,
            "devices": cluster.num_devices,
            **best.provenance,
            "cp-sat": best.objective_value,
        }
        for name, method in _METHODS.items():
            begun = time.perf_counter()
            plan = optimize(
                graph,
                cluster,
                objective=args.objective,
                method=method,
                evaluations=args.evaluations,
                seed=args.seed,
                progress=False,
            )
            proven = plan.optimal or bool(proof_of(plan))
            row[name] = {
                "value": plan.objective_value,
                "fits": plan.feasible,
                "proven": proven,
                "seconds": time.perf_counter() - begun,
            }
        rows.append(row)
    known = [row for row in rows if row["status"] == "optimal"]
    print(f"{len(rows)} cases, {args.transfer}; CP-SAT proves {len(known)} in {args.seconds:g} s each")
    none = sum(row["status"] == "impossible" for row in rows)
    if none:
        print(f"  no plan fits the memory in {none} more")
    for name in _METHODS:
        fits = [row for row in known if row[name]["fits"]]
        gaps = np.array([row[name]["value"] / row["cp-sat"] - 1 for row in fits])
        proven = sum(row[name]["proven"] for row in rows)
        seconds = float(np.mean([row[name]["seconds"] for row in rows]))
        if not len(gaps):
            continue
        print(
            f"  {name:20} gap {100 * gaps.mean():.3f} %, at most {100 * gaps.max():.2f} %, "
            f"none on {int((gaps < 1e-9).sum())}; {len(known) - len(fits)} do not fit; {proven} proven; "
            f"{seconds:.2f} s a graph"
        )
    if args.out is not None:
        write_atomically(args.out, json.dumps(rows, indent=1).encode())
    return 0
