"""Precedence between ops in the forms that decoders read; checks that decoders have in common."""

from typing import Any, Final

import jax
import jax.numpy as jnp
from jax.core import Tracer

from regal_jax.checks import check_kind, real, shown
from regal_jax.errors import ConfigError
from regal_jax.problem import Problem
from regal_jax.programs import Program

__all__ = [
    "MOST_OPS",
    "check_key",
    "check_keys",
    "check_orders",
    "check_priorities",
    "check_seconds",
    "one_device",
    "open_uniform",
    "places",
    "ready_from",
    "run",
    "sources",
    "successors",
    "waiting_for",
]


MOST_OPS: Final = 2**16 - 1
"""Largest number of ops of a graph that networks order or schedule: 16 bits number them."""


def run(program: Program, *arguments: Any) -> Any:
    """The result of ``program``; inside a trace it is inlined into the outer program."""
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(arguments)):
        return jax.jit(program.function, static_argnums=program.static)(*arguments)
    return program(*arguments)


def one_device(problem: Problem) -> Problem:
    """``problem``, which must have one device and no more ops than 16 bits can number.

    Raises:
      ConfigError: It has several devices, or too many ops.
    """
    check_kind("problem", problem, Problem)
    if problem.num_devices != 1:
        raise ConfigError(
            f"ordering: the problem has {problem.num_devices} devices, but orders are for one; "
            "make it with Cluster.uniform(1)"
        )
    if problem.bucket.ops > MOST_OPS:
        raise ConfigError(f"ordering: {problem.bucket.ops} ops are too many, at most {MOST_OPS}; merge some")
    return problem


def check_priorities(problem: Problem, priorities: jax.Array) -> None:
    """Refuses priorities of another shape or type than ``[B, N]`` float32.

    Raises:
      ConfigError: They are others, or the problem has several devices.
    """
    shape = (one_device(problem).num_graphs, problem.bucket.ops)
    if not _is_array(priorities) or priorities.shape != shape or priorities.dtype != jnp.float32:
        raise ConfigError(
            f"priorities: must be float32 {list(shape)} for this problem, got {_described(priorities)}; "
            "give one number per op, padding included"
        )


def check_orders(problem: Problem, orders: jax.Array) -> None:
    """Refuses orders of another shape or type than ``[B, S, N]`` int32.

    Raises:
      ConfigError: They are others, or the problem has several devices.
    """
    b, n = one_device(problem).num_graphs, problem.bucket.ops
    fits = _is_array(orders) and orders.ndim == 3 and orders.shape[::2] == (b, n)
    if not fits or orders.dtype != jnp.int32:
        raise ConfigError(
            f"orders: must be int32 [{b}, S, {n}] for this problem, got {_described(orders)}; "
            "give whole orders, padding included"
        )


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _described(value: Any) -> str:
    """Type and shape of an array, for a message; the type of what is none."""
    return f"{value.dtype} {list(value.shape)}" if _is_array(value) else type(value).__name__


def check_key(key: Any) -> None:
    """Refuses anything but a single typed key.

    Raises:
      ConfigError: It is something else.
    """
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if not typed or key.ndim:
        raise ConfigError(f"key: give a typed key, such as jax.random.key(0), got {shown(key)}")


def check_keys(graphs: int, keys: Any) -> None:
    """Refuses anything but one typed key per graph.

    Raises:
      ConfigError: It is something else.
    """
    if not isinstance(keys, jax.Array):
        raise ConfigError(f"keys: use jax.random.split(jax.random.key(0), {graphs}), not {shown(keys)}")
    if keys.shape != (graphs,) or not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key):
        raise ConfigError(
            f"keys: must be typed keys [{graphs}], one per graph, got {keys.dtype} {list(keys.shape)}; "
            f"use jax.random.split(jax.random.key(0), {graphs})"
        )


def check_seconds(seconds: Any) -> None:
    """Refuses a time limit that is neither ``None`` nor a number of at least zero.

    Raises:
      ConfigError: It is something else.
    """
    if seconds is not None and real(seconds, 0, infinite=True) is None:
        raise ConfigError(f"seconds: is {shown(seconds)}; give a number of at least 0, or None for no limit")


def sources(problem: Problem) -> jax.Array:
    """``[E + C]`` int32, the op whose row holds each successor of one graph; ``N`` for padding."""
    n, entries = problem.indegree.shape[0], problem.successor.shape[0]
    real = jnp.arange(n) < problem.num_ops
    first = jnp.where(real, problem.op_row[:, 0], entries)
    # Where several rows begin at the same place, all but the last are empty.
    number = jnp.cumsum(jnp.zeros(entries + 1, jnp.int32).at[first].add(1))[:entries] - 1
    return jnp.where(problem.successor < n, number, n)


def successors(problem: Problem) -> jax.Array:
    """``[N, N]`` bool of one graph (no ``B``): whether the op of the row must run before that of the column.

    Only direct predecessors, by data or control; padding has none and is none.
    """
    n = problem.indegree.shape[0]
    return jnp.zeros((n, n), bool).at[sources(problem), problem.successor].set(True, mode="drop")


def waiting_for(problem: Problem, before: jax.Array) -> jax.Array:
    """``[N]`` int32, number of distinct direct predecessors of each op of one graph; 1 for padding."""
    real = jnp.arange(before.shape[0]) < problem.num_ops
    return jnp.where(real, before.sum(axis=0, dtype=jnp.int32), 1)


def places(orders: jax.Array) -> jax.Array:
    """``[..., N]`` int32, the step of each op: the inverse of orders ``[..., N]``."""
    steps = jnp.broadcast_to(jnp.arange(orders.shape[-1], dtype=jnp.int32), orders.shape)
    # Orders are permutations, so the inverse is unique.
    return jnp.put_along_axis(jnp.zeros_like(orders), orders, steps, axis=-1, inplace=False)


def ready_from(problem: Problem, place: jax.Array) -> jax.Array:
    """The first step at which each op could run.

    Args:
      problem: One graph (no ``B``).
      place: ``[N]`` int32, the step of each op.

    Returns:
      ``[N]`` int32, one more than the step of its last predecessor, 0 without any; its own step for padding.
    """
    n = place.shape[0]
    ready = jnp.zeros(n, jnp.int32)
    after = place.at[sources(problem)].get(mode="clip") + 1
    ready = ready.at[problem.successor].max(after, mode="drop")
    return jnp.where(jnp.arange(n) < problem.num_ops, ready, place)


def open_uniform(words: jax.Array) -> jax.Array:
    """Float32 numbers strictly between 0 and 1, from uint32 words: 2**23 values, each exact."""
    return ((words >> jnp.uint32(9)).astype(jnp.float32) + 0.5) * 2.0**-23
