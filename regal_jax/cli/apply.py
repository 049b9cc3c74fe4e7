"""``regal-jax apply``: an ONNX model in the order of a plan. Heavy imports stay inside."""

import argparse
import pathlib
import sys
import zipfile
from typing import TYPE_CHECKING, Any

from regal_jax.cli.arguments import Subparsers, dimension
from regal_jax.cli.sources import check_writable, dimensions
from regal_jax.errors import ConfigError, FormatError

if TYPE_CHECKING:
    import numpy as np

__all__ = ["add_apply"]

WORSE = 1

_EPILOG = """\
The nodes of --out stand in the order of the plan, and each has its device in its metadata (regal_jax.device);
everything else is copied. External data stays where it is: --out goes to the folder of MODEL. ONNX Runtime
keeps the order with the settings of regal_jax.execution.session_options() (docs/apply_onnx.md).

examples:
  regal-jax order model.onnx --out plan.json
  regal-jax apply plan.json model.onnx --out better.onnx
  regal-jax apply plan.json model.onnx --out better.onnx --measure --dim batch=8

exit codes: 0 done; 1 --measure finds that the plan's order takes more memory, or gives other outputs
(nothing is written then unless --force); 2 bad input.
"""


def add_apply(subparsers: Subparsers) -> None:
    """Adds the command."""
    parser = subparsers.add_parser(
        "apply",
        help="write an ONNX model in the order of a plan",
        description="Write an ONNX model with its nodes in the order of a plan of it, and its placement as "
        "metadata of the nodes.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("plan", metavar="PLAN", help="the plan's JSON")
    parser.add_argument("file", metavar="MODEL", help="the ONNX model that the plan is of")
    parser.add_argument("--out", metavar="FILE", required=True, help="the model in the order of the plan")
    parser.add_argument("--profile", metavar="NAME", help="that of the plan: h200, a100, ...")
    parser.add_argument(
        "--dim",
        type=dimension,
        action="append",
        default=[],
        metavar="NAME=SIZE",
        help="size of a symbolic dimension with which the plan was made; may be repeated",
    )
    parser.add_argument(
        "--measure",
        action="store_true",
        help="run both models in ONNX Runtime (extra onnxruntime) and print memory, predicted and measured",
    )
    parser.add_argument(
        "--inputs",
        metavar="FILE.npz",
        help="inputs to measure with, an array each (default: random floats, zeros of other types)",
    )
    parser.add_argument(
        "--force", action="store_true", help="write --out although --measure finds that it is worse"
    )
    parser.set_defaults(run=_apply)


def _apply(args: argparse.Namespace) -> int:
    from regal_jax.execution import apply_to_onnx
    from regal_jax.importers.onnx_model import read_onnx
    from regal_jax.plan import Plan
    from regal_jax.storage.atomic import replacing, writing

    for option in ("inputs", "force"):
        if getattr(args, option) and not args.measure:
            raise ConfigError(f"--{option} goes with --measure; give both or neither")
    check_writable(args.out, inputs=[args.plan, args.file, args.inputs])
    plan = Plan.load(args.plan)
    options: dict[str, Any] = {"dims": dimensions(args)}
    if args.profile is not None:
        options["profile"] = args.profile
    made = apply_to_onnx(plan, args.file, **options)
    _check_folder(made, args)
    before = [node.output for node in read_onnx(args.file).graph.node]
    moved = sum(a != b.output for a, b in zip(before, made.graph.node, strict=True))
    print(f"{args.file}: {len(before)} nodes, {moved} of them elsewhere in the order of {args.plan}")
    try:
        with replacing(args.out) as file:
            with writing(args.out):
                file.write_bytes(made.SerializeToString())
            if args.measure:
                _measure(args, file, options["dims"])
    except _WorseError as error:
        print(f"regal-jax apply: {error}; {args.out} is not written (--force writes it)", file=sys.stderr)
        return WORSE
    print(f"saved to {args.out}")
    return 0


class _WorseError(Exception):
    """The reason why a model is not written."""


def _measure(args: argparse.Namespace, made: pathlib.Path, dims: dict[str, int]) -> None:
    from regal_jax.execution import compare_onnx

    found = compare_onnx(args.file, made, _inputs(args.inputs), dims=dims, runs=5)
    print(found)
    wrong = "the order of the plan takes more memory than another" if found.worse else ""
    if found.equal is False:
        wrong = "the outputs differ"
    if wrong and not args.force:
        raise _WorseError(wrong)


def _inputs(path: str | None) -> "dict[str, np.ndarray] | None":
    if path is None:
        return None
    import numpy as np

    from regal_jax.storage.reading import check_regular

    try:
        check_regular(path)
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}; check the path") from None
    except (ValueError, AttributeError, zipfile.BadZipFile):
        raise FormatError(f"{path}: not a file of arrays; write them with numpy.savez") from None


def _check_folder(model: Any, args: argparse.Namespace) -> None:
    from regal_jax.execution.onnx.apply import external_tensors

    first = next(iter(external_tensors(model)), None)
    here, there = (pathlib.Path(path).resolve().parent for path in (args.file, args.out))
    if first is not None and here != there:
        raise ConfigError(
            f"--out {args.out!r}: the data of {first.name!r} is in a file beside {args.file!r}, and found "
            "from there alone; name a file in that folder"
        )
