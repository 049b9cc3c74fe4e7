"""Flows on graphs small enough to enumerate every schedule: losses, log Z, and the result of training."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from gflownet_cases import FREE2, Flow, Table, bare, chain, fork, inputs_of, seeds

from regal_jax.gflownet import (
    GflownetConfig,
    SchedulePolicy,
    clipped_ratio_loss,
    log_partition_estimates,
    log_reward,
    partition_variance_loss,
    sample_trajectories,
    trajectory_balance_loss,
    trajectory_terms,
)
from regal_jax.gflownet.environment import initial_state
from regal_jax.gflownet.trajectories import _log_shares

SIGMA = 0.3
GRAPHS = {
    "fork": fork(),
    "no edge": bare([0.7, 0.3, 0.9]),
    "chain": chain(3),
    "one op": bare([0.4]),
    "no time": bare([0.0, 0.0]),
}


@functools.partial(jax.jit, static_argnames="count")
def drawn(policy, inputs, key, count=64):
    return sample_trajectories(policy, inputs, jax.random.bits(key, (count, 2), jnp.uint32), log_sigma())


def log_sigma():
    return jnp.log(jnp.float32(SIGMA))


@jax.jit
def zeta_of(policy, inputs, trajectories):
    terms = trajectory_terms(policy, inputs, trajectories, log_sigma())
    reward = log_reward(trajectories.speedup, inputs.devices, jnp.float32(SIGMA))
    return log_partition_estimates(reward, terms.forward, terms.backward)


@pytest.mark.parametrize("name", GRAPHS)
def test_the_losses_are_zero_at_the_exact_flow(name):
    flow = Flow(GRAPHS[name], 2, SIGMA)
    inputs, table = inputs_of(flow.graph, FREE2, ops=4), Table.exact(flow, 4)
    zeta = zeta_of(table, inputs, drawn(table, inputs, jax.random.key(0)))
    np.testing.assert_allclose(zeta, flow.log_partition, rtol=1e-5, atol=1e-5)
    assert float(partition_variance_loss(zeta)) < 1e-9
    assert float(trajectory_balance_loss(zeta, jnp.float32(flow.log_partition))) < 1e-9
    assert flow.variation(table.log_probs(flow)) < 1e-6
    if flow.graph.num_ops > 2:
        # The uniform policy is another flow.
        uniform = Table.zeros(4, 2)
        zeta = zeta_of(uniform, inputs, drawn(table, inputs, jax.random.key(0)))
        assert name == "chain" or float(partition_variance_loss(zeta)) > 1e-2


def test_the_gradient_is_that_of_finite_differences():
    inputs = inputs_of(fork(), FREE2)
    rng = np.random.default_rng(0)

    def random_like(table):
        return jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), table)

    table, direction = (random_like(Table.zeros(4, 2)) for _ in range(2))
    trajectories = drawn(table, inputs, jax.random.key(1))

    @jax.jit
    def variance(table):
        return partition_variance_loss(zeta_of(table, inputs, trajectories))

    slope = jax.jit(jax.grad(variance))(table)
    along = float(optax.tree.vdot(slope, direction))
    up, down = (
        float(variance(jax.tree.map(lambda x, y, e=e: x + e * y, table, direction))) for e in (1e-2, -1e-2)
    )
    np.testing.assert_allclose(along, (up - down) / 2e-2, rtol=5e-3)
    assert abs(along) > 1e-2


def test_probabilities_forward_and_backward_are_those_of_plain_python():
    flow, inputs = Flow(fork(), 2, SIGMA), inputs_of(fork(), FREE2)
    rng = np.random.default_rng(3)
    table = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape), jnp.float32), Table.zeros(4, 2))
    trajectories = drawn(table, inputs, jax.random.key(2), count=8)
    terms = jax.tree.map(np.asarray, jax.jit(trajectory_terms)(table, inputs, trajectories, log_sigma()))
    given, backward = table.log_probs(flow), np.asarray(table.backward, np.float64)
    for p, (ops, devices) in enumerate(
        zip(*map(np.asarray, (trajectories.ops, trajectories.devices)), strict=True)
    ):
        state = flow.root
        for t, (op, device) in enumerate(zip(ops.tolist(), devices.tolist(), strict=True)):
            shares = given(state)
            np.testing.assert_allclose(terms.forward[p, t], shares[op, device], rtol=1e-4, atol=1e-5)
            entropy = -sum(np.exp(x) * x for x in shares.values())
            np.testing.assert_allclose(terms.entropy[p, t], entropy, rtol=1e-4, atol=1e-5)
            row = Table.number(state, 4)
            np.testing.assert_allclose(terms.value[p, t], table.value[row], rtol=1e-6)
            state = dict(flow.children(state))[op, device]
            row = backward[Table.number(state, 4)]
            total = np.log(sum(np.exp(row[o]) for o, _ in flow.parents(state)))
            np.testing.assert_allclose(terms.backward[p, t], row[op] - total, rtol=1e-4, atol=1e-5)
        work = float(flow.graph.runtime.sum())
        np.testing.assert_allclose(trajectories.speedup[p], work / flow.makespan(state), rtol=1e-5)


def test_samples_have_the_probabilities_of_the_policy():
    flow = Flow(bare([0.7, 0.3, 0.9]), 2, SIGMA)
    inputs, table = inputs_of(flow.graph, FREE2, ops=4), Table.exact(flow, 4)
    found = drawn(table, inputs, jax.random.key(5), count=20_000)
    counts: dict = {}
    for ops, devices in zip(np.asarray(found.ops).tolist(), np.asarray(found.devices).tolist(), strict=True):
        pairs = [pair for pair in zip(ops, devices, strict=True) if pair[0] < 4]
        chains = tuple(tuple(o for o, k in pairs if k == d) for d in range(2))
        counts[chains] = counts.get(chains, 0) + 1
    expected = flow.terminal(table.log_probs(flow))
    assert counts.keys() <= expected.keys()
    # Chi-squared of independent draws: its mean is the number of cells less one, its variance twice that.
    wrong = sum((counts.get(s, 0) - 20_000 * p) ** 2 / (20_000 * p) for s, p in expected.items())
    cells = len(expected) - 1
    assert wrong < cells + 5 * np.sqrt(2 * cells)


@functools.partial(jax.jit, static_argnames=("steps", "rate", "balance"))
def trained(params, inputs, key, steps, rate, balance=False):
    """A policy and an estimate of log Z after some training steps on its own trajectories."""
    adam = optax.adam(rate)

    def loss(params, trajectories):
        policy, log_z = params
        zeta = zeta_of(policy, inputs, trajectories)
        found = trajectory_balance_loss(zeta, log_z) if balance else partition_variance_loss(zeta)
        return found, zeta.mean()

    def step(carry, key):
        params, state = carry
        bits = jax.random.bits(key, (64, 2), jnp.uint32)
        trajectories = sample_trajectories(params[0], inputs, bits, log_sigma())
        gradient, zeta = jax.grad(loss, has_aux=True)(params, trajectories)
        with jax.numpy_dtype_promotion("standard"):
            changes, state = adam.update(gradient, state)
            return (optax.apply_updates(params, changes), state), zeta

    (params, _), zeta = jax.lax.scan(step, (params, adam.init(params)), jax.random.split(key, steps))
    return params, zeta


@pytest.mark.parametrize("balance", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_table_learns_the_distribution_and_log_z(balance):
    flow = Flow(fork(), 2, SIGMA)
    inputs, table = inputs_of(fork(), FREE2), Table.zeros(4, 2)
    assert flow.variation(table.log_probs(flow)) > 0.15
    (table, log_z), zeta = trained((table, jnp.float32(0)), inputs, jax.random.key(0), 300, 0.1, balance)
    assert flow.variation(table.log_probs(flow)) < 0.05
    np.testing.assert_allclose(zeta[-20:].mean(), flow.log_partition, atol=0.03)
    if balance:
        np.testing.assert_allclose(log_z, flow.log_partition, atol=0.03)


@pytest.mark.slow
def test_a_network_learns_the_distribution_and_log_z():
    flow, inputs = Flow(fork(), 2, SIGMA), inputs_of(fork(), FREE2)
    config = GflownetConfig(devices=2, layers=2, width=32, head_width=8, temperature_width=8)
    graphdef, weights = nnx.split(SchedulePolicy(config, rngs=nnx.Rngs(0)))

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True, eq=False)
    class Merged:
        weights: object

        def __call__(self, inputs, states, log_sigma):
            return nnx.merge(graphdef, self.weights)(inputs, states, log_sigma)

    params = (Merged(weights), jnp.float32(0))
    (policy, _), zeta = trained(params, inputs, jax.random.key(0), 1000, 2e-3)
    np.testing.assert_allclose(zeta[-20:].mean(), flow.log_partition, atol=0.05)
    model = nnx.merge(graphdef, policy.weights)
    assert flow.variation(network_log_probs(model, inputs, flow)) < 0.05


def network_log_probs(model, inputs, flow):
    """``state -> {action: log-probability}`` of a network, for `Flow.terminal`."""
    from test_gflownet_environment import add, look

    logits = jax.jit(
        lambda state: model(inputs, jax.tree.map(lambda x: x[None], state), log_sigma()).forward[0]
    )
    states = {flow.root: initial_state(inputs)}

    def given(chains):
        state = states[chains]
        for (op, device), child in flow.children(chains):
            if child not in states:
                states[child] = add(inputs, state, np.int32(op), np.int32(device))
        valid = look(inputs, state)["forward"].reshape(1, -1)
        shares = np.asarray(_log_shares(logits(state).reshape(1, -1), valid), np.float64)[0]
        return {(o, k): shares[o * flow.devices + k] for (o, k), _ in flow.children(chains)}

    return given


def test_the_reward_and_the_clipped_ratio():
    np.testing.assert_allclose(log_reward(jnp.float32(3), jnp.float32(4), jnp.float32(0.25)), -4)
    ratio, advantage = np.array([0.5, 0.9, 1.5, 1.5], np.float32), np.array([1, -1, 1, -1], np.float32)
    loss = clipped_ratio_loss(jnp.log(ratio), jnp.zeros(4), jnp.asarray(advantage), 0.2)
    # As in Schulman et al., figure 1: a ratio beyond the clipping limit adds no reward.
    np.testing.assert_allclose(loss, [-0.5, 0.9, -1.2, 1.5], rtol=1e-6)
    zeta = jnp.array([1.0, 3.0])
    np.testing.assert_allclose(partition_variance_loss(zeta), 1)
    np.testing.assert_allclose(partition_variance_loss(zeta, jnp.float32(1)), 2)
    np.testing.assert_allclose(trajectory_balance_loss(zeta, jnp.float32(1)), 1)
    assert seeds(0, 3).shape == (3, 2)
