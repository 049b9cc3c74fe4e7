"""`EvaluationConfig`: all that an evaluation depends on, apart from the graphs; read from TOML."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self

from regal_jax.checks import check_whole, real, shown
from regal_jax.errors import ConfigError
from regal_jax.experiments.networks import network_rows
from regal_jax.experiments.registry import GUIDED, method_names
from regal_jax.graph import Cluster
from regal_jax.plan import Objective
from regal_jax.storage.documents import read_toml

__all__ = ["SUITES", "EvaluationConfig"]

SUITES: Final = ("regal", "realistic", "topological-order")

_MOST: Final = 2**31 - 1
"""Largest whole number of a field: evaluations are counted in int32."""
_DEFAULT: Final = (
    "brkga", "tuned-brkga", "gp-dfs", "critical-path", "xla-best", "random-search", "local-search",
    "annealing", "list-search", "peak-search", "auto", "cp-sat", "idrs", "gas", "regal",
)  # fmt: skip

_ORDERING: Final = (
    "approximate-dp", "depth-first-dp", "random-orders", "partition-dfs", "bfs", "xla-list", "xla-dfs",
    "xla-post-order", "xla-best", "lpmf", "order-search", "auto",
)  # fmt: skip
"""Default of the suite of orders; the rows of networks follow from `EvaluationConfig.weights`."""

_FIXED: Final = re.compile(r"brkga-[1-9]\d{0,5}k")


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Which methods, on which graphs, with which budgets.

    Attributes:
      graphs: A set of graphs, a corpus, or ``"sample"``; see
        `regal_jax.datasets.load_graphs`. Of a folder with a part named after `split` only that part.
      suite: ``"regal"``: the evidence of the REGAL papers; ``"realistic"``: the cases of
        `regal_jax.experiments.realistic`, for which `graphs`, `split`, `limit`, `max_ops`, `contract`,
        `objective`, `devices`, `memory` and `transfer` mean nothing, and whose reference has warm starts;
        ``"topological-order"``: orders on one device, `regal_jax.experiments.topological_order`, for which
        `objective`, `devices`, `memory`, `transfer`, `contract`, `max_ops`, `other_seed`, `limits` and
        `chunk` mean nothing, and `graphs` may be empty.
      cases: Of the suite of realistic cases the first so many; 0 for all. Of the suite of orders: layered
        graphs of each size; 0 for 300, as in the paper.
      sizes: Ops of the layered graphs of the suite of orders.
      weights: Of the suite of orders: name -> weights file of a network, or ``"default"``. Each is three
        rows: greedy, the best of 16 samples, a beam of 16. A name of `regal_jax.ordering.ENCODERS` has the
        paper's figures beside it.
      untrained: Three rows more for each of these: a network of the same shape with random weights.
      split: Of a corpus or of the sample.
      limit: Most graphs, the first in the order of the set; 0 for all.
      max_ops: Leave out larger graphs; 0 for no limit.
      contract: Evaluate on the graphs that `regal_jax.contract` makes.
      objective: An `Objective` or its name.
      devices: ``D``.
      memory: Capacity of each device, as `Cluster.uniform` takes it.
      transfer: Likewise; by default the papers', blocking at no cost.
      evaluations: Budget of every search of the table; "BRKGA 5K" is BRKGA with this budget.
      seeds: Of the searches of the table.
      other_seed: Of one more BRKGA search, which shows the noise; -1 for none.
      methods: Names that `regal_jax.experiments.make_method` knows, in the order of the table.
      options: Method -> options of `make_method`; ``settings`` as a table.
      policies: Name -> weights file, or ``"default"`` for the weights of the package. ``regal``, ``gas`` and
        ``idrs`` are the methods of these names; any other name is one more method, BRKGA guided by that
        policy.
      tuned: File of tuned settings for ``tuned-brkga``.
      cp_sat_seconds: Time limit for each graph.
      limits: Budgets of the curves (Fig. 3), ascending; none for no curves.
      rounds: Rounds of messages ``T`` -> training folders or weights files (Fig. 4b).
      chunk: Graphs between two writes of results.
      warm_up: Run the first chunk of each size once more before it counts, so that no time holds compilation.

    Raises:
      ConfigError: A value that cannot be; the message names it.
    """

    graphs: str = ""
    suite: str = "regal"
    cases: int = 0
    sizes: tuple[int, ...] = (500, 1000, 2000)
    weights: Mapping[str, str] = dataclasses.field(default_factory=dict)
    untrained: bool = True
    split: str = "test"
    limit: int = 0
    max_ops: int = 0
    contract: bool = False
    objective: Objective = Objective.MAKESPAN
    devices: int = 2
    memory: str = "inf"
    transfer: str = "blocking"
    evaluations: int = 5000
    seeds: tuple[int, ...] = (0,)
    other_seed: int = 1000
    methods: tuple[str, ...] = _DEFAULT
    options: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    policies: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tuned: str = ""
    cp_sat_seconds: float = 60.0
    limits: tuple[int, ...] = (1000, 2000, 5000, 10_000, 20_000, 50_000)
    rounds: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    chunk: int = 32
    warm_up: bool = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if self.suite not in SUITES:
            raise ConfigError(f"suite: there is no {self.suite!r}; use {' or '.join(SUITES)}")
        if not isinstance(self.graphs, str) or not (self.graphs or self.suite != "regal"):
            raise ConfigError("graphs: give the path of a set of graphs, of a corpus, or 'sample'")
        if self.objective not in list(Objective):
            raise ConfigError(f"objective: unknown {self.objective!r}; use one of {', '.join(Objective)}")
        set_(self, "objective", Objective(self.objective))
        for name, low in (
            ("limit", 0), ("cases", 0), ("max_ops", 0), ("devices", 1), ("evaluations", 1), ("chunk", 1),
            ("other_seed", -1),
        ):  # fmt: skip
            set_(self, name, check_whole(name, getattr(self, name), low, _MOST))
        for name in ("contract", "warm_up", "untrained"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: must be true or false, got {getattr(self, name)!r}")
        set_(self, "seeds", _whole_numbers("seeds", self.seeds, 0))
        set_(self, "sizes", _whole_numbers("sizes", self.sizes, 1))
        set_(self, "limits", _whole_numbers("limits", self.limits, 1))
        default = _ORDERING if self.suite == "topological-order" else _DEFAULT
        methods = default if self.methods is _DEFAULT else self.methods
        set_(self, "methods", _names("methods", methods))
        self._check_methods()
        if real(self.cp_sat_seconds, above=0) is None:
            raise ConfigError(
                f"cp_sat_seconds: must be a number of more than zero, got {shown(self.cp_sat_seconds)}"
            )
        if not isinstance(self.rounds, Mapping):
            raise ConfigError(f"rounds: must be a table of T and lists of paths, got {self.rounds!r}")
        set_(self, "rounds", {str(_rounds(t)): _names(f"rounds.{t}", p) for t, p in self.rounds.items()})
        _ = self.cluster

    def _check_methods(self) -> None:
        if not self.seeds or self.other_seed in self.seeds:
            raise ConfigError("seeds: give one at least, and not the one of other_seed")
        if list(self.limits) != sorted(self.limits):
            raise ConfigError(f"limits: must ascend, got {', '.join(map(str, self.limits))}")
        for field in ("options", "policies", "weights"):
            if not isinstance(getattr(self, field), Mapping):
                raise ConfigError(f"{field}: must be a table, got {getattr(self, field)!r}")
        known = method_names()
        networks = network_rows(self.weights, untrained=self.untrained)
        taken = sorted(networks.keys() & {*known, *self.policies})
        if taken:
            raise ConfigError(f"weights: {taken[0]!r} is the name of another method; choose another name")
        for name, path in self.policies.items():
            if name in known and name not in GUIDED:
                raise ConfigError(f"policies: {name} takes no policy; use another name for this one")
            if not isinstance(path, str) or not path:
                raise ConfigError(f"policies.{name}: give a file of weights, got {path!r}")
        for name in (*self.methods, *self.options):
            if name not in {*known, *networks, *self.policies} and not _FIXED.fullmatch(name):
                raise ConfigError(
                    f"methods: unknown {name!r}; use names of {', '.join(known)}, brkga-20k and the like, "
                    "or of policies"
                )
        for name, options in self.options.items():
            if not isinstance(options, Mapping):
                raise ConfigError(f"options.{name}: must be a table, got {options!r}")

    @property
    def cluster(self) -> Cluster:
        """What every graph is placed on.

        Raises:
          ClusterError: Values that no cluster can have.
        """
        return Cluster.uniform(self.devices, self.memory, self.transfer)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """From a table, as TOML gives it; what is left out keeps its default.

        Raises:
          ConfigError: An unknown name, or a value that cannot be.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in document:
            if name not in names:
                raise ConfigError(f"{name}: there is no such setting; use one of {', '.join(names)}")
        return cls(**document)

    @staticmethod
    def read(path: str | os.PathLike[str]) -> dict[str, Any]:
        """The table in a TOML file, for `from_document`.

        Raises:
          ConfigError: No such file, or no TOML.
        """
        return read_toml(path)

    def as_document(self) -> dict[str, Any]:
        """Plain values, from which `from_document` makes an equal config."""
        document = dataclasses.asdict(self)
        document |= {name: list(document[name]) for name in ("seeds", "limits", "methods", "sizes")}
        document["rounds"] = {t: list(paths) for t, paths in self.rounds.items()}
        document["objective"] = str(self.objective)
        return document


def _whole_numbers(name: str, values: Any, low: int) -> tuple[int, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"{name}: must be a list of whole numbers, got {values!r}")
    found = tuple(check_whole(name, value, low, _MOST) for value in values)
    if len(set(found)) < len(found):
        raise ConfigError(f"{name}: one stands there twice: {', '.join(map(str, found))}")
    return found


def _names(name: str, values: Any) -> tuple[str, ...]:
    if (
        not isinstance(values, Sequence)
        or isinstance(values, str)
        or not all(isinstance(value, str) and value for value in values)
        or len(set(values)) < len(values)
    ):
        raise ConfigError(f"{name}: must be a list of names, each once, got {values!r}")
    return tuple(values)


def _rounds(text: str) -> int:
    if not str(text).isdecimal():
        raise ConfigError(f"rounds: T must be a whole number, got {text!r}")
    return int(text)
