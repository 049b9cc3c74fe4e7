"""The graphs of a training run: filtered, with noisy variants."""

import itertools
from collections.abc import Sequence

from regal_jax.datasets import with_noise
from regal_jax.datasets.load import chosen_graphs
from regal_jax.errors import ConfigError
from regal_jax.graph import ComputationGraph
from regal_jax.learning.config import Contract, TrainConfig
from regal_jax.plan import critical_path
from regal_jax.runtime.interrupts import interruptible

__all__ = ["noisy_copies", "training_graphs"]


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
    data, task = config.data, config.task
    judged_by = (task.cluster(config.policy.num_devices), task.objective)
    ways = [None] * (data.contract is not Contract.ONLY) + [judged_by] * (data.contract is not Contract.NO)
    sets: list[list[ComputationGraph]] = []
    for name, paths, limit, least in (
        ("train", data.train, data.train_limit, data.min_parallelism),
        ("validation", data.validation, data.validation_limit, 0.0),
    ):
        if not paths:
            raise ConfigError(f"data.{name}: give the path of a set of graphs")
        sets.append([])
        for path in paths:
            refused: list[ConfigError] = []
            for contracted_for in ways:
                # Graphs beyond the limit are not read.
                graphs = chosen_graphs(path, name, contracted_for, data.max_ops)
                enough = (graph for graph in graphs if not least or _parallelism(graph) >= least)
                try:
                    sets[-1] += itertools.islice(enough, limit or None)
                except ConfigError as error:  # All graphs may be too large before contraction.
                    refused.append(error)
            if len(refused) == len(ways):
                raise refused[0]
        if not sets[-1]:
            raise ConfigError(f"data.min_parallelism: is {least}, and no graph has so much; lower it")
    return noisy_copies(sets[0], data.noisy_copies, data.noise), sets[1]


def _parallelism(graph: ComputationGraph) -> float:
    """Ratio of total work to longest path, with mean runtimes; 1 if there is no work."""
    runtime = graph.runtime if graph.runtime.ndim == 1 else graph.runtime.mean(axis=1)
    longest = critical_path(graph, runtime)
    return float(runtime.sum() / longest) if longest > 0 else 1.0
