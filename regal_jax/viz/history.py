"""`plot_history`: the objective over the course of a search."""

import os
from typing import TYPE_CHECKING

import numpy as np

from regal_jax.errors import PlanError
from regal_jax.graph.units import format_bytes, format_time
from regal_jax.plan import Objective, Plan
from regal_jax.viz.axes import bare, byte_scale, check_drawn, figure_of, save, short, time_scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["plot_history"]


def plot_history(plan: Plan, path: str | os.PathLike[str] | None = None, *, width: float = 8.0) -> "Figure":
    """Draws the incumbent's objective against the evaluations spent.

    Args:
      plan: Its ``provenance["history"]`` has two lists of one length: ``evaluations``, ascending, and
        ``best``, the incumbent's objective (in the plan's time unit, or bytes; ``None`` while there is no
        feasible one).
      path: File to save the figure in, if any; the suffix names the format.
      width: Width of the figure in inches.

    Returns:
      The figure; no global state of matplotlib is touched.

    Raises:
      ConfigError: This is no plan, or the width or the suffix is not allowed.
      PlanError: The plan has no such history.
    """
    check_drawn("plan", plan, Plan, width)
    evaluations, best = _history(plan)
    makespan = plan.objective is Objective.MAKESPAN
    finite = best[np.isfinite(best)]
    top = float(finite.max())
    factor, unit = time_scale(top, plan.time_unit) if makespan else byte_scale(top)
    figure = figure_of(width, 0.5 * width)
    ax = figure.subplots()
    ax.step(evaluations, best * factor, where="post", color="#4e79a7", lw=1.6)
    bound = plan.lower_bound
    if bound > 0.5 * finite.min():
        ax.axhline(bound * factor, color="#59a14f", lw=1.0, ls="--")
        note = {"xytext": (0, -3), "textcoords": "offset points", "ha": "right", "va": "top", "fontsize": 8}
        ax.set_ylim(bottom=(bound - 0.1 * (top - bound or bound)) * factor)
        ax.annotate(
            "lower bound", (1, bound * factor), xycoords=ax.get_yaxis_transform(), color="#59a14f", **note
        )
    last = format_time(finite[-1], plan.time_unit) if makespan else format_bytes(finite[-1])
    figure.suptitle(
        f"{short(plan.graph_name, 40)}   ·   {last} after {evaluations[-1]:,.0f} evaluations",
        x=0.012, ha="left", fontsize=11, color="#333333", parse_math=False,
    )  # fmt: skip
    ax.set_xlabel("evaluations")
    ax.set_ylabel(f"best {plan.objective.replace('-', ' ')} ({unit})")
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.set_xlim(0, max(float(evaluations[-1]), 1.0))
    ax.grid(axis="y", color="#dddddd", lw=0.5)
    bare(ax)
    return save(figure, path)


def _history(plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    history = plan.provenance.get("history")
    try:
        evaluations, best = (np.array(history[k], dtype=np.float64) for k in ("evaluations", "best"))  # pyright: ignore
        lists = evaluations.ndim == 1 and evaluations.shape == best.shape
        if lists and np.isfinite(evaluations).all() and np.isfinite(best).any():
            return evaluations, best
    except (TypeError, KeyError, ValueError, OverflowError):
        pass
    raise PlanError(
        "provenance['history'] must hold lists 'evaluations' and 'best' of one length, not all of them None; "
        "only plans of a search have them"
    )
