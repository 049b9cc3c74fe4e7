"""Genes on the device: their shapes, and what they decide."""

import jax
import jax.numpy as jnp
import numpy as np

from regal_jax.problem import Decisions, Problem

__all__ = ["Genes", "decode", "gene_shapes", "genes_to_keys"]

Genes = dict[str, jax.Array]
"""uint16 leaves ``affinity [..., N, D]``, ``priority [..., N]``, ``transfer_priority [..., T, D]``.

A gene ``g`` is the key ``g / 65535``. Unless transfers are blocking the last leaf is ``[..., 0, D]``.
"""


def gene_shapes(problem: Problem) -> dict[str, jax.ShapeDtypeStruct]:
    """Shape of each leaf of the genes of one individual."""
    n, d = problem.bucket.ops, problem.num_devices
    t = problem.bucket.tensors if problem.blocking else 0
    shapes = {"affinity": (n, d), "priority": (n,), "transfer_priority": (t, d)}
    return {name: jax.ShapeDtypeStruct(shape, jnp.uint16) for name, shape in shapes.items()}


@jax.named_scope("decode")
def decode(problem: Problem, genes: Genes) -> Decisions:
    """Decodes genes: each op goes to the allowed device of largest affinity, lowest index on ties.

    Args:
      problem: ``B`` graphs.
      genes: Leaves with leading ``[B, P]``.
    """
    d = problem.num_devices
    affinity = genes["affinity"].astype(jnp.int32)
    device = jax.lax.broadcasted_iota(jnp.int32, affinity.shape, affinity.ndim - 1)
    # One maximum finds both value and lowest index; XLA's argmax is slow on CPUs.
    best = jnp.where(problem.allowed[:, None], affinity * d + (d - 1 - device), -1).max(axis=-1)
    own = d - 1 - best % d
    placement = jnp.take_along_axis(own, problem.leader[:, None], axis=-1)
    return Decisions(placement, genes["priority"], genes["transfer_priority"])


def genes_to_keys(genes: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The keys in [0, 1] of genes, float64, as `regal_jax.plan.decode_order` takes them."""
    return {name: np.asarray(leaf).astype(np.float64) / 65535 for name, leaf in genes.items()}
