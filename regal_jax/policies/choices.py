"""Choices in the config of a policy, by name."""

import enum

__all__ = ["Balance", "Cut", "FeatureSet", "Network", "Placement", "Transfers"]


class FeatureSet(enum.StrEnum):
    """Sets of features, each larger than the one before."""

    RAW = "raw"
    """Runtime, scratch memory and output bytes of an op, and the bytes of a tensor, each relative to the mean
    of its graph: the quantities that the papers name."""
    OWN = "own"
    """Properties of the op alone. Without rounds of messages and without a prior, a policy then sees no edge;
    this is the structure-blind ablation."""
    PLAIN = "plain"
    """Also degrees, bytes read, and the number of edges per op of the graph."""
    STRUCTURAL = "structural"
    """Also positions (levels, depths, ranks, spectral coordinates) and the parallelism of the graph."""


class Balance(enum.StrEnum):
    """The amount that a cut through a graph balances between devices."""

    WORK = "work"
    """Runtime, for the makespan."""
    BYTES = "bytes"
    """Output bytes and scratch memory of ops, for peak memory."""


class Cut(enum.StrEnum):
    """Spectral coordinates by which a graph is cut into one part per device."""

    ALONG = "along"
    """Parts follow one another with few edges between them, for peak memory."""
    ACROSS = "across"
    """Every part has the same share of each of up to 32 slices of time, so that parts run side by side."""
    FINE = "fine"
    """Like `ACROSS` with up to 128 slices; better for large graphs of many equal steps, worse for others."""


class Placement(enum.StrEnum):
    """Placements that a `Prior` may have."""

    ALONG = "along"
    """Parts of equal mass along `Cut.ALONG`."""
    ACROSS = "across"
    """Parts of equal mass along `Cut.ACROSS`."""
    FINE = "fine"
    """Parts of equal mass along `Cut.FINE`."""
    PEAKS_ORDER = "peaks-order"
    """Parts of equal peaks follow one another in an order of little memory; then single ops move as long as
    that lowers the peaks: `regal_jax.heuristics.peaks`."""
    PEAKS_ALONG = "peaks-along"
    """Like `PEAKS_ORDER`, starting from a cut along the first coordinate of `ALONG` instead of the order."""
    PEAKS_ONE = "peaks-one"
    """Like `PEAKS_ORDER`, starting with all ops on a single device."""
    PEAKS_BLOCKS = "peaks-blocks"
    """The best of many placements that start with blocks of the order on random devices."""
    SCHEDULE = "schedule"
    """The placement of a list schedule: `regal_jax.heuristics.list_scheduling`."""

    @property
    def cut(self) -> Cut | None:
        """The coordinate along which it cuts; ``None`` if it gives the device of every op."""
        return Cut(self.value) if self in (Placement.ALONG, Placement.ACROSS, Placement.FINE) else None


class Transfers(enum.StrEnum):
    """Distributions from which the priorities of transfers are drawn."""

    UNIFORM = "uniform"
    """Uniform, as in the papers."""
    READER = "reader"
    """As urgent as the most urgent op that reads the tensor, by the means; our addition. A transfer of random
    priority comes long before or long after its neighbours in the order, so that devices wait for each other
    or hold tensors that are not needed yet. If priorities are uniform, so are transfers."""
    READER_THERE = "reader-there"
    """As urgent as the most urgent op that is likely to read the tensor on the target device, by the means of
    affinities. For peak memory: a copy that arrives before its first reader takes memory in vain, which
    happens if the tensor is first read on its own device. Slightly worse for the makespan."""
    MIDWAY = "midway"
    """Halfway between the op that makes the tensor and the most urgent op that reads it, for the makespan. A
    blocking transfer is best made when neither device waits for the other, which is neither at the first nor
    at the last moment. Needs means and variances."""
    SCHEDULE = "schedule"
    """At its place in the list schedule; `MIDWAY` for a tensor that the schedule does not send to that
    device. The transfer moves with the op that makes the tensor. Needs a prior with transfers, and a
    reach."""


class Network(enum.StrEnum):
    """Networks that turn features into embeddings of ops."""

    GNN = "gnn"
    """Messages along edges in both directions, as in REGAL."""
    SEQUENCE = "sequence"
    """A recurrent network over a topological order, as in GAS (graph as sequence)."""
