"""`solve`: the search for the best genes of each graph of a batch."""

import functools
from collections.abc import Callable
from typing import Any, Final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from regal_jax.encoding import Proposal, SchedulePrior
from regal_jax.plan import Objective
from regal_jax.problem import Problem
from regal_jax.programs import program
from regal_jax.runtime.deadline import Deadline
from regal_jax.runtime.interrupts import check_interrupt, interruptible
from regal_jax.search import (
    AnnealingConfig,
    BrkgaConfig,
    BrkgaSearcher,
    FitnessFn,
    Incumbent,
    Inputs,
    Limits,
    Progress,
    SearchResult,
    Stopping,
    WarmStart,
    anneal,
    brkga,
    run_chunk,
    run_traced,
    start,
)
from regal_jax.search.population import flat
from regal_jax.solve.encodings import CHROMOSOME, Encoding
from regal_jax.solve.fitness import fitness

__all__ = ["best_individuals", "final_population", "solve", "solve_traced"]


_LOOK_SECONDS: Final = 0.3
"""Approximate time between two checks for Ctrl-C."""


@functools.cache
def _fitness(objective: Objective, implementation: str | None, encoding: Encoding = CHROMOSOME) -> FitnessFn:
    """One function object per objective: compiled programs are cached by the identity of their functions."""
    return functools.partial(fitness, objective=objective, implementation=implementation, encoding=encoding)


@interruptible()
def solve(
    problem: Problem,
    keys: jax.Array,
    stopping: Stopping,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    proposal: Proposal | SchedulePrior | None = None,
    config: BrkgaConfig | AnnealingConfig | None = None,
    implementation: str | None = None,
    encoding: Encoding = CHROMOSOME,
    warm: WarmStart | None = None,
    callback: Callable[[Progress], Any] | None = None,
    mesh: Mesh | None = None,
) -> SearchResult:
    """Searches for the best genes of each of ``B`` graphs, all in one compiled program.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      stopping: When to stop. If the budget is less than one population, the population is made smaller; if it
        is less than the starts of all chains, there are fewer chains.
      objective: What to minimise: ``"makespan"`` or ``"peak-memory"``. Memory capacities count in any case.
      proposal: The distribution of first populations, mutants and starts of chains; uniform by default.
      config: Its class selects the search: BRKGA, which is the default, or annealing.
      implementation: Implementation of the simulator, as in `regal_jax.simulate.simulate`.
      encoding: What the genes mean.
      warm: Known individuals that enter the first population; none by default.
      callback: As in `regal_jax.search.run`.
      mesh: Spread the graphs over its devices (``B`` a multiple of their number); the results are the same.

    Raises:
      ConfigError: Settings, keys or warm starts are invalid.
    """
    options: dict[str, Any] = {
        "sample_fn": encoding.sampler(problem, proposal),
        "params": proposal,
        "warm": warm,
        "callback": callback,
        "mesh": mesh,
    }
    fitness_fn = _fitness(Objective(objective), implementation, encoding)
    if isinstance(config, AnnealingConfig):
        return anneal(fitness_fn, problem, keys, stopping, move_fn=encoding.moves, config=config, **options)
    return brkga(fitness_fn, problem, keys, stopping, move_fn=encoding.moves, config=config, **options)


def solve_traced(
    problem: Problem,
    keys: jax.Array,
    evaluations: int,
    *,
    objective: Objective | str = Objective.MAKESPAN,
    proposal: Proposal | SchedulePrior | None = None,
    config: BrkgaConfig | None = None,
    implementation: str | None = None,
    encoding: Encoding = CHROMOSOME,
) -> Incumbent:
    """`solve` as a part of a larger traced program, a training step: the same search, bit for bit.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      evaluations: Largest number of evaluations per graph.
      objective: As in `solve`.
      proposal: As in `solve`.
      config: As in `solve`.
      implementation: As in `solve`.
      encoding: As in `solve`.

    Raises:
      ConfigError: An impossible budget.
    """
    searcher = _searcher(problem, evaluations, objective, config, encoding, proposal, implementation)
    inputs = Inputs(problem, proposal, keys)
    return run_traced(searcher, inputs, searcher.config.generations(evaluations)).incumbent


def final_population(
    problem: Problem,
    keys: jax.Array,
    evaluations: int,
    *,
    config: BrkgaConfig | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The decisions of the last generation of BRKGA for the makespan, with uniform proposals.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      evaluations: The budget of each graph, for all islands together.
      config: Settings; the population is made smaller if it exceeds the budget (`BrkgaConfig.fit`).

    Returns:
      ``(placement [B, Q, N], position [B, Q, N])`` int32: device of each op, and its rank among the events
      (-1 for padding). ``Q`` individuals, island by island: elites, children, mutants.

    Raises:
      ConfigError: An impossible budget.
    """
    searcher, inputs = _plain_search(problem, keys, evaluations, config, CHROMOSOME)
    return _decided(searcher, inputs, _last_state(searcher, inputs, evaluations))


def best_individuals(
    problem: Problem,
    keys: jax.Array,
    evaluations: int,
    *,
    config: BrkgaConfig | None = None,
    encoding: Encoding = CHROMOSOME,
) -> tuple[jax.Array, jax.Array]:
    """The decisions of the best individual that BRKGA without warm starts finds for each graph's makespan.

    The result for a graph does not depend on the others. For several runs of one graph, give it several
    times, with other keys.

    Args:
      problem: ``B`` graphs.
      keys: ``[B]`` typed keys, consumed.
      evaluations: As in `final_population`.
      config: As in `final_population`.
      encoding: What the genes mean.

    Returns:
      ``(placement [B, N], position [B, N])`` int32, as in `final_population`.

    Raises:
      ConfigError: An impossible budget.
    """
    searcher, inputs = _plain_search(problem, keys, evaluations, config, encoding)
    best = _last_state(searcher, inputs, evaluations).incumbent
    return _decided_alone(encoding, problem, best.genes)


def _plain_search(
    problem: Problem,
    keys: jax.Array,
    evaluations: int,
    config: BrkgaConfig | None,
    encoding: Encoding,
) -> tuple[BrkgaSearcher, Inputs]:
    """BRKGA for the makespan with the encoding's own proposals."""
    proposal = encoding.proposal(problem)
    searcher = _searcher(problem, evaluations, Objective.MAKESPAN, config, encoding, proposal)
    return searcher, Inputs(problem, proposal, keys)


def _searcher(
    problem: Problem,
    evaluations: int,
    objective: Objective | str,
    config: BrkgaConfig | None,
    encoding: Encoding,
    proposal: Any,
    implementation: str | None = None,
) -> BrkgaSearcher:
    """BRKGA whose population fits the budget."""
    fitted = (BrkgaConfig() if config is None else config).fit(evaluations)
    fitness_fn = _fitness(Objective(objective), implementation, encoding)
    return BrkgaSearcher(fitness_fn, encoding.sampler(problem, proposal), fitted, encoding.moves)


def _last_state(searcher: BrkgaSearcher, inputs: Inputs, evaluations: int) -> Any:
    """The state after all generations, with checks for Ctrl-C in between."""
    left, some = searcher.config.generations(evaluations), 1
    state = _first_generation(searcher, inputs)
    while left:
        check_interrupt()
        clock = Deadline()
        some = min(some, left)
        state = jax.block_until_ready(_next_generations(searcher, inputs, state, np.int32(some)))
        left -= some
        # The checks of the host change no result.
        some = 2 * some if clock.spent < _LOOK_SECONDS else some
    return state


@program(static=(0,))
def _first_generation(searcher: BrkgaSearcher, inputs: Inputs) -> Any:
    return start(searcher, inputs, Limits.none(inputs.keys.shape[0]))


@program(static=(0,), donate=(2,))
def _next_generations(searcher: BrkgaSearcher, inputs: Inputs, state: Any, generations: jax.Array) -> Any:
    limits = Limits.none(inputs.keys.shape[0])
    return run_chunk(searcher, inputs, limits, state, generations, history=0)[0]


@program(static=(0,))
def _decided(searcher: BrkgaSearcher, inputs: Inputs, state: Any) -> tuple[jax.Array, jax.Array]:
    return _decisions(CHROMOSOME, inputs.problem, jax.tree.map(flat, searcher.population(state)))


@program(static=(0,))
def _decided_alone(encoding: Encoding, problem: Problem, genes: Any) -> tuple[jax.Array, jax.Array]:
    each = jax.tree.map(lambda leaf: leaf[:, None], genes)
    placement, position = _decisions(encoding, problem, each)
    return placement[:, 0], position[:, 0]


def _decisions(encoding: Encoding, problem: Problem, genes: Any) -> tuple[jax.Array, jax.Array]:
    """Device and rank of each op of individuals, both ``[B, Q, N]``."""
    placement, done = encoding.timelines(
        problem, genes, objective=Objective.MAKESPAN, implementation=None, memory=False, positions=True
    )
    return placement, jnp.asarray(done.op_position)
