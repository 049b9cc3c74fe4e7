"""The devices that a batch of graphs is spread over."""

from collections.abc import Sequence
from typing import Any, Final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regal_jax.errors import ConfigError

__all__ = ["AXIS", "everywhere", "mesh_for"]

AXIS: Final = "graphs"
"""Name of the mesh's axis, along which the graphs of a batch are spread."""


def mesh_for(batch: int, devices: Sequence[Any] | None) -> Mesh:
    """The devices that a batch of graphs is spread over; as many of the default ones as divide it.

    Raises:
      ConfigError: Given devices that do not divide it.
    """
    if devices is not None:
        if not len(devices) or batch % len(devices):
            raise ConfigError(
                f"devices: a batch of {batch} graphs does not divide among {len(devices)}; "
                "change optimizer.batch"
            )
        return Mesh(np.array(devices), (AXIS,))
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if batch % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,))


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """The tree on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
