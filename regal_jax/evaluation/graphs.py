"""The graphs of an evaluation."""

from regal_jax.evaluation.config import EvaluationConfig
from regal_jax.graph import ComputationGraph
from regal_jax.learning import load_graphs

__all__ = ["evaluation_graphs"]


def evaluation_graphs(config: EvaluationConfig) -> list[ComputationGraph]:
    """The graphs that a config names, each content once.

    Raises:
      ConfigError: No graph is left.
      FormatError: Nothing that can be read.
    """
    graphs = load_graphs(
        config.graphs,
        config.split,
        contracted_for=(config.cluster, config.objective) if config.contract else None,
        max_ops=config.max_ops,
    )
    # Results are kept by content; a copy would only count a graph twice.
    return list({graph.content_hash: graph for graph in graphs}.values())[: config.limit or None]
