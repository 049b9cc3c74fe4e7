"""Comparison of two results: slower, faster, or within noise."""

import argparse
import dataclasses
import statistics
import sys
from typing import Final

from benchmarks.results import Record, Results, load
from benchmarks.table import aligned, quantity
from benchmarks.timing import Series
from regal_jax.errors import ConfigError

__all__ = ["Change", "add_arguments", "compare", "report", "run"]

_FLOOR: Final = 1.03
"""Ratio of equal runs in two processes, which repeats in one process cannot show."""

_FEWEST: Final = 3
"""Fewest repeats for an estimate of noise."""


@dataclasses.dataclass(frozen=True)
class Change:
    """One series in both results.

    Attributes:
      name: Name of the benchmark.
      label: Label of the series.
      before: Median of the repeats in the first result, in `unit`.
      after: Median of the repeats in the second result, in `unit`.
      unit: ``s``, ``bytes`` or ``share``.
      ratio: ``after / before``; above 1 is worse.
      by_peer: The ratio after division of both by their peer's time in the same rounds, which cancels the
        load of the machine. ``None`` without a peer.
      verdict: ``slower``, ``faster``, ``same``, or ``too few repeats``.
    """

    name: str
    label: str
    before: float
    after: float
    unit: str
    ratio: float
    by_peer: float | None
    verdict: str


def _quartiles(series: Series) -> tuple[float, float]:
    if len(series.values) == 1:
        return series.values[0], series.values[0]
    low, _, high = statistics.quantiles(series.values, n=4, method="inclusive")
    return low, high


def _verdict(before: Series, after: Series, ratio: float) -> str:
    """Verdict on a series, by the overlap of the middle halves of repeats and by the medians."""
    if before.unit == "s" and min(len(before.values), len(after.values)) < _FEWEST:
        return "too few repeats"
    (low_before, high_before), (low_after, high_after) = _quartiles(before), _quartiles(after)
    if ratio > _FLOOR and low_after > high_before:
        return "slower"
    if ratio < 1 / _FLOOR and high_after < low_before:
        return "faster"
    return "same"


def _by_peer(before: Record, after: Record, label: str) -> float | None:
    for key, value in before.derived.items():
        own, _, other = key.partition(" vs ")
        if own == label and other.split()[-1] == "peer" and after.derived.get(key):
            return value / after.derived[key]
    return None


def compare(before: Results, after: Results) -> list[Change]:
    """Every series that both results hold, with the same parameters.

    Raises:
      ConfigError: There is none.
    """
    old, changes = {record.name: record for record in before.records}, []
    for record in after.records:
        other = old.get(record.name)
        if other is None or other.parameters != record.parameters:
            continue
        for label, series in record.series.items():
            past = other.series.get(label)
            if past is None or past.unit != series.unit:
                continue
            # Both may be 0, for example without any waste before and after.
            ratio = series.median / past.median if past.median else 1.0 if not series.median else float("inf")
            verdict, by_peer = _verdict(past, series, ratio), _by_peer(other, record, label)
            sizes = (past.median, series.median, series.unit)
            changes.append(Change(record.name, label, *sizes, ratio, by_peer, verdict))
    if not changes:
        raise ConfigError("the two results have no benchmark with the same parameters in common")
    return changes


def report(before: Results, after: Results, changes: list[Change]) -> str:
    """A table, and notes on differences that make the comparison unfair."""
    rows = [("benchmark", "what", "before", "after", "ratio", "by peer", "")]
    rows += [
        (
            c.name,
            c.label,
            quantity(c.before, c.unit),
            quantity(c.after, c.unit),
            f"{c.ratio:.3f}",
            "" if c.by_peer is None else f"{c.by_peer:.3f}",
            "" if c.verdict == "same" else c.verdict,
        )
        for c in changes
    ]
    notes = [
        f"note: {what} differ: {old} / {new}"
        for what in ("hardware", "versions")
        if (old := before.environment.get(what)) != (new := after.environment.get(what))
    ]
    left_out = {r.name for r in (*before.records, *after.records)} - {c.name for c in changes}
    if left_out:
        notes.append(f"note: not in both with the same parameters: {', '.join(sorted(left_out))}")
    counts = [f"{sum(c.verdict == v for c in changes)} {v}" for v in ("slower", "faster", "same")]
    return "\n".join([aligned(rows), *notes, f"{', '.join(counts)}; ratios above 1 are worse"])


def _factor(text: str) -> float:
    number = float(text)
    if not 1 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a factor of at least 1, such as 1.1, got {text}")
    return number


_factor.__name__ = "factor"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("before", metavar="BEFORE.json")
    parser.add_argument("after", metavar="AFTER.json")
    parser.add_argument(
        "--fail-above",
        type=_factor,
        metavar="X",
        help="exit 1 if anything is slower by more than this factor",
    )


def run(args: argparse.Namespace) -> int:
    """Prints the comparison of two files; returns the exit code."""
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
