"""`SequenceNetwork`: embeddings of ops by a recurrent network over a topological order (GAS)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.features import GraphFeatures
from regal_jax.policies.layers import Mlp

__all__ = ["SequenceNetwork"]


class SequenceNetwork(nnx.Module):
    """A bidirectional GRU over the ops in the order of `GraphFeatures.order`, without edges.

    Embeddings do not depend on the numbering of ops, except that it breaks ties between ops of the same
    depth, levels and sizes.

    References:
      REGAL, ICLR 2020, section 5 (Graph-As-Sequence model), after Mirhoseini et al. 2017 and 2018. The paper
      gives neither the cell nor the direction.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """A network of the given shape.

        Args:
          config: Config with width and features.
          rngs: Random numbers for the initial weights, consumed.
        """
        width = config.width
        self.node = Mlp(len(config.input_names), width, width, rngs=rngs)
        self.forward = nnx.GRUCell(width, width, rngs=rngs)
        self.backward = nnx.GRUCell(width, width, rngs=rngs)
        self.join = Mlp(3 * width, width, width, rngs=rngs)

    def __call__(self, inputs: jax.Array, features: GraphFeatures) -> jax.Array:
        """``[B, N, W]`` float32 embeddings; those of padding are undefined.

        Args:
          inputs: ``[B, N, I]`` float32, the inputs of `PolicyConfig.input_names`.
          features: The order of ops, and masks.
        """
        nodes = self.node(inputs)
        order = jnp.asarray(features.order)[:, :, None]
        ordered = jnp.take_along_axis(nodes, order, axis=1)
        mask = jnp.take_along_axis(jnp.asarray(features.node_mask), order[:, :, 0], axis=1)
        states = [
            _states(cell, ordered, mask, reverse)
            for cell, reverse in ((self.forward, False), (self.backward, True))
        ]
        # Map positions in the sequence back to the numbers of ops.
        place = jnp.argsort(order[:, :, 0], axis=1)[:, :, None]
        states = [jnp.take_along_axis(state, place, axis=1) for state in states]
        return self.join(jnp.concatenate([nodes, *states], axis=2))


def _states(cell: nnx.GRUCell, inputs: jax.Array, mask: jax.Array, reverse: bool) -> jax.Array:
    """``[B, N, W]`` state after each op; padding does not change the state."""

    def step(state: jax.Array, row: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        x, real = row
        state = jnp.where(real[:, None], cell(state, x)[0], state)
        return state, state

    rows = (jnp.swapaxes(inputs, 0, 1), mask.T)
    zeros = jnp.zeros((inputs.shape[0], inputs.shape[2]), inputs.dtype)
    return jnp.swapaxes(lax.scan(step, zeros, rows, reverse=reverse)[1], 0, 1)
