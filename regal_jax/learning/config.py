"""`TrainConfig`: everything that a training run depends on, apart from the graphs; read from TOML."""

import dataclasses
import enum
import math
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from regal_jax.checks import check_kind, flag, is_number, real, shown
from regal_jax.datasets.noise import MOST_NOISE
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.even_split import even_split
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
from regal_jax.plan import Objective
from regal_jax.policies import PolicyConfig
from regal_jax.search import BrkgaConfig
from regal_jax.solve import ENCODINGS

__all__ = ["Baseline", "Contract", "DataConfig", "OptimizerConfig", "TaskConfig", "TrainConfig"]


class Baseline(enum.StrEnum):
    """The baseline that is subtracted from a reward."""

    LEAVE_ONE_OUT = "leave-one-out"
    """The mean reward of the other actions for the same graph. The learned value would cancel."""
    LEARNED = "learned"
    """The value network's ``b(G)``, as in the paper."""


class Contract(enum.StrEnum):
    """Whether graphs are contracted first, by `regal_jax.contract`."""

    NO = "no"
    ONLY = "only"
    BOTH = "both"
    """Both the original and the contracted graph; a graph that is too large may fit when contracted."""


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """The task that the policy is trained for.

    Attributes:
      objective: An `Objective` or its name.
      memory: Capacity of each device, as `Cluster.uniform` takes it: ``"16GiB"``, or a number of bytes,
        which becomes a text; ``"inf"`` for no limit.
      transfer: Transfer model as for `Cluster.uniform`, e.g. ``"nvlink4"``; by default at no cost, as in the
        papers.
      evaluations: Budget of every search in training.
      encoding: Name of what the genes of the searches mean (`regal_jax.solve.ENCODINGS`).
      capacity: Capacity of each device relative to an even split of a graph's memory, for limits that bind
        (`regal_jax.heuristics.even_split`); 0 for `memory`.

    Raises:
      ConfigError: A value is invalid.
    """

    objective: Objective = Objective.MAKESPAN
    memory: str | float = "inf"
    transfer: str = "blocking"
    evaluations: int = 1000
    encoding: str = "chromosome"
    capacity: float = 0.0

    def __post_init__(self) -> None:
        member_field(self, "task", "objective", Objective)
        if not isinstance(self.encoding, str) or self.encoding not in ENCODINGS:
            raise ConfigError(f"task.encoding: is {shown(self.encoding)}; use one of {', '.join(ENCODINGS)}")
        whole_fields(self, "task", evaluations=1)
        least_fields(self, "task", capacity=0)
        check_kind("task.transfer", self.transfer, str)
        if not is_number(self.memory):
            check_kind("task.memory", self.memory, str)
        cluster = self.cluster(1)
        if is_number(self.memory):
            object.__setattr__(self, "memory", f"{cluster.memory[0]:.0f}")
        if self.capacity and self.memory != "inf":
            raise ConfigError(
                f"task.memory, task.capacity: are {shown(self.memory)} and {self.capacity}; leave one out"
            )

    def cluster_of(self, graph: ComputationGraph, devices: int) -> Cluster:
        """The cluster that a graph is placed on, which depends on the graph only with `capacity`."""
        if not self.capacity:
            return self.cluster(devices)
        return even_split(graph, devices, self.capacity, self.transfer)

    def cluster(self, devices: int) -> Cluster:
        """The cluster that every graph is placed on, without `capacity`.

        Raises:
          ConfigError: The values make no valid cluster.
        """
        try:
            return Cluster.uniform(devices, self.memory, self.transfer)
        except ClusterError as error:
            message = str(error).removeprefix("cluster: ")
            raise ConfigError(f"task.memory, task.transfer: {message}") from None


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """The graphs of a run and their preparation.

    Attributes:
      train: One or several folders, archives or corpora to train on; see `regal_jax.datasets.load_graphs`.
      validation: Folders, archives or corpora by which the best weights are chosen.
      train_limit: Most graphs of each set in `train`, taken from its front; 0 for all. With
        ``contract = "both"``, the limit holds for original and for contracted graphs.
      validation_limit: Most graphs of each set in `validation`; 0 for all.
      max_ops: Leave out larger graphs (after contraction); 0 for no limit.
      contract: A `Contract` or its name.
      min_parallelism: Smallest ratio of work to longest path of a training graph. At a ratio of 1, no
        makespan is shorter than that of one device, and there is nothing to learn.
      noise: Relative standard deviation of the noise on runtimes and sizes; see `noisy_copies`.
      noisy_copies: Number of noisy variants of each training graph, in addition to the graph itself.

    Raises:
      ConfigError: A value is invalid.
    """

    train: tuple[str, ...] | str = ()
    validation: tuple[str, ...] | str = ()
    train_limit: int = 0
    validation_limit: int = 200
    max_ops: int = 0
    contract: Contract = Contract.NO
    min_parallelism: float = 0.0
    noise: float = 0.1
    noisy_copies: int = 0

    def __post_init__(self) -> None:
        data_fields(self, "train", "validation")
        whole_fields(self, "data", train_limit=0, validation_limit=0, max_ops=0, noisy_copies=0)
        least_fields(self, "data", noise=0, min_parallelism=0)
        if self.noise > MOST_NOISE:
            raise ConfigError(f"data.noise: is {self.noise}; give a number from 0 to {MOST_NOISE}")
        member_field(self, "data", "contract", Contract)


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """Settings of the updates of the weights.

    Attributes:
      steps: Number of updates of the weights.
      batch: Number of graphs in a step, ``B``.
      samples: Number of actions for each graph, ``S``.
      learning_rate: Largest learning rate of Adam, at most 10.
      warmup: Steps until the largest learning rate; afterwards it falls to a tenth along a cosine.
      clip: Largest norm of a gradient.
      entropy: Weight of the entropy bonus (nats per choice, beside standardised advantages).
      entropy_end: Weight of the entropy bonus at the last step; linear in between.
      baseline: A `Baseline` or its name.
      standardise: Divide advantages by their root mean square over the batch and by the number of choices;
        our addition. Without it, the loss is the paper's ``-(r - b(G)) log p(a | G)``.
      worst: Largest magnitude of a reward; rewards are clipped to at least ``-worst``. Infinite for no limit.
      reference_seeds: Number of uniform searches whose mean is a graph's reference.
      pools: Largest number of compiled sizes.
      log_every: Steps between two records of metrics.
      validate_every: Steps between two validations.
      checkpoint_every: Steps between two checkpoints.

    Raises:
      ConfigError: A value is invalid.
    """

    steps: int = 1000
    batch: int = 32
    samples: int = 4
    learning_rate: float = 1e-3
    warmup: int = 20
    clip: float = 1.0
    entropy: float = 0.01
    entropy_end: float = 0.0
    baseline: Baseline = Baseline.LEAVE_ONE_OUT
    standardise: bool = True
    worst: float = 2.0
    reference_seeds: int = 3
    pools: int = 3
    log_every: int = 1
    validate_every: int = 50
    checkpoint_every: int = 25

    def __post_init__(self) -> None:
        member_field(self, "optimizer", "baseline", Baseline)
        whole_fields(self, "optimizer", steps=1, batch=1, samples=1, warmup=0, reference_seeds=1, pools=1)
        whole_fields(self, "optimizer", log_every=1, validate_every=1, checkpoint_every=1)
        least_fields(self, "optimizer", entropy=0, entropy_end=0)
        above_fields(self, "optimizer", MOST_RATE, learning_rate=0)
        above_fields(self, "optimizer", clip=0)
        if real(self.worst, infinite=True) != math.inf:
            above_fields(self, "optimizer", worst=1)
        flag("optimizer", "standardise", self.standardise)
        if self.baseline is Baseline.LEAVE_ONE_OUT and self.samples < 2:
            raise ConfigError(
                "optimizer.samples: is 1, but the baseline leave-one-out needs at least 2 actions per graph; "
                'raise it, or set optimizer.baseline = "learned"'
            )


@dataclasses.dataclass(frozen=True)
class TrainConfig(SystemConfig):
    """A training run.

    Attributes:
      seed: Seed of the initial weights, the order of graphs, the actions and the searches.
      start: File of initial weights, of the same `policy`, for example for a second stage with a larger
        budget. Empty for random ones.
      task: See `TaskConfig`.
      data: See `DataConfig`.
      policy: Config of the policy that is trained, for the objective of the task.
      search: Config of the guided BRKGA. With ``elites = 0`` and ``mutants = population`` it is random
        search, and the policy is the paper's IDRS.
      optimizer: See `OptimizerConfig`.

    Raises:
      ConfigError: A value is invalid.
    """

    system: ClassVar[str] = "regal"
    seed: int = 0
    start: str = ""
    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    data: DataConfig = dataclasses.field(default_factory=DataConfig)
    policy: PolicyConfig = dataclasses.field(default_factory=PolicyConfig)
    search: BrkgaConfig = dataclasses.field(default_factory=BrkgaConfig)
    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)

    def __post_init__(self) -> None:
        run_fields(self)
        if self.policy.objective is not self.task.objective:
            raise ConfigError(
                f"policy.objective: is '{self.policy.objective}', but task.objective is "
                f"'{self.task.objective}'; give the policy the objective of the task"
            )

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """See `SystemConfig`. The objective of the policy may be left out: it is the task's."""
        return super().from_document(_with_objective(document))


def _with_objective(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """A document whose policy has the objective of its task, unless it has one of its own."""
    if not isinstance(document, Mapping):
        return document
    task, policy = document.get("task"), document.get("policy", {})
    objective = task.get("objective") if isinstance(task, Mapping) else None
    # Errors in either table are reported when it is parsed.
    known = isinstance(objective, str) and objective in Objective.__members__.values()
    if not known or not isinstance(policy, Mapping):
        return document
    return {**document, "policy": {"objective": objective, **policy}}
