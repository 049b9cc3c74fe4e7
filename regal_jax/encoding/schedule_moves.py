"""Draws and neighbours of the genes of schedule generation."""

import dataclasses
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from regal_jax.encoding.genes import Genes
from regal_jax.encoding.proposal import COIN, Proposal, quantiles
from regal_jax.encoding.schedule import schedule_shapes
from regal_jax.problem import Problem

__all__ = ["ScheduleMoves", "SchedulePrior", "draw_schedule", "schedule_prior"]

_TOP: Final = 65535
_SCALE: Final = "scale"
"""The last name in sorted order, so that the random streams of genes do not depend on it."""
_REACH: Final = 0.035
"""Largest difference between a rank that is drawn and the upward rank, as a share of the longest path."""
_SMALL: Final = 0.25
"""Largest key of a price that a neighbour gets: a price of a sixteenth of a mean runtime."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class SchedulePrior:
    """The distribution that genes of schedule generation are drawn from, for ``B`` graphs.

    Attributes:
      rank: ``[B, N]`` int32, the gene of each op's upward rank; ranks are drawn uniformly around it, all
        other genes uniformly.
      devices: ``D`` (static).
      guide: A policy's distributions of chromosomes. In its share of the individuals its priorities take the
        place of the uniform draws of ranks, and one less its affinities that of prices; rules are uniform.
        ``None`` for no policy.
    """

    rank: jax.Array
    devices: int = dataclasses.field(metadata={"static": True})
    guide: Proposal | None = None

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Shapes of the uniform draws for one individual: those of its genes, and one for their scale."""
        n = self.rank.shape[-1]
        shapes = {"price": (n, self.devices), "rank": (n,), "rule": (4,), _SCALE: (1,)}
        own = {name: jax.ShapeDtypeStruct(shape, jnp.uint16) for name, shape in shapes.items()}
        return own if self.guide is None else {**self.guide.shapes, **own}


def schedule_prior(problem: Problem, guide: Proposal | None = None) -> SchedulePrior:
    """The distribution for these graphs, guided by a policy's if there is one."""
    if guide is not None:
        # Schedule generation places the transfers, and ranks are relative to upward ranks.
        nothing = dict.fromkeys(("transfer_index", "transfer_offset", "scale", "offset"))
        guide = dataclasses.replace(guide, transfers=0, **nothing)
    return SchedulePrior(_upward(problem), schedule_shapes(problem)["price"].shape[1], guide)


def _upward(problem: Problem) -> jax.Array:
    """``[..., N]`` int32, the gene of each op's upward rank."""
    longest = problem.rank.max(axis=-1, keepdims=True)
    share = problem.rank / jnp.where(longest > 0, longest, 1)
    return jnp.round(share * _TOP).astype(jnp.int32)


def draw_schedule(prior: SchedulePrior, uniform: Genes) -> Genes:
    """Turns uniform draws in `SchedulePrior.shapes` into genes of one individual."""
    price, rank = uniform["price"], uniform["rank"]
    if prior.guide is not None:
        share = prior.guide.share
        drawn = quantiles(prior.guide, uniform)
        kept = uniform[COIN][0] >= round(share * 65536) if share < 1 else jnp.bool_(False)
        price = jnp.where(kept, price, _TOP - drawn["affinity"])
        rank = jnp.where(kept, rank, drawn["priority"])
    # By 0 to 3 halvings; prices are cubes of keys.
    price = price >> (uniform[_SCALE][0] >> 14)
    return {"price": price, "rank": _near(prior.rank, rank), "rule": uniform["rule"]}


def _near(upward: jax.Array, uniform: jax.Array) -> jax.Array:
    """Genes of ranks near those of upward ranks, from uniform ones."""
    away = jnp.round((uniform.astype(jnp.float32) / _TOP * 2 - 1) * (_REACH * _TOP))
    return jnp.clip(upward + away.astype(jnp.int32), 0, _TOP).astype(jnp.uint16)


@dataclasses.dataclass(frozen=True)
class ScheduleMoves:
    """A neighbour changes a few numbers, or the device of a block of ops, as list search does.

    - *Block.* Ops of consecutive numbers go to one device, by prohibitive prices on all others. The logarithm
      of their number is uniform, up to a quarter of all ops.
    - *Prices.* About `ops` ops get other small prices on all devices.
    - *Ranks.* About `ops` ops get other ranks near their upward ranks.
    - *Rule.* With probability `rule` a number of the rule is drawn as well, unless a block moves.

    Attributes:
      block: Probability of the first kind.
      price: Probability of the second, if it is not the first.
      rule: Probability of another rule.
      ops: Mean number of ops that get other numbers.
    """

    block: float = 0.5
    price: float = 0.7
    rule: float = 0.1
    ops: int = 8

    @property
    def words(self) -> int:
        """Number of random words for one neighbour."""
        return 6

    @jax.named_scope("moves")
    def __call__(self, problem: Problem, genes: Genes, bits: jax.Array) -> Genes:
        """One neighbour of each individual; arguments as for `regal_jax.encoding.PlanMoves`."""
        return jax.vmap(jax.vmap(self._one, in_axes=(None, 0, 0)))(problem, genes, bits)

    def _one(self, problem: Problem, genes: Genes, bits: jax.Array) -> Genes:
        """The neighbour of one individual of one graph."""
        n, d = genes["price"].shape
        chance, number = bits[0] & _TOP, bits[0] >> 16
        blocks = chance < round(self.block * 2**16)
        prices = ~blocks & (number < round(self.price * 2**16))
        op = lax.broadcasted_iota(jnp.int32, (n,), 0)
        some = _mixed(op, bits[1]) % jnp.maximum(problem.num_ops, 1).astype(jnp.uint32) < self.ops
        cell = lax.broadcasted_iota(jnp.int32, (n, d), 0) * 1024 + lax.broadcasted_iota(jnp.int32, (n, d), 1)
        small = (_mixed(cell, bits[2]) >> 16).astype(jnp.float32) * _SMALL
        inside, device = self._block(problem, op, bits)
        ban = jnp.where(lax.broadcasted_iota(jnp.int32, (n, d), 1) == device, 0, _TOP)
        price = jnp.where((inside & blocks)[:, None], ban, genes["price"].astype(jnp.int32))
        price = jnp.where((some & prices)[:, None], small.astype(jnp.int32), price)
        drawn = _near(_upward(problem), (_mixed(op, bits[3]) >> 16).astype(jnp.uint16))
        rank = jnp.where(some & ~blocks & ~prices, drawn, genes["rank"])
        which = (bits[4] >> 16) % genes["rule"].shape[0]
        anew = ~blocks & ((bits[5] & _TOP) < round(self.rule * 2**16))
        rule = jnp.where(
            (lax.broadcasted_iota(jnp.uint32, genes["rule"].shape, 0) == which) & anew,
            (bits[5] >> 16).astype(jnp.uint16),
            genes["rule"],
        )
        return {"price": price.astype(jnp.uint16), "rank": rank, "rule": rule}

    @staticmethod
    def _block(problem: Problem, op: jax.Array, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
        """``[N]`` whether the op is in the block, and the device, which the op in the middle may use."""
        count = jnp.maximum(problem.num_ops, 1).astype(jnp.uint32)
        middle = (bits[3] % count).astype(jnp.int32)
        share = (bits[4] & _TOP).astype(jnp.float32) / 2**16
        half = (jnp.maximum(count.astype(jnp.float32) / 4, 2) ** share / 2).astype(jnp.int32)
        allowed = problem.allowed[middle]
        rank = jnp.cumsum(allowed.astype(jnp.int32)) - 1
        wanted = (bits[5] % jnp.maximum(rank[-1] + 1, 1).astype(jnp.uint32)).astype(jnp.int32)
        device = jnp.argmax(allowed & (rank == wanted)).astype(jnp.int32)
        return jnp.abs(op - middle) <= half, device


def _mixed(number: jax.Array, word: jax.Array) -> jax.Array:
    """A uniform uint32 word for each number, from one random word (the finaliser of MurmurHash3)."""
    x = number.astype(jnp.uint32) * jnp.uint32(0x9E3779B9) ^ word
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
