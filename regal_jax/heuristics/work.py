"""Counts of the schedules and placements that heuristics, features and starts make beside any budget."""

import contextlib
import contextvars
import dataclasses
from collections.abc import Iterator

__all__ = ["Work", "counting", "note"]


@dataclasses.dataclass
class Work:
    """What was made, in a thread, while it was counted.

    Attributes:
      schedules: List schedules, of one rule each.
      placements: Placements whose peaks were summed up.
      parts: Of what was counted within, in its order.
    """

    schedules: int = 0
    placements: int = 0
    parts: "list[Work]" = dataclasses.field(default_factory=list, repr=False)

    def __add__(self, other: "Work") -> "Work":
        return Work(self.schedules + other.schedules, self.placements + other.placements)


_now: contextvars.ContextVar[Work | None] = contextvars.ContextVar("work", default=None)


@contextlib.contextmanager
def counting() -> Iterator[Work]:
    """Counts until it is left; what counts around it has it as a part, and counts it as well."""
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


def note(*, schedules: int = 0, placements: int = 0) -> None:
    """Tells of work that was done, if anybody counts. Negative: it was evaluations of a budget."""
    work = _now.get()
    if work is not None:
        work.schedules += schedules
        work.placements += placements
