"""One step of training, from graphs to new weights, as one compiled program."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from regal_jax.errors import ConfigError
from regal_jax.learning.mesh import AXIS
from regal_jax.learning.ordering.config import OrderTrainConfig
from regal_jax.learning.ordering.data import OrderBatch
from regal_jax.ordering import Topoformer, load_topoformer, standardised
from regal_jax.ordering.decode import greedy, log_prob, peaks, sample
from regal_jax.programs import program
from regal_jax.solve import keys_of

__all__ = ["OrderLearner", "OrderMetrics", "OrderState", "greedy_peaks", "order_step"]

_EPSILON = 1e-6
"""Beside a standard deviation, of which peaks that are all alike have none."""


class OrderMetrics(NamedTuple):
    """Of one step; float32 scalars.

    Attributes:
      improvement: Mean share of the peak saved over the order of least peak memory first.
      baseline: The same, of the baseline's greedy orders.
      entropy: Nats a step of an order, estimated from the orders that were drawn.
      gradient: Norm of the gradient, before it is clipped.
      spread: Standard deviation of the advantages.
      norm: Root of the mean squared priority, before they are standardised.
      learning_rate: In this step.
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
    """All that changes in training.

    Attributes:
      policy: Weights.
      baseline: Weights of the policy whose greedy orders the others are compared with.
      optimizer: State of Optax.
      step: int32 scalar, updates so far.
    """

    policy: Any
    baseline: Any
    optimizer: Any
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class OrderLearner:
    """What is static in a step: hashable, and equal ones share their compiled programs.

    Attributes:
      config: Of the run.
    """

    config: OrderTrainConfig

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
        return optax.chain(optax.clip_by_global_norm(self.config.optimizer.clip), optax.adam(self.schedule))

    def init(self) -> OrderState:
        """The state before the first step.

        Raises:
          ConfigError: `OrderTrainConfig.start` holds another network.
          FormatError: It holds none.
        """
        weights = nnx.state(self._given() if self.config.start else self._new())
        # A copy: the state is donated to each step, and no array can be donated twice.
        baseline = jax.tree.map(jnp.copy, weights)
        return OrderState(weights, baseline, self.optimizer().init(weights), jnp.int32(0))

    def _given(self) -> Topoformer:
        model, asked = load_topoformer(self.config.start), self.config.model
        if model.config != asked:
            raise ConfigError(
                f"start: {self.config.start} holds {model.config}, the config says {asked}; "
                "make model the same"
            )
        return model

    def update(self, gradient: Any, optimizer: Any, weights: Any) -> tuple[Any, Any]:
        """New weights, and the new state of the optimizer."""
        # Optax mixes types, which the program around us may have forbidden.
        with jax.numpy_dtype_promotion("standard"):
            changes, optimizer = self.optimizer().update(gradient, optimizer, weights)
            return optax.apply_updates(weights, changes), optimizer


def order_step(
    learner: OrderLearner, mesh: Mesh, state: OrderState, batch: OrderBatch, key: jax.Array
) -> tuple[OrderState, OrderMetrics]:
    """Draws orders of the graphs of a batch and improves the weights by their peaks.

    The graphs are spread over the devices of ``mesh``. What each of them gives does not depend on how many
    there are, only the order in which gradients are summed does.

    Args:
      learner: Static.
      mesh: Static, of one axis called `AXIS`; the batch must divide among its devices.
      state: Donated.
      batch: ``B`` graphs.
      key: Typed, of the whole run.
    """
    return _order_step(learner, mesh, state, batch, key)


@program(static=(0, 1), donate=(2,))
def _order_step(
    learner: OrderLearner, mesh: Mesh, state: OrderState, batch: OrderBatch, key: jax.Array
) -> tuple[OrderState, OrderMetrics]:
    everywhere = PartitionSpec()
    step = jax.shard_map(
        functools.partial(_step, learner),
        mesh=mesh,
        in_specs=(everywhere, PartitionSpec(AXIS), everywhere),
        out_specs=everywhere,
        check_vma=False,
    )
    return step(state, batch, key)


def _step(
    learner: OrderLearner, state: OrderState, batch: OrderBatch, key: jax.Array
) -> tuple[OrderState, OrderMetrics]:
    """`order_step` on one of the devices, with its part of the batch."""
    o, alpha = learner.config.optimizer, learner.config.model.alpha
    flip, draw = jax.random.split(jax.random.fold_in(key, state.step))
    inputs, mask = _flipped(batch, flip), batch.inputs.mask
    logits, pull = jax.vjp(lambda weights: learner.model(weights).logits(inputs), state.policy)
    priorities = standardised(logits, mask, alpha)
    orders, log_probs = sample(batch.problem, priorities, keys_of(draw, batch.identity), o.samples)
    cost = _in_units(peaks(batch.problem, orders), batch)
    baseline = cost.mean(axis=1)
    if o.standardise:
        advantages = (cost - baseline[:, None]) / (cost.std(axis=1)[:, None] + _EPSILON)
    else:
        baseline = _in_units(_greedy_peaks(learner, state.baseline, batch)[:, None], batch)[:, 0]
        advantages = cost - baseline[:, None]

    def loss(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
        chances = log_prob(batch.problem, standardised(logits, mask, alpha), orders)
        square = (jnp.where(mask, logits, 0.0) ** 2).sum() / mask.sum().astype(jnp.float32)
        return (advantages * chances).mean() + o.logit_norm * square, square

    slope, square = jax.grad(loss, has_aux=True)(logits)
    gradient = lax.pmean(pull(slope)[0], AXIS)
    weights, optimizer = learner.update(gradient, state.optimizer, state.policy)
    reference = _in_units(peaks(batch.problem, batch.order[:, None]), batch)
    steps = mask.sum(axis=1).astype(jnp.float32)[:, None]
    metrics = OrderMetrics(
        improvement=_mean(_saved(cost, reference)),
        baseline=_mean(_saved(baseline[:, None], reference)),
        entropy=_mean(-log_probs / steps),
        gradient=optax.tree.norm(gradient),
        spread=jnp.sqrt(_mean(advantages**2)),
        norm=jnp.sqrt(_mean(square)),
        learning_rate=learner.schedule(state.step),
    )
    return OrderState(weights, state.baseline, optimizer, state.step + 1), metrics


def _mean(x: jax.Array) -> jax.Array:
    """Over the devices, which have as many graphs each."""
    return lax.pmean(x.mean(), AXIS)


def _saved(cost: jax.Array, reference: jax.Array) -> jax.Array:
    """Share of the reference that is saved; nothing where there is nothing."""
    return jnp.where(reference > 0, 1 - cost / jnp.where(reference > 0, reference, 1.0), 0.0)


def _in_units(peak: jax.Array, batch: OrderBatch) -> jax.Array:
    """``[B, S]`` float32: peaks in mean bytes of an op, as the paper's costs are numbers near 1."""
    return peak.astype(jnp.float32) / jnp.where(batch.unit > 0, batch.unit, 1.0)[:, None]


def _flipped(batch: OrderBatch, key: jax.Array) -> Any:
    """The inputs with random signs of the eigenvectors, of which both mean the same."""
    spectral = batch.inputs.spectral
    keys = keys_of(key, batch.identity)
    signs = jax.vmap(lambda k: jax.random.rademacher(k, (spectral.shape[-1],), jnp.float32))(keys)
    return dataclasses.replace(batch.inputs, spectral=spectral * signs[:, None])


def _greedy_peaks(learner: OrderLearner, weights: Any, batch: OrderBatch) -> jax.Array:
    """``[B]`` int32."""
    orders = greedy(batch.problem, learner.model(weights)(batch.inputs))
    return peaks(batch.problem, orders[:, None])[:, 0]


@program(static=(0,))
def greedy_peaks(learner: OrderLearner, weights: Any, batch: OrderBatch) -> tuple[jax.Array, jax.Array]:
    """Peaks of the greedy orders and of the reference, ``[B]`` int32 memory units each."""
    reference = peaks(batch.problem, batch.order[:, None])[:, 0]
    return _greedy_peaks(learner, weights, batch), reference
