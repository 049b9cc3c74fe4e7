"""Work in several processes that leave no orphans, whatever ends the one that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Final, TypeVar

from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["run_tasks"]

_BLINK: Final = 0.1
"""Seconds."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_tasks(
    work: Callable[[_Task], _Result], tasks: Iterable[_Task], jobs: int
) -> Iterator[tuple[_Task, _Result]]:
    """Tasks with their results, in the order in which they finish.

    Args:
      work: Called with a task; with several jobs it must be importable.
      tasks: What is to be done.
      jobs: Processes; 1 is this one alone.

    Raises:
      OSError: A process was killed.
    """
    if jobs == 1:
        for task in tasks:
            check_interrupt()
            yield task, work(task)
        return
    # Spawned, not forked: a fork of a process in which JAX has started may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=_begin)
    try:
        queue = iter(tasks)
        running: dict[Future[_Result], _Task] = {}
        while True:
            # Few ahead: with all of them handed over at once, an error would be heard at the end.
            for _, task in zip(range(2 * jobs - len(running)), queue, strict=False):
                running[executor.submit(work, task)] = task
            if not running:
                return
            check_interrupt()
            for future in wait(running, timeout=_BLINK, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    except BrokenProcessPool:
        raise OSError(
            "a worker process was killed (out of memory?); use fewer jobs and run it again"
        ) from None
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
        for child in set(multiprocessing.active_children()) - others:
            child.terminate()


def _begin(*_: Any) -> None:
    """Set-up of a worker: Ctrl-C is its parent's business, and it ends when its parent has."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
