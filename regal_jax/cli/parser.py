"""The parser of ``regal-jax``: all commands, their arguments and their help."""

import argparse
from typing import Final

from regal_jax.checks import shown
from regal_jax.cli import commands
from regal_jax.cli.apply import add_apply
from regal_jax.cli.arguments import (
    OneLineParser,
    Subparsers,
    add_engine,
    count,
    dimension,
    folder_name,
    seconds,
    seed,
)
from regal_jax.cli.compile import add_compile
from regal_jax.cli.corpus import add_corpus
from regal_jax.cli.dataset import add_dataset
from regal_jax.cli.evaluate import add_evaluate
from regal_jax.cli.optimize import optimize
from regal_jax.cli.propose import add_propose
from regal_jax.cli.train import add_train
from regal_jax.runtime.interrupts import interruptible
from regal_jax.solvers import own_entries

__all__ = ["build_parser"]

_EPILOG = """\
first steps:
  regal-jax optimize                                 place a real training step on two devices
  regal-jax optimize --example unet --plot plan.png  another model, and a picture of the plan
  regal-jax optimize model.onnx --devices 4 --memory 16GiB --out plan.json
  regal-jax verify plan.json model.onnx              replay a saved plan exactly
  regal-jax show model.onnx                          what is in a graph (or a plan)

Files may be .pbtxt (TensorFlow CostGraphDef), .onnx, .hlo or .hlo.txt (compiled XLA programs), .stg, .json
(WfFormat or our own); .gz too.
"""

_OPTIMIZE_EPILOG = """\
transfer models (--transfer):
  blocking   a transfer occupies source and destination at once: a rendezvous even at no cost
  delay      no device is occupied; the copy arrives latency + size / bandwidth after its producer ends
  free       delay of zero
  A link follows a colon, as a name or in numbers: delay:nvlink4, blocking:latency=5us,bandwidth=50GB/s. Plain
  numbers are in the graph's units. A model alone costs nothing; a link alone is blocking.
  Without --transfer: blocking transfers over pcie4x16 (10us, 25GB/s).
  Links: nvlink3, nvlink4, nvlink5, pcie3x16, pcie4x16, pcie5x16, infinity-fabric-mi300, ici-v4, ici-v5e,
  ici-v5p, infiniband-hdr, infiniband-ndr, ethernet-10g, ethernet-25g, ethernet-100g (docs/links.md).

examples:
  regal-jax optimize graph.pbtxt --evaluations 100000 --seed 1 --out plan.json
  regal-jax optimize graph.stg --devices 4 --transfer free
  regal-jax optimize model.onnx --devices 8 --transfer nvlink4 --nodes 2 --between ethernet-100g
  regal-jax optimize --example gpt2-small --objective peak-memory --devices 1
  regal-jax optimize graph.json --method critical-path      a heuristic alone
  regal-jax optimize a.onnx b.json --out-dir plans          many graphs, searched side by side
  regal-jax optimize --watch graphs --out-dir plans         every graph that appears in a folder
  regal-jax optimize *.onnx --out-dir plans --engine ray:10.0.0.1:6379      on the machines of a Ray cluster

With the same --out-dir, a search starts from the plans in it. A file there that is no plan, or a plan for
another graph, cluster or objective, is an error before the search and stays as it is.

Graphs of similar size are searched together, on all CPU cores (JAX_NUM_CPU_DEVICES sets another number)
or all accelerators; --time-limit is for all of them together.

With --engine ray, --out-dir also keeps each plan under its graph's hash: the same command passes over what it
has planned before. A graph whose workers die three times is given up and named (exit code 2); all others have
plans. docs/many_machines.md says more.

With --watch, a file is taken when it has not changed for the seconds of --every; names that begin with a dot
are passed over, and plans where --out-dir is the same folder. What cannot be planned is one line on stderr,
is tried again when the file changes, and makes the exit code 2. A graph that has a plan in --out-dir is not
planned again, unless its search was interrupted or killed. --time-limit is for each turn.

exit codes: 0 done (Ctrl-C too, with the best plans so far); 2 bad input; 3 the best plan found does not
fit the memory (the message says whether any can); 130 interrupted before there was a plan; 143 ended by
SIGTERM, which acts like Ctrl-C: the best plans so far are saved.
"""

_DEFAULT_GRAPH: Final = "default: the example moe-small"
_GRAPH: Final = f"the graph ({_DEFAULT_GRAPH})"


def _pin(text: str) -> tuple[str, list[int]]:
    pattern, equals, devices = text.rpartition("=")
    if not (pattern and equals and all(k.isdecimal() and len(k) < 9 for k in devices.split(","))):
        raise argparse.ArgumentTypeError(f"write PATTERN=DEVICE[,DEVICE], e.g. 'encoder/*=0', got {text!r}")
    return pattern, [int(k) for k in devices.split(",")]


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"write NAME=VALUE, e.g. population=200, got {text!r}")
    return name, value


def _source(parser: argparse.ArgumentParser, *, several: bool = False, help_: str = _GRAPH) -> None:
    if several:
        parser.add_argument("files", nargs="*", metavar="FILE", help=f"graphs ({_DEFAULT_GRAPH})")
    else:
        parser.add_argument("file", nargs="?", metavar="FILE", help=help_)
    parser.add_argument("--example", metavar="NAME", help="a model that regal_jax defines; see 'show'")
    parser.add_argument("--format", metavar="NAME", help="format of the file, if its name does not tell it")
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help="device of the runtimes of an example, ONNX model or compiled program: a100, ... (default h200)",
    )
    parser.add_argument(
        "--dim",
        type=dimension,
        action="append",
        metavar="NAME=SIZE",
        help="size of a symbolic dimension of an ONNX model, e.g. batch=8; may be repeated",
    )
    parser.add_argument(
        "--in-place",
        action="store_true",
        help="let values of an ONNX model share buffers as in ONNX Runtime, for plans of one device",
    )


def _optimize(parser: argparse.ArgumentParser) -> None:
    _source(parser, several=True)
    parser.add_argument("--devices", type=count, default=2, help="number of devices (default 2)")
    parser.add_argument(
        "--memory", default="inf", help="capacity of each device, or one each: 16GiB,8GiB (default inf)"
    )
    parser.add_argument(
        "--transfer",
        metavar="MODEL:LINK",
        help="how data moves: a model, a link, or both; see below (default pcie4x16, blocking)",
    )
    parser.add_argument(
        "--nodes", type=count, default=1, metavar="N", help="machines that the devices are in (default 1)"
    )
    parser.add_argument("--between", metavar="LINK", help="link between machines; --transfer is within them")
    parser.add_argument(
        "--objective", choices=("makespan", "peak-memory"), default="makespan", help="(default makespan)"
    )
    _budget(parser, "20000; for peak memory on one device 5000")
    described = "; ".join(f"{entry.name}: {entry.summary}" for entry in own_entries())
    _method(
        parser,
        f"{described}; or a heuristic: critical-path, heft, ...; an unknown name lists all "
        "(default auto, but brkga with any --policy except default and none)",
        "population=200 of brkga, or brkga.population=200 of auto",
    )
    parser.add_argument(
        "--policy",
        metavar="NAME|FILE",
        help="guide of the search: regal-primed or regal-faithful for weights of the package, default for "
        "those of regal-primed and, without --method, auto in place of brkga, a file of weights, or none "
        "(default none; for --method auto without compiled loops regal-primed, if it fits the problem)",
    )
    _starts(parser)
    parser.add_argument(
        "--contract",
        action=argparse.BooleanOptionalAction,
        help="search only the graph with light ops merged, or only the original; the plan is of the original "
        "(default: auto searches both, other methods the original)",
    )
    parser.add_argument(
        "--pin",
        type=_pin,
        action="append",
        default=[],
        metavar="PATTERN=DEVICE",
        help="where ops may run, by name or pattern: 'encoder/*=0', '*head/*=0,1'; may be repeated",
    )
    parser.add_argument(
        "--colocate",
        action="append",
        default=[],
        metavar="PATTERN",
        help="ops that match share a device: 'layer_1/*'; may be repeated",
    )
    _results(parser)
    parser.set_defaults(run=optimize)


def _order(parser: argparse.ArgumentParser) -> None:
    """``regal-jax order``: a search on one device for the least peak memory."""
    _source(parser, several=True)
    parser.add_argument("--memory", default="inf", help="capacity of the device: 16GiB (default inf)")
    _budget(parser, "5000")
    names = ("auto", "order-search", "topoformer", "beam", "approximate-dp", "depth-first-dp", "xla-best")
    _method(
        parser,
        f"{', '.join(names)} or another one of 'regal-jax optimize' (default auto)",
        "samples=64 of topoformer, or brkga.population=200 of auto",
    )
    _starts(parser)
    _results(parser)
    parser.set_defaults(
        run=optimize, devices=1, nodes=1, between=None, transfer="free", objective="peak-memory",
        policy=None, contract=None, pin=[], colocate=[],
    )  # fmt: skip


def _budget(parser: argparse.ArgumentParser, default: str) -> None:
    parser.add_argument(
        "--evaluations",
        type=count,
        metavar="N",
        help=f"search budget: how many candidates are evaluated (default {default}); only searches have one",
    )
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="stop the search after S seconds")
    parser.add_argument("--seed", type=seed, default=0, help="seed of the search (default 0)")
    parser.add_argument(
        "--runs",
        type=count,
        default=1,
        metavar="R",
        help="independent searches side by side, each with this budget; the best plan counts (default 1)",
    )


def _method(parser: argparse.ArgumentParser, help_: str, settings: str) -> None:
    parser.add_argument("--method", metavar="NAME", help=help_)
    parser.add_argument(
        "--set",
        action="append",
        type=_setting,
        default=[],
        metavar="NAME=VALUE",
        help=f"a setting of the method: {settings}; may be repeated",
    )


def _starts(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--no-warm-start",
        action="store_true",
        help="search without the plans of heuristics; the result may be worse than theirs",
    )
    parser.add_argument(
        "--warm-start",
        action="append",
        metavar="PLAN",
        help="also start from this plan of the graph, for any cluster; never do worse; may be repeated",
    )


def _results(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="FILE", help="save the plan as JSON; a new file has the best plan so far"
    )
    parser.add_argument(
        "--out-dir",
        type=folder_name,
        metavar="DIR",
        help="save each plan as soon as it is found, as DIR/GRAPH.plan.json, better ones during a search; "
        "DIR is created; plans of an earlier run in it are starts, and stay unless a better one is found",
    )
    add_engine(parser, "where graphs are planned")
    parser.add_argument(
        "--watch",
        metavar="DIR",
        help="plan every graph that is or appears in DIR, until Ctrl-C; with --out-dir",
    )
    parser.add_argument(
        "--every", type=seconds, metavar="S", help="with --watch, seconds between checks of DIR (default 1)"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the plan (.png, .pdf, .svg)")
    parser.add_argument("--trace", metavar="FILE", help="save a trace for ui.perfetto.dev")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, no summary")


def _written(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", metavar="FILE", required=True, help=".json, .pbtxt or .stg, each also .gz")
    parser.add_argument(
        "--lossy",
        action="store_true",
        help="leave out or round what .pbtxt or .stg cannot hold, such as allowed devices",
    )


@interruptible()
def _family(text: str) -> str:
    """The name of a family of graphs, checked here so that it is told before a missing option."""
    from regal_jax.datasets import FAMILIES

    if text and text not in FAMILIES:
        raise argparse.ArgumentTypeError(f"unknown {shown(text)}; use one of {', '.join(FAMILIES)}")
    return text


def _others(subparsers: Subparsers) -> None:
    convert = subparsers.add_parser(
        "import",
        help="turn a file or an example into another format",
        description=(
            "Read a graph from a file, or trace an example, and write it in the format that the "
            "suffix of --out names."
        ),
    )
    _source(convert)
    _written(convert)
    convert.set_defaults(run=commands.convert)

    show = subparsers.add_parser(
        "show",
        help="describe a graph or a plan, or list the examples",
        description=(
            "Describe a graph (size, work, critical path, kinds of ops) or a saved plan; with no "
            "file, list the examples."
        ),
    )
    _source(show, help_="the graph or the plan (default: list the examples)")
    show.add_argument("--plot", metavar="FILE", help="draw the plan or the graph (.png, .pdf, .svg)")
    show.set_defaults(run=commands.show)

    verify = subparsers.add_parser(
        "verify",
        help="replay a saved plan exactly; exit 1 if it does not hold",
        description=(
            "Replay a saved plan on its graph, exactly, with code that shares nothing with the "
            "search; exit 1 and one line if any event, time or memory figure does not hold."
        ),
    )
    verify.add_argument("plan", metavar="PLAN", help="the plan's JSON")
    _source(verify)
    verify.set_defaults(run=commands.verify)

    generate = subparsers.add_parser(
        "generate",
        help="make a synthetic graph",
        description="Write a random graph; the same family, size and seed give the same file.",
    )
    generate.add_argument(
        "family", type=_family, metavar="FAMILY", help="erdos-renyi, layered, ...; an unknown name lists all"
    )
    generate.add_argument("--ops", type=count, default=100, help="number of ops (default 100)")
    generate.add_argument("--seed", type=seed, default=0, help="seed of the random numbers (default 0)")
    _written(generate)
    generate.set_defaults(run=commands.generate)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole command."""
    parser = OneLineParser(
        prog="regal-jax",
        description="Decide which device runs which op of a computation graph, and in which order.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=commands.Version, nargs=0, help="print versions and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _optimize(
        subparsers.add_parser(
            "optimize",
            help="place and order a graph",
            description="Search for a placement and an order of a graph's ops, verify and save the plan.",
            epilog=_OPTIMIZE_EPILOG,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    )
    _order(
        subparsers.add_parser(
            "order",
            help="order a graph on one device for the least peak memory",
            description="Search for an order of a graph's ops on one device, for the least peak memory; the "
            "same as 'regal-jax optimize --devices 1 --transfer free --objective peak-memory'.",
        )
    )
    add_propose(subparsers, _source)
    _others(subparsers)
    for add in (add_apply, add_compile, add_dataset, add_corpus, add_evaluate, add_train):
        add(subparsers)
    return parser
