"""The stack level of the user's code, for warnings."""

import sys
from typing import Final

__all__ = ["outer_level"]

_INSIDE: Final = ("regal_jax.", "contextlib")
"""Modules of the package, and the frames of its context managers that are decorators."""


def outer_level() -> int:
    """The ``stacklevel`` with which a warning of the calling function names the code outside the package."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    return level
