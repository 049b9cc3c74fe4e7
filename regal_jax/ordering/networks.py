"""`Topoformer`: embeddings and priorities of ops; and the encoders that it is compared with.

One array of codes, one byte per pair of ops, defines for all heads which op attends to which.
"""

import math
from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax import lax

from regal_jax.errors import ConfigError
from regal_jax.ordering.autoregressive import AutoregressiveDecoder
from regal_jax.ordering.config import Decoder, Encoder, TopoformerConfig
from regal_jax.ordering.inputs import FEATURES, OrderInputs
from regal_jax.policies.layers import Mlp

__all__ = ["Topoformer", "standardised"]

_SCORES: Final = 2**26
"""Most scores of heads that are computed at once: 256 MiB. Beyond it heads are computed in groups."""
_SLOPE: Final = 0.2
"""Slope of the leaky ReLU in the scores of a GAT, as in its paper."""
_ROUNDING: Final = 2.0**-20
"""Relative difference below which priorities count as equal."""

_Heads = tuple[jax.Array, ...]


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
        self.layers = nnx.List([_Layer(config, rngs=rngs) for _ in range(config.layers)])
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
        pairs = _pairs(self.config, inputs)
        for layer in self.layers:
            embedding = layer(embedding, pairs)
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


class _Layer(nnx.Module):
    """Attention, if there are heads, and an MLP."""

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        width = config.width
        attention = _Additive if config.encoder is Encoder.GAT else _Scaled
        self.first = nnx.LayerNorm(width, rngs=rngs) if config.groups else None
        self.attention = attention(config, rngs=rngs) if config.groups else None
        self.second = nnx.LayerNorm(width, rngs=rngs)
        self.hidden = nnx.Linear(width, width, rngs=rngs)
        self.output = nnx.Linear(width, width, rngs=rngs)

    def __call__(self, embedding: jax.Array, pairs: jax.Array) -> jax.Array:
        if self.attention is not None and self.first is not None:
            embedding = embedding + self.attention(self.first(embedding), pairs)
        hidden = nnx.gelu(self.hidden(self.second(embedding)), approximate=False)
        return embedding + self.output(hidden)


class _Scaled(nnx.Module):
    """Attention by scaled products of queries and keys (Vaswani et al. 2017, section 3.2)."""

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        self.codes, self.size = _codes(config), config.head_width
        every = len(self.codes) * config.head_width
        self.project = nnx.Linear(config.width, 3 * every, use_bias=False, rngs=rngs)
        self.output = nnx.Linear(every, config.width, rngs=rngs)

    def __call__(self, x: jax.Array, pairs: jax.Array) -> jax.Array:
        """``[B, N, W]``."""
        queries, keys, values = jnp.split(_by_head(self.project(x), 3 * len(self.codes)), 3)
        queries = queries / np.float32(math.sqrt(self.size))
        return self.output(_attention(_products, (queries, keys), values, self.codes, pairs))


class _Additive(nnx.Module):
    """Additive attention: the sum of one number per op (Veličković et al. 2018, section 2.1)."""

    def __init__(self, config: TopoformerConfig, *, rngs: nnx.Rngs) -> None:
        self.codes = _codes(config)
        heads, size = len(self.codes), config.head_width
        self.project = nnx.Linear(config.width, heads * size, use_bias=False, rngs=rngs)
        # The two halves of the paper's vector `a`.
        draw = nnx.initializers.normal(1 / math.sqrt(size))
        self.receiver = nnx.Param(draw(rngs.params(), (heads, size), jnp.float32))
        self.sender = nnx.Param(draw(rngs.params(), (heads, size), jnp.float32))
        self.output = nnx.Linear(heads * size, config.width, rngs=rngs)

    def __call__(self, x: jax.Array, pairs: jax.Array) -> jax.Array:
        """``[B, N, W]``."""
        values = _by_head(self.project(x), len(self.codes))
        ends = tuple(
            jnp.einsum("hbnw,hw->hbn", values, vector[...]) for vector in (self.receiver, self.sender)
        )
        return self.output(_attention(_sums, ends, values, self.codes, pairs))


def _codes(config: TopoformerConfig) -> tuple[int, ...]:
    """For each head, the code in `_pairs` of the ops that it attends to."""
    if config.attends_to_itself:
        return (1,) * sum(heads for _, heads in config.groups)
    return tuple(code for (code,), heads in config.groups for _ in range(heads))


def _pairs(config: TopoformerConfig, inputs: OrderInputs) -> jax.Array:
    """``[B, N, N]`` uint8: the relations; or 1 for the pairs of the one graph that they are merged into."""
    relations = jnp.asarray(inputs.relations)
    if not config.attends_to_itself:
        return relations
    seen = jnp.asarray(inputs.mask)[:, :, None] & jnp.eye(relations.shape[-1], dtype=jnp.bool_)[None]
    for codes, _ in config.groups:
        for code in codes:
            seen |= relations == np.uint8(code)
    return seen.astype(jnp.uint8)


def _by_head(x: jax.Array, heads: int) -> jax.Array:
    """``[B, N, heads * C]`` as ``[heads, B, N, C]``."""
    return jnp.moveaxis(x.reshape(*x.shape[:2], heads, -1), 2, 0)


def _products(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """``[H, B, N, N]`` scores."""
    return jnp.einsum("hbic,hbjc->hbij", queries, keys)


def _sums(receiver: jax.Array, sender: jax.Array) -> jax.Array:
    """``[H, B, N, N]`` scores."""
    return nnx.leaky_relu(receiver[:, :, :, None] + sender[:, :, None], _SLOPE)


def _attention(
    score: Callable[..., jax.Array], ends: _Heads, values: jax.Array, codes: tuple[int, ...], pairs: jax.Array
) -> jax.Array:
    """``[B, N, H * C]`` output of all heads.

    Scores dominate memory. So only some heads are computed together, and the backward pass recomputes the
    scores instead of keeping them.

    Args:
      score: Maps ``ends`` to scores ``[H, B, N, N]``.
      ends: ``[H, B, N, ...]`` each: of the op that attends, and of the one attended to.
      values: ``[H, B, N, C]``.
      codes: ``[H]``: a head attends to the pairs that have its code.
      pairs: ``[B, N, N]`` uint8.
    """
    heads, batch, n, size = values.shape

    @jax.checkpoint
    def some(arrays: tuple[_Heads, jax.Array, jax.Array]) -> jax.Array:
        ends, values, code = arrays
        seen = pairs[None] == code[:, None, None, None]
        return _collected(score(*ends), seen, values)

    arrays = (ends, values, jnp.asarray(codes, jnp.uint8))
    together = _together(heads, batch * n * n)
    if together == heads:
        found = some(arrays)
    else:
        turns = jax.tree.map(lambda a: a.reshape(heads // together, together, *a.shape[1:]), arrays)
        found = lax.map(some, turns).reshape(values.shape)
    return jnp.moveaxis(found, 0, 2).reshape(batch, n, heads * size)


def _together(heads: int, scores: int) -> int:
    """The largest number of heads that divides ``heads`` and whose scores fit the limit; at least one."""
    fit = [part for part in range(1, heads + 1) if heads % part == 0 and part * scores <= _SCORES]
    return max(fit, default=1)


def _collected(scores: jax.Array, seen: jax.Array, values: jax.Array) -> jax.Array:
    """``[H, B, N, C]``: means of values by the softmax of the scores seen; zeros where none is seen."""
    scores = jnp.where(seen, scores, -jnp.inf)
    highest = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    # Infinities must not enter a difference; exp(-inf) is 0 and has the gradient 0.
    weights = jnp.exp(scores - jnp.where(jnp.isfinite(highest), highest, 0))
    total = weights.sum(axis=-1)[..., None]
    collected = jnp.einsum("hbij,hbjc->hbic", weights, values)
    return collected / jnp.where(total > 0, total, 1)
