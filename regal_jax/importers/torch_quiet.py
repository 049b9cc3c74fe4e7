"""Calls of PyTorch without its own output."""

import contextlib
import logging
import sys
import warnings
from collections.abc import Iterator
from typing import Any, Final

__all__ = ["quiet"]

_FOREIGN: Final = ("torch", "functorch", "sympy", "copyreg")


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppresses PyTorch's own output while it traces or compiles, but not that of the user's code."""
    found = {name: log for name, log in logging.root.manager.loggerDict.items() if _is_foreign(name)}
    loggers = [log for log in found.values() if isinstance(log, logging.Logger)]
    loggers += [logging.getLogger("torch")]  # Loggers that are made in the context inherit its level.
    levels = [logger.level for logger in loggers]
    with warnings.catch_warnings(), contextlib.redirect_stderr(_Deaf(sys.stderr)):  # pyright: ignore
        for name in _FOREIGN:
            warnings.filterwarnings("ignore", module=rf"{name}(\.|$)")
        # PyTorch attributes this warning to the caller; it is about copies of layers, which are dropped.
        warnings.filterwarnings("ignore", message=r"The tensor attributes? self\.")
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, levels, strict=True):
                logger.setLevel(level)


def _is_foreign(name: str) -> bool:
    return name.partition(".")[0] in _FOREIGN


class _Deaf:
    """A stream that drops PyTorch's own output (partial programs, tracebacks) and passes on the rest."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if _is_foreign(sys._getframe(1).f_globals.get("__name__", "")):
            return len(text)
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
