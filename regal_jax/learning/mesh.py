"""The devices over which a batch of graphs is spread, of one or several processes."""

from collections.abc import Sequence
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from regal_jax.checks import is_list
from regal_jax.errors import ConfigError
from regal_jax.programs import put_spread
from regal_jax.solvers.loop.batches import check_batches

__all__ = ["AXIS", "everywhere", "mesh_for", "on_this_process", "spread"]

AXIS: Final = "graphs"
"""Name of the mesh's axis, along which the graphs of a batch are spread."""


def mesh_for(batch: int, devices: Sequence[Any] | None) -> Mesh:
    """The devices over which a batch is spread; by default as many as divide the batch.

    All processes have equally many of them, and those of a process are consecutive.

    Raises:
      ConfigError: These are no different devices, the number of devices or of processes does not divide the
        batch, or processes have different numbers of devices.
    """
    if devices is not None:
        devices = list(devices) if is_list(devices) else devices
        check_batches(None, devices)
        if batch % len(devices):
            raise ConfigError(
                f"devices: a batch of {batch} graphs does not divide among {len(devices)}; "
                "change optimizer.batch"
            )
        _by_process(devices)
        return Mesh(np.array(devices), (AXIS,))
    groups = _by_process(jax.devices())
    if batch % len(groups):
        raise ConfigError(
            f"processes: a batch of {batch} does not divide among {len(groups)}; change optimizer.batch or "
            "optimizer.trajectories"
        )
    count = max(n for n in range(1, len(groups[0]) + 1) if batch % (n * len(groups)) == 0)
    return Mesh(np.array([device for group in groups for device in group[:count]]), (AXIS,))


def _by_process(devices: Sequence[Any]) -> list[list[Any]]:
    """The devices of each process, in the order of the processes."""
    groups: dict[int, list[Any]] = {}
    for device in devices:
        groups.setdefault(device.process_index, []).append(device)
    sizes = {len(group) for group in groups.values()}
    if len(sizes) > 1:
        raise ConfigError(
            f"devices: processes have {' and '.join(map(str, sorted(sizes)))} devices; give each equally many"
        )
    if sorted(groups) != list(range(jax.process_count())):
        raise ConfigError(
            f"devices: those of processes {sorted(groups)} of {jax.process_count()}; use devices of all"
        )
    return [groups[process] for process in sorted(groups)]


def everywhere(tree: Any, mesh: Mesh) -> Any:
    """The tree on every device of the mesh; all processes have the same one."""
    sharding = NamedSharding(mesh, PartitionSpec())
    if not mesh.is_multi_process:
        return jax.device_put(tree, sharding)
    # `device_put` would compare the values of all processes.
    return jax.tree.map(lambda leaf: _everywhere(leaf, sharding), tree)


def _everywhere(leaf: Any, sharding: NamedSharding) -> jax.Array:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = _everywhere(jax.random.key_data(leaf), sharding)
        return jax.random.wrap_key_data(data, impl=jax.random.key_impl(leaf))
    host = np.asarray(leaf)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def spread(tree: Any, mesh: Mesh) -> Any:
    """Rows spread evenly over the devices of the mesh.

    Args:
      tree: Arrays of the rows that belong to the devices of this process, in their order.
      mesh: The devices.
    """
    sharding = NamedSharding(mesh, PartitionSpec(AXIS))
    if not mesh.is_multi_process:
        return put_spread(tree, sharding)
    times = mesh.size // len(mesh.local_devices)

    def joined(leaf: Any) -> jax.Array:
        host = np.asarray(leaf)
        shape = (times * len(host), *host.shape[1:])
        return jax.make_array_from_process_local_data(sharding, host, shape)

    return jax.tree.map(joined, tree)


def on_this_process(tree: Any, mesh: Mesh) -> Any:
    """A tree that is `everywhere`, as arrays of this process alone, for work that others have no part in."""
    return jax.tree.map(lambda leaf: leaf.addressable_data(0), tree) if mesh.is_multi_process else tree
