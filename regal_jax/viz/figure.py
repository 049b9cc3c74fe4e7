"""The figure that plots are drawn on. Imported when something is drawn: it loads matplotlib."""

import io
from typing import Any

from matplotlib.figure import Figure

__all__ = ["PlanFigure"]


class PlanFigure(Figure):
    """A matplotlib figure that a notebook shows, without pyplot and its global state."""

    def _repr_png_(self) -> bytes:
        """What Jupyter asks an object for that it is to show."""
        out = io.BytesIO()
        options: dict[str, Any] = {"format": "png", "dpi": 110}
        self.savefig(out, **options)
        return out.getvalue()
