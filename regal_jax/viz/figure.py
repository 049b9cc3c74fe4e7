"""The figure on which plots are drawn. This module imports matplotlib, so it is imported only to draw."""

import io
from typing import Any

from matplotlib.figure import Figure

__all__ = ["PlanFigure"]


class PlanFigure(Figure):
    """A matplotlib figure that a notebook shows, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        """The picture that Jupyter shows."""
        out = io.BytesIO()
        options: dict[str, Any] = {"format": "png", "dpi": 110}
        self.savefig(out, **options)
        return out.getvalue()
