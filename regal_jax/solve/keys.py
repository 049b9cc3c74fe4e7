"""Keys of graphs, which depend on the content of a graph and not on its place in a batch."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.graph import ComputationGraph
from regal_jax.programs import program

__all__ = ["graph_identities", "graph_keys", "keys_of"]


def graph_identities(graphs: Sequence[ComputationGraph]) -> np.ndarray:
    """``[B, 2]`` uint32: 64 bits of the content hash of each graph."""
    # Two words: 32 bits of the hash would be too few for a large corpus.
    words = [(graph.content_hash[:8], graph.content_hash[8:16]) for graph in graphs]
    return np.array([[int(word, 16) for word in pair] for pair in words], np.uint32).reshape(-1, 2)


def keys_of(key: jax.Array, identities: jax.Array) -> jax.Array:
    """``[B]`` typed keys from one key and ``[B, 2]`` identities; each depends on its own identity only."""

    def one(identity: jax.Array) -> jax.Array:
        return jax.random.fold_in(jax.random.fold_in(key, identity[0]), identity[1])

    return jax.vmap(one)(identities)


def graph_keys(
    key: jax.Array, graphs: Sequence[ComputationGraph], runs: Sequence[int] | None = None
) -> jax.Array:
    """``[B]`` typed keys, one per graph, made from ``key``, the graph's content and the number of its run.

    Args:
      key: Typed, consumed.
      graphs: ``B`` graphs.
      runs: ``B`` numbers of runs; all 0 if not given.
    """
    keys = _keys_of(key, graph_identities(graphs))
    return keys if runs is None or not any(runs) else _keys_of_runs(keys, np.array(runs, np.uint32))


def _in_runs(keys: jax.Array, runs: jax.Array) -> jax.Array:
    """Keys of later runs; those of run 0 are as given."""
    return jnp.where(runs > 0, jax.vmap(jax.random.fold_in)(keys, runs), keys)


_keys_of = program()(keys_of)
_keys_of_runs = program()(_in_runs)
