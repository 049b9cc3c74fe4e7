"""Tests of actions: draws, probabilities, entropies, and the distributions that they stand for."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_cases import BUCKET, events_of, four_bins
from strategies import random_graph

from regal_jax import encoding, policies
from regal_jax.encoding import gene_shapes, uniform_proposal
from regal_jax.errors import ConfigError
from regal_jax.graph import Cluster
from regal_jax.heuristics.list_scheduling import quick_schedule
from regal_jax.plan import replay
from regal_jax.policies import (
    Logits,
    Policy,
    Prior,
    action_parameters,
    action_table,
    make_inputs,
    make_prior,
    to_proposal,
)
from regal_jax.problem import make_problem
from regal_jax.search import BrkgaConfig, Stopping
from regal_jax.solve import solve

seeds = st.integers(0, 2**32 - 1)

# As training calls them. Op by op, every shape would cost some dozens of compilations.
entropy = jax.jit(policies.entropy)
log_prob = jax.jit(policies.log_prob)
most_likely = jax.jit(policies.most_likely)
quantiles = jax.jit(encoding.quantiles)
sample_action = jax.jit(policies.sample_action)


def random_logits(seed, batch, n, keys, bins, scale=1.5):
    rng = np.random.default_rng(seed)
    draws = (rng.normal(size=(batch, n, keys, k)) * scale for k in bins)
    return Logits(*(draw.astype(np.float32) for draw in draws))


def slow_log_prob(logits, action, graph, ops):
    """By the definition, in float64."""
    total = 0.0
    for o in range(ops):
        for k in range(action.shape[1]):
            i, j = divmod(int(action[o, k]), logits.variances.shape[-1])
            for table, choice in ((logits.means, i), (logits.variances, j)):
                row = np.asarray(table[graph, o, k], np.float64)
                total += row[choice] - scipy.special.logsumexp(row)
    return total


# Probabilities --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ops", "devices", "bins"), [(1, 1, (2, 3)), (2, 1, (2, 2)), (1, 2, (3, 2)), (1, 1, (1, 1))]
)
def test_all_actions_of_a_tiny_graph(ops, devices, bins):
    keys, padded = devices + 1, ops + 1
    logits = random_logits(ops, 1, padded, keys, bins)
    mask = np.arange(padded)[None] < ops
    every = list(itertools.product(range(bins[0] * bins[1]), repeat=ops * keys))
    actions = np.zeros((len(every), 1, padded, keys), np.uint8)
    actions[:, 0, :ops] = np.reshape(every, (-1, ops, keys))
    logs = np.asarray(jax.vmap(lambda action: log_prob(logits, action, mask))(actions))[:, 0]
    np.testing.assert_allclose(np.exp(np.asarray(logs, np.float64)).sum(), 1, rtol=1e-5)
    for action, value in list(zip(actions, logs, strict=True))[:: max(1, len(every) // 40)]:
        assert value == pytest.approx(slow_log_prob(logits, action[0], 0, ops), abs=1e-4)
    whole = -(np.exp(logs) * logs).sum()
    np.testing.assert_allclose(entropy(logits, mask)[0] * (2 * keys * ops), whole, rtol=1e-4, atol=1e-6)


def test_score_has_mean_zero():
    """REINFORCE relies on this: the expected gradient of the log-probability is 0."""
    logits = random_logits(0, 1, 1, 2, (2, 3))
    mask = np.ones((1, 1), bool)
    actions = np.array(list(itertools.product(range(6), repeat=2)), np.uint8).reshape(-1, 1, 1, 2)

    def expected(x):
        each = jax.vmap(lambda action: log_prob(x, action, mask)[0])(actions)
        return (jax.lax.stop_gradient(jnp.exp(each)) * each).sum()

    for gradient in jax.jit(jax.grad(expected))(logits):
        np.testing.assert_allclose(gradient, 0, atol=1e-6)
    single = jax.jit(jax.grad(lambda x: log_prob(x, actions[0], mask)[0]))(logits)
    assert np.abs(single.means).max() > 0.1


@settings(max_examples=25)
@given(seeds, st.integers(1, 4), st.sampled_from([1, 3]))
def test_log_prob_and_entropy_by_the_definition(seed, n, keys):
    logits = random_logits(seed, 2, 4, keys, (3, 4))
    mask = np.arange(4)[None] < np.array([[n], [4]])
    action = np.random.default_rng(seed).integers(0, 12, (2, 4, keys)).astype(np.uint8)
    got, spread = np.asarray(log_prob(logits, action, mask)), np.asarray(entropy(logits, mask))
    for b, ops in enumerate((n, 4)):
        assert got[b] == pytest.approx(slow_log_prob(logits, action[b], b, ops), rel=1e-4)
        rows = [np.asarray(x[b, :ops], np.float64).reshape(-1, x.shape[-1]) for x in logits]
        each = [scipy.stats.entropy(scipy.special.softmax(x, axis=1), axis=1).mean() for x in rows]
        assert spread[b] == pytest.approx(np.mean(each), rel=1e-4)


def test_extreme_logits_stay_finite():
    logits = Logits(jnp.array([[[[1e4, 0.0, -1e4]]]]), jnp.array([[[[0.0, 0.0]]]]))
    mask = np.ones((1, 1), bool)
    action = np.array([[[4]]], np.uint8)
    assert float(log_prob(logits, action, mask)[0]) == pytest.approx(-2e4 - np.log(2))
    assert float(entropy(logits, mask)[0]) == pytest.approx(np.log(2) / 2)
    gradients = jax.jit(jax.grad(lambda x: entropy(x, mask)[0] + log_prob(x, action, mask)[0]))(logits)
    assert all(np.isfinite(g).all() for g in gradients)


# Draws ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(3))
def test_frequencies_are_the_probabilities(seed):
    n, keys = 30000, 2
    rows = random_logits(seed, 1, 1, keys, (3, 4))
    logits = Logits(*(np.broadcast_to(x, (1, n, *x.shape[2:])) for x in rows))
    action = np.asarray(sample_action(logits, jax.random.split(jax.random.key(seed), 1)))[0]
    assert action.dtype == np.uint8
    p = [scipy.special.softmax(x, axis=-1)[0, 0] for x in rows]
    joint = p[0][:, :, None] * p[1][:, None, :]
    for k in range(keys):
        counts = np.bincount(action[:, k], minlength=12)
        # Six standard deviations, for 12 counts: one failure in 40 million keys.
        bound = 6 * np.sqrt(n * joint[k].ravel() * (1 - joint[k].ravel())) + 1
        assert (np.abs(counts - n * joint[k].ravel()) < bound).all()
    # The draws of one op, and those of neighbouring keys, are independent.
    for one, other in ((action[:, 0], action[:, 1]), (action[:-1, 0], action[1:, 0])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 6 / np.sqrt(n)


@pytest.mark.parametrize("n", [1, 6])
@given(seed=seeds)
def test_padding_and_company_change_no_draw(n, seed):
    logits = random_logits(seed, 3, n, 3, (4, 4))
    wide = Logits(*(np.pad(x, ((0, 0), (0, 5), (0, 0), (0, 0))) for x in logits))
    keys = jax.random.split(jax.random.key(seed), 3)
    together = np.asarray(sample_action(wide, keys))[:, :n]
    np.testing.assert_array_equal(together, sample_action(logits, keys))
    alone = sample_action(jax.tree.map(lambda x: x[1:2], logits), keys[1:2])
    np.testing.assert_array_equal(together[1:2], alone)


def test_samples_by_vmap_are_those_drawn_one_by_one():
    logits = random_logits(0, 2, 5, 3, (4, 4))
    keys = jax.random.split(jax.random.key(1), (6, 2))
    many = np.asarray(jax.vmap(sample_action, in_axes=(None, 0))(logits, keys))
    for s in range(6):
        np.testing.assert_array_equal(many[s], sample_action(logits, keys[s]))
    assert len({row.tobytes() for row in many.reshape(12, -1)}) == 12


def test_any_kind_of_key_will_do():
    logits = random_logits(0, 2, 50, 3, (4, 4), scale=0)
    action = np.asarray(sample_action(logits, jax.random.split(jax.random.key(1, impl="rbg"), 2)))
    assert len(np.unique(action)) == 16
    assert (action[0] != action[1]).any()


def test_most_likely_and_the_impossible():
    logits = random_logits(0, 2, 5, 3, (4, 2))
    choices = [np.asarray(x).argmax(axis=-1) for x in logits]
    expected = choices[0] * 2 + choices[1]
    np.testing.assert_array_equal(most_likely(logits), expected)
    assert most_likely(logits).dtype == jnp.uint8
    # An action with a probability of almost 1 is drawn for every key.
    certain = Logits(logits.means * 1e5, logits.variances * 1e5)
    keys = jax.random.split(jax.random.key(0), (200, 2))
    drawn = jax.vmap(sample_action, in_axes=(None, 0))(certain, keys)
    np.testing.assert_array_equal(drawn, np.broadcast_to(expected, drawn.shape))


# Distributions --------------------------------------------------------------------------------------

CONFIGS = [
    four_bins(),
    four_bins(uniform=False),
    four_bins(alphas=(1, 2, 5, 20), betas=(1, 2, 5, 20)),
]


@pytest.mark.parametrize("config", CONFIGS)
def test_draws_are_of_the_betas_of_all_bins(config):
    """Kolmogorov-Smirnov distance over all 65536 possible draws, so the test is exact."""
    config = dataclasses.replace(config, num_devices=1, guided_share=1)
    alphas, betas = action_parameters(config)
    assert alphas.shape == (16,)
    n, d = 8, 1
    graph = random_graph(np.random.default_rng(0), n, d, constraints=False)
    problem = make_problem([graph], Cluster.uniform(d, transfer="free"))
    action = np.zeros((1, problem.bucket.ops, d + 1), np.uint8)
    action[0, :8] = np.arange(16).reshape(8, 2)
    proposal = to_proposal(config, action_table(config), action, problem)
    one = jax.tree.map(lambda x: x[0], proposal)
    bits = np.arange(65536, dtype=np.uint16)
    uniform = {
        "affinity": np.broadcast_to(bits[:, None, None], (65536, problem.bucket.ops, d)),
        "priority": np.broadcast_to(bits[:, None], (65536, problem.bucket.ops)),
        "transfer_priority": np.zeros((65536, 0, d), np.uint16),
    }
    genes = jax.tree.map(np.asarray, jax.vmap(lambda u: quantiles(one, u))(uniform))
    for row in range(16):
        leaf = genes["affinity"][:, row // 2, 0] if row % 2 == 0 else genes["priority"][:, row // 2]
        share = np.bincount(leaf, minlength=65536).cumsum() / 65536
        # A gene stands for all draws from g / 65536 up to (g + 1) / 65536.
        exact = scipy.stats.beta.cdf(np.arange(1, 65537) / 65536, alphas[row], betas[row])
        # At the ends of the 256 intervals the table is exact but for rounding to 16 bits (a density of up to
        # 13, and heavier ends) and for single precision; between them it cannot be off by more than one.
        assert np.abs(share - exact).max() < 1 / 256, row
        mean = (np.asarray(leaf, np.float64) + 0.5).mean() / 65536
        assert mean == pytest.approx(alphas[row] / (alphas[row] + betas[row]), abs=2e-3)


def test_means_and_variances_are_kept():
    config = four_bins(uniform=False)
    alphas, betas = action_parameters(config)
    mean, variance = scipy.stats.beta.stats(alphas, betas)
    np.testing.assert_allclose(mean, np.repeat(config.means, 4), rtol=1e-12)
    np.testing.assert_allclose(variance, np.tile(config.variances, 4), rtol=1e-12)


@given(st.floats(0.001, 0.999), st.floats(1e-6, 10))
def test_any_mean_and_variance_give_a_beta(m, v):
    config = four_bins(means=(m,), variances=(v,), uniform=False)
    (alpha,), (beta,) = action_parameters(config)
    assert min(alpha, beta) >= 0.1 * (1 - 1e-9)
    mean, variance = scipy.stats.beta.stats(alpha, beta)
    assert mean == pytest.approx(m)
    assert variance <= v * (1 + 1e-6) or min(alpha, beta) > 0.1 * (1 + 1e-9)
    assert variance == pytest.approx(v) or min(alpha, beta) == pytest.approx(0.1)


def test_the_largest_variance_is_uniform_when_asked_for():
    for first in ((0.2, 0.4, 0.6, 0.8), (0.5,)):
        alphas, betas = action_parameters(four_bins(means=first, variances=(0.001, 1 / 12)))
        assert (alphas[1::2] == 1).all()
        assert (betas[1::2] == 1).all()
        assert (alphas[0::2] > 5).all()
    exact = action_parameters(four_bins(means=(0.5,), variances=(1 / 12,), uniform=False))
    np.testing.assert_allclose(exact, 1)


def test_row_of_the_table_is_first_times_the_seconds_plus_second():
    alphas, betas = action_parameters(four_bins(alphas=(1, 2), betas=(3, 4, 5)))
    np.testing.assert_array_equal(alphas, [1, 1, 1, 2, 2, 2])
    np.testing.assert_array_equal(betas, [3, 4, 5, 3, 4, 5])


# Proposals ------------------------------------------------------------------------------------------


def test_action_of_the_largest_variance_is_plain_brkga():
    config, cluster = four_bins(num_devices=3, guided_share=1), Cluster.uniform(3, transfer="blocking")
    problem = make_problem([random_graph(np.random.default_rng(0), 9, 3)], cluster, BUCKET)
    action = np.full((1, 12, 4), 8, np.uint8)  # The third mean, the first variance.
    proposal = jax.tree.map(lambda x: x[0], to_proposal(config, action_table(config), action, problem))
    plain = jax.tree.map(lambda x: x[0], uniform_proposal(problem))
    rng = np.random.default_rng(1)
    uniform = {
        name: rng.integers(0, 65536, leaf.shape, dtype=np.uint16)
        for name, leaf in gene_shapes(problem).items()
    }
    assert proposal.shapes == plain.shapes
    for name, leaf in quantiles(proposal, uniform).items():
        np.testing.assert_array_equal(leaf, quantiles(plain, uniform)[name])


def test_the_share_of_guided_individuals_is_the_policy_s():
    problem = make_problem(
        [random_graph(np.random.default_rng(0), 9, 2)], Cluster.uniform(2, transfer="blocking"), BUCKET
    )
    action = np.zeros((1, 12, 3), np.uint8)
    for share in (0.3, 1.0):
        config = four_bins(guided_share=share)
        assert to_proposal(config, action_table(config), action, problem).share == share


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"means": (0.9, 0.3, 0.7, 0.5)},
        {"alphas": (5, 1, 20, 2), "betas": (1, 2, 5, 20)},
        pytest.param({"placements": ("along", "across")}, marks=pytest.mark.slow),
    ],
)
def test_transfers_are_as_urgent_as_the_most_urgent_reader(fields, there):
    config = four_bins(transfers="reader-there" if there else "reader", **fields)
    alphas, betas = action_parameters(config)
    mean = np.round(alphas / (alphas + betas), 9)
    graphs = [random_graph(np.random.default_rng(seed), 12 - seed, 2) for seed in range(8)]
    action = np.random.default_rng(2).integers(0, 16, (8, 12, config.num_keys)).astype(np.uint8)
    problem = make_problem(graphs, Cluster.uniform(2, transfer="blocking"), BUCKET)
    found = to_proposal(config, action_table(config), action, problem).transfer_index
    assert found is not None
    assert found.shape == (8, problem.bucket.tensors, 2 * config.num_placements if there else 1)
    seen = []
    for row, taken, graph in zip(np.asarray(found), action, graphs, strict=True):
        for t in set(graph.edge_tensor.tolist()):
            readers = graph.edge_op[graph.edge_tensor == t].tolist()
            for column, index in enumerate(row[t]):
                p, k = divmod(column, 2)
                affinity = mean[taken[readers, 2 * p : 2 * p + 2]]
                local = [o for o, means in zip(readers, affinity, strict=True) if means[k] == means.max()]
                seen.append(bool(local))
                urgent = taken[local if local and there else readers, -1]
                assert index in urgent
                assert mean[index] == mean[urgent].max()
    assert min(seen.count(True), seen.count(False)) > 2


@pytest.mark.parametrize("transfers", ["reader", "reader-there", "midway"])
@pytest.mark.parametrize("reach", [pytest.param(0, marks=pytest.mark.slow), 4])
def test_ops_keep_their_places_but_for_moves_and_transfers_follow(transfers, reach):
    """With variances of 0 the draws are known."""
    n, ops = 12, 11
    bins = tuple((np.arange(9) / 8 * 0.9 + 0.05).tolist())  # 0.5 in the middle.
    config = four_bins(
        means=bins, variances=(0.1, 0.0), uniform=False, guided_share=1, transfers=transfers, reach=reach,
        order_scale=1.0 if reach else 0.0,
    )  # fmt: skip
    graph = random_graph(np.random.default_rng(3), ops, 2)
    problem = make_problem([graph], Cluster.uniform(2, transfer="blocking"), BUCKET)
    rng = np.random.default_rng(1)
    action = rng.integers(0, 18, (1, n, 3)).astype(np.uint8)
    means = rng.integers(0, 9, n)
    action[0, :, 2] = means * 2 + 1
    prior = make_prior([graph], Cluster.uniform(2, transfer="blocking"), BUCKET, config)
    one = jax.tree.map(lambda x: x[0], to_proposal(config, action_table(config), action, problem, prior))
    uniform = {name: rng.integers(0, 65536, leaf.shape, dtype=np.uint16) for name, leaf in one.shapes.items()}
    drawn = {name: np.asarray(leaf, float) / 65536 for name, leaf in quantiles(one, uniform).items()}
    expected = np.array(bins)[means]
    if reach:
        place = min(bins) + (max(bins) - min(bins)) * np.asarray(prior.order)[0]
        expected = place + (expected - 0.5) * 2 * reach / ops
    expected = np.clip(expected[:ops], 0, 1)
    np.testing.assert_allclose(drawn["priority"][:ops], expected, atol=1e-4)
    alphas, betas = action_parameters(config)
    affinity = np.round(alphas / (alphas + betas), 9)[action[0, :, :2]]
    for t in set(graph.edge_tensor.tolist()):
        readers = graph.edge_op[graph.edge_tensor == t]
        for k in range(2):
            there = readers[affinity[readers, k] == affinity[readers].max(axis=1)]
            due = expected[there if transfers == "reader-there" and len(there) else readers].max()
            if transfers == "midway":
                due = (due + expected[graph.tensor_op[t]]) / 2
            assert drawn["transfer_priority"][t, k] == pytest.approx(due, abs=2e-4)


@pytest.mark.parametrize("cuts", [["schedule"], pytest.param(["schedule", "across"], marks=pytest.mark.slow)])
def test_ops_that_stay_and_transfers_as_scheduled_are_the_list_schedule(cuts):
    """Only the cut is random: the first individuals of the search have the schedule's makespan."""
    config = four_bins(
        prior="schedule", means=(0.1, 0.5, 0.9), variances=(0.0,), uniform=False, guided_share=1,
        transfers="schedule", reach=2, order_scale=1.0, placements=cuts,
    )  # fmt: skip
    graphs = [random_graph(np.random.default_rng(s), 11, 2, constraints=False) for s in range(6)]
    cluster = Cluster.uniform(2, transfer="blocking")
    problem = make_problem(graphs, cluster, BUCKET)
    features, prior = make_inputs(graphs, cluster, BUCKET, config)
    action = np.ones((6, 12, 2 * len(cuts) + 1), np.uint8)
    expected = []
    for b, graph in enumerate(graphs):
        numbers = np.argsort(features.order[b, : graph.num_ops])
        schedule = quick_schedule(graph, cluster, numbers)
        action[b, : graph.num_ops, :2] = 2 * (schedule.placement[:, None] == np.arange(2))
        expected.append(replay(graph, cluster, schedule.placement, events_of(graph, schedule)).makespan)
    proposal = to_proposal(config, action_table(config), jnp.asarray(action), problem, prior)
    assert proposal.transfer_index is not None
    assert proposal.transfer_index.shape == (6, problem.bucket.tensors, 2)
    brkga, keys = BrkgaConfig(population=30, elites=5, mutants=5), jax.random.split(jax.random.key(0), 6)
    found = solve(problem, keys, Stopping(30), proposal=proposal, config=brkga, implementation="xla")
    if len(cuts) == 1:
        np.testing.assert_allclose(found.fitness * problem.upper_bound, expected, rtol=1e-5)
    else:
        assert (found.fitness * problem.upper_bound <= np.array(expected) * (1 + 1e-5)).all()


def test_transfers_are_left_uniform_where_nothing_is_to_be_drawn_or_said():
    graph, action = random_graph(np.random.default_rng(0), 9, 2), np.zeros((1, 12, 3), np.uint8)
    for transfer, transfers in (("blocking", "uniform"), ("free", "reader")):
        config = four_bins(transfers=transfers)
        problem = make_problem([graph], Cluster.uniform(2, transfer=transfer), BUCKET)
        assert to_proposal(config, action_table(config), action, problem).transfer_index is None


@pytest.mark.slow
def test_a_search_takes_the_proposals_of_a_policy():
    """The path from graphs to makespans: an op whose keys are nearly fixed is placed as its action says."""
    config = four_bins(width=4, rounds=1, guided_share=1)
    graphs = [random_graph(np.random.default_rng(s), 9, 2, constraints=False) for s in range(2)]
    cluster = Cluster.uniform(2, transfer="free")
    problem = make_problem(graphs, cluster, BUCKET)
    inputs = make_inputs(graphs, cluster, BUCKET, config)
    keys = jax.random.split(jax.random.key(0), 2)
    drawn = sample_action(Policy(config, rngs=nnx.Rngs(0))(*inputs), jax.random.split(jax.random.key(1), 2))
    ours = jnp.full((2, 12, 3), 8, jnp.uint8)
    # Means 0.8 and 0.2 with the smallest variance: device 1 is certain in a population of 20.
    fixed = ours.at[:, :, 1].set(15).at[:, :, 0].set(3)

    def run(action):
        proposal = None if action is None else to_proposal(config, action_table(config), action, problem)
        brkga = BrkgaConfig(population=20, elites=4, mutants=4)
        return solve(problem, keys, Stopping(100), proposal=proposal, config=brkga, implementation="xla")

    plain, same, policy, forced = (run(action) for action in (None, ours, drawn, fixed))
    np.testing.assert_array_equal(plain.fitness, same.fitness)
    assert np.isfinite(policy.fitness).all()
    affinity = np.asarray(forced.genes["affinity"])[:, :9]
    assert (affinity[..., 1] > affinity[..., 0]).all()


def test_proposals_that_do_not_fit_are_refused():
    config = four_bins()
    graph = random_graph(np.random.default_rng(0), 9, 2)
    problem = make_problem([graph], Cluster.uniform(2, transfer="blocking"), BUCKET)
    table, action = action_table(config), jnp.zeros((1, 12, 3), jnp.uint8)
    with pytest.raises(ConfigError, match=r"shape \(1, 11, 3\), the problem needs \(1, 12, 3\)"):
        to_proposal(config, table, action[:, :11], problem)
    with pytest.raises(ConfigError, match=r"shape \(1, 12, 2\), the problem needs \(1, 12, 3\)"):
        to_proposal(config, table, action[:, :, :2], problem)
    with pytest.raises(ConfigError, match="the table has 3 rows for 16 actions"):
        to_proposal(config, table[:3], action, problem)
    moving = four_bins(reach=4, order_scale=1.0)
    wrong = Prior(jnp.zeros((1, 11)), jnp.zeros((1, 12, 1)))
    with pytest.raises(ConfigError, match="give the prior, from make_inputs, of a policy with a reach"):
        to_proposal(moving, table, action, problem)
    for prior in (wrong, Prior()):
        with pytest.raises(ConfigError, match="make it with the policy's config, of the same graphs and"):
            to_proposal(moving, table, action, problem, prior)
