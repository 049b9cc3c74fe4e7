"""Batches that the host makes ahead of time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final, Generic, TypeVar

import jax

from regal_jax.runtime.cores import available_cores

__all__ = ["Ahead"]

T = TypeVar("T")

_MOST: Final = 16
"""Most batches that are made ahead."""


def _depth() -> int:
    """Batches that are made at a time: one where the steps need the cores themselves."""
    return 1 if jax.default_backend() == "cpu" else max(1, min(_MOST, available_cores() - 1))


class Ahead(Generic[T]):
    """The batch of every step; those of the next steps are made in other threads while a step runs.

    Args:
      make: Step -> its batch. The result must depend on the step alone.
      steps: Number of steps of the run; nothing is made for later ones.
      depth: Number of threads, and of batches that are made ahead; ``None`` for one on a CPU, and for as
        many as the host has cores to spare with an accelerator.
    """

    def __init__(self, make: Callable[[int], T], steps: int, depth: int | None = None) -> None:
        self._make, self._steps = make, steps
        self._depth = _depth() if depth is None else depth
        self._threads = ThreadPoolExecutor(self._depth)
        self._waiting: dict[int, Future[T]] = {}

    def get(self, step: int) -> T:
        """The batch of ``step``; begins to make those of the steps after it."""
        for other in [key for key in self._waiting if not step <= key <= step + self._depth]:
            self._waiting.pop(other).cancel()
        future = self._waiting.pop(step, None)
        batch = self._make(step) if future is None else future.result()
        for later in range(step + 1, min(step + 1 + self._depth, self._steps)):
            if later not in self._waiting:
                self._waiting[later] = self._threads.submit(self._make, later)
        return batch

    def close(self) -> None:
        """Ends the threads; batches that are not begun yet are not made."""
        self._threads.shutdown(cancel_futures=True)
