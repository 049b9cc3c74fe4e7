"""Batches that the host makes ahead of time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

__all__ = ["Ahead"]

T = TypeVar("T")


class Ahead(Generic[T]):
    """The batch of every step; the next one is made in a second thread while a step runs.

    Args:
      make: Step -> its batch. The result must depend on the step alone.
      steps: Number of steps of the run; nothing is made for later ones.
    """

    def __init__(self, make: Callable[[int], T], steps: int) -> None:
        self._make, self._steps = make, steps
        self._thread = ThreadPoolExecutor(1)
        self._next: tuple[int, Future[T]] | None = None

    def get(self, step: int) -> T:
        """The batch of ``step``; begins to make that of ``step + 1``."""
        waiting, self._next = self._next, None
        batch = waiting[1].result() if waiting and waiting[0] == step else self._make(step)
        if step + 1 < self._steps:
            self._next = step + 1, self._thread.submit(self._make, step + 1)
        return batch

    def close(self) -> None:
        """Ends the thread; a batch that is not begun yet is not made."""
        self._thread.shutdown(cancel_futures=True)
