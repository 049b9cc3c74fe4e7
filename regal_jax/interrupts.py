"""Ctrl-C without losing what was found: the first one waits for what is running, the second does not.

An interrupt inside a compiled program would surface in whatever Python callback happens to run there, as
an error of the runtime; one between a search and the replay of its plans would lose them.
"""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

__all__ = ["first_interrupt_waits", "interrupt"]


class _Waiting:
    """Interrupts that came while something had better not be interrupted."""

    def __init__(self) -> None:
        self.noted = False
        self.insisted = False


_waiting: _Waiting | None = None
"""Of the outermost `first_interrupt_waits`. Signals reach the main thread only, which alone touches this."""


def interrupt(*_: object) -> None:
    """What Ctrl-C does, as a signal handler: the first one is noted where it may wait, others raise.

    An application that ends on SIGTERM as it does on Ctrl-C may make this its handler of that signal.

    Raises:
      KeyboardInterrupt: Nothing waits, or it has been asked before.
    """
    if _waiting is not None and not _waiting.noted:
        _waiting.noted = True
        return
    if _waiting is not None:
        _waiting.insisted = True
    raise KeyboardInterrupt


@contextlib.contextmanager
def first_interrupt_waits() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is only noted (the yielded function tells, afterwards too); a second one raises.

    Of nested ones the outermost notes for all. Off the main thread there are no signals, and a SIGINT
    handler that is not Python's own stays: there, nothing is changed.

    Raises:
      KeyboardInterrupt: At the second Ctrl-C, even if a compiled program made another error of it.
    """
    global _waiting
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    outer, waiting = _waiting, _waiting or _Waiting()
    ours = outer is None and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        _waiting = waiting
        if ours:
            signal.signal(signal.SIGINT, interrupt)
        yield lambda: waiting.noted
    except Exception as error:
        if waiting.insisted:
            raise KeyboardInterrupt from error
        raise
    finally:
        # In this order: with nothing waiting `interrupt` does what Python's own handler does.
        _waiting = outer
        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
