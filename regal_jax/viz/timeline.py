"""`plot_plan`: the timeline of all devices, above the memory held on each."""

import os
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regal_jax.graph.units import format_bytes, format_time
from regal_jax.plan import Plan
from regal_jax.viz.axes import bare, byte_scale, check_drawn, figure_of, save, short, time_scale, write_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_plan"]

# Tableau's ten colour-blind-safe colours without the reds, which mark transfers and capacities.
_KINDS: Final = ("#4e79a7", "#f1a340", "#59a14f", "#76b7b2", "#b07aa1", "#edc948", "#9c755f")
_OTHER: Final = "#bab0ac"
_TRANSFER: Final = "#d62728"
_MEMORY: Final = "#4e79a7"
_MOST_PANELS: Final = 8
_INK: Final = "#333333"
# Offsets of computes and transfers from the row of their device; y grows downwards.
_COMPUTE_LANE: Final = (-0.4, 0.22)
_TRANSFER_LANE: Final = (0.26, 0.42)


def plot_plan(plan: Plan, path: str | os.PathLike[str] | None = None, *, width: float = 12.0) -> "Figure":
    """Draws the events of every device above the memory held on each.

    Ops are coloured by kind, starting with the kinds that take most time. If no op has a kind, they are
    coloured by position in the graph. A blocking transfer is a red bar on both of its devices. With more than
    8 devices, only the 8 with the highest peaks have a memory panel.

    Args:
      plan: The plan.
      path: File to save the figure in, if any; the suffix (``.png``, ``.svg``, ``.pdf``) names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: This is no plan, or the width or the suffix is not allowed.
    """
    check_drawn("plan", plan, Plan, width)
    d = plan.cluster.num_devices
    panels = sorted(np.argsort(-plan.peak_memory, kind="stable")[:_MOST_PANELS].tolist())
    heights = [0.5 + max(0.42 * d, 1.2), *(0.95 for _ in panels)]
    figure = figure_of(width, sum(heights) + 1.5)
    axes: list[Axes] = list(
        figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    )
    factor, unit = time_scale(plan.makespan, plan.time_unit)
    figure.suptitle(_title(plan), x=0.012, ha="left", fontsize=11, color=_INK, parse_math=False)
    _events(axes[0], plan, factor, width)
    _memories(axes[1:], plan, panels, factor)
    axes[-1].set_xlabel(f"time ({unit})")
    axes[0].set_xlim(0, plan.makespan * factor or 1.0)
    for ax in axes:
        bare(ax)
    return save(figure, path)


def _title(plan: Plan) -> str:
    parts = [short(plan.graph_name, 50), f"makespan {format_time(plan.makespan, plan.time_unit)}"]
    if plan.makespan and plan.cluster.num_devices > 1:
        parts.append(f"{plan.one_device_makespan / plan.makespan:.3g} x the speed of one device")
    parts.append(f"largest peak {format_bytes(int(plan.peak_memory.max()))}")
    if not plan.feasible:
        parts.append(f"OVERFLOW by {format_bytes(float(plan.overflow.sum()))}")
    return "   ·   ".join(parts)


# Events -------------------------------------------------------------------------------------------


def _events(ax: "Axes", plan: Plan, factor: float, width: float) -> None:
    from matplotlib.collections import PolyCollection

    line, d = plan.timeline, plan.cluster.num_devices
    start, finish = line.start * factor, line.finish * factor
    compute, moves = np.flatnonzero(line.port < 0), np.flatnonzero(line.port >= 0)
    colours, legend = _colours(plan)
    many = line.num_events > 300
    # Hairlines in the bar's own colour keep bars thinner than a pixel visible. White hairlines separate few
    # bars.
    edge: dict[str, Any] = {"edgecolors": "face" if many else "white", "linewidths": 0.3 if many else 0.8}
    bars = _boxes(start[compute], finish[compute], line.device[compute], _COMPUTE_LANE)
    ax.add_collection(PolyCollection(bars, facecolors=colours[line.op[compute]], **edge))
    if moves.size:
        row = np.concatenate([line.source[moves], line.device[moves]])
        times = np.tile(start[moves], 2), np.tile(finish[moves], 2)
        # A transfer at no cost has no width; only its edge is visible.
        edge = {"edgecolors": _TRANSFER, "linewidths": 0.3 if many else 1.0}
        ax.add_collection(PolyCollection(_boxes(*times, row, _TRANSFER_LANE), facecolors=_TRANSFER, **edge))
        legend.append((_TRANSFER, "transfer"))
        if moves.size <= 60:
            middle, lane = (start[moves] + finish[moves]) / 2, sum(_TRANSFER_LANE) / 2
            ends = line.source[moves] + lane, line.device[moves] + lane
            ax.vlines(middle, *ends, color=_TRANSFER, lw=0.8, ls=(0, (2, 2)), zorder=2)
    if compute.size <= 100:
        _names(ax, plan, start, finish, width, colours)
    ax.set_ylim(d - 0.5, -0.5)
    ax.set_yticks(range(d), [f"device {k}" for k in range(d)])
    _legend(ax, legend, width)


def _boxes(
    start: np.ndarray, finish: np.ndarray, row: np.ndarray, lane: tuple[float, float]
) -> list[np.ndarray]:
    """The ``[4, 2]`` corners of each box."""
    low, high = row + lane[0], row + lane[1]
    x = np.stack([start, start, finish, finish], axis=-1)
    return list(np.stack([x, np.stack([low, high, high, low], axis=-1)], axis=-1))


def _colours(plan: Plan) -> tuple[np.ndarray, list[tuple[Any, str]]]:
    """``([N, 4] RGBA, legend)``."""
    from matplotlib import colormaps
    from matplotlib.colors import to_rgba_array

    n, line = len(plan.op_names), plan.timeline
    if not any(plan.op_kinds):
        shades = colormaps["viridis"](np.linspace(0.12, 0.92, n))
        ends = [(shades[0], "first op of the graph"), (shades[-1], "last op")]
        return shades, ends if n > 1 else [(shades[0], "op")]
    kinds, which = np.unique(np.array(plan.op_kinds), return_inverse=True)
    spent, compute = np.zeros(len(kinds)), line.port < 0
    np.add.at(spent, which[line.op[compute]], (line.finish - line.start)[compute])
    rank = np.argsort(-spent, kind="stable")
    palette = np.full(len(kinds), len(_KINDS))
    palette[rank[: len(_KINDS)]] = np.arange(min(len(kinds), len(_KINDS)))
    legend: list[tuple[Any, str]] = [
        (_KINDS[i], short(str(kinds[k]) or "no kind", 24)) for i, k in enumerate(rank[: len(_KINDS)])
    ]
    if len(kinds) > len(_KINDS):
        legend.append((_OTHER, "other"))
    return to_rgba_array([*_KINDS, _OTHER])[palette[which]], legend


def _names(
    ax: "Axes", plan: Plan, start: np.ndarray, finish: np.ndarray, width: float, colours: np.ndarray
) -> None:
    """Writes the names of ops whose bars are wide enough for part of them."""
    line = plan.timeline
    for i in np.flatnonzero(line.port < 0).tolist():
        share = (line.finish[i] - line.start[i]) / (line.makespan or 1.0)
        name, room = plan.op_names[line.op[i]], int(0.88 * width * share / 0.075)
        if room >= min(len(name), 4):
            where = (start[i] + finish[i]) / 2, int(line.device[i]) + sum(_COMPUTE_LANE) / 2
            text = short(name, room)
            ink = _INK if colours[line.op[i]][:3] @ (0.299, 0.587, 0.114) > 0.6 else "white"
            ax.text(*where, text, ha="center", va="center", fontsize=8, color=ink, parse_math=False, zorder=4)


def _legend(ax: "Axes", entries: list[tuple[Any, str]], width: float) -> None:
    """The legend, in several rows where one would be wider than the figure of ``width`` inches."""
    from matplotlib.patches import Patch

    room, sizes = 0.88 * width / 0.07, [len(label) + 5 for _, label in entries]  # In letters.
    columns = len(entries) if sum(sizes) <= room else max(1, int(room // max(sizes)))
    handles = [Patch(color=colour, label="kind") for colour, _ in entries]
    legend = ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        frameon=False,
        fontsize=8,
        borderaxespad=0.2,
        borderpad=0,
        handlelength=1.0,
        handleheight=0.9,
        columnspacing=1.2,
    )
    write_labels(legend, [label for _, label in entries])


# Memory -------------------------------------------------------------------------------------------


def _memories(axes: "list[Axes]", plan: Plan, panels: list[int], factor: float) -> None:
    line = plan.timeline
    # All panels have one scale, so that devices can be compared.
    top = max(_top(int(line.peak_memory[k]), plan.cluster.memory[k]) for k in panels)
    scale, unit = byte_scale(top)
    for ax, k in zip(axes, panels, strict=True):
        time, held = _steps(line.memory_time[k], line.memory_bytes[k], line.makespan)
        time, held = time * factor, held * scale
        ax.fill_between(time, held, step="post", color=_MEMORY, alpha=0.25, lw=0)
        ax.step(time, held, where="post", color=_MEMORY, lw=1.0)
        peak, capacity = int(line.peak_memory[k]), plan.cluster.memory[k]
        label = f"peak {format_bytes(peak)}"
        if np.isfinite(capacity):
            label += f" of {format_bytes(capacity)}"
            if capacity <= top:
                ax.axhline(capacity * scale, color=_TRANSFER, lw=1.0, ls="--")
            if peak > capacity:
                label += f": OVERFLOW by {format_bytes(peak - capacity)}"
        ink = _TRANSFER if peak > capacity else _INK
        # The title is above the panel, where it cannot overlap the profile.
        ax.set_title(f"device {k}: {label}", loc="left", fontsize=8, color=ink, pad=2)
        ax.set_ylim(0, (top * 1.08 * scale) or 1.0)
        ax.yaxis.set_major_locator(_ticks())
        ax.set_ylabel(unit, fontsize=8)
        ax.tick_params(labelsize=8)
        ax.grid(axis="y", color="#dddddd", lw=0.5)
        ax.set_axisbelow(True)


def _steps(time: np.ndarray, held: np.ndarray, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Steps of a profile with the largest and the last value of each time: no dip shows between ops."""
    if not len(time):
        return np.array([0.0, end]), np.zeros(2)
    first = np.flatnonzero(np.diff(time, prepend=-1.0))
    most, last = np.maximum.reduceat(held, first), held[np.append(first[1:], len(held)) - 1]
    drawn = np.stack([most, last], axis=1).ravel()
    return np.append(np.repeat(time[first], 2), end), np.append(drawn, drawn[-1])


def _ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=3, min_n_ticks=2)


def _top(peak: int, capacity: float) -> float:
    """The largest value that a panel shows; a capacity far above the peak would flatten the profile."""
    return max(peak, capacity) if capacity <= 3 * peak else float(peak)
