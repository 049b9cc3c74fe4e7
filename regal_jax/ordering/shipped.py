"""The weights of Topoformer that come with the package."""

import functools
from typing import TYPE_CHECKING, Final

from regal_jax.checks import check_kind
from regal_jax.storage.shipped import shipped_weights

if TYPE_CHECKING:
    from regal_jax.ordering.networks import Topoformer

__all__ = ["SHIPPED", "default_topoformer", "shipped_topoformer"]

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


def shipped_topoformer(name: str) -> "Topoformer":
    """A network that is installed with the package.

    Args:
      name: A key of `SHIPPED`.

    Raises:
      ConfigError: Another name.
    """
    check_kind("weights", name, str)
    return _load(name)


@functools.cache
def _load(name: str) -> "Topoformer":
    with shipped_weights("regal_jax.ordering", SHIPPED, name) as path:
        # Flax takes as long to load as JAX does.
        from regal_jax.ordering.weights import load_topoformer

        return load_topoformer(path)
