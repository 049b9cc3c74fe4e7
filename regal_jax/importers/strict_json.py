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
    """

    __slots__ = ("_key", "_parent", "value")

    def __init__(self, value: Any, parent: "Field | None" = None, key: str | int = "") -> None:
        self.value = value
        self._parent = parent
        self._key = key

    @property
    def place(self) -> str:
        """Its place in the document, e.g. ``"ops[3].runtime"``."""
        if self._parent is None:
            return ""
        above = self._parent.place
        if isinstance(self._key, int):
            return f"{above}[{self._key}]"
        return f"{above}.{self._key}" if above else self._key

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
        mapping = self.mapping()
        if key not in mapping:
            raise self.error(f"{key!r} is missing; add it")
        return Field(mapping[key], self, key)

    def find(self, key: str, default: Any) -> "Field":
        """The member ``key``, or ``default`` if it is absent."""
        return Field(self.mapping().get(key, default), self, key)

    def items(self) -> list["Field"]:
        """The elements of a list."""
        return [Field(item, self, i) for i, item in enumerate(self._typed(list))]

    def only(self, *keys: str) -> None:
        """Refuses members other than ``keys``: a misspelt key must not pass for an absent one."""
        unknown = self.mapping().keys() - keys
        if unknown:
            unknown = sorted(unknown)
            raise self.error(f"unknown key {unknown[0]!r}; known keys are {', '.join(keys)}")

    def text(self) -> str:
        """The value as a text that can be written again as UTF-8."""
        value = self._typed(str)
        if value.isascii():
            return value
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
        if type(value) is int and 0 <= value <= largest:
            return value
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
