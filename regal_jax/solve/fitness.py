"""`fitness`: what the search minimises."""

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.encoding import Genes
from regal_jax.plan import Objective
from regal_jax.problem import Problem
from regal_jax.solve.encodings import CHROMOSOME, Encoding

__all__ = ["fitness"]


def fitness(
    problem: Problem,
    genes: Genes,
    objective: Objective | str = Objective.MAKESPAN,
    *,
    implementation: str | None = None,
    encoding: Encoding = CHROMOSOME,
) -> jax.Array:
    """The fitness of each candidate, smaller is better; feasible plans come before infeasible ones.

    A feasible plan has ``makespan / upper bound`` or ``largest peak / all memory``, in [0, 1]; an
    infeasible one ``1 + overflow / all memory``, more than 1, where the overflow is summed over devices.

    Args:
      problem: ``B`` graphs.
      genes: Leaves with leading ``[B, P]``.
      objective: The objective; static under jit.
      implementation: As in `regal_jax.simulate.simulate`.
      encoding: What the genes mean; static under jit.

    Returns:
      ``[B, P]`` float32, never NaN.

    Raises:
      ConfigError: There is no such objective.
    """
    objective = Objective(objective)
    memory = objective is not Objective.MAKESPAN or not problem.unlimited
    _, result = encoding.timelines(
        problem, genes, objective=objective, implementation=implementation, memory=memory, positions=False
    )
    if not memory:
        return jnp.minimum(_relative(result.makespan, problem.upper_bound), 1)
    peak = jnp.asarray(result.peak_memory)
    if objective is Objective.MAKESPAN:
        value = _relative(result.makespan, problem.upper_bound)
    else:
        value = _relative(peak.max(axis=-1).astype(jnp.float32), problem.total_size)
    # A peak less a capacity cannot wrap: neither is negative.
    over = jnp.maximum(peak - problem.capacity[:, None], 0).astype(jnp.float32).sum(axis=-1)
    # An overflow must not round to 0, however small it is.
    bad = jnp.maximum(1 + _relative(over, problem.total_size), np.nextafter(np.float32(1), np.float32(2)))
    return jnp.where(over > 0, bad, jnp.minimum(value, 1))


def _relative(value: jax.Array, bound: jax.Array) -> jax.Array:
    """``value [B, P] / bound [B]``; 0 where the bound, and hence the value, is 0."""
    return value / jnp.where(bound > 0, bound, 1)[:, None]
