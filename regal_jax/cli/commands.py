"""What each command of ``regal-jax`` does. Heavy imports stay inside: ``--help`` must be quick."""

import argparse
import os
import pathlib
import sys
from importlib import metadata
from typing import TYPE_CHECKING, Any

from regal_jax.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from regal_jax.graph import Cluster, ComputationGraph

__all__ = ["Version", "convert", "generate", "optimize", "show", "verify"]

INFEASIBLE = 3
REFUTED = 1


class Version(argparse.Action):
    """Prints the versions of what the results depend on."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        names = ("regal-jax", "jax", "jaxlib", "numpy")
        print("\n".join(f"{name} {metadata.version(name)}" for name in names))
        parser.exit()


def _load(args: argparse.Namespace) -> "ComputationGraph":
    from regal_jax.importers import load_graph

    if args.file is not None:
        if args.example is not None:
            raise ConfigError("give a file or --example, not both")
        options = {} if args.profile is None else {"profile": args.profile}
        if options and args.format != "onnx" and not args.file.lower().endswith((".onnx", ".onnx.gz")):
            raise ConfigError("--profile is for examples and ONNX models; this file has runtimes of its own")
        return load_graph(args.file, format=args.format, **options)
    from regal_jax.examples import DEFAULT_EXAMPLE, load_example

    return load_example(args.example or DEFAULT_EXAMPLE, profile=args.profile or "h200")


def _cluster(args: argparse.Namespace) -> "Cluster":
    from regal_jax.graph import Cluster

    capacities = args.memory.split(",")
    if len(capacities) not in (1, args.devices):
        raise ConfigError(f"--memory: {len(capacities)} capacities for {args.devices} devices; give 1 or all")
    uniform = Cluster.uniform(args.devices, capacities[0], args.transfer)
    if len(capacities) == 1:
        return uniform
    return Cluster(tuple(capacities), uniform.transfer, uniform.latency, uniform.bandwidth)


def _check_writable(*paths: str | None) -> None:
    """Finds out before a long search, not after it, that its result cannot be saved."""
    for path in paths:
        if path is None:
            continue
        if not path:
            raise ConfigError("cannot write '': give the name of a file")
        folder = pathlib.Path(path).absolute().parent
        if not folder.is_dir():
            raise ConfigError(f"cannot write {path!r}: no folder {str(folder)!r}; make it first")
        if pathlib.Path(path).exists() and not pathlib.Path(path).is_file():
            blocked = pathlib.Path(path).is_dir() or not os.access(path, os.W_OK)  # Else a pipe, say.
        else:
            blocked = not os.access(folder, os.W_OK)
        if blocked:
            raise ConfigError(f"cannot write {path!r}: it is a folder, or its folder is read-only")


def _check_plot(path: str | None) -> None:
    """Finds out before a long search that a picture cannot be drawn, or not in that format."""
    _check_writable(path)
    if path is None:
        return
    from regal_jax.viz import picture_formats

    suffix = pathlib.Path(path).suffix
    if suffix[1:].lower() not in picture_formats():
        raise ConfigError(f"cannot draw {path!r}: no picture is of kind {suffix!r}; use .png, .pdf or .svg")


def _use_compilation_cache() -> None:
    """Keeps compiled programs between runs of the command, under the user's cache folder."""
    import jax

    root = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    jax.config.update("jax_compilation_cache_dir", str(pathlib.Path(root) / "regal_jax" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)


def optimize(args: argparse.Namespace) -> int:
    """``regal-jax optimize``."""
    _check_writable(args.out, args.trace)
    _check_plot(args.plot)
    cluster = _cluster(args)
    graph = _load(args)
    if not args.quiet:
        print(graph)
    from regal_jax.api import optimize as search

    _use_compilation_cache()
    plan = search(
        graph,
        cluster,
        objective=args.objective,
        evaluations=args.evaluations,
        key=args.seed,
        method=args.method,
        policy=None,
        warm_start=not args.no_warm_start,
        time_limit=args.time_limit,
        progress=not args.quiet and sys.stderr.isatty(),
    )
    plan.verify(graph)
    if args.out:
        plan.save(args.out)
    if args.plot:
        plan.plot(args.plot)
    if args.trace:
        plan.save_trace(args.trace)
    if not args.quiet:
        print(plan)
        for what, path in (("plan", args.out), ("plot", args.plot), ("trace", args.trace)):
            if path:
                print(f"{what} saved to {path}")
    if plan.feasible:
        return 0
    from regal_jax.graph.units import format_bytes

    excess = ", ".join(
        f"device {k} by {format_bytes(b)} ({b:.0f} bytes)" for k, b in enumerate(plan.overflow) if b
    )
    print(f"regal-jax optimize: no plan found fits the memory; the best overflows {excess}", file=sys.stderr)
    return INFEASIBLE


def convert(args: argparse.Namespace) -> int:
    """``regal-jax import``."""
    from regal_jax.importers import save_graph

    _check_writable(args.out)
    graph = _load(args)
    save_graph(graph, args.out)
    print(f"{graph}\nsaved to {args.out}")
    return 0


def show(args: argparse.Namespace) -> int:
    """``regal-jax show``."""
    if args.file is None and args.example is None:
        from regal_jax.examples import EXAMPLES

        width = max(map(len, EXAMPLES))
        print("examples (regal-jax optimize --example NAME):")
        print("\n".join(f"  {name:{width}}  {e.description}" for name, e in EXAMPLES.items()))
        return 0
    if args.file is not None and args.format is None and _is_plan(args.file):
        from regal_jax.plan import Plan

        plan = Plan.load(args.file)
        print(plan)
        if args.plot:
            plan.plot(args.plot)
        return 0
    if args.plot:
        raise ConfigError("--plot draws plans; this is a graph: run 'regal-jax optimize' on it first")
    print(_describe(_load(args)))
    return 0


def _is_plan(path: str) -> bool:
    if not path.endswith(".json"):
        return False
    try:
        with open(path, encoding="utf-8") as file:
            return '"regal_jax.plan"' in file.read(4096)
    except UnicodeDecodeError:
        raise FormatError(f"{path}: not UTF-8 text") from None


def _describe(graph: "ComputationGraph") -> str:
    from collections import Counter

    from regal_jax.graph.units import format_bytes, format_time
    from regal_jax.plan import critical_path

    kinds = ", ".join(f"{kind or '(none)'} {count}" for kind, count in Counter(graph.op_kinds).most_common(8))
    fastest = graph.runtime.min(axis=1) if graph.runtime.ndim == 2 else graph.runtime
    lines = [
        str(graph),
        f"  work            {format_time(float(fastest.sum()), graph.time_unit)}",
        f"  critical path   {format_time(critical_path(graph, fastest), graph.time_unit)}",
        f"  tensors         {format_bytes(float(graph.tensor_bytes.sum()))}, "
        f"of which kept {format_bytes(float(graph.tensor_bytes[graph.tensor_keep].sum()))}",
        f"  kinds           {kinds}",
        f"  hash            {graph.content_hash}",
    ]
    return "\n".join(lines)


def verify(args: argparse.Namespace) -> int:
    """``regal-jax verify``."""
    from regal_jax.errors import PlanError
    from regal_jax.plan import Plan

    plan = Plan.load(args.plan)
    graph = _load(args)
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
    from regal_jax.importers import save_graph

    _check_writable(args.out)
    graph = make(args.family, args.ops, seed=args.seed)
    save_graph(graph, args.out)
    print(f"{graph}\nsaved to {args.out}")
    return 0
