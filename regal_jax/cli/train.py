"""``regal-jax train``: a network of any system from a file of settings. Heavy imports are local."""

import argparse
import contextlib
import os
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from regal_jax.checks import shown
from regal_jax.cli import machine
from regal_jax.cli.arguments import Subparsers, add_out, count
from regal_jax.errors import ConfigError, FormatError, ProcessLostError
from regal_jax.runtime.interrupts import interruptible
from regal_jax.storage.documents import parse_toml, read_toml

if TYPE_CHECKING:
    from regal_jax.learning import TrainConfig, TrainResult
    from regal_jax.learning.gflownet import GflownetTrainConfig, GflownetTrainResult
    from regal_jax.learning.insertion import InsertionTrainConfig, InsertionTrainResult
    from regal_jax.learning.ordering import OrderTrainConfig, OrderTrainResult

    Config = TrainConfig | OrderTrainConfig | GflownetTrainConfig | InsertionTrainConfig
    Result = TrainResult | OrderTrainResult | GflownetTrainResult | InsertionTrainResult

__all__ = ["add_train"]

INTERRUPTED = 130
LOST = 4
"""Exit code where another process of the run has ended."""
_EPILOG = """\
The settings are described in docs/training.md. Paths in the file are relative to the file's folder, those
given with --set to the working directory.

A run that was killed, or stopped with Ctrl-C, resumes when the same command is run again, and ends with the
same weights as an uninterrupted run. The best weights so far are in DIR/policy.safetensors at any time, those
of an insertion policy in DIR/policy.toml.

With --distributed, start the command on every host, or once for every process: docs/distributed.md.

examples:
  regal-jax dataset build --out synthetic
  regal-jax train run.toml --out runs/first
  regal-jax train run.toml --out runs/second --set optimizer.steps=50 --set policy.rounds=2
  regal-jax train orders.toml --out runs/third         with system = "topoformer" in the file
  regal-jax train schedules.toml --out runs/fourth     with system = "gflownet" in the file
  regal-jax train moves.toml --out runs/fifth          with system = "insertion" in the file
  srun regal-jax train run.toml --out runs/sixth --distributed
"""


def add_train(subparsers: Subparsers) -> None:
    """Adds the command to the parser."""
    train = subparsers.add_parser(
        "train",
        help="train a policy that guides the search, Topoformer, a GFlowNet, or an insertion policy",
        description="Train one of four kinds of policy. The 'system' of CONFIG.toml names the kind:\n\n"
        "  regal       guides the search, trained by REINFORCE through the search itself (default)\n"
        "  topoformer  orders the ops of one device\n"
        "  gflownet    samples schedules\n"
        "  insertion   chooses the insertion moves of list search",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    train.add_argument("config", metavar="CONFIG.toml", help="the settings")
    add_out(train, "a new folder, or one of a run to resume")
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
    together = train.add_argument_group("several processes")
    together.add_argument(
        "--distributed",
        action="store_true",
        help="train together with the same command in other processes, as Slurm, Kubernetes, a TPU pod or "
        "the options below say",
    )
    together.add_argument("--coordinator", metavar="HOST:PORT", help="process 0, and a free port there")
    together.add_argument("--processes", metavar="N", type=count, help="number of processes")
    together.add_argument("--process", metavar="I", type=int, help="number of this process, from 0")
    together.add_argument(
        "--heartbeat",
        metavar="SECONDS",
        type=float,
        help="end when a process gave no sign of life for so long (default: 30)",
    )
    train.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    train.set_defaults(run=_train)


def _train(args: argparse.Namespace) -> int:
    if args.distributed or args.tensorboard:
        _refuse_insertion(pathlib.Path(args.config))
    try:
        with interruptible():
            result = _result(args)
    except (ValueError, ImportError, OSError, RuntimeError) as error:
        if not args.distributed:
            raise
        _end(error)
    if not args.quiet and _is_first():
        print("\n".join(_summary(result, args.out)))
    if result.finished:
        return 0
    step = f"{_steps_of(result)[:-1]} {result.steps}"
    print(f"regal-jax train: stopped after {step}; the same command resumes there", file=sys.stderr)
    return INTERRUPTED


def _refuse_insertion(path: pathlib.Path) -> None:
    """Refuses, before any process waits for the others, to train an insertion policy with others."""
    system = None
    with contextlib.suppress(ConfigError, FormatError):  # Said later, in all processes.
        system = read_toml(path).get("system")
    if system == "insertion":
        raise ConfigError("--distributed, --tensorboard: not for insertion policies; leave them out")


def _end(error: Exception) -> NoReturn:
    """Ends a process that others may wait for, so that they end, too."""
    lost = isinstance(error, ProcessLostError)
    text = " ".join(str(error).split()) or type(error).__name__
    print(f"regal-jax train: error: {text}", file=sys.stderr)
    machine.end_among_others(LOST if lost else 2)


def _is_first() -> bool:
    from regal_jax.learning.processes import is_first

    return is_first()


def _join(args: argparse.Namespace) -> None:
    """Connects this process with the others, if the command says that there are any."""
    given = {name: vars(args)[name] for name in ("coordinator", "processes", "process", "heartbeat")}
    named = [name for name, value in given.items() if value is not None]
    if not args.distributed:
        if named:
            raise ConfigError(f"--{named[0]}: is for several processes; add --distributed")
        return
    from regal_jax.learning import join_processes

    more = {} if args.heartbeat is None else {"heartbeat": args.heartbeat}
    join_processes(args.coordinator, args.processes, args.process, **more)


def _result(args: argparse.Namespace) -> "Result":
    # This comes before any graph is read: a batch is spread over the devices that JAX sees at its start.
    machine.use_all_cores()
    _join(args)
    from regal_jax.learning import TrainConfig, train, training_shares
    from regal_jax.learning.gflownet import GflownetTrainConfig, train_gflownet
    from regal_jax.learning.insertion import InsertionTrainConfig, train_insertion
    from regal_jax.learning.ordering import train_orders

    config = _config(pathlib.Path(args.config), args.settings)
    progress = not args.quiet and sys.stderr.isatty()
    if isinstance(config, GflownetTrainConfig):
        return train_gflownet(config, args.out, progress=progress, tensorboard=args.tensorboard)
    if isinstance(config, InsertionTrainConfig):
        return train_insertion(config, args.out, progress=progress)
    if not isinstance(config, TrainConfig):
        return train_orders(config, args.out, progress=progress, tensorboard=args.tensorboard)
    graphs, held_out = training_shares(config)
    return train(config, graphs, held_out, args.out, progress=progress, tensorboard=args.tensorboard)


def _config(path: pathlib.Path, changes: Sequence[str]) -> "Config":
    """The settings of the file with ``changes``."""
    from regal_jax.datasets.load import NAMED_PATHS

    document = read_toml(path)
    kind = _kind(path, document.pop("system", None))

    def beside(given: Any) -> Any:
        """Paths relative to the file's folder. What is no path is left for the check of the document."""
        if isinstance(given, list):
            return [beside(one) for one in given]
        if not isinstance(given, str) or not given or given in NAMED_PATHS:
            return given
        found = str(path.parent / given)
        # "./sample" is a folder, and stays one.
        return os.path.join(os.curdir, found) if found in NAMED_PATHS else found

    data = document.get("data")
    for table, names in ((data, ("train", "validation")), (document, ("start",))):
        if isinstance(table, dict):
            table.update((name, beside(table[name])) for name in names if name in table)
    for change in changes:
        _set(document, change)
    try:
        return kind.from_document(document)
    except ConfigError as error:
        # With changes, the error may be theirs.
        raise error if changes else ConfigError(f"{path}: {error}") from None


def _kind(path: pathlib.Path, system: Any) -> "type[Config]":
    """The class of settings for a system, that of REGAL if none is named."""
    from regal_jax.learning import TrainConfig, gflownet, insertion, ordering

    every = (
        TrainConfig, ordering.OrderTrainConfig, gflownet.GflownetTrainConfig, insertion.InsertionTrainConfig,
    )  # fmt: skip
    kinds: dict[str, type[Config]] = {kind.system: kind for kind in every}
    if system is None:
        return TrainConfig
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
    for number, table in enumerate(tables, 1):
        document = document.setdefault(table, {})
        if not isinstance(document, dict):
            setting = ".".join(tables[:number])
            raise ConfigError(f"--set {change}: {setting} is a setting of its own; write {setting}=VALUE")
    document[last] = value


def _steps_of(result: "Result") -> str:
    from regal_jax.learning.insertion import InsertionTrainResult

    return "rounds" if isinstance(result, InsertionTrainResult) else "steps"


def _summary(result: "Result", out: str) -> Sequence[str]:
    from regal_jax.learning import TrainResult
    from regal_jax.learning.insertion import InsertionTrainResult
    from regal_jax.learning.ordering import OrderTrainResult

    best: Mapping[str, float] = result.best._asdict()
    other, steps, weights = "list scheduling", _steps_of(result), "policy.safetensors"
    if isinstance(result, TrainResult):
        other = "the search without a policy"
    elif isinstance(result, OrderTrainResult):
        other = "least peak memory first"
    elif isinstance(result, InsertionTrainResult):
        other, weights = "list search without weights", "policy.toml"
    saved = f"saved to {pathlib.Path(out) / weights}"
    if best.get("pairs") == 0:
        return [f"{result.steps} {steps}; no validation graph, so the last weights are kept", saved]
    return [
        f"{result.steps} {steps}; best after {steps[:-1]} {result.best_step}",
        f"  on the validation graphs {100 * best['improvement']:+.2f} % over {other} "
        f"(from {100 * best['worst']:+.1f} to {100 * best['best']:+.1f} %)",
        f"  {100 * best['matched']:.0f} % of them matched or better",
        saved,
    ]
