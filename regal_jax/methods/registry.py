"""Every method by name."""

import os
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from regal_jax.api.names import MethodName
from regal_jax.errors import ConfigError
from regal_jax.methods.hosted import CpSat, HeuristicMethod
from regal_jax.methods.method import Method
from regal_jax.methods.searched import Searched
from regal_jax.methods.tuning import TunedConfig
from regal_jax.search import BrkgaConfig

__all__ = ["METHODS", "make_method"]

_RANDOM: Final = BrkgaConfig(elites=0, mutants=BrkgaConfig().population)


def _heuristic(title: str, name: str) -> Callable[..., Method]:
    return lambda: HeuristicMethod(title, name)


def _searched(title: str, method: MethodName, **fixed: Any) -> Callable[..., Method]:
    return lambda **options: Searched(**{"name": title, "method": method, **fixed, **options})


def _tuned(*, file: str | os.PathLike[str], twice: bool = False) -> Method:
    return Searched("Tuned BRKGA", config=TunedConfig.load(file).config, twice=twice)


def _guided(title: str, **fixed: Any) -> Callable[..., Method]:
    # Without a policy it would be plain BRKGA under another name.
    return lambda *, policy, **options: Searched(**{"name": title, "policy": policy, **fixed, **options})


METHODS: Final[Mapping[str, Callable[..., Method]]] = MappingProxyType(
    {
        "gp-dfs": _heuristic("GP + DFS", "partition-dfs"),
        "critical-path": _heuristic("Critical path", "critical-path"),
        "heft": _heuristic("HEFT", "heft"),
        "xla-list": _heuristic("XLA list", "xla-list"),
        "xla-dfs": _heuristic("XLA DFS", "xla-dfs"),
        "xla-post-order": _heuristic("XLA post-order", "xla-post-order"),
        "xla-best": _heuristic("XLA best of 3", "xla-best"),
        "peak-balance": _heuristic("Peak balance", "peak-balance"),
        "random-search": _searched("Random search", "brkga", config=_RANDOM),
        "local-search": _searched("Local search", "local-search"),
        "annealing": _searched("Annealing", "annealing"),
        "brkga": _searched("BRKGA", "brkga"),
        "tuned-brkga": _tuned,
        "list-search": _searched("List search", "list-search"),
        "peak-search": _searched("Peak search", "peak-search"),
        "auto": _searched("Auto", "auto", warm_start=True),
        "cp-sat": CpSat,
        "regal": _guided("REGAL"),
        "gas": _guided("GAS"),
        # The paper's: the first generation of a BRKGA, however large.
        "idrs": _guided("IDRS", config=_RANDOM),
    }
)
"""Name to what makes the method of `make_method`'s options."""


def make_method(name: str, /, **options: Any) -> Method:
    """The method of that name.

    ``brkga-20k`` and the like are plain BRKGA with a budget of its own. Searches take ``config``,
    ``warm_start`` (only ``auto`` has it unless told), ``evaluations`` and ``twice``, see `Searched`;
    ``tuned-brkga`` needs the ``file`` that `TunedConfig.save` wrote; ``cp-sat`` takes ``time_limit`` and
    ``workers``; ``regal``, ``gas`` and ``idrs`` need a ``policy``, as `optimize` takes it.

    Raises:
      ConfigError: An unknown name, an option that the method does not have, or one that is missing.
      FormatError: A damaged file of tuned settings.
    """
    fixed = re.fullmatch(r"brkga-([1-9]\d{0,5})k", name)
    if fixed:
        title, budget = f"BRKGA {fixed[1]}K", 1000 * int(fixed[1])
        options = {"name": title, "evaluations": budget, **options}
        name = "brkga"
    if name not in METHODS:
        raise ConfigError(
            f"method: unknown {name!r}; use one of {', '.join(METHODS)}, or brkga-20k and the like"
        )
    try:
        return METHODS[name](**options)
    except TypeError as error:
        reason = str(error).partition(") ")[2] or str(error)
        raise ConfigError(f"method {name}: {reason}; see make_method") from None
