"""Types of the names that arguments accept, for editors and type checkers.

A type cannot be made from a registry, so a test compares the two.
"""

from typing import Literal

__all__ = ["HeuristicName", "MethodName", "ObjectiveName", "OrderName", "SearchName"]

ObjectiveName = Literal["makespan", "peak-memory"]
"""Names of `regal_jax.plan.Objective`."""
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
"""Methods of `regal_jax.optimize` that spend evaluations."""
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
    "repaired-partition",
    "given",
]
"""Names of `regal_jax.heuristics.HEURISTICS`."""
OrderName = Literal["topoformer", "beam", "approximate-dp", "depth-first-dp", "random-orders"]
"""Methods that make one order on one device and spend no evaluations."""
MethodName = SearchName | HeuristicName | OrderName | Literal["gflownet", "cp-sat"]
"""Names for ``method`` of `regal_jax.optimize`."""
