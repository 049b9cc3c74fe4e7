"""Graphs and clusters on the host. This package does not import JAX."""

from regal_jax.graph.builder import GraphBuilder
from regal_jax.graph.classes import OpClasses, op_classes
from regal_jax.graph.cluster import MAX_DEVICES, Cluster, TransferModel
from regal_jax.graph.computation_graph import ComputationGraph
from regal_jax.graph.constraints import Colocate, Pin, constrain
from regal_jax.graph.fingerprint import topology_hash
from regal_jax.graph.induced import induced, without_residents
from regal_jax.graph.links import DEFAULT_LINK, LINKS
from regal_jax.graph.networkx_graph import from_networkx, to_networkx
from regal_jax.graph.pairing import (
    allowed_matrix,
    mean_transfer_times,
    once_a_pair,
    runtime_matrix,
    shortest_runtimes,
    transfer_times,
)

__all__ = [
    "DEFAULT_LINK",
    "LINKS",
    "MAX_DEVICES",
    "Cluster",
    "Colocate",
    "ComputationGraph",
    "GraphBuilder",
    "OpClasses",
    "Pin",
    "TransferModel",
    "allowed_matrix",
    "constrain",
    "from_networkx",
    "induced",
    "mean_transfer_times",
    "once_a_pair",
    "op_classes",
    "runtime_matrix",
    "shortest_runtimes",
    "to_networkx",
    "topology_hash",
    "transfer_times",
    "without_residents",
]
