"""What graphs of many sizes waste when they share batches."""

import jax

from benchmarks.cases import GraphCase
from benchmarks.timing import Series
from regal_jax.api.batches import make_batches

__all__ = ["waste"]


def waste(case: GraphCase) -> tuple[dict[str, Series], dict[str, float]]:
    """Batches as `regal_jax.optimize_many` forms them on one device.

    Returns:
      ``padded genes``: the share of the genes of the members' rows that is padding. ``copies``: the share of
      rows that only fill a batch up. ``wasted``: both, of all genes. Beside them, the number of batches.
    """
    cluster = case.cluster()
    pairs = [(graph, cluster) for graph in case.make_graphs()]
    batches = list(make_batches(pairs, [[]] * len(pairs), case.config(), None, jax.devices()[:1]))
    used = members = rows = filled = 0
    for batch in batches:
        bucket, d, blocking = batch.problem.bucket, case.devices, batch.problem.blocking
        each = bucket.ops * (d + 1) + bucket.tensors * d * blocking
        members += len(batch.members) * each
        filled += len(batch.members)
        rows += batch.problem.num_graphs
        used += sum(
            pairs[i][0].num_ops * (d + 1) + pairs[i][0].num_tensors * d * blocking for i in batch.members
        )
    total = sum(
        b.problem.num_graphs
        * (
            b.problem.bucket.ops * (case.devices + 1)
            + b.problem.bucket.tensors * case.devices * b.problem.blocking
        )
        for b in batches
    )
    shares = {"padded genes": 1 - used / members, "copies": 1 - filled / rows, "wasted": 1 - used / total}
    return {k: Series((v,), "share") for k, v in shares.items()}, {"batches": float(len(batches))}
