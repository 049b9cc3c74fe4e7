"""Pictures of networks that sample schedules: temperatures, and curves of training."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.viz.axes import MOST_NAME, check_drawn, check_finite, figure_of, legend_of, save, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_temperatures", "plot_training"]

_COLOURS: Final = ("#4e79a7", "#f1a340", "#59a14f", "#b07aa1", "#76b7b2", "#9c755f")
_BINS: Final = 40


def plot_temperatures(
    speedups: Mapping[str, Mapping[str, np.ndarray]],
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 8.0,
) -> "Figure":
    """Histograms of the speed-ups of sampled schedules at each temperature, one panel for each network.

    Args:
      speedups: Network -> temperature -> ``[K]`` speed-ups.
      path: File to save the figure in, if any; the suffix names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: There is no network, no temperature or no schedule, or the width or the suffix is not
        allowed.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, Figure 3.
    """
    check_drawn("speedups", speedups, Mapping, width)
    every = [np.asarray(values) for at in speedups.values() for values in at.values()]
    if not every or not all(speedups.values()) or not all(values.size for values in every):
        raise ConfigError("speedups: give at least one network, temperature and schedule")
    for title, at in speedups.items():
        for values in at.values():
            check_finite(f"speedups: {title}", values)
    figure = figure_of(width, 0.4 * width * len(speedups))
    axes = np.ravel(figure.subplots(len(speedups), 1, sharex=True, squeeze=False))
    low, high = min(float(v.min()) for v in every), max(float(v.max()) for v in every)
    bins = np.linspace(low, high if high > low else low + 1, _BINS + 1).tolist()
    drawn: dict[Any, list[tuple[Any, str]]] = {ax: [] for ax in axes}
    for ax, (title, at) in zip(axes, speedups.items(), strict=True):
        for number, (temperature, values) in enumerate(at.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            _, _, (bars,) = ax.hist(values, bins=bins, histtype="step", lw=1.4, color=colour)
            drawn[ax].append((bars, temperature))
        ax.set_title(short(title, MOST_NAME), fontsize=10, parse_math=False)
        ax.set_ylabel("schedules")
    legend_of(axes[0], drawn[axes[0]], title="temperature", fontsize=8)
    axes[-1].set_xlabel("speed-up by the proxy")
    return save(figure, path)


def plot_training(
    curves: Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]],
    label: str,
    path: str | os.PathLike[str] | None = None,
    *,
    width: float = 7.0,
) -> "Figure":
    """A figure over the steps of training, one line for each training and one colour for each name.

    Args:
      curves: Name -> steps and values of each training.
      label: What the values are.
      path: As in `plot_temperatures`.
      width: As in `plot_temperatures`.

    Returns:
      The figure.

    Raises:
      ConfigError: There is no curve, one has no points or lists of different lengths, or the width or the
        suffix is not allowed.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, Figures 4 and 5.
    """
    check_drawn("curves", curves, Mapping, width)
    if not curves or not all(runs and all(len(steps) for steps, _ in runs) for runs in curves.values()):
        raise ConfigError("curves: give at least one, with at least one point")
    for name, runs in curves.items():
        if any(np.shape(steps) != np.shape(values) for steps, values in runs):
            raise ConfigError(
                f"curves: {name} has steps and values of different lengths; give one value a step"
            )
    figure = figure_of(width, 0.6 * width)
    ax = figure.subplots()
    drawn = []
    for number, (name, runs) in enumerate(curves.items()):
        lines = [ax.plot(*run, lw=1.4, color=_COLOURS[number % len(_COLOURS)])[0] for run in runs]
        drawn.append((lines[0], name))
    ax.set_xlabel("step")
    ax.set_ylabel(label, parse_math=False)
    legend_of(ax, drawn, fontsize=9)
    return save(figure, path)
