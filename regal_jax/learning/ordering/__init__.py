"""Training of Topoformer by REINFORCE with a greedy rollout as the baseline."""

from regal_jax.learning.ordering.config import (
    OrderDataConfig,
    OrderOptimizerConfig,
    OrderTrainConfig,
)
from regal_jax.learning.ordering.train import OrderTrainResult, OrderValidation, train_orders

__all__ = [
    "OrderDataConfig",
    "OrderOptimizerConfig",
    "OrderTrainConfig",
    "OrderTrainResult",
    "OrderValidation",
    "train_orders",
]
