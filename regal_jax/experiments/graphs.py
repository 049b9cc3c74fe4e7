"""Tasks of an evaluation: graphs, each with its cluster and objective."""

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

from regal_jax.datasets import load_graphs
from regal_jax.errors import ConfigError
from regal_jax.experiments.config import EvaluationConfig
from regal_jax.experiments.realistic import load_models, realistic_cases
from regal_jax.experiments.topological_order import GRAPHS, layered_cases, real_cases
from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.heuristics.even_split import even_split, one_device_peak
from regal_jax.plan import Objective, lower_bound

__all__ = ["Task", "evaluation_graphs", "evaluation_tasks", "graphs_digest"]


@dataclasses.dataclass(frozen=True, eq=False)
class Task:
    """A graph to plan, with its cluster and objective.

    Attributes:
      graph: The graph.
      cluster: Cluster on which the graph runs.
      objective: Objective to minimise.
      key: Key of the results: the graph's hash, or a digest of the whole task.
      labels: Values by which tables are grouped, and further facts for tables; JSON values.
    """

    graph: ComputationGraph
    cluster: Cluster
    objective: Objective
    key: str
    labels: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def as_document(self) -> dict[str, Any]:
        """The task as JSON values, for the report."""
        return {"hash": self.key, "name": self.graph.name, "ops": self.graph.num_ops, **self.labels}


def evaluation_tasks(config: EvaluationConfig) -> list[Task]:
    """The tasks of the suite of a config; equal graphs occur once.

    Raises:
      ConfigError: No graph is left.
      FormatError: No file can be read.
    """
    if config.suite == "realistic":
        return _realistic(config.cases)
    if config.suite == "topological-order":
        return _ordering(config)
    return [
        Task(graph, _cluster(config, graph), config.objective, graph.content_hash)
        for graph in evaluation_graphs(config)
    ]


def _cluster(config: EvaluationConfig, graph: ComputationGraph) -> Cluster:
    """The cluster of a graph, which depends on it only with `EvaluationConfig.capacity`."""
    if not config.capacity:
        return config.cluster
    return even_split(graph, config.devices, config.capacity, config.transfer, config.memory_ratio)


def evaluation_graphs(config: EvaluationConfig) -> list[ComputationGraph]:
    """The graphs that a config names; equal graphs occur once.

    Raises:
      ConfigError: No graph is left.
      FormatError: No file can be read.
    """
    graphs = load_graphs(
        config.graphs,
        config.split,
        contracted_for=(config.cluster, config.objective) if config.contract else None,
        max_ops=config.max_ops,
    )
    # Results are stored by content, so a copy would count the graph twice.
    chosen = {graph.content_hash: graph for graph in graphs if graph.num_ops >= config.min_ops}
    if not chosen:
        largest = max(graph.num_ops for graph in graphs)
        raise ConfigError(f"min_ops: is {config.min_ops}, but the largest graph has {largest} ops; lower it")
    found = list(chosen.values())[: config.limit or None]
    digest = graphs_digest(found)
    if not digest.startswith(config.digest):
        raise ConfigError(
            f"graphs: {config.graphs} has other graphs than this table is for (digest {digest[:16]}, not "
            f"{config.digest}); build the set again, or leave out digest"
        )
    return found


def graphs_digest(graphs: Iterable[ComputationGraph]) -> str:
    """SHA-256 of the content hashes of graphs, sorted, one a line."""
    text = "".join(f"{each}\n" for each in sorted(graph.content_hash for graph in graphs))
    return hashlib.sha256(text.encode()).hexdigest()


def _ordering(config: EvaluationConfig) -> list[Task]:
    cluster, tasks = Cluster.uniform(1, transfer="free"), {}
    layered = layered_cases(config.sizes, config.cases or GRAPHS, config.first)
    real = real_cases(config.graphs, config.split, config.limit) if config.graphs else ()
    for name, graph in itertools.chain(layered, real):
        key = graph.content_hash
        if key not in tasks:
            least = lower_bound(graph, cluster, Objective.PEAK_MEMORY)
            labels = {"set": name, "lower_bound": least}
            tasks[key] = Task(graph, cluster, Objective.PEAK_MEMORY, key, labels)
    if not tasks:
        raise ConfigError("graphs: no graph of 200 to 1000 ops; give others, or sizes of layered graphs")
    return list(tasks.values())


def _realistic(count: int) -> list[Task]:
    cases = realistic_cases(count)
    graphs = load_models({case.model for case in cases})
    peaks = {name: one_device_peak(graph) for name, graph in graphs.items()}
    tasks = []
    for case in cases:
        graph, peak = graphs[case.model], peaks[case.model]
        cluster = case.cluster(graph, peak)
        memory = cluster.memory[0]
        # No plan has a smaller peak, so no plan fits a device with less memory.
        least = lower_bound(graph, cluster, Objective.PEAK_MEMORY)
        alone = float(graph.runtime.sum()) if case.objective is Objective.MAKESPAN else peak
        content = [graph.content_hash, case.devices, case.link, memory, str(case.objective)]
        labels = {
            **{name: str(value) for name, value in dataclasses.asdict(case).items()},
            "one_device": alone,
            "impossible": least > memory,
        }
        key = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        tasks.append(Task(graph, cluster, case.objective, key, labels))
    return tasks
