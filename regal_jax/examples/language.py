"""Language models."""

import jax
import jax.numpy as jnp
from flax import linen as nn

from regal_jax.examples.registry import TrainingStep
from regal_jax.examples.training import training_step

__all__ = ["GPT", "LSTM", "MixtureOfExperts", "gpt2_small", "lstm_lm", "moe", "moe_small"]


class Block(nn.Module):
    """Pre-norm transformer block; with ``experts`` its feed-forward layer is a `MixtureOfExperts`."""

    heads: int
    experts: int = 0

    @nn.compact
    def __call__(self, x: jax.Array, mask: jax.Array | None) -> jax.Array:
        width = x.shape[-1]
        y = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(self.heads, name="attention")(y, mask=mask)
        y = nn.LayerNorm()(x)
        if self.experts:
            return x + MixtureOfExperts(self.experts, name="experts")(y)
        return x + nn.Dense(width, name="shrink")(nn.gelu(nn.Dense(4 * width, name="expand")(y)))


class MixtureOfExperts(nn.Module):
    """Expert-choice routing (Zhou et al. 2022): every expert takes its best ``2 / experts`` of the tokens.

    Each expert is a separate layer, so that experts can be placed on different devices.
    """

    experts: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        tokens = x.reshape(-1, width)
        gates = nn.softmax(nn.Dense(self.experts, name="router")(tokens))
        capacity = max(1, 2 * len(tokens) // self.experts)
        out = jnp.zeros_like(tokens)
        for e in range(self.experts):
            weight, chosen = jax.lax.top_k(gates[:, e], capacity)
            y = nn.gelu(nn.Dense(4 * width, name=f"expert{e}_expand")(tokens[chosen]))
            y = nn.Dense(width, name=f"expert{e}_shrink")(y)
            out = out.at[chosen].add(weight[:, None] * y)
        return out.reshape(x.shape)


class GPT(nn.Module):
    """Transformer over tokens with tied output and embedding (Radford et al. 2019), without dropout."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    experts: int = 0
    causal: bool = True

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        embedding = nn.Embed(self.vocabulary, self.width, name="tokens")
        positions = nn.Embed(tokens.shape[1], self.width, name="positions")
        x = embedding(tokens) + positions(jnp.arange(tokens.shape[1])[None])
        mask = nn.make_causal_mask(tokens, dtype=jnp.bool_) if self.causal else None
        for layer in range(self.layers):
            x = Block(self.heads, self.experts, name=f"block{layer}")(x, mask)
        return embedding.attend(nn.LayerNorm()(x))


class LSTM(nn.Module):
    """Stacked LSTM over tokens (Zaremba et al. 2014, "medium", without dropout), unrolled in time."""

    layers: int
    width: int
    vocabulary: int

    @nn.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = nn.Embed(self.vocabulary, self.width, name="tokens")(tokens)
        steps = [x[:, t] for t in range(tokens.shape[1])]
        for layer in range(self.layers):
            cell = nn.OptimizedLSTMCell(self.width, name=f"layer{layer}")
            zero = jnp.zeros((tokens.shape[0], self.width), jnp.float32)
            carry, hidden = (zero, zero), []
            for step in steps:
                carry, y = cell(carry, step)
                hidden.append(y)
            steps = hidden
        return nn.Dense(self.vocabulary, name="head")(jnp.stack(steps, axis=1))


def _tokens(batch_size: int, length: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((batch_size, length), jnp.int32)


def gpt2_small(batch_size: int) -> TrainingStep:
    """Training step of a decoder with the size of GPT-2 small."""
    model = GPT(layers=12, width=768, heads=12, vocabulary=50257)
    return training_step(model, _tokens(batch_size, 1024), _tokens(batch_size, 1024))


def lstm_lm(batch_size: int) -> TrainingStep:
    """Training step of `LSTM`."""
    model = LSTM(layers=2, width=650, vocabulary=10000)
    return training_step(model, _tokens(batch_size, 35), _tokens(batch_size, 35))


def moe(batch_size: int) -> TrainingStep:
    """Training step of a masked language model with experts."""
    model = GPT(layers=6, width=512, heads=8, vocabulary=32000, experts=8, causal=False)
    return training_step(model, _tokens(batch_size, 512), _tokens(batch_size, 512))


def moe_small(batch_size: int) -> TrainingStep:
    """A small `moe`: one block."""
    model = GPT(layers=1, width=256, heads=4, vocabulary=8192, experts=4, causal=False)
    return training_step(model, _tokens(batch_size, 128), _tokens(batch_size, 128))
