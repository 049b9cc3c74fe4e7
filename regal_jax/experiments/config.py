"""`EvaluationConfig`: the settings of an evaluation; read from TOML."""

import dataclasses
import math
import os
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Self

from regal_jax.checks import check_kind, check_number, check_whole, counted, is_list, known_name, real, shown
from regal_jax.datasets.candidates import check_split
from regal_jax.errors import ConfigError
from regal_jax.experiments.networks import network_rows
from regal_jax.experiments.registry import GUIDED, is_method_name, method_name, method_names
from regal_jax.graph import Cluster
from regal_jax.plan import Objective
from regal_jax.robust import LEARNED, SOURCES
from regal_jax.storage.documents import read_toml

__all__ = ["SUITES", "EvaluationConfig"]

SUITES: Final = ("regal", "realistic", "topological-order", "robust-scheduling")

_MOST: Final = 2**31 - 1
"""Largest whole number of a field, since evaluations are counted in int32."""
_DEFAULT: Final = (
    "brkga", "tuned-brkga", "gp-dfs", "critical-path", "xla-best", "random-search", "local-search",
    "annealing", "list-search", "peak-search", "auto", "cp-sat", "brkga-quick-start", "idrs", "gas",
    "regal-faithful-workshop", "regal-faithful", "regal-primed",
)  # fmt: skip

_ORDERING: Final = (
    "approximate-dp", "depth-first-dp", "random-orders", "partition-dfs", "bfs", "xla-list", "xla-dfs",
    "xla-post-order", "xla-best", "lpmf", "order-search", "auto",
)  # fmt: skip
"""Default of the suite of orders; the rows of networks follow from `EvaluationConfig.weights`."""

_ROBUST: Final = ("list-scheduling", "brkga", "brkga-runs", "ppo", "gflownet")
"""Default of the suite of robust scheduling: sources of `regal_jax.robust`."""
_SIZES: Final = (500, 1000, 2000)
_ROBUST_SIZES: Final = (50,)


_PROPOSALS: Final = ("count", "keep", "draws", "temperature")
"""Fields of the suite of robust scheduling."""


@dataclasses.dataclass(frozen=True)
class EvaluationConfig:
    """Methods, graphs and budgets of an evaluation.

    Attributes:
      graphs: A set of graphs, a corpus, or ``"sample"``; see
        `regal_jax.datasets.load_graphs`. If a folder has a part named after `split`, only that part is read.
      suite: ``"regal"`` repeats the experiments of the REGAL papers. ``"realistic"`` runs the cases of
        `regal_jax.experiments.realistic`; it ignores `graphs`, `split`, `limit`, `max_ops`, `contract`,
        `objective`, `devices`, `memory`, `capacity` and `transfer`, and its reference has warm starts.
        ``"topological-order"`` runs the orders on one device of `regal_jax.experiments.topological_order`; it
        ignores `objective`, `devices`, `memory`, `capacity`, `transfer`, `contract`, `max_ops`, `other_seed`,
        `limits`, `budgets` and `chunk`, and `graphs` may be empty. ``"robust-scheduling"`` runs
        `regal_jax.experiments.robust_scheduling`; it ignores the same fields, except that `max_ops`
        and `limit` hold for its real graphs (0 for 128 ops and 4 graphs). Its `methods` are sources of
        `regal_jax.robust`, and names of `options` that have a ``source``.
      cases: In the realistic suite, number of cases, taken from the front; 0 for all. In the suite of orders,
        number of layered graphs of each size; 0 for 300, as in the paper. In the suite of robust scheduling,
        number of synthetic graphs of each distribution and size; 0 for 10, as in the paper.
      first: In the suite of orders, number of the first layered graph of each size: the set begins after that
        many graphs.
      same_time: In the suite of orders, compare each method also with approximate DP in the same time.
      sizes: Ops of the layered graphs of the suite of orders, and of the synthetic graphs of the suite of
        robust scheduling (50).
      weights: For the suite of orders: name -> weights file of a network, or ``"default"``. Each network has
        three rows: greedy, the best of 16 samples, and a beam of 16. A name in `regal_jax.ordering.ENCODERS`
        adds the paper's figures. For the suite of robust scheduling: ``"gflownet"`` or ``"ppo"``, the rows of
        the paper, or a name that begins with one of them, such as ``"gflownet-lookahead"`` -> file, name of
        weights that ship (`regal_jax.gflownet.shipped.SHIPPED`), ``"untrained"``, or a list with the files of
        several trainings; for one of the sets ``one``, ``synthetic`` and ``real``, ``"gflownet:one"``.
        Other suites take none.
      untrained: Add three rows for each network of the suite of orders, with random weights in a network of
        the same shape.
      split: Split of a corpus or of the sample. In the suite of robust scheduling, ``"validation"`` has other
        synthetic graphs as well, and neither the one graph nor that of Figure 3.
      limit: Most graphs, taken from the front of the set; 0 for all.
      max_ops: Leave out larger graphs; 0 for no limit.
      min_ops: Leave out smaller graphs. For the suite ``"regal"`` alone.
      contract: Evaluate on the graphs that `regal_jax.contract` makes.
      objective: An `Objective` or its name.
      devices: Number of devices ``D``.
      memory: Capacity of each device, as `Cluster.uniform` takes it.
      capacity: Capacity of each device relative to an even split: the least peak of heuristics on one device,
        divided by `devices`. It is at least the lower bound of the peak. 0 for `memory`; not both.
      memory_ratio: With `capacity`, the memory of the devices in this ratio, and the same in sum; by default
        all have the same.
      transfer: Transfer model, as `Cluster.uniform` takes it; by default blocking at no cost, as in the
        papers.
      evaluations: Budget of every search of the table; "BRKGA 5K" is BRKGA with this budget.
      seeds: Seeds of the searches of the table.
      other_seed: Seed of one more BRKGA search, which shows the noise; -1 for none.
      methods: Names of `regal_jax.experiments.make_method`, in the order of the table.
      options: Method -> options of `make_method`; ``settings`` as a table. Those with a ``solver`` are more
        rows of that method, under any name. In the suite of robust scheduling settings of sources, and those
        with a ``source`` are more rows.
      policies: Name -> weights file, the name of a policy that ships (`regal_jax.policies.SHIPPED`), or
        ``"untrained"`` for a network with random weights and the settings of ``"regal-primed"``, or
        ``"untrained-by-hand"`` for the same with large logit scales. ``gas`` and ``idrs`` are the methods of
        these names; any other name adds a method guided by that policy: ``auto`` if it begins with
        ``auto-``, and else BRKGA.
      tuned: File of tuned settings for ``tuned-brkga``.
      cp_sat_seconds: Time limit of CP-SAT for each graph.
      limits: Budgets of the curves (Fig. 3), ascending; empty for no curves.
      budgets: Budgets of further searches of every method with the first seed, for the figure of quality over
        time; ascending; empty for one point per method.
      rounds: Rounds of messages ``T`` -> training folders or weights files (Fig. 4b).
      losses: In the suite of robust scheduling, name -> training folders of schedule policies, one for each
        seed, whose sampled schedules Figure 4 compares.
      regimes: In the same suite, name -> training folders whose validations Figure 5 compares.
      chunk: Graphs per write of results.
      count: In the suite of robust scheduling, number of schedules that a source proposes.
      keep: In the same suite, number of these schedules that are kept, those with the smallest makespans.
      draws: In the same suite, number of noisy targets over which the mean is taken.
      temperature: In the same suite, temperature of policies that propose.
      digest: First digits of the SHA-256 of the graphs' content hashes, sorted, one a line; an evaluation of
        other graphs is refused. Empty for any graphs.
      warm_up: Run the first chunk of each size twice, so that no measured time includes compilation.

    Raises:
      ConfigError: A value is invalid; the message names it.
    """

    graphs: str = ""
    suite: str = "regal"
    cases: int = 0
    first: int = 0
    same_time: bool = True
    sizes: tuple[int, ...] = _SIZES
    weights: Mapping[str, str | Sequence[str]] = dataclasses.field(default_factory=dict)
    untrained: bool = True
    split: str = "test"
    limit: int = 0
    max_ops: int = 0
    min_ops: int = 0
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
    budgets: tuple[int, ...] = ()
    rounds: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    losses: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    regimes: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    chunk: int = 32
    count: int = 1000
    keep: int = 100
    draws: int = 5
    temperature: float = 0.005
    digest: str = ""
    capacity: float = 0.0
    memory_ratio: tuple[float, ...] = ()
    warm_up: bool = True

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if self.suite not in SUITES:
            raise ConfigError(f"suite: there is no {shown(self.suite)}; use {' or '.join(SUITES)}")
        if not isinstance(self.graphs, str) or not (self.graphs or self.suite != "regal"):
            raise ConfigError("graphs: give the path of a set of graphs, of a corpus, or 'sample'")
        if self.objective not in list(Objective):
            raise ConfigError(
                f"objective: unknown {shown(self.objective)}; use one of {', '.join(Objective)}"
            )
        set_(self, "objective", Objective(self.objective))
        for name, low in (
            ("limit", 0), ("cases", 0), ("first", 0), ("max_ops", 0), ("min_ops", 0), ("devices", 1),
            ("evaluations", 1), ("chunk", 1), ("other_seed", -1), ("count", 1), ("keep", 1), ("draws", 1),
        ):  # fmt: skip
            set_(self, name, check_whole(name, getattr(self, name), low, _MOST))
        for name in ("contract", "warm_up", "untrained", "same_time"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name}: must be true or false, got {shown(getattr(self, name))}")
        check_kind("tuned", self.tuned, str)
        check_split(self.split)
        if not isinstance(self.digest, str) or not set(self.digest) <= set(string.hexdigits.lower()):
            raise ConfigError(f"digest: give hexadecimal digits, got {shown(self.digest)}")
        set_(self, "seeds", _whole_numbers("seeds", self.seeds, 0))
        robust = self.suite == "robust-scheduling"
        sizes = _ROBUST_SIZES if robust and self.sizes is _SIZES else self.sizes
        set_(self, "sizes", _whole_numbers("sizes", sizes, 1))
        self._check_suite()
        # Files of settings and of results have no infinite numbers.
        set_(self, "memory", "inf" if self.memory == math.inf else self.memory)
        check_kind("transfer", self.transfer, str)
        set_(self, "temperature", check_number("temperature", self.temperature, 1e-6, 1e6))
        set_(self, "capacity", check_number("capacity", self.capacity, 0, 1e6))
        if self.capacity and self.memory != "inf":
            raise ConfigError(
                f"memory, capacity: are {shown(self.memory)} and {self.capacity:g}; leave one out"
            )
        self._check_ratio()
        for name in ("limits", "budgets"):
            set_(self, name, _whole_numbers(name, getattr(self, name), 1))
        default = {"topological-order": _ORDERING, "robust-scheduling": _ROBUST}.get(self.suite, _DEFAULT)
        methods = default if self.methods is _DEFAULT else self.methods
        set_(self, "methods", self._spelled("methods", _names("methods", methods)))
        self._check_methods()
        if real(self.cp_sat_seconds, above=0) is None:
            raise ConfigError(
                f"cp_sat_seconds: must be a number above zero, got {shown(self.cp_sat_seconds)}"
            )
        if not isinstance(self.rounds, Mapping):
            raise ConfigError(f"rounds: must be a table of T and lists of paths, got {shown(self.rounds)}")
        set_(self, "rounds", {str(_rounds(t)): _names(f"rounds.{t}", p) for t, p in self.rounds.items()})
        for field in ("losses", "regimes"):
            folders = getattr(self, field)
            if not isinstance(folders, Mapping):
                raise ConfigError(
                    f"{field}: must be a table of names and lists of paths, got {shown(folders)}"
                )
            set_(self, field, {str(name): _names(f"{field}.{name}", p) for name, p in folders.items()})
        _ = self.cluster

    def _check_suite(self) -> None:
        """Refuses settings that are for other suites only."""
        orders = ("topological-order", "robust-scheduling")
        for name, given, suites in (
            ("cases", self.cases, SUITES[1:]),
            ("min_ops", self.min_ops, SUITES[:1]),
            ("first", self.first, orders[:1]),
            ("same_time", not self.same_time, orders[:1]),
            ("untrained", not self.untrained, orders[:1]),
            ("sizes", self.sizes not in (_SIZES, _ROBUST_SIZES), orders),
            ("losses", self.losses, orders[1:]),
            ("regimes", self.regimes, orders[1:]),
            *(
                (name, getattr(self, name) != getattr(EvaluationConfig, name), orders[1:])
                for name in _PROPOSALS
            ),
        ):
            if given and self.suite not in suites:
                raise ConfigError(f"{name}: is for the suite {' or '.join(suites)}; leave it out")

    def _spelled(self, field: str, names: Iterable[str]) -> tuple[str, ...]:
        """Names of methods as tables and files have them."""
        robust = self.suite == "robust-scheduling"
        return _names(field, [known_name(name, SOURCES) if robust else method_name(name) for name in names])

    def _check_ratio(self) -> None:
        given = self.memory_ratio
        if not is_list(given):
            raise ConfigError(f"memory_ratio: must be a list of numbers, got {shown(given)}")
        ratio = tuple(check_number("memory_ratio", part, 1e-6, 1e6) for part in given)
        if ratio and not (self.capacity and len(ratio) == self.devices):
            raise ConfigError(
                f"memory_ratio: is {', '.join(f'{part:g}' for part in ratio)}; give a number for each of the "
                f"{counted(self.devices, 'device')}, and capacity"
            )
        object.__setattr__(self, "memory_ratio", ratio)

    def _check_methods(self) -> None:
        if not self.seeds or self.other_seed in self.seeds:
            raise ConfigError("seeds: give at least one, and not that of other_seed")
        for field in ("limits", "budgets"):
            numbers = getattr(self, field)
            if list(numbers) != sorted(numbers):
                raise ConfigError(f"{field}: must ascend, got {', '.join(map(str, numbers))}")
        for field in ("options", "policies", "weights"):
            if not isinstance(getattr(self, field), Mapping):
                raise ConfigError(f"{field}: must be a table, got {shown(getattr(self, field))}")
        for field in ("options", "policies"):
            table = getattr(self, field)
            for name in table:
                check_kind(f"{field}: name", name, str)
            names = self._spelled(field, table)
            object.__setattr__(self, field, dict(zip(names, table.values(), strict=True)))
        for name, options in self.options.items():
            if not isinstance(options, Mapping):
                raise ConfigError(f"options.{name}: must be a table, got {shown(options)}")
            if not isinstance(options.get("settings", {}), Mapping):
                raise ConfigError(
                    f"options.{name}.settings: must be a table, got {shown(options['settings'])}"
                )
        kind = "source" if self.suite == "robust-scheduling" else "solver"
        given = {name: options.get(kind) for name, options in self.options.items()}
        spelled = {
            name: {**self.options[name], kind: self._spelled(f"options.{name}.{kind}", [text])[0]}
            for name, text in given.items()
            if text and isinstance(text, str)
        }
        object.__setattr__(self, "options", {**self.options, **spelled})
        if self.suite == "robust-scheduling":
            self._check_sources()
            return
        if self.weights and self.suite != "topological-order":
            raise ConfigError(
                f"weights: the suite {shown(self.suite)} takes none; give a policy, or the suite "
                "topological-order or robust-scheduling"
            )
        known = method_names()
        networks = network_rows(self.weights, untrained=self.untrained)
        taken = sorted(networks.keys() & {*known, *self.policies})
        if taken:
            raise ConfigError(f"weights: {taken[0]!r} is the name of another method; choose another name")
        for name, path in self.policies.items():
            if name in known and name not in GUIDED:
                raise ConfigError(f"policies: {name} takes no policy; use another name for this one")
            if not isinstance(path, str) or not path:
                raise ConfigError(f"policies.{name}: give a file of weights, got {shown(path)}")
        further = self._further_rows(known)
        for name in (*self.methods, *self.options):
            if name not in {*networks, *self.policies, *further} and not is_method_name(name):
                raise ConfigError(
                    f"methods: unknown {name!r}; use names of {', '.join(known)}, brkga-20k and the like, "
                    "or of policies"
                )

    def _further_rows(self, known: Sequence[str]) -> list[str]:
        """Names of rows of a solver under another name."""
        found: list[str] = []
        for name, options in self.options.items():
            solver = options.get("solver")
            if solver is None:
                continue
            if self.suite == "topological-order":
                raise ConfigError(
                    f"options.{name}: this suite takes no further rows of a solver; drop solver"
                )
            if is_method_name(name) or name in self.policies:
                raise ConfigError(f"options.{name}: is a method itself; choose another name for the row")
            if not isinstance(solver, str) or solver not in known or solver in GUIDED:
                raise ConfigError(f"options.{name}: solver is {shown(solver)}; use a method without a policy")
            found.append(name)
        return found

    def _check_sources(self) -> None:
        """Names of the suite of robust scheduling."""
        for name, options in self.options.items():
            source = str(options.get("source", name))
            if source in LEARNED and source != name:
                raise ConfigError(f"options.{name}: {source} has weights; name the row in weights instead")
            if source != name and name in SOURCES:
                raise ConfigError(f"options.{name}: is a source itself; choose another name for the row")
        for field in ("methods", "options"):
            for name in getattr(self, field):
                source = str(self.options.get(name, {}).get("source", name))
                if source not in SOURCES:
                    raise ConfigError(f"{field}: unknown {shown(source)}; use names of {', '.join(SOURCES)}")
        for name, path in self.weights.items():
            row, _, set_ = name.partition(":")
            if row.partition("-")[0] not in LEARNED or set_ not in ("", "one", "synthetic", "real"):
                raise ConfigError(
                    f"weights: unknown {name!r}; use {' or '.join(LEARNED)}, a name such as "
                    "gflownet-lookahead, or a name with ':one', ':synthetic' or ':real' behind it"
                )
            if not path or not isinstance(path, str):
                _names(f"weights.{name}", path or [""])

    @property
    def cluster(self) -> Cluster:
        """The cluster on which every graph is placed.

        Raises:
          ClusterError: The values make no valid cluster.
        """
        return Cluster.uniform(self.devices, self.memory, self.transfer)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Self:
        """The config in a table, as read from TOML; missing settings keep their defaults.

        Raises:
          ConfigError: A name is unknown or a value is invalid.
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
          ConfigError: The file does not exist or is not TOML.
        """
        return read_toml(path)

    def as_document(self) -> dict[str, Any]:
        """Plain values, from which `from_document` makes an equal config."""
        document = dataclasses.asdict(self)
        document |= {
            name: list(document[name])
            for name in ("seeds", "limits", "budgets", "methods", "sizes", "memory_ratio")
        }
        for field in ("rounds", "losses", "regimes"):
            document[field] = {name: list(paths) for name, paths in getattr(self, field).items()}
        document["objective"] = str(self.objective)
        return document


def _whole_numbers(name: str, values: Any, low: int) -> tuple[int, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise ConfigError(f"{name}: must be a list of whole numbers, got {shown(values)}")
    found = tuple(check_whole(name, value, low, _MOST) for value in values)
    if len(set(found)) < len(found):
        raise ConfigError(f"{name}: a number occurs twice: {', '.join(map(str, found))}")
    return found


def _names(name: str, values: Any) -> tuple[str, ...]:
    if (
        not isinstance(values, Sequence)
        or isinstance(values, str)
        or not all(isinstance(value, str) and value for value in values)
        or len(set(values)) < len(values)
    ):
        raise ConfigError(f"{name}: must be a list of names, each once, got {shown(values)}")
    return tuple(values)


def _rounds(text: str) -> int:
    number = int(text) if str(text).isdecimal() and len(str(text)) <= len(str(_MOST)) else None
    if number is None or number > _MOST:
        raise ConfigError(f"rounds: T must be a whole number up to {_MOST}, got {shown(text)}")
    return number
