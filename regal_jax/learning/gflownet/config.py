"""`GflownetTrainConfig`: everything that a training run of a schedule policy depends on; read from TOML."""

import dataclasses
import enum
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Self

from regal_jax.checks import flag, real, shown, whole
from regal_jax.datasets import FAMILIES
from regal_jax.errors import ConfigError
from regal_jax.gflownet import GflownetConfig
from regal_jax.learning.settings import (
    MOST_RATE,
    SystemConfig,
    above_fields,
    data_fields,
    least_fields,
    member_field,
    run_fields,
    whole_fields,
)

__all__ = [
    "GflownetDataConfig",
    "GflownetOptimizerConfig",
    "GflownetTrainConfig",
    "Loss",
    "PpoConfig",
]


class Loss(enum.StrEnum):
    """The loss that trains a policy."""

    VARIANCE = "variance"
    """The log-partition variance loss (equation 8)."""
    BALANCE = "trajectory-balance"
    """Trajectory balance with a learned log Z (equation 14)."""
    PPO = "ppo"
    """PPO with a clipped ratio and an entropy bonus that decays; it estimates no backward probabilities."""


_NEEDED_BY: Final[Mapping[str, Loss]] = MappingProxyType({"partition": Loss.BALANCE, "value": Loss.PPO})
"""Parts of the network that only one loss needs."""


def _temperatures(config: Any, path: str, *fields: str) -> None:
    """Converts the fields to numbers that `regal_jax.gflownet.sample_schedules` takes."""
    for field in fields:
        value = getattr(config, field)
        number = real(value, 1e-6, 1e6)
        if number is None:
            raise ConfigError(f"{path}.{field}: is {shown(value)}; give a number from 1e-06 to 1e+06")
        object.__setattr__(config, field, number)


@dataclasses.dataclass(frozen=True)
class GflownetDataConfig:
    """The graphs of a run.

    The defaults are the paper's (appendix E.5), which does not give `validation_graphs`.

    Attributes:
      families: Families of random graphs, see `regal_jax.datasets.generate`; each has the same share.
      ops: Number of ops of a random graph; families of REGAL add a source and a sink.
      graphs: Number of different random graphs to train on.
      validation_graphs: Number of random graphs for choosing the best weights; may be 0 if `validation` has
        graphs.
      train: Sets of graphs to train on instead; see `regal_jax.datasets.load_graphs`.
      validation: Sets of graphs for choosing the best weights, in addition to random graphs.
      limit: Largest number of graphs of each set; 0 for all.
      max_ops: Leave out larger graphs of the sets; 0 for no limit.
      contract: Contract the graphs of the sets and remove their residents, as the suite of robust scheduling
        does with real graphs; `max_ops` then counts the remaining ops.
      min_parallelism: Leave out graphs of the sets whose ratio of work to longest path is smaller.
      subgraph: Smallest and largest number of ops of the sub-graph of its graph on which each step trains
        (section 3.3). Empty for whole graphs.

    Raises:
      ConfigError: A value is not allowed.
    """

    families: tuple[str, ...] | str = ("gflownet-erdos-renyi", "gflownet-layered")
    ops: int = 50
    graphs: int = 1000
    validation_graphs: int = 16
    train: tuple[str, ...] | str = ()
    validation: tuple[str, ...] | str = ()
    limit: int = 0
    max_ops: int = 100
    contract: bool = False
    min_parallelism: float = 0.0
    subgraph: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        data_fields(self, "families", "train", "validation")
        if not self.families:
            raise ConfigError("data.families: is empty; give at least one family, or leave it out")
        for family in self.families:
            if family not in FAMILIES:
                raise ConfigError(f"data.families: unknown {family!r}; use some of {', '.join(FAMILIES)}")
        whole_fields(self, "data", ops=1, graphs=1, limit=0, max_ops=0)
        whole_fields(self, "data", validation_graphs=0 if self.validation else 1)
        flag("data", "contract", self.contract)
        least_fields(self, "data", min_parallelism=0)
        object.__setattr__(self, "subgraph", self._checked_subgraph())

    def _checked_subgraph(self) -> tuple[int, ...]:
        given: Any = self.subgraph
        if isinstance(given, (tuple, list)):
            sizes = [size for size in (whole(each, 1) for each in given) if size is not None]
            if len(sizes) == len(given) and (not sizes or (len(sizes) == 2 and sizes[0] <= sizes[1])):
                return tuple(sizes)
        raise ConfigError(
            f"data.subgraph: is {shown(given)}; give the fewest and the most ops, e.g. [25, 75]"
        )


@dataclasses.dataclass(frozen=True)
class PpoConfig:
    """Settings of `Loss.PPO`. The temperature is the paper's, which does not give the other values.

    Attributes:
      temperature: Temperature of the reward.
      clip: The ratio of probabilities is clipped to the interval from ``1 - clip`` to ``1 + clip``.
      epochs: Number of updates of the weights with the trajectories of a step.
      entropy: Weight of the entropy bonus at the first step.
      entropy_decay: Factor of that weight over the run, at most 1; the decay is exponential.
      value: Weight of the squared error of the estimated returns.

    Raises:
      ConfigError: A value is not allowed.

    References:
      Schulman et al. 2017, "Proximal Policy Optimization Algorithms"; Zhang et al. 2023, section 5 and
      appendix E.1.
    """

    temperature: float = 0.25
    clip: float = 0.2
    epochs: int = 4
    entropy: float = 0.01
    entropy_decay: float = 0.01
    value: float = 0.5

    def __post_init__(self) -> None:
        whole_fields(self, "ppo", epochs=1)
        least_fields(self, "ppo", entropy=0, value=0)
        above_fields(self, "ppo", clip=0)
        _temperatures(self, "ppo", "temperature")
        above_fields(self, "ppo", 1, entropy_decay=0)


@dataclasses.dataclass(frozen=True)
class GflownetOptimizerConfig:
    """Settings of the updates of the weights.

    The defaults of `loss`, `trajectories`, both temperatures of the training and `learning_rate` (the default
    of Adam) are those of the paper. The paper clips no gradients and decays only the learning rate of PPO.

    Attributes:
      loss: A `Loss` or its name.
      steps: Number of mini-batches. Each has one graph and, except with PPO, one temperature.
      trajectories: ``P``, the number of schedules sampled in a step.
      learning_rate: Learning rate of Adam at the first step, at most 10.
      decay: Factor of the learning rate over the run, at most 1 (no decay); the decay is exponential.
      min_temperature: Lowest temperature; temperatures are drawn log-uniformly. All are from 1e-6 to 1e6.
      max_temperature: Highest temperature.
      clip: Largest norm of a gradient; 0 for no limit.
      validation_temperature: Temperature at which schedules of the validation graphs are sampled.
      validation_samples: Number of schedules for each validation graph.
      log_every: Steps between two records of metrics.
      validate_every: Steps between two validations.
      checkpoint_every: Steps between two checkpoints.

    Raises:
      ConfigError: A value is not allowed.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, appendices C and E.1.
    """

    loss: Loss = Loss.VARIANCE
    steps: int = 10_000
    trajectories: int = 100
    learning_rate: float = 1e-3
    decay: float = 1.0
    min_temperature: float = 0.01
    max_temperature: float = 1.0
    clip: float = 0.0
    validation_temperature: float = 0.005
    validation_samples: int = 100
    log_every: int = 1
    validate_every: int = 250
    checkpoint_every: int = 50

    def __post_init__(self) -> None:
        member_field(self, "optimizer", "loss", Loss)
        whole_fields(self, "optimizer", steps=1, trajectories=2, validation_samples=1)
        whole_fields(self, "optimizer", log_every=1, validate_every=1, checkpoint_every=1)
        least_fields(self, "optimizer", clip=0)
        above_fields(self, "optimizer", MOST_RATE, learning_rate=0)
        above_fields(self, "optimizer", 1, decay=0)
        _temperatures(self, "optimizer", "min_temperature", "max_temperature", "validation_temperature")
        if self.max_temperature < self.min_temperature:
            raise ConfigError(
                f"optimizer.min_temperature, optimizer.max_temperature: are {self.min_temperature} and "
                f"{self.max_temperature}; give a maximum of at least the minimum, from 1e-06 to 1e+06"
            )


@dataclasses.dataclass(frozen=True)
class GflownetTrainConfig(SystemConfig):
    """A training run of a schedule policy.

    Attributes:
      seed: Seed of the initial weights, the graphs, the temperatures and the schedules.
      start: File of initial weights for the same `model`. Empty for random weights.
      data: See `GflownetDataConfig`.
      model: Architecture of the network. `optimizer.loss` decides on `partition` and `value`, the parts that
        only one loss needs: leave these out.
      optimizer: See `GflownetOptimizerConfig`.
      ppo: See `PpoConfig`; used by that loss only.

    Raises:
      ConfigError: A value is not allowed.
    """

    system: ClassVar[str] = "gflownet"
    seed: int = 0
    start: str = ""
    data: GflownetDataConfig = dataclasses.field(default_factory=GflownetDataConfig)
    model: GflownetConfig = dataclasses.field(default_factory=GflownetConfig)
    optimizer: GflownetOptimizerConfig = dataclasses.field(default_factory=GflownetOptimizerConfig)
    ppo: PpoConfig = dataclasses.field(default_factory=PpoConfig)

    def __post_init__(self) -> None:
        run_fields(self)
        parts = {part: self.optimizer.loss is by for part, by in _NEEDED_BY.items()}
        object.__setattr__(self, "model", dataclasses.replace(self.model, **parts))

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """As for every system; parts of the network that the loss does not have are refused."""
        made = super().from_document(document)
        for part, by in _NEEDED_BY.items():
            if document.get("model", {}).get(part) and made.optimizer.loss is not by:
                raise ConfigError(
                    f"model.{part}: is True, but optimizer.loss is {str(made.optimizer.loss)!r}, which "
                    f"decides; leave it out, or give the loss {str(by)!r}"
                )
        return made
