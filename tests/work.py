"""The work of a call, counted instead of timed."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import regal_jax

__all__ = ["lines_of"]

_HERE = str(Path(regal_jax.__file__).parent)


def lines_of(call: Callable[[], object]) -> int:
    """Number of lines of Python in `regal_jax` that ``call`` runs; the same every time.

    Loops within NumPy and compiled loops are not counted. First uses load and cache modules, which is
    counted, so run the call once before.
    """
    count = 0

    def line(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return line

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        return line if frame.f_code.co_filename.startswith(_HERE) else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return count
