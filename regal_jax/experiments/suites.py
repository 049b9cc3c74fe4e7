"""`named_suite`: the papers' tables and figures as files with the settings of an evaluation.

A file has the settings of `EvaluationConfig` for the full size, and in its table ``small`` what is different
for two cores. Its comment has the commands that make the graphs and the weights. With ``base = "NAME"`` it
has only what differs from another file.
"""

from collections.abc import Mapping
from importlib import resources
from typing import Any, Final

from regal_jax.errors import ConfigError
from regal_jax.storage.documents import parse_toml

__all__ = ["named_suite", "suite_names"]

_FOLDER: Final = resources.files("regal_jax.experiments") / "table_files"
_SMALL: Final = "small"
_BASE: Final = "base"


def suite_names() -> list[str]:
    """Names of the tables and figures."""
    files = (entry.name for entry in _FOLDER.iterdir())
    return sorted(name.removesuffix(".toml") for name in files if name.endswith(".toml"))


def named_suite(name: str, *, small: bool = False) -> dict[str, Any]:
    """The settings of a table or figure, for `EvaluationConfig.from_document`.

    Args:
      name: One of `suite_names`.
      small: The size for two cores.

    Raises:
      ConfigError: There is no such table or figure.
    """
    if name not in suite_names():
        raise ConfigError(f"suite: there is no {name!r}; use one of {', '.join(suite_names())}")
    document = _read(name)
    less = document.pop(_SMALL)
    return {**document, **less} if small else document


def _read(name: str) -> dict[str, Any]:
    """The content of a file, on top of that of its base."""
    document = dict(parse_toml((_FOLDER / f"{name}.toml").read_text(encoding="utf-8")))
    base = document.pop(_BASE, None)
    return document if base is None else _merged(_read(base), document)


def _merged(base: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of ``base`` with those of ``document`` in their place; tables are merged."""
    merged = dict(base)
    for name, value in document.items():
        known = base.get(name)
        if isinstance(value, Mapping) and isinstance(known, Mapping):
            merged[name] = _merged(known, value)
        else:
            merged[name] = value
    return merged
