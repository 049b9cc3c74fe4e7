"""The loss of REINFORCE and its baselines, for one graph; the caller vmaps."""

from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

__all__ = ["leave_one_out", "reinforce_loss", "reward", "standardised"]

_NOISE: Final = 1e-5


def reward(objective: jax.Array, reference: jax.Array, worst: float) -> jax.Array:
    """``-objective / reference``: above -1 if the action did better than the uniform proposal.

    Args:
      objective: ``[S]`` float32, objectives of the searches with the actions.
      reference: Scalar, objective of the uniform proposal with as many evaluations.
      worst: Rewards are clipped to at least ``-worst``. With finite memories an infeasible plan has an
        objective above 1, many times a good reference, and one such graph would outweigh its whole batch.

    References:
      REGAL, workshop text, section 2.3.
    """
    # A reference of 0 cannot be improved on and counts as matched, with the ratio 1.
    ratio = jnp.where(reference > 0, objective / jnp.where(reference > 0, reference, 1), 1)
    return -jnp.minimum(ratio, worst)


def leave_one_out(rewards: jax.Array) -> jax.Array:
    """``[S]`` advantages: each reward of a graph minus the mean of the others.

    Unbiased, since the other samples are independent of the action; needs at least two samples.

    References:
      Kool, van Hoof and Welling 2019, "Buy 4 REINFORCE samples, get a baseline for free!", section 3.
    """
    s = rewards.shape[0]
    return (rewards - rewards.mean()) * (s / (s - 1))


def standardised(advantages: jax.Array, spread: jax.Array) -> jax.Array:
    """Advantages in units of their spread, so that the size of a step does not depend on the kind of graphs.

    Args:
      advantages: Advantages of any shape.
      spread: Scalar, the root of their mean square. A spread below 1e-5 is the rounding error of equal
        rewards and is not amplified.
    """
    return advantages / jnp.maximum(spread, _NOISE)


def reinforce_loss(log_probs: jax.Array, advantages: jax.Array) -> jax.Array:
    """Loss whose gradient estimates that of the negative expected reward from ``S`` actions.

    Args:
      log_probs: ``[S]`` log-probabilities of the actions, differentiable.
      advantages: ``[S]`` advantages, treated as constants.

    References:
      Williams 1992, "Simple statistical gradient-following algorithms", theorem 1.
    """
    return -(lax.stop_gradient(advantages) * log_probs).mean()
