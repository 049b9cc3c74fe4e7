"""Training of policies by REINFORCE through the search itself."""

from regal_jax.learning.config import Baseline, Contract, DataConfig, OptimizerConfig, TaskConfig, TrainConfig
from regal_jax.learning.data import noisy_copies, training_graphs, training_shares
from regal_jax.learning.processes import join_processes
from regal_jax.learning.share import GraphShare
from regal_jax.learning.train import TrainResult, train
from regal_jax.learning.validate import Validation

__all__ = [
    "Baseline",
    "Contract",
    "DataConfig",
    "GraphShare",
    "OptimizerConfig",
    "TaskConfig",
    "TrainConfig",
    "TrainResult",
    "Validation",
    "join_processes",
    "noisy_copies",
    "train",
    "training_graphs",
    "training_shares",
]
