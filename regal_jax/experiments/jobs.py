"""Jobs of an evaluation: methods with their seeds and budgets, and the methods that cannot run."""

import dataclasses
import hashlib
import importlib.util
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import jax
import numpy as np
from flax import nnx

from regal_jax.errors import ClusterError, ConfigError, FormatError, MissingExtraError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.method import Method
from regal_jax.experiments.networks import network_rows
from regal_jax.experiments.records import code_word
from regal_jax.experiments.registry import GUIDED, make_method
from regal_jax.experiments.topological_order import EVALUATIONS, SETTINGS, SHARE, TITLES, ApproximateDpWithin
from regal_jax.ordering import Topoformer
from regal_jax.plan import Objective
from regal_jax.policies import (
    DEFAULT,
    SHIPPED,
    Ablation,
    Policy,
    PolicyConfig,
    is_shipped,
    load_policy,
    shipped_policy,
)
from regal_jax.solvers import with_settings
from regal_jax.solvers.sources import outside_sources
from regal_jax.storage.stamps import file_stamp

__all__ = ["REFERENCES", "Job", "Jobs", "make_jobs", "takes_tuned", "thousands"]

_REFUSALS: Final = (ConfigError, FormatError, ClusterError, MissingExtraError, OSError)
"""Errors that stop one method but not the evaluation."""

REFERENCES: Final = {"regal": "brkga", "realistic": "brkga", "topological-order": "approximate-dp"}
"""Suite -> name of the reference, with which all methods are compared."""
UNTRAINED: Final = "untrained"
"""In place of a weights file: a network with random weights and the settings of ``regal-primed``, which
follows its priors alone."""
UNTRAINED_BY_HAND: Final = "untrained-by-hand"
"""The same with large logit scales set by hand (docs/ablations/training.md, "What does training gain?")."""
_BY_HAND: Final = Ablation(placement_scale=10, order_scale=3, priority_bias=-6, affinity_bias=6)
_FAITHFUL: Final = "regal-faithful"
"""The papers' policy."""
_AUTO: Final = "auto"
_BRKGA: Final = "brkga"
_TUNED: Final = "tuned-brkga"
_CONTROL: Final = "brkga-quick-start"
"""It has a curve, as policies do: its first stage is one evaluation at every budget."""
_SLOW: Final = ("approximate-dp", "depth-first-dp")
"""How the names of methods of the suite of orders begin whose times are not compared with the reference."""


@dataclasses.dataclass(frozen=True, eq=False)
class Job:
    """A method with a seed and a budget, to run on all graphs.

    Attributes:
      name: Name of the method, as in `EvaluationConfig.methods` or `EvaluationConfig.policies`.
      title: Name in tables.
      role: ``"table"``; ``"other-seed"``, the noise of the reference; ``"curve"``; ``"budget"``, a search
        with another budget; or ``"same-time"``, the reference in the seconds of the method `name`.
      seed: Seed of the search.
      evaluations: Budget of the search; 0 for methods without one.
      key: Digest of all settings that determine the result for a graph.
      method: The method.
      guided: Whether the method has a policy.
      after: Key of the job whose seconds for a graph limit those of this job; empty for no limit.
      share: Share of these seconds that this job may take.
      compiles: Whether it runs compiled programs of JAX, one per size.
      identity: What determines the results besides the problem, the seed and the budget: options, and
        digests of weights (``policy``, ``network``) and of tuned settings (``file``).
    """

    name: str
    title: str
    role: str
    seed: int
    evaluations: int
    key: str
    method: Method
    guided: bool
    after: str = ""
    share: float = 1.0
    compiles: bool = False
    identity: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def hosted(self) -> bool:
        """Whether it works on one graph after another with nothing to compile."""
        return not self.method.solver.searches

    def as_document(self) -> dict[str, Any]:
        """The job as JSON values, for the report."""
        names = ("key", "name", "title", "role", "seed", "evaluations", "guided")
        return {**{name: getattr(self, name) for name in names}, "identity": dict(self.identity)}


@dataclasses.dataclass(frozen=True, eq=False)
class Jobs:
    """All jobs of an evaluation.

    Attributes:
      jobs: The jobs; the reference is first.
      left_out: Name of a method -> reason why it cannot run.
    """

    jobs: list[Job]
    left_out: dict[str, str]


def make_jobs(config: EvaluationConfig) -> Jobs:
    """The jobs of a config.

    Methods that cannot run are left out. The reference is always present.

    Raises:
      ConfigError: The reference has options that it does not know.
    """
    reference = REFERENCES[config.suite]
    extra = [*config.policies, *network_rows(config.weights, untrained=config.untrained)]
    # The reference is first, whatever the list says. If it is BRKGA, its history gives the curve.
    names = [name for name in dict.fromkeys((*config.methods, *extra)) if name != reference]
    made: dict[str, _Made] = {}
    left_out: dict[str, str] = {}
    titles: set[str] = set()
    for name in (reference, *names):
        try:
            made[name] = _make(name, config)
        except _REFUSALS as error:
            if name == reference:
                raise
            left_out[name] = " ".join(str(error).split())
            continue
        twin = _twin(name, made)
        if twin is not None:
            left_out[name] = f"it is the network of the row {twin!r}"
            del made[name]
            continue
        title = _job(made[name], config, "table", config.seeds[0]).title
        if title in titles:
            left_out[name] = f"it has the title {title!r} of another row; give it another name in its options"
            del made[name]
        titles.add(title)
    if config.suite == "topological-order":
        return Jobs(_ordering_jobs(made, config), left_out)
    jobs = [_job(m, config, "table", seed) for m in made.values() for seed in _seeds(m, config)]
    if config.other_seed >= 0:
        jobs.append(_job(made[reference], config, "other-seed", config.other_seed))
    if config.limits and config.suite == "regal":
        jobs += [
            _job(m, config, "curve", config.seeds[0])
            for name, m in made.items()
            if name in (reference, _CONTROL) or m.guided
        ]
    if config.suite == "regal":
        jobs += [
            dataclasses.replace(
                _job(m, config, "budget", config.seeds[0], evaluations=budget), title=m.method.name
            )
            for m in made.values()
            if m.method.solver.searches and not m.method.evaluations
            for budget in config.budgets
            if budget != config.evaluations
        ]
    return Jobs(jobs, left_out)


def takes_tuned(config: EvaluationConfig) -> bool:
    """Whether a row needs `EvaluationConfig.tuned`."""
    rows = {name: config.options.get(name, {}) for name in config.methods}
    needs = [row for row, options in rows.items() if options.get("solver", row) == _TUNED]
    return config.suite in ("regal", "realistic") and not all("file" in rows[row] for row in needs)


def _twin(name: str, made: Mapping[str, "_Made"]) -> str | None:
    """An earlier row with the same untrained network, which those of one shape are."""
    controls = {other: m.identity for other, m in made.items() if m.control}
    same = [other for other in controls if other != name and controls[other] == controls.get(name)]
    return same[0] if same else None


def _ordering_jobs(made: Mapping[str, "_Made"], config: EvaluationConfig) -> list[Job]:
    """Jobs of the suite of orders: each method, and the reference limited to each method's time if wanted."""
    jobs: list[Job] = []
    for m in made.values():
        limit = (jobs[0].key, SHARE) if m.method.solver.searches else ("", 1.0)
        jobs += [_job(m, config, "table", seed, limit) for seed in _seeds(m, config)]
    rows = network_rows(config.weights, untrained=config.untrained)
    controls = [name for name, row in rows.items() if not row.trained]
    compared = [job for job in jobs if config.same_time and not job.name.startswith(_SLOW)]
    for job in [job for job in compared if job.name not in controls and job.seed == config.seeds[0]]:
        title = f"{jobs[0].title}, as long as {job.title}"
        method = Method(title, ApproximateDpWithin())
        same = _Made(job.name, method, False, {})
        jobs.append(_job(same, config, "same-time", job.seed, (job.key, 1.0)))
    return jobs


def thousands(evaluations: int) -> str:
    """``5K`` for 5000."""
    return f"{evaluations // 1000}K" if evaluations and evaluations % 1000 == 0 else str(evaluations)


@dataclasses.dataclass(frozen=True, eq=False)
class _Made:
    name: str
    method: Method
    guided: bool
    identity: dict[str, Any]
    """All that determines its results, besides the problem, the seed and the budget."""
    compiles: bool = False
    control: bool = False


def _make(name: str, config: EvaluationConfig) -> _Made:
    options = dict(config.options.get(name, {}))
    if name == _BRKGA and config.suite == "realistic":
        options.setdefault("warm_start", True)
    if config.suite == "topological-order":
        return _ordering(name, options, config)
    identity: dict[str, Any] = _identity(options)
    if name in config.policies or name in GUIDED:
        return _guided(name, options, identity, config)
    row, name = name, options.pop("solver", name)
    if row != name:
        options.setdefault("name", row)
    if name == _TUNED:
        file = options.setdefault("file", config.tuned)
        if not file:
            raise ConfigError("needs tuned settings: make them with 'regal-jax tune' and give --tuned FILE")
        method = make_method(name, **options)
        identity["file"] = _digest_of_file(file)
    elif name == "cp-sat":
        options["settings"] = {"time_limit": config.cp_sat_seconds, **options.get("settings", {})}
        identity["options"] = {**identity["options"], **_plain(options)}
        method = make_method(name, **options)
        if importlib.util.find_spec("ortools") is None:
            raise MissingExtraError("ortools", "exact")
    else:
        method = make_method(name, **options)
    if config.suite == "regal":
        _ = method.solver.agenda(
            config.objective, config.devices
        )  # Raises an error for unsupported problems.
    return _Made(row, method, False, identity)


def _ordering(name: str, options: dict[str, Any], config: EvaluationConfig) -> _Made:
    """A method of the suite of orders."""
    usual = {"time_limit": config.cp_sat_seconds} if name == "cp-sat" else SETTINGS.get(name, {})
    options["settings"] = {**usual, **options.get("settings", {})}
    identity: dict[str, Any] = _identity(options)
    row = network_rows(config.weights, untrained=config.untrained).get(name)
    if row is None:
        title = {"name": TITLES[name]} if name in TITLES else {}
        method = make_method(name, **{**title, **options})
        agenda = method.solver.agenda(Objective.PEAK_MEMORY, 1)  # Raises an error for unsupported problems.
        return _Made(name, method, False, identity, compiles=bool(agenda.device_stages))
    network = row.network()
    settings = options.pop("settings")
    solver = with_settings(row.solver(network), settings)
    identity["network"] = _digest_of_network(network)
    identity["decoding"] = row.decoding
    try:
        method = Method(**{"name": row.title, "solver": solver, **options})
    except TypeError as error:
        raise ConfigError(f"method {name}: {str(error).partition(') ')[2]}; see make_method") from None
    return _Made(name, method, False, identity, compiles=True, control=not row.trained)


def _guided(name: str, options: dict[str, Any], identity: dict[str, Any], config: EvaluationConfig) -> _Made:
    path = config.policies.get(name)
    if path is None and name in SHIPPED and is_shipped(config.objective, config.devices, name):
        path = name
    if path is None:
        # IDRS draws from the papers' policy; GAS is another network.
        shipped = name == "idrs" and is_shipped(config.objective, config.devices, _FAITHFUL)
        default = f"--policy {name}={_FAITHFUL} for weights of the package, or " if shipped else ""
        raise ConfigError(f"needs a policy: give {default}--policy {name}=FILE")
    policy = _policy(path, config)
    identity["policy"] = _digest_of_network(policy)
    if name not in GUIDED:
        options["name"] = name
    search = _search(name)
    if search == _AUTO:
        options["settings"] = {**options.get("settings", {}), "policy": policy}
    else:
        options["policy"] = policy
    return _Made(name, make_method(search, **options), True, identity)


def _search(name: str) -> str:
    """The method of a row with a policy."""
    if name in GUIDED:
        return name
    return _AUTO if name.startswith(f"{_AUTO}-") else "guided"


def _policy(path: str, config: EvaluationConfig) -> Policy:
    """The policy in a weights file, one that ships, or the untrained one with the default settings."""
    if path in (DEFAULT, *SHIPPED):
        return shipped_policy(path, config.objective, config.devices)
    if path in (UNTRAINED, UNTRAINED_BY_HAND):
        ablation = Ablation() if path == UNTRAINED else _BY_HAND
        policy = PolicyConfig(num_devices=config.devices, objective=config.objective, ablation=ablation)
        return Policy(policy, rngs=nnx.Rngs(0))
    known = ", ".join(map(repr, (*SHIPPED, UNTRAINED, UNTRAINED_BY_HAND)))
    file_stamp(path, "policy", f"give one of {known}, or train a policy with 'regal-jax train'")
    return load_policy(path, num_devices=config.devices)


def _digest_of_network(network: Policy | Topoformer) -> str:
    """Digest of the settings and weights of a network."""
    digest = hashlib.sha256(repr(network.config).encode())
    for leaf in jax.tree.leaves(nnx.to_pure_dict(nnx.state(network, nnx.Param))):
        digest.update(np.asarray(leaf).tobytes())
    return digest.hexdigest()[:16]


def _seeds(made: _Made, config: EvaluationConfig) -> tuple[int, ...]:
    # Heuristics and exact solvers give the same result for every seed.
    return config.seeds if made.method.solver.searches else config.seeds[:1]


def _job(
    made: _Made,
    config: EvaluationConfig,
    role: str,
    seed: int,
    limit: tuple[str, float] = ("", 1.0),
    evaluations: int = 0,
) -> Job:
    """A job; ``limit`` is its `Job.after` and `Job.share`, ``evaluations`` another budget than the usual."""
    usual = evaluations or (EVALUATIONS if limit[0] else config.evaluations)
    budget = made.method.evaluations or (config.limits[-1] if role == "curve" else usual)
    budget = budget if made.method.solver.searches else 0
    title = made.method.name
    if made.name == REFERENCES[config.suite] == _BRKGA and role != "curve":
        title = f"BRKGA {thousands(config.evaluations)}"
        title += ", warm starts" if config.suite == "realistic" else ""
    problem = {
        **_where(config),
        "method": _search(made.name) if made.guided else made.name,
        "seed": seed,
        "evaluations": budget,
        # The records of these jobs have more fields.
        "history": role == "curve",
        **({"limit": [role, *limit]} if limit[0] else {}),
    }
    outside = outside_sources(made.method.solver)
    identity = {**made.identity, **({"sources": outside} if outside else {})}
    text = json.dumps({**problem, **identity}, sort_keys=True)
    key = hashlib.sha256(text.encode()).hexdigest()[:16]
    return Job(
        made.name, title, role, seed, budget, key, made.method, made.guided, *limit,
        compiles=made.compiles, identity=identity,
    )  # fmt: skip


def _where(config: EvaluationConfig) -> dict[str, Any]:
    """The part of the problem that all graphs share; the keys of realistic cases have the rest."""
    # Results of another version of the code are made again.
    code = {"code": code_word()}
    if config.suite != "regal":
        return {"suite": config.suite, **code}
    return {
        **code,
        "objective": str(config.objective),
        "cluster": [config.devices, config.memory, config.transfer],
        **({"capacity": config.capacity} if config.capacity else {}),
        **({"memory_ratio": list(config.memory_ratio)} if config.memory_ratio else {}),
    }


def _plain(options: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(options, default=str))


def _identity(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a method, and digests of the files that they name, whose contents may change."""
    files = {text: _digest_of_file(text) for text in _texts(options) if os.path.isfile(text)}
    return {"options": _plain(options), **({"files": files} if files else {})}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, (str, os.PathLike)):
        yield str(value)
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _texts(each)


def _digest_of_file(path: str) -> str:
    return hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest()[:16]
