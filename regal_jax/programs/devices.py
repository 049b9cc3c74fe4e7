"""Functions that every device of a mesh runs with its own part of the arguments."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

__all__ = ["on_mesh"]


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
