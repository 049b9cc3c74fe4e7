"""Methods by name: every solver, and the settings that papers compare under their own names."""

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from regal_jax.checks import check_kind, known_name
from regal_jax.errors import ConfigError
from regal_jax.experiments.method import Method
from regal_jax.experiments.quick_start import brkga_from_quick_schedule
from regal_jax.experiments.tuning import TunedConfig
from regal_jax.policies import SHIPPED
from regal_jax.search import BrkgaConfig
from regal_jax.solvers import Brkga, Heuristic, Solver, solvers, with_settings

__all__ = ["GUIDED", "is_method_name", "make_method", "method_name", "method_names"]

_RANDOM: Final = dataclasses.asdict(BrkgaConfig(elites=0, mutants=BrkgaConfig().population))


def _tuned(*, file: str | os.PathLike[str]) -> Solver:
    return Brkga(**dataclasses.asdict(TunedConfig.load(file).config))


def _guided(**fixed: Any) -> Callable[..., Solver]:
    # Without a policy, this would be plain BRKGA under another name.
    return lambda *, policy: Brkga(**fixed, policy=policy)


_VARIANTS: Final[Mapping[str, tuple[str, Callable[..., Solver]]]] = {
    "gp-dfs": ("GP + DFS", lambda: Heuristic("partition-dfs")),
    "tuned-brkga": ("Tuned BRKGA", _tuned),
    "brkga-quick-start": ("BRKGA, quick start", brkga_from_quick_schedule),
    **{name: (name, _guided()) for name in SHIPPED},
    "guided": ("BRKGA, guided", _guided()),
    "gas": ("GAS", _guided()),
    # As in the paper: the first generation of BRKGA, whatever its size.
    "idrs": ("IDRS", _guided(**_RANDOM)),
}
"""Name -> title, and the function that makes the solver from its options."""
GUIDED: Final = (*SHIPPED, "gas", "idrs")
"""Methods that need a policy."""
_FIXED: Final = re.compile(r"(brkga|approximate-dp)-([1-9]\d{0,5})k", re.IGNORECASE)
"""Plain BRKGA with a fixed budget, or approximate DP of a fixed width, in thousands."""
_OPTIONS: Final = ("name", "warm_start", "evaluations", "runs", "twice")


def is_method_name(name: str) -> bool:
    """Whether `make_method` knows the name."""
    return bool(_FIXED.fullmatch(name)) or known_name(name, method_names()) in method_names()


def method_names() -> list[str]:
    """All names that `make_method` takes, except ``brkga-20k``, ``approximate-dp-10k`` and the like."""
    return [*solvers(), *_VARIANTS]


def method_name(name: str) -> str:
    """The name of a method as it is in tables and files; ``name`` may be in capitals.

    A name that is none of `method_names` is returned as it is.
    """
    return name.lower() if _FIXED.fullmatch(name) else known_name(name, method_names())


def make_method(name: str, /, *, settings: Mapping[str, Any] | None = None, **options: Any) -> Method:
    """The method of that name.

    ``brkga-NUMBERk``, such as ``brkga-20k``, is plain BRKGA with that fixed budget, and
    ``approximate-dp-NUMBERk`` is approximate DP of that width.

    Args:
      name: Name of a solver (`regal_jax.solvers.solvers`), of a policy that ships
        (`regal_jax.policies.SHIPPED`), or ``"tuned-brkga"``, ``"brkga-quick-start"`` (one warm start: the
        schedule that the priors have), ``"gas"``, ``"idrs"`` or ``"guided"`` (BRKGA with any policy).
      settings: Settings of the solver, as `regal_jax.solvers.with_settings` takes them.
      **options: ``name``, ``warm_start``, ``evaluations``, ``runs`` and ``twice``, see `Method`; ``file`` of
        ``"tuned-brkga"``, which `TunedConfig.save` wrote; ``policy`` of the guided ones, as in `Brkga`.

    Raises:
      ConfigError: The name is unknown, the method does not have an option, or an option is missing.
      FormatError: The file of tuned settings is damaged.
    """
    check_kind("method", name, str)
    name = method_name(name)
    check_kind("settings", settings or {}, Mapping)
    fixed = _FIXED.fullmatch(name)
    if fixed:
        name, number = fixed[1].lower(), 1000 * int(fixed[2])
        if name == "brkga":
            options = {"name": f"BRKGA {fixed[2]}K", "evaluations": number, **options}
        else:
            options = {"name": f"Approximate DP {fixed[2]}K", **options}
            settings = {"width": number, **(settings or {})}
    known = solvers()
    if not is_method_name(name):
        raise ConfigError(
            f"method: unknown {name!r}; use one of {', '.join(method_names())}, or brkga-20k and the like"
        )
    entry = known.get(name)
    title, make = (entry.title, entry.make) if entry else _VARIANTS[name]
    of_method = {key: options.pop(key) for key in _OPTIONS if key in options}
    try:
        made = make(**options)
    except TypeError as error:
        reason = str(error).partition(") ")[2] or str(error)
        raise ConfigError(f"method {name}: {reason}; see make_method") from None
    made = with_settings(made, settings) if settings else made
    return Method(
        **{"name": title, "solver": made, "warm_start": bool(entry and entry.warm_start), **of_method}
    )
