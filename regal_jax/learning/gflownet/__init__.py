"""Training of networks that sample schedules: GFlowNets, and PPO on the same environment."""

from regal_jax.learning.gflownet.config import (
    GflownetDataConfig,
    GflownetOptimizerConfig,
    GflownetTrainConfig,
    Loss,
    PpoConfig,
)
from regal_jax.learning.gflownet.train import GflownetTrainResult, GflownetValidation, train_gflownet

__all__ = [
    "GflownetDataConfig",
    "GflownetOptimizerConfig",
    "GflownetTrainConfig",
    "GflownetTrainResult",
    "GflownetValidation",
    "Loss",
    "PpoConfig",
    "train_gflownet",
]
