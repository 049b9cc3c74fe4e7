"""Training of the policies that choose insertion moves."""

from regal_jax.learning.insertion.config import InsertionDataConfig, InsertionTrainConfig
from regal_jax.learning.insertion.train import (
    InsertionTrainResult,
    InsertionValidation,
    train_insertion,
)

__all__ = [
    "InsertionDataConfig",
    "InsertionTrainConfig",
    "InsertionTrainResult",
    "InsertionValidation",
    "train_insertion",
]
