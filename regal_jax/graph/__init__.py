"""Graphs and clusters on the host: what is to be run, and on what. Never imports jax."""

from regal_jax.graph.builder import GraphBuilder
from regal_jax.graph.cluster import Cluster, TransferModel
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.fingerprint import topology_hash
from regal_jax.graph.networkx_graph import from_networkx, to_networkx
from regal_jax.graph.pairing import allowed_matrix, runtime_matrix, transfer_times

__all__ = [
    "Cluster",
    "ComputationGraph",
    "GraphBuilder",
    "TransferModel",
    "allowed_matrix",
    "from_networkx",
    "runtime_matrix",
    "to_networkx",
    "topology_hash",
    "transfer_times",
]
