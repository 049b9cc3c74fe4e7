"""``regal-jax corpus``: build, describe and sample a corpus of real graphs. Heavy imports are local."""

import argparse
import os
import pathlib
import sys
from typing import Any

from regal_jax.checks import counted
from regal_jax.cli.arguments import Subparsers, add_engine, add_out, count, seconds
from regal_jax.cli.progress import progress_bars

__all__ = ["add_corpus"]

INTERRUPTED = 130

_BUILD_EPILOG = """\
sources: keras-applications, keras-hub, flax, timm, transformers (pip install 'regal-jax[corpus]').
forms:   forward, gradient, training-step (JAX models; PyTorch models have the first two).

A build that was stopped or killed resumes when the same command runs again.
DIR/failures.jsonl lists what gives no graph, with the reason.

examples:
  regal-jax corpus build --out corpus
  regal-jax corpus build --out corpus --sources timm --only 'timm/resnet*' --forms forward
  regal-jax corpus build --out test --split test
  regal-jax corpus build --out small --limit 3 --jobs 4
  regal-jax corpus build --out corpus --engine ray:10.0.0.1:6379
"""


def _build(args: argparse.Namespace) -> int:
    from regal_jax.corpus import build_corpus, describe

    document = build_corpus(
        args.out,
        sources=None if args.sources is None else _names(args.sources),
        forms=_names(args.forms),
        only=args.only,
        split=args.split,
        limit=args.limit,
        jobs=args.jobs,
        timeout=args.timeout,
        profile=args.profile,
        min_ops=args.min_ops,
        max_ops=args.max_ops,
        retry_failures=args.retry_failures,
        new_families=args.new_families,
        progress=progress_bars(quiet=args.quiet),
        engine=args.engine,
    )
    if not args.quiet:
        print(describe(document))
    if document["skipped"]:
        print(
            f"regal-jax corpus: not complete: {', '.join(document['skipped'])} did not start; mend what the "
            "warning says and run the same command again",
            file=sys.stderr,
        )
        return 1
    if not document["complete"]:
        print("regal-jax corpus: interrupted; run the same command again to resume", file=sys.stderr)
        return INTERRUPTED
    return 0


def _show(args: argparse.Namespace) -> int:
    from regal_jax.corpus import describe, finish

    print(describe(finish(args.folder)))
    return 0


def _check(args: argparse.Namespace) -> int:
    from regal_jax.cli import machine

    machine.use_all_cores()
    from regal_jax.corpus import check_corpus
    from regal_jax.datasets import corpus_records

    failures = check_corpus(
        args.folder, evaluations=args.evaluations, progress=progress_bars(quiet=args.quiet)
    )
    for path, line in sorted(failures.items()):
        print(f"regal-jax corpus: {path}: {line}", file=sys.stderr)
    held = counted(len(corpus_records(args.folder)) - len(failures), "graph holds", "graphs hold")
    print(f"{held}, {counted(len(failures), 'does not', 'do not')}")
    return 1 if failures else 0


def _card(args: argparse.Namespace) -> int:
    from regal_jax.cli.sources import check_writable
    from regal_jax.corpus import card_facts, format_card, write_card
    from regal_jax.viz import check_picture, plot_sizes

    check_writable(args.out, args.figure)
    check_picture(args.figure)
    facts = card_facts(args.folder, progress=progress_bars(quiet=args.quiet))
    address = None
    if args.figure is not None:
        groups: dict[str, list[Any]] = {}
        for record in facts.distinct:
            groups.setdefault(record["source"], []).append(record)
        plot_sizes(groups, facts.degrees, args.figure)
        address = pathlib.Path(
            os.path.relpath(os.path.abspath(args.figure), os.path.dirname(os.path.abspath(args.out)))
        ).as_posix()
    write_card(format_card(facts, address), args.out)
    if not args.quiet:
        print(f"{args.out}: the card of {counted(len(facts.distinct), 'distinct graph')}")
    return 0


def _sample(args: argparse.Namespace) -> int:
    from regal_jax.corpus import write_sample
    from regal_jax.graph.units import format_bytes, parse_bytes

    most = parse_bytes(args.max_bytes, "--max-bytes")
    records = write_sample(
        args.folder,
        args.out,
        graphs=args.graphs,
        max_bytes=int(min(most, 2**62)),
        max_ops=args.max_ops,
        progress=progress_bars(quiet=args.quiet),
    )
    if not args.quiet:
        size = sum(path.stat().st_size for path in pathlib.Path(args.out).rglob("*") if path.is_file())
        families, ops = len({r["family"] for r in records}), sum(r["ops"] for r in records)
        print(
            f"{args.out}: {counted(len(records), 'graph')} of "
            f"{counted(families, 'family', 'families')}, {ops:,} ops, "
            f"{format_bytes(size)}"
        )
    return 0


def _splits(args: argparse.Namespace) -> int:
    from collections import Counter

    from regal_jax.cli.sources import check_writable
    from regal_jax.corpus import write_family_splits

    check_writable(args.out)
    document = write_family_splits(args.folder, args.out)
    if not args.quiet:
        families = Counter(document["families"].values())
        listed = ", ".join(f"{split} {number}" for split, number in sorted(families.items()))
        print(
            f"{args.out}: {counted(families.total(), 'family', 'families')} of "
            f"{counted(document['distinct'], 'distinct graph')}: {listed}"
        )
    return 0


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def add_corpus(subparsers: Subparsers) -> None:
    """Adds the command to the parser."""
    corpus = subparsers.add_parser(
        "corpus",
        help="build a corpus of real graphs, or describe one",
        description="Graphs of the models of public libraries, traced from shapes: no weights, no downloads.",
    )
    actions = corpus.add_subparsers(dest="action", required=True, metavar="ACTION")
    _add_build(actions)
    show = actions.add_parser(
        "show",
        help="describe a corpus",
        description="Bring the duplicates, splits and counts of a corpus up to date, and print them.",
    )
    show.add_argument("folder", metavar="DIR", help="folder of the corpus")
    show.set_defaults(run=_show)
    _add_check(actions)
    _add_splits(actions)
    _add_card(actions)
    _add_sample(actions)


def _add_build(actions: Subparsers) -> None:
    build = actions.add_parser(
        "build",
        help="trace real models into a folder",
        description="Trace the models of public libraries into a folder, with splits by architecture family.",
        epilog=_BUILD_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_out(build, "folder of the corpus; created if missing")
    build.add_argument(
        "--sources", metavar="NAMES", help="comma-separated (default: all whose packages are installed)"
    )
    build.add_argument(
        "--forms",
        metavar="NAMES",
        default="forward,gradient,training-step",
        help="comma-separated (default: all three)",
    )
    build.add_argument("--only", metavar="GLOB", help="only graphs whose SOURCE/MODEL.FORM matches")
    build.add_argument(
        "--split",
        metavar="NAME",
        help="only families that have this split in the installed table: train, validation or test",
    )
    build.add_argument("--limit", type=count, metavar="N", help="at most N graphs of each source and form")
    build.add_argument("--jobs", type=count, metavar="N", help="worker processes (default: one per core)")
    build.add_argument(
        "--timeout", type=seconds, default=300.0, metavar="S", help="seconds per graph (default 300)"
    )
    build.add_argument(
        "--profile", default="h200", metavar="NAME", help="device that runtimes are for (default h200)"
    )
    build.add_argument("--min-ops", type=count, default=57, metavar="N", help="fewest ops (default 57)")
    build.add_argument("--max-ops", type=count, default=60_000, metavar="N", help="most ops (default 60000)")
    add_engine(build, "where models are traced")
    build.add_argument("--retry-failures", action="store_true", help="retry what failed before")
    build.add_argument(
        "--new-families",
        action="store_true",
        help="only families without a split in the installed table; all graphs are test graphs",
    )
    build.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    build.set_defaults(run=_build)


def _add_check(actions: Subparsers) -> None:
    check = actions.add_parser(
        "check",
        help="read, search and replay every graph of a corpus; exit 1 if any does not hold",
        description=(
            "Read every graph, compare it with its record, search a plan for two devices, replay it exactly; "
            "exit 1 and one line per graph that does not hold."
        ),
    )
    check.add_argument("folder", metavar="DIR", help="folder of the corpus")
    check.add_argument(
        "--evaluations", type=count, default=200, metavar="N", help="search budget (default 200)"
    )
    check.add_argument("--quiet", action="store_true", help="no progress bar")
    check.set_defaults(run=_check)


def _add_splits(actions: Subparsers) -> None:
    splits = actions.add_parser(
        "splits",
        help="make the table of families and their splits",
        description=(
            "Balance the splits of a whole corpus, family by family, and write them as a table. The table "
            "regal_jax/corpus/family_splits.json fixes them for every corpus. Families in a table "
            "that FILE holds already keep their splits."
        ),
        epilog="Delete FILE to start over. Earlier weights may then have seen graphs of the new test split.",
    )
    splits.add_argument("folder", metavar="DIR", help="folder of the corpus")
    splits.add_argument("--out", metavar="FILE", required=True, help="the JSON file")
    splits.add_argument("--quiet", action="store_true", help="no summary")
    splits.set_defaults(run=_splits)


def _add_card(actions: Subparsers) -> None:
    card = actions.add_parser(
        "card",
        help="write the data card of a corpus",
        description="Count what is in a corpus and write it as Markdown, with a figure of histograms.",
        epilog=(
            "An existing FILE must have the two marker comments that a new one is written with. What is "
            "between them is replaced. Run 'regal-jax corpus show DIR' first if a build was killed."
        ),
    )
    card.add_argument("folder", metavar="DIR", help="folder of the corpus")
    card.add_argument("--out", metavar="FILE", required=True, help="the Markdown file")
    card.add_argument("--figure", metavar="FILE", help="draw histograms (.png, .pdf, .svg)")
    card.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    card.set_defaults(run=_card)


def _add_sample(actions: Subparsers) -> None:
    sample = actions.add_parser(
        "sample",
        help="write a small, varied part of a corpus, contracted",
        description=(
            "Pick distinct graphs spread over families, sources, forms and sizes, contract them, and write "
            "them with an index; the same corpus gives the same bytes. A sample in FOLDER is replaced."
        ),
    )
    sample.add_argument("folder", metavar="DIR", help="folder of the corpus")
    add_out(sample, "folder of the sample; created if missing", metavar="FOLDER")
    sample.add_argument("--graphs", type=count, default=60, metavar="N", help="at most N graphs (default 60)")
    sample.add_argument(
        "--max-bytes", default="2MB", metavar="SIZE", help="size of all files on disk (default 2MB)"
    )
    sample.add_argument(
        "--max-ops", type=count, default=800, metavar="N", help="most ops of a contracted graph (default 800)"
    )
    sample.add_argument("--quiet", action="store_true", help="no progress bar, no summary")
    sample.set_defaults(run=_sample)
