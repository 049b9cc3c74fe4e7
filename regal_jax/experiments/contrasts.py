"""Contrasts: how much smaller the objective of one method is than that of another, on the same graphs."""

from typing import Any, Final

import numpy as np

from regal_jax.experiments.compare import Comparison, Row
from regal_jax.experiments.statistics import RESAMPLES, Interval, geometric_gap

__all__ = ["FIELDS", "contrasts"]

_EQUAL: Final = 1e-3
"""Relative change up to which two objectives are not counted as different."""
_CHANGES: Final = ("change", "change_low", "change_high")
FIELDS: Final = ("method", "against", "graphs", *_CHANGES, "lower", "higher", "seconds")
"""Names of the fields of a record."""


def contrasts(comparison: Comparison, *, resamples: int = RESAMPLES) -> list[dict[str, Any]]:
    """One record for each ordered pair of methods.

    ``change`` is the geometric mean of the objective of ``method`` over that of ``against``, less 1, over the
    graphs on which plans of both fit the memory; ``change_low`` and ``change_high`` are the ends of its 95 %
    bootstrap interval. ``lower`` and ``higher`` count the graphs on which the objective of ``method`` is
    lower or higher by more than 0.1 %. ``seconds`` are the processor seconds of ``method`` over those of
    ``against``, in sum over the graphs with results of both; ``None`` where they were not measured. Pairs
    without graphs on which both fit are left out.

    Args:
      comparison: Methods on the same graphs.
      resamples: As in `regal_jax.experiments.statistics.bootstrap`.
    """
    lines = []
    for i, first in enumerate(comparison.rows):
        for second in comparison.rows[:i]:
            ratio = _ratio(first.values, second.values)
            if np.isnan(ratio).all():
                continue
            change = geometric_gap(ratio, resamples=resamples)
            # BCa intervals are invariant under monotone maps.
            mean, high, low = (-end / (1 + end) for end in change)
            lines.append(_record(first, second, ratio, change))
            lines.append(_record(second, first, 1 / ratio, Interval(mean, low, high)))
    return lines


def _record(method: Row, against: Row, ratio: np.ndarray, change: Interval) -> dict[str, Any]:
    return {
        "method": method.title,
        "against": against.title,
        "graphs": int((~np.isnan(ratio)).sum()),
        **dict(zip(_CHANGES, change, strict=True)),
        "lower": int((ratio < 1 - _EQUAL).sum()),
        "higher": int((ratio > 1 + _EQUAL).sum()),
        "seconds": _share(method.processor, against.processor),
    }


def _share(seconds: np.ndarray, others: np.ndarray) -> float | None:
    known = ~np.isnan(seconds) & ~np.isnan(others)
    total = float(others[known].sum())
    return float(seconds[known].sum()) / total if total > 0 else None


def _ratio(values: np.ndarray, others: np.ndarray) -> np.ndarray:
    """``[B]``; 1 where both are 0, NaN where one is or where one does not fit."""
    there = (values > 0) & (others > 0)
    ratio = np.divide(values, others, out=np.full(values.shape, np.nan), where=there)
    return np.where((values == 0) & (others == 0), 1.0, ratio)
