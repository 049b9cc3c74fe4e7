"""Settings as nested dataclasses: conversion from and to the tables of a document, and checks of fields."""

import dataclasses
import enum
import functools
import math
import operator
import os
import types
import typing
from collections.abc import Mapping
from typing import Any, ClassVar, Final, Self

import numpy as np

from regal_jax.checks import check_kind, is_number, real, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.storage.documents import read_toml

__all__ = [
    "MOST",
    "MOST_RATE",
    "SystemConfig",
    "above_fields",
    "build",
    "data_fields",
    "least_fields",
    "member_field",
    "plain",
    "run_fields",
    "table_fields",
    "whole_fields",
]

MOST: Final = 2**31 - 1
"""Largest whole number, since many settings are int32 in the compiled step."""
MOST_RATE: Final = 10.0
"""Largest learning rate: Adam changes a weight by about the learning rate in a step."""
_MOST_FLOAT: Final = float(np.finfo(np.float32).max)
_LEAST_FLOAT: Final = float(np.finfo(np.float32).tiny)
"""Smallest positive number; smaller ones may be 0 in the compiled step."""
_INFINITE: Final = "inf"
"""JSON has no infinite numbers."""

_T = typing.TypeVar("_T")


def build(kind: type[_T], table: Any, path: str) -> _T:
    """An instance of the dataclass ``kind`` from a table."""
    if not isinstance(table, Mapping):
        where = path.rstrip(".") or "settings"
        raise ConfigError(f"{where}: is {shown(table)}; give a table of settings")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
    for name in table:
        if name not in names:
            raise ConfigError(f"{path}{name}: there is no such setting; use one of {', '.join(names)}")
    values = {name: _value(hints[name], value, f"{path}{name}") for name, value in table.items()}
    try:
        return kind(**values)
    except ConfigError as error:
        # Configs of other rooms say "policy" or "BrkgaConfig" but not the table of the file.
        text = str(error)
        raise ConfigError(text if not path or text.startswith(path) else f"[{path[:-1]}] {text}") from None


class SystemConfig:
    """Base of the settings of a training run: nested dataclasses, read from TOML.

    Attributes:
      system: What the run trains: the value of ``system`` in a file of settings.
    """

    system: ClassVar[str]

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The config in nested tables, as read from TOML; missing settings keep their defaults.

        Raises:
          ConfigError: The document is for another system, a name is unknown, or a value has a wrong type or
            is out of range; the message names it.
        """
        if isinstance(document, Mapping):
            named = document.get("system", cls.system)
            if named != cls.system:
                raise ConfigError(f"system: is {shown(named)}; give {cls.system!r}, or leave it out")
            document = {name: value for name, value in document.items() if name != "system"}
        return build(cls, document, "")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """The config in a TOML file, which may contain ``system``.

        Raises:
          ConfigError: The file is missing or not TOML, or an error of `from_document`.
        """
        return cls.from_document(read_toml(path))

    def as_document(self) -> dict[str, Any]:
        """Nested tables of plain values, from which `from_document` makes an equal config."""
        return {"system": self.system, **plain(self)}


def _value(hint: Any, value: Any, path: str) -> Any:
    """``value`` as the annotated type, or a `ConfigError` that names ``path``."""
    if isinstance(hint, types.UnionType) and types.NoneType in typing.get_args(hint):
        if value is None:
            return None
        given = [kind for kind in typing.get_args(hint) if kind is not types.NoneType]
        hint = functools.reduce(operator.or_, given)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, f"{path}.")
    if hint == (tuple[str, ...] | str):
        return _texts(value, path)
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}: is {shown(value)}; give a list")
        return tuple(value)
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if float in kinds and isinstance(value, str) and value == _INFINITE:
        return math.inf
    if any(_is(kind, value) for kind in kinds):
        number = real(value) if float in kinds else None
        return value if number is None else number
    wanted = " or ".join(_NAMES.get(kind, "a text") for kind in kinds)
    raise ConfigError(f"{path}: is {shown(value)}; give {wanted}")


_NAMES: Final = {bool: "true or false", int: "a whole number", float: "a number"}


def _is(kind: type, value: Any) -> bool:
    """Whether ``value`` has the type of the setting in a file. Names are checked by the config itself."""
    if kind in (int, float):
        return whole(value) is not None or (kind is float and is_number(value))
    return isinstance(value, str if issubclass(kind, enum.Enum) else kind)


def member_field(config: Any, path: str, field: str, kind: type[enum.StrEnum]) -> None:
    """Converts the field, which may be a name, to a member of ``kind``."""
    value = getattr(config, field)
    if not isinstance(value, str) or value not in kind.__members__.values():
        raise ConfigError(f"{_name(path, field)}: is {shown(value)}; use one of {', '.join(kind)}")
    object.__setattr__(config, field, kind(value))


def whole_fields(config: Any, path: str, **lowest: int) -> None:
    """Converts the fields to plain whole numbers."""
    for field, low in lowest.items():
        value = getattr(config, field)
        number = whole(value, low, MOST)
        if number is None:
            limits = f"from {low} to {MOST}"
            raise ConfigError(f"{_name(path, field)}: is {shown(value)}; give a whole number {limits}")
        object.__setattr__(config, field, number)


def least_fields(config: Any, path: str, **lowest: float) -> None:
    """Converts the fields to plain numbers, which are finite in float32."""
    for field, low in lowest.items():
        value = getattr(config, field)
        number = real(value, low, _MOST_FLOAT)
        if number is None:
            raise ConfigError(
                f"{_name(path, field)}: is {shown(value)}; give a number of at least {low} and at most "
                f"{_MOST_FLOAT:g}"
            )
        object.__setattr__(config, field, number)


def above_fields(config: Any, path: str, most: float = _MOST_FLOAT, **limits: float) -> None:
    """Converts the fields to plain numbers, which are above a limit and at most ``most`` in float32, too."""
    for field, limit in limits.items():
        value = getattr(config, field)
        number = real(value, _LEAST_FLOAT, most)
        if number is None or np.float32(number) <= limit:
            raise ConfigError(
                f"{_name(path, field)}: is {shown(value)}; give a number above {limit} and at most {most:g}, "
                "as float32 has it"
            )
        object.__setattr__(config, field, number)


def run_fields(config: Any) -> None:
    """Checks the tables of a run, and converts ``start``, a path or an empty text, and ``seed``."""
    table_fields(config)
    value = config.start
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise ConfigError(f"start: is {shown(value)}; give the path of a file, or leave it out")
    object.__setattr__(config, "start", text)
    whole_fields(config, "", seed=0)


def data_fields(config: Any, *fields: str) -> None:
    """Converts fields of ``data``, texts or lists of texts, to tuples; an empty text is an empty tuple."""
    for field in fields:
        object.__setattr__(config, field, _texts(getattr(config, field), f"data.{field}"))


def _texts(value: Any, where: str) -> tuple[str, ...]:
    given = value if isinstance(value, (list, tuple)) else (value,)
    texts = tuple(os.fspath(text) if isinstance(text, os.PathLike) else text for text in given)
    if not all(isinstance(text, str) for text in texts):
        raise ConfigError(f"{where}: is {shown(value)}; give a text, or a list of texts")
    if value == "":
        return ()
    if "" in texts:
        raise ConfigError(f"{where}: is {shown(value)}, with an empty text; leave it out")
    return texts


def table_fields(config: Any) -> None:
    """Checks that the tables of the config have the types of their fields."""
    for field, kind in typing.get_type_hints(type(config)).items():
        if dataclasses.is_dataclass(kind):
            check_kind(field, getattr(config, field), typing.cast(type, kind))


def _name(path: str, field: str) -> str:
    """The full name of a setting."""
    return f"{path}.{field}" if path else field


def plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        table = {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        # TOML has no null; all settings that may be None are None by default.
        return {name: entry for name, entry in table.items() if entry is not None}
    if isinstance(value, enum.StrEnum):
        return str(value)
    if isinstance(value, float) and value == math.inf:
        return _INFINITE
    return list(value) if isinstance(value, tuple) else value
