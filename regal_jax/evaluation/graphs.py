"""The graphs of an evaluation."""

from typing import Final

from regal_jax.datasets import load_sample
from regal_jax.errors import ConfigError
from regal_jax.evaluation.config import EvaluationConfig
from regal_jax.graph import ComputationGraph
from regal_jax.learning import load_graphs
from regal_jax.plan import contract_for

__all__ = ["SAMPLE", "evaluation_graphs"]

SAMPLE: Final = "sample"
"""As the path of the graphs: those that come with the package."""


def evaluation_graphs(config: EvaluationConfig) -> list[ComputationGraph]:
    """The graphs that a config names, each content once.

    Raises:
      ConfigError: No graph is left.
      FormatError: Nothing that can be read.
    """
    if config.graphs == SAMPLE:
        graphs = [graph for _, graph in load_sample(config.split)]
    else:
        graphs = load_graphs(config.graphs, config.split)
    if config.contract:
        graphs = [contract_for(graph, config.cluster, config.objective).graph for graph in graphs]
    graphs = [graph for graph in graphs if not config.max_ops or graph.num_ops <= config.max_ops]
    # Results are kept by content; a copy would only count a graph twice.
    unique = list({graph.content_hash: graph for graph in graphs}.values())[: config.limit or None]
    if not unique:
        raise ConfigError(f"{config.graphs}: no graph of at most {config.max_ops} ops in it; raise max_ops")
    return unique
