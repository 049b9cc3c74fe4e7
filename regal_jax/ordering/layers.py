"""Layers of Topoformer and of the encoders that it is compared with.

An array of codes, one byte per pair of ops, defines which ops each head attends to.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from regal_jax.ordering.attention import attention, attention_on_cpu, products, sums
from regal_jax.ordering.config import Encoder, TopoformerConfig

__all__ = ["Layer", "pairs_of"]


class Layer(nnx.Module):
    """Attention, if there are heads, and an MLP."""

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        width = config.width
        kind = _Additive if config.encoder is Encoder.GAT else _Scaled
        self.first = nnx.LayerNorm(width, rngs=rngs) if config.groups else None
        self.attention = kind(config, rngs=rngs) if config.groups else None
        self.second = nnx.LayerNorm(width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.output = nnx.Linear(width, width, rngs=rngs)

    def attend(self, embedding: jax.Array, pairs: jax.Array, edges: jax.Array | None = None) -> jax.Array:
        """The first half of the layer: ``h + attention(LayerNorm(h))``.

        Args:
          embedding: ``[B, N, W]``.
          pairs: From `pairs_of`; ``[1, N, N]`` if one graph is embedded in ``B`` states.
          edges: As in `regal_jax.ordering.OrderInputs`, for CPUs; ``None`` for the form with a gradient.
        """
        if self.attention is not None and self.first is not None:
            embedding = embedding + self.attention(self.first(embedding), pairs, edges)
        return embedding

    def __call__(self, embedding: jax.Array, pairs: jax.Array, edges: jax.Array | None = None) -> jax.Array:
        """``[B, N, W]``; the arguments are those of `attend`."""
        embedding = self.attend(embedding, pairs, edges)
        hidden = nnx.gelu(self.hidden(self.second(embedding)), approximate=False)
        return embedding + self.output(hidden)


class _Scaled(nnx.Module):
    """Attention by scaled products of queries and keys (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        self.codes, self.size = _codes(config), config.head_width
        self.sparse = not config.attends_to_itself
        every = len(self.codes) * config.head_width
        self.project = nnx.Linear(config.width, 3 * every, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(every, config.width, rngs=rngs)

    def __call__(self, x: jax.Array, pairs: jax.Array, edges: jax.Array | None = None) -> jax.Array:
        """``[B, N, W]``; the arguments are those of `Layer.attend`."""
        queries, keys, values = jnp.split(_by_head(self.project(x), 3 * len(self.codes)), 3)
        ends = queries / np.float32(math.sqrt(self.size)), keys
        if edges is None:
            return self.output(attention(products, ends, values, self.codes, pairs))
        links = edges if self.sparse else None
        return self.output(attention_on_cpu(products, ends, values, self.codes, pairs, links))


class _Additive(nnx.Module):
    """Additive attention: scores are sums of one number per op (Veličković et al. 2018, section 2.1)."""

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        self.codes = _codes(config)
        heads, size = len(self.codes), config.head_width
        self.project = nnx.Linear(config.width, heads * size, use_bias=False, rngs=rngs)
        # The two halves of the paper's vector `a`.
        draw = nnx.initializers.normal(1 / math.sqrt(size))
        self.receiver = nnx.Param(draw(rngs.params(), (heads, size), jnp.float32))
        self.sender = nnx.Param(draw(rngs.params(), (heads, size), jnp.float32))
        self.output = nnx.Linear(heads * size, config.width, rngs=rngs)

    def __call__(self, x: jax.Array, pairs: jax.Array, edges: jax.Array | None = None) -> jax.Array:
        """``[B, N, W]``; the arguments are those of `Layer.attend`."""
        values = _by_head(self.project(x), len(self.codes))
        ends = tuple(
            jnp.einsum("hbnw,hw->hbn", values, vector[...]) for vector in (self.receiver, self.sender)
        )
        if edges is None:
            return self.output(attention(sums, ends, values, self.codes, pairs))
        return self.output(attention_on_cpu(sums, ends, values, self.codes, pairs, None))


def _codes(config: TopoformerConfig) -> tuple[int, ...]:
    """For each head, the code in `pairs_of` of the ops that it attends to."""
    if config.attends_to_itself:
        return (1,) * sum(heads for _, heads in config.groups)
    return tuple(code for (code,), heads in config.groups for _ in range(heads))


def pairs_of(
    config: TopoformerConfig, relations: jax.typing.ArrayLike, mask: jax.typing.ArrayLike
) -> jax.Array:
    """``[B, N, N]`` uint8: the relations; or, if they are merged into one graph, 1 for its pairs.

    Args:
      config: Architecture of the network.
      relations: ``[B, N, N]`` uint8, as in `regal_jax.ordering.OrderInputs`.
      mask: ``[B, N]`` bool, false for padding.
    """
    relations = jnp.asarray(relations)
    if not config.attends_to_itself:
        return relations
    seen = jnp.asarray(mask)[:, :, None] & jnp.eye(relations.shape[-1], dtype=jnp.bool_)[None]
    for codes, _ in config.groups:
        for code in codes:
            seen |= relations == np.uint8(code)
    return seen.astype(jnp.uint8)


def _by_head(x: jax.Array, heads: int) -> jax.Array:
    """``[B, N, heads * C]`` as ``[heads, B, N, C]``."""
    return jnp.moveaxis(x.reshape(*x.shape[:2], heads, -1), 2, 0)
