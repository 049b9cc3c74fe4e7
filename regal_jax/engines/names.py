"""Engines by name: ``local``, ``ray`` or ``ray:ADDRESS``."""

import contextlib
import reprlib
from collections.abc import Iterator
from typing import Any

from regal_jax.engines.protocol import Engine
from regal_jax.engines.ray_engine import RayEngine
from regal_jax.errors import ConfigError

__all__ = ["check_engine_name", "engine_of", "opened"]


def check_engine_name(name: str) -> None:
    """Checks a name without opening the engine.

    Raises:
      ConfigError: There is no such engine.
    """
    kind, colon, address = name.partition(":")
    if name != "local" and (kind != "ray" or bool(colon) != bool(address)):
        raise ConfigError(f"engine: there is no {name!r}; use local, ray or ray:ADDRESS")


def engine_of(given: Any) -> Engine | None:
    """The engine that ``given`` names; ``None`` for ``"local"``, which is this process.

    Args:
      given: ``None``, ``"local"``, ``"ray"``, ``"ray:ADDRESS"`` or an `Engine`.

    Raises:
      ConfigError: There is no such engine.
    """
    if given is None:
        return None
    if isinstance(given, str):
        check_engine_name(given)
        kind, _, address = given.partition(":")
        return None if kind == "local" else RayEngine(address or None)
    if isinstance(given, Engine) and not isinstance(given, type):
        return given
    raise ConfigError(f"engine: give 'local', 'ray', 'ray:ADDRESS' or a RayEngine, got {reprlib.repr(given)}")


@contextlib.contextmanager
def opened(given: Any) -> Iterator[Engine | None]:
    """The engine that ``given`` names; one that was made here is closed at the end.

    Raises:
      ConfigError: There is no such engine.
    """
    engine = engine_of(given)
    try:
        yield engine
    finally:
        if engine is not None and engine is not given:
            engine.close()
