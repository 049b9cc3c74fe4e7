"""Small graphs for the tests of orders, and slow oracles."""

import functools
import math

import jax
import networkx as nx
import numpy as np
from strategies import random_graph

from regal_jax.graph import Cluster, ComputationGraph, GraphBuilder
from regal_jax.plan import Objective, Plan
from regal_jax.problem import Bucket, make_problem

__all__ = [
    "BUCKET",
    "CLUSTER",
    "ORDERS",
    "all_orders",
    "before",
    "chain",
    "diamond",
    "graph_of",
    "isolated",
    "keys_of",
    "many",
    "padded",
    "probability",
    "problem_of",
    "replayed",
]

BUCKET = Bucket(8, 24, 48, 32)
CLUSTER = Cluster.uniform(1)
ORDERS = 120


def graph_of(seed, num_ops, **options) -> ComputationGraph:
    """A graph with control edges, scratch memory, kept, unread and several outputs, and residents."""
    return random_graph(np.random.default_rng(seed), num_ops, inputs_per_op=1.0, constraints=False, **options)


def chain(num_ops) -> ComputationGraph:
    builder = GraphBuilder("chain")
    for o in range(num_ops):
        builder.add_op(f"op{o}", outputs=[o + 1], inputs=[(o - 1, 0)] if o else [])
    return builder.build()


def isolated(num_ops) -> ComputationGraph:
    builder = GraphBuilder("isolated")
    for o in range(num_ops):
        builder.add_op(f"op{o}", outputs=[(o * 5) % 7 + 1], keep=[0] if o % 2 else [], temp_bytes=o)
    return builder.build()


def problem_of(*graphs, bucket=BUCKET):
    return make_problem(list(graphs), CLUSTER, bucket)


def before(graph) -> list[set[int]]:
    """Direct predecessors of each op."""
    sets: list[set[int]] = [set() for _ in range(graph.num_ops)]
    for tensor, reader in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True):
        sets[reader].add(int(graph.tensor_op[tensor]))
    for source, target in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
        sets[target].add(source)
    return sets


@functools.cache
def all_orders(graph) -> np.ndarray:
    """Every topological order."""
    dag = nx.DiGraph()
    dag.add_nodes_from(range(graph.num_ops))
    dag.add_edges_from((u, v) for v, sources in enumerate(before(graph)) for u in sources)
    return np.array(list(nx.all_topological_sorts(dag)), np.int32).reshape(-1, graph.num_ops)


def padded(orders, size=BUCKET.ops) -> np.ndarray:
    """Whole orders ``[..., size]`` int32, followed by padding."""
    whole = np.broadcast_to(np.arange(size, dtype=np.int32), (*orders.shape[:-1], size)).copy()
    whole[..., : orders.shape[-1]] = orders
    return whole


def probability(graph, priority, order) -> float:
    """Probability of an order by equation 8, step by step."""
    waits, done, total = before(graph), set(), 1.0
    for op in order:
        ready = [o for o in range(graph.num_ops) if o not in done and waits[o] <= done]
        total *= (
            math.exp(priority[op]) / math.fsum(math.exp(priority[o]) for o in ready) if op in ready else 0
        )
        done.add(op)
    return total


def replayed(graph, order) -> int:
    """Peak of an order in bytes, by the replay."""
    order = [int(o) for o in order[: graph.num_ops]]
    plan = Plan.from_events(
        graph, CLUSTER, np.zeros(graph.num_ops, int), order, objective=Objective.PEAK_MEMORY
    )
    return int(max(plan.peak_memory))


def keys_of(*numbers):
    return jax.vmap(jax.random.key)(np.array(numbers, np.uint32))


def many(orders):
    """Orders, repeated up to the number that all tests share, so that they need one program only."""
    return padded(orders)[np.arange(ORDERS) % len(orders)][None]


def diamond():
    """A graph of two sources, one of which makes two ops ready, and a target."""
    builder = GraphBuilder("diamond")
    for name, inputs in (("a", []), ("b", []), ("c", [0]), ("d", [0]), ("e", [1, 2])):
        builder.add_op(name, outputs=[1], inputs=[(i, 0) for i in inputs])
    return builder.build()
