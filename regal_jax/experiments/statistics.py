"""Means over graphs and their confidence intervals."""

import math
import statistics
from typing import Final, NamedTuple

import numpy as np

__all__ = ["CONFIDENCE", "RESAMPLES", "Interval", "bootstrap", "geometric_gap"]

RESAMPLES: Final = 10_000
CONFIDENCE: Final = 0.95

_BLOCK: Final = 2**22
"""Most random numbers that are drawn at once."""


class Interval(NamedTuple):
    """A mean and its confidence interval; NaN if there are no values."""

    mean: float
    low: float
    high: float


def bootstrap(values: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The mean and its 95 % interval by the bias-corrected and accelerated bootstrap (BCa).

    Args:
      values: ``[B]`` float64, one value per graph; NaNs are left out.
      resamples: Number of resamples.
      seed: Seed of the resamples.

    Returns:
      The interval; a point if there is one value or all values are equal.

    References:
      Efron, "Better bootstrap confidence intervals", JASA 1987, section 3.
    """
    values = np.asarray(values, np.float64)
    values = values[~np.isnan(values)]
    if values.size == 0:
        return Interval(math.nan, math.nan, math.nan)
    mean = float(values.mean())
    if np.ptp(values) == 0:
        return Interval(mean, mean, mean)
    means = _resampled_means(values, resamples, seed)
    normal = statistics.NormalDist()
    # Ties count half, since means of few values are often equal.
    share = float(((means < mean).mean() + (means <= mean).mean()) / 2)
    bias = normal.inv_cdf(min(max(share, 1 / (2 * resamples)), 1 - 1 / (2 * resamples)))
    away = mean - values
    # Each jackknife mean differs from the mean by `away / (B - 1)`.
    acceleration = -float((away**3).sum()) / (6 * float((away**2).sum()) ** 1.5)
    ends = []
    for tail in ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2):
        z = bias + normal.inv_cdf(tail)
        ends.append(normal.cdf(bias + z / (1 - acceleration * z)))
    low, high = np.quantile(means, ends)
    return Interval(mean, float(low), float(high))


def geometric_gap(ratios: np.ndarray, *, resamples: int = RESAMPLES, seed: int = 0) -> Interval:
    """The geometric mean of ``ratios`` minus 1, and its interval.

    Args:
      ratios: ``[B]`` positive ratios of value to best known value; NaNs are left out.
      resamples: As in `bootstrap`.
      seed: As in `bootstrap`.
    """
    # BCa intervals are invariant under monotone maps, so those of the mean logarithm give the geometric
    # mean's.
    return Interval(*(math.expm1(x) for x in bootstrap(np.log(ratios), resamples=resamples, seed=seed)))


def _resampled_means(values: np.ndarray, resamples: int, seed: int) -> np.ndarray:
    """``[resamples]`` means of resampled values."""
    rng = np.random.default_rng(seed)
    rows = max(1, _BLOCK // values.size)
    parts = [
        values[rng.integers(values.size, size=(min(rows, resamples - first), values.size))].mean(axis=1)
        for first in range(0, resamples, rows)
    ]
    return np.concatenate(parts)
