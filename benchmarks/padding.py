"""Waste of batches with graphs of many sizes."""

import jax

from benchmarks.cases import GraphCase
from benchmarks.timing import Series
from regal_jax.solvers.loop.batches import Batch, make_batch, share_out

__all__ = ["waste"]


def _batches(case: GraphCase) -> list[Batch]:
    cluster = case.cluster()
    pairs = [(graph, cluster) for graph in case.make_graphs()]
    shares = share_out(pairs, case.config(), None, jax.devices()[:1])
    return [make_batch(share, pairs, [[]] * len(pairs), case.config()) for share in shares]


def _genes(ops: int, tensors: int, case: GraphCase) -> int:
    """Length of a chromosome."""
    return ops * (case.devices + 1) + tensors * case.devices * case.transfer.startswith("blocking")


def waste(case: GraphCase) -> tuple[dict[str, Series], dict[str, float]]:
    """Waste of the batches that `regal_jax.optimize_many` forms on one device.

    Returns:
      ``padded genes``: the share of padding among the genes of the graphs. ``copies``: the share of rows that
      only fill a batch. ``wasted``: both, as a share of all genes. Also the number of batches.
    """
    batches = _batches(case)
    used = padded = total = members = rows = 0
    for batch in batches:
        count, all_rows = len(batch.members), batch.problem.num_graphs
        each = _genes(batch.problem.bucket.ops, batch.problem.bucket.tensors, case)
        # The first rows are the members, in their order.
        used += sum(_genes(graph.num_ops, graph.num_tensors, case) for graph in batch.graphs[:count])
        padded, total = padded + count * each, total + all_rows * each
        members, rows = members + count, rows + all_rows
    shares = {"padded genes": 1 - used / padded, "copies": 1 - members / rows, "wasted": 1 - used / total}
    return {k: Series((v,), "share") for k, v in shares.items()}, {"batches": float(len(batches))}
