"""Orders from priorities: greedy orders, samples, their probabilities and their peaks.

An order is ``[N]`` int32, the op at each step. Padded ops come last, each at the step of its own number, so
that an order is a permutation. By equation 8 of the paper the op ``i`` of priority ``y[i]`` is next with the
probability ``exp(y[i]) / sum of exp(y[j]) over the ready ops j``.

References:
  Gagrani et al., Neural Topological Ordering for Computation Graphs, NeurIPS 2022, section 4.2.
"""

import functools
from typing import Any, Final

import jax
import jax.numpy as jnp

from regal_jax.checks import check_whole
from regal_jax.ordering import host
from regal_jax.ordering.precedence import (
    check_keys,
    check_orders,
    check_priorities,
    places,
    ready_from,
    run,
)
from regal_jax.ordering.race import make_clocks, race
from regal_jax.problem import Decisions, Problem
from regal_jax.programs import program
from regal_jax.runtime.interrupts import interruptible
from regal_jax.simulate import simulate

__all__ = ["greedy", "log_prob", "peaks", "sample", "sample_orders"]

_BLOCK: Final = 2**22
"""Approximate number of values that `log_prob` holds in memory at once."""


@interruptible()
def greedy(problem: Problem, priorities: jax.Array) -> jax.Array:
    """Takes the ready op of the largest priority at each step, the lowest index on ties.

    Args:
      problem: ``B`` graphs on one device.
      priorities: ``[B, N]`` float32, finite; those of padding mean nothing.

    Returns:
      ``[B, N]`` int32 orders.

    Raises:
      ConfigError: Several devices, or priorities of another shape or type.
    """
    check_priorities(problem, priorities)
    return run(_greedy, problem, priorities)


@interruptible()
def sample(
    problem: Problem,
    priorities: jax.Array,
    keys: jax.Array,
    samples: int,
    *,
    implementation: str | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Draws orders with the probabilities of equation 8.

    The ``s``-th sample of a graph depends only on the graph, its key and ``s``: not on the number of samples,
    on padding, on the other graphs or on the implementation.

    Args:
      problem: ``B`` graphs on one device.
      priorities: ``[B, N]`` float32, finite; those of padding mean nothing.
      keys: ``[B]`` typed keys, consumed.
      samples: ``S``, at least 1.
      implementation: ``"xla"``, or ``"host"`` for loops that Numba compiles, which cannot be traced. ``None``
        chooses the host for arrays on a CPU where Numba is installed, and XLA elsewhere and inside a trace.

    Returns:
      ``[B, S, N]`` int32 orders, and their `log_prob`: ``[B, S]`` float32.

    Raises:
      ConfigError: Several devices, priorities of another shape or type, not one key per graph, or an
        implementation that is unknown or not available.
    """
    orders = sample_orders(problem, priorities, keys, samples, implementation=implementation)
    return orders, log_prob(problem, priorities, orders, implementation=implementation)


@interruptible()
def sample_orders(
    problem: Problem,
    priorities: jax.Array,
    keys: jax.Array,
    samples: int,
    *,
    first: int = 0,
    implementation: str | None = None,
) -> jax.Array:
    """The orders of `sample`, without their probabilities, from the ``first``-th sample on.

    Other arguments and errors are those of `sample`.
    """
    check_priorities(problem, priorities)
    samples = check_whole("samples", samples, 1)
    check_keys(problem.num_graphs, keys)
    priorities = jax.lax.stop_gradient(priorities)
    # One program makes the clocks of both implementations: what follows rounds alike in both.
    clocks = run(make_clocks, priorities, keys, samples, jnp.uint32(first))
    if host.chosen(implementation, problem, priorities, keys):
        return host.race(problem, clocks)
    return run(race, problem, clocks)


@interruptible()
def log_prob(
    problem: Problem, priorities: jax.Array, orders: jax.Array, *, implementation: str | None = None
) -> jax.Array:
    """Log-probability of orders by equation 8; differentiable once with respect to ``priorities``.

    Args:
      problem: ``B`` graphs on one device.
      priorities: ``[B, N]`` float32, finite; those of padding mean nothing.
      orders: ``[B, S, N]`` int32.
      implementation: As in `sample`; gradients are XLA's.

    Returns:
      ``[B, S]`` float32, in nats; minus infinity, without a gradient, where an op runs before a predecessor.

    Raises:
      ConfigError: Several devices, arrays of another shape or type, or an implementation that is unknown or
        not available.
    """
    check_priorities(problem, priorities)
    check_orders(problem, orders)
    if host.chosen(implementation, problem, priorities, orders):
        return host.log_prob(problem, priorities, orders)
    return run(_log_prob, problem, priorities, orders)


@interruptible()
def peaks(problem: Problem, orders: jax.Array) -> jax.Array:
    """Peak memory of orders, by `regal_jax.simulate`.

    Args:
      problem: ``B`` graphs on one device.
      orders: ``[B, S, N]`` int32, topological orders.

    Returns:
      ``[B, S]`` int32, in units of `regal_jax.problem.memory_unit`.

    Raises:
      ConfigError: Several devices, or orders of another shape or type.
    """
    check_orders(problem, orders)
    return run(_peaks, problem, orders)


def _decisions(problem: Problem, rank: jax.Array) -> Decisions:
    """Decisions by which the ready op of the lowest rank (``[B, P, N]`` int32) runs next."""
    transfers = problem.bucket.tensors if problem.blocking else 0
    return Decisions(
        placement=jnp.zeros(rank.shape, jnp.int32),
        priority=(rank.shape[-1] - 1 - rank).astype(jnp.uint16),
        transfer_priority=jnp.zeros((*rank.shape[:2], transfers, 1), jnp.uint16),
    )


@program()
def _greedy(problem: Problem, priorities: jax.Array) -> jax.Array:
    # -0.0 and 0.0 are one priority.
    rank = places(jnp.argsort(-priorities, axis=-1, stable=True).astype(jnp.int32))
    done = simulate(problem, _decisions(problem, rank[:, None]), memory=False, positions=True)
    assert done.op_position is not None  # noqa: S101
    place = done.op_position[:, 0]
    return places(jnp.where(place < 0, jnp.arange(place.shape[-1], dtype=jnp.int32)[None], place))


@program()
def _peaks(problem: Problem, orders: jax.Array) -> jax.Array:
    peak = simulate(problem, _decisions(problem, places(orders))).peak_memory
    assert peak is not None  # noqa: S101
    return peak[..., 0]


@program()
def _log_prob(problem: Problem, priorities: jax.Array, orders: jax.Array) -> jax.Array:
    stop = places(orders)
    start = jax.vmap(jax.vmap(ready_from, (None, 0)))(problem, stop)
    possible = (start <= stop).all(axis=-1)
    # Ops of an invalid order are ready for one step each, which keeps its values, which are unused, finite.
    start = jnp.where(possible[..., None], start, stop)
    total: Any = _total(priorities, orders, start, stop)
    return jnp.where(possible, total, -jnp.inf)


def _normalisers(priorities: jax.Array, start: jax.Array, stop: jax.Array, steps: jax.Array) -> jax.Array:
    """``[B, S, K]`` log-sum-exp of the ready ops at each of the steps ``[K]``; steps from ``N`` on: 0."""
    ready = _ready(start, stop, steps)
    y = jnp.where(ready, priorities[:, None, None, :], -jnp.inf)
    most = y.max(axis=-1)
    most = jnp.where(most > -jnp.inf, most, 0.0)
    total = jnp.exp(y - most[..., None]).sum(axis=-1)
    return most + jnp.log(jnp.where(total > 0, total, 1.0))


def _ready(start: jax.Array, stop: jax.Array, steps: jax.Array) -> jax.Array:
    """``[B, S, K, N]`` bool, whether an op is ready at a step."""
    now = steps[None, None, :, None]
    return (start[:, :, None, :] <= now) & (now <= stop[:, :, None, :])


def _blocks(shape: tuple[int, ...]) -> jax.Array:
    """``[blocks, K]`` int32: all steps, padded by some from ``N`` on; ``shape`` is that of the orders."""
    b, s, n = shape
    size = max(1, min(n, _BLOCK // (b * s * n)))
    blocks = -(-n // size)
    return jnp.arange(blocks * size, dtype=jnp.int32).reshape(blocks, size)


@jax.custom_vjp
def _total(priorities: jax.Array, orders: jax.Array, start: jax.Array, stop: jax.Array) -> jax.Array:
    """``[B, S]`` sums over the steps; the ready ops of step ``t`` are those with ``start <= t <= stop``."""
    return _total_forward(priorities, orders, start, stop)[0]


def _total_forward(
    priorities: jax.Array, orders: jax.Array, start: jax.Array, stop: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    blocks = jax.lax.map(functools.partial(_normalisers, priorities, start, stop), _blocks(orders.shape))
    normalisers = jnp.moveaxis(blocks, 0, 2).reshape(*orders.shape[:2], -1)
    taken = jnp.take_along_axis(priorities[:, None, :], orders, axis=-1)
    total = (taken - normalisers[..., : orders.shape[-1]]).sum(axis=-1)
    return total, (priorities, start, stop, normalisers)


def _total_backward(kept: tuple[jax.Array, ...], weight: jax.Array) -> tuple[jax.Array, None, None, None]:
    """Gradient of each op: 1 less the sum of its probabilities at the steps at which it is ready."""
    priorities, start, stop, normalisers = kept
    steps = _blocks(start.shape)
    rows = jnp.moveaxis(normalisers.reshape(*start.shape[:2], *steps.shape), 2, 0)

    def add(sums: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        now, normaliser = block
        y = jnp.where(_ready(start, stop, now), priorities[:, None, None, :], -jnp.inf)
        return sums + jnp.exp(y - normaliser[..., None]).sum(axis=2), None

    sums, _ = jax.lax.scan(add, jnp.zeros(start.shape, jnp.float32), (steps, rows))
    return ((1 - sums) * weight[..., None]).sum(axis=1), None, None, None


_total.defvjp(_total_forward, _total_backward)
