"""``regal-jax corpus``: build and describe a corpus of real graphs. Heavy imports stay inside."""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["add_corpus"]

INTERRUPTED = 130

_BUILD_EPILOG = """\
sources: keras-applications, keras-hub, flax, timm, transformers (pip install 'regal-jax[corpus]').
forms:   forward, gradient, training-step (JAX models; PyTorch models have the first two).

A build that was stopped, killed or interrupted goes on where it was when the same command runs again.
What gives no graph is listed in DIR/failures.jsonl, with the reason.

examples:
  regal-jax corpus build --out corpus
  regal-jax corpus build --out corpus --sources timm --only 'timm/resnet*' --forms forward
  regal-jax corpus build --out small --limit 3 --jobs 4
"""


def _build(args: argparse.Namespace) -> int:
    from regal_jax.datasets.corpus import build_corpus, describe

    progress: Callable[..., Any] | None = None
    if not args.quiet and sys.stderr.isatty():
        from tqdm import tqdm as progress
    document = build_corpus(
        args.out,
        sources=None if args.sources is None else _names(args.sources),
        forms=_names(args.forms),
        only=args.only,
        limit=args.limit,
        jobs=args.jobs,
        timeout=args.timeout,
        profile=args.profile,
        min_ops=args.min_ops,
        max_ops=args.max_ops,
        retry_failures=args.retry_failures,
        progress=progress,
    )
    if not args.quiet:
        print(describe(document))
    if not document["complete"]:
        print("regal-jax corpus: interrupted; run the same command to go on", file=sys.stderr)
        return INTERRUPTED
    return 0


def _show(args: argparse.Namespace) -> int:
    from regal_jax.datasets.corpus import describe, finish

    print(describe(finish(pathlib.Path(args.folder))))
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def add_corpus(subparsers: Any, count: Callable[[str], int], seconds: Callable[[str], float]) -> None:
    """Adds the command ``corpus`` to a parser.

    Args:
      subparsers: Of the whole command.
      count: Reads a positive whole number.
      seconds: Reads a positive number.
    """
    corpus = subparsers.add_parser(
        "corpus",
        help="build a corpus of real graphs, or describe one",
        description="Graphs of the models of public libraries, traced from shapes: no weights, no downloads.",
    )
    actions = corpus.add_subparsers(dest="action", required=True, metavar="ACTION")
    build = actions.add_parser(
        "build",
        help="trace real models into a folder",
        description="Trace the models of public libraries into a folder, with splits by architecture family.",
        epilog=_BUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    build.add_argument("--out", metavar="DIR", required=True, help="folder of the corpus; made if not there")
    build.add_argument(
        "--sources", metavar="NAMES", help="comma-separated (default: all whose packages are installed)"
    )
    build.add_argument(
        "--forms", metavar="NAMES", default="forward,gradient,training-step", help="(default: all three)"
    )
    build.add_argument("--only", metavar="GLOB", help="only recipes whose SOURCE/MODEL.FORM matches")
    build.add_argument("--limit", type=count, metavar="N", help="at most N recipes of each source and form")
    build.add_argument("--jobs", type=count, metavar="N", help="worker processes (default: one a core)")
    build.add_argument(
        "--timeout", type=seconds, default=300.0, metavar="S", help="seconds for one graph (default 300)"
    )
    build.add_argument(
        "--profile", default="h200", metavar="NAME", help="device that runtimes are for (default h200)"
    )
    build.add_argument("--min-ops", type=count, default=57, metavar="N", help="(default 57)")
    build.add_argument("--max-ops", type=count, default=60_000, metavar="N", help="(default 60000)")
    build.add_argument("--retry-failures", action="store_true", help="try again what failed before")
    build.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    build.set_defaults(run=_build)

    show = actions.add_parser(
        "show",
        help="describe a corpus",
        description="Bring the duplicates, splits and counts of a corpus up to date, and print them.",
    )
    show.add_argument("folder", metavar="DIR", help="folder of the corpus")
    show.set_defaults(run=_show)
