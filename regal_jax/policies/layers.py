"""Layers that several networks use."""

import jax
from flax import nnx

__all__ = ["Mlp"]


class Mlp(nnx.Module):
    """A perceptron with one hidden ReLU layer and a linear output."""

    def __init__(self, inputs: int, hidden: int, outputs: int, *, rngs: nnx.Rngs) -> None:
        """A network from ``[..., inputs]`` to ``[..., outputs]`` float32.

        Args:
          inputs: Width of the input.
          hidden: Width of the hidden layer.
          outputs: Width of the output.
          rngs: Random numbers for the initial weights, consumed.
        """
        self.hidden = nnx.Linear(inputs, hidden, rngs=rngs)
        self.output = nnx.Linear(hidden, outputs, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[..., outputs]`` float32 outputs."""
        return self.output(nnx.relu(self.hidden(x)))
