"""Random plans, for tests of code that runs plans."""

import numpy as np

from regal_jax.graph import Cluster, ComputationGraph
from regal_jax.plan import Plan
from regal_jax.plan.schedule import insert_transfers


def random_plan(graph: ComputationGraph, cluster: Cluster, rng: np.random.Generator) -> Plan:
    """A plan with a random placement that is allowed, and a random order of its ops."""
    leader = graph.colocation_leader
    place = np.zeros(graph.num_ops, np.int64)
    for op in range(graph.num_ops):
        group = np.flatnonzero(leader == leader[op])
        allowed = (graph.allowed_devices[o] for o in group)
        free = set(range(cluster.num_devices)).intersection(*(a for a in allowed if a is not None))
        place[group] = rng.choice(sorted(free))
    waiting = np.bincount(graph.successors[1], minlength=graph.num_ops)
    ready, order = [o for o in range(graph.num_ops) if not waiting[o]], []
    while ready:
        op = ready.pop(rng.integers(len(ready)))
        order.append(op)
        for after in graph.successors[1][graph.successors[0][op] : graph.successors[0][op + 1]]:
            waiting[after] -= 1
            ready += [int(after)] if not waiting[after] else []
    # Residents come first.
    order.sort(key=lambda op: not graph.resident[op])
    events = insert_transfers(graph, cluster, place, order, eager=bool(rng.integers(2)))
    return Plan.from_events(graph, cluster, place, events)
