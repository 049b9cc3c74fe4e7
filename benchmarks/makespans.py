"""Predicted and measured makespans of many plans on two CPU devices: ``python -m benchmarks makespans``.

Every device has one thread, so that two devices are two cores. Runtimes and links are measured first
(``profile="measured"``, `regal_jax.execution.measure_cluster`).
"""

import argparse
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import numpy as np

from regal_jax.cli.arguments import count
from regal_jax.storage.atomic import write_atomically

__all__ = ["add_arguments", "programs", "rank_correlation", "run", "various_plans"]

_FLAGS: Final = "--xla_cpu_multi_thread_eigen=false"
_WIDTH: Final = 384


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "--plans", type=count, default=10, help="plans of each of the five programs (default 10)"
    )
    parser.add_argument("--rounds", type=count, default=11, help="runs of each plan (default 11)")
    parser.add_argument("--width", type=count, default=384, help="width of the matrices (default 384)")
    parser.add_argument("--profile", default="measured", help="profile of the runtimes (default measured)")
    parser.add_argument("--out", metavar="FILE", type=pathlib.Path, help="save the rows as JSON")
    parser.add_argument("--plot", metavar="FILE", type=pathlib.Path, help="draw predicted against measured")


def run(args: argparse.Namespace) -> int:
    """Prints the table; returns the exit code."""
    # Both must be set before JAX begins.
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_FLAGS}"
    import jax

    jax.config.update("jax_num_cpu_devices", 2)
    from regal_jax import from_jax
    from regal_jax.execution import measure_cluster

    cluster = measure_cluster(jax.devices("cpu")[:2])
    print(cluster)
    rows = []
    for name, (fn, operands) in programs(args.width).items():
        graph = from_jax(fn, *operands, resident_argnums=0, profile=args.profile, name=name)
        plans = list(various_plans(graph, cluster, args.plans))
        measured = _measured(plans, fn, operands, args.rounds)
        predicted = [plan.makespan for plan in plans]
        rows += [
            {"program": name, "plan": i, "predicted": a, "measured": b}
            for i, (a, b) in enumerate(zip(predicted, measured, strict=True))
        ]
        ratio = statistics.median(b / a for a, b in zip(predicted, measured, strict=True))
        correlation = rank_correlation(predicted, measured)
        print(
            f"{name:20} {len(plans)} plans: rank correlation {correlation:.3f}, "
            f"measured / predicted {ratio:.2f}"
        )
    every = rank_correlation([row["predicted"] for row in rows], [row["measured"] for row in rows])
    print(f"{'all':20} {len(rows)} plans: rank correlation {every:.3f}")
    if args.out:
        write_atomically(args.out, (json.dumps(rows, indent=1) + "\n").encode())
    if args.plot:
        _plot(rows, args.plot)
    return 0


def programs(width: int = _WIDTH) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Name -> function and arguments, of which the first are parameters."""
    import jax
    import jax.numpy as jnp

    def towers(weights: Any, x: Any) -> Any:
        a = b = x
        for w in weights[:4]:
            a = jnp.tanh(a @ w)
        for w in weights[4:]:
            b = jnp.tanh(b @ w)
        return (a * b).sum()

    def chain(weights: Any, x: Any) -> Any:
        for w in weights:
            x = jnp.tanh(x @ w)
        return x.sum()

    def experts(weights: Any, x: Any) -> Any:
        return sum((jax.nn.relu(x @ weights[i]) @ weights[i + 1]).sum() for i in range(0, len(weights), 2))

    weights = [
        jax.random.normal(key, (width, width)) / width**0.5 for key in jax.random.split(jax.random.key(0), 8)
    ]
    operands = weights, jnp.ones((width, width))
    return {
        "towers": (towers, operands),
        "towers-gradient": (jax.grad(towers), operands),
        "chain-gradient": (jax.grad(chain), operands),
        "experts": (experts, operands),
        "experts-gradient": (jax.grad(experts), operands),
    }


def various_plans(graph: Any, cluster: Any, count: int) -> Iterator[Any]:
    """Plans from good to bad: of `optimize`, of one device, and with random changes of the best placement."""
    from regal_jax import Plan, optimize
    from regal_jax.heuristics import run_heuristic
    from regal_jax.plan import insert_transfers

    best = optimize(graph, cluster, evaluations=2000)
    yield best
    yield run_heuristic("single-device", graph, cluster)
    rng = np.random.default_rng(0)
    order = [event for event in best.event_ids(graph).tolist() if event < graph.num_ops]
    leader = np.asarray(graph.colocation_leader)
    for i in range(count - 2):
        place = np.array(best.placement)
        # The share of colocation groups that change their device rises from plan to plan.
        moved = rng.random(graph.num_ops) < 0.5 * (i + 1) / (count - 2)
        for op in range(graph.num_ops):
            if moved[leader[op]] and graph.allowed_devices[op] is None:
                place[op] = 1 - place[op]
        yield Plan.from_events(graph, cluster, place, insert_transfers(graph, cluster, place, order))


def _measured(
    plans: list[Any], fn: Callable[..., Any], operands: tuple[Any, ...], rounds: int
) -> list[float]:
    """Median seconds of every plan; each round runs all plans, one after another."""
    import jax

    from regal_jax import execute

    functions = [execute(plan, fn) for plan in plans]
    for function in functions:
        jax.block_until_ready(function(*operands))
    seconds: list[list[float]] = [[] for _ in plans]
    for _ in range(rounds):
        for function, mine in zip(functions, seconds, strict=True):
            begun = time.perf_counter()
            jax.block_until_ready(function(*operands))
            mine.append(time.perf_counter() - begun)
    return [statistics.median(mine) for mine in seconds]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's rank correlation; equal values have their mean rank."""

    def ranks(values: list[float]) -> np.ndarray:
        _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
        return (np.cumsum(counts) - (counts - 1) / 2)[which]

    x, y = ranks(a), ranks(b)
    if np.ptp(x) == 0 or np.ptp(y) == 0:
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])


def _plot(rows: list[dict[str, Any]], path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 5), layout="constrained")
    ax = figure.subplots()
    for name in dict.fromkeys(row["program"] for row in rows):
        mine = [row for row in rows if row["program"] == name]
        ax.scatter(
            [1e3 * row["predicted"] for row in mine],
            [1e3 * row["measured"] for row in mine],
            s=14,
            label=name,
        )
    longest = 1e3 * max(max(row["predicted"], row["measured"]) for row in rows)
    ax.plot([0, longest], [0, longest], color="#bbbbbb", lw=0.8, zorder=0)
    ax.set_xlabel("predicted makespan (ms)")
    ax.set_ylabel("measured makespan (ms)")
    ax.legend(frameon=False)
    figure.savefig(path, dpi=120)
