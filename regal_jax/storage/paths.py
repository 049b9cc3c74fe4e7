"""Checks that an argument names a file or folder."""

import os

from regal_jax.errors import FormatError

__all__ = ["path_text"]


def path_text(path: str | os.PathLike[str]) -> str:
    """The path as text.

    Raises:
      FormatError: The argument is no path, or no file can have this name.

    Examples:
      >>> from pathlib import Path
      >>> from regal_jax.storage.paths import path_text
      >>> path_text(Path("plans") / "plan.json")
      'plans/plan.json'
    """
    text = os.fspath(path) if isinstance(path, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise FormatError(f"path: give the name of a file, got {type(path).__name__}")
    try:
        possible = b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise FormatError(f"{text!r}: no file can have such a name; give one that is plain text")
    return text
