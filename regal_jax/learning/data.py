"""The graphs that a training run is given: read, contracted, filtered, varied."""

import os
import pathlib
from collections.abc import Sequence

from regal_jax.datasets import with_noise
from regal_jax.datasets.corpus import load_corpus
from regal_jax.datasets.corpus.index import INDEX
from regal_jax.datasets.store import read_set
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.learning.config import TrainConfig
from regal_jax.plan import contract

__all__ = ["load_graphs", "noisy_copies", "training_graphs"]


def load_graphs(
    path: str | os.PathLike[str], split: str, *, cluster: Cluster, contracted: bool = False, max_ops: int = 0
) -> list[ComputationGraph]:
    """Graphs of a set or of a corpus.

    Args:
      path: A folder or archive as `regal_jax.datasets.read_set` takes it, all of which is read; or the folder
        of a corpus, of which only ``split`` is.
      split: ``"train"``, ``"validation"`` or ``"test"``, of a corpus.
      cluster: That contraction is for.
      contracted: Return the contracted graphs.
      max_ops: Leave out larger ones, after contraction; 0 for no limit.

    Raises:
      FormatError: Nothing that can be read.
      ConfigError: No graph is left.
    """
    if (pathlib.Path(path) / INDEX).exists():
        graphs = [graph for _, graph in load_corpus(path, split)]
    else:
        graphs = list(read_set(path).graphs)
    if contracted:
        graphs = [contract(graph, cluster).graph for graph in graphs]
    graphs = [graph for graph in graphs if not max_ops or graph.num_ops <= max_ops]
    if not graphs:
        raise ConfigError(f"{os.fspath(path)}: no graph of at most {max_ops} ops in it; raise max_ops")
    return graphs


def noisy_copies(graphs: Sequence[ComputationGraph], copies: int, scale: float) -> list[ComputationGraph]:
    """The graphs, and ``copies`` variants of each with noise on runtimes and sizes.

    References:
      REGAL, ICLR 2020, "Tasks and datasets".
    """
    return [*graphs, *(with_noise(g, seed, scale=scale) for seed in range(copies) for g in graphs)]


def training_graphs(config: TrainConfig) -> tuple[list[ComputationGraph], list[ComputationGraph]]:
    """Graphs to train on and graphs to validate on, as `TrainConfig.data` says.

    Raises:
      ConfigError: No path, or no graph left.
      FormatError: Nothing that can be read.
    """
    data = config.data
    cluster = config.task.cluster(config.policy.num_devices)
    sets = []
    for name, path, limit in (
        ("train", data.train, data.train_limit),
        ("validation", data.validation, data.validation_limit),
    ):
        if not path:
            raise ConfigError(f"data.{name}: give the path of a set of graphs")
        graphs = load_graphs(path, name, cluster=cluster, contracted=data.contract, max_ops=data.max_ops)
        sets.append(graphs[: limit or None])
    return noisy_copies(sets[0], data.noisy_copies, data.noise), sets[1]
