"""``regal-jax optimize``: one graph, or many. Heavy imports are local, so that ``--help`` is quick."""

import argparse
import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from regal_jax.cli import machine
from regal_jax.cli.clusters import cluster_of
from regal_jax.cli.resume import Previous, Question, SoFar, previous_results
from regal_jax.cli.sources import check_writable, load, made_folder
from regal_jax.cli.watch import Incoming, pause
from regal_jax.engines import check_engine_name, opened
from regal_jax.errors import ConfigError
from regal_jax.runtime.interrupts import first_interrupt_waits, interruptible
from regal_jax.storage.locks import locked

if TYPE_CHECKING:
    from regal_jax.graph import Cluster, ComputationGraph
    from regal_jax.plan import Plan
    from regal_jax.solvers import Solver

__all__ = ["optimize"]

BAD_INPUT, INFEASIBLE = 2, 3
_PLAN = ".plan.json"
"""End of the name of a plan in the folder of the plans."""
_STORE = ".plans"
"""Folder in that of the plans, where they are kept under the hashes of their graphs."""


def optimize(args: argparse.Namespace) -> int:
    """``regal-jax optimize``."""
    with machine.rare_collections(), interruptible():
        return _optimize(args)


def _optimize(args: argparse.Namespace) -> int:
    outs = _outs(args)
    check_writable(*outs, args.trace, args.plot, inputs=[*args.files, args.policy])
    # A plan may replace one that the search starts from; a picture may not.
    check_writable(args.trace, args.plot, inputs=args.warm_start or ())
    if args.plot is not None:
        from regal_jax.viz import check_picture

        check_picture(args.plot)
    # Plans in the folder are read before the search and replaced after it.
    folder = contextlib.nullcontext() if args.out_dir is None else locked(pathlib.Path(args.out_dir))
    with folder:
        return _searched(args, outs)


def _searched(args: argparse.Namespace, outs: list[str | None]) -> int:
    """Searches, and saves the plans in ``outs``."""
    cluster = cluster_of(args)
    with opened(args.engine) as args.workers:
        return _planned(args, cluster, outs)


def _planned(args: argparse.Namespace, cluster: "Cluster", outs: list[str | None]) -> int:
    if args.watch is not None:
        return _watched(args, cluster)
    if not args.files:
        machine.use_all_cores()  # Tracing an example may start JAX.
    graphs = [load(file, args) for file in args.files or [None]]
    previous: list[Previous | None] = [None] * len(graphs)
    if args.out_dir is not None:
        previous = previous_results(graphs, _question(args, cluster), [out for out in outs if out])
    machine.use_all_cores()
    options = _options(args, previous)
    if len(graphs) > 1 or args.workers is not None:
        return _many(args, graphs, cluster, list(zip(outs, previous, strict=True)), options)
    return _one(args, graphs[0], cluster, (outs[0], previous[0]), options)


def _question(args: argparse.Namespace, cluster: "Cluster") -> Question:
    return Question(cluster, args.objective, _pins(args.pin), args.colocate)


def _options(args: argparse.Namespace, previous: Sequence[Previous | None]) -> dict[str, Any]:
    """Arguments of `regal_jax.optimize`."""
    method = _method(args)
    return {
        "objective": args.objective,
        "evaluations": args.evaluations,
        "seed": args.seed,
        "method": method,
        "policy": args.policy,
        "warm_start": _warm_start(args, previous, method),
        "contract": args.contract,
        "pin": _pins(args.pin),
        "colocate": args.colocate,
        "time_limit": args.time_limit,
        "runs": args.runs,
        "progress": not args.quiet and sys.stderr.isatty(),
    }


def _warm_start(
    args: argparse.Namespace, previous: Sequence[Previous | None], method: "Solver | None"
) -> Any:
    """Starts of the search: heuristics, named plans, and plans of an earlier run."""
    if args.no_warm_start:
        if args.warm_start:
            raise ConfigError("give --warm-start or --no-warm-start, not both")
        return False
    # A method without a search has no starts. If a plan was named for it, `optimize` raises the error.
    found = [before.plan for before in previous if before] if method is None or method.searches else []
    return [*(args.warm_start or []), *found] or True


def _method(args: argparse.Namespace) -> "Solver | None":
    """The named method with its settings; ``None`` if `optimize` chooses."""
    from regal_jax.solvers import parse_settings, solver, with_settings

    if args.method is None and not args.set:
        return None
    own = args.policy not in (None, "none", "default")
    name = args.method or ("brkga" if own else "auto")
    return with_settings(solver(name), parse_settings(args.set))


def _outs(args: argparse.Namespace) -> list[str | None]:
    """The output path of each graph's plan; rejects options that have no meaning for several graphs."""
    count = len(args.files)
    check_engine_name(args.engine)
    if args.engine != "local" and args.out_dir is None:
        raise ConfigError("--engine: name the folder of the plans with --out-dir")
    if args.every is not None and args.watch is None:
        raise ConfigError("--every: goes with --watch; give both or neither")
    if args.watch is not None:
        for option, given in (
            ("a file", args.files), ("--example", args.example), ("--out", args.out), ("--plot", args.plot),
            ("--trace", args.trace), ("--warm-start", args.warm_start),
        ):  # fmt: skip
            if given:
                raise ConfigError(f"--watch: serves the graphs of a folder; leave out {option}")
        if args.out_dir is None:
            raise ConfigError("--watch: name the folder of the plans with --out-dir")
    if count > 1:
        for option, remedy in (
            ("out", "name a folder with --out-dir"),
            ("plot", "draw saved plans with 'regal-jax show PLAN --plot FILE'"),
            ("trace", "run 'regal-jax optimize' on one graph"),
        ):
            if getattr(args, option) is not None:
                raise ConfigError(f"--{option} names one file, but there are {count} graphs; {remedy}")
    if args.out_dir is None:
        return [args.out] * max(count, 1)
    if args.out is not None:
        raise ConfigError("give --out or --out-dir, not both")
    if args.example is not None and args.files:
        raise ConfigError("give a file or --example, not both")
    if args.files or args.watch is not None:
        names = [_stem(file) for file in args.files]
    else:
        from regal_jax.examples import DEFAULT_EXAMPLE

        names = [args.example or DEFAULT_EXAMPLE]
    twice = next((name for i, name in enumerate(names) if name in names[:i]), None)
    if twice is not None:
        raise ConfigError(f"--out-dir: several graphs are called {twice!r}; rename one or run them apart")
    made_folder(args.out_dir)
    return [_plan_path(args.out_dir, name) for name in names]


def _plan_path(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}{_PLAN}")


def _stem(file: str) -> str:
    name = pathlib.Path(file).name
    return pathlib.Path(name[:-3] if name.lower().endswith(".gz") else name).stem


def _pins(given: Sequence[tuple[str, list[int]]]) -> dict[str, list[int]]:
    pins = dict(given)
    if len(pins) < len(given):
        raise ConfigError("--pin: a pattern occurs twice; name all of its devices at once: PATTERN=0,1")
    return pins


def _one(
    args: argparse.Namespace,
    graph: "ComputationGraph",
    cluster: "Cluster",
    out: tuple[str | None, Previous | None],
    options: dict[str, Any],
) -> int:
    from regal_jax.api import optimize as search

    if not args.quiet:
        print(graph)
    with SoFar([out]) as so_far:
        see = so_far.callback
        plan = search(graph, cluster, **options, on_improvement=see and functools.partial(see, 0))
    with first_interrupt_waits():
        plan.verify(graph)
        said = []
        try:
            plan, saved = so_far.save(0, plan)
            said.append(saved)
            if args.plot:
                plan.plot(args.plot)
                said.append(f"plot saved to {args.plot}")
            if args.trace:
                plan.save_trace(args.trace)
                said.append(f"trace saved to {args.trace}")
        finally:  # What was found is shown even if it cannot be written.
            if not args.quiet:
                print("\n".join(filter(None, [str(plan), *said])))
        return _report_overflow(args, plan)


def _many(
    args: argparse.Namespace,
    graphs: Sequence["ComputationGraph"],
    cluster: "Cluster",
    outs: Sequence[tuple[str | None, Previous | None]],
    options: dict[str, Any],
) -> int:
    """Saves each plan as soon as it is found, since a batch may take hours and may be killed."""
    names = args.files or [graphs[0].name]
    with SoFar(outs) as so_far:
        if args.workers is None:
            options["on_improvement"] = so_far.callback
        finished = _search_many(args, names, graphs, cluster, so_far, options)
    return max(_report_overflow(args, finished[i], f" for {file}") for i, file in enumerate(names))


def _search_many(
    args: argparse.Namespace,
    files: Sequence[str],
    graphs: Sequence["ComputationGraph"],
    cluster: "Cluster",
    so_far: SoFar,
    options: dict[str, Any],
) -> dict[int, "Plan"]:
    """Saves and reports each plan; returns the better of it and the one that the folder held."""
    from tqdm import tqdm

    from regal_jax.api import optimize_many
    from regal_jax.plan.summary import headline

    finished: dict[int, Plan] = {}

    def finish(member: int, plan: "Plan") -> None:
        plan.verify(graphs[member])
        saved = ""
        try:
            plan, saved = so_far.save(member, plan)
        finally:  # What was found is shown even if it cannot be written.
            if not args.quiet:
                line = "; ".join(filter(None, [headline(plan), saved]))
                tqdm.write(f"{files[member]}: {line}")  # Above a progress bar.
                sys.stdout.flush()
        finished[member] = plan

    if args.workers is not None:
        options["engine"], options["store"] = args.workers, os.path.join(args.out_dir, _STORE)
    plans = optimize_many(graphs, cluster, **options, on_plan=finish)
    with first_interrupt_waits():
        for member in set(range(len(plans))) - finished.keys():  # A second Ctrl-C came during the saving.
            finish(member, plans[member])
    return finished


def _watched(args: argparse.Namespace, cluster: "Cluster") -> int:
    """Serves the graphs of a folder until Ctrl-C or SIGTERM."""
    from regal_jax.importers import FORMATS

    suffixes = tuple(suffix for each in FORMATS.values() for suffix in each.suffixes)
    suffixes += tuple(f"{suffix}.gz" for suffix in suffixes)
    # Both folders may be the same.
    passed = _PLAN if os.path.realpath(args.watch) == os.path.realpath(args.out_dir) else ()
    incoming = Incoming(
        args.watch, lambda name: name.lower().endswith(suffixes) and not name.endswith(passed)
    )
    owner: dict[str, str] = {}
    code = 0
    if not args.quiet:
        print(f"watching {args.watch}; Ctrl-C ends it", flush=True)
    try:
        while True:
            files = incoming.take()
            if files:
                served, interrupted = _serve(args, files, cluster, owner)
                code = max(code, served)
                if interrupted:
                    break
            else:
                pause(1.0 if args.every is None else args.every)
    except KeyboardInterrupt:
        pass
    return code


def _serve(
    args: argparse.Namespace, files: Sequence[str], cluster: "Cluster", owner: dict[str, str]
) -> tuple[int, bool]:
    """Plans the graphs of ``files``; an error costs only its file.

    Args:
      args: Arguments of the command.
      files: Paths of graphs.
      cluster: Their cluster.
      owner: Name of a plan -> path of its graph. New names are added.

    Returns:
      The exit code so far, and whether Ctrl-C ended the search.
    """
    code = 0
    batch: list[tuple[str, ComputationGraph, tuple[str, Previous | None]]] = []

    def failed(file: str, error: Exception) -> None:
        nonlocal code
        code = max(code, BAD_INPUT)
        text = " ".join(str(error).split()).removeprefix(f"{file}: ")
        print(f"regal-jax {args.command}: {file}: {text}", file=sys.stderr, flush=True)

    for file in files:
        name = _stem(file)
        try:
            if owner.setdefault(name, file) != file:
                raise ConfigError(f"its plan would be that of {owner[name]!r}; rename one")
            graph = load(file, args)
            out = _plan_path(args.out_dir, name)
            (previous,) = previous_results([graph], _question(args, cluster), [out])
        except (ValueError, ImportError, OSError) as error:
            failed(file, error)
            continue
        if previous is not None and previous.holds and previous.finished:
            if not args.quiet:
                print(f"{file}: has a plan in {out}", flush=True)
            continue
        batch.append((file, graph, (out, previous)))
    machine.use_all_cores()
    try:
        found = _search_batch(args, batch, cluster)
    except (ValueError, RuntimeError) as error:
        if len(batch) == 1:
            failed(batch[0][0], error)
            return code, False
        # One of the graphs cannot be planned; the others can.
        found = {}
        for one in batch:
            try:
                found |= _search_batch(args, [one], cluster)
            except (ValueError, RuntimeError) as error:
                failed(one[0], error)
    for file, plan in found.items():
        code = max(code, _report_overflow(args, plan, f" for {file}"))
    return code, any(plan.provenance.get("stopped") == "interrupted" for plan in found.values())


def _search_batch(
    args: argparse.Namespace,
    batch: Sequence[tuple[str, "ComputationGraph", tuple[str, Previous | None]]],
    cluster: "Cluster",
) -> dict[str, "Plan"]:
    if not batch:
        return {}
    files, graphs, outs = zip(*batch, strict=True)
    options = _options(args, [previous for _, previous in outs])
    found = _search_many(args, files, graphs, cluster, SoFar(outs), options)
    return {files[i]: plan for i, plan in found.items()}


def _report_overflow(args: argparse.Namespace, plan: "Plan", where: str = "") -> int:
    if plan.feasible:
        return 0
    from regal_jax.plan.summary import shortage

    print(f"regal-jax {args.command}: {shortage(plan, where)}", file=sys.stderr)
    return INFEASIBLE
