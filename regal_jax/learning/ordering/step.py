"""One step of training, from graphs to new weights, as one compiled program."""

import dataclasses
import functools
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from regal_jax.learning.mesh import AXIS
from regal_jax.learning.ordering.config import OrderDataConfig, OrderTrainConfig
from regal_jax.learning.ordering.data import OrderBatch
from regal_jax.learning.start import given_network
from regal_jax.learning.updates import clipped_adam, updated
from regal_jax.ordering import OrderInputs, Topoformer, load_topoformer, peaks
from regal_jax.ordering.decoders import encoded, greedy_orders, order_log_prob, read, sampled_orders
from regal_jax.programs import on_mesh, program
from regal_jax.solve import keys_of

__all__ = ["OrderLearner", "OrderMetrics", "OrderState", "greedy_peaks", "order_step"]

_NOISE: Final = 1e-5
"""Standard deviation of peaks relative to their mean, below which it may be the rounding of equal peaks."""


class OrderMetrics(NamedTuple):
    """Metrics of one step; float32 scalars.

    Attributes:
      improvement: Mean share of the peak saved over the order of least peak memory first.
      baseline: The same for the baseline's greedy orders; with `OrderOptimizerConfig.standardise` for the
        mean peak of each graph's orders, which equals ``improvement``.
      entropy: Nats per step of an order, estimated from the orders that were drawn.
      gradient: Norm of the gradient, before it is clipped.
      spread: Root of the mean squared advantage.
      norm: Root of the mean squared priority, before they are standardised; 0 where there are none.
      learning_rate: Learning rate of this step.
    """

    improvement: jax.Array
    baseline: jax.Array
    entropy: jax.Array
    gradient: jax.Array
    spread: jax.Array
    norm: jax.Array
    learning_rate: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class OrderState:
    """The complete state of training.

    Attributes:
      policy: Weights of the policy.
      baseline: Weights of the policy whose greedy orders the drawn orders are compared with.
      optimizer: Optax state.
      step: int32 scalar, updates so far.
    """

    policy: Any
    baseline: Any
    optimizer: Any
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class OrderLearner:
    """The static, hashable part of a step; equal learners share their compiled programs.

    Attributes:
      config: Config of the run. Programs do not depend on the graphs: runs that differ only in these share
        programs.
    """

    config: OrderTrainConfig

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", dataclasses.replace(self.config, data=OrderDataConfig()))

    @functools.cached_property
    def graphdef(self) -> Any:
        """The network without its weights."""
        return nnx.graphdef(nnx.eval_shape(self._new))

    def _new(self) -> Topoformer:
        return Topoformer(self.config.model, rngs=nnx.Rngs(self.config.seed))

    def model(self, weights: Any) -> Topoformer:
        """The network with these weights."""
        return nnx.merge(self.graphdef, weights)

    def schedule(self, step: jax.typing.ArrayLike) -> jax.Array:
        """Learning rate: multiplied by the decay after each epoch."""
        o = self.config.optimizer
        epoch = jnp.asarray(step, jnp.int32) // jnp.int32(o.epoch)
        return jnp.float32(o.learning_rate) * jnp.float32(o.decay) ** epoch.astype(jnp.float32)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        return clipped_adam(self.config.optimizer.clip, self.schedule)

    def init(self) -> OrderState:
        """The state before the first step.

        Raises:
          ConfigError: `OrderTrainConfig.start` holds another network, or is not a file.
          FormatError: It is not a file of weights.
        """
        weights = nnx.state(self._given() if self.config.start else self._new())
        # A copy: the state is donated to each step, and no array can be donated twice.
        baseline = jax.tree.map(jnp.copy, weights)
        return OrderState(weights, baseline, self.optimizer().init(weights), jnp.int32(0))

    def _given(self) -> Topoformer:
        c = self.config
        return given_network(c.start, load_topoformer, c.model, "make model the same")

    def update(self, gradient: Any, optimizer: Any, weights: Any) -> tuple[Any, Any]:
        """New weights, and the new state of the optimizer."""
        return updated(self.optimizer(), gradient, optimizer, weights)


def order_step(
    learner: OrderLearner, mesh: Mesh, state: OrderState, batch: OrderBatch, key: jax.Array
) -> tuple[OrderState, OrderMetrics]:
    """Draws orders of the graphs of a batch and improves the weights by their peaks.

    The graphs are spread over the devices of ``mesh``. The results of each graph do not depend on the number
    of devices; only the order in which gradients are summed does.

    Args:
      learner: The learner; static under jit.
      mesh: Static, with one axis called `AXIS`; its number of devices must divide the batch.
      state: Donated.
      batch: ``B`` graphs.
      key: Typed key of the whole run.
    """
    return _order_step(learner, mesh, state, batch, key)


@program(static=(0, 1), donate=(2,))
def _order_step(
    learner: OrderLearner, mesh: Mesh, state: OrderState, batch: OrderBatch, key: jax.Array
) -> tuple[OrderState, OrderMetrics]:
    everywhere = PartitionSpec()
    specs = (everywhere, PartitionSpec(AXIS), everywhere)
    step = on_mesh(functools.partial(_step, learner), mesh, specs, everywhere)
    return step(state, batch, key)


def _step(
    learner: OrderLearner, state: OrderState, batch: OrderBatch, key: jax.Array
) -> tuple[OrderState, OrderMetrics]:
    """`order_step` on one of the devices, with its part of the batch."""
    flip, draw = jax.random.split(jax.random.fold_in(key, state.step))
    inputs, mask = _flipped(batch, flip), batch.inputs.mask
    outputs, pull = jax.vjp(lambda weights: encoded(learner.model(weights), inputs), state.policy)
    model = learner.model(state.policy)
    keys = keys_of(draw, batch.identity)
    samples = learner.config.optimizer.samples
    orders = sampled_orders(model, batch.problem, read(model, outputs, mask), keys, samples)
    peak = peaks(batch.problem, orders).astype(jnp.float32)
    baseline, advantages = _advantages(learner, state.baseline, batch, peak)
    loss = functools.partial(_loss, learner, batch, orders, advantages)
    (own, slope), (log_probs, square) = jax.grad(loss, argnums=(0, 1), has_aux=True)(state.policy, outputs)
    # The loss is differentiated by the decoder's weights directly, by the encoder's through its outputs.
    gradient = lax.pmean(jax.tree.map(jnp.add, own, pull(slope)[0]), AXIS)
    weights, optimizer = learner.update(gradient, state.optimizer, state.policy)
    reference = peaks(batch.problem, batch.order[:, None]).astype(jnp.float32)
    steps = mask.sum(axis=1).astype(jnp.float32)[:, None]
    metrics = OrderMetrics(
        improvement=_mean(_saved(peak, reference)),
        baseline=_mean(_saved(baseline, reference)),
        entropy=_mean(-log_probs / steps),
        gradient=optax.tree.norm(gradient),
        spread=jnp.sqrt(_mean(advantages**2)),
        norm=jnp.sqrt(_mean(square)),
        learning_rate=learner.schedule(state.step),
    )
    return OrderState(weights, state.baseline, optimizer, state.step + 1), metrics


def _advantages(
    learner: OrderLearner, weights: Any, batch: OrderBatch, peak: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """``[B, 1]`` float32 baselines of the peaks, and ``[B, S]`` advantages: the lower, the better.

    Args:
      learner: The learner; static under jit.
      weights: Weights of the baseline.
      batch: ``B`` graphs.
      peak: ``[B, S]`` float32.
    """
    # Subtract before dividing, so that equal peaks have an advantage of exactly 0.
    if learner.config.optimizer.standardise:
        mean = peak.mean(axis=1, keepdims=True)
        spread = jnp.maximum(peak.std(axis=1, keepdims=True), _NOISE * mean)
        return mean, (peak - mean) / jnp.where(spread > 0, spread, 1.0)
    baseline = _greedy_peaks(learner, weights, batch).astype(jnp.float32)[:, None]
    return baseline, (peak - baseline) / jnp.where(batch.unit > 0, batch.unit, 1.0)[:, None]


def _loss(
    learner: OrderLearner,
    batch: OrderBatch,
    orders: jax.Array,
    advantages: jax.Array,
    weights: Any,
    outputs: jax.Array,
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The mean of advantage times log-probability (section 4.3), and the penalty of `logit_norm`.

    Args:
      learner: The learner; static under jit.
      batch: ``B`` graphs.
      orders: ``[B, S, N]`` drawn orders.
      advantages: ``[B, S]``, constants.
      weights: Weights of the network; only the decoder's are used.
      outputs: From `encoded`.

    Returns:
      The loss; ``[B, S]`` log-probabilities, and ``[B]`` mean squared logits, 0 where there are none.
    """
    model, mask = learner.model(weights), batch.inputs.mask
    log_probs = order_log_prob(model, batch.problem, read(model, outputs, mask), orders)
    square = jnp.zeros(batch.size, jnp.float32)
    if model.decoder is None:
        ops = mask.sum(axis=1).astype(jnp.float32)
        square = (jnp.where(mask, outputs, 0.0) ** 2).sum(axis=1) / ops
    loss = (advantages * log_probs).mean() + learner.config.optimizer.logit_norm * square.mean()
    return loss, (log_probs, square)


def _mean(x: jax.Array) -> jax.Array:
    """The mean over the devices, which have equally many graphs."""
    return lax.pmean(x.mean(), AXIS)


def _saved(peak: jax.Array, reference: jax.Array) -> jax.Array:
    """Share of the reference that is saved; 0 where the reference is 0. ``[B, S]`` and ``[B, 1]``."""
    return (reference - peak) / jnp.where(reference > 0, reference, 1.0)


def _flipped(batch: OrderBatch, key: jax.Array) -> OrderInputs:
    """The inputs with random signs of the eigenvectors, since either sign is valid."""
    spectral = batch.inputs.spectral
    keys = keys_of(key, batch.identity)
    signs = jax.vmap(lambda k: jax.random.rademacher(k, (spectral.shape[-1],), jnp.float32))(keys)
    return dataclasses.replace(batch.inputs, spectral=spectral * signs[:, None])


def _greedy_peaks(learner: OrderLearner, weights: Any, batch: OrderBatch) -> jax.Array:
    """``[B]`` int32 peaks of the greedy orders, in memory units."""
    model, inputs = learner.model(weights), batch.inputs
    orders = greedy_orders(model, batch.problem, read(model, encoded(model, inputs), inputs.mask))
    return peaks(batch.problem, orders[:, None])[:, 0]


@program(static=(0,))
def greedy_peaks(learner: OrderLearner, weights: Any, batch: OrderBatch) -> tuple[jax.Array, jax.Array]:
    """Peaks of the greedy orders and of the reference, ``[B]`` int32 memory units each."""
    reference = peaks(batch.problem, batch.order[:, None])[:, 0]
    return _greedy_peaks(learner, weights, batch), reference
