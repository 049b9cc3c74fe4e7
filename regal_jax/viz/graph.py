"""`plot_graph`: a small graph op by op, a large one by its totals."""

import os
from collections import Counter
from typing import TYPE_CHECKING, Final

import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.graph.arrays import fastest_runtimes, op_levels
from regal_jax.viz.axes import (
    bare,
    byte_scale,
    check_drawn,
    figure_of,
    save,
    scaled,
    short,
    time_scale,
    write_labels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_graph"]

_MOST_OPS: Final = 60
"""Most ops that are drawn one by one; with more, boxes and arrows are not legible."""
_COLOURS: Final = (
    "#4e79a7", "#f1a340", "#59a14f", "#b07aa1", "#76b7b2", "#edc948", "#9c755f", "#bab0ac",
)  # fmt: skip
_KINDS: Final = 10
_BINS: Final = 80


def plot_graph(
    graph: ComputationGraph, path: str | os.PathLike[str] | None = None, *, width: float = 11.0
) -> "Figure":
    """Draws ``graph``.

    In a graph of up to 60 ops, each op is a box in the column of its level (the longest path that leads to
    it), coloured by kind. Solid arrows are data edges and dashed arrows control edges. For a larger graph,
    the panels show ops and work by level, and work and produced bytes by kind.

    Args:
      graph: The graph.
      path: File to save the figure in, if any; the suffix names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: This is no graph, or the width or the suffix is not allowed.
    """
    check_drawn("graph", graph, ComputationGraph, width)
    level = op_levels(graph)
    if graph.num_ops <= _MOST_OPS:
        tallest = int(np.bincount(level).max())
        figure = figure_of(width, 1.2 + 0.45 * tallest)
        _draw_ops(figure.subplots(), graph, level)
    else:
        figure = figure_of(width, 0.55 * width)
        axes = figure.subplots(2, 2).ravel()
        _draw_levels(axes[:2], graph, level)
        _draw_kinds(axes[2:], graph)
    counts = str(graph).removeprefix(f"graph {graph.name!r}")
    figure.suptitle(f"graph {short(graph.name, 60)!r}{counts}", fontsize=9, parse_math=False)
    return save(figure, path)


def _draw_ops(ax: "Axes", graph: ComputationGraph, level: np.ndarray) -> None:
    from matplotlib.ticker import MaxNLocator

    common = [kind for kind, _ in Counter(graph.op_kinds).most_common(len(_COLOURS) - 1)]
    colour = dict(zip(common, _COLOURS, strict=False))
    height = np.zeros(graph.num_ops)
    # Ops of a column follow the order of their inputs, so that fewer arrows cross.
    for column in range(int(level.max()) + 1):
        ops = np.flatnonzero(level == column)
        reads = [height[graph.edge_producer[graph.edge_op == o]] for o in ops]
        wish = [before.mean() if before.size else 0.0 for before in reads]
        ordered = ops[np.argsort(wish, kind="stable")]
        height[ordered] = np.arange(len(ops)) - (len(ops) - 1) / 2
    pairs = dict.fromkeys(zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True), "-")
    for pair in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
        pairs.setdefault(pair, "--")
    for (u, v), style in pairs.items():
        arrow = {"arrowstyle": "->", "color": "#888888", "lw": 0.7, "linestyle": style, "shrinkB": 9}
        ax.annotate("", (level[v], -height[v]), (level[u], -height[u]), arrowprops=arrow)
    room = max(4, int(90 / (int(level.max()) + 1)))
    for o, name in enumerate(graph.op_names):
        box = {"boxstyle": "round,pad=0.25", "fc": colour.get(graph.op_kinds[o], _COLOURS[-1]), "ec": "none"}
        where = (level[o], -height[o])
        text = short(name, room)
        ax.text(*where, text, fontsize=6, ha="center", va="center", color="white", bbox=box, parse_math=False)
    labels = {fill: short(kind, 24) or "(none)" for kind, fill in colour.items()}
    if len(set(graph.op_kinds)) > len(labels):
        labels[_COLOURS[-1]] = "other"
    for fill in labels:
        ax.plot([], [], "s", color=fill, label="kind")
    legend = ax.legend(fontsize=6, frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
    write_labels(legend, labels.values())
    ax.set_xlim(-0.6, int(level.max()) + 0.6)
    ax.set_ylim(-float(height.max()) - 0.7, float(height.max()) + 0.7)
    bare(ax)
    ax.set_yticks([])
    ax.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    ax.set_xlabel("level", fontsize=8)


def _draw_levels(axes: "np.ndarray", graph: ComputationGraph, level: np.ndarray) -> None:
    edges = np.linspace(0, int(level.max()) + 1, min(_BINS, int(level.max()) + 1) + 1)
    work = fastest_runtimes(graph)
    factor, unit = time_scale(float(np.histogram(level, edges, weights=work)[0].max()), graph.time_unit)
    for ax, weights, label in ((axes[0], None, "ops"), (axes[1], work * factor, f"work ({unit})")):
        ax.hist(level, edges, weights=weights, color=_COLOURS[0])
        ax.set_xlabel("level", fontsize=8)
        ax.set_ylabel(label, fontsize=8)
        ax.tick_params(labelsize=7)
        scaled(ax, "y")


def _draw_kinds(axes: "np.ndarray", graph: ComputationGraph) -> None:
    kinds, which = np.unique(np.array(graph.op_kinds), return_inverse=True)
    made = np.bincount(graph.tensor_op, graph.tensor_bytes, minlength=graph.num_ops)
    for ax, values, scale, label in (
        (axes[0], fastest_runtimes(graph), lambda most: time_scale(most, graph.time_unit), "work"),
        (axes[1], made, byte_scale, "bytes produced"),
    ):
        total = np.bincount(which, values, minlength=len(kinds))
        most = np.argsort(-total, kind="stable")[:_KINDS][::-1]
        factor, unit = scale(float(total.max()))
        ax.barh(range(len(most)), total[most] * factor, color=_COLOURS[1])
        labels = [short(str(kinds[i]) or "(none)", 24) for i in most]
        ax.set_yticks(range(len(most)), labels, parse_math=False)
        ax.set_xlabel(f"{label} ({unit})", fontsize=8)
        ax.tick_params(labelsize=7)
        scaled(ax, "x")
