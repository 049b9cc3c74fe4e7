"""Batches that the host makes ahead of time."""

import contextlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, Final, Generic, TypeVar

import jax

from regal_jax.datasets.workers import begin_worker, end_workers
from regal_jax.runtime.cores import available_cores

__all__ = ["Ahead", "spare_workers"]

T = TypeVar("T")

_MOST: Final = 16
"""Most worker processes."""
_ENVIRONMENT: Final = {"JAX_PLATFORMS": "cpu", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
"""Of worker processes, which share the cores and leave the accelerator to the training."""

_make: Callable[[int], Any] | None = None
"""What this worker process makes."""


def spare_workers() -> int:
    """Number of processes that can make batches beside a training: none on a CPU, where it has all cores."""
    return 0 if jax.default_backend() == "cpu" else max(1, min(_MOST, available_cores() - 1))


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables, which processes that are started inherit."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _begin(make: Callable[[int], Any]) -> None:
    global _make
    begin_worker()
    _make = make


def _made(step: int) -> Any:
    if _make is None:
        raise RuntimeError("the worker process has not begun")
    return _make(step)


class Ahead(Generic[T]):
    """The batch of every step; those of the next steps are made while a step runs.

    Args:
      make: Step -> its batch. The result must depend on the step alone. With worker processes, the function
        and its results must be importable or plain values, and arrays those of NumPy.
      steps: Number of steps of the run; nothing is made for later ones.
      workers: Number of worker processes; with 0, a thread of this process makes the next batch.

    Raises:
      OSError: A worker process was killed.
    """

    def __init__(self, make: Callable[[int], T], steps: int, workers: int = 0) -> None:
        self._steps, self._depth = steps, max(1, 2 * workers)
        self._waiting: dict[int, Future[T]] = {}
        self._others = set(multiprocessing.active_children())
        self._executor: Executor = ThreadPoolExecutor(1)
        self._call: Callable[[int], T] = make
        if workers:
            # Processes are spawned, not forked, since a fork of a process in which JAX has started may hang.
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(workers, context, initializer=_begin, initargs=(make,))
            self._call = _made

    def get(self, step: int) -> T:
        """The batch of ``step``; begins to make those of the steps after it."""
        for other in [key for key in self._waiting if not step <= key <= step + self._depth]:
            self._waiting.pop(other).cancel()
        with _environment(_ENVIRONMENT if isinstance(self._executor, ProcessPoolExecutor) else {}):
            for later in range(step, min(step + 1 + self._depth, self._steps)):
                if later not in self._waiting:
                    self._waiting[later] = self._executor.submit(self._call, later)
        try:
            return self._waiting.pop(step).result()
        except BrokenProcessPool:
            raise OSError("a process that makes batches was killed (out of memory?); run it again") from None

    def close(self) -> None:
        """Ends the thread or the processes; batches that are not begun yet are not made."""
        if isinstance(self._executor, ProcessPoolExecutor):
            end_workers(self._executor, self._others)
        else:
            self._executor.shutdown(cancel_futures=True)
