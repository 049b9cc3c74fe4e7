"""Whole calls of `regal_jax.optimize_many` with a named method."""

import time
from collections.abc import Mapping
from typing import Final

from benchmarks.cases import GraphCase
from benchmarks.timing import Contender, Outcome
from regal_jax import optimize_many
from regal_jax.heuristics.host_search import MOST_COUNT
from regal_jax.plan import Objective
from regal_jax.solvers import ListSearch, Solver
from regal_jax.solvers.registry import solver

__all__ = ["METHODS", "search"]

METHODS: Final[Mapping[str, Solver]] = {"list-search without insertion": ListSearch(insert_after=MOST_COUNT)}
"""Methods that are not in the registry of solvers."""


def search(case: GraphCase, label: str = "search") -> Contender:
    """A search of all graphs without warm starts, from graphs to verified plans.

    Args:
      case: The case, whose `GraphCase.method` is a solver's name or one of `METHODS`.
      label: Label of the contender.
    """
    graphs, cluster = case.make_graphs(), case.cluster()
    method = solver(METHODS.get(case.method, case.method))

    def run() -> Outcome:
        began = time.perf_counter()
        plans = optimize_many(
            graphs,
            cluster,
            method=method,
            objective=Objective(case.objective),
            evaluations=case.evaluations,
            seed=case.seed,
            warm_start=False,
            progress=False,
        )
        seconds = time.perf_counter() - began
        evaluations = sum(int(plan.provenance.get("evaluations", 0)) for plan in plans)
        return Outcome(seconds, evaluations or None, sum(plan.objective_value for plan in plans) / len(plans))

    return Contender(label, run)
