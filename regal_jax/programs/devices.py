"""Arrays spread over the devices of a mesh, and functions that every device runs with its own part."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["on_mesh", "put_spread"]


def on_mesh(function: Callable[..., Any], mesh: Mesh, in_specs: Any, out_specs: Any) -> Callable[..., Any]:
    """`jax.shard_map` without empty arrays among the arguments.

    An array without elements that enters the function, and is used there, ends the process with a
    segmentation fault in jaxlib 0.11.2. Empty arguments are therefore made anew within the function, which
    must close over no empty array either.

    Args:
      function: The function that each device runs. It may use collectives; what its results have in common on
        all devices is not checked (``check_vma=False``).
      mesh: The devices.
      in_specs: How the arguments are spread: `jax.sharding.PartitionSpec`, in a prefix of the tuple of all
        arguments.
      out_specs: How the results are spread, in a prefix of them.

    Returns:
      A function of the whole arguments, all by position, for use in traced functions.
    """

    def call(*arguments: Any) -> Any:
        leaves, tree = jax.tree.flatten(arguments)
        specs = jax.tree.leaves(jax.tree.broadcast(in_specs, arguments))
        kept = [leaf.size > 0 for leaf in leaves]

        def part(*given: Any) -> Any:
            rest = iter(given)
            mine = [
                next(rest) if keep else lax.full(_shape(leaf, mesh, spec), 0, leaf.dtype)
                for leaf, spec, keep in zip(leaves, specs, kept, strict=True)
            ]
            return function(*jax.tree.unflatten(tree, mine))

        chosen = tuple(itertools.compress(specs, kept))
        run = jax.shard_map(part, mesh=mesh, in_specs=chosen, out_specs=out_specs, check_vma=False)
        return run(*itertools.compress(leaves, kept))

    return call


def _shape(leaf: jax.Array, mesh: Mesh, spec: PartitionSpec) -> tuple[int, ...]:
    """Shape of the part of an array that each device has."""
    return NamedSharding(mesh, spec).shard_shape(leaf.shape)


def put_spread(tree: Any, sharding: NamedSharding) -> Any:
    """`jax.device_put` of arrays that are split among the devices of this process.

    An array on one device passes through the host, since JAX would compile a program that splits it, for each
    of its shapes.
    """
    if sharding.num_devices == 1:
        return jax.device_put(tree, sharding)
    leaves, structure = jax.tree.flatten(tree)
    put = jax.device_put([_on_host(leaf) for leaf in leaves], sharding)
    return structure.unflatten(map(_as_before, leaves, put))


def _on_host(leaf: Any) -> Any:
    """The array in the memory of the host, unless it is on several devices; of keys, their words."""
    if isinstance(leaf, jax.Array) and leaf.sharding.num_devices > 1:
        return leaf
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _as_before(leaf: Any, put: jax.Array) -> jax.Array:
    """Keys if ``leaf`` was an array of keys."""
    if not _is_key(leaf) or _is_key(put):
        return put
    return jax.random.wrap_key_data(put, impl=jax.random.key_impl(leaf))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
