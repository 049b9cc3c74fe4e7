"""`rare_collection`: garbage collection that is rarer while the library works."""

import contextlib
import gc
import threading
from collections.abc import Iterator
from typing import Final

__all__ = ["rare_collection"]

_OBJECTS: Final = 50_000
"""New objects between two collections, a few megabytes; Python's own number is some hundreds."""

_lock = threading.Lock()
_open = 0
"""Number of open contexts."""
_before: tuple[int, int, int] = gc.get_threshold()
"""Thresholds outside of all contexts."""


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """A context or decorator in which Python looks for unreachable cycles after more new objects.

    A process with JAX holds so many objects that looking through them takes a noticeable part of a short
    call. Nothing is changed if collection is switched off, or is rarer already.
    """
    global _open, _before
    with _lock:
        if _open == 0:
            _before = gc.get_threshold()
            if 0 < _before[0] < _OBJECTS:
                gc.set_threshold(_OBJECTS, *_before[1:])
        _open += 1
    try:
        yield
    finally:
        with _lock:
            _open -= 1
            if _open == 0:
                gc.set_threshold(*_before)
