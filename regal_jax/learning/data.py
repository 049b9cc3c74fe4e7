"""The graphs of a training run: filtered, with noisy variants."""

import itertools
from collections.abc import Iterator, Sequence

import jax

from regal_jax.checks import check_kind
from regal_jax.datasets import with_noise
from regal_jax.datasets.load import chosen_graphs
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.learning.config import Contract, TrainConfig
from regal_jax.learning.processes import naming_lost_processes, together
from regal_jax.learning.share import GraphShare
from regal_jax.plan import parallelism
from regal_jax.runtime.interrupts import interruptible

__all__ = ["noisy_copies", "training_graphs", "training_shares"]


def noisy_copies(graphs: Sequence[ComputationGraph], copies: int, scale: float) -> list[ComputationGraph]:
    """The graphs, and ``copies`` variants of each with noise on runtimes and sizes.

    References:
      REGAL, ICLR 2020, "Tasks and datasets".
    """
    return [*graphs, *(with_noise(g, seed, scale=scale) for seed in range(copies) for g in graphs)]


@interruptible()
def training_graphs(config: TrainConfig) -> tuple[list[ComputationGraph], list[ComputationGraph]]:
    """Graphs to train on and graphs to validate on, as `TrainConfig.data` says.

    Raises:
      ConfigError: A path is missing, or no graph is left.
      FormatError: No file can be read.
    """
    train, validation = (list(graphs) for graphs in _sets(config))
    return noisy_copies(train, config.data.noisy_copies, config.data.noise), validation


@interruptible()
def training_shares(config: TrainConfig) -> tuple[GraphShare, GraphShare]:
    """This process's shares of `training_graphs`: every process keeps one graph of as many as there are.

    Raises:
      ConfigError: A path is missing, no graph is left, or the processes read different files.
      FormatError: No file can be read.
      ProcessLostError: Another process has ended.
    """
    index, count = jax.process_index(), jax.process_count()
    kept: list[dict[int, ComputationGraph]] = []

    def read() -> None:
        data = config.data
        for graphs, copies in zip(_sets(config), (data.noisy_copies, 0), strict=True):
            mine, number = {}, -1
            for number, graph in enumerate(graphs):
                if number % count == index:
                    mine[number] = graph
            variants = noisy_copies(list(mine.values()), copies, data.noise)
            numbers = [i + copy * (number + 1) for copy in range(copies + 1) for i in mine]
            kept.append(dict(zip(numbers, variants, strict=True)))

    with naming_lost_processes():
        together(read)
        train, validation = map(GraphShare.joined, kept)
    return train, validation


def _sets(config: TrainConfig) -> Iterator[Iterator[ComputationGraph]]:
    """The graphs to train on, without noisy copies, and those to validate on; each is read on demand."""
    check_kind("config", config, TrainConfig)
    data = config.data
    for name in ("train", "validation"):  # Before any graph is read: a corpus takes minutes.
        if not getattr(data, name):
            raise ConfigError(f"data.{name}: give the path of a set of graphs")
    yield _chosen(config, "train", data.train, data.train_limit, data.min_parallelism)
    yield _chosen(config, "validation", data.validation, data.validation_limit, 0.0)


def _chosen(
    config: TrainConfig, name: str, paths: Sequence[str], limit: int, least: float
) -> Iterator[ComputationGraph]:
    data, task = config.data, config.task
    judged_by = (task.cluster(config.policy.num_devices), task.objective)
    ways = [None] * (data.contract is not Contract.ONLY) + [judged_by] * (data.contract is not Contract.NO)
    found = False
    for path in paths:
        refused: list[ConfigError] = []
        for contracted_for in ways:
            # Graphs beyond the limit are not read.
            graphs = chosen_graphs(path, name, contracted_for, data.max_ops)
            enough = (graph for graph in graphs if not least or parallelism(graph) >= least)
            try:
                for graph in itertools.islice(enough, limit or None):
                    found = True
                    yield graph
            except ConfigError as error:  # All graphs may be too large before contraction.
                refused.append(error)
        if len(refused) == len(ways):
            raise refused[0]
    if not found:
        raise ConfigError(f"data.min_parallelism: is {least}, and no graph has so much; lower it")
