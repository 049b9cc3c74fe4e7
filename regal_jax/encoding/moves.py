"""The neighbours that local search proposes, as changes of genes."""

import dataclasses
from typing import Final

import jax
import jax.numpy as jnp
from jax import lax

from regal_jax.encoding.genes import Genes
from regal_jax.problem import Problem

__all__ = ["PlanMoves"]

_TOP: Final = 65535


@dataclasses.dataclass(frozen=True)
class PlanMoves:
    """A neighbour changes one decision: where an op runs, when it runs, or when a tensor is sent.

    - *Device.* An op goes to another of the devices allowed to it, all of them equally likely. Its affinities
      become 1 there and 0 elsewhere. A colocation group moves together, through its leader.
    - *Transfer.* A transfer that the placement needs gets another priority. It is found by drawing an edge;
      an edge that needs no transfer gives an op's priority instead. Only where transfers are events.
    - *Priority.* An op gets another priority. This is also the fallback if a device or transfer move has
      nothing to change.

    With probability `near` a new priority is that of a random op, plus or minus one unit; otherwise it is
    uniform. The former puts an event right before or after another.

    The defaults were chosen on synthetic graphs, see docs/ablations/host_searches.md.

    Attributes:
      device: Probability of the first kind.
      transfer: Probability of the second kind.
      near: Probability of a priority next to that of another op.
    """

    device: float = 0.25
    transfer: float = 0.35
    near: float = 0.5

    @property
    def words(self) -> int:
        """Number of random words for one neighbour."""
        return 4

    @jax.named_scope("moves")
    def __call__(self, problem: Problem, genes: Genes, bits: jax.Array) -> Genes:
        """One neighbour of each individual.

        Args:
          problem: ``B`` graphs.
          genes: Leaves with leading ``[B, P]``.
          bits: ``[B, P, words]`` uniform uint32, consumed.

        Returns:
          Genes of the same shapes; padding is unchanged.
        """
        return jax.vmap(jax.vmap(self._one, in_axes=(None, 0, 0)))(problem, genes, bits)

    def _one(self, problem: Problem, genes: Genes, bits: jax.Array) -> Genes:
        """The neighbour of one individual of one graph."""
        kind, near = bits[0] & _TOP, bits[0] >> 16
        op = _below(bits[1], problem.num_ops)
        leader = problem.leader[op]
        device, has_choice = _another_device(problem, genes, leader, bits[2])
        key = self._new_key(problem, genes, near, bits)
        moves = (kind < round(self.device * 2**16)) & has_choice
        sends = jnp.zeros_like(moves)
        transfers = genes["transfer_priority"]
        if transfers.shape[0] and problem.successor.shape[0]:
            transfer, needed = _some_transfer(problem, genes, bits[1])
            sends = (kind >= round((1 - self.transfer) * 2**16)) & needed
            number = lax.broadcasted_iota(jnp.int32, transfers.shape, 0) * problem.num_devices
            number = number + lax.broadcasted_iota(jnp.int32, transfers.shape, 1)
            transfers = jnp.where((number == transfer) & sends, key, transfers)
        # Masks instead of scatters, which XLA compiles to slow loops on CPUs.
        affinity, priority = genes["affinity"], genes["priority"]
        row = lax.broadcasted_iota(jnp.int32, affinity.shape, 0)
        column = lax.broadcasted_iota(jnp.int32, affinity.shape, 1)
        chosen = jnp.where(column == device, jnp.uint16(_TOP), jnp.uint16(0))
        here = lax.broadcasted_iota(jnp.int32, priority.shape, 0) == op
        return {
            "affinity": jnp.where((row == leader) & moves, chosen, affinity),
            "priority": jnp.where(here & ~moves & ~sends, key, priority),
            "transfer_priority": transfers,
        }

    def _new_key(self, problem: Problem, genes: Genes, near: jax.Array, bits: jax.Array) -> jax.Array:
        neighbour = genes["priority"][_below(bits[2], problem.num_ops)].astype(jnp.int32)
        step = 1 - 2 * ((bits[3] >> 16) & 1).astype(jnp.int32)
        beside = jnp.clip(neighbour + step, 0, _TOP)
        anywhere = (bits[3] & _TOP).astype(jnp.int32)
        return jnp.where(near < round(self.near * 2**16), beside, anywhere).astype(jnp.uint16)


def _below(bits: jax.Array, count: jax.Array) -> jax.Array:
    """A number from 0 to ``count - 1``; the bias of the remainder is below one in a million."""
    return (bits % jnp.maximum(count, 1).astype(jnp.uint32)).astype(jnp.int32)


def _device_of(problem: Problem, genes: Genes, leader: jax.Array) -> jax.Array:
    """As `regal_jax.encoding.decode` places the ops that follow ``leader``."""
    affinity = jnp.where(problem.allowed[leader], genes["affinity"][leader].astype(jnp.int32), -1)
    return jnp.argmax(affinity).astype(jnp.int32)


def _another_device(
    problem: Problem, genes: Genes, leader: jax.Array, bits: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A random device that is allowed and not the present one, and whether there is any."""
    column = lax.broadcasted_iota(jnp.int32, (problem.num_devices,), 0)
    other = problem.allowed[leader] & (column != _device_of(problem, genes, leader))
    rank = jnp.cumsum(other.astype(jnp.int32)) - 1
    count = rank[-1] + 1
    return jnp.argmax(other & (rank == _below(bits, count))).astype(jnp.int32), count > 0


def _some_transfer(problem: Problem, genes: Genes, bits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """``t * D + k`` of the transfer that a random edge needs, and whether it needs one."""
    edge = _below(bits, problem.op_row[:, 1].max())
    tensor = problem.via[edge]
    is_data = tensor < problem.tensor_op.shape[0]
    tensor = jnp.where(is_data, tensor, 0)
    reader = jnp.where(is_data, problem.successor[edge], 0)
    source = _device_of(problem, genes, problem.leader[problem.tensor_op[tensor]])
    target = _device_of(problem, genes, problem.leader[reader])
    return tensor * problem.num_devices + target, is_data & (source != target)
