"""``regal-jax train``: a network of any system from a file of settings. Heavy imports are local."""

import argparse
import contextlib
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from regal_jax.checks import shown
from regal_jax.cli import machine
from regal_jax.cli.arguments import Subparsers
from regal_jax.cli.terminate import TERMINATED, sigterm_acts_like_ctrl_c
from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.documents import parse_toml, read_toml

if TYPE_CHECKING:
    from regal_jax.learning import TrainConfig, TrainResult
    from regal_jax.learning.gflownet import GflownetTrainConfig, GflownetTrainResult
    from regal_jax.learning.ordering import OrderTrainConfig, OrderTrainResult

    Config = TrainConfig | OrderTrainConfig | GflownetTrainConfig
    Result = TrainResult | OrderTrainResult | GflownetTrainResult

__all__ = ["add_train"]

INTERRUPTED = 130
_REGAL: Final = "regal"
"""System that is trained if the file names none."""
_EPILOG = """\
The settings are described in docs/training.md. Paths in the file are relative to the file's folder, those
given with --set to the working directory.

A run that was killed, or stopped with Ctrl-C, resumes when the same command is run again, and ends with the
same weights as an uninterrupted run. The best weights so far are in DIR/policy.safetensors at any time.

examples:
  regal-jax dataset build --out synthetic
  regal-jax train run.toml --out runs/first
  regal-jax train run.toml --out runs/second --set optimizer.steps=50 --set policy.rounds=2
  regal-jax train orders.toml --out runs/third         with system = "topoformer" in the file
  regal-jax train schedules.toml --out runs/fourth     with system = "gflownet" in the file
"""


def add_train(subparsers: Subparsers) -> None:
    """Adds the command to the parser."""
    train = subparsers.add_parser(
        "train",
        help="train a policy on a set of graphs, Topoformer, or a GFlowNet",
        description="Train a policy that guides the search, by REINFORCE through the search itself; "
        "Topoformer, which orders the ops of one device; or a GFlowNet, which samples schedules.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    train.add_argument("config", metavar="CONFIG.toml", help="the settings")
    train.add_argument("--out", metavar="DIR", required=True, help="a new folder, or one of a run to resume")
    train.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="settings",
        help="change a setting, e.g. optimizer.steps=50; may be repeated",
    )
    train.add_argument(
        "--tensorboard", action="store_true", help="also write event files (needs the extra 'train')"
    )
    train.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    with sigterm_acts_like_ctrl_c() as terminated:
        try:
            result = _result(args)
        except KeyboardInterrupt:
            if not terminated():
                raise
            print("regal-jax: terminated", file=sys.stderr)
            return TERMINATED
    if not args.quiet:
        print("\n".join(_summary(result, args.out)))
    if result.finished:
        return 0
    print(
        f"regal-jax train: stopped after step {result.steps}; the same command resumes there",
        file=sys.stderr,
    )
    return TERMINATED if terminated() else INTERRUPTED


def _result(args: argparse.Namespace) -> "Result":
    # This comes before any graph is read: a batch is spread over the devices that JAX sees at its start.
    machine.use_all_cores()
    from regal_jax.learning import TrainConfig, train, training_graphs
    from regal_jax.learning.gflownet import GflownetTrainConfig, train_gflownet
    from regal_jax.learning.ordering import train_orders

    config = _config(pathlib.Path(args.config), args.settings)
    progress = not args.quiet and sys.stderr.isatty()
    if isinstance(config, GflownetTrainConfig):
        return train_gflownet(config, args.out, progress=progress, tensorboard=args.tensorboard)
    if not isinstance(config, TrainConfig):
        return train_orders(config, args.out, progress=progress, tensorboard=args.tensorboard)
    graphs, held_out = training_graphs(config)
    return train(config, graphs, held_out, args.out, progress=progress, tensorboard=args.tensorboard)


def _config(path: pathlib.Path, changes: Sequence[str]) -> "Config":
    """The settings of the file with ``changes``."""
    from regal_jax.datasets import SAMPLE_PATH

    given = dict(read_toml(path))
    kind = _kind(path, given.pop("system", _REGAL))
    document = kind.from_document(given).as_document()
    for name in ("train", "validation"):
        document["data"][name] = [
            given if given == SAMPLE_PATH else str(path.parent / given) for given in document["data"][name]
        ]
    if document["start"]:
        document["start"] = str(path.parent / document["start"])
    for change in changes:
        _set(document, change)
    return kind.from_document(document)


def _kind(path: pathlib.Path, system: Any) -> "type[Config]":
    """The class of settings for a system."""
    from regal_jax.learning import TrainConfig, gflownet, ordering

    kinds = {
        _REGAL: TrainConfig,
        ordering.SYSTEM: ordering.OrderTrainConfig,
        gflownet.SYSTEM: gflownet.GflownetTrainConfig,
    }
    if not isinstance(system, str) or system not in kinds:
        raise ConfigError(f"{path}: system is {shown(system)}; use one of {', '.join(kinds)}")
    return kinds[system]


def _set(document: dict[str, Any], change: str) -> None:
    """Puts ``NAME=VALUE`` into the document; a value that is not TOML is a string."""
    name, equals, text = change.partition("=")
    *tables, last = name.strip().split(".")
    if not equals or not last or not all(tables):
        raise ConfigError(f"--set {change}: write NAME=VALUE, e.g. optimizer.steps=50")
    value: Any = text.strip()
    with contextlib.suppress(FormatError):
        value = parse_toml(f"value = {value}")["value"]
    for table in tables:
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            raise ConfigError(f"--set {change}: {table} is a setting of its own; write {table}=VALUE")
    document[last] = value


def _summary(result: "Result", out: str) -> Sequence[str]:
    from regal_jax.learning import TrainResult
    from regal_jax.learning.ordering import OrderTrainResult

    best: Mapping[str, float] = result.best._asdict()
    other = "list scheduling"
    if isinstance(result, TrainResult):
        other = "the search without a policy"
    elif isinstance(result, OrderTrainResult):
        other = "least peak memory first"
    return [
        f"{result.steps} steps; best after step {result.best_step}",
        f"  on the validation graphs {100 * best['improvement']:+.2f} % over {other} "
        f"(from {100 * best['worst']:+.1f} to {100 * best['best']:+.1f} %)",
        f"  {100 * best['matched']:.0f} % of them matched or better",
        f"saved to {pathlib.Path(out) / 'policy.safetensors'}",
    ]
