"""Orders of little memory for the computations of a scheduled module."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from regal_jax.api import order
from regal_jax.api.names import MethodName
from regal_jax.graph import ComputationGraph
from regal_jax.importers.hlo_program import order_computations
from regal_jax.importers.hlo_text import Module
from regal_jax.plan import Plan
from regal_jax.runtime.deadline import Deadline

if TYPE_CHECKING:
    from regal_jax.api import Improvement
    from regal_jax.solvers import Solver

__all__ = ["Candidate", "SearchSettings", "find_candidates"]


@dataclasses.dataclass(frozen=True)
class SearchSettings:
    """Settings of the search.

    Attributes:
      method: A name or a solver for one device, as in `regal_jax.order`.
      evaluations: Largest number of evaluations for each computation.
      time_limit: Seconds for all computations together; ``None`` for no limit.
      seed: Seed of the search, a whole number of 0 or more.
      candidates: Largest number of orders that are compiled.
    """

    method: "MethodName | Solver | None"
    evaluations: int
    time_limit: float | None
    seed: int
    candidates: int


@dataclasses.dataclass(frozen=True)
class Candidate:
    """An order of a module.

    Attributes:
      steps: Computation -> names of the instructions that run, in order.
      predicted: Largest sum of the sizes of live buffers, in bytes.
    """

    steps: dict[str, tuple[str, ...]]
    predicted: int


def find_candidates(module: Module, settings: SearchSettings) -> list[Candidate]:
    """Searches each computation of a module.

    Args:
      module: The scheduled module.
      settings: Settings of the search.

    Returns:
      Different orders of the whole module, the one with the lowest peak first; none if there is nothing to
      order.
    """
    deadline = Deadline(settings.time_limit)
    bodies: dict[str, tuple[str, ...]] = {}
    entry: list[tuple[ComputationGraph, list[Plan]]] = []

    def find_peak(name: str, graph: ComputationGraph) -> int:
        plans = _plans(graph, settings, deadline)
        bodies[name] = _names(graph, plans[0]) if plans else ()
        entry[:] = [(graph, plans)]
        return int(plans[0].objective_value) if plans else 0

    order_computations(module, find_peak)
    graph, plans = entry[0]
    last = next(reversed(bodies))
    below = {name: steps for name, steps in bodies.items() if steps and name != last}
    made: dict[tuple[str, ...], Candidate] = {}
    for plan in plans:
        steps = _names(graph, plan)
        made.setdefault(steps, Candidate({**below, last: steps}, int(plan.objective_value)))
    return list(made.values())


def _plans(graph: ComputationGraph, settings: SearchSettings, deadline: Deadline) -> list[Plan]:
    """Plans of one computation, the best first."""
    if graph.num_ops == 0:
        return []
    seen: list[Plan] = []

    def see(improvement: "Improvement") -> None:
        seen.append(improvement.plan)

    best = order(
        graph,
        method=settings.method,
        evaluations=settings.evaluations,
        time_limit=deadline.left,
        seed=settings.seed,
        on_improvement=see,
    )
    return [best, *reversed(seen)]


def _names(graph: ComputationGraph, plan: Plan) -> tuple[str, ...]:
    names: Sequence[str] = graph.op_names
    return tuple(names[o] for o in plan.timeline.op)
