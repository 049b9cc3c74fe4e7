"""Tables of results, one line per series."""

from collections.abc import Sequence

from benchmarks.results import OF_BANDWIDTH, Record
from benchmarks.timing import Series

__all__ = ["aligned", "lines", "quantity"]

HEAD = ("benchmark", "what", "median", "min", "evals/s", "us/eval", "first", "")


def quantity(value: float, unit: str) -> str:
    """A number in a suitable unit."""
    if unit == "bytes":
        return f"{value / 2**20:,.0f} MiB"
    if unit == "share":
        return f"{100 * value:.1f} %"
    for factor, name in ((1, "s"), (1e3, "ms"), (1e6, "us")):
        if value * factor >= 1 or name == "us":
            return (
                f"{value * factor:.3g} {name}" if value * factor < 1000 else f"{value * factor:,.0f} {name}"
            )
    raise AssertionError


def _row(name: str, label: str, series: Series, note: str) -> tuple[str, ...]:
    rates = series.rates()
    per_second = rates.get("evaluations_per_second")
    each = rates.get("microseconds_per_evaluation")
    return (
        name,
        label,
        quantity(series.median, series.unit),
        quantity(series.least, series.unit),
        "" if per_second is None else f"{per_second:,.0f}",
        "" if each is None else f"{each:.3g}",
        "" if series.first is None else quantity(series.first, "s"),
        note,
    )


def lines(record: Record) -> list[tuple[str, ...]]:
    """Rows of the table for one benchmark, columns as in `HEAD`."""
    rows = []
    for label, series in record.series.items():
        ratio = {key: value for key, value in record.derived.items() if key.startswith(f"{label} vs ")}
        notes = [f"{value:.2f} x {key.split(' vs ')[1]}" for key, value in ratio.items()]
        share = record.derived.get(f"{label}{OF_BANDWIDTH}")
        notes += [] if share is None else [f"{100 * share:.2g} % of bandwidth"]
        rows.append(_row(record.name, label, series, ", ".join(notes)))
    rest = {
        key: value
        for key, value in record.derived.items()
        if " vs " not in key and not key.endswith(OF_BANDWIDTH)
    }
    rows += [(record.name, key, "", "", "", "", "", f"{value:.4g}") for key, value in rest.items()]
    rows += [
        (record.name, label, "", "", "", "", "", f"skipped: {why}") for label, why in record.skipped.items()
    ]
    return rows


def aligned(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows with aligned columns; the first two and the last are text, the others numbers."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    last = len(widths) - 1

    def line(row: tuple[str, ...]) -> str:
        cells = [
            c if i == last else c.ljust(w) if i < 2 else c.rjust(w)
            for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ]
        return "  ".join(cells).rstrip()

    return "\n".join(map(line, rows))
