"""Earlier plans as warm starts of a search."""

import dataclasses
import os
import reprlib
from collections.abc import Iterable, Sequence
from typing import Any

from regal_jax.checks import is_list
from regal_jax.errors import ConfigError, PlanError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Objective, Plan, adapt_plan, check_graph

__all__ = ["Earlier", "WarmStarts", "earlier_plans", "share_earlier"]

Earlier = Plan | str | os.PathLike[str]
WarmStarts = bool | Earlier | Iterable[Earlier]
"""The types that ``warm_start`` takes."""


def earlier_plans(warm_start: Any) -> tuple[Plan, ...]:
    """The plans in ``warm_start``, loaded from files if need be.

    Raises:
      ConfigError: An item is not a plan.
      FormatError: A file cannot be read, or holds no plan.
    """
    if isinstance(warm_start, bool):
        return ()
    if isinstance(warm_start, (Plan, str, os.PathLike)):
        return (_plan(warm_start),)
    if not is_list(warm_start):
        raise _wrong(warm_start)
    return tuple(map(_plan, warm_start))


def _plan(given: Any) -> Plan:
    if isinstance(given, Plan):
        return given
    if not isinstance(given, (str, os.PathLike)):
        raise _wrong(given)
    return Plan.load(given)


def _wrong(given: Any) -> ConfigError:
    return ConfigError(
        f"warm_start: give True, False, a Plan, a plan's file, or a list of these, got {reprlib.repr(given)}"
    )


def share_earlier(
    plans: Sequence[Plan],
    pairs: Sequence[tuple[ComputationGraph, Cluster]],
    objective: Objective,
) -> list[list[Plan]]:
    """For each graph the plans that were made for it, adapted to its cluster, best first.

    Raises:
      ConfigError: A plan is for none of the graphs, or is not a valid execution.
    """
    found: list[list[Plan]] = [[] for _ in pairs]
    for plan in plans:
        members = [i for i, (graph, _) in enumerate(pairs) if graph.content_hash == plan.graph_hash]
        try:
            if not members and len(pairs) == 1:
                check_graph(plan, pairs[0][0])
            if not members:
                raise PlanError(
                    f"the plan is for graph {plan.graph_name!r} ({plan.graph_hash[:12]}), which is none of "
                    f"the {len(pairs)} graphs here"
                )
            for i in members:
                found[i].append(adapt_plan(plan, *pairs[i], objective))
        except PlanError as error:
            raise ConfigError(f"warm_start: {error}") from None
    return [_named(sorted(each, key=lambda plan: plan.sort_key)) for each in found]


def _named(plans: Sequence[Plan]) -> list[Plan]:
    """The plans with a distinct name each, in place of the provenance of their search."""
    named = []
    for number, plan in enumerate(plans, 1):
        which = f" {number}" if len(plans) > 1 else ""
        name = f"earlier plan{which} ({plan.provenance.get('method', 'unknown')})"
        named.append(dataclasses.replace(plan, provenance={"method": name}))
    return named
