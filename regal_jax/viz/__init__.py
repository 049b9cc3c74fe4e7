"""Pictures of plans, graphs and evaluations. matplotlib is imported when a picture is drawn, not before."""

from regal_jax.viz.axes import check_picture, picture_formats
from regal_jax.viz.comparison import (
    plot_entropies,
    plot_improvements,
    plot_limits,
    plot_quality,
    plot_rounds,
    plot_seconds,
)
from regal_jax.viz.execution import plot_execution
from regal_jax.viz.graph import plot_graph
from regal_jax.viz.history import plot_history
from regal_jax.viz.sizes import plot_sizes
from regal_jax.viz.targets import plot_targets
from regal_jax.viz.timeline import plot_plan
from regal_jax.viz.training import plot_temperatures, plot_training

__all__ = [
    "check_picture",
    "picture_formats",
    "plot_entropies",
    "plot_execution",
    "plot_graph",
    "plot_history",
    "plot_improvements",
    "plot_limits",
    "plot_plan",
    "plot_quality",
    "plot_rounds",
    "plot_seconds",
    "plot_sizes",
    "plot_targets",
    "plot_temperatures",
    "plot_training",
]
