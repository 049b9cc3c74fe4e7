"""The list of beta distributions from which a policy chooses."""

from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.encoding import quantile_table
from regal_jax.policies.config import PolicyConfig

__all__ = ["action_means", "action_parameters", "action_table"]

SMALLEST: Final = 0.1
"""Smallest alpha and beta. A mean and a variance that would give less (or a negative value, which no beta
distribution has) get the largest variance that does not. With less, most of the table would be zeros and
ones, and keys would tie."""
MOST: Final = 1e12
"""Sum of alpha and beta for a variance of 0, which is a point at the resolution of keys."""


def action_parameters(config: PolicyConfig) -> tuple[np.ndarray, np.ndarray]:
    """Alphas and betas of all actions.

    A mean ``m`` and a variance ``v`` are those of ``beta(m nu, (1 - m) nu)`` with
    ``nu = m (1 - m) / v - 1``, clipped below such that alpha and beta are at least 0.1, and above for
    ``v = 0``. With `Ablation.uniform` the largest variance is beta(1, 1) instead, whatever the mean.

    Returns:
      Two arrays ``[K]`` float64; row ``i * K2 + j`` is the first choice ``i`` with the second ``j``.

    References:
      REGAL, ICLR 2020, section 4 (means and variances); workshop text, appendix A.3 (alphas and betas).
    """
    first, second = (x.ravel() for x in np.meshgrid(*config.bins, indexing="ij"))
    if config.ablation.alphas:
        return first, second
    with np.errstate(divide="ignore"):
        nu = np.minimum(first * (1 - first) / second - 1, MOST)
    nu = np.maximum(nu, SMALLEST / np.minimum(first, 1 - first))
    alpha, beta = first * nu, (1 - first) * nu
    if config.ablation.uniform:
        widest = second == second.max()
        alpha[widest] = beta[widest] = 1
    return alpha, beta


def action_table(config: PolicyConfig) -> jax.Array:
    """``[K, Q]`` uint32 quantiles of all actions, see `regal_jax.encoding.quantile_table`."""
    return quantile_table(*action_parameters(config))


def action_means(config: PolicyConfig) -> jax.Array:
    """``[K]`` int32 means of all actions, in units of 2**-16."""
    alphas, betas = action_parameters(config)
    # Means that differ only by rounding become equal.
    return jnp.asarray(np.floor(np.round(alphas / (alphas + betas), 9) * 65536).astype(np.int32))
