"""What a caller asked for, checked."""

import dataclasses
import math
import os
import reprlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, Self

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.api.budget import Who, accelerator_parts
from regal_jax.api.earlier import WarmStarts, earlier_plans
from regal_jax.compiling import usable
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics import HEURISTICS, ListSearchConfig, PeakSearchConfig
from regal_jax.interrupts import interruptible
from regal_jax.plan import Objective, Plan
from regal_jax.search import AnnealingConfig, BrkgaConfig
from regal_jax.solve import Part

if TYPE_CHECKING:
    from regal_jax.policies import Policy

__all__ = ["HOST_SEARCHES", "SEARCHES", "Config", "Settings", "check_pairs", "each", "one_seed"]

Config = BrkgaConfig | AnnealingConfig | ListSearchConfig | PeakSearchConfig
SEARCHES: Final = {
    "auto": BrkgaConfig,
    "brkga": BrkgaConfig,
    "annealing": AnnealingConfig,
    "local-search": AnnealingConfig,
    "list-search": ListSearchConfig,
    "peak-search": PeakSearchConfig,
}
"""The methods that search, and what sets them; all others are heuristics."""
_GUIDED: Final = ("brkga", "auto")
HOST_SEARCHES: Final = {"list-search": Objective.MAKESPAN, "peak-search": Objective.PEAK_MEMORY}
"""The searches of the host, each for one objective."""


def one_seed(seed: int | jax.Array, key: int | jax.Array | None) -> int | jax.Array:
    """The seed, which older callers name ``key``.

    Raises:
      ConfigError: Both are given.
    """
    if key is None:
        return seed
    if not isinstance(seed, int) or seed != 0:
        raise ConfigError("seed: key is its former name; give one of them")
    return key


def _as_key(key: Any) -> tuple[jax.Array, int | None]:
    """A typed key, and the seed it came from if it came from one."""
    if isinstance(key, (int, np.integer)) and not isinstance(key, bool):
        if not 0 <= key < 2**32:
            raise ConfigError(f"seed: must be from 0 to {2**32 - 1}, got {key}")
        return jax.random.key(np.uint32(key)), int(key)
    if isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0:
        return key, None
    raise ConfigError(f"seed: give a whole number or jax.random.key(number), got {key!r}")


def _policy(policy: Any, method: str) -> "tuple[Policy | None, str | None]":
    """The policy, ``None`` if it is a shipped one; and what to call it, ``None`` if nobody asked for one."""
    if policy is None or (isinstance(policy, str) and policy == "none"):
        return None, policy
    if method not in _GUIDED:
        raise ConfigError(f"policy: guides {' and '.join(_GUIDED)}, not {method}; leave it out")
    from regal_jax.policies import Policy, load_policy

    if isinstance(policy, Policy):
        return policy, "given"
    if not isinstance(policy, (str, os.PathLike)):
        raise ConfigError(
            f"policy: give None, 'none', 'default', a file of weights or a Policy, got {policy!r}"
        )
    if policy == "default":
        return None, "default"
    if not os.path.exists(policy):
        raise ConfigError(f"policy: no file {os.fspath(policy)!r}; give 'default' or a file of weights")
    return load_policy(policy), os.fspath(policy)


def _chosen(method: str | None, policy: Any, config: Any) -> str:
    """The method: what was named, else what the rest that was given is for."""
    if method is not None:
        return method
    for name, kind in SEARCHES.items():
        if name != "auto" and isinstance(config, kind):
            return name
    own = policy is not None and not (isinstance(policy, str) and policy in ("none", "default"))
    return "brkga" if own else "auto"


def _default_config(method: str) -> Config:
    if method == "local-search":
        return AnnealingConfig.local_search()
    return SEARCHES.get(method, BrkgaConfig)()


@dataclasses.dataclass(frozen=True, eq=False)
class Settings:
    """Arguments of `optimize`, in the form that the rest works with."""

    objective: Objective
    evaluations: int
    key: jax.Array
    seed: int | None
    method: str
    policy: "Policy | None"
    policy_name: str | None
    warm_start: bool
    earlier: tuple[Plan, ...]
    contract: bool | None
    config: Config
    target: float | None
    stall: int | None
    time_limit: float | None
    progress: bool

    @classmethod
    @interruptible()
    def checked(
        cls,
        *,
        objective: Objective | str,
        evaluations: int,
        seed: Any,
        method: str | None,
        policy: "Policy | str | os.PathLike[str] | None",
        warm_start: WarmStarts,
        contract: bool | None,
        config: Config | None,
        target: float | None,
        stall: int | None,
        time_limit: float | None,
        progress: bool,
    ) -> Self:
        """Refuses what cannot be.

        Raises:
          ConfigError: An impossible value; the message names the argument.
        """
        if objective not in list(Objective):
            raise ConfigError(f"objective: unknown {objective!r}; use one of {', '.join(Objective)}")
        if isinstance(evaluations, bool) or not isinstance(evaluations, (int, np.integer)) or evaluations < 1:
            raise ConfigError(f"evaluations: must be a whole number of at least 1, got {evaluations!r}")
        method = _chosen(method, policy, config)
        if method not in SEARCHES and method not in HEURISTICS:
            names = ", ".join([*SEARCHES, *HEURISTICS])
            raise ConfigError(f"method: unknown {method!r}; use one of {names}")
        if method in HOST_SEARCHES and objective != HOST_SEARCHES[method]:
            raise ConfigError(
                f"method: {method} is for {HOST_SEARCHES[method]}, not for {objective}; use auto"
            )
        policy, policy_name = _policy(policy, method)
        kind = SEARCHES.get(method, BrkgaConfig)
        if config is not None and not isinstance(config, kind):
            raise ConfigError(f"config: {method} is set by a {kind.__name__}, got {config!r}")
        for name, value in (("target", target), ("time_limit", time_limit)):
            if value is not None and not (isinstance(value, (int, float)) and 0 <= value < math.inf):
                raise ConfigError(f"{name}: must be a number of zero or more, got {value!r}")
        if contract is not None and not isinstance(contract, bool):
            raise ConfigError(f"contract: must be True, False or None, got {contract!r}")
        earlier = earlier_plans(warm_start)
        if earlier and method not in SEARCHES:
            raise ConfigError(
                f"warm_start: {method} is a heuristic, which starts from no plan; leave it out, or take one "
                f"of the searches {', '.join(SEARCHES)}"
            )
        typed, number = _as_key(seed)
        return cls(
            objective=Objective(objective),
            evaluations=int(evaluations),
            key=typed,
            seed=number,
            method=method,
            policy=policy,
            policy_name=policy_name,
            warm_start=bool(earlier) or warm_start is not False,
            earlier=earlier,
            contract=contract,
            config=config or _default_config(method),
            target=target,
            stall=stall,
            time_limit=time_limit,
            progress=progress,
        )

    @property
    def key_words(self) -> list[int]:
        """The key as numbers: for a file, or for the host's random numbers."""
        return np.asarray(jax.random.key_data(self.key)).tolist()

    @property
    def searches(self) -> bool:
        """Is the method a search? Otherwise it is a heuristic."""
        return self.method in SEARCHES

    @property
    def accelerated(self) -> bool:
        """Does the method search on the accelerator?"""
        return self._accelerator_config is not None

    @property
    def _accelerator_config(self) -> BrkgaConfig | AnnealingConfig | None:
        """Of the search on the accelerator; ``None`` if there is none."""
        if not self.searches or isinstance(self.config, (ListSearchConfig, PeakSearchConfig)):
            return None
        return self.config

    def parts(self, num_devices: int) -> tuple[Part, ...]:
        """The searches on the accelerator, which share what a search on the host leaves of the budget."""
        config = self._accelerator_config
        if config is None:
            return ()
        if self.method == "auto" and isinstance(config, BrkgaConfig):
            return accelerator_parts(config, alone=not self.on_host(num_devices))
        return (Part(1.0, config),)

    @property
    def host_config(self) -> ListSearchConfig | PeakSearchConfig:
        """Of the search on the host, whose kind the objective decides."""
        if isinstance(self.config, (ListSearchConfig, PeakSearchConfig)):
            return self.config
        return ListSearchConfig() if self.objective is Objective.MAKESPAN else PeakSearchConfig()

    def on_host(self, num_devices: int) -> bool:
        """Does a search on the host come first? Not where there is no device to choose.

        Without compiled loops ``"auto"`` does without, too: they take twenty times as long.
        """
        return num_devices > 1 and (self.method in HOST_SEARCHES or (self.method == "auto" and usable()))

    def places(self, num_devices: int) -> tuple[Who, ...]:
        """Where the method searches; nowhere, if it is a search among devices and there is one."""
        host = (Who.HOST,) if self.on_host(num_devices) else ()
        return (*host, Who.ACCELERATOR) if self.accelerated else host

    def contracts_on_host(self, num_devices: int) -> bool:
        """Is it for this call to decide whether the contracted graph is searched as well?"""
        makespan = self.objective is Objective.MAKESPAN
        return self.contract is None and self.method == "auto" and makespan and self.on_host(num_devices)

    def lacks_policy(self, num_devices: int) -> bool:
        """Was the policy that ships asked for, of a method that can go on without, and there is none?"""
        if self.policy_name != "default" or self.method != "auto":
            return False
        from regal_jax.policies import is_shipped

        return not is_shipped(self.objective, num_devices)

    def passes_over_policy(self, plan: Plan) -> bool:
        """Was a policy named, and the search of ``plan`` ran its course without it?"""
        asked = self.method == "auto" and self.policy_name not in (None, "none")
        ended = plan.provenance.get("stopped") in ("optimal", "contraction optimal", "target", "interrupted")
        unused = asked and not ended and "policy" not in plan.provenance
        return unused and not self.lacks_policy(plan.cluster.num_devices)

    def guides(self, num_devices: int) -> bool:
        """Is there a policy for a cluster of so many devices, asked for or part of the method?

        Raises:
          ConfigError: One was asked for, and there is none for so many.
        """
        if self.policy_name == "none" or (self.policy_name is None and self.method != "auto"):
            return False
        from regal_jax.policies import default_policy, is_shipped

        if self.policy is not None:
            from regal_jax.solve.propose import check_devices

            check_devices(self.policy, num_devices)
        elif not is_shipped(self.objective, num_devices):
            if self.method == "auto":
                return False
            default_policy(self.objective, num_devices)  # Says what there is.
        return True

    def guide(self, num_devices: int) -> "Policy | None":
        """The policy that `guides`, or ``None``; Flax is loaded for it, which takes as long as JAX."""
        if not self.guides(num_devices):
            return None
        from regal_jax.policies import default_policy

        return default_policy(self.objective, num_devices) if self.policy is None else self.policy


def each(clusters: Cluster | Sequence[Cluster], count: int) -> Sequence[Cluster]:
    """One cluster a graph.

    Raises:
      ConfigError: Another number of clusters than graphs.
    """
    if isinstance(clusters, Cluster):
        return [clusters] * count
    if not isinstance(clusters, Sequence):
        raise ConfigError(
            f"clusters: give a Cluster, or a list with one a graph, got {reprlib.repr(clusters)}"
        )
    if len(clusters) != count:
        raise ConfigError(f"clusters: {len(clusters)} for {count} graphs; give one for all, or one a graph")
    return list(clusters)


def check_pairs(graphs: Sequence[Any], clusters: Sequence[Any]) -> None:
    """Refuses what is no graph or no cluster: a file's name, say.

    Raises:
      ConfigError: Something else; the message says what to call.
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
