"""The parts of one generation: each as a separate compiled call, on arrays of a search."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from benchmarks.cases import GraphCase
from benchmarks.timing import Contender, interleaved, looped
from regal_jax.encoding import decode
from regal_jax.plan import Objective
from regal_jax.search import BrkgaSearcher, Inputs, improve, run_traced
from regal_jax.simulate import simulate
from regal_jax.solve import CHROMOSOME, fitness

__all__ = ["PHASES", "copied_bytes_per_second", "phases"]

PHASES = ("randomness", "selection", "crossover", "sampling", "decode", "simulate", "memory", "incumbent")
"""The parts of a generation, in their order; ``simulate`` is without memory, ``memory`` with it."""

_GENERATIONS = 5
"""Number of generations before the measurement: a young population, whose fitness values still differ."""

_COPIED = 2**28
"""Bytes of the array by which the memory's bandwidth is measured."""


@dataclasses.dataclass(frozen=True)
class _Generation:
    """Arguments of the parts: the state before a generation, and its intermediate results."""

    searcher: BrkgaSearcher
    inputs: Inputs
    state: Any
    order: jax.Array
    seeds: jax.Array
    genes: Any
    decisions: Any
    fitness: jax.Array


def _generation(case: GraphCase, implementation: str | None) -> _Generation:
    problem, config = case.problem(), case.config()

    def value(problem: Any, genes: Any) -> jax.Array:
        return fitness(problem, genes, Objective(case.objective), implementation=implementation)

    proposal = case.make_proposal(problem)
    searcher = BrkgaSearcher(value, CHROMOSOME.sampler(problem, proposal), config)
    inputs = Inputs(problem, proposal, case.keys())

    @jax.jit
    def evolve(inputs: Inputs) -> tuple[Any, ...]:
        state = run_traced(searcher, inputs, _GENERATIONS)
        generation = state.generation[0] + 1
        seeds = searcher.seeds(inputs, generation)
        order, _ = searcher.rank(state, generation)
        genes = searcher.step(inputs, state).newcomers
        decisions = decode(inputs.problem, genes)
        return state, order, seeds, genes, decisions, value(inputs.problem, genes)

    return _Generation(searcher, inputs, *evolve(inputs))


def phases(case: GraphCase, implementation: str | None = None) -> list[Contender]:
    """The parts of one generation, the whole of it, and a call that does nothing.

    The parts do not add up to the whole. Each separate part includes the cost of a call (``dispatch``) and of
    passing its results through memory, and the whole also copies the survivors.

    Args:
      case: Case of the search.
      implementation: Implementation of the simulator; ``None`` for the default one.
    """
    g = _generation(case, implementation)
    s, problem, generation = g.searcher, g.inputs.problem, g.state.generation[0] + 1
    mutants = g.seeds[:, :, s.config.elites + s.config.children :]

    def simulated(problem: Any, decisions: Any, memory: bool) -> jax.Array:
        result = simulate(problem, decisions, implementation=implementation, memory=memory)
        return result.makespan if result.peak_memory is None else result.peak_memory

    calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
        "randomness": (s.bits, (g.inputs, generation)),
        "selection": (s.rank, (g.state, generation)),
        "crossover": (s.mate, (g.state, g.order, g.seeds)),
        "sampling": (s.sample, (g.inputs, mutants, g.state.drawn)),
        "decode": (decode, (problem, g.genes)),
        "simulate": (lambda p, x: simulated(p, x, False), (problem, g.decisions)),
        "memory": (lambda p, x: simulated(p, x, True), (problem, g.decisions)),
        "incumbent": (improve, (g.state.incumbent, g.genes, g.fitness)),
        "generation": (s.step, (g.inputs, g.state)),
        "dispatch": (lambda x: x + 1, (generation,)),
    }
    if case.objective == Objective.MAKESPAN:
        del calls["memory"]
    evaluations = case.graphs * s.step_evaluations

    def contender(label: str, function: Any, args: tuple[Any, ...]) -> Contender:
        jitted = jax.jit(function)
        found = jitted.lower(*args).compile().memory_analysis()
        # Arguments that the program does not read are not counted.
        moved = None if found is None else found.argument_size_in_bytes + found.output_size_in_bytes
        return looped(label, lambda: jitted(*args), evaluations, moved)

    return [contender(label, *call) for label, call in calls.items()]


@functools.cache
def copied_bytes_per_second() -> float:
    """Bytes read and written per second by a copy of an array that exceeds the caches; measured once."""
    x = jnp.zeros((_COPIED // 4,), jnp.float32)
    # An addition, since XLA would share a mere copy.
    copy = jax.jit(lambda x: x + 1)
    series = interleaved([looped("copy", lambda: copy(x))], 5)["copy"]
    return 2 * _COPIED / series.least
