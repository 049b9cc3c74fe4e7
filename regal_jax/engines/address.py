"""Addresses, and those of Ray clusters, which are checked before Ray tries them."""

import os
import socket
from typing import Final

from regal_jax.errors import ConfigError

__all__ = ["check_address", "host_and_port", "named_address"]

_CONNECT: Final = 5.0
"""Seconds within which a cluster must accept a connection."""


def check_address(address: str) -> None:
    """Checks in seconds what Ray would try for minutes: whether something listens at ``HOST:PORT``.

    Raises:
      ConfigError: The address has another form, or nothing listens there.
    """
    if "://" in address:
        raise ConfigError(
            f"engine: {address!r} is an address of Ray Client; run this on a machine of the cluster and give "
            "HOST:PORT or auto"
        )
    if address == "auto":
        return
    found = host_and_port(address)
    if found is None:
        raise ConfigError(f"engine: {address!r} is no address of a Ray cluster; give HOST:PORT or auto")
    try:
        socket.create_connection(found, timeout=_CONNECT).close()
    except (OSError, UnicodeError) as error:  # `UnicodeError`: no host can have such a name.
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ConfigError(
            f"engine: no Ray cluster at {address!r} ({reason}); start one with 'ray start "
            "--head', or give the address that it prints"
        ) from None


def host_and_port(address: str) -> tuple[str, int] | None:
    """The parts of ``HOST:PORT``; ``None`` if the text is something else."""
    host, _, port = address.rpartition(":")
    if not (host and port.isascii() and port.isdecimal() and len(port) < 6 and 0 < int(port) < 2**16):
        return None
    return host.strip("[]"), int(port)


def named_address(address: str | None) -> str | None:
    """The address to connect to; ``None`` to start a cluster."""
    return address or os.environ.get("RAY_ADDRESS") or None
