"""Pictures of schedules on a proxy and on targets."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.viz.axes import MOST_NAME, check_drawn, check_finite, figure_of, legend_of, save, scaled, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_targets"]

_COLOURS: Final = ("#4e79a7", "#f1a340", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f")
_PROXY: Final = "proxy"


def plot_targets(
    points: Mapping[str, Mapping[str, np.ndarray]],
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 11.0,
) -> "Figure":
    """Scatter plots of the speed-up on each target against that by the proxy; each point is a schedule.

    The title of a panel has Pearson's correlation over all of its points.

    Args:
      points: Source -> ``"proxy"`` and names of targets -> ``[K]`` speed-ups of the same schedules; the same
        targets of each source.
      path: File to save the figure in, if any; the suffix names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: There is no source or no target, arrays differ in length, a number is not finite, or the
        width or the suffix is not allowed.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, Figure 2.
    """
    check_drawn("points", points, Mapping, width)
    targets = _targets(points)
    figure = figure_of(width, 0.36 * width)
    axes = np.ravel(figure.subplots(1, len(targets), squeeze=False))
    drawn = {}
    for ax, target in zip(axes, targets, strict=True):
        for number, (source, columns) in enumerate(points.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            drawn[source] = ax.scatter(columns[_PROXY], columns[target], s=10, alpha=0.6, color=colour)
        every = [np.concatenate([columns[name] for columns in points.values()]) for name in (_PROXY, target)]
        ax.set_title(f"{short(target, MOST_NAME)}{_correlation(*every)}", fontsize=10, parse_math=False)
        ax.set_xlabel("speed-up by the proxy")
        scaled(ax, "y")
    axes[0].set_ylabel("speed-up on the target")
    legend_of(axes[0], ((dots, source) for source, dots in drawn.items()), fontsize=8)
    return save(figure, path)


def _targets(points: Mapping[str, Mapping[str, np.ndarray]]) -> list[str]:
    names = [set(columns) for columns in points.values()]
    if not names or any(each != names[0] for each in names) or _PROXY not in names[0] or len(names[0]) < 2:
        raise ConfigError("points: give each source 'proxy' and the same targets, at least one")
    for source, columns in points.items():
        if len({np.shape(values) for values in columns.values()}) > 1:
            raise ConfigError(
                f"points: {source} has arrays of different lengths; give one number per schedule"
            )
        for values in columns.values():
            check_finite(f"points: {source}", values)
    return [name for name in next(iter(points.values())) if name != _PROXY]


def _correlation(x: np.ndarray, y: np.ndarray) -> str:
    if x.size < 2 or not np.ptp(x) or not np.ptp(y):
        return ""
    return f" (r = {np.corrcoef(x, y)[0, 1]:.2f})"
