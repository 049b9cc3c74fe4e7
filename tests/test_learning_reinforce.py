"""REINFORCE against exact gradients over all outcomes, and on a bandit."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st
from learning_cases import fast_on_first
from policy_cases import chain, four_bins, randomised

from regal_jax.graph import Cluster
from regal_jax.learning import OptimizerConfig, TaskConfig, TrainConfig, train
from regal_jax.learning.reinforce import leave_one_out, reinforce_loss, reward, standardised
from regal_jax.policies import Policy, load_policy, log_prob, make_inputs, most_likely
from regal_jax.search import BrkgaConfig

ONE = four_bins(num_devices=1, means=(0.3, 0.7), variances=(0.01,), rounds=1, width=4)


@pytest.fixture(scope="module")
def enumerated():
    """A policy for a chain of two ops, all of its 16 actions, and a reward for each."""
    graph = chain(2, [1.0, 3.0])
    features, prior = make_inputs([graph], Cluster.uniform(1), None, ONE)
    graphdef, weights = nnx.split(randomised(Policy(ONE, rngs=nnx.Rngs(0))))
    n = features.node_mask.shape[1]
    actions = np.zeros((16, 1, n, 2), np.uint8)
    actions[:, 0, :2] = np.array(list(itertools.product((0, 1), repeat=4))).reshape(16, 2, 2)
    rewards = jnp.asarray(-np.random.default_rng(0).uniform(0.5, 1.5, 16), jnp.float32)

    def log_probs(weights):
        logits = nnx.merge(graphdef, weights)(features, prior)
        return jax.vmap(lambda action: log_prob(logits, action, features.node_mask)[0])(jnp.asarray(actions))

    return weights, log_probs, rewards


def exact(enumerated):
    """Gradient of minus the expected reward, by the sum over all actions."""
    weights, log_probs, rewards = enumerated
    return jax.jit(jax.grad(lambda w: -(jnp.exp(log_probs(w)) * rewards).sum()))(weights)


def expected(enumerated, baseline):
    """Expected gradient of the loss of two actions: pairs are weighted by their probability."""
    weights, log_probs, rewards = enumerated
    pairs = jnp.asarray(list(itertools.product(range(16), repeat=2)))
    chance = jnp.exp(jax.jit(log_probs)(weights)[pairs].sum(axis=1))

    def loss(w):
        losses = jax.vmap(lambda p, r: reinforce_loss(p, baseline(r)))(log_probs(w)[pairs], rewards[pairs])
        return (chance * losses).sum()

    return jax.jit(jax.grad(loss))(weights)


def test_all_actions_are_there(enumerated):
    weights, log_probs, _ = enumerated
    chances = np.exp(np.asarray(jax.jit(log_probs)(weights), np.float64))
    assert chances.sum() == pytest.approx(1, abs=1e-5)
    assert chances.max() < 0.9


# Both of the others subtract a constant.
@pytest.mark.parametrize(
    "baseline",
    [leave_one_out, *(pytest.param(f, marks=pytest.mark.slow) for f in (lambda r: r, lambda r: r + 0.7))],
    ids=["loo", "0", "value"],
)
def test_the_expected_gradient_is_the_exact_one(enumerated, baseline):
    found, wanted = expected(enumerated, baseline), exact(enumerated)
    assert max(float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted)) > 1e-3
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=3e-6)


def test_a_baseline_with_the_own_reward_in_it_is_biased(enumerated):
    found, wanted = expected(enumerated, lambda r: r - r.mean()), exact(enumerated)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(a, b / 2, rtol=2e-3, atol=3e-6)


@given(st.lists(st.floats(-2, 0, width=32), min_size=2, max_size=8))
def test_leave_one_out_is_the_mean_of_the_others(rewards):
    found = leave_one_out(jnp.asarray(rewards, jnp.float32))
    others = [r - np.mean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]
    np.testing.assert_allclose(found, others, atol=1e-5)


def test_rewards_by_hand():
    objective = jnp.asarray([0.5, 1.0, 3.0, jnp.inf], jnp.float32)
    np.testing.assert_array_equal(reward(objective, jnp.float32(1), 2.0), [-0.5, -1, -2, -2])
    np.testing.assert_array_equal(reward(objective, jnp.float32(2), 2.0), [-0.25, -0.5, -1.5, -2])
    # A reference of 0 cannot be improved on and counts as matched.
    np.testing.assert_array_equal(reward(jnp.zeros(2), jnp.float32(0), 2.0), [-1, -1])


# By default, gradients are compared above and in test_regal_faithful.py; test_learning_ordering.py learns.
@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["leave-one-out", "learned"])
def test_a_bandit_is_learned(baseline, tmp_path):
    config = TrainConfig(
        task=TaskConfig(evaluations=1),
        policy=four_bins(rounds=0, width=8, guided_share=1),  # The one individual is the bandit's arm.
        search=BrkgaConfig(population=1, elites=0, mutants=1),
        optimizer=OptimizerConfig(
            steps=100, batch=8, samples=8, learning_rate=0.02, warmup=5, entropy=0.0, reference_seeds=8,
            validate_every=100, checkpoint_every=100, baseline=baseline,
        ),
    )  # fmt: skip
    graphs, held_out = [fast_on_first(6, s) for s in range(4)], [fast_on_first(6, s) for s in range(4, 8)]
    devices = jax.devices()[:1]
    result = train(config, graphs, held_out, tmp_path, progress=False, devices=devices)
    assert result.finished
    # Half of the ops on the slow device take 5 to 6 times as long as all of them on the fast one.
    assert result.best.improvement > 0.7
    assert result.best.matched == 1
    features, prior = make_inputs(held_out, Cluster.uniform(2, transfer="blocking"), None, config.policy)
    means = np.asarray(config.policy.means)
    for policy in (result.policy, load_policy(tmp_path / "policy.safetensors", num_devices=2)):
        first = np.asarray(most_likely(policy(features, prior)))[features.node_mask]
        first = first // len(config.policy.variances)
        on_first = means[first[:, 0]] > means[first[:, 1]]
        assert on_first.mean() > 0.9


def test_rounding_errors_of_equal_rewards_are_not_blown_up():
    found = standardised(jnp.asarray([3e-8, -3e-8], jnp.float32), jnp.float32(3e-8))
    assert np.abs(found).max() < 0.01
    np.testing.assert_allclose(standardised(jnp.asarray([0.3, -0.3]), jnp.float32(0.3)), [1, -1])
