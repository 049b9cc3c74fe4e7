"""`OrderTrainConfig`: everything that a training run of Topoformer depends on; read from TOML."""

import dataclasses
from typing import ClassVar, Final

from regal_jax.checks import flag, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.learning.settings import (
    MOST_RATE,
    SystemConfig,
    above_fields,
    data_fields,
    least_fields,
    run_fields,
    whole_fields,
)
from regal_jax.ordering import Decoder, TopoformerConfig

__all__ = ["OrderDataConfig", "OrderOptimizerConfig", "OrderTrainConfig"]

_MOST_OPS: Final = 2**16 - 1
"""Largest number of ops of a graph that is ordered on a device."""


@dataclasses.dataclass(frozen=True)
class OrderDataConfig:
    """The graphs of a run.

    Attributes:
      ops: Sizes of the layered graphs; each step draws one of them.
      validation_graphs: Number of layered graphs of each size to choose the best weights by; 0 if
        `validation` has graphs.
      train: Sets of graphs to train on as well; see `regal_jax.datasets.load_graphs`.
      validation: Sets of graphs by which the best weights are chosen.
      share: Share of the steps that take their graphs from `train`, if it has any.
      limit: Largest number of graphs of each set; 0 for all.
      max_ops: Leave out larger graphs of the sets; 0 for no limit.

    Raises:
      ConfigError: A value is invalid.
    """

    ops: tuple[int, ...] = (500,)
    validation_graphs: int = 100
    train: tuple[str, ...] | str = ()
    validation: tuple[str, ...] | str = ()
    share: float = 0.5
    limit: int = 0
    max_ops: int = 1000

    def __post_init__(self) -> None:
        sizes = (
            [whole(size, 1, _MOST_OPS) for size in self.ops] if isinstance(self.ops, (tuple, list)) else []
        )
        if not sizes or None in sizes:
            raise ConfigError(
                f"data.ops: is {shown(self.ops)}; give a list of whole numbers from 1 to {_MOST_OPS}, "
                "e.g. [500]"
            )
        object.__setattr__(self, "ops", tuple(sizes))
        data_fields(self, "train", "validation")
        whole_fields(self, "data", validation_graphs=0 if self.validation else 1, limit=0, max_ops=0)
        least_fields(self, "data", share=0)
        if self.share > 1:
            raise ConfigError(f"data.share: is {self.share}; give a number from 0 to 1")


@dataclasses.dataclass(frozen=True)
class OrderOptimizerConfig:
    """Settings of the updates of the weights; defaults as in the paper (appendix C.1), which gives no `clip`.

    Attributes:
      steps: Number of updates of the weights.
      batch: Number of graphs in a step, ``B``.
      samples: Number of orders for each graph, ``S``.
      learning_rate: Learning rate of Adam in the first epoch, at most 10.
      decay: Factor of the learning rate after each epoch, at most 1.
      epoch_graphs: Number of graphs in an epoch. After each epoch the policy is validated; if it is better,
        it is the new baseline.
      clip: Largest norm of a gradient.
      standardise: Subtract from the peaks of a graph's orders their mean and divide by their standard
        deviation, instead of the baseline's peak (One-Shot Priority Sampling).
      logit_norm: Weight of the mean squared priority before it is standardised (0.001 in One-Shot Priority
        Sampling).
      log_every: Steps between two records of metrics.
      checkpoint_every: Steps between two checkpoints.

    Raises:
      ConfigError: A value is invalid.

    References:
      Gagrani et al. 2022, appendix C.1; Jeon et al. 2023, "Neural DAG Scheduling via One-Shot Priority
      Sampling", ICLR.
    """

    steps: int = 40_750
    batch: int = 8
    samples: int = 1
    learning_rate: float = 1e-4
    decay: float = 0.996
    epoch_graphs: int = 1000
    clip: float = 1.0
    standardise: bool = False
    logit_norm: float = 0.0
    log_every: int = 1
    checkpoint_every: int = 125

    def __post_init__(self) -> None:
        whole_fields(self, "optimizer", steps=1, batch=1, samples=1, epoch_graphs=1, log_every=1)
        whole_fields(self, "optimizer", checkpoint_every=1)
        least_fields(self, "optimizer", logit_norm=0)
        above_fields(self, "optimizer", clip=0)
        above_fields(self, "optimizer", MOST_RATE, learning_rate=0)
        above_fields(self, "optimizer", 1, decay=0)
        flag("optimizer", "standardise", self.standardise)
        if self.standardise and self.samples < 2:
            raise ConfigError(
                "optimizer.samples: is 1, but standardise needs at least 2 orders per graph; raise it"
            )

    @property
    def epoch(self) -> int:
        """Steps in an epoch."""
        return -(-self.epoch_graphs // self.batch)


@dataclasses.dataclass(frozen=True)
class OrderTrainConfig(SystemConfig):
    """A training run of Topoformer.

    Attributes:
      seed: Seed of the initial weights, the graphs and the orders.
      start: File of initial weights, of the same `model`. Empty for random ones.
      data: See `OrderDataConfig`.
      model: Architecture of the network that is trained.
      optimizer: See `OrderOptimizerConfig`.

    Raises:
      ConfigError: A value is invalid.
    """

    system: ClassVar[str] = "topoformer"
    seed: int = 0
    start: str = ""
    data: OrderDataConfig = dataclasses.field(default_factory=OrderDataConfig)
    model: TopoformerConfig = dataclasses.field(default_factory=TopoformerConfig)
    optimizer: OrderOptimizerConfig = dataclasses.field(default_factory=OrderOptimizerConfig)

    def __post_init__(self) -> None:
        run_fields(self)
        if self.optimizer.logit_norm and self.model.decoder is Decoder.AUTOREGRESSIVE:
            raise ConfigError(
                f"optimizer.logit_norm: is {self.optimizer.logit_norm}, but a network with the "
                "autoregressive decoder has no priorities; leave it out"
            )
