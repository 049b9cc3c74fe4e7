"""Strict parsing of untrusted JSON and TOML, with errors of one line."""

import collections
import json
import math
import os
import tomllib
from typing import Any, Final, NoReturn

from regal_jax.errors import ConfigError, FormatError
from regal_jax.storage.reading import read_limited

__all__ = ["check_format", "parse_json", "parse_toml", "parse_writable_json", "read_toml"]

_DIGITS: Final = 308
"""Most digits of a whole number; more are too large for a float."""
_LEVELS: Final = 64
_MAX_SETTINGS: Final = 2**24
"""Largest file of settings, in bytes."""


def parse_json(text: str | bytes) -> Any:
    """The JSON value in ``text``, with finite numbers, unique keys and limited nesting.

    Raises:
      FormatError: The text is not UTF-8 or not JSON (NaN and Infinity are not), a number does not fit into a
        float, a key occurs twice, or there are more than 64 levels.
    """
    if not isinstance(text, (str, bytes)):
        raise FormatError(f"give text, got {type(text).__name__}")
    try:
        value = json.loads(
            text.decode("utf-8-sig") if isinstance(text, bytes) else text,
            parse_int=_whole,
            parse_float=_finite,
            parse_constant=_refuse,
            object_pairs_hook=_unique,
        )
    except UnicodeDecodeError as error:
        raise FormatError(f"byte {error.start} is not UTF-8 text; check the file's encoding") from None
    except json.JSONDecodeError as error:
        raise FormatError(
            f"not JSON: line {error.lineno}, column {error.colno}: {error.msg}; is the file complete?"
        ) from None
    except RecursionError:
        raise _too_deep("JSON") from None
    _check_levels(value, "JSON")
    return value


def parse_writable_json(data: bytes) -> Any:
    """The value of `parse_json`, which can be written as UTF-8 again.

    Raises:
      ValueError: An error of `parse_json`, or a string has a lone surrogate.
    """
    value = parse_json(data)
    if b"\\u" in data:
        json.dumps(value, ensure_ascii=False).encode()  # A lone surrogate cannot be encoded.
    return value


def check_format(path: str | os.PathLike[str], document: Any, name: str, version: int, remedy: str) -> None:
    """Refuses a parsed document that is no object of a format and version.

    Raises:
      FormatError: It is of another format, for which the ``remedy`` is, or of another version.
    """
    if not isinstance(document, dict) or document.get("format") != name:
        raise FormatError(f"{path}: not a {name} document; {remedy}")
    if document.get("version") != version:
        raise FormatError(f"{path}: version {document.get('version')!r} is not known; update regal-jax")


def parse_toml(text: str) -> dict[str, Any]:
    """The TOML table in ``text``, with whole numbers that fit into a float and limited nesting.

    Raises:
      FormatError: The text is not TOML, a whole number does not fit into a float, or there are more than 64
        levels.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"not TOML: {' '.join(str(error).split())}; mend it") from None
    except RecursionError:
        raise _too_deep("TOML") from None
    except ValueError as error:  # A whole number has too many digits for Python, or a date is invalid.
        raise FormatError(f"not TOML: {' '.join(str(error).split())}; mend the value") from None
    _check_levels(table, "TOML")
    return table


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The table in a TOML file of settings.

    Raises:
      ConfigError: There is no such file, it is larger than 16 MiB or no regular file, or an error of
        `parse_toml`.
    """
    if not isinstance(path, (str, os.PathLike)):
        raise ConfigError(f"path: give the name of a file, got {type(path).__name__}")
    try:
        return parse_toml(read_limited(path, _MAX_SETTINGS).decode())
    except OSError as error:
        reason = f"{error.strerror or error}; check the path"
        raise ConfigError(f"{path}: cannot be read as TOML: {reason}") from None
    except ValueError as error:  # Not UTF-8, or a null character in the path.
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None


def _check_levels(value: Any, kind: str) -> None:
    """Checks the nesting, and the size of whole numbers of TOML."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > _LEVELS:
            raise _too_deep(kind)
        below: list[Any] = []
        for item in level:
            for each in item.values() if isinstance(item, dict) else item if isinstance(item, list) else ():
                if isinstance(each, (dict, list)):
                    below.append(each)
                elif isinstance(each, int) and each.bit_length() > 1023:
                    raise FormatError(f"{kind} has a whole number of {each.bit_length()} bits; {_SMALLER}")
        level = below


_SMALLER: Final = "write a smaller one"


def _too_deep(kind: str) -> FormatError:
    return FormatError(f"{kind} nests too deep; no document needs more than {_LEVELS} levels")


def _refuse(text: str) -> NoReturn:
    raise FormatError(f"JSON number {text[:20]} is not allowed; write a finite number")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        _refuse(text)
    return value


def _whole(text: str) -> int:
    if len(text) > _DIGITS:
        raise FormatError(f"JSON has a whole number of {len(text)} digits; {_SMALLER}")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        times = collections.Counter(key for key, _ in pairs)
        twice = next(key for key in times if times[key] > 1)
        raise FormatError(f"JSON object has the key {twice!r} twice; drop one of the two")
    return made
