"""Weights of another run to begin with."""

from collections.abc import Callable
from typing import Any, TypeVar

from regal_jax.errors import ConfigError
from regal_jax.learning.settings import plain
from regal_jax.storage.stamps import file_stamp

__all__ = ["given_network"]

_Network = TypeVar("_Network")


def given_network(start: str, load: Callable[[str], _Network], config: Any, remedy: str) -> _Network:
    """The network of a file, which must have the architecture of the run.

    Args:
      start: File of weights.
      load: Reads it; the network has a ``config``.
      config: Architecture of the run.
      remedy: How to mend a difference, for the message.

    Raises:
      ConfigError: The file holds another network, or there is no such file.
      FormatError: It is not a file of weights.
    """
    file_stamp(start, "start", "give a file of weights, or leave it out")
    network: Any = load(start)
    for name, asked in vars(config).items():
        given = getattr(network.config, name)
        if given != asked:
            raise ConfigError(
                f"start: {start} has {name} = {plain(given)!r}, the config {plain(asked)!r}; {remedy}"
            )
    return network
