"""`GraphShare`: the graphs of a set that this process holds, and what it knows of the others."""

import dataclasses
from collections.abc import Sequence
from typing import Self

import jax

from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.learning.processes import exchanged
from regal_jax.problem import Bucket

__all__ = ["Entry", "GraphShare"]


@dataclasses.dataclass(frozen=True)
class Entry:
    """What all processes know of a graph.

    Attributes:
      owner: Number of the process that holds the graph.
      bucket: Its padded sizes.
      content_hash: Its content hash.
    """

    owner: int
    bucket: Bucket
    content_hash: str

    @property
    def name(self) -> str:
        """The graph's identity as hexadecimal digits, see `regal_jax.solve.graph_identities`."""
        return self.content_hash[:16]


@dataclasses.dataclass(frozen=True, eq=False)
class GraphShare:
    """The graphs of a set that this process holds.

    Attributes:
      graphs: Graphs by their number in the set.
      entries: All graphs of the set.
    """

    graphs: dict[int, ComputationGraph]
    entries: tuple[Entry, ...]

    def __len__(self) -> int:
        return len(self.entries)

    @classmethod
    def of(cls, graphs: "Sequence[ComputationGraph] | Self") -> "GraphShare":
        """This process's share of all graphs of a set, which every process gives in the same order.

        Raises:
          ConfigError: It is no list of graphs.
        """
        if isinstance(graphs, GraphShare):
            return graphs
        if not isinstance(graphs, Sequence):
            raise ConfigError(f"train: graphs: give a list of graphs, got {type(graphs).__name__}")
        index, count = jax.process_index(), jax.process_count()
        mine = {i: graphs[i] for i in range(index, len(graphs), count)}
        strange = [graph for graph in mine.values() if not isinstance(graph, ComputationGraph)]
        if strange:
            raise ConfigError(f"train: graphs: give a list of graphs, not with a {type(strange[0]).__name__}")
        return cls.joined(mine)

    @classmethod
    def joined(cls, graphs: dict[int, ComputationGraph]) -> "GraphShare":
        """The share of this process, when each process gives the graphs that it holds.

        Raises:
          ConfigError: The processes have read different sets.
        """
        mine = [(i, dataclasses.astuple(Bucket.of(graph)), graph.content_hash) for i, graph in graphs.items()]
        entries: dict[int, Entry] = {}
        for owner, theirs in enumerate(exchanged(mine)):
            entries |= {i: Entry(owner, Bucket(*sizes), digest) for i, sizes, digest in theirs}
        if sorted(entries) != list(range(len(entries))):
            raise ConfigError("data: the processes have read different graphs; give all the same files")
        return cls(graphs, tuple(entries[i] for i in range(len(entries))))
