"""``python -m benchmarks``: the commands. Exit codes: 0 done, 1 slower, 2 bad input."""

import argparse
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks.cases import SECTIONS, SIZES, benchmarks
from benchmarks.results import load
from regal_jax.cli.arguments import OneLineParser, count
from regal_jax.errors import ConfigError
from regal_jax.plan.contraction import MAX_SHARE

__all__ = ["main"]

_EPILOG = """\
examples:
  python -m benchmarks run --size smoke
  python -m benchmarks run throughput phases --out before.json
  python -m benchmarks run 'throughput/er-*' --implementation xla --peer ./brkga_peer
  python -m benchmarks compare before.json after.json --fail-above 1.1
  python -m benchmarks plot before.json --out figure.png
  python -m benchmarks certify --peer ./brkga_peer --out h200.json
  python -m benchmarks contract --graphs corpus/ --out contract.json
  python -m benchmarks compile 'gpt*' --out compile.json
  python -m benchmarks makespans --plot makespans.png
  python -m benchmarks first-plan --links pcie4x16 free
  python -m benchmarks prediction --out prediction.json
  python -m benchmarks onnx                    (with onnxruntime and torch)
  python -m benchmarks torch --inductor        (with torch)
  python -m benchmarks ray --graphs 200        (with ray)
  python -m benchmarks orders guide --ops 500 1000 --graphs 10 --budgets 100 500 2000
  python -m benchmarks encodings --graphs 8 --seeds 1 2
  python -m benchmarks stages --aims even-split peak-memory
  python -m benchmarks schedules --graphs 10 --samples 1000
  python -m benchmarks processes --count 1 2 4
  python -m benchmarks large --devices 2 8 --seconds 120
docs/benchmarks.md describes the measurements and how to read them.
"""


def _factor(text: str) -> float:
    number = float(text)
    if not 1 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a factor of at least 1, such as 1.1, got {text}")
    return number


_factor.__name__ = "factor"


def _list(args: argparse.Namespace) -> int:
    known = benchmarks(args.size)
    width = max(len(b.name) for b in known)
    for section, summary in SECTIONS.items():
        mine = [b for b in known if b.section == section]
        if mine:
            print(f"{section}: {summary}")
            print("\n".join(f"  {b.name:{width}}  {b.summary}" for b in mine))
    return 0


def _run(args: argparse.Namespace) -> int:
    from benchmarks.run import run

    return run(args)


def _compare(args: argparse.Namespace) -> int:
    from benchmarks.compare import compare, report

    before, after = load(args.before), load(args.after)
    changes = compare(before, after)
    print(report(before, after, changes))
    slower = [c for c in changes if args.fail_above and c.verdict == "slower" and c.ratio > args.fail_above]
    if slower:
        worst = max(slower, key=lambda c: c.ratio)
        print(
            f"python -m benchmarks compare: {len(slower)} slower by more than {args.fail_above:g} x; "
            f"the worst is {worst.name} {worst.label}, {worst.ratio:.2f} x",
            file=sys.stderr,
        )
    return 1 if slower else 0


def _plot(args: argparse.Namespace) -> int:
    from benchmarks.plot import plot

    plot(load(args.results), args.out)
    print(f"figure saved to {args.out}")
    return 0


def _contract(args: argparse.Namespace) -> int:
    from benchmarks.contraction import run

    return run(args)


def _compile(args: argparse.Namespace) -> int:
    from benchmarks.compiled import run

    return run(args)


def _schedules(args: argparse.Namespace) -> int:
    from benchmarks.schedules import run

    return run(args)


def _encodings(args: argparse.Namespace) -> int:
    from benchmarks.encodings import run

    return run(args)


def _stages(args: argparse.Namespace) -> int:
    from benchmarks.stages import run

    return run(args)


def _orders(args: argparse.Namespace) -> int:
    from benchmarks.orders import run

    return run(args)


def _certify(args: argparse.Namespace) -> int:
    from benchmarks.certify import run

    return run(args)


def _processes(args: argparse.Namespace) -> int:
    from benchmarks.processes import run

    return run(args)


def _large(args: argparse.Namespace) -> int:
    from benchmarks.large import run

    return run(args)


def _makespans(args: argparse.Namespace) -> int:
    from benchmarks.makespans import run

    return run(args)


def _first_plan(args: argparse.Namespace) -> int:
    from benchmarks.first_plan import run

    return run(args)


def _prediction(args: argparse.Namespace) -> int:
    from benchmarks.prediction import run

    return run(args)


def _torch(args: argparse.Namespace) -> int:
    from benchmarks.torch_memory import run

    return run(args)


def _onnx(args: argparse.Namespace) -> int:
    from benchmarks.onnx_memory import run

    return run(args)


def _ray(args: argparse.Namespace) -> int:
    from benchmarks.ray_workers import run

    return run(args)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="python -m benchmarks",
        description="Measure the cost of regal_jax.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands: Any = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the benchmarks")
    listing.add_argument("--size", choices=SIZES, default="default", help="(default default)")
    listing.set_defaults(call=_list)
    _add_run(commands.add_parser("run", help="measure"))
    compare = commands.add_parser("compare", help="two results, ratio by ratio")
    compare.add_argument("before", metavar="BEFORE.json")
    compare.add_argument("after", metavar="AFTER.json")
    compare.add_argument(
        "--fail-above",
        type=_factor,
        metavar="X",
        help="exit 1 if anything is slower by more than this factor",
    )
    compare.set_defaults(call=_compare)
    plot = commands.add_parser("plot", help="draw results")
    plot.add_argument("results", metavar="RESULTS.json")
    plot.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE", help=".png, .pdf or .svg")
    plot.set_defaults(call=_plot)
    _add_certify(commands.add_parser("certify", help="check and measure an accelerator, in ten minutes"))
    _add_contract(commands.add_parser("contract", help="the effect of contraction on real graphs"))
    _add_schedules(commands.add_parser("schedules", help="seconds and speed-ups of a GFlowNet's schedules"))
    _add_encodings(commands.add_parser("encodings", help="searches by each encoding, list search, auto"))
    _add_stages(commands.add_parser("stages", help="auto with and without a stage of schedule generation"))
    _add_orders(commands.add_parser("orders", help="the value of a network's priorities for searches"))
    _add_compile(commands.add_parser("compile", help="memory and seconds of programs in planned orders"))
    _add_makespans(
        commands.add_parser("makespans", help="predicted and measured makespans on two CPU devices")
    )
    _add_first_plan(commands.add_parser("first-plan", help="seconds until plans in new processes"))
    _add_prediction(commands.add_parser("prediction", help="temporary memory, predicted and assigned"))
    _add_torch(commands.add_parser("torch", help="memory of planned gradients and steps in PyTorch"))
    _add_onnx(commands.add_parser("onnx", help="memory of planned orders as ONNX Runtime measures it"))
    _add_ray(commands.add_parser("ray", help="batches on Ray beside processes without it"))
    _add_processes(commands.add_parser("processes", help="training over several processes of this machine"))
    _add_large(commands.add_parser("large", help="seconds and memory of searches of one large graph"))
    return parser


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"must be from 0 to 1, got {text}")
    return number


_share.__name__ = "share"


def _add_encodings(encodings: argparse.ArgumentParser) -> None:
    encodings.add_argument("--ops", type=count, default=100, metavar="N", help="(default 100)")
    encodings.add_argument(
        "--devices", type=count, nargs="+", default=[2, 4], metavar="D", help="(default 2 4)"
    )
    encodings.add_argument(
        "--costs",
        type=float,
        nargs="+",
        default=[0.0, 0.5],
        metavar="X",
        help="time of a transfer, in mean runtimes (default 0 0.5)",
    )
    encodings.add_argument("--graphs", type=count, default=8, metavar="N", help="(default 8)")
    encodings.add_argument("--seeds", type=int, nargs="+", default=[0], help="of the searches (default 0)")
    encodings.add_argument("--evaluations", type=count, default=5000, metavar="E", help="(default 5000)")
    encodings.add_argument("--methods", nargs="+", default=[], metavar="TITLE", help="(default all)")
    encodings.add_argument("--out", type=pathlib.Path, metavar="FILE", help="results as JSON")
    encodings.set_defaults(call=_encodings)


def _add_stages(stages: argparse.ArgumentParser) -> None:
    aims = ("time", "even-split", "peak-memory")
    stages.add_argument("--aims", nargs="+", choices=aims, default=aims[1:], help="(default: the last two)")
    stages.add_argument("--graphs", type=count, metavar="N", help="at most so many (default: all)")
    stages.add_argument("--devices", type=count, nargs="+", default=[2, 4], metavar="D", help="(default 2 4)")
    stages.add_argument("--link", choices=("nvlink", "pcie", "ethernet"), default="nvlink")
    stages.add_argument("--most-ops", type=count, default=330, metavar="N", help="(default 330)")
    stages.add_argument("--evaluations", type=count, default=5000, metavar="E", help="(default 5000)")
    stages.add_argument("--seed", type=int, default=0, help="(default 0)")
    stages.add_argument("--out", type=pathlib.Path, metavar="FILE", help="results as JSON")
    stages.set_defaults(call=_stages)


def _add_contract(contract: argparse.ArgumentParser) -> None:
    contract.add_argument(
        "--graphs",
        nargs="+",
        default=[],
        metavar="PATH",
        help="files, or folders of them (default: all examples)",
    )
    contract.add_argument(
        "--objective",
        action="append",
        choices=("makespan", "peak-memory"),
        help="objective of the plans; may be repeated (default: both)",
    )
    contract.add_argument(
        "--evaluations", type=count, default=5000, help="budget of each search (default 5000)"
    )
    contract.add_argument(
        "--max-share",
        type=_share,
        default=MAX_SHARE,
        metavar="X",
        help=f"max_share of regal_jax.contract (default {MAX_SHARE})",
    )
    contract.add_argument("--seed", type=int, default=0, help="seed of the searches (default 0)")
    contract.add_argument("--out", metavar="FILE", help="save the rows as JSON, after every graph")
    contract.set_defaults(call=_contract)


def _add_certify(certify: argparse.ArgumentParser) -> None:
    certify.add_argument(
        "--size",
        choices=("smoke", "default"),
        default="default",
        help="size of the checks (default: default)",
    )
    certify.add_argument(
        "--minutes", type=count, default=10, help="minutes after which no measurement starts (default 10)"
    )
    certify.add_argument("--peer", metavar="BINARY", help="a program to run in turns, as for run")
    certify.add_argument(
        "--out",
        default="certificate.json",
        metavar="FILE",
        help="the results; a page with the suffix .md is written beside it (default certificate.json)",
    )
    certify.set_defaults(call=_certify)


def _add_processes(scaling: argparse.ArgumentParser) -> None:
    scaling.add_argument(
        "--count", type=count, nargs="+", default=[1, 2, 4], metavar="N", help="processes (default 1 2 4)"
    )
    scaling.add_argument("--graphs", type=count, default=8, help="for each process (default 8)")
    scaling.add_argument("--ops", type=count, default=100, help="of each graph (default 100)")
    scaling.add_argument("--evaluations", type=count, default=300, help="of a search (default 300)")
    scaling.add_argument("--steps", type=count, default=10, help="measured (default 10)")
    scaling.add_argument("--out", metavar="FILE", help="write the rows as JSON")
    scaling.set_defaults(call=_processes)


def _add_large(large: argparse.ArgumentParser) -> None:
    large.add_argument("--family", default="layered", help="of random graphs (default layered)")
    large.add_argument("--ops", type=count, default=200_000, help="(default 200000)")
    large.add_argument(
        "--devices", type=count, nargs="+", default=[2, 8], metavar="N", help="of the cluster (default 2 8)"
    )
    large.add_argument("--memory", help="of every device, such as 5GiB (default: no limit)")
    large.add_argument(
        "--methods", nargs="+", default=["auto", "brkga"], metavar="NAME", help="(default auto brkga)"
    )
    large.add_argument("--evaluations", type=count, default=5000, help="(default 5000)")
    large.add_argument("--seconds", type=float, help="time limit of each search")
    large.add_argument("--out", metavar="FILE", help="write the rows as JSON")
    large.set_defaults(call=_large)


def _add_compile(compile: argparse.ArgumentParser) -> None:
    compile.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of programs (default: all)")
    compile.add_argument(
        "--programs",
        type=pathlib.Path,
        default=pathlib.Path(__file__).with_name("compile_programs.toml"),
        metavar="FILE",
        help="file of programs (default compile_programs.toml)",
    )
    compile.add_argument(
        "--method", default="order-search", help="method of the search (default order-search)"
    )
    compile.add_argument(
        "--memory", action="store_true", help="measure memory only: machine code is made in a hurry"
    )
    compile.add_argument("--out", metavar="FILE", help="save the rows, and continue an earlier run")
    compile.set_defaults(call=_compile)


def _add_schedules(schedules: argparse.ArgumentParser) -> None:
    families = ("erdos-renyi", "layered", "stochastic-block", "watts-strogatz", "barabasi-albert")
    schedules.add_argument(
        "--families",
        nargs="+",
        default=[f"gflownet-{name}" for name in families],
        metavar="NAME",
        help="families of regal_jax.datasets.generate (default: the paper's five)",
    )
    schedules.add_argument("--ops", type=count, default=50, metavar="N", help="ops of a graph (default 50)")
    schedules.add_argument("--graphs", type=count, default=2, help="graphs of each family (default 2)")
    schedules.add_argument(
        "--samples", type=count, default=1000, help="schedules of each graph (default 1000)"
    )
    schedules.add_argument(
        "--temperature", type=float, default=0.005, help="temperature of the network (default 0.005)"
    )
    schedules.add_argument(
        "--weights", default="default", help="file of weights (default: the shipped weights)"
    )
    schedules.set_defaults(call=_schedules)


def _add_orders(orders: argparse.ArgumentParser) -> None:
    orders.add_argument(
        "question",
        choices=("guide", "proposal"),
        help="use of the priorities: guide of order search, or proposal of BRKGA",
    )
    orders.add_argument(
        "--ops", nargs="+", type=count, default=[500], metavar="N", help="ops of the graphs (default 500)"
    )
    orders.add_argument("--graphs", type=count, default=10, help="layered graphs of each size (default 10)")
    orders.add_argument(
        "--budgets",
        nargs="+",
        type=count,
        default=[500, 5000],
        metavar="E",
        help="evaluations (default 500 5000)",
    )
    orders.set_defaults(call=_orders)


def _add_makespans(makespans: argparse.ArgumentParser) -> None:
    makespans.add_argument(
        "--plans", type=count, default=10, help="plans of each of the five programs (default 10)"
    )
    makespans.add_argument("--rounds", type=count, default=11, help="runs of each plan (default 11)")
    makespans.add_argument("--width", type=count, default=384, help="width of the matrices (default 384)")
    makespans.add_argument("--profile", default="measured", help="profile of the runtimes (default measured)")
    makespans.add_argument("--out", metavar="FILE", type=pathlib.Path, help="save the rows as JSON")
    makespans.add_argument(
        "--plot", metavar="FILE", type=pathlib.Path, help="draw predicted against measured"
    )
    makespans.set_defaults(call=_makespans)


def _add_prediction(prediction: argparse.ArgumentParser) -> None:
    prediction.add_argument("patterns", nargs="*", metavar="PATTERN", help="names of programs (default: all)")
    prediction.add_argument(
        "--programs",
        type=pathlib.Path,
        default=pathlib.Path(__file__).with_name("prediction_programs.toml"),
        metavar="FILE",
        help="file of programs (default prediction_programs.toml)",
    )
    prediction.add_argument("--out", metavar="FILE", help="save the rows, and continue an earlier run")
    prediction.set_defaults(call=_prediction)


def _add_torch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="MODULE", help="names of modules (default: all)")
    parser.add_argument(
        "--method", default="order-search", help="method of the orders (default order-search)"
    )
    parser.add_argument("--inductor", action="store_true", help="also compile each with Inductor (minutes)")
    parser.add_argument("--runs", type=count, default=3, help="runs of each order (default 3)")
    parser.add_argument("--threads", type=count, default=1, help="threads of PyTorch (default 1)")
    parser.add_argument("--out", metavar="FILE", help="save the rows as JSON, after every module")
    parser.set_defaults(call=_torch)


def _add_first_plan(first: argparse.ArgumentParser) -> None:
    first.add_argument(
        "--links", nargs="+", default=["pcie4x16", "free"], metavar="NAME", help="(default both)"
    )
    first.add_argument("--graphs", type=count, default=50, help="number of graphs (default 50)")
    first.add_argument("--least", type=count, default=60, metavar="N", help="ops (default 60)")
    first.add_argument("--most", type=count, default=400, metavar="N", help="ops (default 400)")
    first.add_argument("--method", default="auto", help="(default auto)")
    first.add_argument("--evaluations", type=count, default=5000, help="of each graph (default 5000)")
    first.add_argument("--out", metavar="FILE", help="save the rows as JSON")
    first.set_defaults(call=_first_plan)


def _add_ray(ray: argparse.ArgumentParser) -> None:
    ray.add_argument("--graphs", type=count, default=200, metavar="N", help="(default 200)")
    ray.add_argument("--ops", type=count, default=100, metavar="N", help="of each graph (default 100)")
    ray.add_argument("--evaluations", type=count, default=2000, metavar="E", help="(default 2000)")
    ray.add_argument("--method", default="auto", help="(default auto)")
    ray.add_argument("--rounds", type=count, default=5, help="(default 5)")
    ray.add_argument("--out", metavar="FILE", help="save the figures as JSON")
    ray.set_defaults(call=_ray)


def _add_onnx(onnx: argparse.ArgumentParser) -> None:
    onnx.add_argument(
        "names", nargs="*", metavar="NETWORK", help="names of networks (default: those that PyTorch exports)"
    )
    onnx.add_argument("--light", action="store_true", help="also measure the models in the package onnx")
    onnx.add_argument("--method", default="order-search", help="method of the orders (default order-search)")
    onnx.add_argument("--batch", type=count, default=1, help="batch size of exported networks (default 1)")
    onnx.add_argument("--process", action="store_true", help="also measure memory of processes (Linux)")
    onnx.add_argument("--runs", type=count, default=3, help="runs of each order (default 3)")
    onnx.add_argument("--out", metavar="FILE", help="save the rows as JSON, after every network")
    onnx.set_defaults(call=_onnx)


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("patterns", nargs="*", metavar="PATTERN", help="sections, or names with wildcards")
    run.add_argument(
        "--size", choices=SIZES, default="default", help="size of the benchmarks (default: default)"
    )
    run.add_argument("--out", metavar="FILE", help="save the results as JSON, after every benchmark")
    run.add_argument("--profile", type=pathlib.Path, metavar="DIR", help="save profiler traces in DIR")
    run.add_argument(
        "--implementation",
        action="append",
        default=[],
        metavar="NAME",
        help="implementation of the simulator; may be repeated (default: chosen by platform)",
    )
    run.add_argument("--repeat", type=count, metavar="R", help="rounds (default 5; smoke 1)")
    run.add_argument("--peer", metavar="BINARY", help="a program to run in turns, see docs/benchmarks.md")
    run.set_defaults(call=_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: The arguments; those of the process by default.

    Returns:
      The exit code.
    """
    args = _parser().parse_args(argv)
    try:
        return args.call(args)
    except KeyboardInterrupt:
        print("python -m benchmarks: interrupted", file=sys.stderr)
        return 130
    except (ConfigError, ValueError, ImportError, OSError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"python -m benchmarks {args.command}: error: {text}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
