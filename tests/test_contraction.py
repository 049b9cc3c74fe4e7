"""Contraction: what the contracted graph promises, the original keeps."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import instances, random_keys

import regal_jax
from regal_jax import Cluster, GraphBuilder, contract, optimize, optimize_many
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, GraphError, PlanError
from regal_jax.graph.merging import ANCHOR_KINDS
from regal_jax.graph.quotient import quotient
from regal_jax.plan import Plan, decode_order, decode_placement

TWO = Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10")
OPTIONS = (
    {},
    {"max_share": 1.0},
    {"max_share": 1.0, "spare_memory": True},
    {"max_share": 0.2, "max_members": 3},
    {"max_share": 0.0},
)


def random_plan(graph, cluster, rng, objective="makespan"):
    """What random keys mean."""
    n, t, d = graph.num_ops, graph.num_tensors, cluster.num_devices
    placement = decode_placement(graph, cluster, random_keys(rng, (n, d)))
    keys = random_keys(rng, (n,)), random_keys(rng, (t, d))
    events = decode_order(graph, cluster, placement, *keys)
    return Plan.from_events(graph, cluster, placement, events, objective=objective)


def check_expansion(made, cluster, seed):
    plan = random_plan(made.graph, cluster, np.random.default_rng(seed))
    plan.verify(made.graph)
    whole = made.expand(plan)
    whole.verify(made.original)
    assert whole.makespan <= plan.makespan * (1 + 1e-12)
    assert (whole.peak_memory <= plan.peak_memory).all()
    assert (whole.overflow <= plan.overflow).all()
    assert whole.num_transfers == plan.num_transfers
    assert whole.transfer_bytes == plan.transfer_bytes
    # Merged ops one after another, and in the order of the plan.
    ops = made.op[whole.timeline.op[whole.timeline.port < 0]]
    runs = ops[np.flatnonzero(np.diff(ops, prepend=-1))]
    assert runs.tolist() == plan.timeline.op[plan.timeline.port < 0].tolist()


def check_graph(made):
    graph, small = made.original, made.graph
    assert sorted(o for ops in made.members for o in ops.tolist()) == list(range(graph.num_ops))
    for i, ops in enumerate(made.members):
        assert (made.op[ops] == i).all()
        assert small.op_names[i] in {graph.op_names[o] for o in ops}
    np.testing.assert_allclose(small.runtime.sum(axis=0), graph.runtime.sum(axis=0), rtol=1e-12)
    assert small.tensor_keep.sum() == graph.tensor_keep.sum()
    for field in ("tensor_bytes", "tensor_keep"):
        assert getattr(small, field).tolist() == getattr(graph, field)[made.tensor].tolist()
    # Every edge between sets is there once, and no other.
    cross = {
        (t, made.op[o])
        for t, o in zip(graph.edge_tensor.tolist(), graph.edge_op.tolist(), strict=True)
        if made.op[graph.tensor_op[t]] != made.op[o]
    }
    edges = zip(made.tensor[small.edge_tensor].tolist(), small.edge_op.tolist(), strict=True)
    assert set(edges) == cross


def check_convex(made):
    """No path leaves a set and comes back."""
    graph = made.original
    for i in range(made.graph.num_ops):
        left = np.zeros(graph.num_ops, dtype=bool)
        after = [[] for _ in range(graph.num_ops)]
        for u, v in zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True):
            after[u].append(v)
        for u, v in zip(graph.control_source.tolist(), graph.control_target.tolist(), strict=True):
            after[u].append(v)
        for u in graph.topological_order.tolist():
            for v in after[u]:
                if left[u] or (made.op[u] == i and made.op[v] != i):
                    left[v] = True
        assert not (left & (made.op == i)).any()


@given(instances(max_ops=20), st.sampled_from(OPTIONS), st.integers(0, 2**32 - 1))
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_plan_of_the_contracted_graph_expands_to_one_no_worse(instance, options, seed):
    graph, cluster = instance
    made = contract(graph, **options)
    check_graph(made)
    check_convex(made)
    check_expansion(made, cluster, seed)


@given(instances(max_ops=20, constraints=False), st.integers(0, 2**32 - 1))
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_sets_of_consecutive_ops_keep_the_promise(instance, seed):
    """The bounds owe nothing to the rules: any partition without circles will do."""
    graph, cluster = instance
    rng = np.random.default_rng(seed)
    leader = np.empty(graph.num_ops, dtype=np.int64)
    cuts = np.sort(rng.integers(0, graph.num_ops + 1, size=rng.integers(0, 5)))
    for ops in np.split(graph.topological_order, cuts):
        leader[ops] = ops[:1] if len(ops) else 0
    made = quotient(graph, leader)
    made = regal_jax.Contraction(graph, made.graph, made.op, made.members, made.tensor)
    check_expansion(made, cluster, seed)


@given(instances(max_ops=20), st.integers(0, 2**32 - 1))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_contraction_comes_to_an_end(instance, seed):
    """Where nothing is heavy, once is enough; else each time again until nothing changes."""
    graph, cluster = instance
    once = contract(graph, anchors=(), max_share=1.0)
    if not graph.runtime.any() or graph.num_ops == 1:
        return
    again = contract(once.graph, anchors=(), max_share=1.0)
    assert again.graph is once.graph
    for _ in range(graph.num_ops):
        before, graph = graph, contract(graph, max_share=0.2).graph
        assert graph.num_ops <= before.num_ops
        if graph is before:
            break
    else:
        pytest.fail("still changing")
