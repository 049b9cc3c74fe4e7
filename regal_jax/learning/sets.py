"""The graphs of the sets that settings of a run name."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from regal_jax.datasets import load_graphs
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.graph.pairing import allowed_matrix, runtime_matrix

__all__ = ["SetsConfig", "load_sets"]


class SetsConfig(Protocol):
    """Settings of sets of graphs.

    Attributes:
      train: Paths of the sets to train on.
      validation: Paths of the sets to validate on.
      max_ops: Most ops of a graph; larger ones are left out.
      limit: Most graphs of each set; 0 for all.
    """

    @property
    def train(self) -> tuple[str, ...] | str: ...
    @property
    def validation(self) -> tuple[str, ...] | str: ...
    @property
    def max_ops(self) -> int: ...
    @property
    def limit(self) -> int: ...


def load_sets(
    data: SetsConfig,
    split: str,
    clusters: Sequence[Cluster],
    remark: str = "",
    read: Callable[[str], Iterable[ComputationGraph]] | None = None,
) -> list[ComputationGraph]:
    """The graphs of the sets that the settings name.

    Args:
      data: Settings of the data.
      split: ``"train"`` or ``"validation"``.
      clusters: The clusters on which each graph runs.
      remark: End of the message if a graph cannot run there.
      read: The graphs of a path; `load_graphs` by default.

    Raises:
      ConfigError: A path has no graphs, or a graph cannot run on a cluster.
      FormatError: A set cannot be read.
    """
    graphs: list[ComputationGraph] = []
    for path in getattr(data, split):
        found = read(path) if read else load_graphs(path, split, max_ops=data.max_ops)
        graphs += itertools.islice(found, data.limit or None)
    for graph, cluster in itertools.product(graphs, clusters):
        try:
            runtime_matrix(graph, cluster)
            allowed_matrix(graph, cluster)
        except ClusterError as error:
            raise ConfigError(f"data.{split}: {error}{remark}") from None
    return graphs
