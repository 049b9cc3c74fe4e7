"""Work in several processes, which end with the process that started them."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import connection
from typing import Any, Final, TypeVar

from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["begin_worker", "end_workers", "run_tasks"]

_BLINK: Final = 0.1
"""Interval between two checks, in seconds."""

_Task = TypeVar("_Task")
_Result = TypeVar("_Result")


def run_tasks(
    work: Callable[[_Task], _Result], tasks: Iterable[_Task], jobs: int
) -> Iterator[tuple[_Task, _Result]]:
    """Runs tasks; yields each with its result, in the order of completion.

    Args:
      work: Function of a task; with several jobs it must be importable.
      tasks: The tasks.
      jobs: Number of processes; 1 for the current process alone.

    Raises:
      OSError: A process was killed.
    """
    if jobs == 1:
        for task in tasks:
            check_interrupt()
            yield task, work(task)
        return
    # Processes are spawned, not forked, since a fork of a process in which JAX has started may hang.
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    executor = ProcessPoolExecutor(jobs, mp_context=context, initializer=begin_worker)
    try:
        queue = iter(tasks)
        running: dict[Future[_Result], _Task] = {}
        while True:
            # Few tasks are submitted ahead, so that an error is raised early.
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
        end_workers(executor, others)


def end_workers(executor: ProcessPoolExecutor, others: Collection[Any]) -> None:
    """Ends the processes of ``executor`` at once; ``others`` are processes that existed before it."""
    executor.shutdown(wait=False, cancel_futures=True)
    for child in set(multiprocessing.active_children()) - set(others):
        child.terminate()


def begin_worker(*_: Any) -> None:
    """Sets up a worker: its parent handles Ctrl-C, and it ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    connection.wait([sentinel])
    os._exit(1)
