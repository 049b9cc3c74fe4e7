"""A quick list schedule: every op is where its rule says, whatever the numbers of the ops are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from policy_cases import renumbered
from strategies import instances

from regal_jax.graph import (
    Cluster,
    ComputationGraph,
    GraphBuilder,
    allowed_matrix,
    runtime_matrix,
    transfer_times,
)
from regal_jax.heuristics.earliest_finish import earliest_finish, upward_rank
from regal_jax.heuristics.links import Links

seeds = st.integers(0, 2**32 - 1)


def numbers_of(graph: ComputationGraph) -> np.ndarray:
    return np.argsort(graph.topological_order)


def by_the_rule(graph: ComputationGraph, cluster: Cluster) -> tuple[list[int], list[float]]:
    """Devices and starts by the definition, in Python's sets and dictionaries."""
    links, numbers = Links.of(graph), numbers_of(graph)
    rank, runtime = upward_rank(graph, cluster).tolist(), runtime_matrix(graph, cluster)
    allowed, cost = allowed_matrix(graph, cluster), transfer_times(graph, cluster)
    price = 0.5 * np.mean([runtime[o, allowed[o]].mean() for o in range(graph.num_ops)])
    place: dict[int, int] = {}
    start: dict[int, float] = {}
    finish: dict[int, float] = {}
    clock = [0.0] * cluster.num_devices
    copies: set[tuple[int, int]] = set()
    most = max(rank) or 1.0
    for o in sorted(
        range(graph.num_ops), key=lambda o: (-np.floor(rank[o] / most * 2**20 + 0.3), numbers[o])
    ):
        mates = [u for u in place if graph.colocation_leader[u] == graph.colocation_leader[o]]
        options = []
        for k in [place[mates[0]]] if mates else np.flatnonzero(allowed[o]).tolist():
            moved = [t for t in links.inputs[o] if place[links.producer[t]] != k]
            ready = [finish[links.producer[t]] + (cost[t] if t in moved else 0) for t in links.inputs[o]]
            ready += [finish[u] for u in links.before[o]]
            begin = max([clock[k], *ready])
            options.append((begin + runtime[o, k] + price * len({(t, k) for t in moved} - copies), begin, k))
        best = options[0]
        for option in options[1:]:
            if option[0] < best[0] - max(rank) / 2**20:
                best = option
        _, start[o], place[o] = best
        finish[o] = clock[place[o]] = start[o] + runtime[o, place[o]]
        copies |= {(t, place[o]) for t in links.inputs[o]}
    return [place[o] for o in range(graph.num_ops)], [start[o] for o in range(graph.num_ops)]


@given(instance=instances(max_ops=12))
def test_every_op_is_where_the_rule_says(instance: tuple[ComputationGraph, Cluster]) -> None:
    graph, cluster = instance
    placement, order = earliest_finish(graph, cluster, numbers_of(graph))
    place, start = by_the_rule(graph, cluster)
    assert placement.tolist() == place
    # To a step of the makespan.
    begun = np.array(start)[order]
    assert (np.diff(begun) >= -max(start) / 2**20).all()
    at = np.argsort(order)
    assert (at[graph.edge_producer] < at[graph.edge_op]).all()
    assert (at[graph.control_source] < at[graph.control_target]).all()


@given(instance=instances(max_ops=12), seed=seeds)
def test_numbers_of_ops_decide_nothing(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, cluster = instance
    place = np.random.default_rng(seed).permutation(graph.num_ops)
    numbers = numbers_of(graph)
    moved = np.empty_like(numbers)
    moved[place] = numbers
    one, same = (
        earliest_finish(graph, cluster, numbers),
        earliest_finish(renumbered(graph, place), cluster, moved),
    )
    assert same.placement[place].tolist() == one.placement.tolist()
    assert place[one.order].tolist() == same.order.tolist()


def test_two_chains_run_side_by_side_and_tiny_ops_stay() -> None:
    builder = GraphBuilder("chains")
    for side in "ab":
        for i in range(4):
            before = [f"{side}{i - 1}"] if i else []
            builder.add_op(f"{side}{i}", runtime=1.0, inputs=before, outputs=[1])
    builder.add_op("end", runtime=1.0, inputs=["a3", "b3"], outputs=[1])
    builder.add_op("tiny", runtime=0.01, inputs=["end"])
    builder.add_op("other", runtime=0.01, inputs=["end"])
    graph = builder.build()
    placement, order = earliest_finish(graph, Cluster.uniform(2), numbers_of(graph))
    assert placement[:4].tolist() == [placement[0]] * 4
    assert placement[4:8].tolist() == [1 - placement[0]] * 4
    # A meeting costs more than a hundredth of an op is worth.
    assert placement[9:].tolist() == [placement[8]] * 2
    assert sorted(order[:2].tolist()) == [0, 4]


@pytest.mark.parametrize("devices", [1, 2])
def test_one_op(devices: int) -> None:
    builder = GraphBuilder("one")
    builder.add_op("op", runtime=0.0)
    placement, order = earliest_finish(builder.build(), Cluster.uniform(devices), np.zeros(1, np.int64))
    assert (placement.tolist(), order.tolist()) == ([0], [0])
