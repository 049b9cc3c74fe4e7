"""`plot_sizes`: size, depth and width of the graphs in a set."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.viz.axes import (
    MOST_NAME,
    check_drawn,
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

__all__ = ["plot_sizes"]

_COLOURS: Final = (
    "#4e79a7", "#f1a340", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#bab0ac",
)  # fmt: skip
_BINS: Final = 30
_MOST_DEGREES: Final = 2


def plot_sizes(
    groups: Mapping[str, Sequence[Mapping[str, Any]]],
    degrees: Mapping[str, np.ndarray] | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 11.0,
) -> "Figure":
    """Draws histograms of ops, depth, width and edges per op, stacked by group, and of the ops' degrees.

    Args:
      groups: Label -> records with ``ops``, ``edges``, ``depth`` and ``width``, such as
        `regal_jax.datasets.graph_record` makes. With more than 8 groups, some share a colour.
      degrees: Label -> number of ops with 0, 1, 2, ... edges, at most two; not drawn by default.
      path: File to save the figure in, if any; the suffix names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: No record at all, more than two labels of degrees, or the width or the suffix is not
        allowed.
    """
    check_drawn("groups", groups, Mapping, width)
    total = sum(len(records) for records in groups.values())
    if not total:
        raise ConfigError("groups: there is no graph to draw; give at least one record")
    if degrees is not None and len(degrees) > _MOST_DEGREES:
        raise ConfigError(f"degrees: has {len(degrees)} of them; give at most {_MOST_DEGREES}")
    columns: list[tuple[str, Callable[[Mapping[str, Any]], float], bool]] = [
        ("ops", lambda r: r["ops"], True),
        ("depth", lambda r: r["depth"], True),
        ("width", lambda r: r["width"], True),
        ("data edges per op", lambda r: r["edges"] / r["ops"], False),
    ]
    across = 3 if degrees else 4
    down = 2 if degrees else 1
    figure = figure_of(width, 0.5 + width * down * (0.25 if degrees else 0.22))
    axes = list(figure.subplots(down, across, squeeze=False).flat)
    for ax, (label, value, log) in zip(axes, columns, strict=False):
        _histogram(ax, [[value(r) for r in records] for records in groups.values()], log)
        ax.set_xlabel(label)
    for ax in axes[::across]:
        ax.set_ylabel("graphs")
    if degrees:
        axes[across].set_ylabel("graphs")
        for ax, (label, counts) in zip(axes[len(columns) :], degrees.items(), strict=False):
            _degrees(ax, label, counts)
    for ax in axes:
        _clean(ax)
    entries = [
        (_patch(i), f"{short(label, MOST_NAME - 8)} ({len(records):,})")
        for i, (label, records) in enumerate(groups.items())
    ]
    legend_of(
        figure, entries, loc="outside upper left", ncols=min(len(entries), 6), fontsize=9, handlelength=1.0,
        handleheight=0.9,
    )  # fmt: skip
    return save(figure, path)


def _histogram(ax: "Axes", values: Sequence[Sequence[float]], log: bool) -> None:
    every = np.array([v for group in values for v in group], dtype=float)
    low, high = float(every.min()), float(every.max())
    bins = int(min(_BINS, 6 + 2 * np.sqrt(every.size)))  # Few graphs need few bins.
    if log:
        # Values are whole numbers. A bin between two of them would always be empty.
        edges = np.unique(np.rint(np.geomspace(max(low, 1.0), max(high, 1.0) + 1.0, bins + 1))) - 0.5
        ax.set_xscale("log")
    else:
        # Room on both sides, so that equal values give a bar and not a line.
        edges = np.linspace(low - 0.05, high + 0.05, bins + 1)
    colours = [_COLOURS[i % len(_COLOURS)] for i in range(len(values))]
    ax.hist([list(group) for group in values], bins=edges.tolist(), stacked=True, color=colours)


def _degrees(ax: "Axes", label: str, counts: np.ndarray) -> None:
    """Number of ops by degree. Both axes are logarithmic; degree 0 has a tick of its own."""
    at = np.flatnonzero(counts)
    ax.set_xscale("symlog", linthresh=1.0, linscale=0.4)
    ax.set_yscale("log")
    ax.vlines(at, 0.5, counts[at], color=_COLOURS[0], lw=1.2)
    ax.plot(at, counts[at], ".", color=_COLOURS[0], ms=4)
    ax.set_xlim(-0.4, max(float(at.max(initial=1)), 10.0) * 1.2)
    ax.set_ylim(bottom=0.7)
    powers = [p for p in (0, 1, 10, 100, 1000, 10_000, 100_000) if p <= max(at.max(initial=1), 10) * 1.2]
    ax.set_xticks(powers, [f"{p:,}" for p in powers])
    ax.minorticks_off()
    ax.set_xlabel(short(label, MOST_NAME), parse_math=False)
    ax.set_ylabel("ops")


def _clean(ax: "Axes") -> None:
    """Sets ticks at whole numbers of graphs, and writes sizes in decimal notation."""
    from matplotlib.ticker import MaxNLocator

    if ax.get_yscale() == "linear":
        ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        ax.yaxis.set_major_formatter("{x:,.0f}")
    if ax.get_xscale() == "log":
        decimal_ticks(ax.xaxis)
    scaled(ax, "y")


def _patch(index: int) -> Any:
    from matplotlib.patches import Patch

    return Patch(color=_COLOURS[index % len(_COLOURS)])
