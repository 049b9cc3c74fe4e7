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

from regal_jax.encoding import Proposal
from regal_jax.errors import ConfigError
from regal_jax.learning.config import Baseline, TrainConfig
from regal_jax.learning.mesh import AXIS, everywhere
from regal_jax.learning.pool import Pool, SpreadPool, rows
from regal_jax.learning.reinforce import leave_one_out, reinforce_loss, reward, standardised
from regal_jax.learning.updates import clipped_adam, updated
from regal_jax.policies import (
    Logits,
    Policy,
    PolicyConfig,
    Value,
    action_table,
    entropy,
    load_policy,
    log_prob,
    sample_action,
    to_proposal,
)
from regal_jax.problem import Problem
from regal_jax.programs import on_mesh, program
from regal_jax.solve import encoding_of, keys_of, solve_traced
from regal_jax.storage.stamps import file_stamp

__all__ = ["Learner", "Metrics", "TrainState", "rollout", "table_on", "train_step"]


class Metrics(NamedTuple):
    """Metrics of one step; float32 scalars.

    Attributes:
      improvement: Mean of ``1 + reward``: the share of the objective saved over the uniform proposal.
      matched: Share of searches that did at least as well as the reference.
      entropy: Entropy of the policy in nats per choice.
      gradient: Norm of the policy's gradient, before it is clipped.
      spread: Standard deviation of the advantages before they are standardised.
      value_error: Mean squared error of the value network; 0 if there is none.
      learning_rate: Learning rate of this step.
    """

    improvement: jax.Array
    matched: jax.Array
    entropy: jax.Array
    gradient: jax.Array
    spread: jax.Array
    value_error: jax.Array
    learning_rate: jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class TrainState:
    """The complete state of training: a run resumed from it continues bit for bit.

    Attributes:
      policy: Weights of the policy.
      value: Weights of the baseline; empty if it is not learned.
      policy_optimizer: Optax state of the policy's optimizer.
      value_optimizer: Optax state of the baseline's optimizer.
      step: int32 scalar, updates so far. Every random number is a function of it and the seed.
    """

    policy: Any
    value: Any
    policy_optimizer: Any
    value_optimizer: Any
    step: jax.Array


@dataclasses.dataclass(frozen=True)
class Learner:
    """The static, hashable part of a step; equal learners share their compiled programs.

    Attributes:
      config: Config of the run.
      implementation: Implementation of the simulator, as in `regal_jax.simulate.simulate`.
    """

    config: TrainConfig
    implementation: str | None = None

    def networks(self) -> tuple[Policy, Value]:
        """Policy and value network with their initial weights, made from the seed."""
        policy = Policy(self.config.policy, rngs=nnx.Rngs(self.config.seed))
        return policy, Value(self.config.policy, rngs=nnx.Rngs(self.config.seed + 1))

    @functools.cached_property
    def graphdefs(self) -> tuple[Any, Any]:
        """The networks without their weights."""
        policy, value = nnx.eval_shape(self.networks)
        return nnx.graphdef(policy), nnx.graphdef(value)

    @functools.cached_property
    def table(self) -> jax.Array:
        """The table of `regal_jax.policies.action_table`."""
        return action_table(self.config.policy)

    @property
    def learns_value(self) -> bool:
        """Whether there is a value network."""
        return self.config.optimizer.baseline is Baseline.LEARNED

    def schedule(self, step: jax.typing.ArrayLike) -> jax.Array:
        """Learning rate: warm-up, then a cosine down to a tenth."""
        o = self.config.optimizer
        rate = optax.warmup_cosine_decay_schedule(
            o.learning_rate / max(o.warmup, 1),
            o.learning_rate,
            min(o.warmup, o.steps - 1),
            o.steps,
            o.learning_rate / 10,
        )
        with jax.numpy_dtype_promotion("standard"):
            return jnp.asarray(rate(step), jnp.float32)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam on clipped gradients."""
        return clipped_adam(self.config.optimizer.clip, self.schedule)

    def init(self) -> TrainState:
        """The state before the first step."""
        policy, value = (nnx.state(network) for network in self.networks())
        if self.config.start:
            policy = nnx.state(self._given())
        value = value if self.learns_value else {}
        optimizer = self.optimizer()
        return TrainState(policy, value, optimizer.init(policy), optimizer.init(value), jnp.int32(0))

    def _given(self) -> Policy:
        """The policy that training begins with."""
        c = self.config
        file_stamp(c.start, "start", "give a file of weights, or leave it out")
        policy = load_policy(c.start, num_devices=c.policy.num_devices)
        given, asked = _settings(policy.config), _settings(c.policy)
        other = [name for name in asked if given[name] != asked[name]]
        if other:
            raise ConfigError(
                f"start: {c.start} has {other[0]} = {given[other[0]]!r}, the config {asked[other[0]]!r}; "
                "make policy the same"
            )
        return policy

    def update(self, gradient: Any, optimizer: Any, weights: Any) -> tuple[Any, Any]:
        """New weights, and the new state of the optimizer."""
        return updated(self.optimizer(), gradient, optimizer, weights)

    def searched(self, problem: Problem, keys: jax.Array, proposal: Proposal) -> jax.Array:
        """``[B]`` fitness that the guided search of each graph finds; for use under jit.

        Args:
          problem: ``B`` graphs.
          keys: ``[B]`` typed keys, consumed.
          proposal: From the actions for these graphs.
        """
        config = self.config
        encoding = encoding_of(config.task.encoding)
        return solve_traced(
            problem,
            keys,
            config.task.evaluations,
            objective=config.task.objective,
            proposal=encoding.proposal(problem, proposal),
            config=config.search,
            implementation=self.implementation,
            encoding=encoding,
        ).fitness

    def policy(self, state: TrainState) -> Policy:
        """The policy with the weights of ``state``."""
        return nnx.merge(self.graphdefs[0], state.policy)


def rollout(learner: Learner, pool: Pool, logits: Logits, table: jax.Array, key: jax.Array) -> Any:
    """Samples ``S`` actions for each graph and searches with them.

    Args:
      learner: The learner; static under jit.
      pool: ``B`` graphs.
      logits: Logits of the policy.
      table: From `regal_jax.policies.action_table`.
      key: Typed, consumed.

    Returns:
      Actions ``[S, B, N, A D + 1]`` and fitness ``[S, B]`` float32.
    """
    config, batch = learner.config, pool.size
    samples = config.optimizer.samples
    act, search = jax.random.split(key)
    keys = jax.vmap(keys_of, (0, None))(jax.random.split(act, samples), pool.identity)
    actions = jax.vmap(sample_action, (None, 0))(logits, keys)
    # All actions of a graph use the same random numbers, so that differences are due to the actions alone.
    searches = jnp.tile(keys_of(search, pool.identity), samples)
    problem = rows(pool.problem, jnp.tile(jnp.arange(batch, dtype=jnp.int32), samples))
    proposal = to_proposal(
        config.policy,
        table,
        actions.reshape(samples * batch, *actions.shape[2:]),
        problem,
        jax.tree.map(lambda x: jnp.tile(x, (samples, *[1] * (x.ndim - 1))), pool.prior),
    )
    return actions, learner.searched(problem, searches, proposal).reshape(samples, batch)


def _settings(config: PolicyConfig) -> dict[str, Any]:
    """The settings of a policy by name; those of its `ablation` have that prefix."""
    table = dataclasses.asdict(config)
    return table | {f"ablation.{name}": value for name, value in table.pop("ablation").items()}


def train_step(
    learner: Learner, mesh: Mesh, state: TrainState, pool: SpreadPool, key: jax.Array
) -> tuple[TrainState, Metrics]:
    """Chooses a batch, samples actions, searches with them, and improves the weights.

    The graphs of the pool and those of the batch are spread over the devices of ``mesh``. The results of each
    graph do not depend on the number of devices; only the order in which gradients are summed does.

    Args:
      learner: The learner; static under jit.
      mesh: Static, with one axis called `AXIS`; its number of devices must divide the batch.
      state: Donated.
      pool: Graphs from which the batch is chosen.
      key: Typed key of the whole run.
    """
    return _train_step(learner, mesh, state, pool, table_on(learner, mesh), key)


@functools.lru_cache(4)
def table_on(learner: Learner, mesh: Mesh) -> jax.Array:
    """The table of the learner on the devices of the mesh."""
    return everywhere(learner.table, mesh)


@program(static=(0, 1), donate=(2,))
def _train_step(
    learner: Learner, mesh: Mesh, state: TrainState, pool: SpreadPool, table: jax.Array, key: jax.Array
) -> tuple[TrainState, Metrics]:
    same = PartitionSpec()
    specs = (same, SpreadPool.specs(), same, same)
    step = on_mesh(functools.partial(_step, learner, mesh.size), mesh, specs, same)
    return step(state, pool, table, key)


def _step(
    learner: Learner, shards: int, state: TrainState, pool: SpreadPool, table: jax.Array, key: jax.Array
) -> tuple[TrainState, Metrics]:
    """`train_step` on one of ``shards`` devices."""
    o = learner.config.optimizer
    choose, act = jax.random.split(jax.random.fold_in(key, state.step))
    batch = _batch(choose, pool, o.batch, shards)
    logits, pull = jax.vjp(
        lambda w: nnx.merge(learner.graphdefs[0], w)(batch.features, batch.prior), state.policy
    )
    actions, fitness = rollout(learner, batch, logits, table, act)
    rewards = jax.vmap(reward, (1, 0, None), 1)(fitness, batch.reference, o.worst)
    values, pull_value = _values(learner, state, batch)
    advantages = rewards - values[None] if learner.learns_value else jax.vmap(leave_one_out, 1, 1)(rewards)
    spread = jnp.sqrt((_whole(advantages, shards) ** 2).mean())
    mask = batch.features.node_mask
    choices = _whole(mask.sum(axis=1) * (2 * actions.shape[-1]), shards).astype(jnp.float32).mean()
    # Advantages are per choice, like the entropy, so that one entropy weight serves graphs of all sizes.
    standard = standardised(advantages, spread) / choices if o.standardise else advantages
    bonus = o.entropy + (o.entropy_end - o.entropy) * state.step.astype(jnp.float32) / o.steps
    slope, nats = jax.grad(_loss, has_aux=True)(logits, actions, standard, mask, bonus)
    gradient = lax.pmean(pull(slope)[0], AXIS)
    error = values - rewards.mean(axis=0)
    policy, policy_optimizer = learner.update(gradient, state.policy_optimizer, state.policy)
    value, value_optimizer = state.value, state.value_optimizer
    if learner.learns_value:
        value_gradient = lax.pmean(pull_value(2 * error / error.size)[0], AXIS)
        value, value_optimizer = learner.update(value_gradient, value_optimizer, value)
    new = TrainState(policy, value, policy_optimizer, value_optimizer, state.step + 1)
    rewards = _whole(rewards, shards)
    metrics = Metrics(
        improvement=1 + rewards.mean(),
        matched=(rewards >= -1).astype(jnp.float32).mean(),
        entropy=_whole(nats, shards).mean(),
        gradient=optax.tree.norm(gradient),
        spread=spread,
        value_error=(_whole(error, shards) ** 2).mean() if learner.learns_value else jnp.float32(0),
        learning_rate=learner.schedule(state.step),
    )
    return new, metrics


def _batch(key: jax.Array, pool: SpreadPool, size: int, shards: int) -> Pool:
    """This device's part of ``size`` graphs of the pool, without repetition if there are enough."""
    order = jax.random.permutation(key, pool.size)
    batch = pool.chosen(jnp.resize(order, (size,)).astype(jnp.int32), shards)
    # Repetitions of a graph need random numbers of their own; equal ones would add no information.
    again = jnp.arange(size, dtype=jnp.uint32) // pool.size
    mine = again.reshape(shards, size // shards)[lax.axis_index(AXIS)]
    return dataclasses.replace(batch, identity=batch.identity.at[:, 1].add(mine))


def _values(learner: Learner, state: TrainState, batch: Pool) -> tuple[jax.Array, Any]:
    """``[B]`` values, and the function that maps their cotangent to a gradient."""
    if not learner.learns_value:
        return jnp.zeros(batch.size, jnp.float32), None
    return jax.vjp(
        lambda weights: nnx.merge(learner.graphdefs[1], weights)(batch.features, batch.prior), state.value
    )


def _loss(
    logits: Logits, actions: jax.Array, advantages: jax.Array, mask: jax.Array, bonus: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The loss, and ``[B]`` entropies."""
    log_probs = jax.vmap(log_prob, (None, 0, None))(logits, actions, mask)
    nats = entropy(logits, mask)
    return jax.vmap(reinforce_loss, 1)(log_probs, advantages).mean() - bonus * nats.mean(), nats


def _whole(x: jax.Array, shards: int) -> jax.Array:
    """``[..., B]`` values of all graphs, gathered from the devices so that all compute the same."""
    return lax.all_gather(x, AXIS, axis=x.ndim - 1, tiled=True) if shards > 1 else x
