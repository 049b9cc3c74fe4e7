"""Checks that a value is a whole number, or a number, in a range.

All numeric arguments and settings are checked here, and settings that are true or false. `True` and `False`
are not numbers. NumPy's numbers are, and the functions convert them to plain Python numbers.
"""

import json
import math
import numbers
import operator
from collections.abc import Iterable, Mapping
from typing import Any, Final

from regal_jax.errors import ConfigError, shortened

__all__ = [
    "check_callback",
    "check_field",
    "check_kind",
    "check_number",
    "check_setting",
    "check_whole",
    "counted",
    "flag",
    "is_list",
    "is_number",
    "known_name",
    "plain_values",
    "real",
    "shown",
    "whole",
]

_MOST_SHOWN: Final = 200
"""Most characters of a value in a message."""


def whole(value: Any, least: int | None = None, most: int | None = None) -> int | None:
    """``value`` as an int if it is a whole number from ``least`` to ``most``, else ``None``.

    Args:
      value: The value to check, of any type. A float is not a whole number, whatever its value.
      least: The smallest allowed number; ``None`` for no limit.
      most: The largest allowed number; ``None`` for no limit.

    Examples:
      >>> from regal_jax.checks import whole
      >>> whole(3, 1), whole(0, 1), whole(True), whole(3.0)
      (3, None, None, None)
    """
    # Arrays without axes may be whole numbers, too; their bools, like Python's, are not.
    if isinstance(value, bool) or str(getattr(value, "dtype", "")).endswith("bool"):
        return None
    try:
        found = operator.index(value)
    except TypeError:
        return None
    if (least is not None and found < least) or (most is not None and found > most):
        return None
    return found


def check_callback(name: str, value: Any) -> None:
    """Refuses an argument that is neither ``None`` nor callable.

    Raises:
      ConfigError: It is something else.
    """
    if value is not None and not callable(value):
        raise ConfigError(f"{name}: {shown(value)} is no function; give one, or leave it out")


def check_kind(what: str, value: Any, kind: type) -> None:
    """Refuses an argument of another type.

    Args:
      what: Name of the value in the error message.
      value: The value to check, of any type.
      kind: The type that it must have.

    Raises:
      ConfigError: It has another type.
    """
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise ConfigError(f"{what}: give {article} {kind.__name__}, got {type(value).__name__}")


def flag(owner: str, field: str, value: Any) -> None:
    """Checks that a value is true or false.

    Raises:
      ConfigError: It is neither.
    """
    if not isinstance(value, bool):
        raise ConfigError(f"{owner}: {field} is {value!r}; give true or false")


def is_number(value: Any) -> bool:
    """Whether ``value`` is a real number of any size, finite or not."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_list(value: Any) -> bool:
    """Whether ``value`` can be read as a list: an iterable, but no text, no bytes and no array without axes.

    Examples:
      >>> from regal_jax.checks import is_list
      >>> is_list((0, 1)), is_list({0}), is_list("01"), is_list(b"01"), is_list(0)
      (True, True, False, False, False)
    """
    texts = str | bytes | bytearray | memoryview
    return isinstance(value, Iterable) and not isinstance(value, texts) and getattr(value, "ndim", 1) != 0


def real(
    value: Any,
    least: float | None = None,
    most: float | None = None,
    *,
    above: float | None = None,
    below: float | None = None,
    infinite: bool = False,
) -> float | None:
    """``value`` as a float if it is a finite number in a range, else ``None``.

    Args:
      value: The value to check, of any type.
      least: The smallest allowed number.
      most: The largest allowed number.
      above: An exclusive lower limit.
      below: An exclusive upper limit.
      infinite: Whether infinity counts as a number; NaN never does.

    Examples:
      >>> from regal_jax.checks import real
      >>> real(1, 0), real(1, below=1), real("1"), real(float("nan"))
      (1.0, None, None, None)
    """
    if not is_number(value):
        return None
    try:
        found = float(value)
    except OverflowError:  # A whole number that is larger than all floats.
        return None
    if math.isnan(found) or (math.isinf(found) and not infinite):
        return None
    if (least is not None and found < least) or (most is not None and found > most):
        return None
    if (above is not None and found <= above) or (below is not None and found >= below):
        return None
    return found


def check_whole(what: str, value: Any, least: int, most: int | None = None) -> int:
    """``value`` as an int.

    Args:
      what: Name of the value in the error message.
      value: The value to check, of any type.
      least: The lowest that is allowed.
      most: The highest that is allowed; ``None`` for no limit.

    Raises:
      ConfigError: It is no whole number in the range.
    """
    found = whole(value, least)
    limit = f"least {shown(whole(least))}"
    if found is not None and most is not None and found > most:
        found, limit = None, f"most {shown(whole(most))}"
    if found is None:
        raise ConfigError(f"{what}: must be a whole number of at {limit}, got {shown(value)}")
    return found


def check_number(what: str, value: Any, least: float, most: float) -> float:
    """``value`` as a float.

    Args:
      what: Name of the value in the error message.
      value: The value to check, of any type.
      least: The lowest that is allowed.
      most: The highest that is allowed.

    Raises:
      ConfigError: It is no number in the range.
    """
    found = real(value, least, most)
    if found is None:
        raise ConfigError(f"{what}: must be a number from {least:g} to {most:g}, got {shown(value)}")
    return found


def plain_values(what: str, value: Any) -> Any:
    """``value`` as it is after it was written as JSON: with Python's numbers and lists.

    Args:
      what: Name of the value in the error message.
      value: Texts, finite numbers, true, false and ``None``, also in lists and mappings.

    Raises:
      ConfigError: It holds something else.

    Examples:
      >>> import numpy as np
      >>> from regal_jax.checks import plain_values
      >>> plain_values("settings", {"links": np.int64(2), "shares": (0.5, np.float32(0.25))})
      {'links': 2, 'shares': [0.5, 0.25]}
    """
    try:
        return json.loads(json.dumps(value, default=_plain, allow_nan=False))
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(
            f"{what}: give texts, finite numbers, true and false, or lists and mappings of these, "
            f"got {shown(value)}"
        ) from None


def _plain(value: Any) -> Any:
    """What JSON has in place of ``value``, which is of no type of Python's that it has."""
    if isinstance(value, Mapping):
        return dict(value)
    found = whole(value)
    found = real(value) if found is None else found
    if found is None:
        raise TypeError
    return found


def known_name(name: str, known: Iterable[str]) -> str:
    """The one of ``known`` that ``name`` spells, in capitals or not; ``name`` itself if there is none.

    Examples:
      >>> from regal_jax.checks import known_name
      >>> known_name("BRKGA", ("auto", "brkga")), known_name("BFS", ("auto", "brkga"))
      ('brkga', 'BFS')
    """
    return {each.lower(): each for each in known}.get(name.lower(), name)


def counted(number: int, what: str, several: str = "") -> str:
    """A number of things, for a message.

    Args:
      number: How many.
      what: The word for one of them.
      several: The word for more; ``what`` with an "s" by default.

    Examples:
      >>> from regal_jax.checks import counted
      >>> counted(1, "device"), counted(2000, "op"), counted(0, "search", "searches")
      ('1 device', '2,000 ops', '0 searches')
    """
    return f"{number:,} {what if number == 1 else several or f'{what}s'}"


def shown(value: Any) -> str:
    """``repr(value)`` for a message, without its middle if it is long.

    Python refuses to write whole numbers of thousands of digits.

    Examples:
      >>> from regal_jax.checks import shown
      >>> shown("free"), len(shown([0] * 1000))
      ("'free'", 205)
    """
    try:
        return shortened(repr(value), _MOST_SHOWN)
    except ValueError:
        if isinstance(value, int):
            return f"a whole number of {value.bit_length()} bits"
        return f"a {type(value).__name__} of numbers too long to write"


def check_setting(owner: str, field: str, value: Any, least: int, most: int | None = None) -> int:
    """``value``, a field of settings, as an int.

    Args:
      owner: Name of the settings in the error message.
      field: Name of the field.
      value: The value to check, of any type.
      least: The smallest allowed number.
      most: The largest allowed number; ``None`` for no limit.

    Raises:
      ConfigError: The value is not a whole number in the range.
    """
    found = whole(value, least, most)
    if found is None:
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{owner}: {field} is {shown(value)}; give a whole number {limits}")
    return found


def check_field(settings: object, field: str, least: int, most: int | None = None) -> None:
    """`check_setting` of a field of a frozen dataclass, which then holds an int."""
    value = check_setting(type(settings).__name__, field, getattr(settings, field), least, most)
    object.__setattr__(settings, field, value)
