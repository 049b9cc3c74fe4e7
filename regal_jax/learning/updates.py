"""Updates of weights by Optax."""

from typing import Any

import jax
import optax

__all__ = ["clipped_adam", "updated"]


def clipped_adam(clip: float, learning_rate: optax.Schedule) -> optax.GradientTransformation:
    """Adam on gradients that are clipped to the norm ``clip``."""
    return optax.chain(optax.clip_by_global_norm(clip), optax.adam(learning_rate))


def updated(
    optimizer: optax.GradientTransformation, gradient: Any, state: Any, weights: Any
) -> tuple[Any, Any]:
    """New weights, and the new state of the optimizer."""
    # Optax mixes dtypes, which the caller's promotion settings may forbid.
    with jax.numpy_dtype_promotion("standard"):
        changes, state = optimizer.update(gradient, state, weights)
        return optax.apply_updates(weights, changes), state
