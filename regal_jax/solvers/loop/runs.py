"""Independent runs of the search of a graph, of which the best plan is kept."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Final, TypeVar

from regal_jax.plan import Plan

__all__ = ["MOST_RUNS", "best_of_runs", "repeated"]

MOST_RUNS: Final = 10_000
"""Largest number of runs of each graph."""

T = TypeVar("T")


def repeated(each: Sequence[T], runs: int) -> list[T]:
    """Each value ``runs`` times, so that run ``r`` of graph ``i`` has index ``i * runs + r``."""
    return [value for value in each for _ in range(runs)]


def best_of_runs(plans: Sequence[Plan]) -> Plan:
    """The best plan of all runs of a graph, the first on ties.

    Its provenance is that of its own run, with evaluations, seconds and work of all runs. ``run`` is the
    number of its run, and ``runs`` has the objectives of all; ``None`` for those that do not fit the memory.

    Args:
      plans: One plan of each run, at least one.
    """
    if len(plans) == 1:
        return plans[0]
    run = min(range(len(plans)), key=lambda number: plans[number].sort_key)
    each = [plan.provenance for plan in plans]
    said: dict[str, Any] = {**each[run], "run": run}
    said["runs"] = [plan.objective_value if plan.feasible else None for plan in plans]
    said["evaluations"] = sum(one["evaluations"] for one in each)
    said["seconds"] = round(sum(one["seconds"] for one in each), 6)
    said["work"] = {name: sum(one["work"][name] for one in each) for name in said["work"]}
    return dataclasses.replace(plans[run], provenance=said)
