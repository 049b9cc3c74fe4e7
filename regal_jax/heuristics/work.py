"""Counts of the schedules and placements that heuristics, features and starts make outside of a budget."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

__all__ = ["Work", "counting", "note", "uncounted"]


@dataclasses.dataclass
class Work:
    """Counts of a thread's work within a block.

    Attributes:
      schedules: Number of list schedules, of one rule each.
      placements: Number of placements whose peaks were summed up.
      parts: Counts of nested blocks, in order.
    """

    schedules: int = 0
    placements: int = 0
    parts: "list[Work]" = dataclasses.field(default_factory=list, repr=False)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.schedules + other.schedules, self.placements + other.placements)


_now: contextvars.ContextVar[Work | None] = contextvars.ContextVar("work", default=None)


@contextlib.contextmanager
def counting() -> Iterator[Work]:
    """Counts work within a block; an enclosing block lists the count as a part and includes it."""
    work, outer = Work(), _now.get()
    token = _now.set(work)
    try:
        yield work
    finally:
        _now.reset(token)
        if outer is not None:
            outer.schedules += work.schedules
            outer.placements += work.placements
            outer.parts.append(work)


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """A block whose work does not count: the caller notes it."""
    token = _now.set(None)
    try:
        yield
    finally:
        _now.reset(token)


def note(*, schedules: int = 0, placements: int = 0) -> None:
    """Adds work to the current count, if there is one; negative numbers remove evaluations of a budget."""
    work = _now.get()
    if work is not None:
        work.schedules += schedules
        work.placements += placements
