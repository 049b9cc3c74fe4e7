"""The weights of Topoformer that come with the package."""

import functools
from importlib import resources
from typing import TYPE_CHECKING, Final

from regal_jax.errors import ConfigError

if TYPE_CHECKING:
    from regal_jax.ordering.networks import Topoformer

__all__ = ["SHIPPED", "default_topoformer", "shipped_topoformer"]

_FOLDER: Final = resources.files("regal_jax.ordering") / "trained"
SHIPPED: Final = {"default": "layered", "standardised": "standardised"}
"""Name -> weights file: trained with the paper's loss, and with standardised peaks."""


def default_topoformer() -> "Topoformer":
    """The network that is installed with the package; its model card is docs/ordering.md.

    Examples:
      >>> from regal_jax.ordering import default_topoformer
      >>> default_topoformer().config.decoder
      <Decoder.PRIORITIES: 'priorities'>
    """
    return shipped_topoformer("default")


@functools.cache
def shipped_topoformer(name: str) -> "Topoformer":
    """A network that is installed with the package.

    Args:
      name: A key of `SHIPPED`.

    Raises:
      ConfigError: Another name.
    """
    if name not in SHIPPED:
        raise ConfigError(f"weights: none called {name!r} are shipped; use one of {', '.join(SHIPPED)}")
    # Flax takes as long to load as JAX does.
    from regal_jax.ordering.weights import load_topoformer

    with resources.as_file(_FOLDER / f"{SHIPPED[name]}.safetensors") as path:
        return load_topoformer(path)
