"""`InsertionTrainConfig`: everything that the training of an insertion policy depends on; read from TOML."""

import dataclasses
from typing import ClassVar

from regal_jax.checks import shown, whole
from regal_jax.datasets import FAMILIES
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.graph import MAX_DEVICES, Cluster
from regal_jax.heuristics import ListSearchConfig
from regal_jax.learning.settings import (
    MOST,
    SystemConfig,
    data_fields,
    least_fields,
    table_fields,
    whole_fields,
)

__all__ = ["InsertionDataConfig", "InsertionTrainConfig"]


@dataclasses.dataclass(frozen=True)
class InsertionDataConfig:
    """The graphs and clusters of a run: each graph is searched on each cluster.

    Attributes:
      train: Sets of graphs to train on; see `regal_jax.datasets.load_graphs`.
      validation: Sets of graphs by which the best weights are chosen.
      limit: Largest number of graphs of each set in `train`, drawn by the seed of the run; 0 for all.
      validation_limit: The same for `validation`.
      max_ops: Leave out larger graphs of the sets; 0 for no limit.
      transfer: Transfer models of the clusters of these graphs, as `Cluster.uniform` takes them.
      devices: Numbers of devices of all clusters.
      families: Families of graphs to generate (`regal_jax.datasets.generate`) and train on as well.
      generated: Number of graphs of each family and size; a quarter as many are for validation.
      ops: Numbers of their ops.
      generated_transfer: Transfer models of their clusters.

    Raises:
      ConfigError: A value is invalid.
    """

    train: tuple[str, ...] | str = ()
    validation: tuple[str, ...] | str = ()
    limit: int = 60
    validation_limit: int = 20
    max_ops: int = 3000
    transfer: tuple[str, ...] | str = ("nvlink4", "pcie4x16")
    devices: tuple[int, ...] = (2, 4)
    families: tuple[str, ...] | str = ("erdos-renyi", "layered", "regal-stochastic-block")
    generated: int = 10
    ops: tuple[int, ...] = (100, 300)
    generated_transfer: tuple[str, ...] | str = ("blocking:latency=25us", "pcie4x16")

    def __post_init__(self) -> None:
        data_fields(self, "train", "validation", "transfer", "families", "generated_transfer")
        whole_fields(self, "data", limit=0, validation_limit=0, max_ops=0, generated=0)
        for field, least, most in (("devices", 2, MAX_DEVICES), ("ops", 1, MOST)):
            given = getattr(self, field)
            listed = isinstance(given, (tuple, list))
            counts = [whole(count, least, most) for count in given] if listed else []
            if not counts or None in counts:
                raise ConfigError(
                    f"data.{field}: is {shown(given)}; give a list of whole numbers from {least} to {most}"
                )
            object.__setattr__(self, field, tuple(counts))
        for family in self.families:
            if family not in FAMILIES:
                raise ConfigError(f"data.families: has {family!r}; use some of {', '.join(FAMILIES)}")
        sets, generated = self.train or self.validation, self.families and self.generated
        for field, graphs in (("transfer", sets), ("generated_transfer", generated)):
            if graphs and not getattr(self, field):
                raise ConfigError(f"data.{field}: is empty; give a link, e.g. ['pcie4x16']")
            for transfer in getattr(self, field):
                try:
                    Cluster.uniform(2, transfer=transfer)
                except ClusterError as error:
                    raise ConfigError(f"data.{field}: {str(error).removeprefix('cluster: ')}") from None


@dataclasses.dataclass(frozen=True)
class InsertionTrainConfig(SystemConfig):
    """A training run of an insertion policy.

    Attributes:
      seed: Seed of the choice of graphs and of the searches.
      rounds: Number of rounds. Each makes searches, and fits the weights to the moves of all rounds so far.
      evaluations: Budget of each search, which must be larger than `ListSearchConfig.insert_after`.
      ridge: Weight of the sum of squared weights in the loss, for features of unit variance.
      data: See `InsertionDataConfig`.

    Raises:
      ConfigError: A value is invalid.
    """

    system: ClassVar[str] = "insertion"
    seed: int = 0
    rounds: int = 1
    evaluations: int = 5000
    ridge: float = 1.0
    data: InsertionDataConfig = dataclasses.field(default_factory=InsertionDataConfig)

    def __post_init__(self) -> None:
        table_fields(self)
        whole_fields(self, "", seed=0, rounds=1, evaluations=1)
        if self.evaluations <= ListSearchConfig.insert_after:
            raise ConfigError(
                f"evaluations: is {self.evaluations}, but insertion moves begin after "
                f"{ListSearchConfig.insert_after} list schedules; raise it"
            )
        least_fields(self, "", ridge=0)
        data = self.data
        if not (data.train or (data.families and data.generated)):
            raise ConfigError("data.train: there are no graphs; give a set, or families to generate")
