"""Pictures of plans. matplotlib is imported when a picture is drawn, not before."""

from regal_jax.viz.axes import picture_formats
from regal_jax.viz.history import plot_history
from regal_jax.viz.timeline import plot_plan

__all__ = ["picture_formats", "plot_history", "plot_plan"]
