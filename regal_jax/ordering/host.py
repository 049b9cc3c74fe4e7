"""Decoding on the host by loops that Numba compiles, for arrays on a CPU (`regal_jax.ordering.decode`)."""

from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from regal_jax.checks import shown
from regal_jax.errors import ConfigError
from regal_jax.ordering.host_loops import Precedence, Rates, draw, total
from regal_jax.ordering.race import LEAST, MOST_SLOWER, SCALES, Clocks
from regal_jax.problem import Problem
from regal_jax.runtime.compiling import for_loops, loops, usable
from regal_jax.runtime.interrupts import check_interrupt

__all__ = ["IMPLEMENTATIONS", "chosen", "log_prob", "race"]

IMPLEMENTATIONS: Final = ("xla", "host")
_AT_ONCE: Final = 2**15
"""Number of steps between two checks for interrupts."""
_TWOS: Final = np.ldexp(np.float32(1), np.arange(SCALES[0], SCALES[1] + 1)).astype(np.float32)


def chosen(implementation: str | None, problem: Problem, *arrays: Any) -> bool:
    """Whether to decode on the host.

    Args:
      implementation: One of `IMPLEMENTATIONS`; ``None`` for the host if all arrays are on CPUs, nothing is
        traced, and Numba is usable.
      problem: The problem.
      *arrays: The other arrays.

    Raises:
      ConfigError: The implementation is unknown, or it is the host while a function is traced or Numba is
        missing.
    """
    known = isinstance(implementation, str) and implementation in IMPLEMENTATIONS
    if implementation is not None and not known:
        raise ConfigError(
            f"implementation: unknown {shown(implementation)}; use one of {', '.join(IMPLEMENTATIONS)}"
        )
    leaves = jax.tree.leaves((problem, arrays))
    traced = any(isinstance(leaf, Tracer) for leaf in leaves)
    if implementation == "host" and traced:
        raise ConfigError("implementation: 'host' cannot be traced; call it outside of jax.jit, or use 'xla'")
    if implementation == "host" and not usable():
        raise ConfigError("implementation: 'host' needs Numba; pip install 'regal-jax[cpu]', or use 'xla'")
    if implementation is not None or traced:
        return implementation == "host"
    devices = {device for leaf in leaves if isinstance(leaf, jax.Array) for device in leaf.devices()}
    return all(device.platform == "cpu" for device in devices) and usable()


def race(problem: Problem, clocks: Clocks) -> jax.Array:
    """`regal_jax.ordering.race.race` on the host: ``[B, S, N]`` int32 orders."""
    left, rate, mean, power = map(np.asarray, clocks)
    b, samples, n = left.shape
    orders = np.tile(np.arange(n, dtype=np.int32), (b, samples, 1))
    each = max(1, _AT_ONCE // n)
    for row in range(b):
        graph = _precedence(problem, row)
        rates = for_loops(Rates(rate[row], mean[row], power[row], _TWOS, np.float32(LEAST), MOST_SLOWER))
        for first in range(0, samples, each):
            check_interrupt()
            part = orders[row, first : first + each]
            loops(draw)(graph, rates, for_loops(left[row, first : first + each]), part)
    return jnp.asarray(orders)


def log_prob(problem: Problem, priorities: jax.Array, orders: jax.Array) -> jax.Array:
    """`regal_jax.ordering.log_prob` on the host: ``[B, S]`` float32."""
    given = np.asarray(orders)
    b, samples, n = given.shape
    found = np.zeros((b, samples))
    each = max(1, _AT_ONCE // n)
    for row, y in enumerate(np.asarray(priorities, np.float64)):
        graph = _precedence(problem, row)
        for first in range(0, samples, each):
            check_interrupt()
            part = for_loops(given[row, first : first + each])
            loops(total)(graph, for_loops(y), part, found[row, first : first + each])
    return jnp.asarray(found.astype(np.float32))


def _precedence(problem: Problem, row: int) -> Precedence:
    """The `Precedence` of one graph of a problem."""
    count = int(np.asarray(problem.num_ops)[row])
    begin, end = np.asarray(problem.op_row)[row, :count].T
    successor = np.asarray(problem.successor)[row]
    waiting = np.bincount(successor[successor < count], minlength=count)
    return for_loops(Precedence(begin, end, successor, waiting))
