"""The network that samples schedules: formulas, invariances, files, samples, and the solver."""

import dataclasses
import functools
import math
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from gflownet_cases import FREE2, FREE4, bare, chain, fork, inputs_of, seeds
from policy_cases import randomised

from regal_jax import Cluster, Gflownet, optimize
from regal_jax.datasets import generate
from regal_jax.errors import ConfigError, FormatError
from regal_jax.gflownet import (
    GflownetConfig,
    SchedulePolicy,
    add_op,
    default_gflownet,
    infer,
    initial_state,
    load_gflownet,
    precedence,
    read_gflownet_metadata,
    sample_schedules,
    sample_trajectories,
    save_gflownet,
    state_features,
)
from regal_jax.graph import GraphBuilder
from regal_jax.plan import replay

PLAIN = GflownetConfig(
    devices=3, layers=2, width=8, head_width=3, heads=(1, 1, 0, 2, 1, 1, 1), temperature_width=5
)
FULL = dataclasses.replace(PLAIN, layers=1, lookahead=True, partition=True, value=True)
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


@functools.cache
def network(config):
    return randomised(SchedulePolicy(config, rngs=nnx.Rngs(0)))


@jax.jit
def scores_of(model, inputs, states, log_sigma):
    return model(inputs, states, log_sigma)


@jax.jit
def states_after(inputs, ops, devices):
    """The state after some actions, and the initial one: ``P = 2``."""
    state = first = initial_state(inputs)
    for op, device in zip(ops, devices, strict=True):
        state = add_op(inputs, precedence(inputs), state, op, device)
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), first, state)


def some_states(inputs):
    ops, devices = [np.int32(x) for x in (0, 3, 1)], [np.int32(x) for x in (1, 0, 1)]
    return states_after(inputs, ops, devices)


def plain_scores(model, inputs, states, row, log_sigma):
    """Equations 26 to 30 and the heads in NumPy, for one state."""
    weights = nnx.to_pure_dict(nnx.state(model))

    def linear(x, at):
        return x @ np.asarray(at["kernel"], float) + np.asarray(at.get("bias", 0), float)

    def norm(x, at):
        centred = x - x.mean(axis=1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6)
        return scaled * np.asarray(at["scale"]) + np.asarray(at["bias"])

    def relu(x):
        return np.maximum(x, 0)

    def mlp(x, at):
        return linear(relu(linear(x, at["hidden"])), at["output"])

    encoder, relations = weights["encoder"], np.asarray(inputs.relations)
    features = state_features(inputs, jax.tree.map(lambda leaf: leaf[row], states))
    h = linear(np.asarray(features, float), encoder["node"])
    condition = relu(mlp(np.array([[log_sigma]]), encoder["temperature"]))
    codes = [code for code, heads in enumerate(model.config.heads, 1) for _ in range(heads)]
    for layer in encoder["layers"].values():
        x = norm(h, layer["first"])
        parts = np.split(linear(x, layer["attention"]["project"]), 3 * len(codes), axis=1)
        queries, keys, values = (parts[i * len(codes) : (i + 1) * len(codes)] for i in range(3))
        collected = []
        for head, code in enumerate(codes):
            weight = np.exp(queries[head] @ keys[head].T / math.sqrt(model.config.head_width))
            weight = np.where(relations == code, weight, 0)
            total = weight.sum(axis=1, keepdims=True)
            collected.append(weight @ values[head] / np.where(total > 0, total, 1))
        h = h + linear(np.concatenate(collected, axis=1), layer["attention"]["output"])
        hidden = linear(norm(h, layer["second"]), layer["hidden"])
        hidden = linear(condition, layer["scale"]) * hidden + linear(condition, layer["shift"])
        h = h + linear(relu(hidden), layer["output"])
    return mlp(h, weights["forward"]), mlp(h, weights["backward"])[:, 0]


def test_the_network_is_its_formulas():
    inputs, model = inputs_of(fork(), FREE2, devices=3), network(PLAIN)
    states = some_states(inputs)
    found = scores_of(model, inputs, states, jnp.float32(-1.5))
    for row in range(2):
        forward, backward = plain_scores(model, inputs, states, row, -1.5)
        np.testing.assert_allclose(found.forward[row], forward, rtol=1e-3, atol=1e-3)
        np.testing.assert_allclose(found.backward[row], backward, rtol=1e-3, atol=1e-3)
    assert not np.asarray(found.value).any()
    other = scores_of(model, inputs, states, jnp.float32(-4))
    assert np.abs(np.asarray(other.forward) - np.asarray(found.forward)).max() > 1e-2


def test_the_initial_weights_of_indicators_are_larger():
    def kernel(**settings):
        config = dataclasses.replace(FULL, **settings)
        return np.asarray(SchedulePolicy(config, rngs=nnx.Rngs(0)).encoder.node.kernel[...])

    plain, found = kernel(indicator_gain=1.0), kernel(indicator_gain=4.0)
    # Runtime, start time; devices and three flags; lookahead.
    factor = np.array([1.0] * 2 + [4.0] * (3 + 3) + [1.0] * (3 + 1))[:, None]
    np.testing.assert_allclose(found, plain * factor, rtol=1e-6)
    for wrong in (-1.0, float("nan"), "large"):
        with pytest.raises(ConfigError, match="indicator_gain: must be a number from 0"):
            dataclasses.replace(FULL, indicator_gain=wrong)


def test_all_valid_actions_are_equally_likely_before_any_training():
    inputs = inputs_of(fork(), FREE2, devices=3)
    found = scores_of(SchedulePolicy(FULL, rngs=nnx.Rngs(0)), inputs, some_states(inputs), jnp.float32(0))
    for part in found:
        assert not np.asarray(part).any()


def test_padding_and_company_change_nothing():
    model = network(FULL)
    plain, padded = (inputs_of(fork(), FREE2, ops=n, devices=3) for n in (4, 9))
    a = scores_of(model, plain, some_states(plain), jnp.float32(-2))
    b = scores_of(model, padded, some_states(padded), jnp.float32(-2))
    np.testing.assert_allclose(b.forward[:, :4], a.forward, **CLOSE)
    np.testing.assert_allclose(b.backward[:, :4], a.backward, **CLOSE)
    np.testing.assert_allclose(b.value, a.value, **CLOSE)
    log_z = jax.jit(lambda inputs: model.log_partition(inputs, jnp.float32(-2)))
    np.testing.assert_allclose(log_z(padded), log_z(plain), **CLOSE)
    draw = jax.jit(sample_trajectories)
    many = draw(model, plain, seeds(0, 8), jnp.float32(-2))
    few = draw(model, padded, seeds(0, 8)[:3], jnp.float32(-2))
    np.testing.assert_array_equal(few.ops[:, :4], many.ops[:3])
    np.testing.assert_array_equal(few.devices[:, :4], many.devices[:3])
    np.testing.assert_array_equal(few.speedup, many.speedup[:3])
    assert (np.asarray(few.ops)[:, 4:] == 9).all()


def test_numbers_of_ops_do_not_matter():
    model, graph = network(FULL), fork()
    place = [2, 0, 3, 1]  # Op `o` gets the number `place[o]`.
    runtimes = np.empty(4)
    runtimes[place] = graph.runtime
    moved = bare(runtimes.tolist(), [(place[u], place[v]) for u, v in ((0, 2), (1, 2))])
    a, b = inputs_of(graph, FREE2, devices=3), inputs_of(moved, FREE2, devices=3)
    devices = [np.int32(x) for x in (1, 0, 1)]
    ops = [np.int32(x) for x in (0, 3, 1)]
    states = [states_after(a, ops, devices), states_after(b, [np.int32(place[o]) for o in ops], devices)]
    x, y = (scores_of(model, inputs, s, jnp.float32(-1)) for inputs, s in zip((a, b), states, strict=True))
    np.testing.assert_allclose(np.asarray(y.forward)[:, place], x.forward, **CLOSE)
    np.testing.assert_allclose(np.asarray(y.backward)[:, place], x.backward, **CLOSE)
    np.testing.assert_allclose(y.value, x.value, **CLOSE)


def test_configs_and_parts_are_checked():
    for settings, said in (
        ({"devices": 0}, "gflownet: devices is 0"),
        ({"width": 0}, "width is 0"),
        ({"heads": (1, 2)}, "^gflownet: heads is"),
        ({"heads": (1, 1, 1, 1, 1, 1, -1)}, "^gflownet: heads is -1"),
        ({"lookahead": 1}, "lookahead is 1"),
    ):
        with pytest.raises(ConfigError, match=said):
            GflownetConfig(**settings)
    assert (PLAIN.features, FULL.features) == (8, 12)
    inputs = inputs_of(fork(), FREE2)
    with pytest.raises(ConfigError, match="inputs for 2 devices, but the network has 3"):
        network(PLAIN)(inputs, some_states(inputs), jnp.float32(0))
    with pytest.raises(ConfigError, match="does not estimate log Z"):
        network(PLAIN).log_partition(inputs, jnp.float32(0))


def test_weights_are_kept_in_files(tmp_path):
    path, model = tmp_path / "gflownet.safetensors", network(FULL)
    save_gflownet(path, model, {"training": "none"})
    again = load_gflownet(path)
    assert again.config == FULL
    assert read_gflownet_metadata(path) == {"training": "none"}
    for a, b in zip(*(jax.tree.leaves(nnx.state(m)) for m in (model, again)), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ConfigError, match="save_gflownet: give a path, then a SchedulePolicy"):
        save_gflownet(path, PLAIN)  # pyright: ignore[reportArgumentType]
    path.write_bytes(b"nothing")
    with pytest.raises(FormatError, match="not a safetensors file"):
        load_gflownet(path)


# Samples and the solver.


@pytest.mark.parametrize(
    "graph", [fork(), chain(3), bare([1.0]), generate("gflownet-layered", 13, 0)], ids=str
)
def test_samples_are_schedules(graph):
    model, key = network(PLAIN), jax.random.key(3)
    found = sample_schedules(model, graph, FREE2, key, count=5, temperature=0.1)
    assert found.sequence.shape == found.devices.shape == (5, graph.num_ops)
    assert found.sequence.dtype == found.devices.dtype == np.int32
    for order, devices, speedup in zip(*found, strict=True):
        timeline = replay(graph, FREE2, devices.astype(np.int64), order)
        np.testing.assert_allclose(speedup, graph.runtime.sum() / timeline.makespan, rtol=1e-5)
    again = sample_schedules(model, graph, FREE2, key, count=5, temperature=0.1)
    np.testing.assert_array_equal(again.sequence, found.sequence)


def test_samples_in_groups_are_all_different():
    graph, model = bare(np.linspace(0.1, 1, 10).tolist()), network(PLAIN)
    found = sample_schedules(model, graph, FREE2, jax.random.key(0), count=150, temperature=1.0)
    assert len(found.speedup) == 150
    groups = [{tuple(row) for row in part.tolist()} for part in (found.sequence[:22], found.sequence[128:])]
    assert not groups[0] & groups[1]
    timed = sample_schedules(model, graph, FREE2, jax.random.key(0), count=10**6, seconds=0.0)
    assert 0 < len(timed.speedup) <= 128


def test_long_sampling_warns_unless_it_has_a_limit(monkeypatch):
    graph, model, key = bare([1.0] * 4), network(PLAIN), jax.random.key(0)
    monkeypatch.setattr(infer, "_CPU_SECONDS", 0.25 / sum(model.config.heads))
    with pytest.warns(UserWarning, match="gflownet: 2 schedules of 4 ops take about 32 s .* fewer schedules"):
        sample_schedules(model, graph, FREE2, key, count=2)
    sample_schedules(model, graph, FREE2, key, count=2, seconds=60)
    sample_schedules(model, graph, FREE2, key, count=1)


def test_ctrl_c_is_obeyed_between_groups(monkeypatch):
    groups, model = [], network(PLAIN)
    sample = infer.run

    def interrupted(*arguments):
        groups.append(arguments)
        signal.raise_signal(signal.SIGINT)
        return sample(*arguments)

    monkeypatch.setattr(infer, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        sample_schedules(model, bare([1.0] * 4), FREE2, jax.random.key(0), count=10**4, seconds=10**6)
    assert len(groups) == 1


def test_what_cannot_be_sampled_is_refused():
    model, key = network(PLAIN), jax.random.key(0)
    with pytest.raises(ConfigError, match="the cluster has 4 devices, but the network is for 3"):
        sample_schedules(model, fork(), FREE4, key)
    with pytest.raises(ConfigError, match="count: must be"):
        sample_schedules(model, fork(), FREE2, key, count=0)
    with pytest.raises(ConfigError, match="temperature: must be"):
        sample_schedules(model, fork(), FREE2, key, temperature=0)
    with pytest.raises(ConfigError, match="give a SchedulePolicy first"):
        sample_schedules("default", fork(), FREE2, key)  # pyright: ignore[reportArgumentType]


def constrained():
    """A graph with ops that may run on one device only and with colocated ops; transfers take time."""
    builder = GraphBuilder("constrained")
    builder.add_op("a", runtime=1.0, outputs=[40], allowed_devices=[1])
    builder.add_op("b", runtime=2.0, outputs=[10], colocation_group="pair")
    builder.add_op("c", runtime=1.5, outputs=[30], inputs=[(0, 0)], colocation_group="pair")
    builder.add_op("d", runtime=0.5, outputs=[20], inputs=[(1, 0), (2, 0)])
    return builder.build()


@pytest.mark.parametrize(
    "cluster",
    [
        FREE2,
        Cluster.uniform(2, 100, transfer="free"),
        Cluster.uniform(2, transfer="delay:latency=1,bandwidth=10"),
        Cluster.uniform(2, transfer="blocking:latency=1,bandwidth=10"),
        Cluster.uniform(1),
    ],
    ids=str,
)
def test_the_solver_takes_the_best_under_the_cluster(cluster):
    graph = constrained() if cluster.num_devices == 2 else fork()
    solver = Gflownet(samples=20, temperature=1.0, weights=network(PLAIN))
    plan = optimize(graph, cluster, method=solver)
    plan.verify(graph)
    assert plan.provenance["method"] == "gflownet"
    one = optimize(graph, cluster, method=dataclasses.replace(solver, samples=1))
    assert plan.sort_key <= one.sort_key
    np.testing.assert_array_equal(optimize(graph, cluster, method=solver).placement, plan.placement)


def test_the_solver_is_checked(tmp_path):
    for settings, said in (
        ({"samples": 0}, "Gflownet: samples is 0"),
        ({"temperature": 0}, "Gflownet: temperature is 0"),
    ):
        with pytest.raises(ConfigError, match=said):
            Gflownet(**settings)
    with pytest.raises(ConfigError, match="method: gflownet is for at most 3 devices, not for 4"):
        optimize(fork(), FREE4, method=Gflownet(weights=network(PLAIN)))
    with pytest.raises(ConfigError, match="gflownet is for makespan, not for peak-memory"):
        optimize(fork(), FREE2, objective="peak-memory", method=Gflownet(weights=network(PLAIN)))
    with pytest.raises(ConfigError, match="weights: no file"):
        optimize(fork(), FREE2, method=Gflownet(weights="missing"))
    with pytest.raises(ConfigError, match="give 'default', a file of weights or a SchedulePolicy"):
        optimize(fork(), FREE2, method=Gflownet(weights=3))
    path = tmp_path / "w.safetensors"
    save_gflownet(path, network(PLAIN))
    a, b = (
        optimize(fork(), FREE2, method=Gflownet(weights=w, samples=4)) for w in (str(path), network(PLAIN))
    )
    np.testing.assert_array_equal(a.timeline.start, b.timeline.start)


# The weights that ship.


def test_lower_temperatures_have_faster_and_fewer_schedules():
    graph, model = generate("gflownet-barabasi-albert", 16, seed=3), default_gflownet()
    found = [
        sample_schedules(model, graph, FREE4, jax.random.key(0), count=64, temperature=temperature)
        for temperature in (1.0, 0.1, 0.01)
    ]
    means = [each.speedup.mean() for each in found]
    assert means == sorted(means)
    assert means[2] > 1.2 * means[0]
    # Schedules that differ only in the names of devices count as different.
    assert len({(*s, *d) for s, d in zip(*(part.tolist() for part in found[2][:2]), strict=True)}) > 32
