"""The best candidates of a step of `regal_jax.ordering.beam`: those to keep, one for each set of ops."""

import enum
from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.ordering.frontier import Flow, States

__all__ = ["NONE", "Rule", "choose"]

NONE: Final = np.int32(2**31 - 1)
"""Index of what is no candidate, and peak of what is dropped nowhere."""


class Rule(enum.StrEnum):
    """Which candidate is best; ties go to the better parent, then to the op of the lowest index."""

    PROBABILITY = "probability"
    """The highest probability."""
    PEAK = "peak"
    """The lowest peak so far."""
    HELD = "held"
    """The least memory held after the last op, then the lowest peak so far."""


def choose(
    rule: Rule, meeting: int, flow: Flow, states: States, gain: jax.Array, step: jax.Array
) -> tuple[States, jax.Array, jax.Array, jax.Array, jax.Array]:
    """The best candidates of one graph.

    Returns:
      Their parents' states with the candidates' scores; ``[W]`` parents; ``[W]`` ops to run next, ``N`` where
      there is no candidate; whether too few candidates were compared; whether any set was dropped.
    """
    width, n = states.waiting.shape
    if rule is Rule.PROBABILITY:
        cost, index = _likeliest(flow, states, gain)
        missing, more = jnp.bool_(False), jnp.bool_(False)
    else:
        cost, (index, more) = None, _cheapest(rule, meeting, flow, states)
        missing = (index[width - 1] == NONE) & more
    going = step < flow.num_ops
    dropped = going & (more | (index[width:] < NONE).any())
    index = index[:width]
    some = (index < NONE) & going
    parent = jnp.where(some, index // n, jnp.arange(width, dtype=jnp.int32))
    op = jnp.where(some, index % n, n)
    following = jax.tree.map(lambda x: x[parent], states)
    score = following.score if cost is None else jnp.where(some, -cost[:width], following.score)
    valid = jnp.where(going, some, states.valid)
    return following._replace(valid=valid, score=score), parent, op, missing, dropped


def _likeliest(flow: Flow, states: States, gain: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Costs and indices (``parent * N + op``) ``[W R]`` of all candidates, the likeliest first.

    Those without an op, and duplicates of a set at an equal or higher peak, come last with index `NONE`.
    """
    op, index, peak, _ = _candidates(flow, states)
    cost = -(states.score[:, None] + gain)
    none = index == NONE
    # Entries without an op must not separate two candidates of the same set.
    words = jnp.where(none[..., None], jnp.uint32(2**32 - 1), states.words[:, None, :] ^ flow.zobrist[op])
    peak = jnp.where(none, NONE, peak)
    # Of equal sets the lowest peak comes first, then the lower cost, then the lower index.
    fields = (words[..., 0], words[..., 1], peak, cost, index)
    *words, _, cost, index = jax.lax.sort(tuple(x.reshape(-1) for x in fields), num_keys=5)
    alike = _alike(states, words, index)
    index = jnp.where(alike, NONE, index)
    cost, index = jax.lax.sort((jnp.where(index < NONE, cost, jnp.inf), index), num_keys=2)
    return cost, index


def _cheapest(rule: Rule, meeting: int, flow: Flow, states: States) -> tuple[jax.Array, jax.Array]:
    """``[meeting]`` indices (``parent * N + op``) of candidates, the best first; whether there are more.

    Candidates without an op, and those whose set a better one has, come last with index `NONE`.
    """
    n = states.waiting.shape[1]
    states = states._replace(ready=_residents_first(flow, states.ready))
    more = (states.valid[:, None] & (states.ready < n)).sum() > meeting
    if rule is Rule.PEAK:
        _, index, peak, _ = _candidates(flow, states._replace(ready=jnp.sort(states.ready, axis=1)))
        # Integers from 2**23 keep their order as bits of a float; `top_k` takes the first of equal ones.
        key = jax.lax.bitcast_convert_type(peak + jnp.int32(2**23), jnp.float32)
        key = jnp.where(index < NONE, -key, -jnp.inf).reshape(-1)
        index = index.reshape(-1)[jax.lax.top_k(key, meeting)[1]]
    else:
        _, index, peak, held = _candidates(flow, states)
        held = jnp.where(index < NONE, held, NONE)
        fields = tuple(x.reshape(-1) for x in (held, peak, index))
        index = jax.lax.sort(fields, num_keys=3)[2][:meeting]
    words = states.words[jnp.where(index < NONE, index // n, 0)] ^ flow.zobrist[index % n]
    rank = jnp.arange(meeting, dtype=jnp.int32)
    *words, rank, index = jax.lax.sort((words[:, 0], words[:, 1], rank, index), num_keys=3)
    last = _alike(states, words, index) | (index == NONE)
    _, index = jax.lax.sort((jnp.where(last, NONE, rank), jnp.where(last, NONE, index)), num_keys=1)
    return index, more


def _residents_first(flow: Flow, ready: jax.Array) -> jax.Array:
    """``[W, R]`` ready ops; where residents are ready, the one of the lowest index alone."""
    n = flow.resident.shape[0]
    resident = flow.resident.at[ready].get(mode="fill", fill_value=False)
    first = jnp.where(resident, ready, n).min(axis=1, keepdims=True)
    return jnp.where((first < n) & (ready != first), n, ready)


def _alike(states: States, words: Sequence[jax.Array], index: jax.Array) -> jax.Array:
    """Whether each candidate has the same set as the one before it, for candidates sorted by words.

    Words may agree by chance. The sets themselves are compared, so that none is ever lost.
    """
    n = states.waiting.shape[1]
    parent, op = jnp.where(index < NONE, index // n, 0), index % n
    place = jnp.arange(states.done.shape[1], dtype=jnp.int32)
    bit = jnp.uint32(1) << (op % 32).astype(jnp.uint32)
    done = states.done[parent] | jnp.where(op[:, None] // 32 == place[None], bit[:, None], jnp.uint32(0))
    alike = (words[0][1:] == words[0][:-1]) & (words[1][1:] == words[1][:-1])
    alike &= (done[1:] == done[:-1]).all(axis=1)
    # An index without an op has no set.
    alike &= (index[1:] < NONE) & (index[:-1] < NONE)
    return jnp.pad(alike, (1, 0))


def _candidates(flow: Flow, states: States) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """``[W, R]`` op, index (`NONE` where no op is ready), peak so far, and units held after the op."""
    width, n = states.waiting.shape
    op = jnp.minimum(states.ready, n - 1)
    real = states.valid[:, None] & (states.ready < n)
    peak = jnp.maximum(states.peak[:, None], states.held[:, None] + flow.need[op])
    held = states.held[:, None] + flow.change[op] - jnp.take_along_axis(states.saving, op, axis=1)
    index = jnp.arange(width, dtype=jnp.int32)[:, None] * n + op
    return op, jnp.where(real, index, NONE), peak, held
