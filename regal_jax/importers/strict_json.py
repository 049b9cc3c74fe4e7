"""Reading of untrusted JSON field by field, with errors that name the place."""

import math
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from regal_jax.checks import is_number, whole
from regal_jax.errors import FormatError
from regal_jax.graph.validation import MAX_BYTES

__all__ = ["Field"]

_T = TypeVar("_T")
_KINDS: Final = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}


class Field:
    """A JSON value and its place, so that every error can name both.

    Attributes:
      value: The JSON value.
      place: Its place, e.g. ``"ops[3].runtime"``.
    """

    def __init__(self, value: Any, place: str = "") -> None:
        self.value = value
        self.place = place

    def error(self, message: str) -> FormatError:
        """The error ``message`` about this field."""
        return FormatError(f"{self.place or 'document'}: {message}")

    def _typed(self, kind: type[_T]) -> _T:
        if not isinstance(self.value, kind):
            raise self.error(f"expected {_KINDS[kind]}, got {_shown(self.value)}")
        return self.value

    def mapping(self) -> Mapping[str, Any]:
        """The value as an object."""
        return self._typed(dict)

    def get(self, key: str) -> "Field":
        """The member ``key``, which must be there."""
        if key not in self.mapping():
            raise self.error(f"{key!r} is missing; add it")
        return Field(self.value[key], f"{self.place}.{key}" if self.place else key)

    def find(self, key: str, default: Any) -> "Field":
        """The member ``key``, or ``default`` if it is absent."""
        present = key in self.mapping()
        return self.get(key) if present else Field(default, f"{self.place}.{key}" if self.place else key)

    def items(self) -> list["Field"]:
        """The elements of a list."""
        return [Field(item, f"{self.place}[{i}]") for i, item in enumerate(self._typed(list))]

    def only(self, *keys: str) -> None:
        """Refuses members other than ``keys``: a misspelt key must not pass for an absent one."""
        unknown = sorted(self.mapping().keys() - set(keys))
        if unknown:
            raise self.error(f"unknown key {unknown[0]!r}; known keys are {', '.join(keys)}")

    def text(self) -> str:
        """The value as a text that can be written again as UTF-8."""
        value = self._typed(str)
        try:
            value.encode()
        except UnicodeEncodeError:
            raise self.error(f"{value!r} has a lone surrogate, which is not text; mend it") from None
        return value

    def flag(self) -> bool:
        """The value as true or false."""
        return self._typed(bool)

    def number(self) -> float:
        """The value as a finite number, zero or more."""
        value = self.value
        if not is_number(value):
            raise self.error(f"expected a number, got {_shown(value)}")
        if value < 0 or value > 1e308 or not math.isfinite(value):
            raise self.error(f"{_shown(value)} must be finite and zero or more")
        return float(value)

    def count(self, largest: int = MAX_BYTES) -> int:
        """The value as a whole number from 0 to ``largest``."""
        value = self.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        found = whole(value)
        if found is None:
            raise self.error(f"expected a whole number, got {_shown(self.value)}")
        if not 0 <= found <= largest:
            raise self.error(f"{_shown(found)} must be from 0 to {largest}")
        return found


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _KINDS[type(value)]
    text = "null" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
