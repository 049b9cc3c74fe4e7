"""SIGTERM handled like Ctrl-C, for long commands that a batch system ends."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

from regal_jax.runtime.interrupts import interrupt

__all__ = ["TERMINATED", "sigterm_acts_like_ctrl_c"]

TERMINATED = 128 + signal.SIGTERM


@contextlib.contextmanager
def sigterm_acts_like_ctrl_c() -> Iterator[Callable[[], bool]]:
    """Handles SIGTERM like Ctrl-C within the context.

    Batch systems send SIGTERM and kill some 30 seconds later, which is time to save results. The yielded
    function tells whether SIGTERM came. An existing handler stays.
    """
    terminated = threading.Event()
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
    ):
        yield terminated.is_set
        return

    def terminate(*_: object) -> None:
        terminated.set()
        interrupt()

    signal.signal(signal.SIGTERM, terminate)
    try:
        yield terminated.is_set
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
