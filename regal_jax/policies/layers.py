"""Layers that more than one network is built of."""

import jax
from flax import nnx

__all__ = ["Mlp"]


class Mlp(nnx.Module):
    """One hidden layer with ReLU; the output is linear."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, rngs: nnx.Rngs) -> None:
        """A network from ``[..., inputs]`` to ``[..., outputs]`` float32.

        Args:
          inputs: Width of the input.
          hidden: Width of the hidden layer.
          outputs: Width of the output.
          rngs: For the first weights; consumed.
        """
        self.hidden = nnx.Linear(inputs, hidden, rngs=rngs)
        self.output = nnx.Linear(hidden, outputs, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., outputs]``."""
        return self.output(nnx.relu(self.hidden(x)))
