"""Attention of every op to the ops that have a relation to it, for many heads.

Two functions have the same results up to rounding. `attention` computes the scores of all pairs of ops for
all heads and has a gradient that saves memory. `attention_on_cpu` computes fewer scores, in blocks that fit
the caches of a CPU.
"""

from collections.abc import Callable
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from regal_jax.ordering.relations import Relation

__all__ = ["attention", "attention_on_cpu", "products", "sums"]

_SCORES: Final = 2**26
"""Largest number of scores computed at once: 256 MiB. If there are more, heads are computed in groups."""
_BLOCK: Final = 2**21
"""Largest number of scores of a block of rows: 8 MiB."""
_SLOPE: Final = 0.2
"""Slope of the leaky ReLU in the scores of a GAT, as in its paper."""
_BEFORE: Final = (Relation.REDUCED_PREDECESSOR, Relation.OTHER_PREDECESSOR)
_AFTER: Final = (Relation.REDUCED_SUCCESSOR, Relation.OTHER_SUCCESSOR)

_Heads = tuple[jax.Array, ...]


def products(queries: jax.Array, keys: jax.Array) -> jax.Array:
    """``[H, B, N, N]`` scores."""
    return jnp.einsum("hbic,hbjc->hbij", queries, keys)


def sums(receiver: jax.Array, sender: jax.Array) -> jax.Array:
    """``[H, B, N, N]`` scores."""
    return jax.nn.leaky_relu(receiver[:, :, :, None] + sender[:, :, None], _SLOPE)


def attention(
    score: Callable[..., jax.Array], ends: _Heads, values: jax.Array, codes: tuple[int, ...], pairs: jax.Array
) -> jax.Array:
    """``[B, N, H * C]`` output of all heads.

    Scores dominate memory. Therefore only some heads are computed together, and the backward pass recomputes
    the scores instead of storing them.

    Args:
      score: Maps ``ends`` to scores ``[H, B, N, N]``.
      ends: ``[H, B, N, ...]`` each: of the op that attends, and of the one attended to.
      values: ``[H, B, N, C]``.
      codes: ``[H]``: a head attends to the pairs that have its code.
      pairs: ``[B, N, N]`` uint8, or ``[1, N, N]``.
    """
    heads, batch, n, size = values.shape

    @jax.checkpoint
    def some(arrays: tuple[_Heads, jax.Array, jax.Array]) -> jax.Array:
        ends, values, code = arrays
        seen = pairs[None] == code[:, None, None, None]
        return _collected(score(*ends), seen, values)

    arrays = (ends, values, jnp.asarray(codes, jnp.uint8))
    together = _together(heads, batch * n * n)
    if together == heads:
        found = some(arrays)
    else:
        turns = jax.tree.map(lambda a: a.reshape(heads // together, together, *a.shape[1:]), arrays)
        found = lax.map(some, turns).reshape(values.shape)
    return jnp.moveaxis(found, 0, 2).reshape(batch, n, heads * size)


def _together(heads: int, scores: int) -> int:
    """The largest number of heads that divides ``heads`` and whose scores fit the limit; at least one."""
    fit = [part for part in range(1, heads + 1) if heads % part == 0 and part * scores <= _SCORES]
    return max(fit, default=1)


def _collected(scores: jax.Array, seen: jax.Array, values: jax.Array) -> jax.Array:
    """``[H, B, N, C]``: means of values by the softmax of the scores seen; zeros where none is seen."""
    weights = _weights(scores, seen)
    total = weights.sum(axis=-1)[..., None]
    collected = jnp.einsum("hbij,hbjc->hbic", weights, values)
    return collected / jnp.where(total > 0, total, 1)


def _weights(scores: jax.Array, seen: jax.Array) -> jax.Array:
    """``[H, B, N, N]`` weights whose shares of a row's sum are the softmax; 0 where nothing is seen."""
    scores = jnp.where(seen, scores, -jnp.inf)
    highest = lax.stop_gradient(scores.max(axis=-1, keepdims=True))
    # Infinities must not enter a difference; exp(-inf) is 0 and has the gradient 0.
    return jnp.exp(scores - jnp.where(jnp.isfinite(highest), highest, 0))


def attention_on_cpu(
    score: Callable[..., jax.Array],
    ends: _Heads,
    values: jax.Array,
    codes: tuple[int, ...],
    pairs: jax.Array,
    edges: jax.Array | None,
) -> jax.Array:
    """``[B, N, H * C]`` output of all heads, as `attention`.

    Args:
      score: Maps ``ends`` to scores ``[H, B, N, N]``; `products` where there are edges.
      ends: ``[H, B, N, ...]`` each: of the op that attends, and of the one attended to.
      values: ``[H, B, N, C]``.
      codes: ``[H]``: a head attends to the pairs that have its code.
      pairs: ``[B, N, N]`` uint8.
      edges: As in `regal_jax.ordering.OrderInputs`, where ``pairs`` are relations: heads that attend to
        edges read no other pairs. ``None`` if all heads read all pairs.
    """
    heads, batch, n, size = values.shape
    along = () if edges is None else (_BEFORE, _AFTER)
    groups = [[h for h in range(heads) if codes[h] in kinds] for kinds in along]
    rest = [h for h in range(heads) if not any(h in group for group in groups)]
    found = []
    for group, way in zip(groups, (1, -1), strict=False):
        if group and edges is not None:
            queries, keys, some = (_picked(a, group) for a in (*ends, values))
            listed = [codes[h] for h in group]
            found.append(_by_edges(queries, keys, some, listed, pairs, edges[:, :, ::way]))
    if rest:
        some = tuple(_picked(a, rest) for a in ends)
        found.append(_by_rows(score, some, _picked(values, rest), [codes[h] for h in rest], pairs))
    order = [h for group in (*groups, rest) for h in group]
    every = _picked(jnp.concatenate(found), [order.index(h) for h in range(heads)])
    return jnp.moveaxis(every, 0, 2).reshape(batch, n, heads * size)


def _picked(array: jax.Array, places: list[int]) -> jax.Array:
    """Rows of an array, by slices, because gathers are slower on CPUs."""
    return jnp.concatenate([lax.slice_in_dim(array, place, place + 1) for place in places])


def _by_rows(
    score: Callable[..., jax.Array], ends: _Heads, values: jax.Array, codes: list[int], pairs: jax.Array
) -> jax.Array:
    """``[H, B, N, C]`` output, computed for some rows of scores at a time."""
    heads, batch, n, size = values.shape
    rows = min(n, max(1, _BLOCK // (heads * batch * n)))
    rows = 1 << (rows.bit_length() - 1) if rows < n else n
    blocks = -(-n // rows)
    code = jnp.asarray(codes, jnp.uint8)[:, None, None, None]
    # The sum of the weights is an additional column of the values.
    more = jnp.concatenate([values, jnp.ones((*values.shape[:-1], 1), values.dtype)], axis=-1)

    def block(arrays: tuple[jax.Array, jax.Array]) -> jax.Array:
        end, seen = arrays
        weights = _weights(score(end, ends[1]), seen[None] == code)
        collected = jnp.einsum("hbij,hbjc->hbic", weights, more)
        return _shared(collected)

    # Rows of padding attend to nothing.
    added = blocks * rows - n
    end = jnp.pad(ends[0], [(0, added) if axis == 2 else (0, 0) for axis in range(ends[0].ndim)])
    seen = jnp.pad(pairs, ((0, 0), (0, added), (0, 0)))
    ends_of = jnp.moveaxis(end.reshape(heads, batch, blocks, rows, *end.shape[3:]), 2, 0)
    seen_of = jnp.moveaxis(seen.reshape(batch, blocks, rows, n), 1, 0)
    found = jnp.moveaxis(lax.map(block, (ends_of, seen_of)), 0, 2)
    return found.reshape(heads, batch, blocks * rows, size)[:, :, :n]


def _by_edges(
    queries: jax.Array,
    keys: jax.Array,
    values: jax.Array,
    codes: list[int],
    pairs: jax.Array,
    edges: jax.Array,
) -> jax.Array:
    """``[H, B, N, C]`` output; the first op of an edge attends to the second if the codes match."""
    heads, batch, n, size = values.shape
    # One list of the ops of all graphs; padding is beyond its end.
    graph = jnp.arange(batch, dtype=jnp.int32)[:, None, None]
    op, other = jnp.where(edges < n, edges + n * graph, batch * n).reshape(-1, 2).T
    first, second = (jnp.moveaxis(a, 0, 2).reshape(batch * n, heads, size) for a in (queries, keys))
    more = jnp.concatenate([values, jnp.ones((*values.shape[:-1], 1), values.dtype)], axis=-1)
    more = jnp.moveaxis(more, 0, 2).reshape(batch * n, heads, size + 1)
    kind = pairs.reshape(batch * n, n).at[op, other % n].get(mode="fill", fill_value=0)
    scores = (_at(first, op) * _at(second, other)).sum(axis=-1)
    scores = jnp.where(kind[:, None] == jnp.asarray(codes, jnp.uint8)[None], scores, -jnp.inf)
    highest = jnp.full((batch * n, heads), -jnp.inf).at[op].max(lax.stop_gradient(scores), mode="drop")
    weights = jnp.exp(scores - _at(jnp.where(jnp.isfinite(highest), highest, 0), op))
    parts = weights[..., None] * _at(more, other)
    collected = _shared(jnp.zeros(more.shape, more.dtype).at[op].add(parts, mode="drop"))
    return jnp.moveaxis(collected.reshape(batch, n, heads, size), 2, 0)


def _at(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Rows of an array; those of padding are arbitrary."""
    return rows.at[index].get(mode="clip")


def _shared(collected: jax.Array) -> jax.Array:
    """``[..., C]`` means of values from ``[..., C + 1]`` sums, of which the last is that of the weights."""
    total = collected[..., -1:]
    return collected[..., :-1] / jnp.where(total > 0, total, 1)
