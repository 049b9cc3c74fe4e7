"""The time that heuristics may take: a large graph has drafts that each take seconds."""

import contextlib
import contextvars
from collections.abc import Callable, Iterator

__all__ = ["time_is_over", "until"]

_over: contextvars.ContextVar[Callable[[], bool] | None] = contextvars.ContextVar("over", default=None)


@contextlib.contextmanager
def until(over: Callable[[], bool]) -> Iterator[None]:
    """A context in which a heuristic makes no further draft once ``over`` is true."""
    token = _over.set(over)
    try:
        yield
    finally:
        _over.reset(token)


def time_is_over() -> bool:
    """Whether the time of the innermost `until` is over."""
    over = _over.get()
    return over is not None and over()
