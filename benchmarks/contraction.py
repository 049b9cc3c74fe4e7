"""The effect of contraction on real graphs: size, plans and time."""

import argparse
import dataclasses
import json
import pathlib
import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Final

import jax
from tqdm import tqdm

from benchmarks.environment import environment
from benchmarks.table import aligned
from regal_jax.cli.arguments import count
from regal_jax.datasets.corpus_files import CORPUS
from regal_jax.datasets.manifest import MANIFEST
from regal_jax.errors import ConfigError
from regal_jax.examples import EXAMPLES, load_example
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import best_heuristic
from regal_jax.importers import FORMATS, load_graph
from regal_jax.plan import Contraction, Plan, contract_for
from regal_jax.plan.contraction import MAX_SHARE
from regal_jax.search import Stopping
from regal_jax.solve import graph_keys, solve
from regal_jax.solvers.loop.batches import make_batch, share_out
from regal_jax.solvers.loop.outcome import device_turn
from regal_jax.solvers.loop.settings import Settings

__all__ = ["CASES", "Row", "Side", "add_arguments", "compare_with_original", "run", "summary"]

CASES: Final = {
    "makespan": Cluster.uniform(2, transfer="blocking:latency=5us,bandwidth=300GB/s"),
    "peak-memory": Cluster.uniform(1),
}
"""Objective to cluster: two devices with links like NVLink's, and one device where only the order matters."""

_HEAD: Final = (
    "graph",
    "objective",
    "ops",
    "contracted",
    "heuristics",
    "search",
    "value",
    "s, heuristics",
    "s, search",
    "s, contract",
)


@dataclasses.dataclass(frozen=True)
class Side:
    """Results for one of the two graphs.

    Attributes:
      ops: Number of ops.
      heuristic: The best objective of all heuristics, on the original graph (expanded).
      searched: Objective of the search that starts from the heuristics.
      heuristic_seconds: Seconds of all heuristics.
      search_seconds: Seconds of the search without compilation.
    """

    ops: int
    heuristic: float
    searched: float
    heuristic_seconds: float
    search_seconds: float


@dataclasses.dataclass(frozen=True)
class Row:
    """One graph under one objective.

    Attributes:
      graph: Name of the graph.
      objective: A key of `CASES`.
      original: Results without contraction.
      contracted: Results with contraction.
      contract_seconds: Seconds of the contraction.
      lower_bound: Lower bound of the original.
    """

    graph: str
    objective: str
    original: Side
    contracted: Side
    contract_seconds: float
    lower_bound: float

    def ratios(self) -> tuple[float, float, float, float]:
        """Contracted over original: heuristics, search, seconds of the heuristics, seconds of the search."""
        a, b = self.contracted, self.original
        return (
            a.heuristic / b.heuristic if b.heuristic else 1.0,
            a.searched / b.searched if b.searched else 1.0,
            a.heuristic_seconds / b.heuristic_seconds,
            a.search_seconds / b.search_seconds,
        )

    def cells(self) -> tuple[str, ...]:
        """Cells of the row in the table."""
        values = [f"{ratio:.3f} x" for ratio in self.ratios()]
        return (
            self.graph,
            self.objective,
            f"{self.original.ops:,}",
            f"{self.contracted.ops:,}",
            values[0],
            values[1],
            f"{self.contracted.searched:.4g}",
            f"{self.original.heuristic_seconds:.2f} -> {self.contracted.heuristic_seconds:.2f}",
            f"{self.original.search_seconds:.2f} -> {self.contracted.search_seconds:.2f}",
            f"{self.contract_seconds:.2f}",
        )


def _settings(objective: str, evaluations: int, seed: int) -> Settings:
    return Settings.checked(
        objective=objective,
        evaluations=evaluations,
        seed=seed,
        method="brkga",
        policy=None,
        warm_start=True,
        contract=False,
        target=None,
        stall=None,
        time_limit=None,
        progress=False,
    )


def _side(
    graph: ComputationGraph, cluster: Cluster, settings: Settings, made: Contraction | None
) -> tuple[Side, Plan]:
    """The steps of `regal_jax.optimize`, timed separately."""
    began = time.perf_counter()
    known = best_heuristic(graph, cluster, settings.objective, seed=settings.number)
    heuristic_seconds = time.perf_counter() - began
    pairs = [(graph, cluster)]
    ((part,),) = (stage.parts for stage in settings.agenda(cluster.num_devices).device_stages)
    share = share_out(pairs, part.config.fit(settings.evaluations), 1, jax.devices()[:1])[0]
    batch = make_batch(share, pairs, [known], part.config)
    keys = graph_keys(settings.key, [graph])
    # A few generations first compile all programs of the timed run.
    for evaluations in (3 * part.config.first_evaluations, settings.evaluations):
        began = time.perf_counter()
        result = solve(
            batch.problem,
            keys,
            Stopping(evaluations),
            objective=settings.objective,
            config=part.config,
            warm=batch.warm,
        )
        search_seconds = time.perf_counter() - began
    found = device_turn(batch, 0, result, settings, 0, settings.evaluations).plans
    plan = min([*known, *found], key=lambda plan: plan.sort_key)
    first = known[0]
    if made is not None:
        plan, first = made.expand(plan), made.expand(first)
    side = Side(graph.num_ops, first.objective_value, plan.objective_value, heuristic_seconds, search_seconds)
    return side, plan


def compare_with_original(
    graph: ComputationGraph,
    objective: str,
    *,
    evaluations: int = 5000,
    max_share: float = MAX_SHARE,
    seed: int = 0,
) -> Row:
    """Searches ``graph`` and its contraction with the same budget; both plans are verified on ``graph``.

    Args:
      graph: The graph.
      objective: A key of `CASES`.
      evaluations: Budget of each search.
      max_share: As in `regal_jax.contract`.
      seed: Seed of both searches.
    """
    cluster, settings = CASES[objective], _settings(objective, evaluations, seed)
    began = time.perf_counter()
    made = contract_for(graph, cluster, settings.objective, max_share=max_share)
    contract_seconds = time.perf_counter() - began
    original, plan = _side(graph, cluster, settings, None)
    plan.verify(graph)
    contracted, plan = _side(made.graph, cluster, settings, made)
    plan.verify(graph)
    return Row(graph.name, objective, original, contracted, contract_seconds, plan.lower_bound)


def summary(rows: Sequence[Row]) -> str:
    """Geometric means of the ratios, by objective."""
    lines = []
    for objective in CASES:
        mine = [row for row in rows if row.objective == objective]
        if not mine:
            continue
        heuristic, search, heuristic_time, search_time = (
            statistics.geometric_mean(column) for column in zip(*(row.ratios() for row in mine), strict=True)
        )
        size = statistics.geometric_mean(row.contracted.ops / row.original.ops for row in mine)
        better = sum(row.ratios()[1] < 1 - 1e-9 for row in mine)
        worse = sum(row.ratios()[1] > 1 + 1e-9 for row in mine)
        lines.append(
            f"{objective}, {len(mine)} graphs, contracted over original (geometric means): ops {size:.3f}, "
            f"heuristics {heuristic:.4f} in {heuristic_time:.3f} of the time, search {search:.4f} in "
            f"{search_time:.3f} of the time; {better} better, {worse} worse"
        )
    return "\n".join(lines)


def _files(paths: Sequence[str]) -> list[str]:
    suffixes = tuple(
        end for form in FORMATS.values() for suffix in form.suffixes for end in (suffix, f"{suffix}.gz")
    )
    found: list[str] = []
    for path in paths:
        if pathlib.Path(path).is_dir():
            inside = [
                str(p)
                for p in sorted(pathlib.Path(path).rglob("*"))
                if p.name.lower().endswith(suffixes) and p.name not in (CORPUS, MANIFEST)
            ]
            if not inside:
                raise ConfigError(f"--graphs: no graph in {path!r}; names end with {', '.join(suffixes)}")
            found += inside
        else:
            found.append(path)
    return found


def _graphs(paths: Sequence[str]) -> Iterator[ComputationGraph]:
    if not paths:
        yield from (load_example(name) for name in EXAMPLES)
    for path in _files(paths):
        graph = load_graph(path)
        yield dataclasses.replace(graph, name=pathlib.Path(path).name.split(".")[0])


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return number


_share.__name__ = "share"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument(
        "--graphs",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files, or folders of them (default: all examples)",
    )
    parser.add_argument(
        "--objective",
        action="append",
        choices=("makespan", "peak-memory"),
        help="objective of the plans; may be repeated (default: both)",
    )
    parser.add_argument(
        "--evaluations", type=count, default=5000, help="budget of each search (default 5000)"
    )
    parser.add_argument(
        "--max-share",
        type=_share,
        default=MAX_SHARE,
        metavar="X",
        help=f"max_share of regal_jax.contract (default {MAX_SHARE})",
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the searches (default 0)")
    parser.add_argument("--out", metavar="FILE", help="save the rows as JSON, after every graph")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks contract``."""
    if args.out and not pathlib.Path(args.out).absolute().parent.is_dir():
        raise ConfigError(f"--out: no folder for {args.out!r}; make it first")
    rows: list[Row] = []
    count = len(_files(args.graphs)) or len(EXAMPLES)
    try:
        for graph in tqdm(_graphs(args.graphs), total=count, unit="graph", disable=None):
            for objective in args.objective or CASES:
                row = compare_with_original(
                    graph, objective, evaluations=args.evaluations, max_share=args.max_share, seed=args.seed
                )
                rows.append(row)
                if args.out:
                    _save(args, rows)
    finally:
        # Results are saved after Ctrl-C, too.
        if rows:
            print(aligned([_HEAD, *(row.cells() for row in rows)]))
            print(summary(rows))
    return 0


def _save(args: argparse.Namespace, rows: Sequence[Row]) -> None:
    settings = {name: getattr(args, name) for name in ("evaluations", "max_share", "seed")}
    document = {
        "schema": "regal_jax.benchmarks.contract",
        **environment(),
        "settings": settings,
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    pathlib.Path(args.out).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
