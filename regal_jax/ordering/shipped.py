"""The weights of Topoformer that come with the package."""

import functools
from importlib import resources
from typing import TYPE_CHECKING, Final

from regal_jax.errors import ConfigError

if TYPE_CHECKING:
    from regal_jax.ordering.networks import Topoformer

__all__ = ["default_topoformer", "is_topoformer_shipped"]

_FILE: Final = resources.files("regal_jax.ordering") / "trained" / "layered.safetensors"


def default_topoformer() -> "Topoformer":
    """The network that is installed with the package; its model card is docs/ordering.md.

    Raises:
      ConfigError: There is none.

    Examples:
      >>> from regal_jax.ordering import default_topoformer
      >>> default_topoformer().config.decoder
      <Decoder.PRIORITIES: 'priorities'>
    """
    return _load()


def is_topoformer_shipped() -> bool:
    """Is there a `default_topoformer`?"""
    return _FILE.is_file()


@functools.cache
def _load() -> "Topoformer":
    if not _FILE.is_file():
        raise ConfigError("topoformer: no weights are shipped; train some with 'regal-jax train'")
    # Flax takes as long to load as JAX does.
    from regal_jax.ordering.weights import load_topoformer

    with resources.as_file(_FILE) as path:
        return load_topoformer(path)
