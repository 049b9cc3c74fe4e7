"""`Policy`, from features to the logits of all choices, and `Value`, the baseline that training learns."""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from regal_jax.errors import ConfigError
from regal_jax.policies.choices import Network, Order, Parametrisation, Transfers
from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.features import GraphFeatures
from regal_jax.policies.gnn import GraphNetwork
from regal_jax.policies.layers import Mlp
from regal_jax.policies.sequence import SequenceNetwork

__all__ = ["Logits", "OwnPlaces", "Policy", "Value", "own_places"]


class Logits(NamedTuple):
    """Unnormalised log-probabilities of the two choices for every key; of padding they mean nothing.

    Attributes:
      first: ``[B, N, A D + 1, K1]`` float32: ``D`` affinities for each of ``A`` placements, then the
        priority.
      second: ``[B, N, A D + 1, K2]`` float32.
    """

    first: jax.Array
    second: jax.Array


class Policy(nnx.Module):
    """A graph to the distribution of actions.

    Embeddings of ops come from a `GraphNetwork` or a `SequenceNetwork`; ``2 (A D + 1)`` MLPs of one hidden
    layer each, shared by all ops, turn them into logits. Devices have heads of their own, so that a policy
    can tell equal devices apart, and is for one ``D``.

    The output layers start small; by `PolicyConfig.initial_bias` an untrained policy leaves most priorities
    as plain BRKGA draws them.

    References:
      REGAL, workshop text, appendix A.3, equation 1; ICLR 2020, section 4.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """An untrained policy.

        Args:
          config: What it is.
          rngs: For the first weights; consumed.
        """
        self.config = config
        network = GraphNetwork if config.network is Network.GNN else SequenceNetwork
        self.network = network(config, rngs=rngs)
        keys, width = config.num_keys, config.width
        self.hidden = nnx.Linear(width, keys * 2 * width, rngs=rngs)
        self.first = _Outputs(width, _initial(config, config.first, True), rngs=rngs)
        self.spectral = _Spectral(config, rngs=rngs) if config.spreads else None
        self.ordered = _Ordered(config, rngs=rngs) if config.order_gain else None
        self.second = _Outputs(width, _initial(config, config.second, False), rngs=rngs)

    def __call__(self, features: GraphFeatures) -> Logits:
        """The logits of ``B`` graphs.

        Raises:
          ConfigError: Features of another `FeatureConfig`.
        """
        _check(features, self.config)
        embedding = self.network(features)
        hidden = nnx.relu(self.hidden(embedding))
        batch, n, _ = hidden.shape
        hidden = hidden.reshape(batch, n, self.config.num_keys, 2, self.config.width)
        first, second = self.first(hidden[..., 0, :]), self.second(hidden[..., 1, :])
        if self.spectral is not None:
            first = first.at[:, :, :-1].add(self.spectral(features, embedding))
        if self.ordered is not None:
            first = first.at[:, :, -1].add(self.ordered(features, embedding))
        return Logits(first, second)


class Value(nnx.Module):
    """The baseline ``b(G)``: the reward to expect of a graph, from a network of its own.

    ``b(G) = MLP_b(mean over ops of MLP_g(h))`` with ``h`` from a `GraphNetwork`. It starts near -1, the
    reward of doing what plain BRKGA does.

    References:
      REGAL, workshop text, appendix A.3.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """An untrained baseline.

        Args:
          config: Of the policy that it goes with: width, rounds and features.
          rngs: For the first weights; consumed.
        """
        self.config = config
        self.network = GraphNetwork(config, rngs=rngs)
        self.graph = Mlp(config.width, config.width, config.width, rngs=rngs)
        self.hidden = nnx.Linear(config.width, config.width, rngs=rngs)
        self.output = nnx.Linear(
            config.width,
            1,
            kernel_init=_SMALL,
            bias_init=nnx.initializers.constant(-1.0),
            rngs=rngs,
        )

    def __call__(self, features: GraphFeatures) -> jax.Array:
        """``[B]`` float32.

        Raises:
          ConfigError: Features of another `FeatureConfig`.
        """
        _check(features, self.config)
        mask = jnp.asarray(features.node_mask)[:, :, None]
        ops = jnp.where(mask, self.graph(self.network(features)), 0)
        mean = ops.sum(axis=1) / mask.sum(axis=1).astype(jnp.float32)
        return self.output(nnx.relu(self.hidden(mean)))[:, 0]


_SMALL = nnx.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")


_SCALE = 0.1
"""Small, so that training begins near what plain BRKGA does; but not so small that it sees no features: then
only the biases learn at first, and they settle on one choice for all ops before the rest has begun."""


class _Outputs(nnx.Module):
    """One linear layer a key."""

    def __init__(self, width: int, bias: np.ndarray, *, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.variance_scaling(_SCALE, "fan_in", "truncated_normal", batch_axis=0)
        self.kernel = nnx.Param(init(rngs.params(), (len(bias), width, bias.shape[1]), jnp.float32))
        self.bias = nnx.Param(jnp.asarray(bias))

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, N, A D + 1, K]`` from ``[B, N, A D + 1, W]``."""
        return jnp.einsum("bnkw,kwc->bnkc", x, self.kernel[...]) + self.bias[...][None, None]


class _Spectral(nnx.Module):
    """For each placement a preference for the devices in their order along one `Cut`.

    A cut has a place from 0 to 1 for every op, of which each device has a band. Device ``k`` prefers means
    above the middle for its own band, below it for the others, and neither at the borders. How much each cut
    counts is a linear function of an op's embedding, at first the same for all.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        names = config.feature_config.node_names
        self.columns = tuple(names.index(cut.place) for cut in config.cuts)
        self.gain = nnx.Linear(
            config.width,
            len(self.columns),
            kernel_init=nnx.initializers.zeros,
            use_bias=False,
            rngs=rngs,
        )
        self.bias = nnx.Param(jnp.full(len(self.columns), config.cut_gain, jnp.float32))
        self.devices = config.num_devices
        bins = np.array(config.first)
        if config.parametrisation is Parametrisation.ALPHA_BETA:
            bins = np.log(bins)
        middle, half = (bins.max() + bins.min()) / 2, (bins.max() - bins.min()) / 2
        self.direction = tuple(((bins - middle) / (half or 1.0)).tolist())

    def __call__(self, features: GraphFeatures, embedding: jax.Array) -> jax.Array:
        """``[B, N, A D, K1]`` float32, to be added to the logits of the first choice."""
        place = jnp.asarray(features.nodes)[:, :, self.columns, None] * self.devices
        centre = jnp.arange(self.devices, dtype=jnp.float32) + 0.5
        inside = jnp.clip(4 * (0.5 - jnp.abs(place - centre[None, None, None])), -1, 1)
        gain = self.gain(embedding) + self.bias[...][None, None]
        preference = gain[..., None] * inside
        direction = jnp.asarray(self.direction, jnp.float32)
        return preference.reshape(*place.shape[:2], -1, 1) * direction[None, None, None]


class _Ordered(nnx.Module):
    """A preference for priorities in some `Order`, the first op's the highest.

    An op prefers the mean that is nearest to its place, or that leaves it there (`PolicyConfig.reach`), by
    the square of the distance. How much that counts is a linear function of its embedding, at first the same
    for all.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.gain = nnx.Linear(config.width, 1, kernel_init=nnx.initializers.zeros, use_bias=False, rngs=rngs)
        self.bias = nnx.Param(jnp.array([config.order_gain], jnp.float32))

    def __call__(self, features: GraphFeatures, embedding: jax.Array) -> jax.Array:
        """``[B, N, K1]`` float32, to be added to the logits of the first choice for priorities."""
        bins = np.array(self.config.first, np.float32)
        step = float(np.ptp(bins)) / max(len(bins) - 1, 1) or 1.0
        # Who has a place of its own stays there.
        place = jnp.full((1, 1), 0.5) if self.config.reach else _order_place(self.config, features)
        distance = (bins[None, None] - place[..., None]) / step
        gain = self.gain(embedding) + self.bias[...][None, None]
        return -gain * distance**2


_FALLING: Final = {
    Order.LEVELS: "bottom share",
    Order.MEMORY: "memory order",
    Order.SCHEDULE: "schedule order",
}


def _order_place(config: PolicyConfig, features: GraphFeatures) -> jax.Array:
    """``[B, N]`` float32 in (0, 1), the priority that keeps every op at its place in the `Order`."""
    names, nodes = config.feature_config.node_names, jnp.asarray(features.nodes)
    place = nodes[:, :, names.index(_FALLING[config.order])]
    if config.order is Order.LEVELS:
        place = (place + (1 - nodes[:, :, names.index("top share")])) / 2
    return _within(config, place)


def _within(config: PolicyConfig, place: jax.Array) -> jax.Array:
    """From 0 to 1 to what the means can tell."""
    low, high = min(config.first), max(config.first)
    return low + (high - low) * place


class OwnPlaces(NamedTuple):
    """Priorities that keep everything at its place in an order, from 0 to 1.

    Attributes:
      ops: ``[B, N]`` float32.
      sent: ``[B, N, D]`` float32, of the transfers of what an op makes; ``None`` where they go by their ops.
    """

    ops: jax.Array
    sent: jax.Array | None


def own_places(config: PolicyConfig, features: GraphFeatures) -> OwnPlaces | None:
    """The places that a policy with a reach moves ops from; ``None`` without one."""
    if not config.reach:
        return None
    sent = None
    if config.transfers is Transfers.SCHEDULE:
        at = config.feature_config.node_names.index("schedule sent 0")
        sent = _within(config, jnp.asarray(features.nodes)[:, :, at : at + config.num_devices])
    return OwnPlaces(_order_place(config, features), sent)


def _initial(config: PolicyConfig, bins: tuple[float, ...], first: bool) -> np.ndarray:
    """Biases ``[A D + 1, len(bins)]`` that tell wide distributions from narrow ones."""
    bias = np.zeros((config.num_keys, len(bins)), np.float32)
    preference = [*[config.initial_affinity_bias] * (config.num_keys - 1), config.initial_bias]
    if config.parametrisation is Parametrisation.ALPHA_BETA:
        bias[:, np.argmin(np.abs(np.log(bins)))] = preference
    elif not first:
        bias[:, np.argmax(bins)] = preference
    return bias


def _check(features: GraphFeatures, config: PolicyConfig) -> None:
    have = (features.nodes.shape[-1], features.edges.shape[-1])
    need = (len(config.feature_config.node_names), len(config.feature_config.edge_names))
    if have != need:
        raise ConfigError(
            f"policy: {have[0]} features an op and {have[1]} an edge, but {need[0]} and {need[1]} are needed "
            f"({config.num_devices} devices, {config.features} features); "
            "make them with the policy's feature_config"
        )
