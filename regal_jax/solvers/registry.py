"""Every solver by name: the one table that `optimize`, the command, `evaluate` and messages read.

This module does not import JAX, so that the command's help appears at once.
"""

import ast
import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from regal_jax.checks import check_kind, known_name, shown
from regal_jax.errors import ConfigError

if TYPE_CHECKING:
    from regal_jax.solvers.protocol import Solver

__all__ = [
    "Entry",
    "own_entries",
    "parse_settings",
    "register",
    "solver",
    "solver_names",
    "solvers",
    "with_settings",
]


@dataclasses.dataclass(frozen=True)
class Entry:
    """A solver in the registry.

    Attributes:
      name: Name in the command, as ``method`` and in a plan's provenance.
      title: Name in tables.
      summary: One line of the command's help.
      make: Makes the solver with its default settings.
      searches: Whether it spends evaluations.
      warm_start: Whether `regal_jax.experiments` starts it from the plans of heuristics. Methods as published
        in papers start without them.
    """

    name: str
    title: str
    summary: str
    make: "Callable[[], Solver]"
    searches: bool = True
    warm_start: bool = False


def _solver(name: str) -> "Callable[[], Solver]":
    def make() -> "Solver":
        import regal_jax.solvers

        return getattr(regal_jax.solvers, name)()

    return make


def _heuristic(name: str) -> "Callable[[], Solver]":
    def make() -> "Solver":
        from regal_jax.solvers import Heuristic

        return Heuristic(name)

    return make


_ENTRIES: Final = (
    Entry("auto", "Auto", "a search on the host, else BRKGA", _solver("Auto"), warm_start=True),
    Entry("brkga", "BRKGA", "genetic search by random keys", _solver("Brkga")),
    Entry("annealing", "Annealing", "simulated annealing", _solver("Annealing")),
    Entry("local-search", "Local search", "walks that accept what is not worse", _solver("LocalSearch")),
    Entry("random-search", "Random search", "independent random plans", _solver("RandomSearch")),
    Entry("list-search", "List search", "among list schedules (makespan)", _solver("ListSearch")),
    Entry("peak-search", "Peak search", "among placements and orders (peak memory)", _solver("PeakSearch")),
    Entry("order-search", "Order search", "among orders (1 device)", _solver("OrderSearch")),
    Entry(
        "topoformer",
        "Topoformer",
        "a network's priorities, 16 samples (peak memory, 1 device)",
        _solver("TopoformerSamples"),
        searches=False,
    ),
    Entry(
        "beam",
        "Topoformer, beam",
        "a network's likeliest partial orders (peak memory, 1 device)",
        _solver("TopoformerBeam"),
        searches=False,
    ),
    Entry(
        "gflownet",
        "GFlowNet",
        "a network's samples by their speed-up (makespan)",
        _solver("Gflownet"),
        searches=False,
    ),
    Entry(
        "approximate-dp",
        "Approximate DP",
        "best partial orders of each length (peak memory, 1 device)",
        _solver("ApproximateDp"),
        searches=False,
    ),
    Entry(
        "depth-first-dp",
        "Depth-first DP",
        "exact in time (peak memory, 1 device)",
        _solver("DepthFirstDp"),
        searches=False,
    ),
    Entry(
        "random-orders",
        "Random orders",
        "the best of 100 (peak memory, 1 device)",
        _solver("RandomOrders"),
        searches=False,
    ),
    Entry("cp-sat", "CP-SAT", "exact, for small graphs (extra exact)", _solver("CpSat"), searches=False),
)
_TITLES: Final = {
    "critical-path": "Critical path",
    "heft": "HEFT",
    "partition-dfs": "GP + DFS",
    "partition-list": "GP + list",
    "xla-list": "XLA list",
    "xla-dfs": "XLA DFS",
    "xla-post-order": "XLA post-order",
    "xla-best": "XLA best of 3",
    "lpmf": "LPMF",
    "bfs": "BFS",
}
"""Titles of heuristics for which the capitalised name would be wrong."""

_registry: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def _heuristics() -> dict[str, Entry]:
    from regal_jax.heuristics import HEURISTICS

    return {
        name: Entry(
            name,
            _TITLES.get(name, name.replace("-", " ").capitalize()),
            "a heuristic",
            _heuristic(name),
            searches=False,
        )
        for name in HEURISTICS
    }


def register(entry: Entry) -> None:
    """Registers a solver under its name in this process.

    Raises:
      ConfigError: This is no `Entry`, its name is taken, has spaces, commas or "=" or is not that of its
        class, or it makes nothing.
    """
    if not isinstance(entry, Entry):
        raise ConfigError(f"register: give an Entry, got {shown(entry)}")
    name = entry.name
    if not isinstance(name, str) or not name or any(c.isspace() or c in ",=" for c in name):
        raise ConfigError(f"register: name is {shown(name)}; give one without spaces, commas or '='")
    if not callable(entry.make):
        raise ConfigError(
            f"register: make of {name!r} is {shown(entry.make)}; give a function, such as the class"
        )
    own = getattr(entry.make, "name", None)
    if isinstance(own, str) and own != name:
        raise ConfigError(f"register: name is {name!r}, but its class has the name {own!r}; give the same")
    if known_name(entry.name, solvers()) in solvers():
        raise ConfigError(f"register: there is a solver {entry.name!r} already; choose another name")
    _registry[entry.name] = entry


def own_entries() -> Iterator[Entry]:
    """All entries but the heuristics, whose module would have to be imported."""
    return iter(_registry.values())


def solvers() -> Mapping[str, Entry]:
    """All entries by name: searches, the exact solver, heuristics."""
    return types.MappingProxyType({**_registry, **_heuristics()})


def solver_names(*, searching: bool = False) -> str:
    """Names of all solvers, or of those that spend evaluations, joined by commas for a message."""
    return ", ".join(name for name, entry in solvers().items() if entry.searches or not searching)


def solver(method: "str | Solver") -> "Solver":
    """The solver called ``method`` with its default settings; a solver is returned as it is.

    Names may be in capitals, as those of profiles and links.

    Raises:
      ConfigError: ``method`` is an unknown name, one that makes no solver, or neither a name nor a solver.

    Examples:
      >>> from regal_jax.solvers import solver
      >>> solver("brkga").population
      100
    """
    from regal_jax.solvers.protocol import Solver

    if isinstance(method, Solver):
        return method
    if not isinstance(method, str):
        raise ConfigError(f"method: give a name or a solver, e.g. regal_jax.Brkga(), got {method!r}")
    known = solvers()
    name = known_name(method, known)
    if name not in known:
        raise ConfigError(f"method: unknown {method!r}; use one of {', '.join(known)}")
    made = known[name].make()
    if not isinstance(made, Solver):
        raise ConfigError(f"method: {name!r} makes a {type(made).__name__}; its entry must make a solver")
    return made


def with_settings(solver: "Solver", settings: Mapping[str, Any]) -> "Solver":
    """The solver with other settings.

    Args:
      solver: Any solver.
      settings: Field to value. A dot leads into a field that holds settings, and so does a table:
        ``{"brkga.population": 50}`` or ``{"brkga": {"population": 50}}``.

    Raises:
      ConfigError: There is no such setting, or a value is invalid.
    """
    check_kind("settings", settings, Mapping)
    return _with(solver, "", _as_tree(settings), solver.name)


def _as_tree(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with dots in their names as nested tables."""
    tree: dict[str, Any] = {}
    for path, value in settings.items():
        first, dot, rest = str(path).partition(".")
        inner, given = tree.get(first, {}), {rest: value} if dot else value
        if first in tree:
            if not (isinstance(inner, Mapping) and isinstance(given, Mapping)) or inner.keys() & given.keys():
                raise ConfigError(f"settings: {path} is given twice; give it once")
            given = {**inner, **given}
        tree[first] = given
    return tree


def parse_settings(given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Settings from a command line: values are Python literals; any other text is a string.

    Raises:
      ConfigError: A setting is given twice.
    """
    found: dict[str, Any] = {}
    for name, text in given:
        if name in found:
            raise ConfigError(f"--set {name}: given twice; give it once")
        try:
            found[name] = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            found[name] = text
    return found


def _with(holder: Any, prefix: str, settings: Mapping[str, Any], name: str) -> Any:
    """``holder`` with all of ``settings`` at once, since single changes may be invalid by themselves."""
    known = [field.name for field in dataclasses.fields(holder) if field.metadata.get("setting", True)]
    changed: dict[str, Any] = {}
    for field, value in settings.items():
        if field not in known:
            names = f"use one of {', '.join(prefix + each for each in known)}" if known else "it has none"
            raise ConfigError(f"{name}: there is no setting {prefix + field!r}; {names}")
        inner = getattr(holder, field)
        if isinstance(value, Mapping):
            if not dataclasses.is_dataclass(inner):
                raise ConfigError(
                    f"{name}: {prefix + field} is a single value without a setting {', '.join(value)}; "
                    f"write {prefix + field}=VALUE"
                )
            value = _with(inner, f"{prefix}{field}.", _as_tree(value), name)
        changed[field] = value
    try:
        return dataclasses.replace(holder, **changed)
    except TypeError as error:
        raise ConfigError(f"{name}: settings {changed!r} are not valid ({error})") from None
