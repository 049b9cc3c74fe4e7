"""``python -m benchmarks``: the commands. Exit codes: 0 done, 1 slower, 2 bad input."""

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Any, Final

from regal_jax.cli.arguments import OneLineParser

__all__ = ["COMMANDS", "main", "parser"]

COMMANDS: Final = {
    "list": ("listing", "list the benchmarks"),
    "run": ("run", "measure"),
    "compare": ("compare", "two results, ratio by ratio"),
    "plot": ("plot", "draw results"),
    "certify": ("certify", "check and measure an accelerator, in ten minutes"),
    "contract": ("contraction", "the effect of contraction on real graphs"),
    "schedules": ("schedules", "seconds and speed-ups of a GFlowNet's schedules"),
    "encodings": ("encodings", "searches by each encoding, list search, auto"),
    "stages": ("stages", "auto with and without a stage of schedule generation"),
    "optima": ("optima", "the gap of auto from proven optima of small graphs"),
    "order-seconds": ("order_seconds", "seconds of a network's orders beside approximate DP"),
    "orders": ("orders", "the value of a network's priorities for searches"),
    "compile": ("compiled", "memory and seconds of programs in planned orders"),
    "makespans": ("makespans", "predicted and measured makespans on two CPU devices"),
    "first-plan": ("first_plan", "seconds until plans in new processes"),
    "prediction": ("prediction", "temporary memory, predicted and assigned"),
    "torch": ("torch_memory", "memory of planned gradients and steps in PyTorch"),
    "onnx": ("onnx_memory", "memory of planned orders as ONNX Runtime measures it"),
    "ray": ("ray_workers", "batches on Ray beside processes without it"),
    "processes": ("processes", "training over several processes of this machine"),
    "publish": ("publish", "results of evaluations, and their tables in the documents"),
    "large": ("large", "seconds and memory of searches of one large graph"),
}
"""Command -> its module in this package, and a line for the help.

A module has ``add_arguments(parser)``, and ``run(args)``, which returns the exit code. It is imported when
its command is chosen, since some need packages that others do not.
"""

_EPILOG: Final = """\
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
  python -m benchmarks order-seconds --ops 500 2000 --graphs 4 --references 1
  python -m benchmarks publish results/real-links-2    (results of regal-jax evaluate, for the documents)
  python -m benchmarks encodings --graphs 8 --seeds 1 2
  python -m benchmarks stages --aims even-split peak-memory
  python -m benchmarks optima --graphs 60 --transfer free
  python -m benchmarks schedules --graphs 10 --samples 1000
  python -m benchmarks processes --count 1 2 4
  python -m benchmarks large --devices 2 8 --seconds 120
docs/benchmarks.md describes the measurements and how to read them.
"""


def parser(chosen: str | None) -> argparse.ArgumentParser:
    """A parser of the commands, with the arguments of the command ``chosen``."""
    made = OneLineParser(
        prog="python -m benchmarks",
        description="Measure the cost of regal_jax.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands: Any = made.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary)
        if name == chosen:
            code = importlib.import_module(f"benchmarks.{module}")
            code.add_arguments(command)
            command.set_defaults(call=code.run)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
      argv: The arguments; those of the process by default.

    Returns:
      The exit code.
    """
    argv = sys.argv[1:] if argv is None else argv
    command = argv[0] if argv else None
    try:
        args = parser(command).parse_args(argv)
        return args.call(args)
    except KeyboardInterrupt:
        print("python -m benchmarks: interrupted", file=sys.stderr)
        return 130
    except (ValueError, ImportError, OSError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"python -m benchmarks {command}: error: {text}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
