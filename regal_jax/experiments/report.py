"""`report`: tables, pictures and a summary of the results in a folder."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from regal_jax.errors import FormatError
from regal_jax.experiments.compare import Comparison, Row, compare
from regal_jax.experiments.contrasts import FIELDS, contrasts
from regal_jax.experiments.ordering_table import ordering_fields, ordering_markdown
from regal_jax.experiments.realistic_table import groups_fields, realistic_markdown
from regal_jax.experiments.records import Records, read_evaluation
from regal_jax.experiments.robust_figures import (
    draw_losses,
    draw_regimes,
    draw_temperatures,
    temperatures_markdown,
)
from regal_jax.experiments.robust_table import (
    robust_contrasts,
    robust_differences_markdown,
    robust_fields,
    robust_markdown,
    robust_points,
    robust_temperatures,
)
from regal_jax.experiments.rounds import validation_over_rounds
from regal_jax.experiments.statistics import bootstrap
from regal_jax.experiments.tables import as_csv, graphs_csv, row_fields, table_markdown
from regal_jax.storage.atomic import write_atomically
from regal_jax.storage.paths import folder_path
from regal_jax.viz import (
    plot_entropies,
    plot_improvements,
    plot_limits,
    plot_quality,
    plot_rounds,
    plot_seconds,
    plot_targets,
)

__all__ = ["Report", "report"]

_PANELS: Final = 6

_OF_TRAININGS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "rounds": ("rounds.png",),
        "losses": ("losses.png", "losses.csv"),
        "regimes": ("regimes.png", "regimes.csv"),
    }
)
"""Setting that names trainings -> the files that are drawn from them."""

_SOMETIMES: Final = frozenset(
    {"graphs.csv", "contrasts.csv", "improvements.png", "limits.png", "entropy.png", "seconds.png"}
    | {"quality.png", "targets.png", "temperatures.png", "temperatures.csv"}
    | {name for names in _OF_TRAININGS.values() for name in names}
)
"""Files that only some reports have."""


@dataclasses.dataclass(frozen=True, eq=False)
class Report:
    """The files and figures that `report` wrote.

    Attributes:
      comparison: The figures; ``None`` for the suite of robust scheduling, whose rows are in ``table.csv``.
      files: Names of the files in the folder.
      table: The text of ``table.md``.
      problems: One line for each picture that could not be drawn.
    """

    comparison: Comparison | None
    files: tuple[str, ...]
    table: str
    problems: tuple[str, ...]


def report(out: str | os.PathLike[str]) -> Report:
    """Writes ``table.csv``, ``table.md``, ``graphs.csv``, ``contrasts.csv``, ``summary.json`` and pictures.

    The report covers the settings of the last run in that folder. If that run is unfinished, the report
    covers the results so far. Tables and pictures of an earlier report that this one lacks are deleted,
    except those of trainings that it names and cannot read. docs/evaluation.md defines each figure.

    Args:
      out: Folder that `run_evaluation` wrote.

    Raises:
      FormatError: There is no evaluation or no result, or a result is damaged.
      OSError: A file cannot be written.
    """
    folder = folder_path(out)
    document, records = read_evaluation(folder), Records(folder)
    with _undamaged(folder):
        settings = document["config"]
        robust = settings.get("suite") == "robust-scheduling"
        made = (_robust if robust else _compared)(folder, document, records)
        named = {name for key, names in _OF_TRAININGS.items() if settings.get(key) for name in names}
    for name in _SOMETIMES - named - set(made.files):
        (folder / name).unlink(missing_ok=True)
    return made


@contextlib.contextmanager
def _undamaged(folder: pathlib.Path) -> Iterator[None]:
    """A context in which settings and results of another form than those that are written are damaged."""
    try:
        yield
    except FormatError:
        raise
    except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{folder}: damaged evaluation ({error!r}); run 'regal-jax evaluate' again"
        ) from error


def _compared(folder: pathlib.Path, document: Mapping[str, Any], records: Records) -> Report:
    """The report of methods that are compared with a reference."""
    comparison, settings = compare(document, records), document["config"]
    if not comparison.rows:
        refusals = ((m, why) for m, why in comparison.left_out.items() if m not in document["left_out"])
        method, reason = next(refusals, ("", ""))
        if reason and records.made:
            raise FormatError(f"{folder}: no method has a result; {method}: {reason}")
        raise FormatError(f"{folder}: no result in it yet; run 'regal-jax evaluate' first")
    validation, problems = _validation(settings["rounds"])
    figures = _draw(folder, comparison, validation)
    lines, table = _tables(comparison, settings, figures)
    texts = {
        "table.csv": as_csv(lines),
        "table.md": table,
        "graphs.csv": graphs_csv(comparison),
        "contrasts.csv": as_csv(contrasts(comparison), FIELDS),
        "summary.json": _summary(comparison, settings, validation, lines),
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    return Report(comparison, (*texts, *figures), table, problems)


def _robust(folder: pathlib.Path, document: Mapping[str, Any], records: Records) -> Report:
    """The report of the suite of robust scheduling."""
    lines, points = robust_fields(document, records), robust_points(document, records)
    apart = robust_contrasts(document, records)
    temperatures, settings = robust_temperatures(document, records), document["config"]
    if not lines:
        raise FormatError(f"{folder}: no result in it yet; run 'regal-jax evaluate' first")
    figures = []
    if points:
        plot_targets(points, folder / "targets.png")
        figures.append("targets.png")
    drawn = [
        draw_temperatures(folder, temperatures),
        draw_losses(folder, settings.get("losses", {})),
        draw_regimes(folder, settings.get("regimes", {})),
    ]
    figures += [name for each in drawn for name in each.figures]
    summary = {
        "format": "regal_jax.evaluation.summary",
        "version": 1,
        "config": settings,
        "graphs": len(document["graphs"]),
        "table": lines,
        "contrasts": apart,
        "left_out": dict(document["left_out"]),
    }
    sections = [robust_differences_markdown(apart), temperatures_markdown(temperatures)]
    texts = {
        "table.csv": as_csv(lines),
        "table.md": robust_markdown(document, lines, figures, sections),
        **({"contrasts.csv": as_csv(apart)} if apart else {}),
        **{name: text for each in drawn for name, text in each.texts.items()},
        "summary.json": json.dumps(_plain(summary), indent=1, ensure_ascii=False) + "\n",
    }
    for name, text in texts.items():
        write_atomically(folder / name, text.encode())
    problems = tuple(problem for each in drawn for problem in each.problems)
    return Report(None, (*texts, *figures), texts["table.md"], problems)


def _tables(
    comparison: Comparison, settings: Mapping[str, Any], figures: Sequence[str]
) -> tuple[list[dict[str, Any]], str]:
    """The table of the suite as records and as Markdown."""
    suite = settings.get("suite")
    if suite == "realistic":
        return groups_fields(comparison), realistic_markdown(comparison, settings)
    if suite == "topological-order":
        return ordering_fields(comparison), ordering_markdown(comparison, settings)
    lines = [row_fields(comparison, row) for row in comparison.rows]
    return lines, table_markdown(comparison, settings, figures)


def _validation(rounds: Mapping[str, Sequence[str]]) -> tuple[dict[int, list[float]], tuple[str, ...]]:
    """The points of Fig. 4b; no points and the reason if a file cannot be read."""
    try:
        return validation_over_rounds(rounds), ()
    except FormatError as error:
        return {}, (f"rounds.png is not drawn: {error}",)


def _draw(folder: pathlib.Path, comparison: Comparison, validation: Mapping[int, list[float]]) -> list[str]:
    rows, reference = comparison.rows, comparison.rows[0].title
    made = []

    def at(name: str) -> pathlib.Path:
        made.append(name)
        return folder / name

    panels = {row.title: row.saved for row in _panels(rows)}
    if panels:
        plot_improvements(panels, reference, at("improvements.png"))
    if comparison.curves:
        plot_limits(comparison.curves, reference, at("limits.png"))
    entropies = {row.title: row.entropy for row in rows if not np.isnan(row.entropy).all()}
    if entropies:
        plot_entropies(entropies, at("entropy.png"))
    if validation:
        plot_rounds(validation, at("rounds.png"))
    plot_seconds(
        {row.title: row.seconds for row in rows if not np.isnan(row.seconds).all()}, at("seconds.png")
    )
    if comparison.times:
        plot_quality(
            {title: [*points.values()] for title, points in comparison.times.items()}, at("quality.png")
        )
    return made


def _panels(rows: Sequence[Row]) -> list[Row]:
    """Rows in Fig. 2: first policies, then the other methods, without the other seed."""
    others = [row for row in rows[1:] if row.name != "other-seed" and not np.isnan(row.saved).all()]
    return sorted(others, key=lambda row: not row.guided)[:_PANELS]


def _summary(
    comparison: Comparison,
    settings: Mapping[str, Any],
    validation: Mapping[int, list[float]],
    lines: Sequence[Mapping[str, Any]],
) -> str:
    rows = []
    for row in comparison.rows:
        fields = {"name": row.name, **row_fields(comparison, row)}
        saved = row.saved[~np.isnan(row.saved)]
        fields["histogram"] = {
            "better": _share(saved > 1e-9), "worse": _share(saved < -1e-9), "ties": _share(abs(saved) <= 1e-9)
        }  # fmt: skip
        if not np.isnan(row.entropy).all():
            fields["action_entropy"] = bootstrap(row.entropy)._asdict()
        if row.refused:
            fields["refused"] = dict(row.refused)
        rows.append(fields)
    document = {
        "format": "regal_jax.evaluation.summary",
        "version": 1,
        "config": settings,
        "graphs": len(comparison.graphs),
        "rows": rows,
        # The records of the other suites are rows by groups of graphs.
        **({} if settings.get("suite", "regal") == "regal" else {"table": lines}),
        "left_out": dict(comparison.left_out),
        "curves": {
            title: [{"evaluations": limit, **point._asdict()} for limit, point in curve.items()]
            for title, curve in comparison.curves.items()
        },
        "times": {
            title: [
                {"evaluations": budget, "seconds": seconds, **gap._asdict()}
                for budget, (seconds, gap) in points.items()
            ]
            for title, points in comparison.times.items()
        },
        "best_by": _counts(comparison.best_by),
        "validation_over_rounds": {str(t): runs for t, runs in validation.items()},
    }
    return json.dumps(_plain(document), indent=1, ensure_ascii=False) + "\n"


def _share(mask: np.ndarray) -> float | None:
    return float(mask.mean()) if mask.size else None


def _counts(names: Sequence[str]) -> dict[str, int]:
    return {name: names.count(name) for name in dict.fromkeys(names) if name}


def _plain(value: Any) -> Any:
    """A value for JSON, with ``None`` for NaN."""
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and math.isnan(value) else value
