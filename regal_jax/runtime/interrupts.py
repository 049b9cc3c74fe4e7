"""Safe handling of Ctrl-C: signals are noted and checked between two steps of the work.

Python runs the handler of a signal between any two of its instructions. A handler that raises there may do so
where compiled code calls back into Python: in Numba's dispatcher, which ends the process; in NumPy or JAX,
which turn the exception into another one or lose it; or in an import, which leaves an incomplete module. So
while the library works, a signal is only noted, and `check_interrupt` raises at safe places. It is called at
least about once per second, except while a program is compiled, a function is traced, or a package is loaded.
"""

import contextlib
import functools
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

__all__ = [
    "check_interrupt",
    "first_interrupt_waits",
    "interrupt",
    "interrupt_at_end",
    "interruptible",
    "interrupts_wait",
    "stopped_by",
    "uninterrupted",
]

_Function = TypeVar("_Function", bound=Callable[..., Any])


class _Notes:
    """Interrupts during the outermost `interruptible` or `first_interrupt_waits`.

    Attributes:
      pending: Number of interrupts that are not handled yet.
      patient: Number of open `first_interrupt_waits` contexts.
      held: Number of open `interrupts_wait` contexts.
      told: Whether there was an interrupt during the outermost of these contexts; each has a new list.
    """

    def __init__(self) -> None:
        self.pending = 0
        self.patient = 0
        self.held = 0
        self.told = [False]

    def note(self, *_: object) -> None:
        """The signal handler, which does not raise."""
        self.pending += 1
        self.told[0] = True

    @property
    def due(self) -> bool:
        """Whether the next check raises."""
        return not self.held and self.pending > min(self.patient, 1)

    def check(self) -> None:
        if self.due:
            self.pending = min(self.patient, 1)
            raise KeyboardInterrupt


_notes: _Notes | None = None
"""Current notes. Only the main thread receives signals and uses this."""


def interrupt(*_: object) -> None:
    """Signal handler of Ctrl-C: notes the signal while the library works, and raises otherwise.

    An application that treats SIGTERM like Ctrl-C may use this handler for SIGTERM.

    Raises:
      KeyboardInterrupt: The library is not at work.
    """
    if _notes is None:
        raise KeyboardInterrupt
    _notes.note()


def check_interrupt() -> None:
    """Raises if Ctrl-C was pressed; costs almost nothing.

    Raises:
      KeyboardInterrupt: Ctrl-C was pressed, twice where the first one waits. Only on the main thread.
    """
    notes = _notes
    if notes is not None and notes.pending and threading.current_thread() is threading.main_thread():
        notes.check()


@contextlib.contextmanager
def _noting(patient: int) -> Iterator[_Notes]:
    """Notes interrupts of the main thread, in the notes of the outermost context."""
    global _notes
    # The current handler shows whether this is the outermost context. A handler that is not Python's own
    # stays.
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
            notes.pending = 0  # The waiting context has been told.
        # Python's handler raises from the moment it is restored.
        try:
            if ours:
                signal.signal(signal.SIGINT, signal.default_int_handler)
        finally:
            _notes = outer
    if outer is None:
        notes.check()


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """A context or decorator in which Ctrl-C raises at the next `check_interrupt` or at the end.

    Nothing is changed off the main thread, which receives no signals, or if the SIGINT handler is not
    Python's own.

    Raises:
      KeyboardInterrupt: At Ctrl-C, even if a compiled program made another error of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    with _noting(0):
        yield


_thread = threading.local()
"""``stopped`` of a thread within `stopped_by`."""


@contextlib.contextmanager
def stopped_by(stopped: Callable[[], bool]) -> Iterator[None]:
    """A context in a thread other than the main one, where ``stopped`` acts like a first Ctrl-C.

    `first_interrupt_waits` notes it; nothing raises. A worker is asked to end early in this way.
    """
    before = getattr(_thread, "stopped", None)
    _thread.stopped = stopped
    try:
        yield
    finally:
        _thread.stopped = before


@contextlib.contextmanager
def first_interrupt_waits() -> Iterator[Callable[[], bool]]:
    """A context in which the first Ctrl-C is only noted and a second one raises.

    The yielded function tells whether there was one, also after the context. A second Ctrl-C raises at the
    next `check_interrupt` or at the end. Of nested contexts, the outermost notes for all. Where
    `interruptible` changes nothing, this context changes nothing, either, unless `stopped_by` is open.

    Raises:
      KeyboardInterrupt: At the second Ctrl-C, even if a compiled program made another error of it.
    """
    if threading.current_thread() is not threading.main_thread():
        yield getattr(_thread, "stopped", None) or (lambda: False)
        return
    with _noting(1) as notes:
        if notes.patient == 1:
            notes.told = [notes.pending > 0]
        told = notes.told
        yield lambda: told[0]


@contextlib.contextmanager
def interrupts_wait() -> Iterator[None]:
    """A context, for milliseconds, in which no Ctrl-C raises: not at a check before its end."""
    notes = _notes if threading.current_thread() is threading.main_thread() else None
    if notes is None:
        yield
        return
    notes.held += 1
    try:
        yield
    finally:
        notes.held -= 1


@contextlib.contextmanager
def interrupt_at_end() -> Iterator[None]:
    """A context in which the first Ctrl-C ends searches early and is raised at the end of the context.

    It is for callers that do not take the results of searches that ended early.

    Raises:
      KeyboardInterrupt: There was a Ctrl-C.
    """
    with first_interrupt_waits() as interrupted:
        yield
    if interrupted():
        raise KeyboardInterrupt


def uninterrupted(function: _Function) -> _Function:
    """``function`` within `interruptible`, at no cost if such a context is already open."""

    @functools.wraps(function)
    def call(*args: Any) -> Any:
        if _notes is not None:
            return function(*args)
        with interruptible():
            return function(*args)

    return cast(_Function, call)
