"""`Proposal`: the distribution that a search draws its genes from (docs/design.md, part 2).

Every affinity and priority has a beta distribution of its own, taken from a short list; transfer priorities
are uniform. A draw is 16 random bits sent through a table of quantiles, so a learned proposal costs no
more than a uniform one, which is beta(1, 1) and gives the very same bits.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.encoding.genes import Genes, gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.problem import Problem

__all__ = ["Proposal", "quantile_table", "sample", "uniform_proposal"]

_INTERVALS: Final = 1024
_FINE: Final = 65536 // _INTERVALS
"""16 bits say the interval and one of so many places in it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """A beta distribution for every affinity and priority.

    Under vmap over graphs, and for `sample`, ``B`` is absent from `index`; `table` never has it.

    Attributes:
      table: ``[K, Q]`` uint32, from `quantile_table`.
      index: ``[B, N, D + 1]`` uint8 or uint16, which row of the table: ``D`` affinities, then the priority.
      transfers: ``T`` if transfers are events, else 0 (static).
    """

    table: jax.Array
    index: jax.Array
    transfers: int = dataclasses.field(metadata={"static": True})


def quantile_table(alphas: Sequence[float] | np.ndarray, betas: Sequence[float] | np.ndarray) -> jax.Array:
    """Quantiles of the distributions ``beta(alphas[i], betas[i])``, ready for `sample`.

    Each row cuts [0, 1] into ``Q`` intervals of equal probability; between their ends the quantile function
    is taken to be linear.

    Args:
      alphas: ``[K]``, positive.
      betas: ``[K]``, positive.

    Returns:
      ``[K, Q]`` uint32: the left end of each interval in the upper 16 bits, its width in the lower, both in
      units of 2**-16.

    Raises:
      ConfigError: Parameters that are not positive and finite, or not equally many.
    """
    a, b = np.array(alphas, dtype=np.float64), np.array(betas, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or a.size == 0:
        raise ConfigError(f"quantile_table: alphas {a.shape} and betas {b.shape} must be lists of one length")
    if not (np.isfinite(a) & np.isfinite(b) & (a > 0) & (b > 0)).all():
        raise ConfigError("quantile_table: every alpha and beta must be positive and finite")
    u = jnp.arange(_INTERVALS + 1, dtype=jnp.float32)[None] / _INTERVALS
    ends = _inverse(jnp.asarray(a, jnp.float32)[:, None], jnp.asarray(b, jnp.float32)[:, None], u)
    ends = np.floor(np.asarray(ends, dtype=np.float64) * 65536).astype(np.uint32)
    # Bisection is not exact to the last bit, the identity is.
    ends[(a == 1) & (b == 1)] = np.arange(_INTERVALS + 1) * _FINE
    left = np.minimum(ends[:, :-1], 65535)
    return jnp.asarray(left << 16 | np.minimum(ends[:, 1:] - left, 65535))


@jax.jit
def _inverse(a: jax.Array, b: jax.Array, u: jax.Array) -> jax.Array:
    """The quantile function of beta(a, b) at ``u``, by bisection on the regularised incomplete beta."""
    shape = jnp.broadcast_shapes(a.shape, u.shape)
    a, b, u = (jnp.broadcast_to(x, shape) for x in (a, b, u))

    def halve(_: int, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds
        middle = (low + high) / 2
        below = jax.scipy.special.betainc(a, b, middle) < u
        return jnp.where(below, middle, low), jnp.where(below, high, middle)

    # 20 halvings pin 16 bits with room to spare.
    low, high = jax.lax.fori_loop(0, 20, halve, (jnp.zeros(shape), jnp.ones(shape)))
    return jnp.where(u == 0, 0, jnp.where(u == 1, 1, (low + high) / 2))


def uniform_proposal(problem: Problem) -> Proposal:
    """Every key of every op of every graph is uniform: plain BRKGA."""
    shapes = gene_shapes(problem)
    n, d = shapes["affinity"]
    index = jnp.zeros((problem.num_graphs, n, d + 1), jnp.uint8)
    return Proposal(quantile_table([1.0], [1.0]), index, shapes["transfer_priority"][0])


def sample(proposal: Proposal, key: jax.Array) -> Genes:
    """Draws the genes of one individual for one graph.

    The draw for an op or tensor depends on ``key`` and its index alone, not on how many follow: padding
    changes nothing.

    Args:
      proposal: Of one graph: ``index`` is ``[N, D + 1]``.
      key: Consumed.
    """
    n, d = proposal.index.shape[0], proposal.index.shape[1] - 1
    op_key, transfer_key = jax.random.split(key)
    # The first axis is the padded one: row-major counters make the draws of a row independent of N.
    bits = jax.random.bits(op_key, (n, d + 1), jnp.uint16).astype(jnp.uint32)
    entry = proposal.table[proposal.index, bits // _FINE]
    # Rounding down keeps the sum under 2**16, and exact for beta(1, 1).
    step = (entry & 0xFFFF) * (bits % _FINE) // _FINE
    value = ((entry >> 16) + step).astype(jnp.uint16)
    return {
        "affinity": value[:, :d],
        "priority": value[:, d],
        "transfer_priority": jax.random.bits(transfer_key, (proposal.transfers, d), jnp.uint16),
    }
