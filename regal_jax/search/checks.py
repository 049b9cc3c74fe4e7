"""Checks of keys, warm starts and fitness functions that all searchers share."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.errors import ConfigError
from regal_jax.search.loop import WarmStart

__all__ = ["check_keys", "check_warm", "evaluate"]


def check_keys(keys: jax.Array) -> None:
    """Checks that there is one typed key per instance."""
    if not jnp.issubdtype(keys.dtype, jax.dtypes.prng_key) or keys.ndim != 1 or not keys.size:
        raise ConfigError(
            f"keys: got {keys.dtype}{list(keys.shape)}; give one typed key per instance, "
            "for instance jax.random.split(jax.random.key(0), B)"
        )


def check_warm(
    warm: WarmStart, params: Any, keys: jax.Array, sample_fn: Callable[..., Any], most: int | None
) -> None:
    """Checks that warm starts have the shapes of the proposal's draws, at most ``most`` per instance."""
    leaves, tree = jax.tree.flatten(params)
    kinds = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves)
    individual = _individual(sample_fn, tree, kinds, keys.dtype)
    drawn = jax.tree.map(lambda x: (len(keys), *x.shape, str(x.dtype)), individual)
    given = jax.tree.map(lambda x: (x.shape[0], *x.shape[2:], str(x.dtype)), warm.genes)
    if drawn != given:
        raise ConfigError(f"warm: genes [B, ...] are {given}, the proposal draws {drawn}; encode them alike")
    widths = {x.shape[1] for x in jax.tree.leaves(warm.genes)}
    if len(widths) > 1 or (most is not None and max(widths) > most):
        limit = "" if most is None else f", at most {most} (islands * population)"
        raise ConfigError(
            f"warm: {sorted(widths)} individuals per instance; give the same number for every leaf{limit}"
        )
    count = np.asarray(warm.count)
    if count.shape != keys.shape or (count < 0).any() or (count > max(widths)).any():
        raise ConfigError(
            f"warm: count is {count.tolist()}; give one number from 0 to {max(widths)} per instance"
        )


@functools.lru_cache(maxsize=64)
def _individual(
    sample_fn: Callable[..., Any],
    tree: Any,
    kinds: tuple[tuple[tuple[int, ...], np.dtype], ...],
    key: np.dtype,
) -> Any:
    """Shapes of the draws of ``sample_fn``, cached because tracing it takes as long as a small search."""
    params = jax.tree.unflatten(tree, [jax.ShapeDtypeStruct(*kind) for kind in kinds])
    return jax.eval_shape(sample_fn, params, jax.ShapeDtypeStruct((), key))


def evaluate(fitness_fn: Callable[[Any, Any], jax.Array], problem: Any, genes: Any) -> jax.Array:
    """``[B, Q]`` float32, fitness of ``genes [B, Q, ...]``; NaN becomes ``+inf``."""
    fitness = fitness_fn(problem, genes)
    expected = jax.tree.leaves(genes)[0].shape[:2]
    if fitness.shape != expected or fitness.dtype != jnp.float32:
        raise ConfigError(
            f"fitness_fn: returned {fitness.dtype}{list(fitness.shape)}; return float32{list(expected)}, "
            "one number per individual"
        )
    return jnp.where(jnp.isnan(fitness), jnp.inf, fitness)
