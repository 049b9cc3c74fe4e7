"""Graphs of the GFlowNet scheduling paper (Zhang et al., ICLR 2023, appendix E.5): runtimes U(0, 1)."""

from typing import Any, Final

import numpy as np

from regal_jax.datasets.layered import layered_topology
from regal_jax.datasets.one_output import one_output_graph
from regal_jax.datasets.regal import gaussian_costs, undirected
from regal_jax.datasets.topologies import TOPOLOGIES, orient
from regal_jax.graph import ComputationGraph

__all__ = ["GFLOWNET_TOPOLOGIES", "gflownet_graph"]

GFLOWNET_TOPOLOGIES: Final = (*TOPOLOGIES, "layered")
"""The five distributions of graphs in the appendix."""


def gflownet_graph(
    rng: np.random.Generator, topology: str, n: int, *, name: str = "graph", **parameters: Any
) -> ComputationGraph:
    """One graph as in the paper's generalisation experiment.

    A classical undirected random graph is directed along a random order of its nodes; a layered graph is
    already directed. Runtimes are uniform on (0, 1), in microseconds. The paper gives no tensor sizes,
    because transfers cost nothing in its proxy. Sizes are drawn as in REGAL, N(50, 10) bytes. Parameters are
    those of the two papers that the appendix follows. There is no source, no sink and no control edge.

    Args:
      rng: Generator, consumed.
      topology: One of `GFLOWNET_TOPOLOGIES`.
      n: Number of ops; the paper trains on 50.
      name: Name of the graph.
      **parameters: Parameters of the topology.

    Raises:
      ConfigError: The topology or a parameter is unknown, or a value is invalid.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, appendix E.5.
    """
    if topology == "layered":
        layered = layered_topology(rng, n, **parameters)
        edges = np.concatenate([layered.adjacent, layered.skip])
    else:
        edges = np.stack(orient(rng, n, undirected(rng, topology, n, **parameters)), axis=1)
    return one_output_graph(name, edges, rng.random(n), gaussian_costs(rng, n))
