"""Models in Flax Linen. Flax has layers but no models, so a few classic models are defined here."""

from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import optax
from flax import linen as nn

from regal_jax.corpus.families import family_of
from regal_jax.corpus.trace_spec import TraceSpec
from regal_jax.datasets.corpus_files import FORMS
from regal_jax.graph import ComputationGraph
from regal_jax.importers.jax_program import from_jax

__all__ = ["program", "specs", "trace"]


class MixerBlock(nn.Module):
    """A block of MLP-Mixer (Tolstikhin et al. 2021, figure 1)."""

    tokens: int
    channels: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        y = jnp.swapaxes(nn.LayerNorm()(x), 1, 2)
        y = nn.Dense(x.shape[1])(nn.gelu(nn.Dense(self.tokens)(y)))
        x = x + jnp.swapaxes(y, 1, 2)
        return x + nn.Dense(x.shape[2])(nn.gelu(nn.Dense(self.channels)(nn.LayerNorm()(x))))


class Mixer(nn.Module):
    """MLP-Mixer on images, patches of 16."""

    depth: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = nn.Conv(512, (16, 16), (16, 16))(x)
        x = x.reshape(x.shape[0], -1, x.shape[-1])
        for _ in range(self.depth):
            x = MixerBlock(256, 2048)(x)
        return nn.Dense(1000)(jnp.mean(nn.LayerNorm()(x), axis=1))


class Recurrent(nn.Module):
    """A stack of recurrent layers over a sequence, unrolled in time because a scan would be one op."""

    cell: str
    layers: int
    steps: int

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        xs = [x[:, t] for t in range(self.steps)]
        for layer in range(self.layers):
            cell = getattr(nn, self.cell)(256, name=f"layer{layer}")
            carry = cell.initialize_carry(jax.random.key(0), xs[0].shape)
            ys = []
            for step in xs:
                carry, y = cell(carry, step)
                ys.append(y)
            xs = ys
        return nn.Dense(1000, name="head")(jnp.stack(xs, axis=1))


class Translator(nn.Module):
    """Encoder and decoder of Vaswani et al. 2017, figure 1, without dropout."""

    depth: int

    def _feed_forward(self, x: jax.Array) -> jax.Array:
        return nn.LayerNorm()(x + nn.Dense(512)(nn.relu(nn.Dense(2048)(x))))

    @nn.compact
    def __call__(self, source: jax.Array, target: jax.Array) -> jax.Array:
        embed = nn.Embed(32000, 512)
        x, y = embed(source), embed(target)
        mask = nn.make_causal_mask(target, dtype=jnp.bool_)
        for _ in range(self.depth):
            x = nn.LayerNorm()(x + nn.MultiHeadDotProductAttention(8)(x))
            x = self._feed_forward(x)
        for _ in range(self.depth):
            y = nn.LayerNorm()(y + nn.MultiHeadDotProductAttention(8)(y, mask=mask))
            y = nn.LayerNorm()(y + nn.MultiHeadDotProductAttention(8)(y, x))
            y = self._feed_forward(y)
        return embed.attend(y)


class GraphNetwork(nn.Module):
    """Message passing over an edge list, with sums at the receivers (Battaglia et al. 2018)."""

    rounds: int

    @nn.compact
    def __call__(self, nodes: jax.Array, senders: jax.Array, receivers: jax.Array) -> jax.Array:
        x = nn.Dense(128)(nodes)
        for _ in range(self.rounds):
            messages = nn.relu(nn.Dense(128)(jnp.concatenate([x[senders], x[receivers]], axis=-1)))
            sums = jax.ops.segment_sum(messages, receivers, num_segments=x.shape[0])
            x = nn.LayerNorm()(x + nn.Dense(128)(nn.relu(nn.Dense(128)(jnp.concatenate([x, sums], axis=-1)))))
        return nn.Dense(16)(jnp.mean(x, axis=0))


def _f32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


_MODELS: Final[dict[str, tuple[Callable[[], nn.Module], tuple[jax.ShapeDtypeStruct, ...]]]] = {
    **{f"mixer_{n}": (lambda n=n: Mixer(n), (_f32(8, 224, 224, 3),)) for n in (4, 8, 12, 24)},
    **{
        f"recurrent_{cell}_{n}x{t}": (lambda c=cell, n=n, t=t: Recurrent(c, n, t), (_f32(8, t, 256),))
        for cell in ("OptimizedLSTMCell", "GRUCell", "SimpleCell", "MGUCell")
        for n, t in ((1, 20), (2, 35), (4, 16))
    },
    **{f"transformer_{n}": (lambda n=n: Translator(n), (_i32(8, 128), _i32(8, 128))) for n in (2, 4, 6)},
    **{
        f"graphnetwork_{n}": (lambda n=n: GraphNetwork(n), (_f32(500, 32), _i32(4000), _i32(4000)))
        for n in (3, 8, 16)
    },
}
"""Name -> model and inputs."""


def specs() -> list[TraceSpec]:
    """Every model in every form."""
    return [
        TraceSpec("flax", name, family_of(name), form, _constructor(build()))
        for name, (build, _) in sorted(_MODELS.items())
        for form in FORMS
    ]


def _constructor(model: nn.Module) -> str:
    return f"{__name__}: {' '.join(repr(model).replace('# attributes', '').split())}"


def program(model: str, form: str) -> tuple[Callable[..., Any], tuple[Any, ...], tuple[int, ...]]:
    """A model in a form; the mean square of the outputs stands for the loss.

    Args:
      model: Its name.
      form: One of `regal_jax.datasets.corpus_files.FORMS`.

    Returns:
      The function, the shapes of its arguments, and which of them are the state of a training step.
    """
    build, inputs = _MODELS[model]
    module = build()
    params = jax.eval_shape(module.init, jax.eval_shape(lambda: jax.random.key(0)), *inputs)
    optimiser = optax.adam(1e-3)

    def loss(params: Any, *inputs: Any) -> jax.Array:
        return jnp.mean(jnp.square(module.apply(params, *inputs)))  # pyright: ignore[reportArgumentType]

    def train_step(params: Any, state: Any, *inputs: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, *inputs)
        updates, state = optimiser.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    if form == "training-step":
        return train_step, (params, jax.eval_shape(optimiser.init, params), *inputs), (0, 1)
    return (module.apply if form == "forward" else jax.value_and_grad(loss)), (params, *inputs), ()


def trace(spec: TraceSpec, profile: str) -> ComputationGraph:
    """The graph of a spec."""
    fn, args, state = program(spec.model, spec.form)
    options: dict[str, Any] = {"profile": profile, "name": f"{spec.model}.{spec.form}"}
    return from_jax(fn, *args, resident_argnums=state or 0, donate_argnums=state, **options)
