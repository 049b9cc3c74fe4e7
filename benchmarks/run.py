"""The command ``run``: a progress bar, a table, a file."""

import argparse
import pathlib
import sys

import jax
from tqdm import tqdm

from benchmarks.cases import SIZES, select
from benchmarks.environment import environment
from benchmarks.measure import Options, measure
from benchmarks.peers import check_peer
from benchmarks.results import Record, Results, save
from benchmarks.table import HEAD, aligned, lines
from benchmarks.throughput import check_implementation
from benchmarks.timing import Skipped
from regal_jax.cli.arguments import count
from regal_jax.errors import ConfigError

__all__ = ["add_arguments", "run"]


def _options(args: argparse.Namespace) -> Options:
    """Checks the options before any measurement.

    Raises:
      ConfigError: An implementation, peer or folder is unknown or unusable.
    """
    smoke = args.size == "smoke"
    for name in args.implementation:
        try:
            check_implementation(name)
        except Skipped as reason:
            raise ConfigError(f"--implementation {name}: {reason}") from None
    for option, path in (("--out", args.out), ("--profile", args.profile)):
        folder = pathlib.Path(path or ".").absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"{option}: no folder {str(folder)!r}; make it first")
    return Options(
        repeats=args.repeat or (1 if smoke else 5),
        implementations=tuple(dict.fromkeys(args.implementation)),
        peer=None if args.peer is None else check_peer(args.peer),
        profile=args.profile,
        fresh=not smoke,
    )


def _describe(results: Results) -> str:
    e = results.environment
    hardware, versions = e["hardware"], e["versions"]
    commit = (
        "no commit" if e["commit"] is None else e["commit"][:10] + (" with changes" if e["dirty"] else "")
    )
    load = "unknown" if e["load_average"] is None else f"{e['load_average'][0]:.2f}"
    return (
        f"{commit}, jax {versions['jax']}, python {versions['python']}; {hardware['cpu']}, "
        f"{hardware['cores']} cores, {hardware['accelerator'] or 'no accelerator'}; load {load}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="sections, or names with wildcards")
    parser.add_argument(
        "--size", choices=SIZES, default="default", help="size of the benchmarks (default: default)"
    )
    parser.add_argument("--out", metavar="FILE", help="save the results as JSON, after every benchmark")
    parser.add_argument("--profile", type=pathlib.Path, metavar="DIR", help="save profiler traces in DIR")
    parser.add_argument(
        "--implementation",
        action="append",
        default=[],
        metavar="NAME",
        help="implementation of the simulator; may be repeated (default: chosen by platform)",
    )
    parser.add_argument("--repeat", type=count, metavar="R", help="rounds (default 5; smoke 1)")
    parser.add_argument("--peer", metavar="BINARY", help="a program to run in turns, see docs/benchmarks.md")


def run(args: argparse.Namespace) -> int:
    """``python -m benchmarks run``."""
    chosen, options = select(args.patterns, args.size), _options(args)
    settings = {
        "patterns": args.patterns,
        "size": args.size,
        "repeats": options.repeats,
        "implementations": list(options.implementations),
        "peer": options.peer is not None,
    }
    # With a program on disk, a first call would not measure the compiler.
    enabled = jax.config.jax_enable_compilation_cache  # pyright: ignore[reportAttributeAccessIssue]
    jax.config.update("jax_enable_compilation_cache", False)
    results = Results(environment(), settings, [])
    print(_describe(results))
    try:
        with tqdm(chosen, unit="benchmark", disable=not sys.stderr.isatty(), dynamic_ncols=True) as bar:
            for benchmark in bar:
                bar.set_description(benchmark.name)
                results.records.append(measure(benchmark, options))
                if args.out:
                    save(results, args.out)
    finally:
        jax.config.update("jax_enable_compilation_cache", enabled)
        # Results are saved after Ctrl-C, too.
        if results.records:
            print(_table(results.records))
    if not any(record.series for record in results.records):
        reasons = {why for record in results.records for why in record.skipped.values()}
        raise ConfigError(f"nothing could be measured: {'; '.join(sorted(reasons))}")
    if args.out:
        print(f"results saved to {args.out}")
    return 0


def _table(records: list[Record]) -> str:
    return aligned([HEAD, *(row for record in records for row in lines(record))])
