"""The race that draws orders by equation 8: its clocks, and its steps in XLA.

`regal_jax.ordering.host` has the same steps in compiled loops. Both take the clocks from `make_clocks` and
round in the same way: a product is added to another number only if its last factor is a power of two, so that
a fused multiply-add gives the same result as both operations.
"""

from typing import Final, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.ordering.precedence import open_uniform, successors, waiting_for
from regal_jax.problem import Problem
from regal_jax.programs import program
from regal_jax.search.draws import seeds_of, words

__all__ = ["LEAST", "MOST_SLOWER", "SCALES", "Clocks", "make_clocks", "race", "seeds_of_samples"]

LEAST: Final = 2.0**-25
"""Time left, in units of its mean, of a clock whose time was rounded to zero: half the smallest draw."""
MOST_SLOWER: Final = 64
"""Range of exponents for comparing clocks: times left are 2**-25 to 2**5, so a clock slower by more loses."""
SCALES: Final = (-126, 127)
"""Range of exponents of powers of two in float32."""
_MOST: Final = 1e7
"""Largest magnitude of a priority that is distinguished from larger ones, which differ by at least 1."""
# log(2) in three parts: products of the first two with exponents of usual priorities are exact.
_LOG2: Final = tuple(map(np.float32, (0.6875, 185 / 2**15, np.log(2) - 0.6875 - 185 / 2**15)))


class Clocks(NamedTuple):
    """The clocks of a race. The rate of an op is ``exp(y) = rate * 2**power``.

    Attributes:
      left: ``[B, S, N]`` float32, times left of the ops, in units of their means.
      rate: ``[B, N]`` float32, from about 1 to about 2.
      mean: ``[B, N]`` float32, ``1 / rate``.
      power: ``[B, N]`` int32.
    """

    left: jax.Array
    rate: jax.Array
    mean: jax.Array
    power: jax.Array


def seeds_of_samples(keys: jax.Array, samples: int, first: jax.Array) -> jax.Array:
    """``[B, S, 2]`` uint32 seeds of the samples ``first`` to ``first + samples`` of each graph."""
    fold = jax.vmap(jax.vmap(jax.random.fold_in, (None, 0)), (0, None))
    return seeds_of(fold(keys, first + jnp.arange(samples, dtype=jnp.uint32)))


@program(static=(2,))
def make_clocks(priorities: jax.Array, keys: jax.Array, samples: int, first: jax.Array) -> Clocks:
    """The clocks before the first step.

    Args:
      priorities: ``[B, N]`` float32.
      keys: ``[B]`` typed keys, consumed.
      samples: ``S``, the number of orders per graph.
      first: uint32, the number of the first of them.
    """
    seeds = seeds_of_samples(keys, samples, first)
    uniform = open_uniform(words(seeds, priorities.shape[-1]))
    y = jnp.clip(priorities, -_MOST, _MOST)
    power = jnp.floor(y * np.float32(np.log2(np.e)))
    rest = y
    for part in _LOG2:
        rest = rest - power * part
    rate = jnp.exp(rest)
    return Clocks(-jnp.log1p(-uniform), rate, 1 / rate, power.astype(jnp.int32))


@program()
def race(problem: Problem, clocks: Clocks) -> jax.Array:
    """``[B, S, N]`` int32 orders.

    Args:
      problem: ``B`` graphs on one device.
      clocks: Clocks of the same graphs.
    """
    before = jax.vmap(successors)(problem)
    waiting = jnp.broadcast_to(jax.vmap(waiting_for)(problem, before)[:, None], clocks.left.shape)
    rates = clocks._replace(left=jnp.zeros((problem.num_graphs, 0), jnp.float32))
    step = jax.vmap(jax.vmap(_step, (None, None, 0, None)), (0, 0, 0, None))

    def take(
        state: tuple[jax.Array, jax.Array], now: jax.Array
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        waiting, left, op = step(before, rates, state, now)
        return (waiting, left), op

    steps = jnp.arange(problem.bucket.ops, dtype=jnp.int32)
    _, orders = jax.lax.scan(take, (waiting, clocks.left), steps)
    return jnp.moveaxis(orders, 0, -1)


def _power_of_two(exponent: jax.Array) -> jax.Array:
    """The exact power of two in float32, for exponents in the range of `SCALES`."""
    return jax.lax.bitcast_convert_type((exponent + 127) << 23, jnp.float32)


def _step(
    before: jax.Array, clocks: Clocks, state: tuple[jax.Array, jax.Array], now: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """One step of one sample: the ready op whose exponential clock finishes first.

    The state of an op is its time left, in units of its own mean ``exp(-y)``. This is near 1 for every op,
    since clocks have no memory; absolute finishing times would lose small differences to rounding.

    Args:
      before: From `successors`.
      clocks: The clocks; ``left`` is not read.
      state: ``[N]`` int32, predecessors that have not run, -1 for ops that have; ``[N]`` float32, time left.
      now: The number of the step.

    Returns:
      ``state`` after the step, and the op that runs; op number ``now`` if none is ready.
    """
    waiting, left = state
    n = waiting.shape[0]
    ready = waiting == 0
    fastest = jnp.where(ready, clocks.power, jnp.iinfo(jnp.int32).min).max()
    slower = jnp.clip(fastest - clocks.power, 0, MOST_SLOWER)
    finish = jnp.where(ready, left * clocks.mean * _power_of_two(slower), jnp.inf)
    first = finish.min()
    number = jnp.arange(n, dtype=jnp.int32)
    op = jnp.where(finish == first, number, n).min()
    passed = left[op] * clocks.mean[op] * clocks.rate
    passed = passed * _power_of_two(jnp.clip(clocks.power - clocks.power[op], *SCALES))
    left = jnp.where(ready, jnp.maximum(left - passed, LEAST), left)
    some = first < jnp.inf
    row = before.at[op].get(mode="fill", fill_value=False)
    waiting = jnp.where(number == op, -1, waiting - row.astype(jnp.int32))
    return jnp.where(some, waiting, state[0]), left, jnp.where(some, op, now)
