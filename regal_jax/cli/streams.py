"""Standard streams on which a command can always print, whoever reads them."""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from regal_jax.errors import FormatError

__all__ = ["steady_streams"]


class _Steady:
    """A stream that takes everything and shows nothing once its reader has gone (``| head``).

    Letters that its encoding lacks are shown as escapes, such as those of a graph's name.

    Args:
      stream: The stream.
      needed: Name of a stream whose text must not be lost: a full disk is an error with this name. Without a
        name, text that a full disk does not take is dropped.
    """

    def __init__(self, stream: TextIO, needed: str = "") -> None:
        self._stream, self._needed = stream, needed

    def write(self, text: str) -> int:
        try:
            self._try(lambda: self._stream.write(text))
        except UnicodeEncodeError:
            encoding = self._stream.encoding
            shown = text.encode(encoding, "backslashreplace").decode(encoding)
            self._try(lambda: self._stream.write(shown))
        return len(text)

    def flush(self) -> None:
        self._try(self._stream.flush)

    def _try(self, action: Callable[[], object]) -> None:
        try:
            action()
        except OSError as error:
            if self._needed and not isinstance(error, BrokenPipeError):
                raise FormatError(
                    f"{self._needed}: cannot be written: {error.strerror or error}; write it elsewhere"
                ) from None
            # What is still buffered goes there, too, so that the flush at exit is silent.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def steady_streams() -> Iterator[None]:
    """A context in which a reader of stdout or stderr that goes, or a closed stream, ends no command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # Closed by the shell, as in ``2>&-``.
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = steady = _Steady(sys.stdout, "standard output"), _Steady(sys.stderr)
    try:
        yield
    finally:
        for stream in steady:
            with contextlib.suppress(OSError, FormatError):  # A full disk is reported at exit.
                stream.flush()
        sys.stdout, sys.stderr = before
