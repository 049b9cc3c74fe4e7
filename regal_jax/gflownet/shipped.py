"""The weights of the schedule policy that come with the package."""

import functools
from importlib import resources
from typing import TYPE_CHECKING, Final

from regal_jax.errors import ConfigError

if TYPE_CHECKING:
    from regal_jax.gflownet.networks import SchedulePolicy

__all__ = ["SHIPPED", "default_gflownet", "shipped_gflownet"]

_FOLDER: Final = resources.files("regal_jax.gflownet") / "trained"
SHIPPED: Final = {"default": "synthetic"}
"""Name -> weights file."""


def default_gflownet() -> "SchedulePolicy":
    """The network that is installed with the package.

    Examples:
      >>> from regal_jax.gflownet import default_gflownet
      >>> default_gflownet().config.devices
      4
    """
    return shipped_gflownet("default")


@functools.cache
def shipped_gflownet(name: str) -> "SchedulePolicy":
    """A network that is installed with the package.

    Args:
      name: A key of `SHIPPED`.

    Raises:
      ConfigError: Another name.
    """
    if name not in SHIPPED:
        raise ConfigError(f"weights: none called {name!r} are shipped; use one of {', '.join(SHIPPED)}")
    # Flax takes as long to load as JAX does.
    from regal_jax.gflownet.weights import load_gflownet

    with resources.as_file(_FOLDER / f"{SHIPPED[name]}.safetensors") as path:
        return load_gflownet(path)
