"""`Deadline`: a limit of wall-clock time."""

import time

__all__ = ["Deadline"]


class Deadline:
    """A limit of wall-clock time that starts when the object is made.

    Args:
      seconds: The limit; ``None`` for none.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self.seconds = seconds
        self._began = time.monotonic()

    @property
    def spent(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float | None:
        """Seconds until it is over, above 0 even afterwards; ``None`` if there is no limit."""
        return None if self.seconds is None else max(self.seconds - self.spent, 1e-9)

    @property
    def over(self) -> bool:
        """Whether the time is over; never if there is no limit."""
        return self.seconds is not None and self.spent >= self.seconds

    def part(self, share: float) -> "Deadline":
        """The end of this share of the time; it began when this one did."""
        made = Deadline(None if self.seconds is None else share * self.seconds)
        made._began = self._began
        return made
