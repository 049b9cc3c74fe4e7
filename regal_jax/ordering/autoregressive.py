"""`AutoregressiveDecoder`: orders from embeddings, with new priorities before each step (appendix B)."""

import functools
import math
from typing import Any, Final, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from regal_jax.checks import check_whole
from regal_jax.errors import ConfigError
from regal_jax.ordering.beam import Found, Rule, beam, log_shares
from regal_jax.ordering.precedence import (
    check_keys,
    check_orders,
    one_device,
    open_uniform,
    places,
    ready_from,
    run,
    successors,
    waiting_for,
)
from regal_jax.ordering.race import seeds_of_samples
from regal_jax.problem import Problem
from regal_jax.programs import program
from regal_jax.runtime.interrupts import interruptible
from regal_jax.search.draws import words

__all__ = ["AutoregressiveDecoder"]

_CLIP: Final = 10.0
_BLOCK: Final = 2**22
"""Approximate number of values that one layer of `_log_prob` holds in memory at once."""


class _Nodes(NamedTuple):
    """Projections of one graph's embeddings that every step reads; computed once.

    Attributes:
      last: ``[N + 1, W]`` float32, the query after each op; the last row is the one before the first step.
      key: ``[N, H, W / H]`` float32, keys of the glimpse.
      value: ``[N, H, W / H]`` float32, values of the glimpse.
      logit: ``[N, W]`` float32, the keys of the last layer.
    """

    last: jax.Array
    key: jax.Array
    value: jax.Array
    logit: jax.Array


class AutoregressiveDecoder(nnx.Module):
    """The decoder of the attention model, restricted to the ready ops.

    The context of a step is the mean of the embeddings and the embedding of the last op; before the first
    step a learned vector replaces the latter. Multi-head attention from the context to the ready ops gives a
    query; the logit of a ready op is ``10 tanh(query . key / sqrt(W))``. Orders are as in
    `regal_jax.ordering.greedy`: padding comes last.

    References:
      Gagrani et al. 2022, appendix B; Kool, van Hoof and Welling, Attention, Learn to Solve Routing
      Problems!, ICLR 2019, section 3.2, equations 4 to 7.
    """

    def __init__(self, width: int, heads: int, *, rngs: nnx.Rngs) -> None:
        """An untrained decoder.

        Args:
          width: ``W``, the width of the embeddings.
          heads: ``H``, the number of attention heads; a divisor of ``width``.
          rngs: Streams for the initial weights; consumed.

        Raises:
          ConfigError: A size is out of range, or ``heads`` does not divide ``width``.
        """
        self.width, self.heads = check_whole("width", width, 1), check_whole("heads", heads, 1)
        if self.width % self.heads:
            raise ConfigError(f"heads: {heads} do not divide the width, {width}; use a divisor of it")
        linear = functools.partial(nnx.Linear, width, use_bias=False, rngs=rngs)
        self.mean, self.last, self.out = linear(width), linear(width), linear(width)
        self.nodes = linear(3 * width)
        bound = 1 / math.sqrt(width)
        self.first = nnx.Param(jax.random.uniform(rngs.params(), (width,), jnp.float32, -bound, bound))

    @interruptible()
    def greedy(self, problem: Problem, embeddings: jax.Array) -> jax.Array:
        """Takes the likeliest ready op at each step, the lowest index on ties.

        Args:
          problem: ``B`` graphs on one device.
          embeddings: ``[B, N, W]`` float32; those of padding mean nothing.

        Returns:
          ``[B, N]`` int32 orders.

        Raises:
          ConfigError: Several devices, or embeddings of another shape or type.
        """
        _check(self, problem, embeddings)
        return run(_decode, self, problem, embeddings, None, 1, jnp.uint32(0))[:, 0]

    @interruptible()
    def sample(
        self, problem: Problem, embeddings: jax.Array, keys: jax.Array, samples: int
    ) -> tuple[jax.Array, jax.Array]:
        """Draws orders; the ``s``-th depends only on its graph's key and ``s``.

        Args:
          problem: ``B`` graphs on one device.
          embeddings: ``[B, N, W]`` float32; those of padding mean nothing.
          keys: ``[B]`` typed keys, consumed.
          samples: ``S``, at least 1.

        Returns:
          ``[B, S, N]`` int32 orders, and their `log_prob`: ``[B, S]`` float32.

        Raises:
          ConfigError: Several devices, arrays of another shape or type, or a number out of range.
        """
        orders = self.sample_orders(problem, embeddings, keys, samples)
        return orders, run(_log_prob, self, problem, embeddings, orders)

    @interruptible()
    def sample_orders(
        self, problem: Problem, embeddings: jax.Array, keys: jax.Array, samples: int, *, first: int = 0
    ) -> jax.Array:
        """The orders of `sample`, without their probabilities, from the ``first``-th sample on.

        Other arguments and errors are those of `sample`.
        """
        _check(self, problem, embeddings)
        check_keys(problem.num_graphs, keys)
        samples = check_whole("samples", samples, 1)
        given = jax.lax.stop_gradient((self, problem, embeddings))
        return run(_decode, *given, keys, samples, jnp.uint32(first))

    @interruptible()
    def log_prob(self, problem: Problem, embeddings: jax.Array, orders: jax.Array) -> jax.Array:
        """Log-probability of orders, differentiable with respect to the weights and the embeddings.

        Args:
          problem: ``B`` graphs on one device.
          embeddings: ``[B, N, W]`` float32; those of padding mean nothing.
          orders: ``[B, S, N]`` int32.

        Returns:
          ``[B, S]`` float32, in nats; minus infinity, without a gradient, where an op runs before a
          predecessor.

        Raises:
          ConfigError: Several devices, or arrays of another shape or type.
        """
        _check(self, problem, embeddings)
        check_orders(problem, orders)
        return run(_log_prob, self, problem, embeddings, orders)

    @interruptible()
    def beam_search(self, problem: Problem, embeddings: jax.Array, width: int) -> Found:
        """Keeps the likeliest partial orders of each length, as `regal_jax.ordering.beam_search` does.

        Args:
          problem: ``B`` graphs on one device.
          embeddings: ``[B, N, W]`` float32; those of padding mean nothing.
          width: Number of partial orders to keep, at least 1.

        Raises:
          ConfigError: Several devices, embeddings of another shape or type, or a width out of range.
        """
        _check(self, problem, embeddings)
        nodes = run(_prepare, self, problem, embeddings)
        return beam(problem, width, Rule.PROBABILITY, _by_attention, nodes, self)


def _check(decoder: AutoregressiveDecoder, problem: Problem, embeddings: jax.Array) -> None:
    shape = (one_device(problem).num_graphs, problem.bucket.ops, decoder.width)
    if embeddings.shape != shape or embeddings.dtype != jnp.float32:
        raise ConfigError(
            f"embeddings: must be float32 {list(shape)} for this problem and decoder, got "
            f"{embeddings.dtype} {list(embeddings.shape)}; give one vector per op, padding included"
        )


@program()
def _prepare(decoder: AutoregressiveDecoder, problem: Problem, embeddings: jax.Array) -> _Nodes:
    """``[B, ...]``."""
    b, n, width = embeddings.shape
    real = jnp.arange(n, dtype=jnp.int32)[None] < problem.num_ops[:, None]
    # Embeddings of padding may hold anything, including values that are not finite.
    embeddings = jnp.where(real[..., None], embeddings, 0.0)
    mean = embeddings.sum(axis=1) / problem.num_ops.astype(jnp.float32)[:, None]
    first = jnp.broadcast_to(decoder.first[...], (b, 1, width))
    last = decoder.last(jnp.concatenate([embeddings, first], axis=1)) + decoder.mean(mean)[:, None]
    key, value, logit = jnp.split(decoder.nodes(embeddings), 3, axis=-1)
    heads = (b, n, decoder.heads, width // decoder.heads)
    return _Nodes(last, key.reshape(heads), value.reshape(heads), logit)


def _logits(decoder: AutoregressiveDecoder, nodes: _Nodes, last: jax.Array, ready: jax.Array) -> jax.Array:
    """``[M]`` float32 logits of ``M`` ops of one graph at one step; -inf for ops that are not ready.

    Args:
      decoder: The weights.
      nodes: ``last`` has all ops, the other fields have the ``M`` ops.
      last: The last op, ``N`` before the first step.
      ready: ``[M]`` bool.
    """
    _, heads, size = nodes.key.shape
    query = nodes.last[last].reshape(heads, size)
    match = jnp.einsum("hd,mhd->hm", query, nodes.key) / math.sqrt(size)
    match = jnp.where(ready[None], match, -jnp.inf)
    most = match.max(axis=1, keepdims=True)
    weight = jnp.exp(match - jnp.where(most > -jnp.inf, jax.lax.stop_gradient(most), 0.0))
    total = weight.sum(axis=1)
    glimpse = jnp.einsum("hm,mhd->hd", weight, nodes.value) / jnp.where(total > 0, total, 1.0)[:, None]
    final = decoder.out(glimpse.reshape(-1))
    logits = _CLIP * jnp.tanh(nodes.logit @ final / math.sqrt(decoder.width))
    return jnp.where(ready, logits, -jnp.inf)


@program(static=(4,))
def _decode(
    decoder: AutoregressiveDecoder,
    problem: Problem,
    embeddings: jax.Array,
    keys: jax.Array | None,
    samples: int,
    first: jax.Array,
) -> jax.Array:
    """``[B, S, N]`` orders: samples from the ``first``-th on, or greedy ones where there are no keys."""
    b, n, _ = embeddings.shape
    nodes = _prepare.function(decoder, problem, embeddings)
    seeds = jnp.zeros((b, samples, 2), jnp.uint32)
    if keys is not None:
        seeds = seeds_of_samples(keys, samples, first)
    before = jax.vmap(successors)(problem)
    waiting = jnp.broadcast_to(jax.vmap(waiting_for)(problem, before)[:, None], (b, samples, n))
    number = jnp.arange(n, dtype=jnp.int32)

    def one(nodes: _Nodes, before: jax.Array, waiting: jax.Array, last: jax.Array, noise: jax.Array) -> Any:
        logits = _logits(decoder, nodes, last, waiting == 0) + noise
        best = logits.max()
        op = jnp.where((logits == best) & (waiting == 0), number, n).min()
        row = before.at[op].get(mode="fill", fill_value=False)
        return jnp.where(number == op, -1, waiting - row.astype(jnp.int32)), op

    each = jax.vmap(jax.vmap(one, (None, None, 0, 0, 0)))

    def step(
        state: tuple[jax.Array, jax.Array], now: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        noise = jnp.zeros((b, samples, n), jnp.float32)
        if keys is not None:
            uniform = open_uniform(words(seeds, n, now))
            noise = -jnp.log(-jnp.log(uniform))
        waiting, op = each(nodes, before, *state, noise)
        return (waiting, op), jnp.where(op < n, op, now)

    start = jnp.full((b, samples), n, jnp.int32)
    return jnp.moveaxis(jax.lax.scan(step, (waiting, start), number)[1], 0, -1)


@program()
def _log_prob(
    decoder: AutoregressiveDecoder, problem: Problem, embeddings: jax.Array, orders: jax.Array
) -> jax.Array:
    b, s, n = orders.shape
    nodes = _prepare.function(decoder, problem, embeddings)
    stop = places(orders)
    start = jax.vmap(jax.vmap(ready_from, (None, 0)))(problem, stop)
    possible = (start <= stop).all(axis=-1)
    start = jnp.where(possible[..., None], start, stop)
    size = max(1, min(n, _BLOCK // (b * s * n * decoder.heads)))
    blocks = -(-n // size)

    def one(nodes: _Nodes, start: jax.Array, stop: jax.Array, order: jax.Array, now: jax.Array) -> jax.Array:
        op = order.at[now].get(mode="fill", fill_value=0)
        last = jnp.where(now > 0, order.at[now - 1].get(mode="clip"), n)
        logits = _logits(decoder, nodes, last, (start <= now) & (now <= stop))
        # No op is ready from step N on. Values there do not count, but NaN would spread to the gradient.
        shares = jax.nn.log_softmax(jnp.where(now < n, logits, 0.0))
        return jnp.where(now < n, shares[op], 0.0)

    each = jax.vmap(one, (None, None, None, None, 0))
    each = jax.vmap(jax.vmap(each, (None, 0, 0, 0, None)), (0, 0, 0, 0, None))
    # The inputs of a block are kept for its gradient; what its steps compute is computed again.
    block = jax.checkpoint(lambda now: each(nodes, start, stop, orders, now).sum(axis=-1))
    steps = jnp.arange(blocks * size, dtype=jnp.int32).reshape(blocks, size)
    total = jax.lax.map(block, steps).sum(axis=0)
    return jnp.where(possible, total, -jnp.inf)


def _by_attention(
    context: _Nodes, shared: AutoregressiveDecoder, last: jax.Array, ready: jax.Array
) -> jax.Array:
    """The `Scorer` of a beam: log-probabilities of ``[W, R]`` ready ops."""
    n = context.key.shape[0]

    def one(last: jax.Array, ready: jax.Array) -> jax.Array:
        rows = (x.at[ready].get(mode="fill", fill_value=0) for x in context[1:])
        return _logits(shared, _Nodes(context.last, *rows), last, ready < n)

    return log_shares(jax.vmap(one)(last, ready))
