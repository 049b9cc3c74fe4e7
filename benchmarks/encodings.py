"""Searches by each encoding, against list search and `auto`, on synthetic graphs: gap over a lower bound.

With `--policy FILE`, also schedule generation that a policy guides, and the same network untrained."""

import argparse
import functools
import itertools
import json
import pathlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import jax
import numpy as np
from flax import nnx

from regal_jax.api import optimize_many
from regal_jax.cli.arguments import count
from regal_jax.datasets import generate
from regal_jax.datasets.topologies import TOPOLOGIES
from regal_jax.errors import ConfigError
from regal_jax.experiments import bootstrap
from regal_jax.graph import Cluster, ComputationGraph, runtime_matrix
from regal_jax.plan import Objective, Plan, lower_bound
from regal_jax.policies import Policy, load_policy
from regal_jax.problem import make_problem
from regal_jax.solve import ENCODINGS, fitness
from regal_jax.solvers import Brkga, LocalSearch
from regal_jax.storage.atomic import write_atomically

__all__ = ["METHODS", "Case", "add_arguments", "cases", "run", "schedules_per_second"]

METHODS: Final[dict[str, tuple[Any, bool]]] = {
    "brkga, cold": ("brkga", False),
    "brkga": ("brkga", True),
    "schedule, cold": (Brkga(encoding="schedule"), False),
    "schedule": (Brkga(encoding="schedule"), True),
    "local search, schedule": (LocalSearch(encoding="schedule"), True),
    "list-search": ("list-search", True),
    "auto": ("auto", True),
}
"""By title: the method, and whether it begins with the plans of heuristics."""
_FIRST: Final = 5000
"""Default seed of the first graph; no set of the library has these."""
_WARM: Final = 200
"""Evaluations of the call that compiles."""


class Case(NamedTuple):
    """A graph, its cluster, and the larger of its longest path and its work over the devices."""

    graph: ComputationGraph
    cluster: Cluster
    bound: float


def cases(ops: int, devices: int, cost: float, count: int, first: int = _FIRST) -> list[Case]:
    """Synthetic graphs of seeds from ``first`` on; blocking transfers take ``cost`` mean runtimes."""
    found = []
    for i in range(count):
        graph = generate(f"regal-{list(TOPOLOGIES)[i % len(TOPOLOGIES)]}", ops, seed=first + i)
        runtime = runtime_matrix(graph, Cluster.uniform(1))[:, 0]
        latency = float(cost * runtime.mean())
        cluster = Cluster([np.inf] * devices, transfer="blocking", latency=latency)
        bound = max(lower_bound(graph, cluster, Objective.MAKESPAN), float(runtime.sum()) / devices)
        found.append(Case(graph, cluster, bound))
    return found


def _plans(instances: Sequence[Case], chosen: tuple[Any, bool], evaluations: int, seed: int) -> list[Plan]:
    method, warm = chosen
    return optimize_many(
        [case.graph for case in instances],
        [case.cluster for case in instances],
        method=method,
        evaluations=evaluations,
        seed=seed,
        warm_start=warm,
        progress=False,
    )


def schedules_per_second(case: Case, population: int = 1000, repeats: int = 10) -> float:
    """Schedules that are generated per second, compilation apart."""
    problem, encoding = make_problem([case.graph], case.cluster), ENCODINGS["schedule"]
    prior = jax.tree.map(lambda leaf: leaf[0], encoding.proposal(problem))
    draw = jax.vmap(functools.partial(encoding.sampler(problem, prior), prior))
    genes = jax.tree.map(
        lambda leaf: leaf[None], jax.jit(draw)(jax.random.split(jax.random.key(0), population))
    )
    value = jax.jit(functools.partial(fitness, encoding=encoding))
    jax.block_until_ready(value(problem, genes))
    began = time.perf_counter()
    for _ in range(repeats):
        jax.block_until_ready(value(problem, genes))
    return population * repeats / (time.perf_counter() - began)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("--ops", type=count, default=100, metavar="N", help="(default 100)")
    parser.add_argument("--devices", type=count, nargs="+", default=[2, 4], metavar="D", help="(default 2 4)")
    parser.add_argument(
        "--costs",
        type=float,
        nargs="+",
        default=[0.0, 0.5],
        metavar="X",
        help="time of a transfer, in mean runtimes (default 0 0.5)",
    )
    parser.add_argument("--graphs", type=count, default=8, metavar="N", help="(default 8)")
    parser.add_argument(
        "--first", type=count, default=_FIRST, metavar="SEED", help=f"of the first graph (default {_FIRST})"
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the searches (default 0)")
    parser.add_argument("--evaluations", type=count, default=5000, metavar="E", help="(default 5000)")
    parser.add_argument("--methods", nargs="+", default=[], metavar="TITLE", help="(default all)")
    parser.add_argument(
        "--policy",
        action="append",
        default=[],
        metavar="FILE",
        help="weights that guide schedule generation, and the same network untrained; may be repeated",
    )
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="results as JSON")


def run(args: argparse.Namespace) -> int:
    """Makes the tables; returns the exit code.

    Raises:
      ConfigError: A method that is not in `METHODS`.
    """
    methods = _guided(args.policy)
    for title in args.methods:
        if title not in METHODS:
            raise ConfigError(f"methods: unknown {title!r}; use some of {', '.join(map(repr, METHODS))}")
    rows = []
    for devices, cost in itertools.product(args.devices, args.costs):
        instances = cases(args.ops, devices, cost, args.graphs, args.first)
        rate = schedules_per_second(instances[0])
        print(f"{devices} devices, a transfer takes {cost:g} ops: {rate:,.0f} schedules/s", flush=True)
        wanted = {title: METHODS[title] for title in args.methods or METHODS} | methods
        rows += _table(instances, wanted, args, {"devices": devices, "cost": cost})
    if args.out:
        write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    return 0


def _guided(files: Sequence[str]) -> dict[str, tuple[Any, bool]]:
    """Schedule generation guided by each policy, and by the same network untrained, as `METHODS`."""
    methods: dict[str, tuple[Any, bool]] = {}
    for file in files:
        trained = load_policy(file)
        untrained = Policy(trained.config, rngs=nnx.Rngs(0))
        for title, policy in ((f"schedule, {file} untrained", untrained), (f"schedule, {file}", trained)):
            methods[title] = Brkga(encoding="schedule", policy=policy), True
    return methods


def _table(
    instances: Sequence[Case],
    methods: Mapping[str, tuple[Any, bool]],
    args: argparse.Namespace,
    about: dict[str, Any],
) -> list[dict[str, Any]]:
    """One line per method, printed as soon as it is known."""
    rows: list[dict[str, Any]] = []
    for title, method in methods.items():
        _plans(instances[:1], method, _WARM, 0)
        began, gaps = time.perf_counter(), np.zeros((len(args.seeds), len(instances)))
        for i, seed in enumerate(args.seeds):
            plans = _plans(instances, method, args.evaluations, seed)
            gaps[i] = [plan.makespan / case.bound - 1 for plan, case in zip(plans, instances, strict=True)]
        seconds = (time.perf_counter() - began) / gaps.size
        # One value per graph: seeds of one graph are no independent samples of graphs.
        mean, low, high = (100 * number for number in bootstrap(gaps.mean(axis=0)))
        print(f"  {title:24} {mean:7.2f} %  [{low:.2f}, {high:.2f}]  {seconds:.2f} s a graph", flush=True)
        rows.append({**about, "method": title, "seconds": seconds, "gaps": gaps.tolist()})
    _print_ratios(rows)
    return rows


def _print_ratios(rows: Sequence[dict[str, Any]]) -> None:
    """Makespans of the last method over those of each other one, graph by graph."""
    *others, last = ({**row, "times": 1 + np.mean(row["gaps"], axis=0)} for row in rows)
    for row in others:
        ratio = np.exp(bootstrap(np.log(last["times"] / row["times"])))
        print(
            "  {} over {}: {:.4f} [{:.4f}, {:.4f}]".format(last["method"], row["method"], *ratio), flush=True
        )
