"""The names that a user may write, as types: editors complete them, type checkers refuse others.

A type cannot be made from a registry, so a test holds the two against each other.
"""

from typing import Literal

__all__ = ["HeuristicName", "MethodName", "ObjectiveName", "OrderName", "SearchName", "TransferName"]

ObjectiveName = Literal["makespan", "peak-memory"]
"""Of `regal_jax.plan.Objective`."""
TransferName = Literal["blocking", "delay", "free"]
"""Of `regal_jax.graph.TransferModel`."""
SearchName = Literal[
    "auto",
    "brkga",
    "annealing",
    "local-search",
    "random-search",
    "list-search",
    "peak-search",
    "order-search",
]
"""Of the methods of `regal_jax.optimize` that spend evaluations."""
HeuristicName = Literal[
    "critical-path",
    "heft",
    "partition-dfs",
    "partition-list",
    "xla-list",
    "xla-dfs",
    "xla-post-order",
    "xla-best",
    "peak-balance",
    "lpmf",
    "bfs",
    "random-topological",
    "single-device",
    "given",
]
"""Of `regal_jax.heuristics.HEURISTICS`."""
OrderName = Literal["topoformer", "beam", "approximate-dp", "depth-first-dp", "random-orders"]
"""Of the methods that make one order, on one device, and spend no evaluations."""
MethodName = SearchName | HeuristicName | OrderName | Literal["cp-sat"]
"""What ``method`` of `regal_jax.optimize` may be."""
