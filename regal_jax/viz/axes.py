"""Units and style shared by all pictures."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from regal_jax.checks import check_kind, real, shown
from regal_jax.errors import ConfigError
from regal_jax.graph.units import TIME_UNITS
from regal_jax.storage.atomic import replacing, writing
from regal_jax.storage.paths import path_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.legend import Legend

__all__ = [
    "MOST_NAME",
    "bare",
    "byte_scale",
    "check_drawn",
    "check_finite",
    "check_picture",
    "check_width",
    "decimal_ticks",
    "figure_of",
    "legend_of",
    "picture_formats",
    "save",
    "scaled",
    "short",
    "time_scale",
    "write_labels",
]

MOST_NAME: Final = 40
"""Most letters of a name beside a picture."""
_LEAST_WIDTH: Final = 1.0
_MOST_WIDTH: Final = 200.0
"""Inches. In less, nothing is legible; more is more than a picture can have."""
_OTHER_FORMATS: Final = {"pgf", "raw", "rgba"}
"""Of matplotlib: one needs LaTeX, and the others are no files of pictures."""


def time_scale(longest: float, time_unit: str) -> tuple[float, str]:
    """``(factor, unit)``: a time multiplied by ``factor`` is in ``unit``, chosen to suit ``longest``."""
    seconds = longest * TIME_UNITS[time_unit]
    unit = next((u for u in ("s", "ms", "us") if seconds >= TIME_UNITS[u]), "ns") if seconds else "s"
    return TIME_UNITS[time_unit] / TIME_UNITS[unit], unit


def byte_scale(largest: float) -> tuple[float, str]:
    """``(factor, unit)`` for bytes, as `time_scale`."""
    units = ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB"))
    power, unit = next(((p, u) for p, u in units if largest >= 1024**p), (0, "bytes"))
    return 1.0 / 1024**power, unit


def short(text: str, length: int) -> str:
    """``text`` in at most ``length`` characters, cut in the middle so that both ends stay."""
    if len(text) <= length:
        return text
    head = (length - 1) // 2
    return f"{text[:head]}…{text[len(text) - (length - 1 - head) :]}"


def bare(ax: "Axes") -> None:
    """Removes the frame, except for the bottom axis."""
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.tick_params(left=False)


def write_labels(legend: "Legend", labels: Iterable[str]) -> None:
    """Sets the labels of a finished legend: earlier ones that begin with "_" are dropped by matplotlib, and
    those with "$" are read as mathematics.
    """
    for text, label in zip(legend.get_texts(), labels, strict=True):
        text.set_parse_math(False)
        text.set_text(label)


def legend_of(ax: "Axes | Figure", entries: Iterable[tuple[Any, str]], **style: Any) -> None:
    """A legend whose labels are names as they are, without their middle where they are long.

    Args:
      ax: Where it is.
      entries: What is drawn, and its name.
      **style: Arguments of `matplotlib.axes.Axes.legend`.
    """
    handles, names = zip(*entries, strict=True)
    legend = ax.legend(handles, ["name"] * len(names), frameon=False, **style)
    write_labels(legend, [short(name, MOST_NAME) for name in names])


def scaled(ax: "Axes", axis: Literal["x", "y"]) -> None:
    """Removes the frame where there is no scale, and draws grid lines for ``axis``."""
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    ax.grid(axis=axis, color="#dddddd", lw=0.5)
    ax.set_axisbelow(True)


def decimal_ticks(axis: "Axis", linear: float = 0.0) -> None:
    """Ticks of a logarithmic axis in decimal notation: at powers of ten, and between them if these are few.

    Args:
      axis: The axis of x or of y; its scale is set, and all that it shows is drawn.
      linear: The scale is linear up to here (0: nowhere).
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator, SymmetricalLogLocator

    low, high = axis.get_view_interval()
    ratio = high / (linear or low)
    steps = [1.0, 2.0, 5.0] if ratio < 30 else [1.0, 3.0] if ratio < 1000 else [1.0]
    if linear:
        axis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=linear, subs=steps))
    else:
        axis.set_major_locator(LogLocator(subs=steps))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))


def check_drawn(what: str, given: Any, kind: type, width: Any) -> None:
    """Checks that ``given``, the argument ``what`` of a plot, is of its kind, and the width of the plot.

    Raises:
      ConfigError: It is of another kind, or as `check_width`.
    """
    check_kind(what, given, kind)
    check_width(width)


def check_finite(what: str, values: Any) -> None:
    """Refuses numbers that have no place on an axis.

    Raises:
      ConfigError: A number is infinite or NaN.
    """
    if not np.isfinite(values).all():
        raise ConfigError(f"{what}: has a number that is not finite; leave it out")


def check_width(width: Any) -> None:
    """Checks the width of a plot.

    Raises:
      ConfigError: It is no number of inches in the range.
    """
    if real(width, _LEAST_WIDTH, _MOST_WIDTH) is None:
        raise ConfigError(
            f"width: must be a number of inches from {_LEAST_WIDTH:g} to {_MOST_WIDTH:g}, got {shown(width)}"
        )


def figure_of(width: float, height: float) -> "Figure":
    """An empty figure of this size in inches, which a notebook shows."""
    # It imports matplotlib.
    from regal_jax.viz.figure import PlanFigure

    return PlanFigure(figsize=(width, height), layout="constrained")


def picture_formats() -> frozenset[str]:
    """Suffixes, without the dot, of the files that `save` can write."""
    from matplotlib.figure import Figure

    return frozenset(Figure().canvas.get_supported_filetypes()) - _OTHER_FORMATS


def check_picture(path: str | os.PathLike[str] | None) -> None:
    """Checks that `save` can write a file of this name, if there is one.

    Raises:
      ConfigError: Its suffix names no format.
      FormatError: It is no path.
    """
    if path is None:
        return
    name = path_text(path)
    suffix = Path(name).suffix
    if suffix[1:].lower() not in picture_formats():
        raise ConfigError(f"cannot draw {name!r}: no picture is of kind {suffix!r}; use .png, .pdf or .svg")


def save(figure: "Figure", path: str | os.PathLike[str] | None) -> "Figure":
    """The figure, after it is written to ``path``, if there is one, in the format that its suffix names.

    Raises:
      ConfigError: As `check_picture`.
      FormatError: The file cannot be written, or ``path`` is no path.
    """
    check_picture(path)
    if path is not None:
        with writing(path), replacing(path) as file:
            figure.savefig(file, dpi=150, format=Path(path).suffix[1:].lower())
    return figure
