"""`Settings`: the checked arguments of a call."""

import dataclasses
import functools
import os
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.checks import check_whole, counted, real, shown, whole
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan
from regal_jax.runtime.interrupts import interruptible
from regal_jax.search.config import MAX_EVALUATIONS
from regal_jax.solvers import Agenda, Guide, Solver, solver, solver_names, with_settings
from regal_jax.solvers.loop.earlier import WarmStarts, earlier_plans
from regal_jax.solvers.loop.runs import MOST_RUNS
from regal_jax.solvers.protocol import agenda_of

if TYPE_CHECKING:
    from regal_jax.policies import Policy

__all__ = ["Settings", "as_key", "budget_of", "check_pairs", "each", "one_seed"]

_THREEFRY: Final = "threefry2x32"
"""The kind of keys whose numbers are 0 and a seed of 32 bits."""


_BUDGET: Final = 20_000
"""Default budget of a search, in evaluations (docs/design.md, part 2)."""
_BUDGET_OF_ORDERS: Final = 5000
"""Default budget for peak memory on one device, where more evaluations rarely gain."""


def budget_of(evaluations: Any, objective: Any, clusters: Any) -> Any:
    """The given number of evaluations, or the default for ``None``.

    Args:
      evaluations: May be invalid, which `Settings.checked` reports.
      objective: An objective or its name; may be invalid, which `Settings.checked` reports.
      clusters: One cluster or several; may be invalid, which `check_pairs` reports.
    """
    if evaluations is not None:
        return evaluations
    some = clusters if isinstance(clusters, (list, tuple)) else [clusters]
    alone = bool(some) and all(isinstance(cluster, Cluster) and cluster.num_devices == 1 for cluster in some)
    peaks = isinstance(objective, str) and objective == Objective.PEAK_MEMORY
    return _BUDGET_OF_ORDERS if alone and peaks else _BUDGET


def one_seed(seed: int | jax.Array, key: int | jax.Array | None) -> int | jax.Array:
    """The seed, of which ``key`` is another name.

    Raises:
      ConfigError: Both are given.
    """
    if key is None:
        return seed
    if not isinstance(seed, int) or seed != 0:
        raise ConfigError("seed: key is another name of it; give one of them")
    return key


def as_key(seed: Any, name: str = "seed") -> jax.Array:
    """The typed key that a seed stands for, or a given key; ``name`` is that of the argument.

    Raises:
      ConfigError: It is neither a whole number from 0 to 2^32 - 1 nor a typed key.
    """
    given = _seed_or_key(seed, name)
    return jax.random.key(np.uint32(given)) if isinstance(given, int) else given


def _seed_or_key(seed: Any, name: str = "seed") -> int | jax.Array:
    """A whole number, or a typed key. A number needs no device of JAX."""
    number = whole(seed)
    if number is not None:
        if not 0 <= number < 2**32:
            raise ConfigError(f"{name}: must be from 0 to {2**32 - 1}, got {shown(number)}")
        return number
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key) and seed.ndim == 0:
        return seed
    raise ConfigError(f"{name}: give a whole number or jax.random.key(number), got {shown(seed)}")


def _solver(method: "str | Solver | None", policy: Any) -> Solver:
    """The solver that ``method`` names, guided by ``policy`` if that is given."""
    if method is None:
        own = policy is not None and not (isinstance(policy, str) and policy in ("none", "default"))
        method = "brkga" if own else "auto"
    named = solver(method)
    if policy is None:
        return named
    if not hasattr(named, "policy"):
        if isinstance(policy, str) and policy == "none":
            return named
        raise ConfigError(f"policy: guides auto and brkga, not {named.name}; leave it out")
    if getattr(named, "policy", None) is not None:
        raise ConfigError(f"policy: {named.name} has one of its own; leave it out")
    return with_settings(named, {"policy": policy})


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """Checked and converted arguments of `optimize`."""

    solver: Solver
    objective: Objective
    evaluations: int
    seed_or_key: int | jax.Array
    warm_start: bool
    earlier: tuple[Plan, ...]
    contract: bool | None
    target: float | None
    stall: int | None
    time_limit: float | None
    progress: bool
    runs: int = 1
    _agendas: dict[int, Agenda] = dataclasses.field(default_factory=dict)

    @classmethod
    @interruptible()
    def checked(
        cls,
        *,
        objective: Objective | str,
        evaluations: int,
        seed: Any,
        method: "str | Solver | None",
        policy: "Policy | str | os.PathLike[str] | None",
        warm_start: WarmStarts,
        contract: bool | None,
        target: float | None,
        stall: int | None,
        time_limit: float | None,
        progress: bool,
        runs: int = 1,
    ) -> Self:
        """Checks the arguments.

        Raises:
          ConfigError: A value is invalid; the message names the argument.
        """
        if not isinstance(objective, str) or objective not in list(Objective):
            raise ConfigError(f"objective: unknown {shown(objective)}; use one of {', '.join(Objective)}")
        budget = check_whole("evaluations", evaluations, 1, MAX_EVALUATIONS)
        chosen = _solver(method, policy)
        _ = chosen.agenda(
            Objective(objective), 1
        )  # Raises an error for an objective that the solver does not support.
        for name, value in (("target", target), ("time_limit", time_limit)):
            if value is not None and real(value, 0) is None:
                raise ConfigError(
                    f"{name}: must be a finite number of zero or more, got {shown(value)}; leave it out for "
                    "none"
                )
        if contract is not None and not isinstance(contract, bool):
            raise ConfigError(f"contract: must be True, False or None, got {contract!r}")
        if not isinstance(progress, bool):
            raise ConfigError(f"progress: must be True or False, got {shown(progress)}")
        earlier = earlier_plans(warm_start)
        if earlier and not chosen.searches:
            raise ConfigError(
                f"warm_start: {chosen.name} does not use earlier plans; leave it out, or use a search: "
                f"{solver_names(searching=True)}"
            )
        count = check_whole("runs", runs, 1, MOST_RUNS)
        if count > 1 and not chosen.searches:
            raise ConfigError(
                f"runs: {chosen.name} is no search, and runs once; leave it out, or use a search: "
                f"{solver_names(searching=True)}"
            )
        return cls(
            solver=chosen,
            objective=Objective(objective),
            evaluations=budget,
            seed_or_key=_seed_or_key(seed),
            warm_start=bool(earlier) or warm_start is not False,
            earlier=earlier,
            contract=contract,
            target=real(target),
            stall=None if stall is None else check_whole("stall", stall, 1, MAX_EVALUATIONS),
            time_limit=real(time_limit),
            progress=progress,
            runs=count,
        )

    @property
    def seed(self) -> int | None:
        """The seed; ``None`` if a key was given."""
        return self.seed_or_key if isinstance(self.seed_or_key, int) else None

    @functools.cached_property
    def key(self) -> jax.Array:
        """The typed key."""
        return as_key(self.seed_or_key)

    @property
    def key_words(self) -> list[int]:
        """The key as numbers: for a file, or for the host's random numbers."""
        if self.seed is not None and getattr(jax.config, "jax_default_prng_impl", None) == _THREEFRY:
            return [0, self.seed]
        return np.asarray(jax.random.key_data(self.key)).tolist()

    @property
    def number(self) -> int:
        """The seed as one number, for heuristics; that of the key of a seed is the seed."""
        return self.key_words[-1] if self.seed is None else self.seed

    def agenda(self, num_devices: int) -> Agenda:
        """The stages of the solver for a cluster with this number of devices.

        Raises:
          ConfigError: As `agenda_of`.
        """
        if num_devices not in self._agendas:
            self._agendas[num_devices] = agenda_of(self.solver, self.objective, num_devices)
        return self._agendas[num_devices]

    def guides(self, num_devices: int) -> list[Guide]:
        """The policies that its stages name."""
        stages = self.agenda(num_devices).device_stages
        return [stage.guide for stage in stages if stage.guide is not None]

    def guided(self, num_devices: int) -> bool:
        """Whether a policy guides a stage on a cluster with this number of devices.

        Raises:
          ConfigError: A policy was asked for, and there is none for this number.
        """
        guided = [guide.guides(self.objective, num_devices) for guide in self.guides(num_devices)]
        return any(guided)

    def lacks_policy(self, num_devices: int) -> bool:
        """Whether a shipped policy was asked for but does not exist, and the method can run without it."""
        return any(guide.lacks(self.objective, num_devices) for guide in self.guides(num_devices))

    def passes_over_policy(self, plan: Plan) -> bool:
        """Whether a policy was named, but the search of ``plan`` ended normally without using it."""
        num_devices = plan.cluster.num_devices
        asked = [guide for guide in self.guides(num_devices) if guide.optional and guide.name is not None]
        ended = plan.provenance.get("stopped") in ("optimal", "contraction optimal", "target", "interrupted")
        return (
            bool(asked)
            and not ended
            and "policy" not in plan.provenance
            and not self.lacks_policy(num_devices)
        )


def each(clusters: Cluster | Sequence[Cluster], count: int) -> Sequence[Cluster]:
    """One cluster per graph.

    Raises:
      ConfigError: The number of clusters is not that of the graphs.
    """
    if isinstance(clusters, Cluster):
        return [clusters] * count
    if not isinstance(clusters, Sequence):
        raise ConfigError(
            f"clusters: give a Cluster, or a list with one per graph, got {reprlib.repr(clusters)}"
        )
    if len(clusters) != count:
        raise ConfigError(
            f"clusters: {len(clusters)} for {counted(count, 'graph')}; give one for all, or one per graph"
        )
    return list(clusters)


def check_pairs(graphs: Sequence[Any], clusters: Sequence[Any]) -> None:
    """Checks that these are graphs and clusters, not names of files, for instance.

    Raises:
      ConfigError: They are not; the message says what to call.
    """
    for graph in graphs:
        if not isinstance(graph, ComputationGraph):
            raise ConfigError(
                f"graph: give a ComputationGraph (load_graph reads files), got {reprlib.repr(graph)}"
            )
    for cluster in clusters:
        if not isinstance(cluster, Cluster):
            raise ConfigError(
                f"cluster: give a Cluster, e.g. Cluster.uniform(2), got {reprlib.repr(cluster)}"
            )
