"""The graphs of a run: random graphs, graphs of sets, and sub-graphs of both."""

import dataclasses
import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from regal_jax.datasets import FAMILIES, load_graphs
from regal_jax.datasets.load import computing_graphs
from regal_jax.errors import ConfigError
from regal_jax.gflownet import ScheduleInputs, make_schedule_inputs
from regal_jax.gflownet.inputs import assembled, padded_ops
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.orders import random_order
from regal_jax.learning.gflownet.config import GflownetDataConfig
from regal_jax.learning.sets import load_sets
from regal_jax.plan import parallelism

__all__ = ["GflownetSource", "chosen_sets", "sub_inputs"]

_VALIDATION: Final = 1
"""Component of the seeds of random validation graphs; it is 0 for training graphs."""


def chosen_sets(data: GflownetDataConfig, cluster: Cluster) -> list[list[ComputationGraph]]:
    """The graphs of the sets to train on, and of those to validate on.

    Args:
      data: Settings of the data.
      cluster: The cluster on which the graphs run.

    Raises:
      ConfigError: A path has no such graph, or a graph cannot run on the cluster.
      FormatError: A set cannot be read.
    """

    def read(path: str, split: str, least: float) -> Iterator[ComputationGraph]:
        if data.contract:
            graphs = computing_graphs(path, split, cluster, data.max_ops)
        else:
            graphs = load_graphs(path, split, max_ops=data.max_ops)
        found = False
        for graph in graphs:
            if not least or parallelism(graph) >= least:
                found = True
                yield graph
        if not found:
            raise ConfigError(
                f"data.{split}: {path} has no graph that data.max_ops ({data.max_ops}) and "
                f"data.min_parallelism ({least}) allow; change them"
            )

    least = {"train": data.min_parallelism, "validation": 0.0}
    return [
        load_sets(data, split, [cluster], read=functools.partial(read, split=split, least=least[split]))
        for split in least
    ]


def sub_inputs(inputs: ScheduleInputs, chosen: np.ndarray, ops: int) -> ScheduleInputs:
    """The inputs of the sub-graph of some ops, as for a separate graph.

    Args:
      inputs: A graph.
      chosen: Ops such that every path between two of them contains only chosen ops. Their relations in the
        sub-graph are therefore those in the graph.
      ops: ``N`` of the result.
    """
    size = len(chosen)
    _, d = inputs.shape
    relations, leader = np.zeros((ops, ops), np.uint8), np.arange(ops, dtype=np.int32)
    runtime, allowed = np.zeros((ops, d), np.float32), np.zeros((ops, d), np.bool_)
    relations[:size, :size] = np.asarray(inputs.relations)[np.ix_(chosen, chosen)]
    groups = np.asarray(inputs.leader)[chosen]
    # The first chosen op of a group is its leader.
    leader[:size] = (groups[:, None] == groups[None]).argmax(axis=1)
    runtime[:size], allowed[:size] = np.asarray(inputs.runtime)[chosen], np.asarray(inputs.allowed)[chosen]
    longest = float(runtime.max(initial=0.0))
    return assembled(relations, runtime, allowed, leader, longest or 1.0, size, inputs.devices)


@dataclasses.dataclass(frozen=True, eq=False)
class GflownetSource:
    """The graphs of a run; the graph of a step depends only on the seed and the step.

    Attributes:
      data: Settings of the data.
      devices: Number of devices of the network and of the cluster.
      seed: Seed of the run.
      graphs: Graphs of the sets to train on.
      held_out: Graphs of the sets to validate on.
    """

    data: GflownetDataConfig
    devices: int
    seed: int
    graphs: Sequence[ComputationGraph] = ()
    held_out: Sequence[ComputationGraph] = ()

    @property
    def cluster(self) -> Cluster:
        """A cluster of `devices` equal devices with free transfers."""
        return Cluster.uniform(self.devices, transfer="free")

    def size(self, step: int) -> int:
        """``N`` of the step, on which its program depends."""
        _, _, ops = self._draw(step)
        return self._padded(ops)

    def inputs(self, step: int) -> ScheduleInputs:
        """The graph of a step, or the part of it that the step trains on."""
        rng, number, ops = self._draw(step)
        graph, whole = self._graph(number)
        if not self.data.subgraph:
            return sub_inputs(whole, np.arange(ops), self._padded(ops))
        # For consecutive ops of a topological order, every path between two of them stays among them.
        order = random_order(graph, int(rng.integers(2**31)))
        first = int(rng.integers(graph.num_ops - ops + 1))
        return sub_inputs(whole, np.sort(order[first : first + ops]), self._padded(ops))

    def validation(self) -> list[ComputationGraph]:
        """All graphs to validate on."""
        return [self._made(_VALIDATION, i) for i in range(self.data.validation_graphs)] + list(self.held_out)

    def _draw(self, step: int) -> tuple[np.random.Generator, int, int]:
        """The graph of a step, and how many of its ops it trains on."""
        rng = np.random.default_rng([self.seed, 2, step])
        number = int(rng.integers(len(self.graphs) or self.data.graphs))
        ops = self._size(number)
        if self.data.subgraph:
            least, most = (min(size, ops) for size in self.data.subgraph)
            ops = int(rng.integers(least, most + 1))
        return rng, number, ops

    def _size(self, number: int) -> int:
        """Ops of a graph to train on; some families add ops to those that are asked for."""
        return self.graphs[number].num_ops if self.graphs else self._graph(number)[0].num_ops

    @functools.cached_property
    def _largest(self) -> int:
        # The first random graphs are of all families.
        count = len(self.graphs) or min(self.data.graphs, len(self.data.families))
        most = max(self._size(number) for number in range(count))
        return min(most, self.data.subgraph[1]) if self.data.subgraph else most

    def _padded(self, ops: int) -> int:
        """``N`` of the program for ``ops`` ops; at most the size of the largest graph."""
        return max(min(padded_ops(ops), self._largest), 1)

    @functools.cached_property
    def _graph(self) -> Any:
        return functools.lru_cache(maxsize=2048)(self._found)

    def _found(self, number: int) -> tuple[ComputationGraph, ScheduleInputs]:
        graph = self.graphs[number] if self.graphs else self._made(0, number)
        return graph, make_schedule_inputs(graph, self.cluster)

    def _made(self, split: int, number: int) -> ComputationGraph:
        family = self.data.families[number % len(self.data.families)]
        rng = np.random.default_rng([self.seed, split, number])
        return FAMILIES[family].make(rng, self.data.ops, name=f"{family}-{number}")
