"""`plot_execution`: the planned timeline above the measured one."""

import os
from typing import TYPE_CHECKING

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.graph import TransferModel
from regal_jax.graph.units import TIME_UNITS, format_time
from regal_jax.plan import Plan
from regal_jax.viz.axes import bare, check_drawn, figure_of, save, short, time_scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_execution"]

_COMPUTE, _TRANSFER, _INK = "#4e79a7", "#d62728", "#333333"
_HEIGHT = 0.6


def plot_execution(
    plan: Plan,
    device: np.ndarray,
    source: np.ndarray,
    start: np.ndarray,
    finish: np.ndarray,
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 12.0,
) -> "Figure":
    """Draws the planned events of every device above measured segments and transfers, on two time axes.

    Args:
      plan: The plan.
      device: ``[A]``, the device of a segment, or the receiver of a transfer.
      source: ``[A]``, the sender of a transfer; -1 for a segment.
      start: ``[A]`` seconds.
      finish: ``[A]`` seconds.
      path: File to save the figure in, if any; the suffix (``.png``, ``.svg``, ``.pdf``) names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: The first argument is no plan, a device is none of the plan's, or the width or the suffix
        is not allowed.
    """
    check_drawn("plan", plan, Plan, width)
    from matplotlib.patches import Patch

    d, line = plan.cluster.num_devices, plan.timeline
    if not ((device >= 0) & (device < d)).all():
        raise ConfigError(f"device: has one that the plan lacks; its devices are 0 to {d - 1}")
    figure = figure_of(width, 2.4 + 0.9 * d)
    above, below = figure.subplots(2, 1)
    scale = TIME_UNITS[plan.time_unit]
    sends = line.port >= 0
    # A blocking transfer holds its source, too.
    more = np.flatnonzero(sends & (plan.cluster.transfer is TransferModel.BLOCKING))
    shown = np.concatenate([np.arange(len(sends)), more])
    held = np.concatenate([line.device, line.source[more]])
    start_of, finish_of = line.start[shown] * scale, line.finish[shown] * scale
    origin = np.where(sends, line.source, -1)[shown]
    _bars(above, held, origin, start_of, finish_of, d, "planned", plan.makespan * scale)
    _bars(below, device, source, start, finish, d, "measured", float(finish.max(initial=0.0)))
    patches = [Patch(color=_COMPUTE, label="ops"), Patch(color=_TRANSFER, label="transfers")]
    above.legend(
        handles=patches, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=2, frameon=False, fontsize=8
    )
    figure.suptitle(short(plan.graph_name, 60), x=0.012, ha="left", fontsize=11, color=_INK, parse_math=False)
    return save(figure, path)


def _bars(
    ax: "Axes",
    device: np.ndarray,
    source: np.ndarray,
    start: np.ndarray,
    finish: np.ndarray,
    devices: int,
    title: str,
    longest: float,
) -> None:
    factor, unit = time_scale(longest, "s")
    for k in range(devices):
        mine = device == k
        for here, colour in (mine & (source < 0), _COMPUTE), (mine & (source >= 0), _TRANSFER):
            spans = np.stack([start[here], (finish - start)[here]], axis=-1) * factor
            row = k - _HEIGHT / 2, _HEIGHT
            ax.broken_barh(spans.tolist(), row, facecolors=colour, edgecolors="white", linewidth=0.3)
    ax.set_ylim(devices - 0.5, -0.5)
    ax.set_yticks(range(devices), [f"device {k}" for k in range(devices)])
    ax.set_xlim(0, longest * factor or 1.0)
    ax.set_xlabel(f"time ({unit})")
    ax.set_title(f"{title}: {format_time(longest, 's')}", loc="left", fontsize=10, color=_INK)
    bare(ax)
