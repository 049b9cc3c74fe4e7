"""Refusals of numbers that cannot be."""

import numpy as np

from regal_jax.errors import ConfigError

__all__ = ["check_count", "check_probability"]


def check_count(what: str, value: object, least: int) -> None:
    """Refuses what is no whole number of at least ``least``.

    Raises:
      ConfigError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ConfigError(f"{what}: must be a whole number of at least {least}, got {value!r}")


def check_probability(what: str, value: object) -> None:
    """Refuses what is no number from 0 to 1.

    Raises:
      ConfigError: It is not.
    """
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not 0 <= value <= 1:  # pyright: ignore[reportOperatorIssue]
        raise ConfigError(f"{what}: must be a number from 0 to 1, got {value!r}")
