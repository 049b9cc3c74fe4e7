"""Schedules sampled in proportion to a reward (Zhang et al., ICLR 2023)."""

from typing import TYPE_CHECKING

from regal_jax.runtime.lazy import lazily

if TYPE_CHECKING:
    from regal_jax.gflownet.config import STATE_FEATURES, GflownetConfig
    from regal_jax.gflownet.environment import (
        ScheduleState,
        add_op,
        backward_mask,
        forward_mask,
        initial_state,
        lookahead_features,
        precedence,
        removable,
        remove_op,
        speedup,
        state_features,
    )
    from regal_jax.gflownet.infer import Schedules, sample_schedules
    from regal_jax.gflownet.inputs import ScheduleInputs, make_schedule_inputs
    from regal_jax.gflownet.losses import (
        clipped_ratio_loss,
        log_partition_estimates,
        log_reward,
        partition_variance_loss,
        trajectory_balance_loss,
    )
    from regal_jax.gflownet.networks import SchedulePolicy, Scores
    from regal_jax.gflownet.shipped import default_gflownet, shipped_gflownet
    from regal_jax.gflownet.trajectories import (
        StepTerms,
        Trajectories,
        sample_trajectories,
        trajectory_terms,
    )
    from regal_jax.gflownet.weights import load_gflownet, read_gflownet_metadata, save_gflownet

__all__ = [
    "STATE_FEATURES",
    "GflownetConfig",
    "ScheduleInputs",
    "SchedulePolicy",
    "ScheduleState",
    "Schedules",
    "Scores",
    "StepTerms",
    "Trajectories",
    "add_op",
    "backward_mask",
    "clipped_ratio_loss",
    "default_gflownet",
    "forward_mask",
    "initial_state",
    "load_gflownet",
    "log_partition_estimates",
    "log_reward",
    "lookahead_features",
    "make_schedule_inputs",
    "partition_variance_loss",
    "precedence",
    "read_gflownet_metadata",
    "removable",
    "remove_op",
    "sample_schedules",
    "sample_trajectories",
    "save_gflownet",
    "shipped_gflownet",
    "speedup",
    "state_features",
    "trajectory_balance_loss",
    "trajectory_terms",
]

# Networks need Flax, which takes as long to load as JAX; inputs need neither.
__getattr__, __dir__ = lazily(
    __name__,
    {
        "config": ("STATE_FEATURES", "GflownetConfig"),
        "environment": (
            "ScheduleState",
            "add_op",
            "backward_mask",
            "forward_mask",
            "initial_state",
            "lookahead_features",
            "precedence",
            "removable",
            "remove_op",
            "speedup",
            "state_features",
        ),
        "infer": ("Schedules", "sample_schedules"),
        "inputs": ("ScheduleInputs", "make_schedule_inputs"),
        "losses": (
            "clipped_ratio_loss",
            "log_partition_estimates",
            "log_reward",
            "partition_variance_loss",
            "trajectory_balance_loss",
        ),
        "networks": ("SchedulePolicy", "Scores"),
        "shipped": ("default_gflownet", "shipped_gflownet"),
        "trajectories": ("StepTerms", "Trajectories", "sample_trajectories", "trajectory_terms"),
        "weights": ("load_gflownet", "read_gflownet_metadata", "save_gflownet"),
    },
)
