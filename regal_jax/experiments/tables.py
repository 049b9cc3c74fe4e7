"""The tables of a comparison, as CSV and as Markdown."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from regal_jax.checks import counted
from regal_jax.experiments.compare import Comparison, Row
from regal_jax.experiments.paper import DATASETS, reported
from regal_jax.experiments.statistics import Interval, geometric_gap
from regal_jax.plan import Objective

__all__ = [
    "as_csv",
    "graphs_csv",
    "left_out_of",
    "left_out_paragraphs",
    "markdown_table",
    "row_fields",
    "table_markdown",
]


def row_fields(comparison: Comparison, row: Row) -> dict[str, Any]:
    """The figures of a row under plain names; ``None`` for missing ones."""
    names = [graph["name"] for graph in comparison.graphs]
    known = np.flatnonzero(~np.isnan(row.saved))
    best = int(known[np.argmax(row.saved[known])]) if known.size else None
    worst = int(known[np.argmin(row.saved[known])]) if known.size else None
    seconds = row.seconds[~np.isnan(row.seconds)]
    overhead = _overhead(row, comparison.rows[0])
    return {
        "method": row.title,
        "graphs": row.graphs,
        "refused": len(row.refused),
        "improvement": _number(row.improvement.mean),
        "improvement_low": _number(row.improvement.low),
        "improvement_high": _number(row.improvement.high),
        "gap": _number(row.gap.mean),
        "gap_low": _number(row.gap.low),
        "gap_high": _number(row.gap.high),
        "gap_fits": _number(row.gap_fits.mean),
        "gap_fits_low": _number(row.gap_fits.low),
        "gap_fits_high": _number(row.gap_fits.high),
        "matched": _number(row.matched),
        "matched_pairs": _number(row.matched_pairs),
        "best_graph": None if best is None else names[best],
        "best_improvement": None if best is None else float(row.saved[best]),
        "worst_graph": None if worst is None else names[worst],
        "worst_improvement": None if worst is None else float(row.saved[worst]),
        "seconds_per_graph": float(np.median(seconds)) if seconds.size else None,
        "overhead": _number(overhead.mean),
        "overhead_low": _number(overhead.low),
        "overhead_high": _number(overhead.high),
        "feasible": _number(row.feasible),
        "overflow": _number(row.overflow),
        "evaluations": _number(row.evaluations),
        "schedules": _number(row.schedules),
        "placements": _number(row.placements),
    }


def _overhead(row: Row, reference: Row) -> Interval:
    """Time in excess of the reference's, as a share of the reference's."""
    both = np.stack([row.seconds, reference.seconds])
    # Graphs searched together share their time equally, so equal pairs are one measurement.
    method, plain = np.unique(both[:, (both > 0).all(axis=0)], axis=1)
    return geometric_gap(method / plain)


def _number(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def graphs_csv(comparison: Comparison) -> str:
    """One line per graph: its reference, the best known value, and each method's value and improvement."""
    lines = []
    for i, graph in enumerate(comparison.graphs):
        line = dict(graph)
        line |= {"reference": _number(comparison.reference[i]), "best_known": _number(comparison.best[i])}
        line["best_by"] = comparison.best_by[i]
        for row in comparison.rows:
            line[f"{row.title}: value"] = _number(row.values[i])
            line[f"{row.title}: improvement"] = _number(row.saved[i])
        lines.append(line)
    return as_csv(lines)


def as_csv(lines: Sequence[Mapping[str, Any]], names: Sequence[str] = ()) -> str:
    """One line of CSV per record, below a head: ``names``, by default those of the first record."""
    text = io.StringIO()
    head = list(names or (lines[0] if lines else ()))
    if head:
        writer = csv.DictWriter(text, head, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    return text.getvalue()


def table_markdown(comparison: Comparison, settings: Mapping[str, Any], figures: Sequence[str] = ()) -> str:
    """The table as Markdown, followed by the papers' figures.

    Args:
      comparison: The comparison to show.
      settings: ``config`` of ``evaluation.json``.
      figures: Files of pictures to show below the table.
    """
    objective = Objective(settings["objective"])
    reference = comparison.rows[0].title if comparison.rows else "BRKGA"
    parts = [_head(comparison, settings, reference), _main(comparison, reference)]
    if _of_the_papers(settings):
        parts.append(_paper(comparison, objective))
    parts += left_out_paragraphs(left_out_of(comparison))
    parts += [f"![{figure}]({figure})" for figure in figures]
    return "\n\n".join(parts) + "\n"


def left_out_of(comparison: Comparison) -> dict[str, str]:
    """Name to reason: of methods without results, and the first of those that refused graphs."""
    reasons = dict(comparison.left_out)
    for row in comparison.rows:
        if row.refused:
            one = len(row.refused) == 1
            name = row.title + (", 1 graph" if one else f", {len(row.refused)} graphs, the first")
            reasons[name] = next(iter(row.refused.values()))
    return reasons


def left_out_paragraphs(reasons: Mapping[str, str]) -> list[str]:
    """The paragraph of what is left out, by name and reason; none if nothing is."""
    lines = [f"- {name}: {why}" for name, why in reasons.items()]
    return ["Left out:\n\n" + "\n".join(lines)] if lines else []


def _head(comparison: Comparison, settings: Mapping[str, Any], reference: str) -> str:
    searches = comparison.reference_seeds
    mean = f", the mean of its {searches} seeds," if searches > 1 else ""
    memory = "unlimited memory" if settings["memory"] == "inf" else f"{settings['memory']} per device"
    if settings.get("capacity"):
        memory = f"{settings['capacity']:g} times an even split of the memory per device"
        if settings.get("memory_ratio"):
            memory += f" in the ratio {':'.join(f'{part:g}' for part in settings['memory_ratio'])}"
    return (
        f"{counted(len(comparison.graphs), 'graph')}, {str(settings['objective']).replace('-', ' ')}, "
        f"{counted(settings['devices'], 'device')}, {memory}, transfers {settings['transfer']}, "
        f"{counted(settings['evaluations'], 'evaluation')}. Improvement is over {reference}{mean} as a "
        "mean of the graphs' percentages; the gap is from the best value that any of these searches found, "
        "as a geometric mean. In brackets: 95 % bootstrap intervals over graphs (BCa, 10 000 resamples)."
    )


def _main(comparison: Comparison, reference: str) -> str:
    rows = [row_fields(comparison, row) for row in comparison.rows]
    pairs = any(fields["matched_pairs"] is not None for fields in rows)
    head = ["method", f"improvement over {reference}", "gap from best known", "matched or better"]
    head += ["single seeds"] if pairs else []
    head += ["best graph", "worst graph", "evaluations", "schedules", "placements", "s per graph"]
    over = any(fields["overflow"] is not None for fields in rows)
    tight = any(fields["feasible"] is not None and fields["feasible"] < 1 for fields in rows)
    head += ["fit the memory", *(["gap where it fits"] if tight else [])]
    head += [*(["overflow where none fits"] if over else []), "graphs"]
    lines = []
    for fields in rows:
        line = [
            fields["method"],
            _interval(fields, "improvement", "+z"),
            _interval(fields, "gap", "z"),
            _percent(fields["matched"], ".1f"),
        ]
        line += [_percent(fields["matched_pairs"], ".1f")] if pairs else []
        line += [_percent(fields[f"{which}_improvement"], "+z.1f") for which in ("best", "worst")]
        counts = (fields[name] for name in ("evaluations", "schedules", "placements"))
        line += ["" if count is None else f"{count:,.0f}" for count in counts]
        seconds = fields["seconds_per_graph"]
        line += ["" if seconds is None else f"{seconds:.3g}", _percent(fields["feasible"], ".4g")]
        line += [_interval(fields, "gap_fits", "z")] if tight else []
        line += [_bytes(fields["overflow"])] if over else []
        lines.append([*line, f"{fields['graphs']:,}"])
    return markdown_table(head, lines)


def _of_the_papers(settings: Mapping[str, Any]) -> bool:
    """Whether the problem is that of the papers: two devices, free blocking transfers, no scarce memory."""
    scarce = settings.get("capacity") or settings["memory"] != "inf"
    return settings["devices"] == 2 and settings["transfer"] == "blocking" and not scarce


def _paper(comparison: Comparison, objective: Objective) -> str:
    """The papers' figures, for methods that are in both."""
    datasets = DATASETS[objective]
    head = ["method", "ours: improvement", "ours: gap"]
    head += [f"paper, {name}: {what}" for name in datasets for what in ("improvement", "gap")]
    lines = []
    for row in comparison.rows:
        found = [reported(row.name, name) for name in datasets]
        if all(entry is None for entry in found):
            continue
        line = [row.title, _percent(_number(row.improvement.mean), "+z.1f")]
        line.append(_percent(_number(row.gap.mean), ".1f"))
        for entry in found:
            line += ["", ""] if entry is None else [_percent(entry[1], "+z.1f"), _percent(entry[0], ".1f")]
        lines.append(line)
    note = (
        "Beside the papers' figures, which are of **other graphs** and of another measure of the best known "
        "value (CP-SAT for 24 hours); improvements computed from the published gaps."
    )
    return f"{note}\n\n{markdown_table(head, lines)}"


def _interval(fields: Mapping[str, Any], name: str, sign: str) -> str:
    mean, low, high = (fields[f"{name}{end}"] for end in ("", "_low", "_high"))
    if mean is None:
        return ""
    return f"{_percent(mean, f'{sign}.2f')} [{100 * low:{sign}.2f}, {100 * high:{sign}.2f}]"


def _bytes(count: float | None) -> str:
    return "" if count is None else f"{count / 2**20:,.4g} MiB"


def _percent(share: float | None, form: str) -> str:
    return "" if share is None else f"{100 * share:{form}} %"


def markdown_table(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are flush right. Line breaks in cells are spaces."""
    rule = ["---", *(["---:"] * (len(head) - 1))]
    rows = [[" ".join(cell.split()).replace("|", "\\|") for cell in cells] for cells in (head, rule, *lines)]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in rows)
