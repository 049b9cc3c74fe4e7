"""A batch of graphs in, the best genes of each out."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh

from regal_jax.encoding import Proposal, gene_shapes, quantiles
from regal_jax.objective import fitness
from regal_jax.plan import Objective
from regal_jax.problem import Problem
from regal_jax.search import (
    BrkgaConfig,
    FitnessFn,
    Progress,
    SearchResult,
    Stopping,
    TransformedProposal,
    UniformProposal,
    WarmStart,
    brkga,
)

__all__ = ["solve"]


@functools.cache
def _fitness(objective: Objective, implementation: str | None) -> FitnessFn:
    """One function object each: compiled programs are kept by the identity of the functions in them."""
    return functools.partial(fitness, objective=objective, implementation=implementation)


def solve(
    problem: Problem,
    keys: jax.Array,
    stopping: Stopping,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    proposal: Proposal | None = None,
    config: BrkgaConfig | None = None,
    implementation: str | None = None,
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
      implementation: Of the simulator, as in `regal_jax.simulate.simulate`.
      warm: Individuals to begin with.
      callback: As in `regal_jax.search.run`.
      mesh: Spread the graphs over its devices (``B`` a multiple of their number); the results are the same.

    Raises:
      ConfigError: Settings, keys or warm starts that cannot be.
    """
    shapes = gene_shapes(problem)
    uniform = UniformProposal.of(shapes)
    # Transfer priorities are uniform in every proposal.
    late = (sorted(shapes).index("transfer_priority"),)
    return brkga(
        _fitness(Objective(objective), implementation),
        problem,
        keys,
        stopping,
        # beta(1, 1) is what the uniform draws are already: no table to look anything up in.
        sample_fn=uniform if proposal is None else TransformedProposal(uniform, quantiles, late),
        params=proposal,
        config=config,
        warm=warm,
        callback=callback,
        mesh=mesh,
    )
