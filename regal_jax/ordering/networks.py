"""`Topoformer`: embeddings and priorities of ops; and the encoders that it is compared with."""

import math
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from regal_jax.errors import ConfigError
from regal_jax.ordering.autoregressive import AutoregressiveDecoder
from regal_jax.ordering.config import Decoder, TopoformerConfig
from regal_jax.ordering.inputs import FEATURES, OrderInputs
from regal_jax.ordering.layers import Layer, pairs_of
from regal_jax.policies.layers import Mlp

__all__ = ["Topoformer", "standardised"]

_ROUNDING: Final = 2.0**-20
"""Relative difference below which priorities count as equal."""


class Topoformer(nnx.Module):
    """Maps a graph to embeddings of its ops, and to the priorities that order them.

    ``h0 = W x + b``, then ``layers`` times ``h <- h + attention(LayerNorm(h))`` and
    ``h <- h + MLP(LayerNorm(h))``, the latter with GELU. Priorities are ``MLP(h)``, with ReLU.

    The MLP, the transformer and the GAT that the paper compares with have the same layers
    (`TopoformerConfig`). The paper states this for the first two; for the GAT it is our assumption. A model
    with the autoregressive decoder makes no priorities; its decoder reads the embeddings.

    Outputs are equivariant to a renumbering of the ops, and independent of padding and of the other graphs.

    Attributes:
      config: Its architecture.
      decoder: The autoregressive one; ``None`` in a model that makes priorities.

    References:
      Gagrani et al. 2022, "Neural Topological Ordering for Computation Graphs", section 4 and appendix C.
    """

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        """An untrained network.

        Args:
          config: Its architecture.
          rngs: Streams for the initial weights; consumed.
        """
        self.config = config
        self.node = nnx.Linear(len(FEATURES) + config.eigenvectors, config.width, rngs=rngs)
        self.layers = nnx.List([Layer(config, rngs=rngs) for _ in range(config.layers)])
        width, has_priorities = config.width, config.decoder is Decoder.PRIORITIES
        heads = width // math.gcd(width, config.head_width)
        self.priorities = Mlp(width, width, 1, rngs=rngs) if has_priorities else None
        self.decoder = None if has_priorities else AutoregressiveDecoder(width, heads, rngs=rngs)

    def embed(self, inputs: OrderInputs) -> jax.Array:
        """``[B, N, W]`` float32 embeddings; those of padding mean nothing.

        Args:
          inputs: From `make_order_inputs`.

        Raises:
          ConfigError: Inputs of another `TopoformerConfig`.
        """
        have, need = inputs.spectral.shape[-1], self.config.eigenvectors
        if have != need or inputs.features.shape[-1] != len(FEATURES):
            raise ConfigError(
                f"topoformer: inputs of {inputs.features.shape[-1]} features and {have} eigenvectors, but "
                f"{len(FEATURES)} and {need} are needed; make them with the network's config"
            )
        embedding = self.node(jnp.concatenate([inputs.features, inputs.spectral], axis=2))
        pairs = pairs_of(self.config, inputs.relations, inputs.mask)
        edges = None if inputs.edges is None else jnp.asarray(inputs.edges)
        for layer in self.layers:
            embedding = layer(embedding, pairs, edges)
        return embedding

    def logits(self, inputs: OrderInputs) -> jax.Array:
        """``[B, N]`` float32 priorities before they are standardised; those of padding mean nothing.

        Args:
          inputs: From `make_order_inputs`.

        Raises:
          ConfigError: Inputs of another `TopoformerConfig`; a model with another decoder.
        """
        if self.priorities is None:
            raise ConfigError(
                f"topoformer: a model with the decoder '{self.config.decoder}' has no priorities; use its "
                f"decoder, or a model with '{Decoder.PRIORITIES}'"
            )
        return self.priorities(self.embed(inputs))[:, :, 0]

    def __call__(self, inputs: OrderInputs) -> jax.Array:
        """``[B, N]`` float32 priorities, `standardised`: among the ready ops the largest is the likeliest.

        Args:
          inputs: From `make_order_inputs`.

        Raises:
          ConfigError: Inputs of another `TopoformerConfig`; a model with another decoder.
        """
        return standardised(self.logits(inputs), jnp.asarray(inputs.mask), self.config.alpha)


def standardised(logits: jax.Array, mask: jax.Array, alpha: float) -> jax.Array:
    """Priorities of mean 0 and standard deviation ``alpha`` over the ops of each graph (equation 17).

    Where all are equal up to rounding, e.g. for a single op, the result and its gradient are 0.

    Args:
      logits: ``[..., N]`` float32, finite where the mask is true.
      mask: ``[..., N]`` bool, false for padding.
      alpha: Population standard deviation of the result.

    Returns:
      ``[..., N]`` float32; 0 for padding.
    """
    count = jnp.maximum(mask.sum(axis=-1, keepdims=True, dtype=jnp.float32), np.float32(1))
    size = jnp.abs(jnp.where(mask, logits, 0)).max(axis=-1, keepdims=True)
    mean = jnp.where(mask, logits, 0).sum(axis=-1, keepdims=True) / count
    deviation = jnp.where(mask, logits - mean, 0)
    variance = (deviation**2).sum(axis=-1, keepdims=True) / count
    differs = variance > lax.stop_gradient(size * _ROUNDING) ** 2
    # Masked both inside and outside the root, or its gradient at 0 would be NaN.
    spread = jnp.sqrt(jnp.where(differs, variance, 1))
    return jnp.where(differs, alpha * deviation / spread, 0)
