"""Pictures of plans and of sets of graphs. matplotlib is imported when a picture is drawn, not before."""

from regal_jax.viz.axes import picture_formats
from regal_jax.viz.history import plot_history
from regal_jax.viz.sizes import plot_sizes
from regal_jax.viz.timeline import plot_plan

__all__ = ["picture_formats", "plot_history", "plot_plan", "plot_sizes"]
