"""`TrainConfig`: everything that a training run depends on, apart from the graphs; read from TOML."""

import dataclasses
import enum
import math
import os
import pathlib
import tomllib
import typing
from collections.abc import Mapping
from typing import Any, Self

from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster
from regal_jax.plan import Objective
from regal_jax.policies import PolicyConfig
from regal_jax.search import BrkgaConfig

__all__ = ["Baseline", "DataConfig", "OptimizerConfig", "TaskConfig", "TrainConfig"]


class Baseline(enum.StrEnum):
    """What is subtracted from a reward."""

    LEAVE_ONE_OUT = "leave-one-out"
    """The mean reward of the other actions for the same graph. The learned value would cancel in it."""
    LEARNED = "learned"
    """The value network's ``b(G)``, as in the paper."""


@dataclasses.dataclass(frozen=True)
class TaskConfig:
    """What the policy is for.

    Attributes:
      objective: An `Objective` or its name.
      memory: Capacity of each device, as `Cluster.uniform` takes it: ``"16GiB"``; ``"inf"`` for no limit.
      transfer: As `Cluster.uniform` takes it: ``"blocking"``, ``"blocking:latency=5us,bandwidth=50GB/s"``.
      evaluations: Budget of every search in training.
    """

    objective: Objective = Objective.MAKESPAN
    memory: str = "inf"
    transfer: str = "blocking"
    evaluations: int = 1000

    def cluster(self, devices: int) -> Cluster:
        """The cluster that every graph is placed on.

        Raises:
          ClusterError: Values that no cluster can have.
        """
        return Cluster.uniform(devices, self.memory, self.transfer)


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Which graphs, and what is done to them.

    Attributes:
      train: Folder, archive or corpus of graphs to train on; see `regal_jax.learning.load_graphs`.
      validation: Likewise, to choose the best weights by.
      train_limit: Most graphs, the first in the order of the set; 0 for all.
      validation_limit: Likewise.
      max_ops: Leave out larger graphs (after contraction); 0 for no limit.
      contract: Train on the graphs that `regal_jax.contract` makes.
      noise: Relative standard deviation of the noise on runtimes and sizes; see `noisy_copies`.
      noisy_copies: Noisy variants of each training graph, beside the graph itself.
    """

    train: str = ""
    validation: str = ""
    train_limit: int = 0
    validation_limit: int = 200
    max_ops: int = 0
    contract: bool = False
    noise: float = 0.1
    noisy_copies: int = 0


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
    """How the weights change.

    Attributes:
      steps: Updates of the weights.
      batch: Graphs in a step, ``B``.
      samples: Actions for each of them, ``S``.
      learning_rate: Of Adam, at its peak.
      warmup: Steps until then; it falls to a tenth along a cosine afterwards.
      clip: Largest norm of a gradient.
      entropy: Weight of the entropy bonus (nats a choice, beside standardised advantages).
      entropy_end: The same at the last step; linear in between.
      baseline: A `Baseline` or its name.
      worst: No reward is less than minus this.
      reference_seeds: Uniform searches that a graph's reference is the mean of.
      pools: Most compiled sizes.
      log_every: Steps between two records of metrics.
      validate_every: Steps between two validations.
      checkpoint_every: Steps between two checkpoints.
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
    worst: float = 2.0
    reference_seeds: int = 3
    pools: int = 3
    log_every: int = 1
    validate_every: int = 50
    checkpoint_every: int = 25


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """A training run.

    Attributes:
      seed: Of the first weights, the order of graphs, the actions and the searches.
      task: See `TaskConfig`.
      data: See `DataConfig`.
      policy: What is trained.
      search: The BRKGA that is guided; with ``elites = 0`` and ``mutants = population`` it is random search
        and the policy is the paper's IDRS.
      optimizer: See `OptimizerConfig`.

    Raises:
      ConfigError: A value that cannot be.
    """

    seed: int = 0
    task: TaskConfig = TaskConfig()
    data: DataConfig = DataConfig()
    policy: PolicyConfig = PolicyConfig()
    search: BrkgaConfig = BrkgaConfig()
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self) -> None:
        o, t, d = self.optimizer, self.task, self.data
        least = {
            "seed": (self.seed, 0), "task.evaluations": (t.evaluations, 1), "optimizer.steps": (o.steps, 1),
            "optimizer.batch": (o.batch, 1), "optimizer.samples": (o.samples, 1), "optimizer.warmup": (o.warmup, 0),
            "optimizer.reference_seeds": (o.reference_seeds, 1), "optimizer.pools": (o.pools, 1),
            "optimizer.log_every": (o.log_every, 1), "optimizer.validate_every": (o.validate_every, 1),
            "optimizer.checkpoint_every": (o.checkpoint_every, 1), "data.max_ops": (d.max_ops, 0),
            "data.noisy_copies": (d.noisy_copies, 0), "data.train_limit": (d.train_limit, 0),
            "data.validation_limit": (d.validation_limit, 0),
        }  # fmt: skip
        for name, (value, low) in least.items():
            if not low <= value < 2**31:
                raise ConfigError(f"{name}: is {value}; give a whole number of at least {low}")
        for name, value, low in (
            ("optimizer.learning_rate", o.learning_rate, 0.0), ("optimizer.clip", o.clip, 0.0),
            ("optimizer.worst", o.worst, 1.0),
        ):  # fmt: skip
            if not low < value < math.inf:
                raise ConfigError(f"{name}: is {value}; give a number above {low:g}")
        for name, value in (
            ("optimizer.entropy", o.entropy), ("optimizer.entropy_end", o.entropy_end), ("data.noise", d.noise)
        ):  # fmt: skip
            if not 0 <= value < math.inf:
                raise ConfigError(f"{name}: is {value}; give a number of at least 0")
        if o.baseline is Baseline.LEAVE_ONE_OUT and o.samples < 2:
            raise ConfigError(
                "optimizer.samples: the baseline leave-one-out needs 2 actions a graph at least; raise samples, or "
                'set baseline = "learned"'
            )
        t.cluster(self.policy.num_devices)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """From nested tables, as TOML gives them; what is left out keeps its default.

        Raises:
          ConfigError: An unknown name, a value of a wrong type or out of range; the message names it.
        """
        return _build(cls, document, "")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """From a TOML file.

        Raises:
          ConfigError: No such file, no TOML, or as `from_document`.
        """
        try:
            document = tomllib.loads(pathlib.Path(path).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigError(f"{path}: cannot be read as TOML: {error}") from None
        return cls.from_document(document)

    def as_document(self) -> dict[str, Any]:
        """Nested tables of plain values, from which `from_document` makes an equal config."""
        return _plain(self)


_T = typing.TypeVar("_T")


def _build(kind: type[_T], table: Any, path: str) -> _T:
    """An instance of the dataclass ``kind`` from a table."""
    if not isinstance(table, Mapping):
        raise ConfigError(f"{path.rstrip('.')}: must be a table, got {table!r}")
    hints = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(typing.cast(Any, kind))]
    for name in table:
        if name not in names:
            raise ConfigError(f"{path}{name}: there is no such setting; use one of {', '.join(names)}")
    return kind(**{name: _value(hints[name], value, f"{path}{name}") for name, value in table.items()})


def _value(hint: Any, value: Any, path: str) -> Any:
    """``value`` as the annotated type, or a `ConfigError` that names ``path``."""
    if dataclasses.is_dataclass(hint):
        return _build(typing.cast(type, hint), value, f"{path}.")
    options = typing.get_args(hint) if typing.get_origin(hint) is not tuple else ()
    if type(None) in options or str in options:
        # An optional value, or a name that the config itself turns into an enumeration.
        return value
    if typing.get_origin(hint) is tuple:
        if not isinstance(value, (list, tuple)):
            raise ConfigError(f"{path}: must be a list, got {value!r}")
        return tuple(value)
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        if value not in hint.__members__.values():
            raise ConfigError(f"{path}: is {value!r}; use one of {', '.join(hint)}")
        return hint(value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
        raise ConfigError(f"{path}: must be of type {hint.__name__}, got {value!r}")
    return value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        table = {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {name: entry for name, entry in table.items() if entry is not None}
    if isinstance(value, enum.StrEnum):
        return str(value)
    return list(value) if isinstance(value, tuple) else value
