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
    """Lines of Python in `regal_jax` that ``call`` runs, each as often as it does; the same every time.

    Loops inside of NumPy and compiled ones are no lines. What is loaded or cached at first use is counted,
    so let the call run once before.
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
