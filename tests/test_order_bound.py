"""Bounds on the peaks of all orders, against all orders and all sets of ops that may have run."""

import importlib

import pytest
from brute_force import brute_force
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import instances

from regal_jax import Cluster, GraphBuilder
from regal_jax.graph import ComputationGraph
from regal_jax.heuristics import depth_first_dp
from regal_jax.heuristics.orders import random_order
from regal_jax.plan import Objective, lower_bound, order_bound

ONE = Cluster.uniform(1)
PEAK = Objective.PEAK_MEMORY


def by_sets(graph: ComputationGraph) -> int:
    """The largest, over all ops, of the least memory over all sets of ops that may have run before."""
    before = [0] * graph.num_ops
    pairs = [*zip(graph.edge_producer, graph.edge_op, strict=True)]
    pairs += zip(graph.control_source, graph.control_target, strict=True)
    for u, v in pairs:
        before[v] |= 1 << int(u)
    readers = [set(graph.edge_op[graph.edge_tensor == t].tolist()) for t in range(graph.num_tensors)]
    resident = graph.tensor_resident
    least: list[int] = [2**62] * graph.num_ops
    for ran in range(2**graph.num_ops):
        if any(ran >> o & 1 and before[o] & ~ran for o in range(graph.num_ops)):
            continue
        for o in range(graph.num_ops):
            if ran >> o & 1 or before[o] & ~ran:
                continue
            held = int(graph.temp_bytes[o])
            for t, maker in enumerate(graph.tensor_op.tolist()):
                there = maker == o or bool(ran >> maker & 1) or resident[t]
                needed = maker == o or graph.tensor_keep[t] or any(not ran >> r & 1 for r in readers[t])
                held += int(graph.tensor_bytes[t]) if there and needed else 0
            least[o] = min(least[o], held)
    ends = (graph.tensor_bytes[resident].sum(), graph.tensor_bytes[graph.tensor_keep].sum())
    return int(max(*ends, *least))


@settings(max_examples=80)
@given(instance=instances(max_ops=6, devices=(1,)), seed=st.integers(0, 2**32 - 1))
def test_no_order_is_below_it(instance: tuple[ComputationGraph, Cluster], seed: int) -> None:
    graph, _ = instance
    bound = order_bound(graph, random_order(graph, seed))
    assert lower_bound(graph, ONE, PEAK) <= bound <= brute_force(graph, ONE, PEAK).objective_value
    # The most memory of any order at an op ends the search for cuts early; all orders give the same bound.
    assert bound == order_bound(graph) == by_sets(graph)


def test_what_must_wait_counts() -> None:
    """An encoder and a decoder: everything that the encoder makes is read in reverse order."""
    builder = GraphBuilder("encoder and decoder")
    made = [builder.add_op("first", outputs=[4])]
    for i in range(1, 5):
        made.append(builder.add_op(f"down {i}", inputs=[(made[-1], 0)], outputs=[4]))
    last = made[-1]
    for i in range(4, -1, -1):
        last = builder.add_op(f"up {i}", inputs=[(last, 0), (made[i], 0)], outputs=[1])
    graph = builder.build()
    assert lower_bound(graph, ONE, PEAK) == 8
    assert order_bound(graph) == 21 == depth_first_dp(graph).peak


def test_a_cut_is_more_than_what_is_certain() -> None:
    """Each update may run before the middle or after it: its smaller tensor is in memory."""
    builder = GraphBuilder("updates")
    old = [builder.add_op(f"old {i}", outputs=[size], resident=True) for i, size in enumerate((5, 3))]
    for i, (op, size) in enumerate(zip(old, (2, 7), strict=True)):
        builder.add_op(f"new {i}", inputs=[(op, 0)], outputs=[size], keep=[0])
    builder.add_op("middle", outputs=[11])
    assert order_bound(builder.build()) == 16 == depth_first_dp(builder.build()).peak


def test_large_sizes_are_rounded_down() -> None:
    builder = GraphBuilder("large")
    size = 2**33 + 1
    old = builder.add_op("old", outputs=[size], resident=True)
    builder.add_op("new", inputs=[(old, 0)], outputs=[size + 6], keep=[0])
    builder.add_op("middle", outputs=[2**35])
    least = depth_first_dp(builder.build()).peak
    assert least - 64 <= order_bound(builder.build()) <= least


def test_without_cuts_and_for_very_large_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is certain needs no cut; beyond a number of ops, only what an op itself needs counts."""
    builder = GraphBuilder("chain and update")
    old = builder.add_op("old", outputs=[5], resident=True)
    builder.add_op("new", inputs=[(old, 0)], outputs=[2], keep=[0])
    first = builder.add_op("first", outputs=[3])
    middle = builder.add_op("middle", inputs=[(first, 0)], outputs=[4])
    builder.add_op("last", inputs=[(middle, 0), (first, 0)], outputs=[1])
    graph = builder.build()
    assert order_bound(graph) == 10 == depth_first_dp(graph).peak
    module = importlib.import_module("regal_jax.plan.order_bound")
    monkeypatch.setattr(module, "_CUTS", 0)
    assert order_bound(graph) == 8
    monkeypatch.setattr(module, "_MOST_NODES", 0)
    assert order_bound(graph) == 8


def test_one_op() -> None:
    builder = GraphBuilder("one")
    builder.add_op("only", outputs=[3], temp_bytes=4)
    assert order_bound(builder.build()) == 7
