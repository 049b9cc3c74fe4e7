"""The tables of the suite of realistic cases: every method by link, devices, memory and objective."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.experiments.compare import Comparison
from regal_jax.experiments.statistics import Interval, geometric_gap
from regal_jax.experiments.tables import left_out_of, left_out_paragraphs, markdown_table

__all__ = ["groups_fields", "realistic_markdown"]

_GROUPED_BY: Final = ("objective", "memory", "link", "devices")


def groups_fields(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per group and method: geometric means over its cases, with bootstrap intervals.

    ``ratio`` is the objective divided by that of the reference, over the cases in which both plans fit the
    memory. ``over_one_device`` is the objective divided by that of one device that runs the whole graph,
    without a limit of memory.
    """
    lines = []
    for group, mask in _groups(comparison.graphs):
        for row in comparison.rows:
            there = mask & ~np.isnan(row.seconds)
            if not there.any():
                continue
            ratio = geometric_gap((row.values / comparison.reference)[there])
            over = geometric_gap((row.values / _labels(comparison.graphs, "one_device"))[there])
            lines.append(
                {
                    "group": group,
                    "method": row.title,
                    "cases": int(there.sum()),
                    "fit": int((there & ~np.isnan(row.values)).sum()),
                    "impossible": int(_labels(comparison.graphs, "impossible")[there].sum()),
                    **_ratio("ratio", ratio),
                    **_ratio("over_one_device", over),
                    "seconds": float(np.median(row.seconds[there])),
                }
            )
    return lines


def realistic_markdown(comparison: Comparison, settings: Mapping[str, Any]) -> str:
    """The tables as Markdown."""
    reference = comparison.rows[0].title
    lines = groups_fields(comparison)
    parts = [
        f"{len(comparison.graphs):,} realistic cases, {settings['evaluations']:,} evaluations. "
        f"*Over {reference}*: geometric mean of the objective as a share of the "
        "reference's, of the cases in which both fit the "
        "memory (smaller is better); *over one device* likewise, one device without a limit of memory. In "
        "brackets: 95 % bootstrap intervals over cases (BCa, 10 000 resamples). *Fit*: plans within the "
        "memory; none can be in the cases that are *impossible* by the lower bound of the peak."
    ]
    head = ["cases", "method", f"over {reference}", "over one device", "fit", "impossible", "s per case"]
    rows = [
        [
            line["group"],
            line["method"],
            _shown(line, "ratio"),
            _shown(line, "over_one_device"),
            f"{line['fit']} of {line['cases']}",
            str(line["impossible"]),
            f"{line['seconds']:.3g}",
        ]
        for line in lines
    ]
    parts.append(markdown_table(head, rows))
    parts += left_out_paragraphs(left_out_of(comparison))
    return "\n\n".join(parts) + "\n"


def _groups(cases: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, np.ndarray]]:
    yield "all", np.ones(len(cases), bool)
    for label in _GROUPED_BY:
        found = [str(case[label]) for case in cases]
        for value in dict.fromkeys(sorted(found)):
            yield f"{label}: {value}", np.array([each == value for each in found])


def _labels(cases: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    return np.array([case[name] for case in cases], np.float64)


def _ratio(name: str, gap: Interval) -> dict[str, float | None]:
    ends = {"": gap.mean, "_low": gap.low, "_high": gap.high}
    return {f"{name}{end}": None if np.isnan(value) else 1 + value for end, value in ends.items()}


def _shown(line: Mapping[str, Any], name: str) -> str:
    mean, low, high = (line[f"{name}{end}"] for end in ("", "_low", "_high"))
    return "" if mean is None else f"{mean:.3f} [{low:.3f}, {high:.3f}]"
