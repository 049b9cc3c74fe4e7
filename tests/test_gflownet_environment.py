"""The environment of schedules: its masks, its times, its features, and inverse moves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gflownet_cases import FREE2, FREE4, Flow, bare, chain, fork, free, inputs_of
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import random_graph

from regal_jax.datasets import generate
from regal_jax.errors import ClusterError, ConfigError
from regal_jax.gflownet import (
    GflownetConfig,
    add_op,
    backward_mask,
    forward_mask,
    initial_state,
    lookahead_features,
    make_schedule_inputs,
    precedence,
    removable,
    remove_op,
    speedup,
    state_features,
)
from regal_jax.gflownet.inputs import padded_ops
from regal_jax.graph import Cluster, GraphBuilder
from regal_jax.graph.pairing import allowed_matrix, runtime_matrix
from regal_jax.ordering import relation_matrix
from regal_jax.plan import Plan

OPS, DEVICES = 8, 3


@jax.jit
def reset(inputs):
    return initial_state(inputs)


@jax.jit
def look(inputs, state):
    return {
        "forward": forward_mask(inputs, state),
        "backward": backward_mask(state),
        "removable": removable(state),
        "features": state_features(inputs, state),
        "ahead": lookahead_features(inputs, precedence(inputs), state),
        "speedup": speedup(inputs, state),
    }


@jax.jit
def add(inputs, state, op, device):
    return add_op(inputs, precedence(inputs), state, op, device)


@jax.jit
def remove(inputs, state, op):
    return remove_op(inputs, precedence(inputs), state, op)


def seen(inputs, state):
    return jax.tree.map(np.asarray, look(inputs, state))


def same(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def walk(inputs, rng, each=lambda *_: None):
    """A random sequence of valid actions, and the last state."""
    state, actions = reset(inputs), []
    while True:
        told = seen(inputs, state)
        each(state, told)
        valid = np.argwhere(told["forward"])
        if not len(valid):
            return actions, state
        op, device = (np.int32(x) for x in rng.choice(valid))
        actions.append((op, device))
        state = add(inputs, state, op, device)


def graph_of(seed, count):
    """A graph with control edges, several outputs, residents, pins and colocation."""
    return random_graph(np.random.default_rng(seed), count, inputs_per_op=1.0, devices=2)


def inputs_for(graph, cluster=FREE2):
    return inputs_of(graph, cluster, ops=OPS, devices=DEVICES)


@given(st.integers(0, 10**6), st.integers(1, OPS))
@settings(max_examples=25)
def test_every_backward_move_undoes_a_forward_one(seed, count):
    graph = graph_of(seed, count)
    inputs, rng = inputs_for(graph), np.random.default_rng(seed)
    states = []

    def each(state, told):
        np.testing.assert_array_equal(told["backward"].any(axis=1), told["removable"])
        assert not (told["forward"].any(axis=1) & told["removable"]).any()
        for op in np.flatnonzero(told["removable"]):
            device = np.argmax(told["backward"][op])
            parent = remove(inputs, state, np.int32(op))
            before = seen(inputs, parent)
            assert before["forward"][op, device]
            same(add(inputs, parent, np.int32(op), np.int32(device)), state)
        states.append(state)

    actions, state = walk(inputs, rng, each)
    assert int(state.count) == count == len(actions)
    for (op, device), before in zip(reversed(actions), reversed(states[:-1]), strict=True):
        assert seen(inputs, state)["backward"][op, device]
        state = remove(inputs, state, op)
        same(state, before)
    same(state, reset(inputs))


@given(st.integers(0, 10**6), st.integers(1, OPS))
@settings(max_examples=25)
def test_times_are_those_of_the_replay(seed, count):
    graph = graph_of(seed, count)
    inputs = inputs_for(graph)
    actions, state = walk(inputs, np.random.default_rng(seed))
    placement = np.zeros(count, np.int64)
    for op, device in actions:
        placement[op] = device
    plan = Plan.from_events(graph, FREE2, placement, [int(op) for op, _ in actions])
    start = np.zeros(count)
    start[[int(op) for op, _ in actions]] = plan.timeline.start
    longest = float(graph.runtime.max())
    # A power of two, so that nothing is rounded twice.
    scale = float(inputs.longest) / longest if longest else 1.0
    np.testing.assert_allclose(np.asarray(state.start)[:count] / scale, start, rtol=1e-5, atol=1e-6)
    times = np.where(allowed_matrix(graph, FREE2), runtime_matrix(graph, FREE2), np.inf)
    shortest = times.min(axis=1).sum()
    gained = shortest / plan.makespan if plan.makespan else 1.0
    np.testing.assert_allclose(seen(inputs, state)["speedup"], gained, rtol=1e-5)


def test_states_are_the_chains_of_devices():
    """In each state the numbers of valid actions, forward and backward, equal those of plain Python."""
    flow, inputs = Flow(fork(), 2, 1.0), inputs_for(fork())

    def state_of(chains):
        state, left = reset(inputs), [list(ops) for ops in chains]
        done = set()
        while any(left):
            for k, ops in enumerate(left):
                if ops and flow.before[ops[0]] <= done:
                    done.add(ops[0])
                    state = add(inputs, state, np.int32(ops.pop(0)), np.int32(k))
        return state

    for chains in [state for layer in flow.layers for state in layer]:
        told = seen(inputs, state_of(chains))
        assert {tuple(pair) for pair in np.argwhere(told["forward"])} == {a for a, _ in flow.children(chains)}
        assert set(np.flatnonzero(told["removable"])) == {op for op, _ in flow.parents(chains)}


def test_features_are_those_of_the_appendix():
    inputs = inputs_for(fork())
    state = add(inputs, reset(inputs), np.int32(0), np.int32(1))
    state = add(inputs, state, np.int32(3), np.int32(1))
    told = seen(inputs, state)
    found = told["features"]
    assert found.shape == (OPS, GflownetConfig(devices=DEVICES).features)
    # Runtime, start, three devices, may be added, may be removed, scheduled.
    np.testing.assert_allclose(
        found,
        [
            [0.7 / 0.9, 0, 0, 1, 0, 0, 0, 1],
            [0.4 / 0.9, -1, 0, 0, 0, 1, 0, 0],
            [0.5 / 0.9, -1, 0, 0, 0, 0, 0, 0],
            [0.9 / 0.9, 0.7 / 0.9, 0, 1, 0, 0, 1, 1],
            *[[0, 0, 0, 0, 0, 0, 0, 0]] * 4,
        ],
        rtol=1e-6,
    )
    # Starts on the devices, and the longest path behind.
    np.testing.assert_allclose(
        told["ahead"] * 0.9,
        [[0, 0, 0, 1.2], [0, 1.6, 0, 0.9], [0, 0, 0, 0.5], [0, 0, 0, 0.9], *[[0, 0, 0, 0]] * 4],
        rtol=1e-6,
    )


def test_units_of_time_change_no_feature():
    """Padding changes nothing except the added rows."""
    graph = generate("gflownet-layered", 8, seed=1)
    others = [bare(graph.runtime * factor, edges_of(graph)) for factor in (1.0, 3e-5, 7e6)]
    plain, *scaled = (inputs_for(other, FREE2) for other in others)
    actions, state = walk(plain, np.random.default_rng(0))
    for inputs in scaled:
        again = reset(inputs)
        for op, device in actions:
            again = add(inputs, again, op, device)
        for name, found in seen(inputs, again).items():
            np.testing.assert_allclose(found, seen(plain, state)[name], rtol=1e-5, err_msg=name)
    small = inputs_of(graph, FREE2)
    again = reset(small)
    for op, device in actions:
        again = add(small, again, op, device)
    np.testing.assert_array_equal(again.start, np.asarray(state.start)[:8])


def edges_of(graph):
    return list(zip(graph.edge_producer.tolist(), graph.edge_op.tolist(), strict=True))


@pytest.mark.parametrize("graph", [bare([1.0]), bare([0.0, 0.0]), bare([1, 2, 3]), chain(4)], ids=str)
def test_one_op_no_time_no_edge_and_a_chain(graph):
    inputs = inputs_for(graph)
    actions, state = walk(inputs, np.random.default_rng(0))
    assert len(actions) == graph.num_ops
    told = seen(inputs, state)
    assert np.isfinite(told["features"]).all()
    if graph.num_ops == 4:
        assert [int(op) for op, _ in actions] == [0, 1, 2, 3]
    if not graph.runtime.any() or graph.num_ops in (1, 4):
        np.testing.assert_allclose(told["speedup"], 1, rtol=1e-6)


def test_what_is_out_of_range_changes_nothing():
    inputs = inputs_for(fork())
    state = add(inputs, reset(inputs), np.int32(1), np.int32(0))
    same(add(inputs, state, np.int32(OPS), np.int32(0)), state)
    same(remove(inputs, state, np.int32(OPS)), state)


def test_inputs_are_checked_and_padded():
    graph = fork()
    with pytest.raises(ConfigError, match="has 4 ops, more than 3"):
        make_schedule_inputs(graph, FREE2, ops=3)
    with pytest.raises(ConfigError, match="the cluster has 4 devices, but the network is for 2"):
        make_schedule_inputs(graph, FREE4, devices=2)
    builder = GraphBuilder("three")
    builder.add_op("op", runtime=[1.0, 2.0, 3.0])
    with pytest.raises(ClusterError, match="runtimes for 3 devices, the cluster has 2"):
        make_schedule_inputs(builder.build(), FREE2)
    inputs = make_schedule_inputs(graph, FREE2, ops=6, devices=4)
    np.testing.assert_array_equal(inputs.relations[:4, :4], relation_matrix(graph))
    assert not inputs.allowed[4:].any()
    assert not inputs.allowed[:, 2:].any()
    assert [padded_ops(n) for n in (0, 1, 8, 9, 50, 64, 65, 100, 129)] == [8, 8, 8, 16, 56, 64, 80, 112, 160]
    assert (float(inputs.devices), int(inputs.num_ops)) == (2.0, 4)
    np.testing.assert_allclose(inputs.work, 2.5)
    np.testing.assert_allclose(jnp.asarray(inputs.path)[:4], [1.2, 0.9, 0.5, 0.9], rtol=1e-6)
    assert free(3) == Cluster.uniform(3, transfer="free")
