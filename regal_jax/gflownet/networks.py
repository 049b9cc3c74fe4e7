"""`SchedulePolicy`: Topoformer conditioned on a temperature, with a forward and a backward head."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from regal_jax.checks import counted
from regal_jax.errors import ConfigError
from regal_jax.gflownet.config import GflownetConfig
from regal_jax.gflownet.environment import (
    ScheduleState,
    initial_state,
    lookahead_features,
    precedence,
    state_features,
)
from regal_jax.gflownet.inputs import ScheduleInputs
from regal_jax.ordering.config import TopoformerConfig
from regal_jax.ordering.layers import Layer, pairs_of
from regal_jax.policies.layers import Mlp

__all__ = ["SchedulePolicy", "Scores"]


class Scores(NamedTuple):
    """Outputs of a policy for ``P`` states of one graph; scores of invalid actions are arbitrary.

    Attributes:
      forward: ``[P, N, D]`` float32, logits of adding the op to the device.
      backward: ``[P, N]`` float32, logits of removing the op from its device.
      value: ``[P]`` float32, the estimated return; 0 for a policy that estimates none.
    """

    forward: jax.Array
    backward: jax.Array
    value: jax.Array


class SchedulePolicy(nnx.Module):
    """Maps states of one graph and a temperature to the logits of actions, forward and backward.

    One encoder embeds the ops of a state. Two heads, MLPs with a hidden layer, read the embedding of each op.
    The forward head has one logit per device. The backward head has one logit, since an op can be removed
    only from its own device. Outputs are equivariant to a renumbering of the ops.

    Attributes:
      config: Its architecture.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, section 3.3 and appendix D.
    """

    def __init__(self, config: GflownetConfig, *, rngs: nnx.Rngs) -> None:
        """An untrained network.

        Args:
          config: Its architecture.
          rngs: Streams for the initial weights; consumed.
        """
        self.config = config
        width = config.width
        self.encoder = _Encoder(config, rngs=rngs)
        self.forward = _head(width, config.devices, rngs)
        self.backward = _head(width, 1, rngs)
        self.value = _head(width, 1, rngs) if config.value else None
        self.partition_encoder = _Encoder(config, rngs=rngs) if config.partition else None
        self.partition = _head(width, 1, rngs) if config.partition else None

    def __call__(self, inputs: ScheduleInputs, states: ScheduleState, log_sigma: jax.Array) -> Scores:
        """Scores of the actions.

        Args:
          inputs: One graph.
          states: ``P`` states of it.
          log_sigma: float32 scalar, the logarithm of the temperature.

        Raises:
          ConfigError: Inputs for another number of devices.
        """
        have, need = inputs.shape[1], self.config.devices
        if have != need:
            raise ConfigError(
                f"gflownet: inputs for {counted(have, 'device')}, but the network has {need}; give "
                f"make_schedule_inputs devices={need}"
            )
        embedding = self.encoder(inputs, states, log_sigma)
        value = jnp.zeros(embedding.shape[0], jnp.float32)
        if self.value is not None:
            value = self.value(_pooled(inputs, embedding))[:, 0]
        return Scores(self.forward(embedding), self.backward(embedding)[:, :, 0], value)

    def log_partition(self, inputs: ScheduleInputs, log_sigma: jax.Array) -> jax.Array:
        """float32 scalar, the estimate of log Z of the graph at the temperature.

        A second Topoformer embeds the graph in its initial state (section 5.3). The mean embedding is
        mapped to the estimate.

        Args:
          inputs: One graph.
          log_sigma: float32 scalar.

        Raises:
          ConfigError: The network does not estimate log Z.
        """
        if self.partition is None or self.partition_encoder is None:
            raise ConfigError("gflownet: the network does not estimate log Z; make one with partition=True")
        state = jax.tree.map(lambda leaf: leaf[None], initial_state(inputs))
        return self.partition(_pooled(inputs, self.partition_encoder(inputs, state, log_sigma)))[0, 0]


def _head(width: int, outputs: int, rngs: nnx.Rngs) -> Mlp:
    """A head whose outputs are 0 before training, so that all valid actions are equally likely."""
    head = Mlp(width, width, outputs, rngs=rngs)
    head.output.kernel[...] = jnp.zeros((width, outputs), jnp.float32)
    return head


def _pooled(inputs: ScheduleInputs, embedding: jax.Array) -> jax.Array:
    """``[P, W]`` mean over the ops."""
    real = jnp.asarray(inputs.allowed).any(axis=1)
    number = jnp.maximum(real.sum(dtype=jnp.float32), 1)
    return jnp.where(real[None, :, None], embedding, 0).sum(axis=1) / number


class _Encoder(nnx.Module):
    """Embeds the ops of ``P`` states at one temperature: ``[P, N, W]``."""

    def __init__(self, config: GflownetConfig, *, rngs: nnx.Rngs) -> None:
        topoformer, width = config.encoder, config.temperature_width
        self.config, self.lookahead = topoformer, config.lookahead
        self.node = nnx.Linear(config.features, config.width, rngs=rngs)
        kernel = self.node.kernel
        kernel[...] = kernel[...].at[config.indicators].multiply(config.indicator_gain)
        # Equation 29: lin_a and lin_b.
        self.temperature = Mlp(1, width, width, rngs=rngs)
        self.layers = nnx.List([_Layer(topoformer, width, rngs=rngs) for _ in range(config.layers)])

    def __call__(self, inputs: ScheduleInputs, states: ScheduleState, log_sigma: jax.Array) -> jax.Array:
        features = jax.vmap(state_features, (None, 0))(inputs, states)
        if self.lookahead:
            ahead = jax.vmap(lookahead_features, (None, None, 0))(inputs, precedence(inputs), states)
            features = jnp.concatenate([features, ahead], axis=2)
        embedding = self.node(features)
        condition = nnx.relu(self.temperature(jnp.reshape(log_sigma, (1, 1))))[None]
        real = jnp.asarray(inputs.allowed).any(axis=1)
        pairs = pairs_of(self.config, jnp.asarray(inputs.relations)[None], real[None])
        for layer in self.layers:
            embedding = layer(embedding, pairs, condition)
        return embedding


class _Layer(Layer):
    """A layer of Topoformer in which the temperature scales and shifts the hidden layer (equation 30)."""

    def __init__(self, config: TopoformerConfig, condition: int, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, rngs=rngs)
        # Before training the scale is near 1, so the temperature has little effect.
        self.scale = nnx.Linear(condition, config.width, bias_init=nnx.initializers.ones, rngs=rngs)
        self.shift = nnx.Linear(condition, config.width, rngs=rngs)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, embedding: jax.Array, pairs: jax.Array, condition: jax.Array
    ) -> jax.Array:
        embedding = self.attend(embedding, pairs)
        hidden = self.scale(condition) * self.hidden(self.second(embedding)) + self.shift(condition)
        return embedding + self.output(nnx.relu(hidden))
