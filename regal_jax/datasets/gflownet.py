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
"""The five distributions of the appendix."""


def gflownet_graph(
    rng: np.random.Generator, topology: str, n: int, *, name: str = "graph", **parameters: Any
) -> ComputationGraph:
    """One graph as in the paper's generalisation experiment.

    A classical undirected random graph is directed along a random order of its nodes; a layered graph has
    its directions already. Runtimes are uniform on (0, 1), in microseconds. The paper's proxy moves data
    for nothing and so names no tensor sizes: they are drawn as REGAL's, N(50, 10) bytes. Parameters are
    those of the two papers that the appendix follows; there is no source, no sink and no control edge.

    Args:
      rng: Consumed.
      topology: One of `GFLOWNET_TOPOLOGIES`.
      n: Ops; the paper trains on 50.
      name: Of the graph.
      **parameters: Of the topology.

    Raises:
      ConfigError: An unknown topology or parameter, or one with an impossible value.

    References:
      Zhang et al. 2023, "Robust Scheduling with GFlowNets", ICLR, appendix E.5.
    """
    if topology == "layered":
        layered = layered_topology(rng, n, **parameters)
        edges = np.concatenate([layered.adjacent, layered.skip])
    else:
        edges = np.stack(orient(rng, n, undirected(rng, topology, n, **parameters)), axis=1)
    return one_output_graph(name, edges, rng.random(n), gaussian_costs(rng, n))
