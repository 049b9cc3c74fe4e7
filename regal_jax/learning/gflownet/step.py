"""One step of training, from a graph to new weights, as one compiled program."""

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax import lax
from jax.sharding import Mesh, PartitionSpec

from regal_jax.gflownet import (
    ScheduleInputs,
    SchedulePolicy,
    Trajectories,
    clipped_ratio_loss,
    load_gflownet,
    log_partition_estimates,
    log_reward,
    partition_variance_loss,
    sample_trajectories,
    trajectory_balance_loss,
    trajectory_terms,
)
from regal_jax.learning.gflownet.config import GflownetDataConfig, GflownetTrainConfig, Loss
from regal_jax.learning.mesh import AXIS
from regal_jax.learning.start import given_network
from regal_jax.learning.updates import clipped_adam, updated
from regal_jax.programs import on_mesh, program
from regal_jax.search.draws import numbered, seeds_of

__all__ = ["GflownetLearner", "GflownetMetrics", "GflownetState", "gflownet_step"]


class GflownetMetrics(NamedTuple):
    """Metrics of one step; float32 scalars.

    Attributes:
      improvement: Mean share of the makespan saved over a single device.
      speedup: Mean speed-up of the schedules.
      best: Best speed-up of a schedule.
      temperature: Temperature of this step.
      loss: Loss of this step; for PPO, at the last of its updates.
      partition: Mean estimate of log Z; for PPO, the mean of the estimated returns.
      spread: Standard deviation of the estimates of log Z, or of the advantages.
      entropy: Mean entropy of the actions in nats.
      gradient: Norm of the gradient, before it is clipped.
      learning_rate: Learning rate of this step.
    """

    improvement: jax.Array
    speedup: jax.Array
    best: jax.Array
    temperature: jax.Array
    loss: jax.Array
    partition: jax.Array
    spread: jax.Array
    entropy: jax.Array
    gradient: jax.Array
    learning_rate: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class GflownetState:
    """The complete state of training.

    Attributes:
      policy: Weights of the policy.
      optimizer: Optax state.
      step: int32 scalar, number of steps so far.
    """

    policy: Any
    optimizer: Any
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class GflownetLearner:
    """The static part of a step. It is hashable, and equal learners share their compiled programs.

    Attributes:
      config: Config of the run. Runs that differ only in their graphs share their programs.
    """

    config: GflownetTrainConfig

    def __post_init__(self) -> None:
        object.__setattr__(self, "config", dataclasses.replace(self.config, data=GflownetDataConfig()))

    @functools.cached_property
    def graphdef(self) -> Any:
        """The network without its weights."""
        return nnx.graphdef(nnx.eval_shape(self._new))

    def _new(self) -> SchedulePolicy:
        return SchedulePolicy(self.config.model, rngs=nnx.Rngs(self.config.seed))

    def model(self, weights: Any) -> SchedulePolicy:
        """The network with these weights."""
        return nnx.merge(self.graphdef, weights)

    @property
    def updates(self) -> int:
        """Number of updates of the weights in a step."""
        return self.config.ppo.epochs if self.config.optimizer.loss is Loss.PPO else 1

    def faded(self, factor: float, step: jax.Array) -> jax.Array:
        """float32, ``factor`` to the power of the completed fraction of the run."""
        share = step.astype(jnp.float32) / jnp.float32(self.config.optimizer.steps)
        return jnp.float32(factor) ** share

    def schedule(self, update: jax.typing.ArrayLike) -> jax.Array:
        """Learning rate of an update."""
        o = self.config.optimizer
        step = jnp.asarray(update, jnp.int32) // jnp.int32(self.updates)
        return jnp.float32(o.learning_rate) * self.faded(o.decay, step)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam, on clipped gradients if there is a limit."""
        clip = self.config.optimizer.clip
        return clipped_adam(clip, self.schedule) if clip else optax.adam(self.schedule)

    def init(self) -> GflownetState:
        """The state before the first step.

        Raises:
          ConfigError: `GflownetTrainConfig.start` is a file of another network, or is not a file.
          FormatError: `GflownetTrainConfig.start` is not a file of weights.
        """
        weights = nnx.state(self._given() if self.config.start else self._new())
        return GflownetState(weights, self.optimizer().init(weights), jnp.int32(0))

    def _given(self) -> SchedulePolicy:
        c = self.config
        return given_network(c.start, load_gflownet, c.model, "make model and optimizer.loss the same")

    def update(self, gradient: Any, optimizer: Any, weights: Any) -> tuple[Any, Any]:
        """New weights, and the new state of the optimizer."""
        return updated(self.optimizer(), gradient, optimizer, weights)


class _Batch(NamedTuple):
    """The inputs of a loss: trajectories of one graph at one temperature."""

    inputs: ScheduleInputs
    trajectories: Trajectories
    log_sigma: jax.Array

    @property
    def reward(self) -> jax.Array:
        """``[P]`` float32."""
        return log_reward(self.trajectories.speedup, self.inputs.devices, jnp.exp(self.log_sigma))


def gflownet_step(
    learner: GflownetLearner, mesh: Mesh, state: GflownetState, inputs: ScheduleInputs, key: jax.Array
) -> tuple[GflownetState, GflownetMetrics]:
    """Samples schedules of a graph at a temperature and updates the weights with them.

    The schedules are spread over the devices of ``mesh``. A schedule does not depend on the number of
    devices; only the order in which gradients are summed does.

    Args:
      learner: The learner, static.
      mesh: The mesh, static, with one axis named `AXIS`, whose size must divide the number of trajectories.
      state: The state, donated.
      inputs: The graph.
      key: Typed key of the whole run.
    """
    return _gflownet_step(learner, mesh, state, inputs, key)


@program(static=(0, 1), donate=(2,))
def _gflownet_step(
    learner: GflownetLearner, mesh: Mesh, state: GflownetState, inputs: ScheduleInputs, key: jax.Array
) -> tuple[GflownetState, GflownetMetrics]:
    everywhere = PartitionSpec()
    step = on_mesh(functools.partial(_step, learner, mesh.size), mesh, everywhere, everywhere)
    return step(state, inputs, key)


def _step(
    learner: GflownetLearner, shards: int, state: GflownetState, inputs: ScheduleInputs, key: jax.Array
) -> tuple[GflownetState, GflownetMetrics]:
    """`gflownet_step` on one of the devices, with its part of the trajectories."""
    heat, draw = jax.random.split(jax.random.fold_in(key, state.step))
    o, is_ppo = learner.config.optimizer, learner.config.optimizer.loss is Loss.PPO
    low, high = math.log(o.min_temperature), math.log(o.max_temperature)
    log_sigma = jax.random.uniform(heat, (), jnp.float32, low, high)
    if is_ppo:
        log_sigma = jnp.float32(math.log(learner.config.ppo.temperature))
    mine = o.trajectories // shards
    seeds = numbered(seeds_of(draw), lax.axis_index(AXIS) * mine, mine)
    trajectories = sample_trajectories(learner.model(state.policy), inputs, seeds, log_sigma)
    batch = _Batch(inputs, trajectories, log_sigma)
    weights, optimizer, told = (_ppo_updates if is_ppo else _flow_update)(learner, state, batch)
    u = trajectories.speedup
    metrics = GflownetMetrics(
        improvement=_mean(1 - 1 / u),
        speedup=_mean(u),
        best=lax.pmax(u.max(), AXIS),
        temperature=jnp.exp(log_sigma),
        **told,
        learning_rate=learner.schedule(state.step * learner.updates),
    )
    return GflownetState(weights, optimizer, state.step + 1), metrics


def _flow_update(
    learner: GflownetLearner, state: GflownetState, batch: _Batch
) -> tuple[Any, Any, dict[str, jax.Array]]:
    """One update with a loss for the consistency of the flow."""

    def loss(weights: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        model = learner.model(weights)
        terms = trajectory_terms(model, batch.inputs, batch.trajectories, batch.log_sigma)
        zeta = log_partition_estimates(batch.reward, terms.forward, terms.backward)
        if learner.config.optimizer.loss is Loss.BALANCE:
            found = trajectory_balance_loss(zeta, model.log_partition(batch.inputs, batch.log_sigma))
        else:
            found = partition_variance_loss(zeta, _mean(lax.stop_gradient(zeta)))
        return found, (zeta, _mean_action(batch, terms.entropy))

    (found, (zeta, entropy)), gradient = jax.value_and_grad(loss, has_aux=True)(state.policy)
    gradient = lax.pmean(gradient, AXIS)
    weights, optimizer = learner.update(gradient, state.optimizer, state.policy)
    told = _told(found, zeta, entropy, gradient)
    return weights, optimizer, told


def _ppo_updates(
    learner: GflownetLearner, state: GflownetState, batch: _Batch
) -> tuple[Any, Any, dict[str, jax.Array]]:
    """The updates of PPO with the trajectories of a step (Spinning Up, PPO, algorithm 1).

    The reward is given for the last action and is not discounted, so it is the return of every state. The
    advantage of an action is the return minus the value of its state.
    """
    ppo = learner.config.ppo
    weight = jnp.float32(ppo.entropy) * learner.faded(ppo.entropy_decay, state.step)
    terms = trajectory_terms(learner.model(state.policy), batch.inputs, batch.trajectories, batch.log_sigma)
    old, returns = terms.forward, batch.reward[:, None]
    advantage = returns - terms.value

    def loss(weights: Any) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        terms = trajectory_terms(learner.model(weights), batch.inputs, batch.trajectories, batch.log_sigma)
        entropy = _mean_action(batch, terms.entropy)
        found = _mean_action(batch, clipped_ratio_loss(terms.forward, old, advantage, ppo.clip))
        error = _mean_action(batch, (terms.value - returns) ** 2)
        return found + ppo.value * error - weight * entropy, (terms.value, entropy)

    def update(carry: tuple[Any, Any], _: None) -> tuple[tuple[Any, Any], dict[str, jax.Array]]:
        weights, optimizer = carry
        (found, (value, entropy)), gradient = jax.value_and_grad(loss, has_aux=True)(weights)
        gradient = lax.pmean(gradient, AXIS)
        weights, optimizer = learner.update(gradient, optimizer, weights)
        return (weights, optimizer), _told(found, value[:, 0], entropy, gradient)

    carry, told = lax.scan(update, (state.policy, state.optimizer), None, length=ppo.epochs)
    spread = jnp.sqrt(_mean(_mean_action(batch, advantage**2)))
    return *carry, {**{name: each[-1] for name, each in told.items()}, "spread": spread}


def _told(loss: jax.Array, zeta: jax.Array, entropy: jax.Array, gradient: Any) -> dict[str, jax.Array]:
    """Metrics of an update."""
    mean = _mean(zeta)
    return {
        "loss": _mean(loss),
        "partition": mean,
        "spread": jnp.sqrt(_mean((zeta - mean) ** 2)),
        "entropy": _mean(entropy),
        "gradient": optax.tree.norm(gradient),
    }


def _mean(x: jax.Array) -> jax.Array:
    """The mean over the devices, which have equally many trajectories."""
    return lax.pmean(x.mean(), AXIS)


def _mean_action(batch: _Batch, x: jax.Array) -> jax.Array:
    """The mean over the actions of the trajectories of one device, ``[P, N]``, without those of padding."""
    n = x.shape[1]
    real = jnp.arange(n, dtype=jnp.int32) < batch.inputs.num_ops
    number = jnp.maximum(batch.inputs.num_ops.astype(jnp.float32), 1)
    return jnp.where(real[None], x, 0).sum(axis=1).mean() / number
