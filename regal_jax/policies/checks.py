"""Checks of the settings of a policy, each with one line that names the setting."""

import enum
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from regal_jax.checks import shown
from regal_jax.errors import ConfigError

__all__ = ["names_of", "numbers", "one_of"]

_Choice = TypeVar("_Choice", bound=enum.StrEnum)


def names_of(owner: str, field: str, values: Any, kind: type[_Choice]) -> tuple[_Choice, ...]:
    """Distinct members of ``kind``.

    Raises:
      ConfigError: The value is anything else.
    """
    if not isinstance(values, (tuple, list)):
        raise ConfigError(f"{owner}: {field} is {values!r}; give a list that names each once")
    found = tuple(one_of(owner, field, value, kind) for value in values)
    if len(set(found)) < len(found):
        raise ConfigError(f"{owner}: {field} is {values!r}; give a list that names each once")
    return found


def one_of(owner: str, field: str, value: Any, kind: type[_Choice]) -> _Choice:
    """A member of ``kind``, which may be given by its name.

    Raises:
      ConfigError: The value is anything else.
    """
    if not isinstance(value, str) or value not in kind.__members__.values():
        raise ConfigError(f"{owner}: {field} is {shown(value)}; use one of {', '.join(kind)}")
    return kind(value)


def numbers(owner: str, field: str, values: Sequence[Any]) -> tuple[float, ...]:
    """Finite numbers.

    Raises:
      ConfigError: The value is anything else.
    """
    try:
        if isinstance(values, (str, bytes)) or any(isinstance(value, (bool, str)) for value in values):
            raise TypeError
        found = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError):
        raise ConfigError(f"{owner}: {field} is {values!r}; give numbers") from None
    if not all(map(math.isfinite, found)):
        raise ConfigError(f"{owner}: {field} is {values!r}; give finite numbers")
    return found
