"""`Policy`, which maps features to logits of all choices, and `Value`, the learned baseline."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from regal_jax.errors import ConfigError
from regal_jax.policies.choices import Network
from regal_jax.policies.config import PolicyConfig
from regal_jax.policies.features import GraphFeatures
from regal_jax.policies.gnn import GraphNetwork
from regal_jax.policies.layers import Mlp
from regal_jax.policies.priors import Prior, told_placements
from regal_jax.policies.sequence import SequenceNetwork

__all__ = ["Logits", "Policy", "Value", "check_prior", "within"]


class Logits(NamedTuple):
    """Unnormalised log-probabilities of the two choices for every key; undefined for padding.

    Attributes:
      means: ``[B, N, A D + 1, K1]`` float32, logits of means, or of alphas if the policy has these: ``D``
        affinities for each of ``A`` placements, then the priority.
      variances: ``[B, N, A D + 1, K2]`` float32, logits of variances, or of betas.
    """

    means: jax.Array
    variances: jax.Array


class Policy(nnx.Module):
    """A network that maps a graph to the distribution of actions.

    Embeddings of ops come from a `GraphNetwork` or a `SequenceNetwork`; ``2 (A D + 1)`` MLPs of one hidden
    layer each, shared by all ops, turn them into logits. Each device has its own heads, so that a policy
    can distinguish equal devices. A policy is for one ``D``.

    The output layers have small initial weights, so that an untrained policy follows its prior, with the
    logit scales of `Ablation`.

    References:
      REGAL, workshop text, appendix A.3, equation 1; ICLR 2020, section 4.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """An untrained policy.

        Args:
          config: Config of the policy.
          rngs: Random numbers for the initial weights, consumed.
        """
        self.config = config
        network = GraphNetwork if config.network is Network.GNN else SequenceNetwork
        self.network = network(config, rngs=rngs)
        keys, width = config.num_keys, config.width
        self.hidden = nnx.Linear(width, keys * 2 * width, rngs=rngs)
        # Weights files have these names: `first` and `second` are the heads of the choices, `spectral` and
        # `ordered` the logit scales of the placement priors and of the order prior.
        self.first = _Outputs(width, _initial(config, 0), rngs=rngs)
        self.spectral = _Placed(config, rngs=rngs) if config.placements else None
        self.ordered = _Ordered(config, rngs=rngs) if config.orders else None
        self.second = _Outputs(width, _initial(config, 1), rngs=rngs)

    def __call__(self, features: GraphFeatures, prior: Prior) -> Logits:
        """The logits of ``B`` graphs.

        Args:
          features: From `make_inputs`.
          prior: From `make_inputs`.

        Raises:
          ConfigError: The features or the prior are for another `PolicyConfig`.
        """
        embedding = self.network(_inputs(self.config, features, prior), features)
        hidden = nnx.relu(self.hidden(embedding))
        batch, n, _ = hidden.shape
        hidden = hidden.reshape(batch, n, self.config.num_keys, 2, self.config.width)
        means, variances = self.first(hidden[..., 0, :]), self.second(hidden[..., 1, :])
        if self.spectral is not None:
            means = means.at[:, :, :-1].add(self.spectral(prior, embedding))
        if self.ordered is not None:
            means = means.at[:, :, -1].add(self.ordered(prior, embedding))
        return Logits(means, variances)


class Value(nnx.Module):
    """The baseline ``b(G)``, the expected reward of a graph, computed by a separate network.

    ``b(G) = MLP_b(mean over ops of MLP_g(h))`` with ``h`` from a `GraphNetwork`. It starts near -1, the
    reward of plain BRKGA.

    References:
      REGAL, workshop text, appendix A.3.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        """An untrained baseline.

        Args:
          config: Config of the policy, for width, rounds and features.
          rngs: Random numbers for the initial weights, consumed.
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

    def __call__(self, features: GraphFeatures, prior: Prior) -> jax.Array:
        """``[B]`` float32 baselines.

        Args:
          features: From `make_inputs`.
          prior: From `make_inputs`.

        Raises:
          ConfigError: The features or the prior are for another `PolicyConfig`.
        """
        inputs = _inputs(self.config, features, prior)
        mask = jnp.asarray(features.node_mask)[:, :, None]
        ops = jnp.where(mask, self.graph(self.network(inputs, features)), 0)
        mean = ops.sum(axis=1) / mask.sum(axis=1).astype(jnp.float32)
        return self.output(nnx.relu(self.hidden(mean)))[:, 0]


_SMALL = nnx.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal")


_SCALE = 0.1
"""Scale of the initial output weights. It is small so that training begins near plain BRKGA, but not so small
that features have no effect: then only the biases would learn at first and settle on one choice for all
ops."""


class _Outputs(nnx.Module):
    """One linear layer per key."""

    def __init__(self, width: int, bias: np.ndarray, *, rngs: nnx.Rngs) -> None:
        init = nnx.initializers.variance_scaling(_SCALE, "fan_in", "truncated_normal", batch_axis=0)
        self.kernel = nnx.Param(init(rngs.params(), (len(bias), width, bias.shape[1]), jnp.float32))
        self.bias = nnx.Param(jnp.asarray(bias))

    def __call__(self, x: jax.Array) -> jax.Array:
        """``[B, N, A D + 1, K]`` from ``[B, N, A D + 1, W]``."""
        return jnp.einsum("bnkw,kwc->bnkc", x, self.kernel[...]) + self.bias[...][None, None]


class _Placed(nnx.Module):
    """A preference, for each placement prior, for the op's device in that placement.

    A placement has a position from 0 to 1 for every op, and each device has a band of positions. The affinity
    to a device prefers means above the middle if the op is in the device's band, below the middle if it is in
    another band, and neither at a border. The weight of each placement is a linear function of the op's
    embedding, initially the same for all.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        count = len(config.placements)
        self.gain = nnx.Linear(
            config.width, count, kernel_init=nnx.initializers.zeros, use_bias=False, rngs=rngs
        )
        self.bias = nnx.Param(jnp.full(count, config.ablation.placement_scale, jnp.float32))
        self.devices = config.num_devices
        bins = np.array(config.bins[0])
        if config.ablation.alphas:
            bins = np.log(bins)
        middle, half = (bins.max() + bins.min()) / 2, (bins.max() - bins.min()) / 2
        self.direction = tuple(((bins - middle) / (half or 1.0)).tolist())

    def __call__(self, prior: Prior, embedding: jax.Array) -> jax.Array:
        """``[B, N, A D, K1]`` float32, to be added to the logits of the first choice."""
        place = jnp.asarray(prior.placements)[..., None] * self.devices
        centre = jnp.arange(self.devices, dtype=jnp.float32) + 0.5
        inside = jnp.clip(4 * (0.5 - jnp.abs(place - centre[None, None, None])), -1, 1)
        gain = self.gain(embedding) + self.bias[...][None, None]
        preference = gain[..., None] * inside
        direction = jnp.asarray(self.direction, jnp.float32)
        return preference.reshape(*place.shape[:2], -1, 1) * direction[None, None, None]


class _Ordered(nnx.Module):
    """A preference for priorities in the order of the prior, with the highest for the first op.

    An op prefers means by their squared distance from its place, or with `PolicyConfig.reach`, from the mean
    that leaves it there. The weight is a linear function of the op's embedding, initially the same for all.
    """

    def __init__(self, config: PolicyConfig, *, rngs: nnx.Rngs) -> None:
        self.config = config
        self.gain = nnx.Linear(config.width, 1, kernel_init=nnx.initializers.zeros, use_bias=False, rngs=rngs)
        self.bias = nnx.Param(jnp.array([config.ablation.order_scale], jnp.float32))

    def __call__(self, prior: Prior, embedding: jax.Array) -> jax.Array:
        """``[B, N, K1]`` float32, to be added to the logits of the first choice."""
        bins = np.array(self.config.means, np.float32)
        step = float(np.ptp(bins)) / max(len(bins) - 1, 1) or 1.0
        # With a reach, bins are relative to the op's place, so 0.5 keeps the place.
        place = jnp.full((1, 1), 0.5) if self.config.reach else within(self.config, jnp.asarray(prior.order))
        distance = (bins[None, None] - place[..., None]) / step
        gain = self.gain(embedding) + self.bias[...][None, None]
        return -gain * distance**2


def within(config: PolicyConfig, place: jax.Array) -> jax.Array:
    """Places from 0 to 1, mapped to the range of the means."""
    low, high = min(config.means), max(config.means)
    return low + (high - low) * place


def _inputs(config: PolicyConfig, features: GraphFeatures, prior: Prior) -> jax.Array:
    """``[B, N, I]`` inputs of the network for every op, see `PolicyConfig.input_names`."""
    _check(config, features, prior)
    parts = [jnp.asarray(features.nodes)]
    if config.maker.told:
        parts.append(jnp.asarray(prior.order)[..., None])
        if prior.transfers is not None:
            parts.append(jnp.asarray(prior.transfers))
        told = told_placements(config.placements)
        if told:
            parts.append(jnp.asarray(prior.placements)[:, :, told])
    return jnp.concatenate(parts, axis=2)


def _initial(config: PolicyConfig, choice: int) -> np.ndarray:
    """``[A D + 1, K]`` initial biases of one of the two choices, which prefer wide distributions."""
    a, bins = config.ablation, config.bins[choice]
    bias = np.zeros((config.num_keys, len(bins)), np.float32)
    preference = [*[a.affinity_bias] * (config.num_keys - 1), a.priority_bias]
    if a.alphas:
        bias[:, np.argmin(np.abs(np.log(bins)))] = preference
    elif choice == 1:
        bias[:, np.argmax(bins)] = preference
    return bias


def _check(config: PolicyConfig, features: GraphFeatures, prior: Prior) -> None:
    have = (features.nodes.shape[-1], features.edges.shape[-1])
    need = (len(config.feature_config.node_names), len(config.feature_config.edge_names))
    if have != need:
        raise ConfigError(
            f"policy: {have[0]} features per op, {have[1]} per edge, but {need[0]} and {need[1]} are needed "
            f"({config.num_devices} devices, {config.ablation.features} features); "
            "make them with the policy's config"
        )
    check_prior(config, prior, features.nodes.shape[:2])


def check_prior(config: PolicyConfig, prior: Prior, leading: tuple[int, ...]) -> None:
    """Checks that a prior is for this policy and these graphs.

    Args:
      config: Config of the policy.
      prior: From `make_inputs`.
      leading: ``(B, N)``.

    Raises:
      ConfigError: The prior is for another policy or for other graphs.
    """
    found = {name: array.shape for name, array in vars(prior).items() if array is not None}
    need = {name: (*leading, *rest) for name, rest in config.prior_shapes.items()}
    if found != need:
        raise ConfigError(
            f"policy: a prior of {found or 'nothing'}, but {need or 'nothing'} is needed (prior "
            f"'{config.prior}', {config.num_devices} devices); make it with the policy's config, of the same "
            "graphs and bucket"
        )
