"""`Proposal`: the distribution that a search draws its genes from (docs/design.md, part 2).

Every affinity and priority has a beta distribution of its own, taken from a short list; transfer priorities
are uniform, or have one per tensor. A draw is 16 random bits sent through a table of quantiles, so a learned
proposal costs no more than a uniform one, which is beta(1, 1) and gives the very same bits. A share of the
individuals may be drawn from these distributions and the others uniformly.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Final

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.encoding.genes import Genes, gene_shapes
from regal_jax.errors import ConfigError
from regal_jax.problem import Problem

__all__ = ["COIN", "Proposal", "quantile_table", "quantiles", "uniform_proposal"]

_INTERVALS: Final = 256
"""Small enough that a table of 16 distributions fits in the L1 cache: lookups dominate the time of a draw."""
_TOP: Final = 65535
_FINE: Final = 65536 // _INTERVALS
"""Places within an interval that 16 bits distinguish."""
_NARROW: Final = 1e10
COIN: Final = "which"
"""The last name in sorted order, so that the random streams of genes do not depend on it."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class Proposal:
    """A beta distribution for every affinity and priority of ``B`` graphs; for one graph without ``B``.

    Attributes:
      table: ``[B, K, Q]`` uint32, from `quantile_table`.
      index: ``[B, N, A D + 1]`` uint8 or uint16, row of the table: ``D`` affinities for each of ``A``
        placements, then the priority.
      transfers: ``T`` if transfers are events, else 0 (static).
      share: Share of the individuals that are drawn from these distributions, in (0, 1]; all keys of the
        others are uniform (static). Our addition: selection then decides whether a proposal suits a graph.
      transfer_index: ``[B, T, A D]`` like ``index``, row of the table for the transfer of each tensor
        to each device under each placement; ``[B, T, D]`` for all placements alike, ``[B, T, 1]`` for all
        devices alike; ``None``, as in the papers, leaves transfers uniform. Our addition.
      placements: ``A``, number of alternative placements: an individual draws all of its affinities from one
        of them, chosen uniformly (static). Our addition; the papers have 1.
      scale: ``[B]`` float32 in (0, 1], factor of the draws of priorities and of ``transfer_index``; ``None``
        for 1. Our addition, as are the next two.
      offset: ``[B, N]`` int32, added to the scaled draw of each priority, in units of 2**-16; ``None`` for 0.
      transfer_offset: As ``offset``, for the draws of ``transfer_index`` and in its shape.
    """

    table: jax.Array
    index: jax.Array
    transfers: int = dataclasses.field(metadata={"static": True})
    share: float = dataclasses.field(default=1.0, metadata={"static": True})
    transfer_index: jax.Array | None = None
    placements: int = dataclasses.field(default=1, metadata={"static": True})
    scale: jax.Array | None = None
    offset: jax.Array | None = None
    transfer_offset: jax.Array | None = None

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the uniform draws for one individual: those of its genes, and one for the choices."""
        n, d = self.index.shape[-2], (self.index.shape[-1] - 1) // self.placements
        shapes = {"affinity": (n, d), "priority": (n,), "transfer_priority": (self.transfers, d)}
        if self.share < 1 or self.placements > 1:
            shapes[COIN] = (1,)
        return {name: jax.ShapeDtypeStruct(shape, jnp.uint16) for name, shape in shapes.items()}


def quantile_table(alphas: Sequence[float] | np.ndarray, betas: Sequence[float] | np.ndarray) -> jax.Array:
    """Quantiles of the distributions ``beta(alphas[i], betas[i])``, ready for `quantiles`.

    Each row divides [0, 1] into ``Q`` intervals of equal probability; the quantile function is linear within
    each.

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
    return jax.device_put(_table(a.tobytes(), b.tobytes()))


# Policies have few tables, and searches ask for them again and again.
@functools.lru_cache(maxsize=64)
def _table(alphas: bytes, betas: bytes) -> np.ndarray:
    """`quantile_table` of float64 parameters, on the host."""
    from scipy.special import betaincinv  # Its import takes longer than a table.

    a, b = np.frombuffer(alphas), np.frombuffer(betas)
    # A distribution narrower than the resolution of a key is a point.
    point = a + b > _NARROW
    at = np.floor(a / (a + b) * 65536).astype(np.uint32)
    a, b = np.where(point, 1, a), np.where(point, 1, b)
    u = np.arange(_INTERVALS + 1) / _INTERVALS
    ends = np.maximum.accumulate(betaincinv(a[:, None], b[:, None], u), axis=1)  # Rounding may lower one.
    ends = np.floor(ends * 65536).astype(np.uint32)
    ends[point] = at[point, None]
    left = np.minimum(ends[:, :-1], 65535)
    return left << 16 | np.minimum(ends[:, 1:] - left, 65535)


def uniform_proposal(problem: Problem) -> Proposal:
    """The proposal in which every key is beta(1, 1): the same genes as plain BRKGA."""
    shapes = gene_shapes(problem)
    n, d = shapes["affinity"].shape
    table = jnp.broadcast_to(quantile_table([1.0], [1.0]), (problem.num_graphs, 1, _INTERVALS))
    index = jnp.zeros((problem.num_graphs, n, d + 1), jnp.uint8)
    return Proposal(table, index, shapes["transfer_priority"].shape[0])


def quantiles(proposal: Proposal, uniform: Genes) -> Genes:
    """Turns uniform genes of one individual into draws from the proposal, key by key.

    Args:
      proposal: The proposal of one graph: ``table [K, Q]``, ``index [N, A D + 1]``.
      uniform: Uniform 16-bit draws in the shapes of `Proposal.shapes`.

    Returns:
      Genes; those of beta(1, 1), and transfer priorities without an index, are unchanged.
    """
    guided = round(proposal.share * 65536)
    # Skipped if the share is 1, since XLA does not fold a comparison that is always true.
    kept = uniform[COIN][0] >= guided if proposal.share < 1 else None
    placement, sending, late = proposal.index[:, :-1], proposal.transfer_index, proposal.transfer_offset
    if proposal.placements > 1:
        # The value is unused for uniform individuals; a gather clips it.
        which = uniform[COIN][0].astype(jnp.uint32) * proposal.placements // guided

        def chosen(index: jax.Array) -> jax.Array:
            each = index.reshape(index.shape[0], proposal.placements, -1)
            return jnp.take(each, which, axis=1, mode="clip")

        placement = chosen(placement)
        if sending is not None and sending.shape[-1] > proposal.shapes["affinity"].shape[-1]:
            sending = chosen(sending)
            late = None if late is None else chosen(late)

    def draw(bits: jax.Array, index: jax.Array, offset: jax.Array | None = None) -> jax.Array:
        wide = bits.astype(jnp.uint32)
        entry = proposal.table[index, wide // _FINE]
        # Rounding down keeps the sum below 2**16, and keeps beta(1, 1) exact.
        step = (entry & 0xFFFF) * (wide % _FINE) // _FINE
        drawn = (entry >> 16) + step
        if offset is not None:
            if proposal.scale is not None:
                drawn = jnp.floor(drawn.astype(jnp.float32) * proposal.scale)
            drawn = jnp.clip(drawn.astype(jnp.int32) + offset, 0, _TOP)
        drawn = drawn.astype(jnp.uint16)
        return drawn if kept is None else jnp.where(kept, bits, drawn)

    sent = uniform["transfer_priority"]
    if sending is not None:
        late = None if late is None else jnp.broadcast_to(late, sent.shape)
        sent = draw(sent, jnp.broadcast_to(sending, sent.shape), late)
    return {
        "affinity": draw(uniform["affinity"], placement),
        "priority": draw(uniform["priority"], proposal.index[:, -1], proposal.offset),
        "transfer_priority": sent,
    }
