"""Threads for the turns of searches on the host, and for what follows a search."""

from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, Final, Self

from regal_jax.plan import Plan
from regal_jax.solvers.loop.turns import Turn

__all__ = ["HostPool"]

_BLINK: Final = 0.1
"""Seconds; short, since Python handles signals only between two bytecodes."""


class HostPool:
    """Runs tasks of different graphs at the same time; compiled loops hold no lock.

    A task is a turn of a search, or makes the plan of a graph. As a context, the pool ends when the tasks
    that have begun have ended; those that have not begun are dropped.

    Args:
      workers: Number of threads.

    Attributes:
      abandoned: Whether an error has ended the context: no task that runs is of use any more.
    """

    def __init__(self, workers: int) -> None:
        self.abandoned = False
        self._threads = ThreadPoolExecutor(workers)
        self._running: dict[Future[Turn | Plan], int] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.abandoned = kind is not None
        self._threads.shutdown(cancel_futures=True)

    @property
    def load(self) -> int:
        """Number of tasks whose results have not been returned yet."""
        return len(self._running)

    def submit(self, member: int, task: Callable[..., Turn | Plan], *arguments: Any) -> None:
        """Calls ``task`` with the arguments in a thread; ``member`` is the index of the graph."""
        self._running[self._threads.submit(task, *arguments)] = member

    def ended(self, *, patient: bool) -> list[tuple[int, Turn | Plan]]:
        """``(member, result)`` of tasks that have ended, each once.

        Args:
          patient: Wait for a moment if there is none.
        """
        done, _ = wait(self._running, timeout=_BLINK if patient else 0, return_when=FIRST_COMPLETED)
        return [(self._running.pop(future), future.result()) for future in done]

    def drain(self) -> list[tuple[int, Turn | Plan]]:
        """Drops the tasks that have not begun, and waits for the others, whose results it returns."""
        self._threads.shutdown(cancel_futures=True)
        running, self._running = self._running, {}
        return [(member, future.result()) for future, member in running.items() if not future.cancelled()]
