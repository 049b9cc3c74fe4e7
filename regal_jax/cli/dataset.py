"""``regal-jax dataset``: build REGAL's synthetic set, or describe a set. Heavy imports are local."""

import argparse
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regal_jax.checks import counted
from regal_jax.cli import machine
from regal_jax.cli.arguments import Subparsers, add_out, count, seed
from regal_jax.cli.progress import progress_bars
from regal_jax.runtime.cores import available_cores

if TYPE_CHECKING:
    from regal_jax.graph import ComputationGraph

__all__ = ["add_dataset"]

_BUILD_EPILOG = """\
A set is a folder with train/, validation/ and test/, each with files graph_HASH.pbtxt (with --archive:
train.tar.gz, ...) and manifest.json. No topology occurs twice. The files depend on the settings alone,
not on --jobs. A build that was stopped or killed resumes when the same command is run again.

The filter keeps a graph in which BRKGA finds a plan 20 % faster with the high limit of evaluations than with
the low one. The filter takes nearly all of the time. Without --jobs it uses all cores or accelerators;
several jobs share the cores of a CPU.

examples:
  regal-jax dataset build --out synthetic   REGAL's 10000/1000/1000, filtered
  regal-jax dataset build --out small --train 100 --validation 10 --test 10 --no-filter
  regal-jax dataset show synthetic
"""


def add_dataset(subparsers: Subparsers) -> None:
    """Adds the command to the parser."""
    dataset = subparsers.add_parser(
        "dataset",
        help="build a synthetic set of graphs, or describe a set",
        description="Sets of graphs: build REGAL's synthetic set, or describe one on disk.",
    )
    commands = dataset.add_subparsers(dest="dataset_command", required=True, metavar="COMMAND")
    build = commands.add_parser(
        "build",
        help="build REGAL's synthetic set",
        description="Build REGAL's synthetic set: random graphs of four kinds, filtered, no topology twice.",
        epilog=_BUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_out(build, "a new folder, or one of a build to resume")
    for split, size in (("train", 10_000), ("validation", 1000), ("test", 1000)):
        build.add_argument(
            f"--{split}", type=_size, default=size, metavar="N", help=f"number of graphs (default {size})"
        )
    build.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (default 0)")
    build.add_argument("--jobs", type=count, default=1, help="worker processes (default 1)")
    build.add_argument(
        "--low-limit", type=count, metavar="N", help="evaluations of the low limit (default 1000)"
    )
    build.add_argument(
        "--high-limit", type=count, metavar="N", help="evaluations of the high limit (default 10000)"
    )
    build.add_argument(
        "--improvement", type=float, metavar="X", help="share that the high limit must save (default 0.2)"
    )
    build.add_argument(
        "--filter-seed",
        type=seed,
        metavar="N",
        help="seed of the filter's searches (default 2020001, which no evaluation has)",
    )
    build.add_argument("--no-filter", action="store_true", help="keep every graph")
    build.add_argument(
        "--archive", action="store_true", help="write one .tar.gz per split instead of a folder"
    )
    build.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    build.set_defaults(run=_build)
    show = commands.add_parser(
        "show",
        help="describe a set",
        description="Read all graphs of a folder, a .tar.gz or a single file, and describe them.",
    )
    show.add_argument("path", metavar="PATH", help="folder, .tar, .tar.gz, .tgz, or a graph's file")
    show.set_defaults(run=_show)


def _size(text: str) -> int:
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {number}")
    return number


_size.__name__ = "whole number"


def _build(args: argparse.Namespace) -> int:
    from regal_jax.datasets import build_set

    keep = _filter(args)
    manifest = build_set(
        args.out,
        sizes={"train": args.train, "validation": args.validation, "test": args.test},
        seed=args.seed,
        keep=keep,
        filter_settings=None if keep is None else keep.as_document(),
        jobs=args.jobs,
        archive=args.archive,
        progress=progress_bars(quiet=args.quiet),
    )
    if not args.quiet:
        print("\n".join(_summary(manifest)))
        print(f"saved to {args.out}")
    return 0


def _filter(args: argparse.Namespace) -> Any:
    from regal_jax.errors import ConfigError

    limits = {
        "low": args.low_limit,
        "high": args.high_limit,
        "improvement": args.improvement,
        "seed": args.filter_seed,
    }
    limits = {name: value for name, value in limits.items() if value is not None}
    if args.no_filter:
        if limits:
            raise ConfigError("--no-filter keeps every graph; leave out the limits of the filter")
        return None
    if args.jobs == 1:
        machine.use_all_cores()
    elif "JAX_NUM_CPU_DEVICES" not in os.environ:
        # The worker processes read this variable; each gets its share of the cores.
        os.environ["JAX_NUM_CPU_DEVICES"] = str(max(1, available_cores() // args.jobs))
    from regal_jax.datasets import RoomForImprovement

    return RoomForImprovement(**limits)


def _summary(manifest: dict[str, Any]) -> list[str]:
    lines = [", ".join(f"{size} {split}" for split, size in manifest["splits"].items() if size)]
    width = max(map(len, manifest["candidates"]))
    for topology, row in manifest["candidates"].items():
        lines.append(f"  {topology:{width}}  {row['kept']} kept, {row['rejected']} rejected")
    if manifest["repeated"]:
        lines.append(f"  {manifest['repeated']} candidates had the topology of an earlier graph")
    return lines


def _show(args: argparse.Namespace) -> int:
    from regal_jax.datasets import read_set

    found = read_set(args.path, progress=progress_bars())
    splits: dict[str, list[ComputationGraph]] = {}
    for split, graph in zip(found.splits, found.graphs, strict=True):
        splits.setdefault(split, []).append(graph)
    print(f"{args.path}: {counted(len(found.graphs), 'graph')}, {counted(len(found.broken), 'broken file')}")
    for split, graphs in splits.items():
        print("\n".join(_describe(split or "graphs", graphs)))
    return 0


def _describe(split: str, graphs: Sequence["ComputationGraph"]) -> list[str]:
    def span(what: str, numbers: Sequence[float]) -> str:
        return f"  {what:14} {min(numbers):g} to {max(numbers):g}, mean {sum(numbers) / len(numbers):.4g}"

    from regal_jax.graph import topology_hash

    return [
        f"{split}: {counted(len(graphs), 'graph')}, "
        + counted(len(set(map(topology_hash, graphs))), "topology", "topologies"),
        span("ops", [g.num_ops for g in graphs]),
        span("tensors", [g.num_tensors for g in graphs]),
        span("data edges", [len(g.edge_op) for g in graphs]),
        span("control edges", [len(g.control_source) for g in graphs]),
        span("bytes", [int(g.tensor_bytes.sum()) for g in graphs]),
    ]
