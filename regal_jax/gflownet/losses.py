"""Losses of schedule policies: log-partition variance, trajectory balance, and PPO with a clipped ratio."""

import jax
import jax.numpy as jnp

__all__ = [
    "clipped_ratio_loss",
    "log_partition_estimates",
    "log_reward",
    "partition_variance_loss",
    "trajectory_balance_loss",
]


def log_reward(speedup: jax.Array, devices: jax.Array, sigma: jax.Array) -> jax.Array:
    """``log R = (U - m) / sigma``, float32 of the shape of ``speedup``.

    Args:
      speedup: ``U``, float32.
      devices: ``m``, float32 scalar.
      sigma: The temperature, float32 scalar.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, section 3.3.
    """
    return (speedup - devices) / sigma


def log_partition_estimates(reward: jax.Array, forward: jax.Array, backward: jax.Array) -> jax.Array:
    """``[P]`` float32, ``zeta`` of each trajectory (equation 7); it equals log Z if the flow is consistent.

    Args:
      reward: ``[P]`` float32, `log_reward` of the complete schedules.
      forward: ``[P, N]`` float32, see `StepTerms`.
      backward: ``[P, N]`` float32, see `StepTerms`.
    """
    return reward + backward.sum(axis=-1) - forward.sum(axis=-1)


def partition_variance_loss(zeta: jax.Array, centre: jax.Array | None = None) -> jax.Array:
    """The log-partition variance loss, float32 scalar: the mean of ``(zeta - E[zeta])**2`` (equation 8).

    The gradient is the same whether or not it passes through the mean of ``zeta``.

    Args:
      zeta: ``[P]`` float32, from `log_partition_estimates`.
      centre: The mean over all trajectories, if some are on other devices; ``None`` for that of ``zeta``.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, section 3.2.
    """
    centre = zeta.mean() if centre is None else centre
    return ((zeta - jax.lax.stop_gradient(centre)) ** 2).mean()


def trajectory_balance_loss(zeta: jax.Array, log_partition: jax.Array) -> jax.Array:
    """The loss of trajectory balance, float32 scalar: the mean of ``(log Z - zeta)**2 / 2`` (equation 14).

    Args:
      zeta: ``[P]`` float32, from `log_partition_estimates`.
      log_partition: float32 scalar, the learned log Z.

    References:
      Malkin et al. 2022, "Trajectory Balance"; Zhang et al. 2023, appendix B.
    """
    return ((log_partition - zeta) ** 2).mean() / 2


def clipped_ratio_loss(forward: jax.Array, old: jax.Array, advantage: jax.Array, clip: float) -> jax.Array:
    """The negated PPO-clip objective of single actions, of the shape of the arguments.

    Args:
      forward: Log-probabilities of the actions.
      old: Their log-probabilities under the policy that drew them, constants.
      advantage: Returns minus their estimates, constants.
      clip: The ratio is clipped to the interval from ``1 - clip`` to ``1 + clip``.

    References:
      Schulman et al. 2017, "Proximal Policy Optimization Algorithms", equation 7.
    """
    ratio = jnp.exp(forward - old)
    limited = jnp.clip(ratio, 1 - clip, 1 + clip)
    return -jnp.minimum(ratio * advantage, limited * advantage)
