"""What a policy can be, by name."""

import enum

__all__ = ["Balance", "Cut", "FeatureSet", "Network", "Placement", "Transfers"]


class FeatureSet(enum.StrEnum):
    """How much of a graph the features tell: each set more than the one before."""

    OWN = "own"
    """What an op says of itself. With no rounds of messages and no prior a policy then sees no edge at all:
    the structure-blind ablation."""
    PLAIN = "plain"
    """Also its degrees, the bytes that it reads, and how many edges the graph has for each op."""
    STRUCTURAL = "structural"
    """Also where it stands: levels, depths, ranks by level, spectral coordinates, and how parallel the graph
    is."""


class Balance(enum.StrEnum):
    """What a cut through a graph leaves every device the same amount of."""

    WORK = "work"
    """Runtime: for the makespan."""
    BYTES = "bytes"
    """What ops put out, and their scratch memory: for peak memory."""


class Cut(enum.StrEnum):
    """Spectral coordinates, by which a graph is cut into as many parts as there are devices."""

    ALONG = "along"
    """Parts come one after the other and few edges lead from one to the next: for peak memory."""
    ACROSS = "across"
    """Every part has the same share at all times, in up to 32 slices of time: parts run side by side."""
    FINE = "fine"
    """The same in up to 128 slices: better for large graphs of many equal steps, worse for others."""


class Placement(enum.StrEnum):
    """Placements that a `Prior` may have."""

    ALONG = "along"
    """Parts of equal mass along `Cut.ALONG`."""
    ACROSS = "across"
    """Parts of equal mass along `Cut.ACROSS`."""
    FINE = "fine"
    """Parts of equal mass along `Cut.FINE`."""
    PEAKS_ORDER = "peaks-order"
    """Parts come one after the other in the order of little memory, each with as high a peak as the others;
    then single ops move while that makes the peaks lower: `regal_jax.heuristics.peaks`."""
    PEAKS_ALONG = "peaks-along"
    """The same, begun with a cut of the first coordinate of `ALONG` instead of the order."""
    PEAKS_ONE = "peaks-one"
    """The same, begun with everything on a single device."""
    PEAKS_BLOCKS = "peaks-blocks"
    """The lowest of many that begin with blocks of the order on devices at random."""
    SCHEDULE = "schedule"
    """Each op where a list schedule has it: `regal_jax.heuristics.list_scheduling`."""

    @property
    def cut(self) -> Cut | None:
        """The coordinate that it is along; ``None`` of one that says the device of every op."""
        return Cut(self.value) if self in (Placement.ALONG, Placement.ACROSS, Placement.FINE) else None


class Transfers(enum.StrEnum):
    """What the priorities of transfers are drawn from."""

    UNIFORM = "uniform"
    """Of the papers."""
    READER = "reader"
    """As urgent as the most urgent op that reads the tensor, by the means: ours. A transfer of random
    priority comes long before or long after the ops that an order is about, and devices wait for each other,
    or hold what nobody needs yet. Where priorities are uniform, so are transfers."""
    READER_THERE = "reader-there"
    """As urgent as the most urgent op that reads the tensor where it is sent, by where affinities have ops
    most likely. For memory: a copy that is there before its first reader takes room for nothing, which
    happens with a tensor that is read at home first. A little worse for the makespan."""
    MIDWAY = "midway"
    """Halfway between the op that makes the tensor and the most urgent one that reads it: for the makespan.
    A transfer that blocks both its devices is best made when neither waits for the other, which is neither
    at its first nor at its last moment. Needs means and variances."""
    SCHEDULE = "schedule"
    """Where the list schedule has it, which is where its two devices meet in any case; a tensor that is not
    sent there midway. It moves like the op that makes the tensor. Needs a prior that has transfers, and a
    reach."""


class Network(enum.StrEnum):
    """What turns features into embeddings of ops."""

    GNN = "gnn"
    """Messages along edges, both ways: REGAL."""
    SEQUENCE = "sequence"
    """A recurrent network over a topological order: graph as sequence, GAS."""
