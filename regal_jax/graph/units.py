"""Quantities with units: ``"16GiB"``, ``"50GB/s"``, ``"5us"``."""

import math
import re
from typing import Final

from regal_jax.checks import shown

__all__ = [
    "TIME_UNITS",
    "Quantity",
    "format_bytes",
    "format_time",
    "parse_bandwidth",
    "parse_bytes",
    "parse_time",
]

Quantity = int | float | str
"""A number, or a text of a number and a unit."""

_DECIMAL: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
TIME_UNITS: Final = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ns": 1e-9}
"""Seconds in each unit of time that a graph may be measured in."""

_NUMBER: Final = r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|[+-]?inf(?:inity)?|nan)\s*"
_BYTES: Final = re.compile(_NUMBER + r"(?:([kmgtp]?)(i?)b)?\s*", re.IGNORECASE)
_BANDWIDTH: Final = re.compile(_NUMBER + r"(?:([kmgtp]?)(i?)b\s*/\s*s)?\s*", re.IGNORECASE)
_BITS: Final = re.compile(r"[KMGTP]i?b")
_TIME: Final = re.compile(_NUMBER + r"(s|ms|us|µs|μs|ns)?\s*", re.IGNORECASE)


def _number(value: Quantity, what: str, written: str = "") -> float:
    """``value`` as a float, zero or more; messages show it as it was ``written`` with its unit."""
    if isinstance(value, (bool, bytes, bytearray)):
        raise ValueError(f"{what}: expected a number, got {shown(value)}")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what}: expected a number, got {shown(value)}") from error
    if math.isnan(number) or number < 0:
        raise ValueError(f"{what}: must be zero or more, got {shown(written or value)}")
    return number


def _convert(number: float, unit: str, to: str) -> float:
    # Scaled by a whole number, so that 1 ms is exactly 1000 us.
    ratio = TIME_UNITS[unit] / TIME_UNITS[to]
    return number * round(ratio) if ratio >= 1 else number / round(1 / ratio)


def _scaled(value: str, pattern: re.Pattern[str], what: str, example: str) -> float:
    match = pattern.fullmatch(value)
    if match is None:
        raise ValueError(f"{what}: cannot read {value!r}; write a number with a unit, e.g. {example}")
    prefix, binary = (match[2] or "").lower(), match[3]
    if binary and not prefix:
        raise ValueError(f"{what}: cannot read {value!r}; write e.g. {example}")
    base = 1024 if binary else 1000
    return _number(match[1], what, value) * base ** _DECIMAL[prefix]


def parse_bytes(value: Quantity, what: str = "size", *, round_up: bool = False) -> float:
    """Bytes in ``value``: a number, or ``"512"``, ``"16GiB"`` (1024-based), ``"16GB"`` (1000-based).

    Args:
      value: The quantity; ``inf`` is allowed.
      what: Name of the value in the error message.
      round_up: Whether fractions of a byte are rounded up (sizes) or down (capacities).

    Returns:
      A whole number of bytes as a float, or ``inf``.

    Raises:
      ValueError: Negative, NaN, or not a quantity of bytes.
    """
    text = isinstance(value, str)
    number = _scaled(value, _BYTES, what, "'16GiB'") if text else _number(value, what)
    return number if math.isinf(number) else float(math.ceil(number) if round_up else math.floor(number))


def parse_time(value: Quantity, time_unit: str, what: str = "time") -> float:
    """``value`` in units of ``time_unit``; a plain number is taken to be in ``time_unit`` already.

    Args:
      value: A number, or a text such as ``"5us"``.
      time_unit: A key of `TIME_UNITS`.
      what: Name of the value in the error message.

    Raises:
      ValueError: Negative, NaN, or not a quantity of time.
    """
    if not isinstance(value, str):
        return _number(value, what)
    match = _TIME.fullmatch(value)
    if match is None:
        raise ValueError(f"{what}: cannot read {value!r}; write a number with a unit, e.g. '5us'")
    number = _number(match[1], what, value)
    return number if match[2] is None else _convert(number, match[2].casefold(), time_unit)


def parse_bandwidth(value: Quantity, time_unit: str, what: str = "bandwidth") -> float:
    """``value`` in bytes a ``time_unit``; a plain number is in bytes a ``time_unit`` already.

    Args:
      value: A number, or a text such as ``"50GB/s"``.
      time_unit: A key of `TIME_UNITS`.
      what: Name of the value in the error message.

    Raises:
      ValueError: Zero, negative, NaN, or not a bandwidth.
    """
    if isinstance(value, str):
        if _BITS.search(value):
            raise ValueError(f"{what}: {value!r} reads as bits; write bytes with a large B, e.g. '50GB/s'")
        number = _scaled(value, _BANDWIDTH, what, "'50GB/s'")
        if "/" in value:
            number = _convert(number, time_unit, "s")
    else:
        number = _number(value, what)
    if number == 0:
        raise ValueError(f"{what}: must be more than zero, got {value!r}")
    return number


def format_bytes(value: float) -> str:
    """``value`` bytes in a readable unit: ``"1.50 GiB"``."""
    if math.isinf(value):
        return "unlimited"
    for power, prefix in ((4, "Ti"), (3, "Gi"), (2, "Mi"), (1, "Ki")):
        if abs(value) >= 1023.995 * 1024 ** (power - 1):  # Avoids 1024.00 of the next smaller unit.
            return f"{value / 1024**power:.2f} {prefix}B"
    return f"{value:.0f} B"


def format_time(value: float, time_unit: str) -> str:
    """``value``, in ``time_unit``, in a readable unit: ``"1.234 ms"``."""
    seconds = value * TIME_UNITS[time_unit]
    if seconds == 0 or abs(seconds) >= 9999.5:
        return f"{seconds:,.0f} s"
    for unit in ("s", "ms", "us"):
        if abs(seconds) >= TIME_UNITS[unit]:
            return f"{seconds / TIME_UNITS[unit]:.4g} {unit}"
    return f"{seconds / TIME_UNITS['ns']:.4g} ns"
