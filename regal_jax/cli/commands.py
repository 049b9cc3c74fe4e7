"""The small commands of ``regal-jax``. Heavy imports are local, so that ``--help`` is quick."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import TYPE_CHECKING, Any

from regal_jax.cli.sources import check_writable, load, refuse_file_options
from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.compression import beginning
from regal_jax.storage.reading import check_regular

if TYPE_CHECKING:
    from regal_jax.graph import ComputationGraph

__all__ = ["Version", "convert", "generate", "show", "verify"]

REFUTED = 1


class Version(argparse.Action):
    """Prints the versions of all packages on which results depend."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        names = ("regal-jax", "jax", "jaxlib", "numpy")
        print("\n".join(f"{name} {metadata.version(name)}" for name in names))
        parser.exit()


def convert(args: argparse.Namespace) -> int:
    """``regal-jax import``."""
    check_writable(args.out, inputs=[args.file])
    return _save(load(args.file, args), args)


def _save(graph: "ComputationGraph", args: argparse.Namespace) -> int:
    from regal_jax.importers import find_format, save_graph

    if args.lossy and not find_format(args.out).lossy:
        raise ConfigError(f"--lossy is for .pbtxt and .stg; {args.out!r} is neither, leave it out")
    options: dict[str, Any] = {"lossy": True} if args.lossy else {}
    save_graph(graph, args.out, **options)
    print(f"{graph}\nsaved to {args.out}")
    return 0


def show(args: argparse.Namespace) -> int:
    """``regal-jax show``."""
    check_writable(args.plot, inputs=[args.file])
    if args.plot:
        from regal_jax.viz import check_picture

        check_picture(args.plot)
    if args.file is None and args.example is None:
        refuse_file_options(args)
        _refuse(args, ("plot", "profile"), "is for a graph or a plan; name a file or --example")
        from regal_jax.examples import EXAMPLES

        width = max(map(len, EXAMPLES))
        print("examples (regal-jax optimize --example NAME):")
        print("\n".join(f"  {name:{width}}  {e.description}" for name, e in EXAMPLES.items()))
        return 0
    if args.file is not None and args.format is None and _is_plan(args.file):
        _refuse(
            args,
            ("example", "profile", "dim", "in_place"),
            f"has no meaning for the plan {args.file!r}; leave it out",
        )
        from regal_jax.plan import Plan

        plan = Plan.load(args.file)
        print(plan)
        if args.plot:
            plan.plot(args.plot)
        return 0
    graph = load(args.file, args)
    print(_describe(graph))
    if args.plot:
        graph.plot(args.plot)
    return 0


def _refuse(args: argparse.Namespace, options: Sequence[str], reason: str) -> None:
    for option in options:
        if getattr(args, option):
            raise ConfigError(f"--{option.replace('_', '-')} {reason}")


def _is_plan(path: str) -> bool:
    try:
        check_regular(path)
        with open(path, "rb") as file:
            return b'"regal_jax.plan"' in beginning(file.read(4096))
    except (FormatError, OSError):
        return False  # What reads graphs says why.


def _describe(graph: "ComputationGraph") -> str:
    from collections import Counter

    from regal_jax.graph.arrays import fastest_runtimes
    from regal_jax.graph.units import format_bytes, format_time
    from regal_jax.plan import critical_path

    kinds = ", ".join(f"{kind or '(none)'} {count}" for kind, count in Counter(graph.op_kinds).most_common(8))
    fastest = fastest_runtimes(graph)
    lines = [
        str(graph),
        f"  work            {format_time(float(fastest.sum()), graph.time_unit)}",
        f"  critical path   {format_time(critical_path(graph, fastest), graph.time_unit)}",
        f"  tensors         {format_bytes(float(graph.tensor_bytes.sum()))}, "
        f"of which kept {format_bytes(float(graph.tensor_bytes[graph.tensor_keep].sum()))}, "
        f"resident {format_bytes(float(graph.tensor_bytes[graph.tensor_resident].sum()))}",
        f"  kinds           {kinds}",
        f"  hash            {graph.content_hash}",
    ]
    return "\n".join(lines)


def verify(args: argparse.Namespace) -> int:
    """``regal-jax verify``."""
    from regal_jax.errors import PlanError
    from regal_jax.plan import Plan

    plan = Plan.load(args.plan)
    graph = load(args.file, args)
    if args.file is None and args.example is None and plan.graph_name != graph.name:
        raise ConfigError(f"{args.plan} is a plan of {plan.graph_name!r}; name the file of that graph, too")
    try:
        plan.verify(graph)
    except PlanError as error:
        print(f"regal-jax verify: {args.plan} does not hold: {error}", file=sys.stderr)
        return REFUTED
    print(plan)
    print("verified: the exact replay agrees with every event, time and memory figure")
    return 0


def generate(args: argparse.Namespace) -> int:
    """``regal-jax generate``."""
    from regal_jax.datasets import generate as make

    check_writable(args.out)
    return _save(make(args.family, args.ops, seed=args.seed), args)
