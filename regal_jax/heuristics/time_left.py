"""The time that heuristics may take: a large graph has drafts that each take seconds."""

import contextlib
import contextvars
from collections.abc import Iterator

from regal_jax.runtime.deadline import Deadline

__all__ = ["time_is_over", "until"]

_deadline: contextvars.ContextVar[Deadline | None] = contextvars.ContextVar("deadline", default=None)


@contextlib.contextmanager
def until(deadline: Deadline) -> Iterator[None]:
    """A context in which a heuristic makes no further draft once the time is over."""
    token = _deadline.set(deadline)
    try:
        yield
    finally:
        _deadline.reset(token)


def time_is_over() -> bool:
    """Whether the time of the innermost `until` is over."""
    deadline = _deadline.get()
    return deadline is not None and deadline.over
