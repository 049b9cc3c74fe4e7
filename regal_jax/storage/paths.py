"""Checks that an argument names a file or folder."""

import os
import pathlib

from regal_jax.errors import FormatError

__all__ = ["folder_path", "path_text"]


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


def folder_path(path: str | os.PathLike[str]) -> pathlib.Path:
    """The path of a folder to write in.

    Raises:
      FormatError: As `path_text`, or the text is empty, which would be the working directory.

    Examples:
      >>> from regal_jax.storage.paths import folder_path
      >>> folder_path("runs").name
      'runs'
    """
    text = path_text(path)
    if not text:
        raise FormatError("path: '' names no folder; give the name of one, or '.' for the working directory")
    return pathlib.Path(text)
