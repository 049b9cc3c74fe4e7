"""Figures of a comparison, computed from results. docs/evaluation.md defines each figure."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.experiments.jobs import REFERENCES
from regal_jax.experiments.records import Records
from regal_jax.experiments.statistics import Interval, bootstrap, geometric_gap

__all__ = ["TOLERANCE", "Comparison", "Row", "compare", "improvement"]

TOLERANCE: Final = 1e-9
"""Relative difference below which two values are a tie."""

_WORST: Final = 2.0
"""Ratio to the best known value that is assumed for a plan that does not fit the memory."""

_Array = np.ndarray


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """One method in the table.

    Attributes:
      name: Name of the method; ``"other-seed"`` for BRKGA with another seed.
      title: Name in tables.
      guided: Whether it has a policy.
      graphs: Number of graphs with results.
      refused: Graph -> reason why the method does not cover it.
      saved: ``[B]`` float64, improvement over the reference as a share; NaN where there is no result.
      improvement: Mean of `saved`.
      gap: Geometric mean gap from best known, a share; NaN if no plan fits the memory.
      gap_fits: The same over the plans that fit the memory.
      matched: Share of plans as good as the reference or better.
      matched_pairs: Share of pairs of a search and a single search of the reference in which the plan is as
        good or better; ``None`` if there is only one reference.
      feasible: Share of plans that fit the memory.
      overflow: Mean bytes beyond the memory, over the graphs on which no plan of the method fits; NaN if
        there is none.
      evaluations: Mean number of evaluations.
      schedules: Mean number of further schedules, made by heuristics, starts and features; NaN if not
        counted.
      placements: Mean number of placements whose peaks were summed; NaN if not counted.
      seconds: ``[B]`` float64, seconds for each graph.
      processor: ``[B]`` float64, processor seconds for each graph; NaN where not measured.
      entropy: ``[B]`` float64, entropy of the placement actions in nats; NaN where there is none.
      values: ``[B]`` float64, mean objective of the plans that fit; NaN where none does.
      spent: ``[B]`` float64, evaluations for each graph.
    """

    name: str
    title: str
    guided: bool
    graphs: int
    refused: Mapping[str, str]
    saved: _Array
    improvement: Interval
    gap: Interval
    gap_fits: Interval
    matched: float
    matched_pairs: float | None
    feasible: float
    overflow: float
    evaluations: float
    schedules: float
    placements: float
    seconds: _Array
    processor: _Array
    entropy: _Array
    values: _Array
    spent: _Array


@dataclasses.dataclass(frozen=True, eq=False)
class Comparison:
    """All methods of an evaluation on all its graphs.

    Attributes:
      graphs: ``[B]`` records with ``hash``, ``name`` and ``ops``.
      rows: Rows of the table; the reference is first.
      left_out: Method -> reason why it is not in `rows`.
      reference: ``[B]`` float64, objective of the reference; NaN where no plan fits.
      best: ``[B]`` float64, the best known objective; NaN where no plan fits.
      best_by: ``[B]``, title of the first method that found the best known objective.
      curves: Title -> budget -> improvement over the reference.
      reference_seeds: Number of searches whose mean is the reference.
      times: Title of each method -> its budget -> the median seconds per graph, and the gap from best known
        as in `Row`; one budget unless the evaluation has others.
      same_time: Name of a method -> ``[B]`` float64, the objective of the reference within the method's time;
        NaN where there is none.
    """

    graphs: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    left_out: Mapping[str, str]
    reference: _Array
    best: _Array
    best_by: Sequence[str]
    curves: Mapping[str, Mapping[int, Interval]]
    reference_seeds: int
    times: Mapping[str, Mapping[int, tuple[float, Interval]]]
    same_time: Mapping[str, _Array] = dataclasses.field(default_factory=dict)


def improvement(value: _Array, overflow: _Array, reference: _Array, reference_overflow: _Array) -> np.ndarray:
    """``1 - value / reference``, with substitutes where one of the two does not fit the memory.

    A plan that does not fit counts as -100 % if the reference fits. A plan that fits counts as +100 % if the
    reference does not. If neither fits, there is no improvement: overflow has a column of its own.

    Args:
      value: ``[..., B]`` objective; NaN where there is no result.
      overflow: ``[..., B]`` bytes.
      reference: ``[B]`` objective.
      reference_overflow: ``[B]`` bytes.

    Returns:
      ``[..., B]`` shares; NaN where there is no result or no reference, and where neither fits.
    """
    fits, reference_fits = overflow == 0, reference_overflow == 0
    saved = np.where(
        fits & reference_fits,
        _saved(value, reference),
        np.where(fits, 1.0, np.where(reference_fits, -1.0, np.nan)),
    )
    known = ~np.isnan(value) & ~np.isnan(reference_overflow)
    return np.where(known, saved, np.nan)


def _saved(value: _Array, reference: _Array) -> np.ndarray:
    ratio = np.divide(
        value, reference, out=np.full(np.broadcast(value, reference).shape, 2.0), where=reference > 0
    )
    return 1 - np.where((value == 0) & (reference == 0), 1.0, ratio)


def compare(document: Mapping[str, Any], records: Records) -> Comparison:
    """Compares the methods of an evaluation.

    Args:
      document: Content of ``evaluation.json``.
      records: Content of ``results.jsonl``; results of jobs that are not in the document are ignored.
    """
    hashes = [graph["hash"] for graph in document["graphs"]]
    groups: dict[tuple[str, str], list[_Column]] = {}
    further: dict[str, dict[int, _Column]] = {}
    for job in document["jobs"]:
        column = _Column.of(job, records, hashes)
        if job["role"] == "budget":
            further.setdefault(job["name"], {})[job["evaluations"]] = column
        else:
            groups.setdefault((job["role"], job["name"]), []).append(column)
    which = REFERENCES[document["config"].get("suite", "regal")]
    reference = _Reference.of(groups.get(("table", which), []), len(hashes))
    every = [*groups.values(), *([*columns.values()] for columns in further.values())]
    best, best_by = _best([c for columns in every for c in columns], len(hashes))
    rows, left_out = [], dict(document["left_out"])
    for (role, name), columns in groups.items():
        if role in ("curve", "same-time"):
            continue
        row = _row(columns, reference, best, hashes, other=role == "other-seed")
        if row.graphs:
            rows.append(row)
        elif name not in left_out:
            reasons = list(row.refused.values())
            left_out[name] = reasons[0] if reasons else "has no result yet; run the evaluation to its end"
    limits = document["config"]["limits"]
    curves = {
        columns[0].title: _curve(columns[0], limits, reference)
        for (role, _), columns in groups.items()
        if role == "curve"
    }
    return Comparison(
        document["graphs"], rows, left_out, np.where(reference.overflow == 0, reference.value, np.nan),
        best, best_by, {title: curve for title, curve in curves.items() if curve}, len(reference.columns),
        _times(rows, document["config"]["evaluations"], further, best),
        {name: columns[0].fitting for (role, name), columns in groups.items() if role == "same-time"},
    )  # fmt: skip


def _times(
    rows: Sequence[Row], evaluations: int, further: Mapping[str, Mapping[int, "_Column"]], best: _Array
) -> dict[str, dict[int, tuple[float, Interval]]]:
    """`Comparison.times`: the rows, and the searches of the same methods with other budgets."""
    times: dict[str, dict[int, tuple[float, Interval]]] = {}
    for row in rows:
        if row.name == "other-seed":
            continue
        points = {evaluations: (row.seconds, row.gap)}
        title = row.title
        for budget, column in further.get(row.name, {}).items():
            title = column.title
            points[budget] = column.seconds, geometric_gap(_ratio(column, best))
        times[title] = {
            budget: (float(np.nanmedian(seconds)), gap)
            for budget, (seconds, gap) in sorted(points.items())
            if not (np.isnan(seconds).all() or np.isnan(gap.mean))
        }
    return {title: points for title, points in times.items() if points}


@dataclasses.dataclass(frozen=True, eq=False)
class _Column:
    """The results of one job, ``[B]`` each."""

    name: str
    title: str
    guided: bool
    refused: Mapping[str, str]
    value: _Array
    overflow: _Array
    evaluations: _Array
    schedules: _Array
    placements: _Array
    seconds: _Array
    processor: _Array
    entropy: _Array
    histories: Sequence[Mapping[str, Any] | None]

    @classmethod
    def of(cls, job: Mapping[str, Any], records: Records, hashes: Sequence[str]) -> "_Column":
        key = job["key"]
        found = [records.get(key, graph) for graph in hashes]
        return cls(
            name=job["name"],
            title=job["title"],
            guided=job["guided"],
            refused=records.refusals(key, hashes),
            value=records.column(key, hashes, "value"),
            overflow=records.column(key, hashes, "overflow"),
            evaluations=records.column(key, hashes, "evaluations"),
            schedules=records.column(key, hashes, "schedules"),
            placements=records.column(key, hashes, "placements"),
            seconds=records.column(key, hashes, "seconds"),
            processor=records.column(key, hashes, "processor_seconds"),
            entropy=records.column(key, hashes, "action_entropy"),
            histories=[None if record is None else record.get("history") for record in found],
        )

    @property
    def fitting(self) -> np.ndarray:
        """``[B]`` objective; NaN where the plan does not fit, or there is none."""
        return np.where(self.overflow == 0, self.value, np.nan)


@dataclasses.dataclass(frozen=True, eq=False)
class _Reference:
    """All searches of the reference, ``[B]`` each.

    Attributes:
      columns: The searches.
      value: Mean over those whose plan fits.
      overflow: 0 where a plan fits, the mean overflow where none does.
      share: Share of the searches whose plan fits.
    """

    columns: Sequence[_Column]
    value: _Array
    overflow: _Array
    share: _Array

    @classmethod
    def of(cls, columns: Sequence[_Column], size: int) -> "_Reference":
        value = _mean([c.fitting for c in columns], size)
        overflow = np.where(np.isnan(value), _mean([c.overflow for c in columns], size), 0.0)
        share = _mean([np.where(np.isnan(c.overflow), np.nan, c.overflow == 0) for c in columns], size)
        return cls(columns, value, overflow, share)

    def saved(self, value: _Array, overflow: _Array) -> np.ndarray:
        """`improvement` over these searches: its mean, where some of them fit and some do not.

        Where neither plan fits, a mean counts no improvement. So the reference does not improve on itself.
        """
        saved = improvement(value, overflow, self.value, self.overflow)
        without = np.where(np.isnan(saved), np.nan, overflow == 0)
        some = (self.share > 0) & (self.share < 1)
        return np.where(some, self.share * saved + (1 - self.share) * without, saved)


def _with_zeros(saved: Sequence[_Array], columns: Sequence[_Column], size: int) -> list[np.ndarray]:
    """``saved`` with 0 for a search that fits as little as the reference, where others of its row fit."""
    some = ~np.isnan(_mean(saved, size))
    return [
        np.where(np.isnan(s) & some & ~np.isnan(c.overflow), 0.0, s)
        for s, c in zip(saved, columns, strict=True)
    ]


def _mean(arrays: Iterable[_Array], size: int) -> np.ndarray:
    """``[B]`` means without NaNs; NaN where all values are NaN."""
    table = np.stack([np.full(size, np.nan), *arrays])
    there = ~np.isnan(table)
    total = np.where(there, table, 0.0).sum(axis=0)
    return np.divide(total, there.sum(axis=0), out=np.full(size, np.nan), where=there.any(axis=0))


def _best(columns: Sequence[_Column], size: int) -> tuple[np.ndarray, list[str]]:
    best, by = np.full(size, np.nan), [""] * size
    for column in columns:
        value = column.fitting
        better = ~np.isnan(value) & (np.isnan(best) | (value < best))
        best = np.where(better, value, best)
        by = [column.title if new else old for new, old in zip(better, by, strict=True)]
    return best, by


def _row(
    columns: Sequence[_Column],
    reference: _Reference,
    best: _Array,
    hashes: Sequence[str],
    *,
    other: bool,
) -> Row:
    first, size = columns[0], len(hashes)
    saved = _with_zeros([reference.saved(c.value, c.overflow) for c in columns], columns, size)
    matched = [np.where(np.isnan(s), np.nan, s >= -TOLERANCE) for s in saved]
    fits = [np.where(np.isnan(c.overflow), np.nan, c.overflow == 0) for c in columns]
    logs = _mean([np.log(_ratio(c, best)) for c in columns], size)
    fitting = _mean([np.where(c.overflow == 0, np.log(_ratio(c, best)), np.nan) for c in columns], size)
    gap_fits = geometric_gap(np.exp(fitting))
    mean_saved, values = _mean(saved, size), _mean([c.value for c in columns], size)
    spent = _mean([c.evaluations for c in columns], size)
    return Row(
        name="other-seed" if other else first.name,
        title=f"{first.title}, other seed" if other else first.title,
        guided=first.guided,
        graphs=int((~np.isnan(values)).sum()),
        refused={graph: reason for c in columns for graph, reason in c.refused.items()},
        saved=mean_saved,
        improvement=bootstrap(mean_saved),
        gap=gap_fits if np.isnan(fitting).all() else geometric_gap(np.exp(logs)),
        gap_fits=gap_fits,
        matched=_average(_mean(matched, size)),
        matched_pairs=_pairs(columns, reference, other=other),
        feasible=_average(_mean(fits, size)),
        overflow=_average(_overflow(columns, size)),
        evaluations=_average(spent),
        schedules=_average(_mean([c.schedules for c in columns], size)),
        placements=_average(_mean([c.placements for c in columns], size)),
        seconds=_mean([c.seconds for c in columns], size),
        processor=_mean([c.processor for c in columns], size),
        entropy=_mean([c.entropy for c in columns], size),
        values=_mean([c.fitting for c in columns], size),
        spent=spent,
    )


def _overflow(columns: Sequence[_Column], size: int) -> np.ndarray:
    """``[B]`` mean overflow where no search fits; NaN elsewhere."""
    none_fits = np.isnan(_mean([c.fitting for c in columns], size))
    return np.where(none_fits, _mean([c.overflow for c in columns], size), np.nan)


def _ratio(column: _Column, best: _Array) -> np.ndarray:
    """``[B]`` value over best known value; NaN where either is missing."""
    value = column.fitting
    ratio = np.divide(value, best, out=np.full(value.shape, _WORST), where=best > 0)
    ratio = np.where((value == 0) & (best == 0), 1.0, np.where(np.isnan(value), _WORST, ratio))
    return np.where(np.isnan(column.value) | np.isnan(best), np.nan, ratio)


def _pairs(columns: Sequence[_Column], reference: _Reference, *, other: bool) -> float | None:
    if len(reference.columns) < 2 or (columns[0].name == reference.columns[0].name and not other):
        return None
    size = len(columns[0].value)
    wins = []
    for single in reference.columns:
        for c in columns:
            saved = improvement(c.value, c.overflow, single.value, single.overflow)
            wins.append(np.where(np.isnan(saved), np.nan, saved >= -TOLERANCE))
    return _average(_mean(wins, size))


def _average(values: _Array) -> float:
    there = values[~np.isnan(values)]
    return float(there.mean()) if there.size else float("nan")


def _curve(column: _Column, limits: Sequence[int], reference: _Reference) -> dict[int, Interval]:
    """Improvement over the reference at each budget that suffices for one population."""
    curve = {}
    for limit in limits:
        found = [_at(history, limit) for history in column.histories]
        reached = np.array([f is not None for f in found])
        if not reached.any():
            continue
        value = np.array([np.nan if f is None else f for f in found], np.float64)
        # In a history, a plan that does not fit is infinite; its overflow is not recorded.
        overflow = np.where(np.isinf(value), np.where(reference.overflow > 0, reference.overflow, 1.0), 0.0)
        finite = np.where(np.isinf(value), 0.0, value)
        saved = reference.saved(finite, overflow)
        curve[int(limit)] = bootstrap(np.where(reached, saved, np.nan))
    return curve


def _at(history: Mapping[str, Any] | None, limit: int) -> float | None:
    """The incumbent's objective once ``limit`` evaluations are spent; infinite if the plan does not fit."""
    if history is None:
        return None
    index = int(np.searchsorted(history["evaluations"], limit, side="right")) - 1
    if index < 0:
        return None
    best = history["best"][index]
    return float("inf") if best is None else float(best)
