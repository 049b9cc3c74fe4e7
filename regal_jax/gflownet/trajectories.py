"""Trajectories: sampled by a policy, and their probabilities forward and backward."""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from regal_jax.gflownet.environment import (
    ScheduleState,
    add_op,
    forward_mask,
    initial_state,
    precedence,
    removable,
    speedup,
)
from regal_jax.gflownet.inputs import ScheduleInputs
from regal_jax.gflownet.networks import Scores
from regal_jax.ordering.precedence import open_uniform
from regal_jax.search.draws import words

__all__ = ["PolicyFn", "StepTerms", "Trajectories", "sample_trajectories", "trajectory_terms"]

PolicyFn = Callable[[ScheduleInputs, ScheduleState, jax.Array], Scores]
"""``(inputs, states of P trajectories, log temperature) -> Scores``, such as a `SchedulePolicy`."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Trajectories:
    """``P`` trajectories of one graph, each of ``N`` actions.

    Attributes:
      ops: ``[P, N]`` int32, the op that each action adds; ``N`` after the last action.
      devices: ``[P, N]`` int32, the device to which it is added; 0 after the last action.
      speedup: ``[P]`` float32, speed-ups of the complete schedules.
    """

    ops: jax.Array
    devices: jax.Array
    speedup: jax.Array


class StepTerms(NamedTuple):
    """Terms of the losses for ``P`` trajectories, at each of their ``N`` actions; 0 after the last one.

    Attributes:
      forward: ``[P, N]`` float32, ``log P_F(s_t | s_{t-1})``.
      backward: ``[P, N]`` float32, ``log P_B(s_{t-1} | s_t)``.
      entropy: ``[P, N]`` float32, entropy of ``P_F( . | s_{t-1})`` in nats.
      value: ``[P, N]`` float32, the estimated return of ``s_{t-1}``.
    """

    forward: jax.Array
    backward: jax.Array
    entropy: jax.Array
    value: jax.Array


def sample_trajectories(
    policy: PolicyFn, inputs: ScheduleInputs, seeds: jax.Array, log_sigma: jax.Array
) -> Trajectories:
    """Draws complete schedules together, with one call of the policy per step.

    A trajectory depends only on its own seed, and its draws do not depend on the padding.

    Args:
      policy: The policy.
      inputs: One graph.
      seeds: ``[P, 2]`` uint32, consumed; see `regal_jax.search.draws.seeds_of`.
      log_sigma: float32 scalar, the logarithm of the temperature.
    """
    (n, d), before = inputs.shape, precedence(inputs)
    count = seeds.shape[0]
    masks = jax.vmap(forward_mask, (None, 0))
    add = jax.vmap(add_op, (None, None, 0, 0, 0))

    def step(
        now: jax.Array, carry: tuple[ScheduleState, jax.Array, jax.Array]
    ) -> tuple[ScheduleState, jax.Array, jax.Array]:
        states, ops, devices = carry
        valid = masks(inputs, states).reshape(count, n * d)
        logits = policy(inputs, states, log_sigma).forward.reshape(count, n * d)
        noise = -jnp.log(-jnp.log(open_uniform(words(seeds, n * d, now))))
        action = jnp.where(valid, logits + noise, -jnp.inf).argmax(axis=1).astype(jnp.int32)
        op, device = action // d, action % d
        states = add(inputs, before, states, op, device)
        return states, ops.at[now].set(op), devices.at[now].set(device)

    none = jnp.full((n, count), n, jnp.int32)
    # One step per op; padding takes none.
    first = _many(inputs, count), none, jnp.zeros_like(none)
    states, ops, devices = lax.fori_loop(jnp.int32(0), inputs.num_ops, step, first)
    return Trajectories(ops.T, devices.T, jax.vmap(speedup, (None, 0))(inputs, states))


def trajectory_terms(
    policy: PolicyFn, inputs: ScheduleInputs, trajectories: Trajectories, log_sigma: jax.Array
) -> StepTerms:
    """Log-probabilities of trajectories under a policy, differentiable with respect to its weights.

    The backward pass stores only the states and calls the policy again, step by step.

    Args:
      policy: The policy.
      inputs: One graph.
      trajectories: ``P`` complete trajectories of it.
      log_sigma: float32 scalar, the logarithm of the temperature.
    """
    (n, d), before = inputs.shape, precedence(inputs)
    count = trajectories.ops.shape[0]
    masks = jax.vmap(forward_mask, (None, 0))
    add = jax.vmap(add_op, (None, None, 0, 0, 0))

    def step(
        states: ScheduleState, actions: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[ScheduleState, StepTerms]:
        op, device, undone = actions
        scores = policy(inputs, states, log_sigma)
        ahead = _log_shares(scores.forward.reshape(count, n * d), masks(inputs, states).reshape(count, n * d))
        behind = _log_shares(scores.backward, jax.vmap(removable)(states))
        some = op < n
        entropy = -jnp.where(jnp.isfinite(ahead), jnp.exp(ahead) * jnp.where(ahead > -jnp.inf, ahead, 0), 0)
        terms = StepTerms(
            forward=jnp.where(some, _taken(ahead, op * d + device), 0),
            backward=jnp.where(undone < n, _taken(behind, undone), 0),
            entropy=jnp.where(some, entropy.sum(axis=1), 0),
            value=jnp.where(some, scores.value, 0),
        )
        return add(inputs, before, states, op, device), terms

    none = jnp.full((1, count), n, jnp.int32)
    ops, devices = trajectories.ops.T, trajectories.devices.T
    # One step more than there are actions, because the last state has a backward probability, too.
    actions = (
        jnp.concatenate([ops, none]),
        jnp.concatenate([devices, jnp.zeros_like(none)]),
        jnp.concatenate([none, ops]),
    )
    _, terms = lax.scan(jax.checkpoint(step, prevent_cse=False), _many(inputs, count), actions)
    return StepTerms(terms.forward[:-1].T, terms.backward[1:].T, terms.entropy[:-1].T, terms.value[:-1].T)


def _many(inputs: ScheduleInputs, count: int) -> ScheduleState:
    """``count`` initial states."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (count, *leaf.shape)), initial_state(inputs))


def _taken(log_shares: jax.Array, action: jax.Array) -> jax.Array:
    """``[P]``, the entry of each row at its action; the last entry if the action is out of range."""
    action = jnp.minimum(action, log_shares.shape[1] - 1)
    return jnp.take_along_axis(log_shares, action[:, None], axis=1, mode="clip")[:, 0]


def _log_shares(logits: jax.Array, valid: jax.Array) -> jax.Array:
    """``[P, A]`` log-probabilities of the valid actions, minus infinity for the others."""
    logits = jnp.where(valid, logits, -jnp.inf)
    most = lax.stop_gradient(logits.max(axis=1, keepdims=True))
    # Infinities must not enter a difference where no action is valid.
    most = jnp.where(jnp.isfinite(most), most, 0)
    total = jnp.exp(logits - most).sum(axis=1, keepdims=True)
    return logits - most - jnp.log(jnp.where(total > 0, total, 1))
