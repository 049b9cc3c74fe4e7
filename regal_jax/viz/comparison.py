"""Pictures of an evaluation: improvements, budgets, entropies, rounds, seconds, quality over seconds."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.viz.axes import (
    MOST_NAME,
    check_drawn,
    check_finite,
    decimal_ticks,
    figure_of,
    legend_of,
    save,
    scaled,
    short,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = [
    "plot_entropies",
    "plot_improvements",
    "plot_limits",
    "plot_quality",
    "plot_rounds",
    "plot_seconds",
]

_BETTER: Final = "#59a14f"
_WORSE: Final = "#d62728"
_COLOURS: Final = ("#4e79a7", "#f1a340", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f", "#edc948", "#bab0ac")
_MARKERS: Final = ("o", "s", "^", "D")
_TIE: Final = 1e-9
_ACROSS: Final = 3
_LEAST_RANGE: Final = 0.01
"""Percent on either side of 0 that are shown at least."""


def plot_improvements(
    saved: Mapping[str, np.ndarray],
    reference: str,
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 11.0,
) -> "Figure":
    """Histograms of the improvement over a reference; ties are counted, not drawn, as in the paper's Fig. 2.

    Args:
      saved: Method -> ``[B]`` shares, positive where the method is better; NaN where there is no result.
      reference: Name of the reference.
      path: File to save the figure in, if any; the suffix names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: No method, one without any result, or the width or the suffix is not allowed.
    """

    def draw(ax: "Axes", values: np.ndarray) -> str:
        better, worse = values > _TIE, values < -_TIE
        percent = 100 * values[better | worse]
        reach = max(float(np.abs(percent).max(initial=0.0)), 1.0)
        # Zero is an edge: no bar is partly better and partly worse.
        half = int(min(20, 3 + np.sqrt(values.size)))
        bins = np.linspace(-reach, reach, 2 * half + 1).tolist()
        ax.hist(percent[percent > 0], bins=bins, color=_BETTER)
        ax.hist(percent[percent < 0], bins=bins, color=_WORSE)
        if not percent.size:
            ax.text(0.5, 0.5, "equal on every graph", transform=ax.transAxes, ha="center", fontsize=9)
        ties = 1 - better.mean() - worse.mean()
        return f"better {better.mean():.1%}, worse {worse.mean():.1%}, ties {ties:.1%}"

    return _histograms(saved, draw, f"improvement over {short(reference, MOST_NAME)} (%)", path, width)


def plot_entropies(
    entropies: Mapping[str, np.ndarray], path: str | os.PathLike[str] | None = None, *, width: float = 11.0
) -> "Figure":
    """Histograms of the entropy of the placement actions that a policy took in each graph (Fig. 4a).

    Args:
      entropies: Method -> ``[B]`` nats; NaN where there is none.
      path: As in `plot_improvements`.
      width: Width of the figure in inches.

    Returns:
      The figure.

    Raises:
      ConfigError: No method, one without any result, or the width or the suffix is not allowed.
    """

    def draw(ax: "Axes", values: np.ndarray) -> str:
        ax.hist(values, bins=int(min(30, 4 + np.sqrt(values.size))), color=_COLOURS[0])
        ax.axvline(float(values.mean()), color="#333333", lw=1.0, ls="--")
        return f"mean {values.mean():.2f} nats"

    return _histograms(entropies, draw, "entropy of placement actions (nats)", path, width)


def _histograms(
    values: Mapping[str, np.ndarray],
    draw: Callable[["Axes", np.ndarray], str],
    label: str,
    path: str | os.PathLike[str] | None,
    width: float,
) -> "Figure":
    """One panel per method; ``draw`` returns the note under its name."""
    check_drawn("plot", values, Mapping, width)
    known = {name: v[~np.isnan(v)] for name, v in values.items()}
    for name, v in known.items():
        check_finite(f"plot: {name}", v)
    empty = next((name for name, v in known.items() if not v.size), None)
    if not known or empty is not None:
        raise ConfigError(f"plot: no result of {empty or 'any method'} to draw; leave it out")
    across = min(_ACROSS, len(known))
    down = -(-len(known) // across)
    figure = figure_of(max(width * across / _ACROSS, 5.0), 0.4 + 2.8 * down)
    axes = figure.subplots(down, across, squeeze=False)
    for ax, (name, v) in zip(axes.flat, known.items(), strict=False):
        note = draw(ax, v)
        ax.set_title(f"{short(name, MOST_NAME)}\n{note}", loc="left", fontsize=8, parse_math=False)
        ax.set_xlabel(label, parse_math=False)
        ax.set_ylabel("graphs")
        _clean(ax)
    for ax in list(axes.flat)[len(known) :]:
        ax.set_visible(False)
    return save(figure, path)


def plot_limits(
    curves: Mapping[str, Mapping[int, tuple[float, float, float]]],
    reference: str,
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 8.0,
) -> "Figure":
    """Mean improvement over a reference against the budget, with bands of confidence (Fig. 3).

    Args:
      curves: Method -> evaluations -> mean and both ends of its interval, as shares.
      reference: Name of the reference.
      path: As in `plot_improvements`.
      width: Width of the figure in inches.

    Returns:
      The figure.

    Raises:
      ConfigError: No curve, or the width or the suffix is not allowed.
    """
    check_drawn("curves", curves, Mapping, width)
    if not curves or not all(curves.values()):
        raise ConfigError("curves: give at least one, with at least one point")
    figure = figure_of(width, 0.6 * width)
    ax = figure.subplots()
    drawn = []
    for i, (name, curve) in enumerate(curves.items()):
        limits = np.array(list(curve))
        mean, low, high = 100 * np.array(list(curve.values()), np.float64).reshape(-1, 3).T
        colour = _COLOURS[i % len(_COLOURS)]
        (line,) = ax.plot(limits, mean, marker="o", ms=4, lw=1.6, color=colour)
        drawn.append((line, name))
        ax.fill_between(limits, low, high, color=colour, alpha=0.18, lw=0)
    ax.axhline(0, color="#333333", lw=0.8, ls="--")
    low, high = ax.get_ylim()
    # What rounding alone makes of equal values is no difference.
    ax.set_ylim(min(low, -_LEAST_RANGE), max(high, _LEAST_RANGE))
    ax.set_xscale("log")
    marks = sorted({limit for curve in curves.values() for limit in curve})
    ax.set_xticks(marks, [f"{mark:,}" for mark in marks])
    ax.minorticks_off()
    ax.set_xlabel("evaluations")
    ax.set_ylabel(f"mean improvement over {short(reference, MOST_NAME)} (%)", parse_math=False)
    legend_of(ax, drawn, fontsize=9)
    _clean(ax, counts=False)
    return save(figure, path)


def plot_rounds(
    validation: Mapping[int, Sequence[float]],
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 6.0,
) -> "Figure":
    """The best validation improvement of each number of rounds of messages, and that of every run (Fig. 4b).

    Args:
      validation: Rounds ``T`` -> best improvement of each training run, as shares.
      path: As in `plot_improvements`.
      width: Width of the figure in inches.

    Returns:
      The figure.

    Raises:
      ConfigError: No run, or the width or the suffix is not allowed.
    """
    check_drawn("validation", validation, Mapping, width)
    if not validation or not all(validation.values()):
        raise ConfigError("validation: give at least one run for each T")
    figure = figure_of(width, 0.65 * width)
    ax = figure.subplots()
    for t, runs in validation.items():
        ax.plot([t] * len(runs), 100 * np.array(runs), ".", color="#bab0ac", ms=7)
    rounds = sorted(validation)
    best = [100 * max(validation[t]) for t in rounds]
    ax.plot(rounds, best, marker="o", lw=1.6, color=_COLOURS[0])
    ax.set_xticks(rounds, [str(t) for t in rounds])
    ax.set_xlabel("rounds of message passing T")
    ax.set_ylabel("best validation improvement (%)")
    _clean(ax, counts=False)
    return save(figure, path)


def plot_seconds(
    seconds: Mapping[str, np.ndarray], path: str | os.PathLike[str] | None = None, *, width: float = 8.0
) -> "Figure":
    """Median seconds per graph of each method, with the range from the 10th to the 90th percentile.

    Args:
      seconds: Method -> ``[B]``; NaN where there is no result.
      path: As in `plot_improvements`.
      width: Width of the figure in inches.

    Returns:
      The figure.

    Raises:
      ConfigError: No method, one without any result, or the width or the suffix is not allowed.
    """
    check_drawn("seconds", seconds, Mapping, width)
    known = {name: np.maximum(v[~np.isnan(v)], 1e-6) for name, v in seconds.items()}
    if not known or not all(v.size for v in known.values()):
        raise ConfigError("seconds: give at least one method with at least one result")
    for name, v in known.items():
        check_finite(f"seconds: {name}", v)
    figure = figure_of(width, 0.9 + 0.32 * len(known))
    ax = figure.subplots()
    low, middle, high = np.array([np.quantile(v, (0.1, 0.5, 0.9)) for v in known.values()]).T
    at = np.arange(len(known))
    bars: dict[str, Any] = {"xerr": [middle - low, high - middle], "ecolor": "#333333"}
    ax.barh(at, middle, color=_COLOURS[0], height=0.65, error_kw={"lw": 1.0}, **bars)
    ax.set_yticks(at, [short(name, MOST_NAME) for name in known], parse_math=False)
    ax.invert_yaxis()
    ax.set_xscale("log")
    decimal_ticks(ax.xaxis)
    ax.set_xlabel("seconds per graph (median, 10 % to 90 %)")
    scaled(ax, "x")
    return save(figure, path)


def plot_quality(
    points: Mapping[str, Sequence[tuple[float, tuple[float, float, float]]]],
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 8.0,
) -> "Figure":
    """Gap from the best known value over the seconds per graph, a line or a point for each method.

    Args:
      points: Method -> for each of its budgets the median seconds per graph, and the gap as a share: mean and
        both ends of its interval.
      path: As in `plot_improvements`.
      width: Width of the figure in inches.

    Returns:
      The figure.

    Raises:
      ConfigError: No method, or the width or the suffix is not allowed.
    """
    check_drawn("points", points, Mapping, width)
    if not points or not all(points.values()):
        raise ConfigError("quality: give at least one method with at least one result")
    figure = figure_of(width, 0.62 * width)
    ax = figure.subplots()
    drawn = []
    for number, (name, line) in enumerate(points.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        marker = _MARKERS[number // len(_COLOURS) % len(_MARKERS)]
        gap, low, high = 100 * np.array([interval for _, interval in line]).T
        at = [max(seconds, 1e-6) for seconds, _ in line]
        errors = [gap - low, high - gap]
        drawn.append((ax.errorbar(at, gap, errors, fmt=f"{marker}-", color=colour, ms=5, lw=1.0), name))
    # Names beside the points would cover each other: most searches take about the same time.
    legend_of(ax, drawn, loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7)
    ax.set_xscale("log")
    decimal_ticks(ax.xaxis)
    ax.set_yscale("symlog", linthresh=1.0)
    decimal_ticks(ax.yaxis, linear=1.0)
    ax.set_ylim(bottom=-0.05)  # Nothing is better than the best known value; room for the points on it.
    ax.set_xlabel("seconds per graph (median)")
    ax.set_ylabel("gap from best known, % (95 % interval)")
    scaled(ax, "x")
    return save(figure, path)


def _clean(ax: "Axes", *, counts: bool = True) -> None:
    from matplotlib.ticker import MaxNLocator

    if counts:
        ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    scaled(ax, "y")
