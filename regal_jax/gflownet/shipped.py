"""The weights of the schedule policy that come with the package."""

import functools
from typing import TYPE_CHECKING, Final

from regal_jax.checks import check_kind
from regal_jax.storage.shipped import shipped_weights

if TYPE_CHECKING:
    from regal_jax.gflownet.networks import SchedulePolicy

__all__ = ["SHIPPED", "default_gflownet", "shipped_gflownet"]

SHIPPED: Final = {
    "default": "synthetic",
    "gflownet": "paper",
    "gflownet-lookahead": "synthetic",
    "ppo": "ppo",
}
"""Name -> weights file. ``"gflownet"`` and ``"ppo"`` are the paper's systems; ``"default"`` is the network
that is best on validation graphs. The card is in docs/gflownet.md."""


def default_gflownet() -> "SchedulePolicy":
    """The network that is installed with the package.

    Examples:
      >>> from regal_jax.gflownet import default_gflownet
      >>> default_gflownet().config.devices
      4
    """
    return shipped_gflownet("default")


def shipped_gflownet(name: str) -> "SchedulePolicy":
    """A network that is installed with the package.

    Args:
      name: A key of `SHIPPED`.

    Raises:
      ConfigError: Another name.
    """
    check_kind("weights", name, str)
    return _load(name)


@functools.cache
def _load(name: str) -> "SchedulePolicy":
    with shipped_weights("regal_jax.gflownet", SHIPPED, name) as path:
        # Flax takes as long to load as JAX does.
        from regal_jax.gflownet.weights import load_gflownet

        return load_gflownet(path)
