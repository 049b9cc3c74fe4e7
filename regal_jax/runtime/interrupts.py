"""Ctrl-C without losing what was found, and without harm: it is looked at between two steps of the work.

Python runs the handler of a signal between any two of its instructions. One that raises there may do so where
compiled code calls back into Python: in Numba's dispatcher, where the process dies of it; in NumPy or in JAX,
which make an error of their own of it or lose it; or in an import, which leaves half a module. So while the
library works a signal is only noted, and `check_interrupt` raises where nothing is harmed: about once a
second at least, except while a program is compiled, a function is traced, or a package is loaded.
"""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

__all__ = ["check_interrupt", "first_interrupt_waits", "interrupt", "interruptible", "uninterrupted"]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Notes:
    """Interrupts during the outermost `interruptible` or `first_interrupt_waits`.

    Attributes:
      pending: Those that nothing came of yet.
      patient: `first_interrupt_waits` that are open.
      told: Has there been one during the outermost of these? A new list for each of them.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.patient = 0
        self.told = [False]

    def note(self, *_: object) -> None:
        """The signal handler. Raises nothing."""
        self.pending += 1
        self.told[0] = True

    @property
    def due(self) -> bool:
        """Is it time to raise?"""
        return self.pending > min(self.patient, 1)

    def check(self) -> None:
        if self.due:
            self.pending = min(self.patient, 1)
            raise KeyboardInterrupt


_notes: _Notes | None = None
"""Signals reach the main thread only, which alone touches this."""


def interrupt(*_: object) -> None:
    """What Ctrl-C does, as a signal handler: it is noted where the library works, and raises elsewhere.

    An application that ends on SIGTERM as it does on Ctrl-C may make this its handler of that signal.

    Raises:
      KeyboardInterrupt: The library is not at work.
    """
    if _notes is None:
        raise KeyboardInterrupt
    _notes.note()


def check_interrupt() -> None:
    """A place where Ctrl-C may end what is running. Costs next to nothing.

    Raises:
      KeyboardInterrupt: There was one, or a second one where the first waits; this is the main thread.
    """
    notes = _notes
    if notes is not None and notes.pending and threading.current_thread() is threading.main_thread():
        notes.check()


@contextlib.contextmanager
def _noting(patient: int) -> Iterator[_Notes]:
    """Interrupts are noted, in the outermost notes; of the main thread only."""
    global _notes
    # The handler itself tells whether this is the outermost. One that is not Python's own stays.
    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    outer = None if ours else _notes
    notes = outer or _Notes()
    try:
        _notes = notes
        if ours:
            signal.signal(signal.SIGINT, notes.note)
        notes.patient += patient
        yield notes
        notes.check()
    except Exception as error:
        if notes.due:
            raise KeyboardInterrupt from error
        raise
    finally:
        notes.patient -= patient
        if patient and not notes.patient:
            notes.pending = 0  # Whoever waited has been told.
        # Python's handler raises as soon as it is in place if a signal comes then.
        try:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        finally:
            _notes = outer
    if outer is None:
        notes.check()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C ends what runs within, at the next `check_interrupt` or at the end; also a decorator.

    Off the main thread there are no signals, and a SIGINT handler that is not Python's own stays: there,
    nothing is changed.

    Raises:
      KeyboardInterrupt: At Ctrl-C, even if a compiled program made another error of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _noting(0):
        yield


@contextlib.contextmanager
def first_interrupt_waits() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C is only noted (the yielded function tells, afterwards too); a second one raises.

    It does so at the next `check_interrupt`, or at the end. Of nested ones the outermost notes for all.
    Where nothing is changed by `interruptible`, nothing is here.

    Raises:
      KeyboardInterrupt: At the second Ctrl-C, even if a compiled program made another error of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    with _noting(1) as notes:
        if notes.patient == 1:
            notes.told = [notes.pending > 0]
        told = notes.told
        yield lambda: told[0]


def uninterrupted(function: _Function) -> _Function:
    """``function`` as `interruptible` runs it; where that has begun already, at no cost."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if _notes is not None:
            return function(*args)
        with interruptible():
            return function(*args)

    return cast(_Function, call)
