"""Evaluations per second of whole runs, as users run them: through `regal_jax.solve.solve`."""

import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.cases import GraphCase
from benchmarks.timing import Contender, Outcome, Skipped
from regal_jax.encoding import decode, gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.plan import Objective
from regal_jax.problem import Problem
from regal_jax.search import SearchResult, Status, Stopping
from regal_jax.simulate import IMPLEMENTATIONS, simulate
from regal_jax.solve import ENCODINGS, solve

__all__ = ["check_implementation", "runnable", "solver"]


def _best(case: GraphCase, problem: Problem, result: SearchResult) -> float:
    """Mean objective over graphs."""
    scale = problem.upper_bound if case.objective == Objective.MAKESPAN else problem.total_size
    return float((result.fitness.astype(np.float64) * np.asarray(scale, np.float64)).mean())


def solver(case: GraphCase, implementation: str | None = None, label: str = "regal_jax") -> Contender:
    """A whole BRKGA run; the graphs are on the device before it starts.

    Args:
      case: The case. Every repeat does exactly the same search.
      implementation: Implementation of the simulator; ``None`` for the default one.
      label: Label of the contender.
    """
    problem, keys, config = case.problem(), case.keys(), case.config()
    options: dict[str, Any] = {"objective": case.objective, "config": config}
    options |= {"proposal": case.make_proposal(problem), "implementation": implementation}
    options["encoding"] = ENCODINGS[case.encoding]

    def run(evaluations: int = case.evaluations) -> Outcome:
        began = time.perf_counter()
        # The result is on the host: nothing is left to wait for.
        result = solve(problem, keys, Stopping(evaluations), **options)
        seconds = time.perf_counter() - began
        if Status.INTERRUPTED in result.status:
            # The search handled Ctrl-C and ended early, so this is not the time of a whole run.
            raise KeyboardInterrupt
        return Outcome(seconds, int(result.evaluations.sum()), _best(case, problem, result))

    few = config.first_evaluations + 2 * config.step_evaluations
    return Contender(label, run, short=lambda: run(min(few, case.evaluations)))


def check_implementation(name: str) -> None:
    """Runs an implementation on a few ops.

    Raises:
      ConfigError: There is no implementation of that name.
      Skipped: The implementation does not run here.
    """
    if name not in IMPLEMENTATIONS:
        raise ConfigError(f"implementation: unknown {name!r}; use one of {', '.join(IMPLEMENTATIONS)}")
    if name == "host" and jax.default_backend() != "cpu":
        raise Skipped("it runs on CPUs only")
    problem = GraphCase(ops=4).problem()
    genes = {leaf: np.zeros((1, 1, *shape.shape), np.uint16) for leaf, shape in gene_shapes(problem).items()}
    decisions = decode(problem, jax.tree.map(jax.numpy.asarray, genes))
    try:
        jax.block_until_ready(jax.jit(lambda p, d: simulate(p, d, implementation=name))(problem, decisions))
    except Exception as error:  # Any error means that it cannot run.
        reason = " ".join(str(error).split()) or type(error).__name__
        raise Skipped(reason if len(reason) < 200 else f"{reason[:200]} ...") from None


def runnable(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The implementations that run here, and the reasons why others do not."""
    able, skipped = [], {}
    for name in names:
        try:
            check_implementation(name)
            able.append(name)
        except Skipped as reason:
            skipped[name] = str(reason)
    return able, skipped
