"""The states and actions of the GFlowNet: partial schedules, to which an action adds an op.

All functions take one state; callers use ``jax.vmap`` for many.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.gflownet.inputs import ScheduleInputs
from regal_jax.ordering.relations import Relation

__all__ = [
    "ScheduleState",
    "add_op",
    "backward_mask",
    "forward_mask",
    "initial_state",
    "lookahead_features",
    "precedence",
    "removable",
    "remove_op",
    "speedup",
    "state_features",
]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class ScheduleState:
    """A partial schedule: a chain of ops for each device.

    Several orders of actions lead to the same state. Devices are distinguished: schedules that differ only in
    the numbering of the devices are different states.

    Attributes:
      device: ``[N]`` int32, devices of scheduled ops; -1 for the others.
      start: ``[N]`` float32, start times; 0 for ops that are not scheduled.
      finish: ``[N]`` float32, finish times; 0 for ops that are not scheduled.
      previous: ``[N]`` int32, the op before it in the chain of its device; ``N`` if there is none.
      waiting: ``[N]`` int32, number of direct predecessors that are not scheduled.
      followers: ``[N]`` int32, number of direct successors that are scheduled.
      free: ``[D]`` float32, the time at which the last op of each device's chain ends.
      last: ``[D]`` int32, the last op of each device's chain; ``N`` for an empty one.
      count: int32 scalar, number of scheduled ops.
    """

    device: jax.Array
    start: jax.Array
    finish: jax.Array
    previous: jax.Array
    waiting: jax.Array
    followers: jax.Array
    free: jax.Array
    last: jax.Array
    count: jax.Array


def precedence(inputs: ScheduleInputs) -> jax.Array:
    """``[N, N]`` bool: whether the op of the column is a direct predecessor of that of the row."""
    relations = jnp.asarray(inputs.relations)
    reduced = relations == np.uint8(Relation.REDUCED_PREDECESSOR)
    return reduced | (relations == np.uint8(Relation.OTHER_PREDECESSOR))


def initial_state(inputs: ScheduleInputs) -> ScheduleState:
    """The state ``s_0``, in which nothing is scheduled."""
    n, d = inputs.shape
    return ScheduleState(
        device=jnp.full(n, -1, jnp.int32),
        start=jnp.zeros(n, jnp.float32),
        finish=jnp.zeros(n, jnp.float32),
        previous=jnp.full(n, n, jnp.int32),
        waiting=precedence(inputs).sum(axis=1, dtype=jnp.int32),
        followers=jnp.zeros(n, jnp.int32),
        free=jnp.zeros(d, jnp.float32),
        last=jnp.full(d, n, jnp.int32),
        count=jnp.int32(0),
    )


def forward_mask(inputs: ScheduleInputs, state: ScheduleState) -> jax.Array:
    """``[N, D]`` bool: whether the op may be added to the device.

    An op may be added if it is not scheduled and all of its direct predecessors are. An op of a colocation
    group may be added only to the device of the others.
    """
    n, d = inputs.shape
    ready = (state.device < 0) & (state.waiting == 0)
    leader = jnp.asarray(inputs.leader)
    group = jnp.full(n, -1, jnp.int32).at[leader].max(state.device)[leader][:, None]
    fits = (group < 0) | (group == jnp.arange(d, dtype=jnp.int32)[None])
    return jnp.asarray(inputs.allowed) & fits & ready[:, None]


def removable(state: ScheduleState) -> jax.Array:
    """``[N]`` bool: whether the op may have been added last.

    This holds if it is the last of its device's chain and none of its successors is scheduled.
    """
    n = state.device.shape[0]
    ends = jnp.zeros(n, jnp.bool_).at[state.last].set(True, mode="drop")
    return ends & (state.followers == 0)


def backward_mask(state: ScheduleState) -> jax.Array:
    """``[N, D]`` bool: whether adding the op to the device may have been the last action."""
    devices = jnp.arange(state.free.shape[0], dtype=jnp.int32)
    return removable(state)[:, None] & (state.device[:, None] == devices[None])


def add_op(
    inputs: ScheduleInputs, before: jax.Array, state: ScheduleState, op: jax.Array, device: jax.Array
) -> ScheduleState:
    """The next state, with ``op`` at the end of the chain of ``device``.

    Args:
      inputs: The graph.
      before: From `precedence`.
      state: The state.
      op: int32 scalar, an op that `forward_mask` allows on ``device``; ``N`` changes nothing.
      device: int32 scalar.
    """
    n, d = inputs.shape
    column = before.at[:, op].get(mode="fill", fill_value=False).astype(jnp.int32)
    row = before.at[op].get(mode="fill", fill_value=False)
    ready = jnp.where(row, state.finish, 0).max(initial=0)
    start = jnp.maximum(state.free[device], ready)
    runtime = jnp.asarray(inputs.runtime).at[op, device].get(mode="fill", fill_value=0)
    chain = jnp.where(op < n, device, d)  # Indices out of range are dropped.
    return ScheduleState(
        device=state.device.at[op].set(device, mode="drop"),
        start=state.start.at[op].set(start, mode="drop"),
        finish=state.finish.at[op].set(start + runtime, mode="drop"),
        previous=state.previous.at[op].set(state.last[device], mode="drop"),
        waiting=state.waiting - column,
        followers=state.followers + row.astype(jnp.int32),
        free=state.free.at[chain].set(start + runtime, mode="drop"),
        last=state.last.at[chain].set(op, mode="drop"),
        count=state.count + (op < n).astype(jnp.int32),
    )


def remove_op(
    inputs: ScheduleInputs, before: jax.Array, state: ScheduleState, op: jax.Array
) -> ScheduleState:
    """The state before ``op`` was added; the exact inverse of `add_op`.

    Args:
      inputs: The graph.
      before: From `precedence`.
      state: The state.
      op: int32 scalar, an op that `removable` allows; ``N`` changes nothing.
    """
    n, d = inputs.shape
    device = state.device.at[op].get(mode="fill", fill_value=d)
    previous = state.previous.at[op].get(mode="fill", fill_value=n)
    row = before.at[op].get(mode="fill", fill_value=False)
    return ScheduleState(
        device=state.device.at[op].set(-1, mode="drop"),
        start=state.start.at[op].set(0, mode="drop"),
        finish=state.finish.at[op].set(0, mode="drop"),
        previous=state.previous.at[op].set(n, mode="drop"),
        waiting=state.waiting + before.at[:, op].get(mode="fill", fill_value=False).astype(jnp.int32),
        followers=state.followers - row.astype(jnp.int32),
        free=state.free.at[device].set(state.finish.at[previous].get(mode="fill", fill_value=0), mode="drop"),
        last=state.last.at[device].set(previous, mode="drop"),
        count=state.count - (op < n).astype(jnp.int32),
    )


def state_features(inputs: ScheduleInputs, state: ScheduleState) -> jax.Array:
    """``[N, 5 + D]`` float32, see `STATE_FEATURES`; zeros for padding.

    The runtime and the start time are relative to the longest runtime. The start time of an op that is not
    scheduled is -1. A runtime that depends on the device is replaced by the mean over the allowed devices.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, appendix E.1.
    """
    allowed, longest = jnp.asarray(inputs.allowed), jnp.asarray(inputs.longest)
    _, d = inputs.shape
    number = allowed.sum(axis=1, dtype=jnp.float32)
    runtime = jnp.where(allowed, inputs.runtime, 0).sum(axis=1) / jnp.maximum(number, 1)
    scheduled = state.device >= 0
    columns = (
        runtime / longest,
        jnp.where(scheduled, state.start / longest, -1),
        *(state.device == k for k in range(d)),
        forward_mask(inputs, state).any(axis=1),
        removable(state),
        scheduled,
    )
    features = jnp.stack([column.astype(jnp.float32) for column in columns], axis=1)
    return jnp.where(number[:, None] > 0, features, 0)


def lookahead_features(inputs: ScheduleInputs, before: jax.Array, state: ScheduleState) -> jax.Array:
    """``[N, D + 1]`` float32, features that the paper does not have.

    The first ``D`` columns are the delays of a ready op on each device after the time at which the first
    device is free, and 0 for other ops. The last column is the longest path from the start of each op. Both
    are relative to the longest runtime.

    Args:
      inputs: The graph.
      before: From `precedence`.
      state: The state.
    """
    ready = jnp.where(before, state.finish[None], 0).max(axis=1)
    used = jnp.asarray(inputs.allowed).any(axis=0)
    first = jnp.where(used, state.free, jnp.inf).min()
    start = jnp.maximum(state.free[None], ready[:, None]) - jnp.where(jnp.isfinite(first), first, 0)
    start = jnp.where(forward_mask(inputs, state), start, 0)
    return jnp.concatenate([start, jnp.asarray(inputs.path)[:, None]], axis=1) / inputs.longest


def speedup(inputs: ScheduleInputs, state: ScheduleState) -> jax.Array:
    """``U``, float32 scalar: the work over the latest finish (section 2.3); 1 where no op takes time."""
    makespan = state.free.max()
    return jnp.where(makespan > 0, inputs.work / jnp.where(makespan > 0, makespan, 1), 1)
