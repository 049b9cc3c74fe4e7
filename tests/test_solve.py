"""Keys, proposals of policies, and equality of the traced search and the public one."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from policy_cases import chain, four_bins, randomised
from strategies import random_graph

from regal_jax.datasets import generate
from regal_jax.encoding import quantiles
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster
from regal_jax.policies import (
    Policy,
    sample_action,
)
from regal_jax.problem import Bucket, make_problem
from regal_jax.search import BrkgaConfig, Stopping
from regal_jax.solve import graph_keys, keys_of, solve, solve_traced
from regal_jax.solve.propose import propose, propose_orders

TWO = Cluster.uniform(2, transfer="blocking")
CONFIG = four_bins(rounds=1, width=4)


@pytest.fixture(scope="module")
def graphs():
    return [random_graph(np.random.default_rng(seed), ops) for seed, ops in ((0, 1), (1, 7), (2, 10))]


@pytest.fixture(scope="module")
def problem(graphs):
    return make_problem(graphs, TWO, Bucket.common(map(Bucket.of, graphs)))


@pytest.fixture(scope="module")
def policy():
    return randomised(Policy(CONFIG, rngs=nnx.Rngs(0)))


def test_keys_are_folded_from_what_a_graph_is(graphs):
    key = jax.random.key(4)
    keys = graph_keys(key, graphs)
    for graph, found in zip(graphs, keys, strict=True):
        wanted = key
        for word in (graph.content_hash[:8], graph.content_hash[8:16]):
            wanted = jax.random.fold_in(wanted, np.uint32(int(word, 16)))
        np.testing.assert_array_equal(jax.random.key_data(found), jax.random.key_data(wanted))
    turned = graph_keys(key, graphs[::-1])
    np.testing.assert_array_equal(jax.random.key_data(turned[::-1]), jax.random.key_data(keys))
    assert graph_keys(key, []).shape == (0,)
    both = keys_of(key, jnp.asarray([[1, 2], [2, 1]], jnp.uint32))
    assert (jax.random.key_data(both)[0] != jax.random.key_data(both)[1]).any()


@pytest.mark.parametrize(
    ("guided", "share", "evaluations"),
    [
        pytest.param(False, 1, 1, marks=pytest.mark.slow),
        (True, 1, 60),
        pytest.param(True, 0.5, 60, marks=pytest.mark.slow),
    ],
)
def test_the_traced_search_is_the_search(graphs, problem, policy, guided, share, evaluations):
    keys, config = graph_keys(jax.random.key(0), graphs), BrkgaConfig(population=20, elites=4, mutants=3)
    proposal = propose(policy, graphs, TWO, problem, keys) if guided else None
    if share < 1:
        proposal = dataclasses.replace(proposal, share=share)
    users = solve(problem, keys, Stopping(evaluations), proposal=proposal, config=config)
    traced = jax.jit(lambda p, k, d: solve_traced(p, k, evaluations, proposal=d, config=config))(
        problem, keys, proposal
    )
    np.testing.assert_array_equal(traced.fitness, users.fitness)
    np.testing.assert_array_equal(traced.evaluations, users.evaluations)
    for a, b in zip(jax.tree.leaves(traced.genes), jax.tree.leaves(users.genes), strict=True):
        np.testing.assert_array_equal(a, b)


def test_company_and_order_change_no_action(graphs, problem, policy):
    keys = graph_keys(jax.random.key(1), graphs)
    all_of_them = propose(policy, graphs, TWO, problem, keys)
    alone = propose(policy, graphs[1:2], TWO, make_problem(graphs[1:2], TWO, problem.bucket), keys[1:2])
    ops = graphs[1].num_ops
    np.testing.assert_array_equal(alone.index[0, :ops], all_of_them.index[1, :ops])
    other = propose(policy, graphs, TWO, problem, graph_keys(jax.random.key(2), graphs))
    assert (np.asarray(other.index) != np.asarray(all_of_them.index)).any()


def test_other_weights_act_otherwise_and_are_not_traced_again(graphs, problem, monkeypatch):
    traced = []
    monkeypatch.setattr(
        "regal_jax.solve.propose.sample_action", lambda *args: traced.append(1) or sample_action(*args)
    )
    keys = graph_keys(jax.random.key(1), graphs)
    policy = Policy(dataclasses.replace(CONFIG, width=5), rngs=nnx.Rngs(0))
    copy = nnx.clone(policy)
    before = propose(policy, graphs, TWO, problem, keys)
    np.testing.assert_array_equal(propose(copy, graphs, TWO, problem, keys).index, before.index)
    nnx.update(policy, nnx.state(randomised(policy)))  # In place.
    assert (np.asarray(propose(policy, graphs, TWO, problem, keys).index) != before.index).any()
    assert len(traced) == 1


def test_a_policy_for_other_devices(policy):
    three = Cluster.uniform(3, transfer="blocking")
    problem = make_problem([chain(2)], three)
    with pytest.raises(ConfigError, match="made for 2 devices, but the cluster has 3; take one"):
        propose(policy, [chain(2)], three, problem, jax.random.split(jax.random.key(0), 1))


def test_draws_around_orders_stay_near_their_places():
    graphs = [generate("ordering-layered", n, seed=n) for n in (20, 40)]
    orders = [np.random.default_rng(0).permutation(graph.num_ops) for graph in graphs]
    problem = make_problem(graphs, Cluster.uniform(1, transfer="free"))
    proposal = propose_orders(orders, problem)
    bits = np.random.default_rng(1).integers(0, 2**16, problem.bucket.ops).astype(np.uint16)
    for row, order in enumerate(orders):
        one = jax.tree.map(lambda leaf, row=row: leaf[row], proposal)
        zeros = {name: jnp.zeros(shape.shape, jnp.uint16) for name, shape in one.shapes.items()}
        near = quantiles(one, {**zeros, "priority": jnp.asarray(bits)})["priority"]
        n = len(order)
        place = np.empty(n)
        place[order] = (n - np.arange(n) - 0.5) / n
        away = np.abs(np.asarray(near)[:n] / 65536 - place) * n
        assert 1 < away.max() <= 4.01
        # The other half of the individuals is drawn without the order.
        other = {**zeros, "priority": jnp.asarray(bits), "which": jnp.array([65535], jnp.uint16)}
        np.testing.assert_array_equal(quantiles(one, other)["priority"], bits)
