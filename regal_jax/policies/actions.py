"""Actions: the choices of a policy for every key, and their probabilities.

All functions take ``B`` graphs and one action each; vmap over keys or actions for ``S`` of them.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from regal_jax.encoding import Proposal, gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.policies.choices import Transfers
from regal_jax.policies.config import MAX_ACTIONS, PolicyConfig
from regal_jax.policies.distributions import action_means
from regal_jax.policies.networks import Logits, check_prior, within
from regal_jax.policies.priors import Prior
from regal_jax.problem import Problem
from regal_jax.search.draws import seeds_of, words

__all__ = [
    "Action",
    "entropy",
    "log_prob",
    "most_likely",
    "offset_around",
    "placement_entropy",
    "sample_action",
    "to_proposal",
]

Action = jax.Array
"""``[B, N, A D + 1]`` uint8: ``i * K2 + j`` for the first choice ``i`` and the second ``j``."""


def sample_action(logits: Logits, keys: jax.Array) -> Action:
    """Draws every choice independently.

    A choice depends only on its logits, the key of its graph and the number of its op, so padding and other
    graphs do not change it. (Keys of JAX's ``rbg`` are an exception: they draw for a batch as a whole.)

    Args:
      logits: From a `Policy`.
      keys: ``[B]`` typed keys, consumed.
    """
    batch, n, d, _ = logits.means.shape
    bits = words(seeds_of(keys), n * d * 2).reshape(batch, n, d, 2)
    # A float32 in [0, 1) holds 24 bits.
    uniform = (bits >> 8).astype(jnp.float32) * 2.0**-24
    return _combine(logits, [_draw(x, uniform[..., c]) for c, x in enumerate(logits)])


def most_likely(logits: Logits) -> Action:
    """The most probable choice everywhere, the first of several equals."""
    return _combine(logits, [jnp.argmax(x, axis=-1) for x in logits])


def log_prob(logits: Logits, action: Action, node_mask: jax.Array) -> jax.Array:
    """Log-probability of an action: the sum over all real ops, their keys and both choices.

    Args:
      logits: From a `Policy`.
      action: From `sample_action`.
      node_mask: ``[B, N]`` bool.

    Returns:
      ``[B]`` float32, in nats.
    """
    columns = logits.variances.shape[-1]
    index = action.astype(jnp.int32)
    chosen = [
        _pick(jax.nn.log_softmax(x), i)
        for x, i in zip(logits, (index // columns, index % columns), strict=True)
    ]
    return _sum_real(chosen[0] + chosen[1], node_mask)


def entropy(logits: Logits, node_mask: jax.Array) -> jax.Array:
    """Entropy of the policy per choice: the mean over real ops, their keys and both choices.

    The entropy of the whole action is this times ``2 (A D + 1)`` times the number of ops.

    Args:
      logits: From a `Policy`.
      node_mask: ``[B, N]`` bool.

    Returns:
      ``[B]`` float32, in nats, from 0 to the mean of ``log(K1)`` and ``log(K2)``.
    """
    each = [-(jax.nn.softmax(x) * jax.nn.log_softmax(x)).sum(axis=-1) for x in logits]
    choices = node_mask.sum(axis=1).astype(jnp.float32) * (2 * each[0].shape[-1])
    return _sum_real(each[0] + each[1], node_mask) / choices


def placement_entropy(action: np.ndarray) -> float:
    """Entropy of the empirical distribution of the actions for the affinities of one graph.

    It is 0 if all actions are equal and at most ``log(K)`` for ``K`` actions. (`entropy` is that of the
    policy; this is that of one sample.)

    Args:
      action: ``[N, A D]``, the action for each affinity of each real op.

    Returns:
      The entropy in nats.

    References:
      REGAL, ICLR 2020, "Graph-dependent policy", Fig. 4a.
    """
    counts = np.unique(action, return_counts=True)[1]
    if not counts.size:
        return 0.0
    share = counts / counts.sum()
    return float(-(share * np.log(share)).sum()) + 0.0


def to_proposal(
    config: PolicyConfig,
    table: jax.Array,
    action: Action,
    problem: Problem,
    prior: Prior | None = None,
) -> Proposal:
    """The proposal that an action stands for.

    Args:
      config: Config of the policy.
      table: ``[K, Q]``, from `action_table`.
      action: ``[B, N, A D + 1]``.
      problem: The graphs, padded as the features were.
      prior: From `make_inputs`: the places from which ops and transfers move. Only a policy with a reach
        needs it.

    Raises:
      ConfigError: Action, table, prior and problem do not match.
    """
    shapes = gene_shapes(problem)
    need = (
        problem.num_graphs,
        shapes["affinity"].shape[0],
        config.num_placements * problem.num_devices + 1,
    )
    if action.shape != need:
        raise ConfigError(
            f"to_proposal: the action has shape {action.shape}, the problem needs {need}; make features and "
            "problem of the same graphs, bucket and number of devices"
        )
    if table.shape[0] != config.num_actions:
        raise ConfigError(
            f"to_proposal: the table has {table.shape[0]} rows for {config.num_actions} actions; "
            "make it with action_table(config)"
        )
    if config.reach:
        if prior is None:
            raise ConfigError("to_proposal: give the prior, from make_inputs, of a policy with a reach")
        check_prior(config, prior, need[:2])
    table = jnp.broadcast_to(table[None], (need[0], *table.shape))
    transfers = shapes["transfer_priority"].shape[0]
    scale = offset = sent = late = None
    if config.reach and prior is not None:
        # Draws of 0 and 1 give places that are twice the reach apart.
        scale = jnp.minimum(2 * config.reach / problem.num_ops.astype(jnp.float32), 1)
        offset = offset_around(within(config, jnp.asarray(prior.order)), scale)
        if transfers and config.transfers is Transfers.SCHEDULE:
            sent, late = _as_scheduled(action, problem, scale, within(config, jnp.asarray(prior.transfers)))
    if transfers and sent is None and config.transfers is not Transfers.UNIFORM:
        sent, late = _sent(config, action, problem, scale, offset)
    return Proposal(
        table, action, transfers, config.guided_share, sent, config.num_placements, scale, offset, late
    )


def _scaled(units: jax.Array, scale: jax.Array | None) -> jax.Array:
    return units if scale is None else jnp.floor(units.astype(jnp.float32) * scale).astype(jnp.int32)


def offset_around(place: jax.Array, scale: jax.Array) -> jax.Array:
    """``[B, ...]`` offsets that move scaled draws from around 0.5 to around a place."""
    half = _scaled(jnp.int32(32768), scale)
    return jnp.floor(place * 65536).astype(jnp.int32) - half.reshape(-1, *[1] * (place.ndim - 1))


def _as_scheduled(
    action: jax.Array, problem: Problem, scale: jax.Array, sent: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The result of `_sent` for `Transfers.SCHEDULE`, ``[B, T, D]``: around a place, like the producer."""
    producer = problem.tensor_op[..., None]
    late = jnp.take_along_axis(offset_around(sent, scale), producer, axis=1, mode="clip")
    index = jnp.take_along_axis(action[:, :, -1:], producer, axis=1, mode="clip")
    return jnp.broadcast_to(index, late.shape), late


def _sent(
    config: PolicyConfig,
    action: jax.Array,
    problem: Problem,
    scale: jax.Array | None,
    offset: jax.Array | None,
) -> tuple[jax.Array, jax.Array | None]:
    """``[B, T, A D]`` or ``[B, T, 1]`` distributions of transfers, and offsets, by `Transfers`.

    A distribution is encoded by its mean, in units of 2**-16, with the number of its action in the lower
    bits. So the greatest number is the most urgent.
    """
    wide = None if scale is None else scale[:, None]
    choice = action[:, :, -1].astype(jnp.int32)
    mean = _scaled(action_means(config)[choice], wide)
    if offset is not None:
        mean = jnp.clip(mean + offset, 0, 65535)
    urgency = mean * MAX_ACTIONS + choice
    own = jnp.take_along_axis(urgency, problem.tensor_op, axis=1, mode="clip")[..., None]
    each = urgency[..., None]
    if config.transfers is Transfers.READER_THERE:
        each = jnp.where(_likeliest(config, action), each, -1)
    read = jnp.take_along_axis(each, problem.successor[..., None], axis=1, mode="clip")
    none = jnp.full((*own.shape[:2], read.shape[-1]), -1, jnp.int32)
    most = jax.vmap(lambda start, via, row: start.at[via].max(row, mode="drop"))(none, problem.via, read)
    if config.transfers is Transfers.READER_THERE:
        # On devices where no reader is likely, the most urgent reader counts.
        there = most.reshape(*own.shape[:2], config.num_placements, -1)
        most = jnp.where(there < 0, there.max(axis=-1, keepdims=True), there).reshape(most.shape)
    # A tensor without readers, including padding, is never sent; the value of its producer serves.
    most = jnp.where(most < 0, own, most)
    index, mean = most % MAX_ACTIONS, most // MAX_ACTIONS
    if config.transfers is Transfers.MIDWAY:
        mean = (mean + own // MAX_ACTIONS) // 2
    elif offset is None:
        return index.astype(jnp.uint8), None
    around = _scaled(action_means(config)[index], None if wide is None else wide[..., None])
    return index.astype(jnp.uint8), mean - around


def _likeliest(config: PolicyConfig, action: jax.Array) -> jax.Array:
    """``[B, N, A D]`` bool, whether the device has the op's greatest mean affinity in that placement."""
    affinity = action_means(config)[action[:, :, :-1]]
    each = affinity.reshape(*action.shape[:2], config.num_placements, -1)
    return (each == each.max(axis=-1, keepdims=True)).reshape(affinity.shape)


def _combine(logits: Logits, choices: list[jax.Array]) -> Action:
    return (choices[0] * logits.variances.shape[-1] + choices[1]).astype(jnp.uint8)


def _draw(logits: jax.Array, uniform: jax.Array) -> jax.Array:
    """``[...]`` int32 choices from ``[..., K]`` logits, by inversion of ``[...]`` uniform draws."""
    weight = jnp.exp(logits - logits.max(axis=-1, keepdims=True))
    # Sums that are unrolled in Python compile to one loop over all draws, which is faster than `jnp.cumsum`.
    totals = list(itertools.accumulate(weight[..., k] for k in range(logits.shape[-1])))
    below = uniform * totals[-1]
    # The last sum is left out, since rounding may leave it below the draw.
    passed = [(below >= total).astype(jnp.int32) for total in totals[:-1]]
    return sum(passed, jnp.zeros(uniform.shape, jnp.int32))


def _pick(values: jax.Array, index: jax.Array) -> jax.Array:
    """Entries of ``[..., K]`` at ``[...]``, by a mask since the gradient of a gather is a scatter."""
    at = lax.broadcasted_iota(jnp.int32, values.shape, values.ndim - 1)
    return jnp.where(at == index[..., None], values, 0).sum(axis=-1)


def _sum_real(values: jax.Array, node_mask: jax.Array) -> jax.Array:
    """``[B]`` sums of ``[B, N, A D + 1]`` over real ops."""
    return jnp.where(jnp.asarray(node_mask)[:, :, None], values, 0).sum(axis=(1, 2))
