"""The devices over which a batch of graphs is spread."""

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
    """The devices over which a batch is spread; by default as many as divide the batch.

    Raises:
      ConfigError: The number of given devices does not divide the batch.
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
