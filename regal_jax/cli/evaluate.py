"""``regal-jax evaluate`` and ``regal-jax tune``. Heavy imports are local."""

import argparse
import dataclasses
import json
import pathlib
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from regal_jax.checks import counted, shown
from regal_jax.cli import machine
from regal_jax.cli.arguments import Subparsers, add_engine, add_out, count, positive, seconds, seed
from regal_jax.cli.progress import progress_bars
from regal_jax.errors import InfeasiblePlanWarning
from regal_jax.runtime.interrupts import interruptible

if TYPE_CHECKING:
    from regal_jax.experiments import EvaluationConfig

__all__ = ["add_evaluate"]

INTERRUPTED = 130

_EVALUATE_EPILOG = """\
methods: all of 'regal-jax optimize --method' (brkga always), gp-dfs, tuned-brkga, brkga-quick-start, idrs,
gas, regal-faithful, regal-primed, and brkga-NUMBERk such as brkga-20k.
A method that cannot run (no policy, no tuned settings, no OR-Tools) is left out, with the reason.

DIR gets results.jsonl, table.md, table.csv, graphs.csv, summary.json and pictures. A run that was stopped or
killed resumes when the same command runs again; other settings add what is missing.
docs/evaluation.md defines each figure.

examples:
  regal-jax evaluate --suite table-1-synthetic-makespan --small --graphs fresh --out table-1
  regal-jax evaluate --graphs synthetic/test --policy mine=policy.safetensors --out results
  regal-jax evaluate --graphs corpus --objective peak-memory --memory 16GiB --seeds 0,1,2 --out results
  regal-jax evaluate --graphs corpus --devices 4 --transfer nvlink4 --capacity 1.2 --out results
  regal-jax evaluate --graphs sample --limit 5 --methods brkga,auto --limits none --out quick
  regal-jax evaluate --suite realistic --cases 60 --methods auto --out realistic
  regal-jax evaluate --suite topological-order --graphs corpus --weights topoformer=default --out orders
  regal-jax evaluate --suite robust-scheduling --graphs corpus --weights gflownet=default --out robust
  regal-jax evaluate --config evaluation.toml --graphs corpus --out results
  regal-jax evaluate --out results --report-only
"""

_TUNE_EPILOG = """\
The grid is that of Goncalves and Resende: population, elites, mutants and elite_bias. A run that was stopped
resumes: FILE.points.jsonl holds what is finished.

examples:
  regal-jax tune --graphs synthetic/train --limit 100 --out tuned.json
  regal-jax tune --graphs corpus --grid population=50,100 --grid elite_bias=0.6,0.7 --out tuned.json
"""


def add_evaluate(subparsers: Subparsers) -> None:
    """Adds both commands to the parser."""
    evaluate = subparsers.add_parser(
        "evaluate",
        help="compare methods on a set of graphs, as the REGAL papers do",
        description="Run methods side by side on a set of graphs; write tables and pictures of the results.",
        epilog=_EVALUATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_out(evaluate, "a new folder, or one of a run to resume")
    evaluate.add_argument(
        "--config", metavar="FILE", help="settings as TOML; command-line arguments override it"
    )
    _suite(evaluate)
    _problem(evaluate, "test")
    evaluate.add_argument(
        "--capacity",
        type=positive,
        metavar="RATIO",
        help="capacity of each device, relative to an even split of a graph's memory, instead of --memory: "
        "1.2, for example (default: that of --memory)",
    )
    evaluate.add_argument(
        "--memory-ratio",
        type=_ratio,
        metavar="R,...",
        help="with --capacity: the same memory in sum, devices in this ratio: 1,3 (default: equal devices)",
    )
    _methods(evaluate)
    evaluate.set_defaults(run=_evaluate)
    _add_tune(subparsers)


def _suite(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--suite",
        type=_suite_name,
        metavar="NAME",
        help="a table or figure of the papers, such as table-1-synthetic-makespan (an unknown name lists "
        "all), or a kind of experiment: regal (default), realistic, topological-order, robust-scheduling",
    )
    parser.add_argument("--small", action="store_true", help="the size of a table or figure for two cores")
    parser.add_argument(
        "--cases",
        type=count,
        metavar="N",
        help="realistic: the first N cases, a fair sample; orders: layered graphs per size (default 300); "
        "robust scheduling: synthetic graphs per distribution (default 10)",
    )
    parser.add_argument(
        "--sizes",
        type=_numbers(count),
        metavar="N,...",
        help="ops of layered graphs (default 500,1000,2000), of graphs of robust scheduling (default 50)",
    )
    parser.add_argument(
        "--weights",
        action="append",
        type=_pair,
        metavar="NAME=FILE",
        help="weights of a network that orders, or NAME=default; the name of its encoder adds the paper's "
        "figures; for robust scheduling gflownet, ppo, or names such as gflownet:one and gflownet-mine; may "
        "be repeated, there also with one NAME for several trainings",
    )
    for option, number in (("--losses", 4), ("--regimes", 5)):
        parser.add_argument(
            option,
            action="append",
            type=_pair,
            metavar="NAME=FOLDER",
            help=f"robust scheduling: a training folder for Figure {number}; may be repeated",
        )


@interruptible()
def _suite_name(text: str) -> str:
    """The name of a suite, checked here so that it is told before a missing option."""
    from regal_jax.experiments.config import SUITES
    from regal_jax.experiments.suites import suite_names

    names = (*SUITES, *suite_names())
    if text and text not in names:
        raise argparse.ArgumentTypeError(f"there is no {shown(text)}; use one of {', '.join(names)}")
    return text


def _methods(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", type=_names, metavar="A,B,...", help="methods to run (default: all)")
    parser.add_argument(
        "--policy",
        action="append",
        type=_pair,
        metavar="NAME=FILE",
        help="weights of gas or idrs; any other NAME adds a method; FILE may also be regal-faithful, "
        "regal-primed, untrained or untrained-by-hand; a NAME that begins with auto- guides auto, "
        "others brkga; may be repeated",
    )
    parser.add_argument("--tuned", metavar="FILE", help="settings that 'regal-jax tune' found")
    parser.add_argument("--evaluations", type=count, metavar="N", help="budget of a search (default 5000)")
    parser.add_argument(
        "--seeds", type=_numbers(seed), metavar="S,...", help="seeds of the searches (default 0)"
    )
    parser.add_argument(
        "--limits",
        type=_numbers(count, none=True),
        metavar="N,...",
        help="budgets of the curves (default 1000,2000,5000,10000,20000,50000), or none",
    )
    parser.add_argument(
        "--budgets",
        type=_numbers(count, none=True),
        metavar="N,...",
        help="budgets at which every search also runs, for quality.png (default none)",
    )
    parser.add_argument(
        "--cp-sat-seconds", type=seconds, metavar="S", help="time of CP-SAT for each graph (default 60)"
    )
    parser.add_argument(
        "--rounds",
        action="append",
        type=_pair,
        metavar="T=PATH",
        help="training folder or weights file with T rounds of messages; may be repeated",
    )
    parser.add_argument("--chunk", type=count, metavar="N", help="graphs per write of results (default 32)")
    parser.add_argument(
        "--no-warm-up", action="store_true", help="run nothing twice; times then include compilation"
    )
    parser.add_argument(
        "--report-only",
        action="store_true",
        help="run nothing; report the results of the last run, whose settings need not be given again",
    )
    add_engine(parser, "where graphs are planned")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no table")


def _problem(parser: argparse.ArgumentParser, split: str) -> None:
    parser.add_argument(
        "--graphs", metavar="PATH", help="folder, archive, corpus, or 'sample', which is part of the package"
    )
    parser.add_argument("--split", help=f"split of a corpus or of the sample (default {split})")
    parser.add_argument("--limit", type=count, metavar="N", help="only the first N graphs")
    parser.add_argument("--max-ops", type=count, metavar="N", help="leave out larger graphs")
    parser.add_argument("--min-ops", type=count, metavar="N", help="leave out smaller graphs")
    parser.add_argument(
        "--contract", action="store_true", help="use the graphs with light ops merged instead"
    )
    parser.add_argument(
        "--objective", choices=("makespan", "peak-memory"), help="what to minimise (default makespan)"
    )
    parser.add_argument("--devices", type=count, help="number of devices (default 2)")
    parser.add_argument("--memory", help="capacity of each device (default inf)")
    parser.add_argument(
        "--transfer", metavar="MODEL", help="as in 'optimize' (default: blocking, at no cost)"
    )


def _add_tune(subparsers: Subparsers) -> None:
    tune = subparsers.add_parser(
        "tune",
        help="find the settings of BRKGA that suit a set of graphs",
        description="Try every point of a grid of BRKGA's settings on a training set and save the best.",
        epilog=_TUNE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    tune.add_argument("--out", metavar="FILE", required=True, help="the settings, as JSON")
    _problem(tune, "train")
    tune.add_argument(
        "--evaluations", type=count, default=5000, metavar="N", help="budget of each search (default 5000)"
    )
    tune.add_argument("--seed", type=seed, default=0, help="seed of the searches (default 0)")
    tune.add_argument(
        "--grid",
        action="append",
        type=_grid,
        metavar="NAME=V,...",
        help="values of one setting instead of the default ones; may be repeated",
    )
    add_engine(tune, "where graphs are planned")
    tune.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    tune.set_defaults(run=_tune)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise argparse.ArgumentTypeError("names nothing; give at least one")
    return names


def _pair(text: str) -> tuple[str, str]:
    name, mark, path = text.partition("=")
    if not (name and mark and path):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, got {text!r}")
    return name, path


def _numbers(kind: Callable[[str], int], *, none: bool = False) -> Callable[[str], list[int]]:
    def read(text: str) -> list[int]:
        return [] if none and text == "none" else [kind(part) for part in text.split(",")]

    read.__name__ = "list of whole numbers"
    return read


def _ratio(text: str) -> list[float]:
    return [float(part) for part in text.split(",")]


_ratio.__name__ = "list of numbers"


def _grid(text: str) -> tuple[str, list[float]]:
    name, mark, values = text.partition("=")
    try:
        if not (name and mark):
            raise ValueError
        return name, [float(v) if "." in v else int(v) for v in values.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be NAME=NUMBER,NUMBER,..., got {text!r}") from None


_names.__name__ = "list of names"


def _evaluate(args: argparse.Namespace) -> int:
    from regal_jax.experiments import report, run_evaluation

    finished = True
    if args.report_only:
        _check_reported(args)
    else:
        config = _config(args)
        machine.use_all_cores()
        outcome = run_evaluation(
            config, args.out, progress=progress_bars(quiet=args.quiet), engine=args.engine
        )
        finished = outcome.finished
        if not args.quiet:
            print(
                f"{counted(outcome.made, 'result')} added to {args.out}, {outcome.found:,} were there before"
            )
        for name, reason in outcome.left_out.items():
            print(f"regal-jax evaluate: left out {name}: {reason}", file=sys.stderr)
        if not finished:
            print("regal-jax evaluate: interrupted; run the same command again to resume", file=sys.stderr)
            return INTERRUPTED
    made = report(args.out)
    for problem in made.problems:
        print(f"regal-jax evaluate: {problem}", file=sys.stderr)
    if not args.quiet:
        print(made.table)
        print(f"saved to {args.out}: {', '.join(made.files)}")
    return 0


_PLAIN = (
    "suite", "cases", "sizes", "graphs", "split", "limit", "max_ops", "min_ops", "objective", "devices",
    "memory", "capacity", "memory_ratio", "transfer", "methods", "tuned", "evaluations", "seeds", "limits",
    "budgets", "cp_sat_seconds", "chunk",
)  # fmt: skip


def _config(args: argparse.Namespace, **fixed: Any) -> "EvaluationConfig":
    """The settings of the file, overridden by those of the command line."""
    from regal_jax.errors import ConfigError
    from regal_jax.experiments import EvaluationConfig

    document = _document(args, **fixed)
    if "graphs" not in document and document.get("suite", "regal") == "regal":
        raise ConfigError("--graphs: give the path of a set of graphs, of a corpus, or 'sample'")
    config = EvaluationConfig.from_document(document)
    if source := _source_of_tuned(args, document):
        from regal_jax.experiments.jobs import takes_tuned

        if not takes_tuned(config):
            raise ConfigError(
                f"{source}: no method takes it; leave it out, or add tuned-brkga to the methods of the suite "
                "regal or realistic"
            )
    return config


def _source_of_tuned(args: argparse.Namespace, document: Mapping[str, Any]) -> str:
    """What gave a file of tuned settings to methods of its own; empty if none was given."""
    if getattr(args, "tuned", None):
        return "--tuned"
    file = getattr(args, "config", None)
    # Other methods, of the command line, need not take what the file has for its own.
    if file is None or args.methods or args.suite or not document.get("tuned"):
        return ""
    return f"{file}: tuned"


def _check_reported(args: argparse.Namespace) -> None:
    """Refuses settings other than those of the last run, which alone is reported.

    Raises:
      ConfigError: A setting was given that the last run had otherwise.
    """
    from regal_jax.errors import ConfigError
    from regal_jax.experiments import EvaluationConfig
    from regal_jax.experiments.records import read_evaluation

    given = _document(args)
    had = read_evaluation(pathlib.Path(args.out)).get("config")
    if not given or not isinstance(had, dict):
        return
    known = {field.name for field in dataclasses.fields(EvaluationConfig)}
    both = {**{name: value for name, value in had.items() if name in known}, **given}
    asked = json.loads(json.dumps(EvaluationConfig.from_document(both).as_document()))
    other = [name for name in given if asked[name] != had.get(name)]
    if other:
        raise ConfigError(
            f"{', '.join(other)}: --report-only reports the last run in {args.out}, which had other "
            "settings; leave these out, or drop --report-only"
        )


def _document(args: argparse.Namespace, **fixed: Any) -> dict[str, Any]:
    """The settings of the file and of the command line, without defaults."""
    from regal_jax.experiments import EvaluationConfig
    from regal_jax.experiments.config import SUITES

    file = getattr(args, "config", None)
    document: dict[str, Any] = {
        **_named(args),
        **({} if file is None else EvaluationConfig.read(file)),
        **fixed,
    }
    for name in _PLAIN:
        if getattr(args, name, None) is not None and (name != "suite" or args.suite in SUITES):
            document[name] = getattr(args, name)
    if args.contract:
        document["contract"] = True
    if getattr(args, "no_warm_up", False):
        document["warm_up"] = False
    if getattr(args, "policy", None):
        document["policies"] = {**document.get("policies", {}), **_once("--policy", args.policy)}
    if getattr(args, "weights", None):
        given = {name: files if files[1:] else files[0] for name, files in _by_name(args.weights).items()}
        document["weights"] = {**document.get("weights", {}), **given}
    for name in ("rounds", "losses", "regimes"):
        if getattr(args, name, None):
            document[name] = _by_name(getattr(args, name))
    return document


def _named(args: argparse.Namespace) -> dict[str, Any]:
    """The settings of a table or figure, if one is named."""
    from regal_jax.errors import ConfigError
    from regal_jax.experiments.config import SUITES
    from regal_jax.experiments.suites import named_suite, suite_names

    suite, small = getattr(args, "suite", None), getattr(args, "small", False)
    if suite is None or suite in SUITES:
        if small:
            raise ConfigError(f"--small: is for --suite {', '.join(suite_names())}; use --limit instead")
        return {}
    document = named_suite(suite, small=small)
    if any(getattr(args, name) for name in ("graphs", "split", "limit", "max_ops", "min_ops", "contract")):
        document.pop("digest", None)  # The table is then for other graphs.
    return document


def _once(option: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The values by their names.

    Raises:
      ConfigError: A name is given twice, so that one of its values would not count.
    """
    from regal_jax.errors import ConfigError

    named: dict[str, Any] = {}
    for name, value in pairs:
        if name in named:
            raise ConfigError(f"{option}: {name} is given twice; give it once")
        named[name] = value
    return named


def _by_name(pairs: Sequence[tuple[str, str]]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, path in pairs:
        groups.setdefault(name, []).append(path)
    return groups


def _tune(args: argparse.Namespace) -> int:
    from regal_jax.cli.sources import check_writable
    from regal_jax.experiments import DEFAULT_GRID, tune
    from regal_jax.experiments.graphs import evaluation_graphs

    grid = _once("--grid", args.grid or ())
    check_writable(args.out, inputs=[args.graphs])
    config = _config(args, split=args.split or "train")
    graphs = evaluation_graphs(config)
    machine.use_all_cores()
    with warnings.catch_warnings(action="always", category=InfeasiblePlanWarning):
        best = tune(
            graphs,
            config.cluster,
            objective=config.objective,
            evaluations=args.evaluations,
            grid={**DEFAULT_GRID, **grid},
            seed=args.seed,
            results=f"{args.out}.points.jsonl",
            progress=progress_bars(quiet=args.quiet),
            engine=args.engine,
        )
    if not args.quiet:
        c = best.config
        print(
            f"best of {best.points} on {best.graphs} graphs: population {c.population}, elites {c.elites}, "
            f"mutants {c.mutants}, elite_bias {c.elite_bias:g}; {1 - best.ratio:+.2%} over the defaults"
        )
    best.save(args.out)
    if not args.quiet:
        print(f"saved to {args.out}")
    return 0
