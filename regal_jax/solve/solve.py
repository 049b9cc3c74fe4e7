"""A batch of graphs in, the best genes of each out."""

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
from jax.sharding import Mesh

from regal_jax.encoding import Genes, Proposal, quantiles, uniform_genes, uniform_proposal
from regal_jax.objective import fitness
from regal_jax.plan import Objective
from regal_jax.problem import Problem
from regal_jax.search import (
    Brkga,
    BrkgaConfig,
    Inputs,
    Progress,
    SearchResult,
    Stopping,
    WarmStart,
    num_traces,
    random_keys,
    run,
)

__all__ = ["num_traces", "searcher", "solve"]

# One function object an objective: the compiled programs are kept by identity.
_FITNESS: Final = {objective: functools.partial(fitness, objective=objective) for objective in Objective}


def _sample(proposal: Proposal, key: jax.Array) -> Genes:
    """One individual of one graph: uniform draws, sent through the proposal's quantiles."""
    return quantiles(proposal, random_keys(key, uniform_genes(proposal)))


def searcher(objective: Objective | str, config: BrkgaConfig) -> Brkga:
    """The BRKGA that minimises ``objective``; equal arguments share compiled programs.

    For use inside a larger traced program, with `regal_jax.search.run_traced`.
    """
    return Brkga(_FITNESS[Objective(objective)], _sample, config)


def solve(
    problem: Problem,
    keys: jax.Array,
    stopping: Stopping,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    proposal: Proposal | None = None,
    config: BrkgaConfig | None = None,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], Any] | None = None,
    mesh: Mesh | None = None,
) -> SearchResult:
    """Searches for the best genes of each of ``B`` graphs, all in one compiled program.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      stopping: When to stop. A budget that does not pay for the population gets a smaller one.
      objective: What to minimise.
      proposal: What first populations and mutants are drawn from; uniform by default.
      config: Of the BRKGA.
      warm: Individuals to begin with.
      callback: As in `regal_jax.search.run`.
      mesh: Spread the graphs over its devices (``B`` a multiple of their number); the results are the same.

    Raises:
      ConfigError: Settings, keys or warm starts that cannot be.
    """
    fitted = (config or BrkgaConfig()).fit(stopping.evaluations)
    inputs = Inputs(problem, uniform_proposal(problem) if proposal is None else proposal, keys)
    return run(searcher(objective, fitted), inputs, stopping, warm=warm, callback=callback, mesh=mesh)
