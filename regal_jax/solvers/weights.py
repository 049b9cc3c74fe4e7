"""Networks of solvers: a given one, one from a file of weights, or a shipped one."""

import functools
import os
from collections.abc import Callable, Collection
from typing import Any, TypeVar

from regal_jax.checks import shown
from regal_jax.errors import ConfigError
from regal_jax.storage.stamps import file_stamp

__all__ = ["loaded_network", "network_of", "weights_stamp"]

_Network = TypeVar("_Network")


def network_of(
    given: Any,
    kind: type[_Network],
    shipped: Collection[str],
    make: Callable[[str], _Network],
    load: Callable[[str], _Network],
) -> _Network:
    """The network that ``given`` names.

    Args:
      given: A network, a file of weights, or the name of shipped weights.
      kind: Type of the network.
      shipped: Names of the shipped weights.
      make: Loads shipped weights by their name.
      load: Loads a file; it is called again only if the file has changed.

    Raises:
      ConfigError: There is no such file, or ``given`` is of another type.
      FormatError: The file holds no network.
    """
    if isinstance(given, kind):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise ConfigError(
            f"weights: give 'default', a file of weights or a {kind.__name__}, got {shown(given)}"
        )
    path = os.fspath(given)
    if path in shipped:
        return make(path)
    return loaded_network(load, path, weights_stamp(path, shipped))


def weights_stamp(path: str, shipped: Collection[str]) -> tuple[int, int]:
    """The `file_stamp` of a file of weights.

    Raises:
      ConfigError: There is no such file; the message names the ``shipped`` weights.
    """
    names = ", ".join(map(repr, shipped))
    return file_stamp(path, "weights", f"give a file of weights, or one of {names}")


@functools.lru_cache(maxsize=4)
def loaded_network(load: Callable[[str], Any], path: str, stamp: tuple[int, int]) -> Any:
    """The network in a file, read again once its `file_stamp` is another one."""
    del stamp
    return load(path)
