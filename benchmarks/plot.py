"""Results as a figure: throughput over size, throughput over batch, phases of a generation."""

import argparse
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from matplotlib.ticker import LogLocator

from benchmarks.phases import PHASES
from benchmarks.results import Record, Results, load
from regal_jax.errors import ConfigError
from regal_jax.viz import check_picture
from regal_jax.viz.figure import PlanFigure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["add_arguments", "plot", "run"]

_COLOURS: Final = ("#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#b07aa1", "#76b7b2", "#edc948", "#9c755f")
_Line = tuple[str, str, str]
"""Label, key of the colour, and style of the line."""
_Lines = dict[_Line, list[tuple[float, float]]]
"""Line -> points."""


def _records(results: Results, *sections: str) -> list[Record]:
    return [r for r in results.records if r.name.split("/")[0] in sections and "" in r.parameters]


def _throughput(results: Results) -> _Lines:
    lines: _Lines = {}
    for record in _records(results, "throughput", "python", "implementations"):
        case = record.parameters[""]
        style = "-" if case["family"] == "erdos-renyi" else "--"
        for label, series in record.series.items():
            # The other sections repeat measurements of throughput.
            if record.name.startswith("throughput/") or label not in ("regal_jax", "peer"):
                rate = series.rates()["evaluations_per_second"]
                line = f"{label}, {case['family']}", label, style
                lines.setdefault(line, []).append((case["ops"], rate))
    return lines


def _batch(results: Results) -> _Lines:
    lines: _Lines = {}
    for record in results.records:
        for label, series in record.series.items() if record.name.startswith("batch/") else ():
            variant, _, contender = label.rpartition(" ")
            case = record.parameters[variant]
            line = f"{contender}, {case['ops']} ops", str(case["ops"]), "--" if contender == "peer" else "-"
            lines.setdefault(line, []).append((case["graphs"], series.rates()["evaluations_per_second"]))
    return lines


def _draw_lines(ax: "Axes", lines: _Lines, xlabel: str, base: int) -> None:
    colours = list(dict.fromkeys(colour for _, colour, _ in lines))
    for (label, colour, style), points in lines.items():
        x, y = zip(*sorted(points), strict=True)
        ax.plot(x, y, style, marker="o", ms=4, lw=1.6, color=_COLOURS[colours.index(colour) % 8], label=label)
    ax.set_xscale("log", base=base)
    ax.set_yscale("log")
    every = sorted({x for points in lines.values() for x, _ in points})
    ax.set_xticks(every, [f"{x:g}" for x in every])
    ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0)))
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.minorticks_off()
    ax.set_xlabel(xlabel)
    ax.set_ylabel("evaluations per second")
    ax.grid(axis="y", color="#dddddd", lw=0.5)
    ax.legend(fontsize=8, frameon=False)


def _draw_phases(ax: "Axes", records: list[Record]) -> None:
    for row, record in enumerate(records):
        left = 0.0
        for phase in PHASES:
            # The simulator's time with memory includes that without.
            if phase not in record.series or (phase == "simulate" and "memory" in record.series):
                continue
            width = record.series[phase].rates()["microseconds_per_evaluation"]
            name = "simulate" if phase == "memory" else phase
            ax.barh(row, width, 0.6, left, color=_COLOURS[PHASES.index(name) % 8], label=name)
            left += width
        whole = record.series["generation"].rates()["microseconds_per_evaluation"]
        ax.plot([whole, whole], [row - 0.38, row + 0.38], color="#333333", lw=1.6, label="whole generation")
    ax.set_yticks(range(len(records)), [r.name.split("/")[1] for r in records])
    ax.set_ylim(max(len(records), 2) - 0.4, -0.6)
    ax.set_xlabel("microseconds per evaluation")
    handles, labels = ax.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    place = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.18), "ncols": 3}
    ax.legend(list(unique.values()), list(unique), fontsize=8, frameon=False, **place)


def plot(results: Results, path: str | os.PathLike[str] | None = None) -> PlanFigure:
    """Draws the results on throughput, batches and phases that exist.

    Args:
      results: Results of the command ``run``.
      path: File to save the figure in, if any; the suffix names the format.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: There are no such results, or the file cannot be written.
    """
    check_picture(path)
    panels: list[tuple[str, Callable[[Any], None]]] = []
    if lines := _throughput(results):
        panels.append(("Throughput by size", lambda ax, lines=lines: _draw_lines(ax, lines, "ops", 10)))
    if many := _batch(results):
        panels.append(("Throughput by batch", lambda ax: _draw_lines(ax, many, "graphs", 2)))
    if parts := [r for r in _records(results, "phases") if "generation" in r.series]:
        panels.append(("One generation", lambda ax: _draw_phases(ax, parts)))
    if not panels:
        raise ConfigError("nothing to draw: no results of the sections throughput, batch or phases")
    figure = PlanFigure(figsize=(4.8 * len(panels), 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, draw) in zip(axes, panels, strict=True):
        draw(ax)
        ax.set_title(title, fontsize=11, loc="left", color="#333333")
        for side in ("top", "right"):
            ax.spines[side].set_visible(False)
    if path is not None:
        figure.savefig(path, dpi=150)
    return figure


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command to ``parser``."""
    parser.add_argument("results", metavar="RESULTS.json")
    parser.add_argument("--out", type=pathlib.Path, required=True, metavar="FILE", help=".png, .pdf or .svg")


def run(args: argparse.Namespace) -> int:
    """Draws a file of results; returns the exit code."""
    plot(load(args.results), args.out)
    print(f"figure saved to {args.out}")
    return 0
