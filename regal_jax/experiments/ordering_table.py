"""The tables of the suite of orders: every method on every set of graphs, with the paper's figures."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from regal_jax.experiments.compare import TOLERANCE, Comparison, Row
from regal_jax.experiments.ordering_paper import ReportedOrder, reported_orders
from regal_jax.experiments.statistics import Interval, bootstrap
from regal_jax.experiments.tables import left_out_of, left_out_paragraphs, markdown_table

__all__ = ["ordering_fields", "ordering_markdown"]

_XLA: Final = "xla-best"


def ordering_fields(comparison: Comparison) -> list[dict[str, Any]]:
    """One row per set and method, under plain names; shares are not in percent.

    ``gap`` is the mean gap of the graphs from the reference, and ``same_time`` that from the reference within
    the method's own seconds; both have bootstrap intervals. ``above_xla`` is the number of graphs with a
    higher value than that of XLA's best order. ``seconds`` is the median over graphs. ``of_reference`` is the
    median of the graphs' shares of the reference's seconds. ``processor_seconds`` and ``of_processor`` are
    the same of the seconds of the host's processor, which other work on the machine does not change. The last
    row of a set is the lower bound (`regal_jax.plan.lower_bound`), which no order can pass.
    """
    lines = []
    for name, mask in _sets(comparison):
        rows = [row for row in comparison.rows if (mask & ~np.isnan(row.seconds)).any()]
        lines += [_fields(comparison, row, name, mask) for row in rows]
        bounds = _bounds(comparison, name, mask)
        lines += [bounds] if bounds else []
    return lines


def _sets(comparison: Comparison) -> Iterator[tuple[str, np.ndarray]]:
    names = [str(graph["set"]) for graph in comparison.graphs]
    for name in sorted(set(names), key=_place):
        yield name, np.array([each == name for each in names])


def _place(name: str) -> tuple[str, int]:
    """Sort key of a set: its kind, then its smallest number of ops."""
    kind, _, sizes = name.partition(" ")
    return kind, int(sizes.partition("-")[0])


def _fields(comparison: Comparison, row: Row, name: str, mask: np.ndarray) -> dict[str, Any]:
    there = mask & ~np.isnan(row.seconds)
    same = comparison.same_time.get(row.name, np.full(len(mask), np.nan))
    reference = comparison.rows[0]
    spent = row.spent[there & (row.spent > 0)]
    return {
        "set": name,
        "name": row.name,
        "method": row.title,
        "graphs": int(there.sum()),
        **_interval("gap", bootstrap(_gaps(row.values, comparison.reference)[there])),
        **_interval("same_time", bootstrap(_gaps(row.values, same)[there])),
        "above_xla": _above_xla(comparison, row, there),
        "seconds": _median(row.seconds[there]),
        "of_reference": _median(_shares(row.seconds, reference.seconds)[there]),
        "processor_seconds": _median(row.processor[there]),
        "of_processor": _median(_shares(row.processor, reference.processor)[there]),
        "evaluations": float(spent.mean()) if spent.size else None,
        "paper_gap": _joined(row.name, name, _paper_gap),
        "paper_seconds": _joined(row.name, name, lambda found: f"{found.seconds:g}"),
    }


def _shares(seconds: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """``[B]`` shares of the reference's seconds; NaN where these are 0 or unknown."""
    return np.divide(seconds, whole, out=np.full(whole.shape, np.nan), where=whole > 0)


def _median(values: np.ndarray) -> float | None:
    """Of the values that are known; ``None`` if there is none."""
    known = values[~np.isnan(values)]
    return float(np.median(known)) if known.size else None


def _bounds(comparison: Comparison, name: str, mask: np.ndarray) -> dict[str, Any] | None:
    """The row of the lower bound; ``None`` for an evaluation without bounds."""
    least = np.array([graph.get("lower_bound", np.nan) for graph in comparison.graphs], np.float64)
    there = mask & ~np.isnan(least)
    if not there.any():
        return None
    return {
        "set": name,
        "name": "lower-bound",
        "method": "Lower bound",
        "graphs": int(there.sum()),
        **_interval("gap", bootstrap(_gaps(least, comparison.reference)[there])),
        **_interval("same_time", bootstrap(np.empty(0))),
        **dict.fromkeys(("above_xla", "seconds", "of_reference", "processor_seconds", "of_processor")),
        "evaluations": None,
        "paper_gap": "",
        "paper_seconds": "",
    }


def _above_xla(comparison: Comparison, row: Row, there: np.ndarray) -> int | None:
    xla = next((each for each in comparison.rows if each.name == _XLA), None)
    if xla is None or row is xla:
        return None
    return int((row.values[there] > xla.values[there] * (1 + TOLERANCE)).sum())


def ordering_markdown(comparison: Comparison, settings: Mapping[str, Any]) -> str:
    """The tables as Markdown."""
    lines = ordering_fields(comparison)
    reference = comparison.rows[0].title
    alone = f"{len(comparison.graphs):,} graphs, one device, peak memory, one graph at a time. "
    parts = [
        f"{alone}*Gap*: mean over graphs of peak over that of {reference}, minus 1; *in the same time*: over "
        f"that of {reference} of the largest width that ends in the method's own seconds; less is better. In "
        "brackets: 95 % bootstrap intervals over graphs (BCa, 10 000 resamples). Seconds: median over "
        "graphs, without compilation; *processor*: of the host's processor, all cores. *Above XLA*: number "
        "of graphs with a higher peak than XLA's best of three orders. No order has a lower peak than the "
        "*lower bound*. The paper's figures are of other graphs and another machine; in brackets the number "
        "of its table.",
        f"Settings: {_settings(settings)}.",
    ]
    head = ["method", "graphs", "gap", "gap in the same time", "s per graph", f"of {reference}'s s"]
    head += ["processor s per graph", f"of {reference}'s processor s"]
    head += ["above XLA", "evaluations", "paper: gap", "paper: s"]
    for name in dict.fromkeys(line["set"] for line in lines):
        rows = [_cells(line) for line in lines if line["set"] == name]
        parts.append(f"## {name[0].upper()}{name[1:]}\n\n{markdown_table(head, rows)}")
    parts += left_out_paragraphs(left_out_of(comparison))
    return "\n\n".join(parts) + "\n"


def _settings(settings: Mapping[str, Any]) -> str:
    from regal_jax.experiments.topological_order import SETTINGS, SHARE

    given = settings["options"]
    width, limit = (
        {**SETTINGS[name], **given.get(name, {}).get("settings", {})}[field]
        for name, field in (("approximate-dp", "width"), ("depth-first-dp", "time_limit"))
    )
    return (
        f"approximate DP of width {width:,}, depth-first DP for {limit:g} s, searches for {SHARE:.0%} of "
        "approximate DP's seconds of the same graph"
    )


def _gaps(values: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """``[B]`` gaps; where the reference is 0, 0 if the value is 0, too, else NaN."""
    ratio = np.divide(values, reference, out=np.full(values.shape, np.nan), where=reference > 0)
    return np.where((values == 0) & (reference == 0), 0.0, ratio - 1)


def _interval(name: str, found: Interval) -> dict[str, float | None]:
    ends = {"": found.mean, "_low": found.low, "_high": found.high}
    return {f"{name}{end}": None if np.isnan(value) else float(value) for end, value in ends.items()}


def _cells(line: Mapping[str, Any]) -> list[str]:
    spent = line["evaluations"]
    return [
        line["method"],
        str(line["graphs"]),
        _percents(line, "gap"),
        _percents(line, "same_time"),
        *_times(line, "seconds", "of_reference"),
        *_times(line, "processor_seconds", "of_processor"),
        "" if line["above_xla"] is None else str(line["above_xla"]),
        "" if spent is None else f"{spent:,.0f}",
        line["paper_gap"],
        line["paper_seconds"],
    ]


def _times(line: Mapping[str, Any], seconds: str, share: str) -> tuple[str, str]:
    took, of = line[seconds], line[share]
    return "" if took is None else f"{took:.3g}", "" if of is None else f"{100 * of:.3g} %"


def _percents(line: Mapping[str, Any], name: str) -> str:
    mean, low, high = (line[f"{name}{end}"] for end in ("", "_low", "_high"))
    return "" if mean is None else f"{100 * mean:+z.2f} % [{100 * low:+z.2f}, {100 * high:+z.2f}]"


def _paper_gap(found: ReportedOrder) -> str:
    half = "" if found.half_width is None else f" ± {100 * found.half_width:.2f}"
    return f"{100 * found.gap:+z.2f} %{half}"


def _joined(method: str, set_: str, text: Any) -> str:
    """Figures of the paper's tables, each followed by the number of its table."""
    return ", ".join(f"{text(found)} ({found.table})" for found in reported_orders(method, set_))
