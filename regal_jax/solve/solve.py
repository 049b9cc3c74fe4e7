"""A batch of graphs in, the best genes of each out."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from regal_jax.encoding import PlanMoves, Proposal, gene_shapes, quantiles
from regal_jax.plan import Objective
from regal_jax.problem import Problem
from regal_jax.runtime.interrupts import interruptible
from regal_jax.search import (
    AnnealingConfig,
    BrkgaConfig,
    BrkgaSearcher,
    FitnessFn,
    Incumbent,
    Inputs,
    Progress,
    SampleFn,
    SearchResult,
    Stopping,
    TransformedProposal,
    UniformProposal,
    WarmStart,
    anneal,
    brkga,
    run_traced,
)
from regal_jax.solve.fitness import fitness

__all__ = ["sampler", "solve", "solve_traced"]


@functools.cache
def _fitness(objective: Objective, implementation: str | None) -> FitnessFn:
    """One function object each: compiled programs are kept by the identity of the functions in them."""
    return functools.partial(fitness, objective=objective, implementation=implementation)


def sampler(problem: Problem, proposal: Proposal | None) -> SampleFn:
    """What draws an individual of ``problem`` from ``proposal``; from the uniform one if that is ``None``."""
    if proposal is None:
        # beta(1, 1) is what the uniform draws are already: no table to look anything up in.
        return UniformProposal.of(gene_shapes(problem))
    shapes = proposal.shapes
    # Without an index, transfer priorities stay the uniform draws that they are.
    late = () if proposal.transfer_index is not None else (sorted(shapes).index("transfer_priority"),)
    return TransformedProposal(UniformProposal.of(shapes), quantiles, late)


@interruptible()
def solve(
    problem: Problem,
    keys: jax.Array,
    stopping: Stopping,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    proposal: Proposal | None = None,
    config: BrkgaConfig | AnnealingConfig | None = None,
    implementation: str | None = None,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], Any] | None = None,
    mesh: Mesh | None = None,
) -> SearchResult:
    """Searches for the best genes of each of ``B`` graphs, all in one compiled program.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      stopping: When to stop. A budget that does not pay for the population gets a smaller one, and one that
        does not pay for the starts of all chains fewer chains.
      objective: What to minimise.
      proposal: What first populations, mutants and starts of chains are drawn from; uniform by default.
      config: Its class says which search it is: BRKGA, which is the default, or annealing.
      implementation: Of the simulator, as in `regal_jax.simulate.simulate`.
      warm: Individuals to begin with.
      callback: As in `regal_jax.search.run`.
      mesh: Spread the graphs over its devices (``B`` a multiple of their number); the results are the same.

    Raises:
      ConfigError: Settings, keys or warm starts that cannot be.
    """
    options: dict[str, Any] = {
        "sample_fn": sampler(problem, proposal),
        "params": proposal,
        "warm": warm,
        "callback": callback,
        "mesh": mesh,
    }
    fitness_fn = _fitness(Objective(objective), implementation)
    if isinstance(config, AnnealingConfig):
        return anneal(fitness_fn, problem, keys, stopping, move_fn=PlanMoves(), config=config, **options)
    return brkga(fitness_fn, problem, keys, stopping, config=config, **options)


def solve_traced(
    problem: Problem,
    keys: jax.Array,
    evaluations: int,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    proposal: Proposal | None = None,
    config: BrkgaConfig | None = None,
    implementation: str | None = None,
) -> Incumbent:
    """`solve` as a part of a larger traced program, a training step: the same search, bit for bit.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      evaluations: The budget.
      objective: As in `solve`, like the rest.
      proposal: As in `solve`.
      config: As in `solve`.
      implementation: As in `solve`.

    Raises:
      ConfigError: An impossible budget.
    """
    fitted = (BrkgaConfig() if config is None else config).fit(evaluations)
    searcher = BrkgaSearcher(
        _fitness(Objective(objective), implementation), sampler(problem, proposal), fitted
    )
    inputs = Inputs(problem, proposal, keys)
    return run_traced(searcher, inputs, fitted.generations(evaluations)).incumbent
