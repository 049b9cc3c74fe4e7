"""Compile times without caches."""

import functools
import time

import jax
import jax.numpy as jnp

from benchmarks.cases import GraphCase
from benchmarks.timing import Series
from regal_jax.encoding import gene_shapes
from regal_jax.plan import Objective
from regal_jax.search import BrkgaSearcher, Inputs, Limits, UniformProposal, run_chunk, start
from regal_jax.solve import fitness

__all__ = ["compile_times"]

_STEPS = ("trace", "lower", "compile")


def _once(case: GraphCase, implementation: str | None) -> dict[str, float]:
    """Seconds of each step, summed over the two programs of a search: first population and generations."""
    problem = case.problem()
    value = functools.partial(fitness, objective=Objective(case.objective), implementation=implementation)
    searcher = BrkgaSearcher(value, UniformProposal.of(gene_shapes(problem)), case.config())
    inputs, limits = Inputs(problem, None, case.keys()), Limits.none(case.graphs)
    first = jax.jit(functools.partial(start, searcher))
    state = jax.eval_shape(first, inputs, limits)
    jax.clear_caches()
    seconds: dict[str, float] = dict.fromkeys(_STEPS, 0.0)
    chunk = jax.jit(functools.partial(run_chunk, searcher), donate_argnums=2)
    for function, args in ((first, (inputs, limits)), (chunk, (inputs, limits, state, jnp.int32(1)))):
        moments = [time.perf_counter()]
        traced = function.trace(*args)
        moments.append(time.perf_counter())
        lowered = traced.lower()
        moments.append(time.perf_counter())
        lowered.compile()
        moments.append(time.perf_counter())
        for i, step in enumerate(_STEPS):
            seconds[step] += moments[i + 1] - moments[i]
    return seconds


def compile_times(case: GraphCase, implementation: str | None, repeats: int) -> dict[str, Series]:
    """Series ``trace``, ``lower``, ``compile`` and ``total``.

    Programs in this process are given up first; the caller must disable a persistent cache.

    Args:
      case: Case of the programs.
      implementation: Implementation of the simulator.
      repeats: Number of repeats, at most three, since compile times vary little.
    """
    rounds = [_once(case, implementation) for _ in range(min(repeats, 3))]
    series = {step: Series(tuple(r[step] for r in rounds)) for step in _STEPS}
    return series | {"total": Series(tuple(sum(r.values()) for r in rounds))}
